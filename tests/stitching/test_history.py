"""What was tried before, against a plain list of attempts that is searched from the beginning every time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.arrays import concat
from bats.errors import SettingError
from bats.stitching.history import DISTANCE_BINS, NEVER, History
from bats.stitching.records import Attempts, Outcome

STATES, MAX_LENGTH = 4, 6


@dataclass(frozen=True)
class Attempt:
    """One attempt at a pair of states."""

    source: int
    target: int
    length: int
    every_length: bool
    """fewer actions were tried before, one by one"""
    distance: float
    error: float
    outcome: Outcome

    @property
    def accepted(self) -> bool:
        return self.outcome == Outcome.ACCEPTED

    def closes(self, length: int) -> bool:
        """Whether trying the pair again with `length` actions is known to be of no use."""
        if self.every_length and self.length > 1:
            # all shorter ones ended too far, and so did the last one unless it was accepted
            return length < self.length or (length >= self.length if self.accepted else length == self.length)
        return length <= self.length if self.outcome == Outcome.TOO_FAR else length >= self.length

    def as_arrays(self) -> Attempts:
        return Attempts(
            source=np.array([self.source]),
            target=np.array([self.target]),
            length=np.array([self.length]),
            first_length=np.array([1 if self.every_length else self.length]),
            distance=np.array([self.distance]),
            error=np.array([self.error]),
            outcome=np.array([self.outcome]),
        )


ATTEMPTS = st.lists(
    st.builds(
        Attempt,
        source=st.integers(0, STATES - 1),
        target=st.integers(0, STATES - 1),
        length=st.integers(1, MAX_LENGTH),
        every_length=st.booleans(),
        distance=st.sampled_from([0.0, 0.01, 0.3, 1.0, 5.0, 100.0]),
        error=st.sampled_from([0.0, 0.1, 0.5]),
        outcome=st.sampled_from(Outcome),
    ),
    max_size=25,
)


def history_of(attempts: list[Attempt], *, together: bool = False) -> History:
    """The history of attempts in rounds of one, or all in one round."""
    rounds = [attempt.as_arrays() for attempt in attempts]
    return History.of([concat(rounds)] if together and rounds else rounds, STATES)


def check_open_lengths(history: History, attempts: list[Attempt]) -> None:
    """Compares every pair and length with the list of attempts."""
    cases = list(product(range(STATES), range(STATES), range(1, MAX_LENGTH + 1)))
    expected = [
        not any(one.closes(length) for one in attempts if (one.source, one.target) == (source, target))
        for source, target, length in cases
    ]
    source, target, length = np.array(cases).T
    assert history.is_open(history.pair_numbers(source, target), length).tolist() == expected


@settings(deadline=None)
@given(ATTEMPTS, st.booleans())
def test_a_pair_is_open_for_the_lengths_that_no_attempt_has_closed(attempts: list[Attempt], together: bool) -> None:
    check_open_lengths(history_of(attempts, together=together), attempts)


@settings(deadline=None)
@given(ATTEMPTS)
def test_pairs_are_kept_once_and_counted_by_source(attempts: list[Attempt]) -> None:
    history = history_of(attempts)
    pairs = {(attempt.source, attempt.target) for attempt in attempts}
    assert history.pair.tolist() == sorted(source * STATES + target for source, target in pairs)
    sources = np.array([2, 0, 3, 1])
    expected = [sum(pair[0] == source for pair in pairs) for source in sources.tolist()]
    assert history.pairs_tried(sources).tolist() == expected


@settings(deadline=None)
@given(ATTEMPTS, st.sampled_from([0.0, 0.01, 0.3, 1.0, 5.0, 100.0]), st.integers(1, MAX_LENGTH))
def test_the_success_rate_is_that_of_attempts_at_a_like_distance_per_action(
    attempts: list[Attempt], distance: float, length: int
) -> None:
    alike = [
        attempt.accepted
        for attempt in attempts
        if np.digitize(attempt.distance / attempt.length, DISTANCE_BINS)
        == np.digitize(distance / length, DISTANCE_BINS)
    ]
    rate = history_of(attempts).success_rate(np.array([distance]), np.array([length]))
    assert rate.tolist() == [pytest.approx((sum(alike) + 1) / (len(alike) + 1))]


@settings(deadline=None)
@given(ATTEMPTS)
def test_the_expected_error_is_the_mean_of_the_stitches_and_of_half_the_tolerance(attempts: list[Attempt]) -> None:
    errors = [attempt.error for attempt in attempts if attempt.accepted]
    assert history_of(attempts).expected_error(0.4) == pytest.approx(np.mean([0.2, *errors]))


@settings(deadline=None)
@given(ATTEMPTS)
def test_failures_can_be_forgotten(attempts: list[Attempt]) -> None:
    again = history_of(attempts).without_failures()
    successes = [
        Attempt(one.source, one.target, one.length, False, one.distance, one.error, one.outcome)
        for one in attempts
        if one.accepted
    ]
    check_open_lengths(again, successes)
    assert again.pair.tolist() == history_of(successes).pair.tolist()
    assert again.success_rate(np.array([0.3]), np.array([1])).tolist() == [1.0]
    assert again.expected_error(0.4) == 0.2


def test_a_round_worked_by_hand() -> None:
    attempts = Attempts(
        source=np.array([0, 1, 2]),
        target=np.array([5, 5, 5]),
        length=np.array([1, 1, 1]),
        first_length=np.array([1, 1, 1]),
        distance=np.array([0.3, 0.3, 20.0]),
        error=np.array([0.1, 0.3, 9.0]),
        outcome=np.array([Outcome.ACCEPTED, Outcome.TOO_FAR, Outcome.TOO_FAR]),
    )
    history = History.empty(10).extended(attempts)
    assert history.pair.tolist() == [5, 15, 25]
    assert history.too_far.tolist() == [0, 1, 1]
    assert history.accepted.tolist() == [1, NEVER, NEVER]
    rates = history.success_rate(np.array([0.3, 20.0, 1.5]), np.ones(3, dtype=int))
    assert rates.tolist() == [2 / 3, 1 / 2, 1.0]  # (successes + 1) / (tries + 1)
    assert history.expected_error(0.4) == pytest.approx((0.1 + 0.2) / 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": np.array([-1])}, "state indices must not be negative"),
        ({"first_length": np.array([0])}, "plans must have at least one action"),
        ({"length": np.array([1])}, "no fewer than the first plan"),
        ({"distance": np.array([-1.0])}, "distances must not be negative"),
        ({"outcome": np.array([99])}, "outcomes must be known ones"),
        ({"error": np.array([np.nan])}, "accepted plans must have finite errors"),
    ],
)
def test_attempts_that_cannot_have_been_made_are_refused(change: dict[str, np.ndarray], message: str) -> None:
    number, length, none = np.array([1]), np.array([2]), np.zeros(1)
    attempts = Attempts(number, number, length, length, none, none, np.array([Outcome.ACCEPTED]))
    replace(attempts, error=np.array([np.nan]), outcome=np.array([Outcome.DIVERGES]))
    with pytest.raises(SettingError, match=message):
        replace(attempts, **change)
