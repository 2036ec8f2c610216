"""Best Action Trajectory Stitching: from a log of transitions to a policy with a value you can trust.

The public names are listed in `__init__.pyi`, for type checkers as for this module. Each is imported when it is first
used, so that a program does not wait for what it does not use. No module here has the name of a function: it would
shadow the function once it is imported.
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_HOMES = {
    match[2]: match[1]
    for match in re.finditer(
        r"^from ([\w.]+) import (\w+)", Path(__file__).with_suffix(".pyi").read_text(), re.MULTILINE
    )
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bats' has no attribute '{name}'")
    home = _HOMES[name]
    return import_module(f"bats.{name}") if home == "bats" else getattr(import_module(home), name)


def __dir__() -> list[str]:
    return __all__
