"""MuJoCo, imported only when a task that needs it is made."""

from __future__ import annotations

from typing import Any

from bats.errors import BatsError


def import_mujoco() -> Any:
    """MuJoCo, or what to do about its absence."""
    try:
        import mujoco
    except ImportError as error:
        raise BatsError("This task needs MuJoCo: pip install 'bats-rl[mujoco]'") from error
    return mujoco
