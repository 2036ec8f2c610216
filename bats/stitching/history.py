"""What was tried before: which pairs are still open, and how often a distance of some size was bridged.

A plan that ended too far from its target may reach it with more actions. A plan that the model is not reliable enough
for may be accepted with fewer, because its errors add up, and a pair that was stitched may be stitched with fewer too.
So a pair is open for lengths between the most actions that ended too far and the fewest that did not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.arrays import Indices
from bats.stitching.records import Attempts, Outcome

DISTANCE_BINS = 2.0 ** np.arange(-8, 5)
"""limits of the bins of distances per action, each twice the one before"""
MAX_FAILED_PLANS = 20_000
"""after so many plans without a single success no more are tried; by then some rounds had half the length"""
NEVER = np.iinfo(np.int64).max
"""more actions than any stitch has"""


@dataclass(frozen=True, eq=False)
class History:
    """All attempts so far, by pair and by distance."""

    real_count: int
    """states that can be targets"""
    pair: Int[np.ndarray, "t"]
    """source * real_count + target of every pair tried, in order, each once"""
    too_far: Int[np.ndarray, "t"]
    """most actions that ended too far from the target; 0 where none did"""
    unreliable: Int[np.ndarray, "t"]
    """fewest that came close and were refused for another reason; NEVER where none were"""
    accepted: Int[np.ndarray, "t"]
    """fewest that were accepted; NEVER where none were"""
    tries: Float[np.ndarray, "bins"]
    successes: Float[np.ndarray, "bins"]
    error_sum: float
    """of the accepted stitches"""

    @classmethod
    def empty(cls, real_count: int) -> History:
        none, bins = np.zeros(0, dtype=np.int64), np.zeros(len(DISTANCE_BINS) + 1)
        return cls(real_count, none, none, none, none, bins, bins, 0.0)

    @classmethod
    def of(cls, rounds: Iterable[Attempts], real_count: int) -> History:
        """The history of saved rounds."""
        return reduce(cls.extended, rounds, cls.empty(real_count))

    def extended(self, attempts: Attempts) -> History:
        """With what a round tried."""
        length, accepted = attempts.length, attempts.accepted
        # with every length tried in turn, all shorter ones have ended too far
        shorter_tried = attempts.first_length < length
        too_far = np.where(attempts.outcome == Outcome.TOO_FAR, length, 0)
        too_far = np.where(shorter_tried, np.where(accepted, length - 1, length), too_far)
        unreliable = np.where(accepted | (too_far == length), NEVER, length)
        tried = self.pair_numbers(attempts.source, attempts.target)
        pair, index = np.unique(np.concatenate([self.pair, tried]), return_inverse=True)
        most_too_far = np.zeros(len(pair), dtype=np.int64)
        fewest_unreliable, fewest_accepted = np.full((2, len(pair)), NEVER)
        np.maximum.at(most_too_far, index, np.concatenate([self.too_far, too_far]))
        np.minimum.at(fewest_unreliable, index, np.concatenate([self.unreliable, unreliable]))
        np.minimum.at(fewest_accepted, index, np.concatenate([self.accepted, np.where(accepted, length, NEVER)]))
        bin_of, bins = np.digitize(attempts.distance / length, DISTANCE_BINS), len(self.tries)
        return History(
            self.real_count,
            pair,
            most_too_far,
            fewest_unreliable,
            fewest_accepted,
            tries=self.tries + np.bincount(bin_of, minlength=bins),
            successes=self.successes + np.bincount(bin_of, weights=accepted, minlength=bins),
            error_sum=self.error_sum + float(attempts.error[accepted].sum()),
        )

    @property
    def is_hopeless(self) -> bool:
        """Whether many plans were tried and none was ever accepted."""
        return bool(self.tries.sum() >= MAX_FAILED_PLANS and np.all(self.accepted == NEVER))

    def without_failures(self) -> History:
        """For another metric: what failed may be tried again, and success rates start anew."""
        kept = self.accepted < NEVER
        pair, accepted = self.pair[kept], self.accepted[kept]
        none, never = np.zeros_like(pair), np.full_like(pair, NEVER)
        return replace(History.empty(self.real_count), pair=pair, too_far=none, unreliable=never, accepted=accepted)

    def pair_numbers(self, source: Int[np.ndarray, "C"], target: Int[np.ndarray, "C"]) -> Int[np.ndarray, "C"]:
        """One number for each pair of states."""
        return source.astype(np.int64) * self.real_count + target

    def is_open(self, pair: Int[np.ndarray, "C"], length: Int[np.ndarray, "C"]) -> Bool[np.ndarray, "C"]:
        """Whether nothing is known yet of stitching each pair with `length` actions."""
        if len(self.pair) == 0:
            return np.ones(len(pair), dtype=bool)
        row = np.minimum(np.searchsorted(self.pair, pair), len(self.pair) - 1)
        between = (length > self.too_far[row]) & (length < np.minimum(self.unreliable, self.accepted)[row])
        return between | (self.pair[row] != pair)

    def pairs_tried(self, sources: Indices) -> Int[np.ndarray, "n"]:
        """The number of pairs of each source that were tried."""
        first = sources.astype(np.int64) * self.real_count
        return np.searchsorted(self.pair, first + self.real_count) - np.searchsorted(self.pair, first)

    def success_rate(self, distance: Float[np.ndarray, "P"], length: Int[np.ndarray, "P"]) -> Float[np.ndarray, "P"]:
        """The share of attempts at such a distance per action that were accepted; optimistic where none were made."""
        return ((self.successes + 1) / (self.tries + 1))[np.digitize(distance / length, DISTANCE_BINS)]

    def expected_error(self, tolerance: float) -> float:
        """The mean error of the stitches so far; half the tolerance before there are any."""
        return (self.error_sum + tolerance / 2) / (self.successes.sum() + 1)
