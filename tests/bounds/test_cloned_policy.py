"""Bounds on the clone: rollouts in the model while it is reliable, chained into values."""

from __future__ import annotations

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from bats.bounds import cloned_policy
from bats.bounds.certificate import CalibrationFactors
from bats.bounds.cloned_policy import (
    INFLATION,
    Chain,
    CloneRollouts,
    JointSupport,
    ModelRollouts,
    chain_errors,
    model_return,
    nearest_starts,
    roll_out_and_restart,
    roll_out_clone,
)
from bats.bounds.error_calibration import MIN_FACTOR
from bats.bounds.error_estimates import ErrorEstimator
from bats.bounds.graph_policy import relevant_steps
from bats.data.dataset import Dataset
from bats.graph.mdp import TabularMDP, from_dataset
from bats.graph.solve import policy_iteration
from bats.metric.scaled import ScaledMetric
from bats.policy.policy import Policy
from bats.policy.support import Support
from tests.bounds.conveyor import GAMMA, STEP, Conveyor, estimator, moving, positions, staying
from tests.known_worlds import LinearWorld

TWO_NEIGHBOURS = np.array([[1, 2], [1, 1], [2, 2]])
"""state 0 continues from 1 or 2, which only lead to themselves, with the values 4 and 8"""
THREE_REWARDS = np.array([[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]])


def chain_of(rollouts: ModelRollouts, clone: Policy, errors: ErrorEstimator, factors: CalibrationFactors) -> Chain:
    metric = errors.context.metric
    near, support = nearest_starts(rollouts, metric), JointSupport.of(clone, rollouts.start, metric)
    return Chain.of(rollouts, near, support, errors, factors)


def test_a_chain_that_leads_to_itself_has_a_closed_form() -> None:
    chain = Chain(np.array([[0]]), np.array([[2.0]]), np.array([0.5]), np.array([[3.0, 4.0]]))
    lower, upper = chain.bounds(0.0, 100.0)
    np.testing.assert_allclose([lower[0], upper[0]], [(3 - 0.5 * 2) / 0.5, (4 + 0.5 * 2) / 0.5], rtol=1e-6)
    unknown = replace(chain, distance=np.array([[np.inf]]))
    np.testing.assert_allclose(np.concatenate(unknown.bounds(0.0, 100.0)), [0.0, 100.0])


def test_a_chain_continues_from_the_neighbour_that_gives_the_tightest_bound() -> None:
    distance = np.array([[1.0, 3.0], [0.0, 0.0], [0.0, 0.0]])
    chain = Chain(TWO_NEIGHBOURS, distance, np.full(3, 0.5), THREE_REWARDS)
    lower, upper = chain.bounds(0.0, 10.0)
    np.testing.assert_allclose([lower[0], upper[0]], [0.5 * (8 - 3), 0.5 * (4 + 1)], rtol=1e-6)


@pytest.mark.parametrize("margin", [1.0, 1.5])
def test_distances_that_contradict_each_other_are_inflated_until_they_do_not(margin: float) -> None:
    distance = np.array([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    chain = Chain(TWO_NEIGHBOURS, distance, np.full(3, 0.5), THREE_REWARDS)
    # the values 4 and 8 cannot both be 1 away; 2 would do, and 1.25 to the fourth is the first power above 2
    distance_needed = margin * INFLATION**4
    lower, upper = chain.bounds(0.0, 10.0, margin=margin)
    np.testing.assert_allclose(
        [lower[0], upper[0]], [0.5 * (8 - distance_needed), 0.5 * (4 + distance_needed)], rtol=1e-6
    )
    np.testing.assert_allclose([lower[1:], upper[1:]], [[4, 8], [4, 8]], rtol=1e-6)


def test_distances_of_0_can_be_refuted_too() -> None:
    chain = Chain(TWO_NEIGHBOURS, np.zeros((3, 2)), np.full(3, 0.5), THREE_REWARDS)
    lower, upper = chain.bounds(0.0, 10.0)
    assert np.all((lower >= 0) & (lower <= upper) & (upper <= 10))
    assert lower[1] <= 4 <= upper[1]
    assert lower[2] <= 8 <= upper[2]


def test_a_rollout_ends_before_its_estimated_error_reaches_the_tolerance() -> None:
    states = positions()
    rollouts = roll_out_clone(staying(states), states, estimator(error=0.02, tolerance=0.07), gamma=GAMMA)
    assert set(rollouts.length) == {3}  # 4 steps would have an error of 0.08
    np.testing.assert_allclose(rollouts.discount, GAMMA**3)
    np.testing.assert_allclose(rollouts.reward, states[:, 0] * (1 + GAMMA + GAMMA**2), rtol=1e-5)


def test_a_rollout_has_at_least_one_step_and_at_most_the_given_number() -> None:
    states = positions(20)
    unreliable = roll_out_clone(staying(states), states, estimator(error=0.02, tolerance=0.01), gamma=GAMMA)
    assert set(unreliable.length) == {1}
    assert set(roll_out_clone(staying(states), states, estimator(), gamma=GAMMA, steps=5).length) == {5}


def test_a_policy_that_stays_has_the_value_of_its_position() -> None:
    states, errors = positions(), estimator()
    rollouts = roll_out_clone(staying(states), states, errors, gamma=GAMMA, steps=5)
    chain = chain_of(rollouts, staying(states), errors, CalibrationFactors(1.0, 1.0, 100))
    lower, upper = chain.bounds(0.0, 10.0)
    truth = states[:, 0] / (1 - GAMMA)
    assert np.all(lower <= truth + 1e-4)
    assert np.all(truth <= upper + 1e-4)
    assert np.mean(upper - lower) < 0.1  # estimates have a smallest size, so bounds are not quite points


class Explosive(Conveyor):
    """The line, but predictions from beyond 0.5 are not finite."""

    def delta(self, states: Array, actions: Array) -> tuple[Array, Array]:
        delta, std = super().delta(states, actions)
        return jnp.where(states > 0.5, jnp.nan, delta), std


def test_nothing_is_known_after_a_prediction_that_diverges() -> None:
    states, errors = positions(), estimator()
    simulator = replace(errors.context.simulator, dynamics=Explosive(errors.context.dynamics.networks))
    errors = replace(errors, context=replace(errors.context, simulator=simulator))
    clone, diverges = moving(states), states[:, 0] > 0.5
    support = JointSupport.of(clone, states, errors.context.metric)
    rollouts = roll_out_and_restart(support, states, np.arange(len(states)), errors, gamma=GAMMA)
    anchors = slice(len(states))
    np.testing.assert_array_equal(np.isinf(rollouts.end_error[anchors]), diverges)
    assert np.isfinite(rollouts.end).all()
    assert np.isfinite(rollouts.reward).all()
    assert rollouts.end[anchors][~diverges].max() > 0.5  # steps before the divergence count
    lower, upper = chain_of(rollouts, clone, errors, CalibrationFactors(1.0, 1.0, 100)).bounds(0.0, 100.0)
    np.testing.assert_array_equal(lower[anchors][diverges], 0.0)
    np.testing.assert_array_equal(upper[anchors][diverges], 100.0)
    assert np.all(lower[anchors][~diverges] > 0)

    log = Dataset.from_arrays(states, np.zeros((len(states), 1)), states[:, 0], next_observations=states)
    solution = policy_iteration(from_dataset(log, gamma=GAMMA))
    rollouts = CloneRollouts.of(solution, clone, errors)
    factors = rollouts.factors()
    bounds = rollouts.bounds(factors, floor=0.0, ceiling=100.0)
    assert factors.known
    assert np.all(bounds.lower <= bounds.upper)


def test_rollouts_are_restarted_where_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    states, restarted = positions(), np.array([3, 5])
    errors = estimator(error=0.02, tolerance=0.05)  # reliable for two steps
    monkeypatch.setattr(cloned_policy, "relevant_steps", lambda gamma: 6)
    support = JointSupport.of(moving(states), states, errors.context.metric)
    rollouts = roll_out_and_restart(support, states, restarted, errors, gamma=GAMMA)
    assert len(rollouts.start) == len(states) + 2 * 2  # each is restarted twice, and makes 2 of the 6 steps each time
    np.testing.assert_allclose(rollouts.start[-2:], states[restarted] + 4 * STEP, rtol=1e-5)
    np.testing.assert_allclose(rollouts.end[-2:], states[restarted] + 6 * STEP, rtol=1e-5)
    near = nearest_starts(rollouts, errors.context.metric)
    assert near[restarted, 0].tolist() == [len(states), len(states) + 1]  # where their first rollouts ended


def test_rollouts_are_restarted_within_support_while_steps_matter_and_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states, errors = positions(), estimator(error=0.02, tolerance=0.11)  # reliable for five steps
    everything = np.arange(len(states))

    def count(*, steps: int, room: int) -> int:
        monkeypatch.setattr(cloned_policy, "relevant_steps", lambda gamma: steps)
        monkeypatch.setattr(cloned_policy, "RESTARTS", room)
        support = JointSupport.of(moving(states), states, errors.context.metric)
        starts = roll_out_and_restart(support, states, everything, errors, gamma=GAMMA).start
        assert starts.max() <= states.max() + 0.5 + 1e-6  # support ends 0.5 beyond the states
        return len(starts)

    assert len(states) < count(steps=1000, room=10_000) < 4 * len(states)
    assert count(steps=1000, room=1) <= 2 * len(states)
    assert count(steps=5, room=10_000) == len(states)


def test_errors_along_a_chain_are_discounted_and_summed_per_rollout() -> None:
    states, errors = positions(), estimator(error=0.02)
    rollouts = roll_out_clone(staying(states), states, errors, gamma=GAMMA, steps=5)
    near = nearest_starts(rollouts, errors.context.metric)
    value, reward = chain_errors(rollouts, near, np.array([7]), relevant_steps(GAMMA))
    weight = GAMMA ** (5 * np.arange(6))  # it stays, so the same rollout follows again, until 0.9^30 < 0.05
    np.testing.assert_allclose(reward, [[rollouts.reward_error[7] * weight.sum()]])
    np.testing.assert_allclose(value, [[rollouts.value_error[7] * GAMMA**5 * weight.sum()]])
    # a discount near 1 would let it go on for long: then a limited number of steps counts
    limited, _ = chain_errors(rollouts, near, np.array([7]), 10)
    np.testing.assert_allclose(limited, [[rollouts.value_error[7] * (GAMMA**5 + GAMMA**10)]])


def test_a_predicted_termination_may_be_wrong_by_the_value_difference_there() -> None:
    states, errors = positions(), estimator(error=0.02)
    rollouts = roll_out_clone(staying(states), states, errors, gamma=GAMMA, steps=5)
    terminated = replace(rollouts, terminated=np.ones(len(states), dtype=bool))
    factors = CalibrationFactors(3.0, 0.0, 100)
    lower, upper = chain_of(terminated, staying(states), errors, factors).bounds(-100.0, 100.0)
    np.testing.assert_allclose((lower + upper) / 2, rollouts.reward)
    np.testing.assert_allclose((upper - lower) / 2, 3 * GAMMA**5 * rollouts.value_error)
    unreliable = replace(terminated, end_error=np.full(len(states), 1e9))
    lower, upper = chain_of(unreliable, staying(states), errors, factors).bounds(-100.0, 100.0)
    assert lower.max() == -100.0
    assert upper.min() == 100.0


def test_without_factors_nothing_is_known() -> None:
    states, errors = positions(), estimator()
    rollouts = roll_out_clone(staying(states), states, errors, gamma=GAMMA, steps=5)
    chain = chain_of(rollouts, staying(states), errors, CalibrationFactors(math.inf, math.inf, 3))
    lower, upper = chain.bounds(0.0, 10.0)
    np.testing.assert_allclose(lower, 0.0)
    np.testing.assert_allclose(upper, 10.0)


def test_an_end_out_of_support_is_not_known() -> None:
    states, errors = positions(), estimator()
    away = moving(states, step=1.0)
    rollouts = roll_out_clone(away, states, errors, gamma=GAMMA, steps=5)  # five steps of 1 lead far beyond the line
    chain = chain_of(rollouts, away, errors, CalibrationFactors(1.0, 1.0, 100))
    assert np.all(np.isinf(chain.distance))


def test_states_that_the_graphs_policy_visits_are_supported_besides_the_logs_own() -> None:
    states, metric = positions(), estimator().context.metric
    clone = staying(states)
    far = states.max() + 100 * clone.support_limit
    visited = np.vstack([states, [[far]]])
    queries = np.array([[far + 0.9 * clone.support_limit], [far + 1.1 * clone.support_limit], [states[0, 0]]])
    assert JointSupport.of(clone, visited, metric).contains(queries).tolist() == [True, False, True]
    assert JointSupport.of(clone, states, metric).contains(queries).tolist() == [False, False, True]


def five_starts() -> tuple[TabularMDP, np.ndarray]:
    """Episodes from five starts of different weights along the line, and all their states."""
    path = np.tile(np.linspace(0, 0.5, 11)[:, None], (5, 1)) + np.repeat(0.1 * np.arange(5), 11)[:, None]
    rows = np.arange(55).reshape(5, 11)[:, :-1].ravel()
    log = Dataset.from_arrays(
        path[rows],
        path[rows + 1] - path[rows],
        path[rows + 1, 0],
        next_observations=path[rows + 1],
        terminations=np.arange(50) % 10 == 9,
        name="line",
    )
    return replace(from_dataset(log, gamma=GAMMA), start_weights=np.array([0.1, 0.1, 0.2, 0.2, 0.4])), path


@pytest.mark.parametrize("anchors", [3, 200])  # fewer than starts, and enough for all states
def test_a_clone_that_stays_is_bounded_at_every_start(anchors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloned_policy, "ANCHORS", anchors)
    mdp, path = five_starts()
    errors = estimator(confidence=0.9)
    rollouts = CloneRollouts.of(policy_iteration(mdp), staying(path), errors)
    factors = rollouts.factors()
    bounds = rollouts.bounds(factors, floor=0.0, ceiling=10.0)
    assert factors.value == MIN_FACTOR  # the model is right, and estimates are multiplied all the same
    truth = mdp.states[mdp.starts, 0] / (1 - GAMMA)
    lower, upper = bounds.lower[mdp.starts], bounds.upper[mdp.starts]
    assert np.all(lower <= truth + 1e-6)
    assert np.all(truth <= upper + 1e-6)
    assert np.all(upper - lower < 0.5)
    assert bounds.start.lower == pytest.approx(float(mdp.start_weights @ lower))
    elsewhere = np.setdiff1d(np.arange(mdp.state_count), mdp.starts)
    if anchors == 3:  # there was no room to roll out from other states
        assert np.all(bounds.lower[elsewhere] == 0.0)
        assert np.all(bounds.upper[elsewhere] == 10.0)


def test_a_clone_that_stays_at_0_is_known_to_earn_less_than_the_log() -> None:
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
    rollouts = CloneRollouts.of(solution, staying(path), estimator(confidence=0.9))
    bounds = rollouts.bounds(rollouts.factors(), floor=0.0, ceiling=10.0)
    assert bounds.start.lower <= 1e-6
    assert bounds.start.upper < solution.value[0]


def test_with_too_few_held_out_rows_the_clone_may_have_any_possible_value() -> None:
    mdp, path = five_starts()
    unknown = estimator(error=0.02, tolerance=1e-9)  # no window is within the tolerance
    rollouts = CloneRollouts.of(policy_iteration(mdp), staying(path), unknown)
    factors = rollouts.factors()
    bounds = rollouts.bounds(factors, floor=-1.0, ceiling=10.0)
    assert not factors.known
    assert (bounds.start.lower, bounds.start.upper) == pytest.approx((-1.0, 10.0))


def constant_policy(action: float, support: Support) -> Policy:
    """One number in, and the same action in every state."""
    return Policy(
        weights=(np.zeros((1, 2), np.float32),),
        biases=(np.array([action, 0.0], np.float32),),
        mean=np.zeros(1, np.float32),
        std=np.ones(1, np.float32),
        low=-np.ones(1, np.float32),
        high=np.ones(1, np.float32),
        support=support,
    )


def test_rollouts_in_a_known_world_have_the_value_that_arithmetic_gives() -> None:
    # x' = x + a + shift with shifts of -0.01 and 0.01; the reward is x'
    nothing, identity = jnp.zeros((2, 1, 1)), jnp.ones((2, 1, 1))
    world = LinearWorld((nothing, identity, jnp.array([-0.01, 0.01])[:, None, None]), state_width=1, action_width=1)
    states = np.linspace(0, 1, 101)[:, None]
    support = Support.of(states, np.ones(1, np.float32), np.random.default_rng(0))
    metric, starts, gamma = ScaledMetric(np.ones(1)), np.array([[0.2], [0.4]]), 0.9
    weight, steps = gamma ** np.arange(relevant_steps(gamma)), np.arange(1, relevant_steps(gamma) + 1)
    # standing still: x stays 0.3 on average, and a member is 0.01 per step away from the mean
    found = model_return(constant_policy(0.0, support), starts, world, metric, gamma=gamma, reward_range=(-9.0, 9.0))
    assert found.value == pytest.approx(0.3 * weight.sum(), rel=1e-4)
    assert found.disagreement == pytest.approx(0.01 * (weight * steps).sum(), rel=1e-4)
    assert found.leaves_support == 0
    # to the right by 0.1 a step: x is 0.3 + 0.1 k after k steps, and both leave the log after six to eight of them
    found = model_return(constant_policy(0.1, support), starts, world, metric, gamma=gamma, reward_range=(-9.0, 9.0))
    assert found.value == pytest.approx((weight * (0.3 + 0.1 * steps)).sum(), rel=1e-4)
    assert found.leaves_support == 1


def test_a_rollout_that_diverges_in_the_model_counts_as_the_worst_and_no_reward_exceeds_the_possible_ones() -> None:
    # x' = 1e20 x: states overflow in the second step; the reward is x', of which at most 2 is possible
    growth = jnp.full((2, 1, 1), 1e20)
    world = LinearWorld((growth, jnp.zeros((2, 1, 1)), jnp.zeros((2, 1, 1))), state_width=1, action_width=1)
    support = Support.of(np.linspace(0, 1, 101)[:, None], np.ones(1, np.float32), np.random.default_rng(0))
    limits, gamma, starts = (-3.0, 2.0), 0.9, np.array([[0.5]])
    policy, metric = constant_policy(0.0, support), ScaledMetric(np.ones(1))
    found = model_return(policy, starts, world, metric, gamma=gamma, reward_range=limits)
    steps = relevant_steps(gamma)
    assert found.value == pytest.approx(2.0 - 3.0 * (gamma ** np.arange(1, steps)).sum(), rel=1e-4)
    assert found.disagreement == pytest.approx(5.0 * (gamma ** np.arange(1, steps)).sum(), rel=1e-4)
    assert found.leaves_support == 1
