"""Best Action Trajectory Stitching: from a log of transitions to a policy with a value you can trust."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bats.config import Config, preset
    from bats.dataset import Dataset
    from bats.errors import BatsError, DataError
    from bats.evaluate import Evaluation, evaluate
    from bats.formats import ColumnMap, load_dataset, write_hdf5, write_minari
    from bats.mdp import TabularMDP, from_dataset
    from bats.mdp_files import load_mdp, save_mdp
    from bats.onnx_export import export_onnx
    from bats.pipeline import Result, fit, load_result
    from bats.policy import Policy
    from bats.policy_files import load_policy, save_policy
    from bats.report import write_report
    from bats.solve import Solution, policy_iteration, policy_value, start_value
    from bats.validate import validate

_HOMES = {
    "bats.config": ("Config", "preset"),
    "bats.dataset": ("Dataset",),
    "bats.errors": ("BatsError", "DataError"),
    "bats.evaluate": ("Evaluation", "evaluate"),
    "bats.formats": ("ColumnMap", "load_dataset", "write_hdf5", "write_minari"),
    "bats.mdp": ("TabularMDP", "from_dataset"),
    "bats.mdp_files": ("load_mdp", "save_mdp"),
    "bats.onnx_export": ("export_onnx",),
    "bats.pipeline": ("Result", "fit", "load_result"),
    "bats.policy": ("Policy",),
    "bats.policy_files": ("load_policy", "save_policy"),
    "bats.report": ("write_report",),
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
    "Evaluation",
    "Policy",
    "Result",
    "Solution",
    "TabularMDP",
    "evaluate",
    "export_onnx",
    "fit",
    "from_dataset",
    "load_dataset",
    "load_mdp",
    "load_policy",
    "load_result",
    "policy_iteration",
    "policy_value",
    "preset",
    "save_mdp",
    "save_policy",
    "start_value",
    "validate",
    "write_hdf5",
    "write_minari",
    "write_report",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'bats' has no attribute '{name}'")
