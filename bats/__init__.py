"""Best Action Trajectory Stitching: from a log of transitions to a policy with a value you can trust."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bats import tasks as tasks
    from bats.config import Config, preset
    from bats.data.checks import validate
    from bats.data.dataset import Dataset
    from bats.data.formats.load import ColumnMap, load_dataset, write_hdf5, write_minari
    from bats.errors import BatsError, DataError
    from bats.evaluation.episodes import Evaluation, evaluate
    from bats.graph.files import load_mdp, save_mdp
    from bats.graph.mdp import TabularMDP, from_dataset
    from bats.graph.solve import Solution, policy_iteration, policy_value, start_value
    from bats.policy.files import load_policy, save_policy
    from bats.policy.onnx import export_onnx
    from bats.policy.policy import Policy
    from bats.report.page import write_report
    from bats.runs.pipeline import Result, fit, load_result

_HOMES = {
    "bats.config": ("Config", "preset"),
    "bats.data.dataset": ("Dataset",),
    "bats.errors": ("BatsError", "DataError"),
    "bats.evaluation.episodes": ("Evaluation", "evaluate"),
    "bats.data.formats.load": ("ColumnMap", "load_dataset", "write_hdf5", "write_minari"),
    "bats.graph.mdp": ("TabularMDP", "from_dataset"),
    "bats.graph.files": ("load_mdp", "save_mdp"),
    "bats.policy.onnx": ("export_onnx",),
    "bats.runs.pipeline": ("Result", "fit", "load_result"),
    "bats.policy.policy": ("Policy",),
    "bats.policy.files": ("load_policy", "save_policy"),
    "bats.report.page": ("write_report",),
    "bats.graph.solve": ("Solution", "policy_iteration", "policy_value", "start_value"),
    "bats.data.checks": ("validate",),
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
    if name == "tasks":  # a package of its own: `bats.tasks.collect`
        return import_module("bats.tasks")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'bats' has no attribute '{name}'")
