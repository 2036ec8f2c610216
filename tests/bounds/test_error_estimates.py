"""An estimated error is what the members disagree by, plus what the model was wrong by on held-out rows nearby."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bats.bounds.error_estimates import ErrorEstimator
from bats.config import CertificateConfig, Config
from tests.bounds.conveyor import GAMMA, VALUE_METRIC, estimator, held_out, planning_context


def test_the_halves_of_the_held_out_rows_share_no_segment_and_make_up_the_whole() -> None:
    rows = held_out()
    first, second = rows.halves()
    assert len(np.unique(rows.segment)) == 40
    assert len(first.rewards) == len(second.rewards) == 200
    both = np.concatenate([first.observations, second.observations])
    assert np.array_equal(np.sort(both, axis=0), np.sort(rows.observations, axis=0))


def test_estimates_add_the_members_disagreement_and_the_errors_near_each_step() -> None:
    errors = estimator(disagreement=0.01, error=0.02)
    source, length = np.array([[0.5]]), np.array([3])
    visited = np.array([0.53, 0.5, 0.47])[:, None, None, None] * np.ones((1, 1, 3, 1))
    estimates = errors.estimate(visited, np.zeros((1, 3)), source, np.array([[0.5]]), length)
    # the 80th percentile of 0.03, 0 and 0.03 is 0.03; every held-out step was wrong by 0.02
    np.testing.assert_allclose(estimates.end, 0.03 + 3 * 0.02, rtol=1e-4)
    np.testing.assert_allclose(estimates.value, (0.03 + 3 * 0.02) / (1 - GAMMA), rtol=1e-4)
    np.testing.assert_allclose(estimates.reward, 0.02, rtol=1e-4)


def test_rewards_beyond_a_plans_length_have_no_error() -> None:
    errors = estimator(error=0.02)
    visited = np.full((3, 1, 4, 1), 0.5)
    estimates = errors.estimate(visited, np.ones((1, 4)), np.array([[0.5]]), np.array([[0.5]]), np.array([2]))
    np.testing.assert_allclose(estimates.reward, [[1.02, 1.02, 0.0, 0.0]], rtol=1e-4)
    np.testing.assert_allclose(estimates.end, 2 * 0.02, rtol=1e-4)


def test_no_estimate_of_value_or_reward_is_smaller_than_the_resolution_of_the_rewards() -> None:
    errors = estimator()
    visited = np.full((3, 1, 1, 1), 0.5)
    estimates = errors.estimate(visited, np.zeros((1, 1)), np.array([[0.5]]), np.array([[0.5]]), np.array([1]))
    resolution = 1e-3 * np.ptp(held_out().rewards)
    assert errors.resolution == pytest.approx(resolution)
    assert estimates.value == pytest.approx([resolution])
    assert estimates.reward[0] == pytest.approx([resolution])


def test_where_all_logged_rewards_are_equal_the_possible_ones_set_the_resolution() -> None:
    rows = replace(held_out(), rewards=np.zeros(400))
    context = planning_context(rows)
    for reward_range, expected in ((None, 1e-3), ((0.0, 5.0), 5e-3)):
        config = Config(certificate=CertificateConfig(reward_range=reward_range))
        errors = ErrorEstimator.with_metric(context, VALUE_METRIC, config, seed=0)
        assert errors.resolution == pytest.approx(expected)


def test_without_local_errors_the_end_error_is_the_members_disagreement_alone() -> None:
    errors = estimator(error=0.02, local_error=False)
    visited = np.array([0.53, 0.5, 0.47])[:, None, None, None] * np.ones((1, 1, 2, 1))
    estimates = errors.estimate(visited, np.zeros((1, 2)), np.array([[0.5]]), np.array([[0.5]]), np.array([2]))
    np.testing.assert_allclose(estimates.end, 0.03, rtol=1e-4)
    np.testing.assert_allclose(estimates.value, (0.03 + 2 * 0.02) / (1 - GAMMA), rtol=1e-4)
