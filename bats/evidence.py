"""What speaks for and against the model's word: its members' disagreement, held-out rows, and a metric of value.

A claim is what the model says of its own error: in where actions lead, as `attempts` does for stitches, and in what
they pay. Claims times a factor (`reliability`) are taken for true, and turned into units of value here.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bats.attempts import Learned
from bats.calibration import LocalError
from bats.dynamics import one_hot
from bats.errors import SettingError
from bats.metric import Metric, ScaledMetric
from bats.model import HeldOut
from bats.planner import error_of

RESOLUTION = 1e-3
"""claims below this, in the units of the metric and of the log's range of rewards, count as this"""


@dataclass(frozen=True)
class Factors:
    """What the claims of plans are multiplied by to be trusted."""

    landing: float
    """those about where they end"""
    reward: float
    """those about what they pay"""
    windows: int
    """held-out plans that they were found with"""

    def reach(self, claimed: Float[np.ndarray, "C"]) -> Float[np.ndarray, "C"]:
        """How far off plans may end that claim so much."""
        return self.landing * np.maximum(claimed, RESOLUTION)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What claims are made from, and what makes them values."""

    learned: Learned
    rewards: LocalError
    """how wrong the model's rewards were, and where"""
    unseen: HeldOut
    """rows that nothing else has been chosen or judged by"""
    value_metric: Metric
    """no two states' values differ by more than they are apart in it"""
    quantile: float
    """share of the members whose word a claim is"""
    tolerance: float
    """largest claim of a plan that is acted on"""
    reward_span: float
    """of the log"""

    @classmethod
    def of(
        cls, learned: Learned, held_out: HeldOut, value_metric: Metric, *, quantile: float, tolerance: float
    ) -> Evidence:
        """One half of the held-out rows tells how wrong the rewards are where, the other calibrates."""
        judging, unseen = held_out.halves()
        wrong = np.abs(judging.predicted_reward - judging.rewards)
        return cls(
            learned,
            LocalError(np.asarray(learned.metric.embed(judging.observations)), wrong),
            unseen,
            value_metric,
            quantile,
            tolerance,
            reward_span=float(np.ptp(held_out.rewards)),
        )

    def disagreement(self, ends: Float[np.ndarray, "M C D"]) -> Float[np.ndarray, "C"]:
        """How far from their mean the members are, as many of them as are asked."""
        embed = self.learned.metric.embed
        apart = np.linalg.norm(np.asarray(embed(ends)) - np.asarray(embed(ends.mean(axis=0))), axis=2)
        return error_of(apart.T, self.quantile)

    def local(self, acted_in: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "n"]:
        """How wrong one step usually is near embedded states; 0 where stitches were not judged by that either."""
        local = self.learned.local_error
        return np.zeros(len(acted_in)) if local is None else local.near(acted_in)

    def claimed_reward(
        self, dispute: Float[np.ndarray, "n"], acted_in: Float[np.ndarray, "n m"]
    ) -> Float[np.ndarray, "n"]:
        """How much a step may pay more or less than the members' mean, from which one of them is so far off."""
        return np.maximum(dispute + self.rewards.near(acted_in), RESOLUTION * self.reward_span)

    def around(self, places: Float[np.ndarray, "C D"], reach: Float[np.ndarray, "C"]) -> Float[np.ndarray, "C P D"]:
        """The places themselves, and what lies `reach` away from each both ways along every number that counts."""
        metric = self.learned.metric
        if not isinstance(metric, ScaledMetric):
            raise SettingError("Only a metric that weighs numbers knows its directions.")
        counts = np.flatnonzero(metric.weight)
        way = np.zeros((2 * len(counts) + 1, places.shape[1]))
        way[1 + 2 * np.arange(len(counts)), counts] = 1 / metric.weight[counts]
        way[2 + 2 * np.arange(len(counts)), counts] = -1 / metric.weight[counts]
        return places[:, None] + reach[:, None, None] * way

    def spread(self, places: Float[np.ndarray, "C P D"]) -> Float[np.ndarray, "C"]:
        """How far from a place anything within reach may be in the value metric, where that is straight nearby.

        The farther of both ways along each number, and all numbers together as the sides of a box: no direction is
        worse.
        """
        embedded = np.asarray(self.value_metric.embed(places.astype(np.float32)), dtype=np.float64)
        apart = np.linalg.norm(embedded[:, 1:] - embedded[:, :1], axis=2)
        return np.linalg.norm(apart.reshape(len(places), -1, 2).max(axis=2), axis=1)

    def paid(
        self, states: Float[np.ndarray, "C D"], actions: np.ndarray, places: Float[np.ndarray, "C P D"]
    ) -> Float[np.ndarray, "C Q"]:
        """What each member expects for arriving at each of the places."""
        count, each = places.shape[:2]
        dynamics = self.learned.dynamics
        encoded = one_hot(actions, dynamics.action_count)
        rows = (np.repeat(states, each, axis=0), np.repeat(encoded, each, axis=0), places.reshape(count * each, -1))
        paid = np.asarray(dynamics.reward(*(for_all(part, dynamics.member_count) for part in rows)))
        return np.moveaxis(paid.reshape(-1, count, each), 0, 1).reshape(count, -1)


def for_all(rows: np.ndarray, members: int) -> Float[Array, "M B n"]:
    """The same rows for every member."""
    return jnp.broadcast_to(jnp.asarray(rows, jnp.float32), (members, *rows.shape))
