"""What was tried before: which joins are still open, and which gaps can be closed.

A plan that fell short of its target may reach it with more actions. One that the model cannot be trusted with may be
trusted with fewer, since its errors add up, and a pair that was joined may be joined sooner. So a pair is open between
the most actions that fell short and the fewest that did not, and closed outside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.stitching.records import Attempts, Outcome

GAP_BINS = 2.0 ** np.arange(-8, 5)
"""gaps to be closed per action are told apart by their size to a factor of two"""
NEVER = np.iinfo(np.int64).max
"""more actions than any stitch has"""


def pair_number(source: Int[np.ndarray, "C"], target: Int[np.ndarray, "C"], real_count: int) -> Int[np.ndarray, "C"]:
    """One number for each pair of a source and a real target."""
    return source.astype(np.int64) * real_count + target


@dataclass(frozen=True, eq=False)
class Tried:
    """Pairs that were planned, and what became of them with how many actions."""

    pair: Int[np.ndarray, "t"]
    """as single numbers, in order, each once"""
    missed: Int[np.ndarray, "t"]
    """most actions that fell short of the target; 0 where none did"""
    doubted: Int[np.ndarray, "t"]
    """fewest that came near it and were refused for another reason; NEVER where none were"""
    joined: Int[np.ndarray, "t"]
    """fewest that were accepted; NEVER where none were"""

    @classmethod
    def none(cls) -> Tried:
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, empty, empty)

    @classmethod
    def of(cls, attempts: Attempts, real_count: int) -> Tried:
        """What one round tried, each pair once."""
        pair = pair_number(attempts.source, attempts.target, real_count)
        order = np.argsort(pair)
        length, fewest, outcome = (part[order] for part in (attempts.length, attempts.fewest, attempts.outcome))
        one_by_one, accepted = fewest < length, outcome == Outcome.ACCEPTED
        missed = np.where(outcome == Outcome.MISSED, length, 0)
        missed = np.where(one_by_one, np.where(accepted, length - 1, length), missed)
        doubted = np.where(accepted | (missed == length), NEVER, length)
        return cls(pair[order], missed, doubted, np.where(accepted, length, NEVER))

    def and_then(self, later: Tried) -> Tried:
        """With what was tried later."""
        pair, place = np.unique(np.concatenate([self.pair, later.pair]), return_inverse=True)
        missed = np.zeros(len(pair), dtype=np.int64)
        doubted, joined = np.full((2, len(pair)), NEVER)
        np.maximum.at(missed, place, np.concatenate([self.missed, later.missed]))
        np.minimum.at(doubted, place, np.concatenate([self.doubted, later.doubted]))
        np.minimum.at(joined, place, np.concatenate([self.joined, later.joined]))
        return Tried(pair, missed, doubted, joined)

    def forgetting_failures(self) -> Tried:
        kept = self.joined < NEVER
        count = int(kept.sum())
        return Tried(self.pair[kept], np.zeros(count, dtype=np.int64), np.full(count, NEVER), self.joined[kept])

    def is_open(self, pair: Int[np.ndarray, "C"], length: Int[np.ndarray, "C"]) -> Bool[np.ndarray, "C"]:
        """Whether nothing is known yet of joining a pair with so many actions."""
        if len(self.pair) == 0:
            return np.ones(len(pair), dtype=bool)
        place = np.minimum(np.searchsorted(self.pair, pair), len(self.pair) - 1)
        between = (length > self.missed[place]) & (length < np.minimum(self.doubted, self.joined)[place])
        return between | (self.pair[place] != pair)

    def count_of(self, sources: Int[np.ndarray, "n"], real_count: int) -> Int[np.ndarray, "n"]:
        """How many pairs of each source were planned."""
        first = sources.astype(np.int64) * real_count
        return np.searchsorted(self.pair, first + real_count) - np.searchsorted(self.pair, first)


@dataclass(frozen=True, eq=False)
class Experience:
    """What was tried before: no plan is made twice, and it shows which gaps can be closed."""

    tried: Tried
    tries: Float[np.ndarray, "gaps"]
    successes: Float[np.ndarray, "gaps"]
    error_sum: float
    """of the accepted ones"""

    @classmethod
    def none(cls) -> Experience:
        return cls(Tried.none(), np.zeros(len(GAP_BINS) + 1), np.zeros(len(GAP_BINS) + 1), 0.0)

    def and_then(self, attempts: Attempts, real_count: int) -> Experience:
        """With what a round tried."""
        place, done = np.digitize(attempts.gap / attempts.length, GAP_BINS), attempts.accepted
        count = len(self.tries)
        return Experience(
            tried=self.tried.and_then(Tried.of(attempts, real_count)),
            tries=self.tries + np.bincount(place, minlength=count),
            successes=self.successes + np.bincount(place, weights=done, minlength=count),
            error_sum=self.error_sum + float(attempts.error[done].sum()),
        )

    def forgetting_failures(self) -> Experience:
        """For another metric or tolerance: what failed may be tried again, and nothing is known of what succeeds."""
        return replace(Experience.none(), tried=self.tried.forgetting_failures())

    def chance(self, gap: Float[np.ndarray, "P"], length: Int[np.ndarray, "P"]) -> Float[np.ndarray, "P"]:
        """Share of the attempts at as wide a gap per action that came off; hopeful where nothing was tried."""
        return ((self.successes + 1) / (self.tries + 1))[np.digitize(gap / length, GAP_BINS)]

    def expected_error(self, tolerance: float) -> float:
        """Mean error of the stitches so far; half the tolerance before there are any."""
        return (self.error_sum + tolerance / 2) / (self.successes.sum() + 1)
