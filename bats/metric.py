"""Distance between states: the Euclidean length of the difference of their embeddings.

Raw numbers of a state mix units. The default embedding divides each by the root mean square of its change in one step,
so that a distance counts ordinary steps; numbers that never change are left out. Whatever embeds states so that a
planner can differentiate through it can stand in for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from jaxtyping import Float

from bats.dataset import Dataset
from bats.errors import DataError

Numbers = TypeVar("Numbers")


class Metric(Protocol):
    """Embeds states; arrays of NumPy and of JAX alike, so that planners can differentiate it."""

    def embed(self, states: Numbers) -> Numbers: ...


@dataclass(frozen=True, eq=False)
class StepMetric:
    """Distance in ordinary steps."""

    weight: Float[np.ndarray, "D"]
    """one over a number's root mean square change in one step; 0 where it never changes"""

    @classmethod
    def from_dataset(cls, dataset: Dataset) -> StepMetric:
        """The weights of a log."""
        known = dataset.next_known
        change = dataset.next_observations[known] - dataset.observations[known]
        size = np.sqrt(np.einsum("nd,nd->d", change, change, dtype=np.float64) / len(change))
        if not size.any():
            raise DataError("states that change", "one state throughout", file=dataset.name, field="observations")
        return cls(np.divide(1.0, size, out=np.zeros_like(size), where=size > 0).astype(np.float32))

    def embed(self, states: Numbers) -> Numbers:
        return states * self.weight
