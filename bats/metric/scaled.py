"""Distance between states: the Euclidean distance of their embeddings. The default embedding scales each number.

Raw numbers of a state mix units. Dividing each by the root mean square of its delta in one step makes a distance count
ordinary steps.

    steps       each number over its root mean square delta (ours)
    raw         the numbers as they are (the paper's mazes and mountain car)
    std         each number over its standard deviation in the log (the paper's MuJoCo tasks)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bats.arrays import Numbers
from bats.config import MetricKind
from bats.data.dataset import Dataset
from bats.errors import DataError

ROUNDING = 1e-6
"""a number that changes less than this, relative to its range, counts as constant"""
FAR_APART = 1000.0
"""distance between the ends of the range of a number that differs between episodes and never changes within one"""


@dataclass(frozen=True, eq=False)
class ScaledMetric:
    """Euclidean distance after scaling each number."""

    weight: Float[np.ndarray, "D"]
    """0 for a number that is ignored"""

    @classmethod
    def of(cls, dataset: Dataset, kind: MetricKind = "steps") -> ScaledMetric:
        """The metric of a log. A run that learns its metric (bisimulation) falls back on ordinary steps."""
        if kind == "raw":
            return cls(np.ones(dataset.observations.shape[1], dtype=np.float32))
        if kind == "std":
            return cls(_inverse(dataset.observations.std(axis=0, dtype=np.float64), dataset))
        known = dataset.next_known
        delta = dataset.next_observations[known] - dataset.observations[known]
        return cls(_inverse(np.sqrt(np.einsum("nd,nd->d", delta, delta, dtype=np.float64) / len(delta)), dataset))

    def embed(self, states: Numbers) -> Numbers:
        return states * self.weight


def _inverse(scale: Float[np.ndarray, "D"], dataset: Dataset) -> Float[np.ndarray, "D"]:
    """The inverse of the scale of each component, with two exceptions."""
    low, high = dataset.observations.min(axis=0), dataset.observations.max(axis=0)
    spread = high.astype(np.float64) - low
    varies = spread > ROUNDING * np.maximum(np.abs(low), np.abs(high))
    changes = varies & (scale > ROUNDING * spread)
    if not changes.any():
        expected, found = "states that change during an episode", "states that do not change"
        raise DataError(expected, found, file=dataset.name, field="observations")
    # a component that never changes is ignored; one that only differs between episodes (a goal, a machine, a
    # patient) weighs so much that states which differ in it are never neighbours
    weight = np.divide(FAR_APART, spread, out=np.zeros_like(spread), where=varies)
    return np.divide(1.0, scale, out=weight, where=changes).astype(np.float32)
