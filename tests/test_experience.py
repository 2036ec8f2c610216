"""What was tried is remembered, pair by pair and by the number of actions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bats.stitching.history import NEVER, Experience, Tried
from bats.stitching.records import Attempts, Outcome

PLANS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.sampled_from(Outcome), st.booleans()), max_size=20)
"""pairs, numbers of actions, what became of the plan, and whether fewer actions were tried before it"""
Plan = tuple[int, int, Outcome, bool]


def attempt(pair: int, length: int, outcome: Outcome, one_by_one: bool) -> Attempts:
    """An attempt at a pair of six states, all from the first."""
    return Attempts(
        source=np.array([0]),
        target=np.array([pair]),
        length=np.array([length]),
        fewest=np.array([1 if one_by_one else length]),
        gap=np.array([1.0]),
        error=np.array([0.0]),
        outcome=np.array([outcome]),
    )


def remembered(plans: list[Plan]) -> Tried:
    tried = Tried.none()
    for plan in plans:
        tried = tried.and_then(Tried.of(attempt(*plan), 6))
    return tried


@given(PLANS)
def test_a_pair_is_open_between_what_fell_short_and_what_did_not(plans: list[Plan]) -> None:
    known = remembered(plans)
    pair, length = (part.ravel() for part in np.meshgrid(np.arange(6), np.arange(1, 7)))

    def closed(asked: int, plan: Plan) -> bool:
        _, tried, outcome, one_by_one = plan
        if one_by_one and tried > 1:  # all up to it failed, but for itself where it was accepted
            return asked < tried or (asked >= tried if outcome == Outcome.ACCEPTED else asked == tried)
        return asked <= tried if outcome == Outcome.MISSED else asked >= tried

    expected = [
        not any(closed(asked, plan) for plan in plans if plan[0] == one)
        for one, asked in zip(pair.tolist(), length.tolist(), strict=True)
    ]
    assert known.is_open(pair, length).tolist() == expected
    assert known.pair.tolist() == sorted({plan[0] for plan in plans})


@given(PLANS)
def test_failures_can_be_forgotten(plans: list[Plan]) -> None:
    again = remembered(plans).forgetting_failures()
    successes = remembered([(pair, length, did, False) for pair, length, did, _ in plans if did == Outcome.ACCEPTED])
    assert again.pair.tolist() == successes.pair.tolist()
    assert again.joined.tolist() == successes.joined.tolist()
    pair, length = (part.ravel() for part in np.meshgrid(np.arange(6), np.arange(1, 7)))
    assert again.is_open(pair, length).tolist() == successes.is_open(pair, length).tolist()


@given(PLANS)
def test_planned_pairs_are_counted_by_source(plans: list[Plan]) -> None:
    known = remembered(plans)
    counted = known.count_of(np.array([0, 2, 1]), real_count=2)  # pairs 0 and 1, 4 and 5, 2 and 3
    assert counted.tolist() == [sum(pair // 2 == source for pair in known.pair) for source in (0, 2, 1)]


def test_experience_knows_what_failed_and_what_to_hope_for() -> None:
    attempts = Attempts(
        source=np.array([0, 1, 2]),
        target=np.array([5, 5, 5]),
        length=np.array([1, 1, 1]),
        fewest=np.array([1, 1, 1]),
        gap=np.array([0.3, 0.3, 20.0]),
        error=np.array([0.1, 0.3, 9.0]),
        outcome=np.array([Outcome.ACCEPTED, Outcome.MISSED, Outcome.MISSED]),
    )
    known = Experience.none().and_then(attempts, real_count=10)
    assert known.tried.pair.tolist() == [5, 15, 25]
    gaps, lengths = np.array([0.3, 20.0, 1.5]), np.ones(3, dtype=int)
    assert known.chance(gaps, lengths).tolist() == [2 / 3, 1 / 2, 1.0]  # (successes + 1) / (tries + 1)
    assert known.expected_error(0.4) == pytest.approx((0.1 + 0.2) / 2)
    assert known.tried.missed.tolist() == [0, 1, 1]
    assert known.tried.joined.tolist() == [1, NEVER, NEVER]
    again = known.forgetting_failures()
    assert again.tried.pair.tolist() == [5]
    assert again.chance(gaps, lengths).tolist() == [1.0, 1.0, 1.0]
