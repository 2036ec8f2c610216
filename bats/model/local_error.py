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

from bats.arrays import Metric

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

    def near(self, places: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "n"]:
        """The mean residual of the rows nearest to each embedded state."""
        nearest = self._tree.query(places, k=np.arange(1, min(NEAREST, len(self.places)) + 1), workers=-1)[1]
        return self.residual[nearest].mean(axis=1)

    def along(self, states: Float[np.ndarray, "C K m"], length: Int[np.ndarray, "C"]) -> Float[np.ndarray, "C"]:
        """What the model's errors come to over each plan: the sum of what they are near the states that it acts in.

        Unlike the largest of them, the sum grows with the number of actions as the true error does.
        """
        acted = np.arange(states.shape[1]) < length[:, None]
        usual = np.zeros(acted.shape)
        usual[acted] = self.near(states[acted])
        return usual.sum(axis=1)
