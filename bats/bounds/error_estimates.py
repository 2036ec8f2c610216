"""What speaks for and against the model's word: its members' disagreement, and rows that it never saw.

A claim is what the model says of its own error, of where actions lead and of what they pay: how far some share of the
members keep, and how wrong it usually was on held-out rows near the way, added up over the steps. It is made twice, in
the metric that stitches are judged by and in the metric of value, where it says how much the value may differ. Claims
times a factor (`reliability`) are taken for true.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from bats.arrays import Metric
from bats.model.fit import HeldOut
from bats.model.local_error import LocalError
from bats.planning.planner import error_of
from bats.stitching.acceptance import Learned

RESOLUTION = 1e-3
"""claims below this share of the log's range of rewards count as this"""


@dataclass(frozen=True)
class Factors:
    """What the claims of plans are multiplied by to be trusted."""

    value: float
    """those about what the value is where they end"""
    reward: float
    """those about what they pay"""
    windows: int
    """held-out plans that they were found with"""

    def at_least(self, margin: float) -> Factors:
        """The same with a least factor for claims about value; those about rewards are taken at their word at least."""
        return Factors(max(self.value, margin), max(self.reward, 1.0), self.windows)


@dataclass(frozen=True, eq=False)
class Claims:
    """How wrong plans may be, by the model's own word."""

    landing: Float[np.ndarray, "C"]
    """about where each ends, in the metric that stitches are judged by"""
    value: Float[np.ndarray, "C"]
    """about the value there"""
    reward: Float[np.ndarray, "C K"]
    """about what each step pays; 0 beyond a plan's length"""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What claims are made from, and the rows to test them on."""

    learned: Learned
    judging: HeldOut
    """held-out rows that claims are made from"""
    unseen: HeldOut
    """rows that nothing else is judged by, and nothing chosen by but a penalty, where there is a choice"""
    value_metric: Metric
    """no two states' values differ by more than they are apart in it"""
    quantile: float
    """share of the members whose word a claim is"""
    tolerance: float
    """largest claim about where a plan ends that is acted on"""
    reward_span: float
    """of the log"""

    @classmethod
    def of(
        cls, learned: Learned, held_out: HeldOut, value_metric: Metric, *, quantile: float, tolerance: float
    ) -> Evidence:
        """One half of the held-out rows makes claims, as it does for stitches, the other tests them."""
        span = float(np.ptp(held_out.rewards))
        return cls(learned, *held_out.halves(), value_metric, quantile, tolerance, span)

    @property
    def least(self) -> float:
        """Of all claims about value and rewards."""
        return RESOLUTION * self.reward_span

    @cached_property
    def _values(self) -> LocalError:
        """How wrong the value is where one step of the model leads, and where that is so."""
        rows = self.judging
        wrong = LocalError.measured(self.value_metric, rows.observations, rows.next_observations, rows.predicted_next)
        return LocalError(self._rewards.places, wrong.residual)

    @cached_property
    def _rewards(self) -> LocalError:
        rows = self.judging
        places = np.asarray(self.learned.metric.embed(rows.observations))
        return LocalError(places, np.abs(rows.predicted_reward - rows.rewards))

    def claims(
        self,
        visited: Float[np.ndarray, "M C K D"],
        dispute: Float[np.ndarray, "C K"],
        source: Float[np.ndarray, "C D"],
        aim: Float[np.ndarray, "C D"],
        length: Int[np.ndarray, "C"],
    ) -> Claims:
        """Of plans from `source` that are meant to end in `aim`, if members see them go through `visited`.

        `dispute` is how far from the promised reward of each step a member is.
        """
        acting = np.arange(visited.shape[2]) < length[:, None]
        mean = visited.mean(axis=0)
        acted_in = np.asarray(self.learned.metric.embed(np.concatenate([source[:, None], mean[:, :-1]], axis=1)))
        local, value, reward = np.zeros((3, *acting.shape))
        local[acting], value[acting], reward[acting] = self.one_step(acted_in[acting], dispute[acting])
        ends = visited[:, :, -1]  # beyond a plan's length states stay where it ends
        landing, fares = self.apart(ends, aim)
        return Claims(landing + local.sum(axis=1), np.maximum(fares + value.sum(axis=1), self.least), reward)

    def one_step(
        self, acted_in: Float[np.ndarray, "n m"], dispute: Float[np.ndarray, "n"]
    ) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
        """What a step adds to claims about place and value, and its claim about its reward, near embedded states."""
        local = self.learned.local_error
        place = np.zeros(len(acted_in)) if local is None else local.near(acted_in)
        reward = np.maximum(dispute + self._rewards.near(acted_in), self.least)
        return place, self._values.near(acted_in), reward

    def apart(
        self, ends: Float[np.ndarray, "M C D"], aim: Float[np.ndarray, "C D"]
    ) -> tuple[Float[np.ndarray, "C"], Float[np.ndarray, "C"]]:
        """How far from where they should be the asked share of the members is, in both metrics."""
        found = []
        for metric in (self.learned.metric, self.value_metric):
            here, there = np.asarray(metric.embed(ends)), np.asarray(metric.embed(aim.astype(ends.dtype)))
            found.append(error_of(np.linalg.norm(here - there, axis=2).T.astype(np.float64), self.quantile))
        return found[0], found[1]
