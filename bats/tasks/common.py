"""What every task needs: seeded random numbers, a check of the log's size, and MuJoCo, which is an optional extra."""

from __future__ import annotations

from typing import Any

import numpy as np

from bats.errors import BatsError, SettingError

Info = dict[str, Any]
"""what Gymnasium passes along with observations: the options of `reset`, and the infos of every step"""


def generator(seed: int) -> np.random.Generator:
    """The random generator of a seed, from which everything in a log or an evaluation is drawn."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise SettingError(f"A seed must be a non-negative integer; got {seed!r}.")
    return np.random.default_rng(int(seed))


def draw_seeds(rng: np.random.Generator, count: int) -> list[int]:
    """A seed for each `reset` of an environment."""
    return [int(rng.integers(2**31)) for _ in range(count)]


def check_rows(rows: int | None, usual: int) -> int:
    """The size of a log, the usual one if None; fewer than two rows, which show no state after another, are refused."""
    rows = usual if rows is None else rows
    if rows < 2:
        raise BatsError(f"A log needs at least 2 rows; got {rows}.")
    return rows


def import_mujoco() -> Any:
    """The module `mujoco`, or an error that says how to install it."""
    try:
        import mujoco
    except ImportError as error:
        raise BatsError("This task needs MuJoCo: pip install 'bats-rl[mujoco]'") from error
    return mujoco
