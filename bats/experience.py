"""What was tried before: which joins are still open, and which gaps can be closed.

A pair that could not be joined with some number of actions may be with more, and one that was joined may be joined with
fewer. Between the two it is open, and worth a plan wherever that would gain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.records import Attempts

GAP_BINS = 2.0 ** np.arange(-8, 5)
"""gaps to be closed per action are told apart by their size to a factor of two"""
NEVER = np.iinfo(np.int64).max
"""more actions than any stitch has"""


def pair_number(source: Int[np.ndarray, "C"], target: Int[np.ndarray, "C"], real_count: int) -> Int[np.ndarray, "C"]:
    """One number for each pair of a source and a real target."""
    return source.astype(np.int64) * real_count + target


@dataclass(frozen=True, eq=False)
class Tried:
    """Pairs that were planned, and with how many actions."""

    pair: Int[np.ndarray, "t"]
    """as single numbers, in order, each once"""
    failed: Int[np.ndarray, "t"]
    """most actions that did not do; 0 where none failed"""
    joined: Int[np.ndarray, "t"]
    """fewest actions that did; NEVER where none did"""

    @classmethod
    def none(cls) -> Tried:
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, empty)

    def and_then(
        self, pair: Int[np.ndarray, "C"], length: Int[np.ndarray, "C"], accepted: Bool[np.ndarray, "C"]
    ) -> Tried:
        """With further plans of some numbers of actions."""
        every, place = np.unique(np.concatenate([self.pair, pair]), return_inverse=True)
        failed, joined = np.zeros(len(every), dtype=np.int64), np.full(len(every), NEVER)
        np.maximum.at(failed, place, np.concatenate([self.failed, np.where(accepted, 0, length)]))
        np.minimum.at(joined, place, np.concatenate([self.joined, np.where(accepted, length, NEVER)]))
        return Tried(every, failed, joined)

    def forgetting_failures(self) -> Tried:
        kept = self.joined < NEVER
        return Tried(self.pair[kept], np.zeros(int(kept.sum()), dtype=np.int64), self.joined[kept])

    def is_open(self, pair: Int[np.ndarray, "C"], length: Int[np.ndarray, "C"]) -> Bool[np.ndarray, "C"]:
        """Whether nothing is known yet of joining a pair with so many actions."""
        if len(self.pair) == 0:
            return np.ones(len(pair), dtype=bool)
        place = np.minimum(np.searchsorted(self.pair, pair), len(self.pair) - 1)
        between = (length > self.failed[place]) & (length < self.joined[place])
        return between | (self.pair[place] != pair)

    def count_of(self, sources: Int[np.ndarray, "n"], real_count: int) -> Int[np.ndarray, "n"]:
        """How many pairs of each source were planned."""
        first = sources.astype(np.int64) * real_count
        return np.searchsorted(self.pair, first + real_count) - np.searchsorted(self.pair, first)


@dataclass(frozen=True, eq=False)
class Experience:
    """What was tried before: no join is planned twice, and it shows which gaps can be closed."""

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
        pairs = pair_number(attempts.source, attempts.target, real_count)
        place, done = np.digitize(attempts.gap / attempts.length, GAP_BINS), attempts.accepted
        count = len(self.tries)
        return Experience(
            tried=self.tried.and_then(pairs, attempts.length, done),
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
