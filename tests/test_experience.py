"""What was tried is remembered, pair by pair and by the number of actions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bats.experience import NEVER, Experience, Tried
from bats.records import Attempts, Outcome

PLANS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.booleans()), max_size=20)
"""pairs, numbers of actions, and whether that did"""


def remembered(plans: list[tuple[int, int, bool]], before: Tried | None = None) -> Tried:
    pair, length, accepted = np.array(plans, dtype=np.int64).reshape(-1, 3).T
    return (before or Tried.none()).and_then(pair, length, accepted.astype(bool))


@given(PLANS, PLANS)
def test_a_join_is_open_between_what_failed_and_what_did(first: list, second: list) -> None:
    known = remembered(second, remembered(first))
    pair, length = (part.ravel() for part in np.meshgrid(np.arange(6), np.arange(1, 7)))
    expected = [
        not any(
            one == other and (it <= actions if not did else it >= actions) for other, actions, did in first + second
        )
        for one, it in zip(pair, length, strict=True)
    ]
    assert known.is_open(pair, length).tolist() == expected
    assert known.pair.tolist() == sorted({plan[0] for plan in first + second})


@given(PLANS)
def test_failures_can_be_forgotten(plans: list) -> None:
    again, successes = remembered(plans).forgetting_failures(), remembered([plan for plan in plans if plan[2]])
    assert again.pair.tolist() == successes.pair.tolist()
    assert again.joined.tolist() == successes.joined.tolist()
    assert not again.failed.any()


@given(PLANS)
def test_planned_pairs_are_counted_by_source(plans: list) -> None:
    known = remembered(plans)
    counted = known.count_of(np.array([0, 2, 1]), real_count=2)  # pairs 0 and 1, 4 and 5, 2 and 3
    assert counted.tolist() == [sum(pair // 2 == source for pair in known.pair) for source in (0, 2, 1)]


def test_experience_knows_what_failed_and_what_to_hope_for() -> None:
    attempts = Attempts(
        source=np.array([0, 1, 2]),
        target=np.array([5, 5, 5]),
        length=np.array([1, 1, 1]),
        gap=np.array([0.3, 0.3, 20.0]),
        error=np.array([0.1, 0.3, 9.0]),
        outcome=np.array([Outcome.ACCEPTED, Outcome.MISSED, Outcome.MISSED]),
    )
    known = Experience.none().and_then(attempts, real_count=10)
    assert known.tried.pair.tolist() == [5, 15, 25]
    gaps, lengths = np.array([0.3, 20.0, 1.5]), np.ones(3, dtype=int)
    assert known.chance(gaps, lengths).tolist() == [2 / 3, 1 / 2, 1.0]  # (successes + 1) / (tries + 1)
    assert known.expected_error(0.4) == pytest.approx((0.1 + 0.2) / 2)
    assert known.tried.failed.tolist() == [0, 1, 1]
    assert known.tried.joined.tolist() == [1, NEVER, NEVER]
    again = known.forgetting_failures()
    assert again.tried.pair.tolist() == [5]
    assert again.chance(gaps, lengths).tolist() == [1.0, 1.0, 1.0]
