"""Bounds on the graph's own policy rest on the estimated errors of the stitches that it takes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from bats.bounds.certificate import CalibrationFactors
from bats.bounds.error_calibration import MIN_FACTOR
from bats.bounds.graph_policy import (
    bound_graph,
    error_bounds,
    estimate_stitches,
    relevant_steps,
    rollout_errors,
    used_stitches,
)
from bats.bounds.sandwich import sandwich
from bats.data.dataset import Dataset
from bats.graph.mdp import Stitches, add_stitches, from_dataset
from bats.graph.rollouts import roll_out
from bats.graph.solve import Solution, policy_iteration
from tests.bounds.conveyor import GAMMA, estimator


@pytest.fixture
def one_stitch() -> Solution:
    """A stitch of two actions of 0.1 from 0 that claims to end at 0.25, 0.05 beyond where every member ends."""
    states = np.array([[0.0], [0.05], [0.25]])
    log = Dataset.from_arrays(
        states[:2],
        np.full((2, 1), 0.05),
        np.array([0.05, 0.0]),
        next_observations=np.array([[0.05], [0.1]]),
        timeouts=np.array([False, True]),
        name="line",
    )
    mdp = from_dataset(log.with_starts(np.array([0])), gamma=GAMMA)
    mdp = replace(mdp, states=np.concatenate([mdp.states[:2], states[2:]]))  # the dead end is the stitch's target
    stitch = Stitches(
        source=np.array([0]),
        target=np.array([2]),
        length=np.array([2]),
        action=np.full((1, 2, 1), 0.1),
        state=np.full((1, 1, 1), 0.1),
        reward=np.array([[0.1, 0.25]]),
        planning_error=np.zeros(1),
    )
    mdp = add_stitches(mdp, stitch, stitch_round=1)
    return policy_iteration(mdp)


def test_a_graph_with_one_stitch_is_bounded_by_its_estimate_times_the_factor(
    one_stitch: Solution,
) -> None:
    mdp, policy = one_stitch.mdp, one_stitch.policy
    used = used_stitches(mdp, policy, mdp.starts)
    assert used.tolist() == [0]
    assert mdp.stitch_length.tolist() == [2]
    estimates = estimate_stitches(mdp, used, estimator(error=0.02))
    errors = error_bounds(mdp, used, estimates, CalibrationFactors(3.0, 2.0, 100))
    np.testing.assert_allclose(errors.end_value, 3 * (0.05 + 2 * 0.02) / (1 - GAMMA), rtol=1e-4)
    assert errors.rewards is not None
    # the last reward is 0.25 in the graph and 0.2 by the members; both steps are wrong by 0.02 nearby
    reward_error = 2 * np.array([0.02, 0.05 + 0.02])
    expected = np.array([0.1, 0.25])[:, None] + np.stack([-reward_error, reward_error], axis=-1)
    np.testing.assert_allclose(errors.rewards[0], expected, rtol=1e-4)
    bounds = sandwich(mdp, replace(errors, reward_range=(0.0, 1.0)), policy)
    # the stitch may end with a value below 0, so after its first step the floor of 0 stands in
    assert expected[1, 0] < GAMMA * errors.end_value[0]
    assert bounds.lower[0] == pytest.approx(expected[0, 0], rel=1e-6)


def test_without_factors_nothing_is_known_of_any_stitch(one_stitch: Solution) -> None:
    mdp, policy = one_stitch.mdp, one_stitch.policy
    used = used_stitches(mdp, policy, mdp.starts)
    estimates = estimate_stitches(mdp, used, estimator(error=0.02))
    errors = error_bounds(mdp, used, estimates, CalibrationFactors(math.inf, math.inf, 3))
    assert np.isinf(errors.end_value).all()
    assert errors.rewards is not None
    assert np.isinf(errors.rewards).all()


def test_the_errors_of_a_rollout_are_discounted_to_where_it_begins(
    one_stitch: Solution,
) -> None:
    mdp, policy = one_stitch.mdp, one_stitch.policy
    used = used_stitches(mdp, policy, mdp.starts)
    estimates = estimate_stitches(mdp, used, estimator(error=0.02))
    errors = rollout_errors(mdp, roll_out(mdp, policy, mdp.starts, 10), used, estimates)
    # the stitch is taken at once, and its end counts after two steps
    np.testing.assert_allclose(errors[0], [[GAMMA**2 * estimates.value[0]]])
    np.testing.assert_allclose(errors[1], [[estimates.reward[0].sum()]])


def test_estimates_about_values_are_multiplied_at_least_by_the_smallest_factor(
    one_stitch: Solution,
) -> None:
    bounds, factors = bound_graph(one_stitch, estimator(confidence=0.9))
    assert factors.value == MIN_FACTOR  # the model is right
    assert factors.reward == 1.0
    assert bounds.start.lower < bounds.start.upper
    given = CalibrationFactors(30.0, 2.0, 7)
    wider, used = bound_graph(one_stitch, estimator(confidence=0.9), factors=given)
    assert used is given
    assert wider.start.lower <= bounds.start.lower


def test_a_log_without_stitches_is_known_exactly_whatever_the_model_predicts() -> None:
    path = np.linspace(0, 1, 41)[:, None]
    log = Dataset.from_arrays(
        path[:-1],
        np.diff(path, axis=0),
        path[1:, 0],
        next_observations=path[1:],
        terminations=np.arange(40) == 39,
        name="line",
    )
    mdp = from_dataset(log, gamma=GAMMA)
    solution = policy_iteration(mdp)
    bounds, _ = bound_graph(solution, estimator(error=0.5))
    np.testing.assert_allclose([bounds.start.lower, bounds.start.upper], solution.value[0], rtol=1e-6)


def test_after_the_relevant_steps_a_twentieth_of_all_value_is_left() -> None:
    for gamma in (0.5, 0.9, 0.99):
        steps = relevant_steps(gamma)
        assert gamma**steps <= 0.05 < gamma ** (steps - 1)
    assert relevant_steps(0.9999) == 1000  # no rollout is followed further
