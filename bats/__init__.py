"""Best Action Trajectory Stitching: from a log of transitions to a policy with a value you can trust."""

from bats.dataset import Dataset
from bats.errors import BatsError, DataError
from bats.formats import ColumnMap, load_dataset, write_hdf5, write_minari
from bats.mdp import TabularMDP, from_dataset
from bats.mdp_files import load_mdp, save_mdp
from bats.solve import Solution, policy_iteration, policy_value, start_value
from bats.validate import validate

__all__ = [
    "BatsError",
    "ColumnMap",
    "DataError",
    "Dataset",
    "Solution",
    "TabularMDP",
    "from_dataset",
    "load_dataset",
    "load_mdp",
    "policy_iteration",
    "policy_value",
    "save_mdp",
    "start_value",
    "validate",
    "write_hdf5",
    "write_minari",
]
