"""Variations of actions, and what is learned from them."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jaxtyping import Array

from bats.improvement.simulation import roll_out, shared_out
from bats.improvement.variations import (
    CORRELATION,
    LOOKAHEAD,
    NOISE,
    better_targets,
    importance,
    scores,
    smooth_noise,
    varied_ends,
)
from bats.policy.model_actor import ModelActor
from tests.bounds.conveyor import Conveyor, conveyor, moving, positions, staying
from tests.improvement.worlds import constant_critic, line, support_cost

KEY, ONE = jax.random.key(0), jnp.ones(())
STARTS = shared_out(positions(30), 3)


def test_weights_rise_with_what_a_gain_exceeds_the_margin_by() -> None:
    gains = jnp.array([0.0, -5.0, 0.9, 1.5, 2.0])  # with steps worth 0.5 and a margin of 1: excesses of 0, 0, 1 and 2
    weights = importance(gains[None, :, None], ONE, jnp.asarray(0.5))[0, :, 0]
    expected = np.array([1.0, 0.0, 0.0, math.e - 1, math.e**2 - 1])
    np.testing.assert_allclose(weights, expected / expected.sum(), rtol=1e-5)


@settings(deadline=None)
@given(arrays(np.float32, (2, 5, 3), elements=st.floats(-1e6, 1e6, width=32)))
def test_weights_are_shares_and_a_policy_that_is_not_surpassed_has_all(score: np.ndarray) -> None:
    weights = np.asarray(importance(jnp.asarray(score), ONE, ONE))
    assert np.all(weights >= 0)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-4)
    best = score.max(axis=1) <= score[:, 0]
    np.testing.assert_array_equal(weights[:, 0][best], 1.0)


def test_noise_is_smooth_and_has_the_same_std_in_all_steps() -> None:
    noise = np.asarray(smooth_noise(KEY, (8, 1, 20_000, 1)))[:, 0, :, 0]
    std = noise.std(axis=0)
    assert np.all(noise.std(axis=1) < NOISE[1])
    assert np.quantile(std, 0.99) < 2 * NOISE[1]
    np.testing.assert_allclose(noise.std(axis=1), noise.std(), rtol=0.05)
    np.testing.assert_allclose(np.corrcoef(noise[3], noise[4])[0, 1], CORRELATION, atol=0.02)


def test_without_a_variation_the_score_is_the_return() -> None:
    actor, critic = ModelActor.of(moving(positions())), constant_critic(3.0)
    score, action, last = scores(line(), actor, critic, STARTS, jnp.zeros((LOOKAHEAD, *STARTS.shape[:2], 1)))
    visits = roll_out(line(), actor, critic, STARTS, LOOKAHEAD + 1)
    np.testing.assert_allclose(score, roll_out(line(), actor, critic, STARTS, LOOKAHEAD).returns[0], rtol=1e-5)
    np.testing.assert_allclose(action, actor.act(STARTS))
    np.testing.assert_allclose(last, visits.states[LOOKAHEAD], rtol=1e-5)


def test_noise_is_added_within_the_bounds_of_actions() -> None:
    actor = ModelActor.of(moving(positions(), step=0.5))
    noise = jnp.full((1, *STARTS.shape[:2], 1), 0.2)
    np.testing.assert_allclose(scores(line(), actor, None, STARTS, noise)[1], 0.7, rtol=1e-6)
    np.testing.assert_allclose(scores(line(), actor, None, STARTS, 10 * noise)[1], 1.0)


def test_a_held_action_replaces_the_policys_in_the_first_steps() -> None:
    actor = ModelActor.of(moving(positions(), step=0.1))
    held = jnp.full(STARTS.shape, -0.5), jnp.full(STARTS.shape[:2], 2)
    last = scores(line(), actor, None, STARTS, jnp.zeros((5, *STARTS.shape[:2], 1)), held)[2]
    np.testing.assert_allclose(last, STARTS + 2 * -0.5 + 3 * 0.1, atol=1e-6)


def targets_of(actor: ModelActor, world: Conveyor) -> tuple[Array, Array]:
    """The means that are learned, and the policy's own."""
    parts, keys = STARTS[None], jax.random.split(KEY, 1)
    unlimited = {"low": jnp.full(1, -1e3), "high": jnp.full(1, 1e3), "rewards": jnp.array([-1e3, 1e3])}
    targets = better_targets(
        replace(line(world), **unlimited), actor, constant_critic(0.0), parts, keys, 0.1 * ONE, ONE
    )
    np.testing.assert_array_equal(targets[0, ..., 1], actor.outputs(STARTS)[..., 1])
    return targets[0, ..., 0], actor.outputs(STARTS)[..., 0]


class Indifferent(Conveyor):
    """The line, but all positions have the same reward."""

    def reward(self, states: Array, actions: Array, next_states: Array) -> Array:
        return jnp.ones(states.shape[:-1])


def test_where_no_variation_is_better_the_policy_stays_as_it_is() -> None:
    own_targets, own = targets_of(ModelActor.of(moving(positions(), step=0.3)), Indifferent(conveyor().networks))
    np.testing.assert_array_equal(own_targets, own)


def test_where_going_ahead_pays_the_policy_learns_to_go_ahead() -> None:
    targets, own = targets_of(ModelActor.of(staying(positions())), conveyor())
    # a variation whose first action is negative may still be better as a whole
    assert np.mean(targets > own) > 0.8
    assert np.mean(targets - own) > 0.1


def test_the_policy_does_not_learn_to_leave_the_support_for_reward() -> None:
    actor, critic = ModelActor.of(staying(positions())), constant_critic(0.0)
    starts, keys = jnp.ones((1, 3, 30, 1)), jax.random.split(KEY, 1)

    def mean_target(step_value: float) -> float:
        world = line(cost=support_cost([1.0], limit=0.02, step_value=step_value))
        return float(better_targets(world, actor, critic, starts, keys, 0.5 * ONE, ONE)[..., 0].mean())

    assert mean_target(0.0) > 0.1
    assert abs(mean_target(10.0)) < 0.01


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (1.8796, 2.4765)])
def test_an_action_that_cannot_be_exceeded_is_not_pulled_back_to_its_bound(low: float, high: float) -> None:
    # the network wants 1.5 halves of the range, where 1 is possible: every variation is at most as good
    clone = replace(moving(positions(), step=1.5), low=np.array([low]), high=np.array([high]))
    own_targets, own = targets_of(ModelActor.of(clone), conveyor())
    np.testing.assert_allclose(own_targets, own, rtol=1e-6)
    np.testing.assert_array_equal(own, 1.5)


class Backwards(Conveyor):
    """The line, where going back pays."""

    def reward(self, states: Array, actions: Array, next_states: Array) -> Array:
        return -next_states[..., 0]


def test_a_policy_far_beyond_its_bounds_can_learn_to_turn_round() -> None:
    targets, own = targets_of(ModelActor.of(moving(positions(), step=5.0)), Backwards(conveyor().networks))
    assert np.mean(targets < own) > 0.8


def test_variations_lead_elsewhere_than_the_policy() -> None:
    actor = ModelActor.of(staying(positions()))
    ends = varied_ends(line(), actor, STARTS, KEY)
    assert np.mean(np.abs(ends - STARTS) > 0.1) > 0.8
    slow = replace(actor, low=0.01 * actor.low, high=0.01 * actor.high)
    assert np.all(np.abs(varied_ends(line(), slow, STARTS, KEY) - STARTS) <= 0.01 * LOOKAHEAD + 1e-6)
