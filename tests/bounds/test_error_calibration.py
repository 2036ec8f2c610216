"""Estimates are compared with what happened on unseen rows, and multiplied until they cover most rollouts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.bounds.certificate import CalibrationFactors
from bats.bounds.error_calibration import (
    DiscountedErrors,
    covering_factors,
    discounted_errors,
    held_out_windows,
    measure_ratios,
)
from bats.errors import SettingError
from tests.bounds.conveyor import estimator, held_out


def equal_errors(plans: int, rollouts: int = 10) -> DiscountedErrors:
    return np.ones((2, rollouts, plans))


def test_windows_stay_within_segments_and_have_the_requested_lengths() -> None:
    rows = held_out()
    first, length = held_out_windows(rows, np.array([3, 7]), np.random.default_rng(0))
    assert set(length) == {3, 7}
    assert np.array_equal(rows.segment[first], rows.segment[first + length - 1])
    assert len(np.unique(np.column_stack([first, length]), axis=0)) == len(first)
    _, longest = held_out_windows(rows, np.array([99]), np.random.default_rng(0))
    assert set(longest) == {10}  # no segment is longer
    assert len(held_out_windows(rows, np.array([], dtype=np.int64), np.random.default_rng(0))[0]) == 0


def test_a_model_that_is_right_has_ratios_near_0() -> None:
    value, _ = measure_ratios(estimator(), np.array([4]))
    assert value.max() < 1e-2


@pytest.mark.parametrize("local_error", [True, False])
def test_a_model_that_is_wrong_by_the_same_amount_everywhere_is_estimated_exactly(local_error: bool) -> None:
    # wrong by 4 times 0.02, and estimated to be: the estimate in units of value always uses the held-out rows
    value, _ = measure_ratios(estimator(error=0.02, local_error=local_error), np.array([4]))
    np.testing.assert_allclose(value, 1.0, rtol=1e-3)


def test_windows_whose_estimated_error_exceeds_the_tolerance_do_not_count() -> None:
    assert measure_ratios(estimator(error=0.02, tolerance=0.01), np.array([4])).shape == (2, 0)


def test_factors_cover_the_summed_errors_of_a_rollout() -> None:
    both = np.tile(np.arange(1.0, 101.0), (2, 1))
    one = covering_factors(both, equal_errors(1), 0.9, seed=0)
    assert one.value == one.reward == pytest.approx(91, abs=1.5)  # the 91st of 100 and an infinite one
    # the mean of two uniform draws stays below 1 - (0.1 / 2)^0.5 of the maximum in 90% of the cases
    assert covering_factors(both, equal_errors(2), 0.9, seed=0).value == pytest.approx(100 * (1 - 0.05**0.5), abs=3)
    heavy = np.tile([100.0, 1.0], (2, 10, 1))
    assert covering_factors(both, heavy, 0.9, seed=0).value == pytest.approx(
        91, abs=2
    )  # a light plan averages nothing out
    # 20 draws all avoid the infinite one with 82%, less than the confidence
    assert covering_factors(both, equal_errors(20), 0.9, seed=0) == CalibrationFactors(math.inf, math.inf, 100)


def test_one_window_in_a_hundred_with_a_large_error_does_not_set_the_factor_of_all() -> None:
    ratios = np.ones((2, 10_000))
    ratios[:, :100] = 100.0
    factors = covering_factors(ratios, equal_errors(10), 0.95, seed=0)
    assert factors.value == pytest.approx((9 + 100) / 10)  # one plan of ten may; two do with less than 1%


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.floats(0.5, 0.95))
def test_the_stated_share_of_rollouts_keeps_within_both_factors(seed: int, confidence: float) -> None:
    rng = np.random.default_rng(seed)
    value, reward = ratios = rng.exponential(size=(2, 300))
    factors = covering_factors(ratios, equal_errors(1), confidence, seed=0)
    assert np.mean((value <= factors.value) & (reward <= factors.reward)) >= confidence - 0.03


def test_without_windows_the_factors_are_infinite_and_without_plans_they_are_0() -> None:
    none, some = np.zeros((2, 0)), np.ones((2, 50))
    assert covering_factors(none, equal_errors(1), 0.9, seed=0) == CalibrationFactors(math.inf, math.inf, 0)
    assert covering_factors(some, np.zeros((2, 10, 1)), 0.9, seed=0) == CalibrationFactors(0.0, 0.0, 50)


@pytest.mark.parametrize("confidence", [0.0, 1.0, math.nan])
def test_a_confidence_outside_0_to_1_is_refused(confidence: float) -> None:
    with pytest.raises(SettingError, match="confidence"):
        covering_factors(np.ones((2, 10)), equal_errors(1), confidence, seed=0)


def test_a_plan_that_is_taken_again_is_wrong_in_the_same_way() -> None:
    ratios, same = np.random.default_rng(0).exponential(size=(2, 2000)), np.zeros(30, dtype=np.int64)
    repeated = discounted_errors(same, same, *np.ones((2, 30)), rollouts=1)
    assert repeated.shape == (2, 1, 1)
    once = covering_factors(ratios, equal_errors(1, 1), 0.95, seed=0)
    assert covering_factors(ratios, repeated, 0.95, seed=0) == once
    value, reward = discounted_errors(
        np.array([1, 0, 1, 1]), np.array([4, 4, 2, 4]), np.arange(4.0), np.ones(4), rollouts=3
    )
    np.testing.assert_array_equal(value, [[1, 0], [2, 3], [0, 0]])  # rollout 1: plan 2 once, plan 4 twice
    np.testing.assert_array_equal(reward, [[1, 0], [1, 2], [0, 0]])
