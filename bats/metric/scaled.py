"""Distance between states: the Euclidean length of the difference of their embeddings.

Raw numbers of a state mix units. The default embedding divides each by the root mean square of its change in one step,
so that a distance counts ordinary steps; numbers that never change are left out. Whatever embeds states so that a
planner can differentiate through it can stand in for it.

    steps           each number over its root mean square change in one step (ours)
    raw             the numbers as they are (the paper's mazes and mountain car)
    deviations      each number over its deviation in the log (the paper's MuJoCo tasks)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from bats.arrays import Numbers
from bats.data.dataset import Dataset
from bats.errors import DataError

MetricKind = Literal["steps", "raw", "deviations"]
RunMetric = Literal["steps", "raw", "deviations", "bisimulation"]
"""those, and the one that a run learns itself (`refresh`)"""

ROUNDING = 1e-6
"""a number that changes less than this, relative to its range, does not change"""
APART = 1000.0
"""distance between the two ends of the range of a number that never changes within an episode"""


@dataclass(frozen=True, eq=False)
class ScaledMetric:
    """Euclidean distance after scaling each number."""

    weight: Float[np.ndarray, "D"]
    """0 for a number that does not count"""

    @classmethod
    def of(cls, dataset: Dataset, kind: MetricKind = "steps") -> ScaledMetric:
        """The metric of a log; by default a distance counts its ordinary steps."""
        if kind == "raw":
            return cls(np.ones(dataset.observations.shape[1], dtype=np.float32))
        if kind == "deviations":
            return cls(_one_over(dataset.observations.std(axis=0, dtype=np.float64), dataset))
        known = dataset.next_known
        change = dataset.next_observations[known] - dataset.observations[known]
        return cls(_one_over(np.sqrt(np.einsum("nd,nd->d", change, change, dtype=np.float64) / len(change)), dataset))

    def embed(self, states: Numbers) -> Numbers:
        return states * self.weight


def _one_over(size: Float[np.ndarray, "D"], dataset: Dataset) -> Float[np.ndarray, "D"]:
    """One over the size of each number's changes.

    A number that is the same throughout does not count. One that differs between episodes but never changes within
    one (a goal, a machine, a patient) counts so much that states that differ in it are nobody's neighbours.
    """
    least, greatest = dataset.observations.min(axis=0), dataset.observations.max(axis=0)
    spread = greatest.astype(np.float64) - least
    varies = spread > ROUNDING * np.maximum(np.abs(least), np.abs(greatest))
    changes = varies & (size > ROUNDING * spread)
    if not changes.any():
        raise DataError("states that change", "none that does", file=dataset.name, field="observations")
    weight = np.divide(APART, spread, out=np.zeros_like(spread), where=varies)
    return np.divide(1.0, size, out=weight, where=changes).astype(np.float32)
