"""Best Action Trajectory Stitching: from a log of transitions to a policy with a value you can trust."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bats.config import Config, preset
    from bats.dataset import Dataset
    from bats.errors import BatsError, DataError
    from bats.formats import ColumnMap, load_dataset, write_hdf5, write_minari
    from bats.mdp import TabularMDP, from_dataset
    from bats.mdp_files import load_mdp, save_mdp
    from bats.pipeline import Result, fit
    from bats.solve import Solution, policy_iteration, policy_value, start_value
    from bats.validate import validate

_HOMES = {
    "bats.config": ("Config", "preset"),
    "bats.dataset": ("Dataset",),
    "bats.errors": ("BatsError", "DataError"),
    "bats.formats": ("ColumnMap", "load_dataset", "write_hdf5", "write_minari"),
    "bats.mdp": ("TabularMDP", "from_dataset"),
    "bats.mdp_files": ("load_mdp", "save_mdp"),
    "bats.pipeline": ("Result", "fit"),
    "bats.solve": ("Solution", "policy_iteration", "policy_value", "start_value"),
    "bats.validate": ("validate",),
}
"""modules are imported when a name of theirs is first asked for, so that nobody pays for what they do not use"""

__all__ = [
    "BatsError",
    "ColumnMap",
    "Config",
    "DataError",
    "Dataset",
    "Result",
    "Solution",
    "TabularMDP",
    "fit",
    "from_dataset",
    "load_dataset",
    "load_mdp",
    "policy_iteration",
    "policy_value",
    "preset",
    "save_mdp",
    "start_value",
    "validate",
    "write_hdf5",
    "write_minari",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'bats' has no attribute '{name}'")
