"""Best Action Trajectory Stitching: from a log of transitions to a policy with a value you can trust."""

from bats.dataset import Dataset
from bats.errors import BatsError, DataError

__all__ = ["BatsError", "DataError", "Dataset"]
