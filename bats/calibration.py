"""How wrong the model is around a plan, judged by rows it never saw.

The members of an ensemble agree on much that none of them knows. Model error is local: next to nothing in free flight
and large where something is hit. So a plan is judged by the residuals of held-out rows near the states it passes, and
not by the members' agreement alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import cKDTree

from bats.metric import Metric

NEAREST = 8
"""held-out rows asked about each state of a plan"""


@dataclass(frozen=True, eq=False)
class LocalError:
    """Held-out rows, embedded, with how far the model's prediction for each lay from what happened."""

    places: Float[np.ndarray, "H m"]
    residual: Float[np.ndarray, "H"]

    @classmethod
    def measured(
        cls,
        metric: Metric,
        observations: Float[np.ndarray, "H D"],
        next_observations: Float[np.ndarray, "H D"],
        predicted: Float[np.ndarray, "H D"],
    ) -> LocalError:
        """Of rows whose next states are known and predicted, in the units of the metric."""
        miss = np.asarray(metric.embed(predicted)) - np.asarray(metric.embed(next_observations))
        return cls(np.asarray(metric.embed(observations)), np.linalg.norm(miss, axis=1))

    @cached_property
    def _tree(self) -> cKDTree:
        return cKDTree(self.places)

    def along(self, states: Float[np.ndarray, "C K m"], length: Int[np.ndarray, "C"]) -> Float[np.ndarray, "C"]:
        """The largest residual among the rows nearest to the embedded states that each plan acts in."""
        acted = np.arange(states.shape[1]) < length[:, None]
        near = self._tree.query(states[acted], k=np.arange(1, min(NEAREST, len(self.places)) + 1), workers=-1)[1]
        largest = np.zeros(acted.shape)
        largest[acted] = self.residual[near].max(axis=1)
        return largest.max(axis=1)
