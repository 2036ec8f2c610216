"""Rollouts in the model, and what limits them."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from bats.data.dataset import Dataset
from bats.graph.mdp import from_dataset
from bats.graph.solve import Solution, policy_iteration
from bats.improvement.simulation import CHECKED_EVERY, World, roll_out, shared_out
from bats.improvement.support_cost import INNER, OUTER, OUTSIDE_COST, SupportCost
from bats.policy.model_actor import ModelActor
from bats.policy.support import Support
from tests.bounds.conveyor import GAMMA, Conveyor, conveyor, moving, positions
from tests.improvement.worlds import constant_critic, line, support_cost

MEMBERS = 3


def everywhere(*states: float) -> Array:
    """The same states for every member."""
    return jnp.broadcast_to(jnp.array(states)[None, :, None], (MEMBERS, len(states), 1))


def step(world: World, state: float, action: float, *, number: int = 1) -> tuple[float, float, bool]:
    """One step of the first member."""
    after, reward, goes_on = world.step(jnp.asarray(number), everywhere(state), everywhere(action))
    return float(after[0, 0, 0]), float(reward[0, 0]), bool(goes_on[0, 0])


def test_a_step_has_the_models_reward_within_those_of_the_log() -> None:
    assert step(line(), 1.0, 0.5) == pytest.approx((1.5, 1.5, True))
    assert step(line(), 1.0, 3.0) == pytest.approx((4.0, 2.0, True))


def test_out_of_the_box_a_rollout_ends_with_the_least_value() -> None:
    assert step(line(), 4.0, 2.0) == pytest.approx((6.0, 2.0 + GAMMA * -3.0, False))


class Divergent(Conveyor):
    """The line, but nothing that is predicted is finite."""

    def delta(self, states: Array, actions: Array) -> tuple[Array, Array]:
        return jnp.full_like(states, jnp.nan), jnp.zeros_like(states)


def test_a_prediction_that_diverges_is_out_of_the_box() -> None:
    _, reward, goes_on = step(line(Divergent(conveyor().networks)), 0.0, 0.0)
    assert reward == pytest.approx(-2.0 + GAMMA * -3.0)
    assert not goes_on


class Ending(Conveyor):
    """The line, which ends beyond 1; the reward of a termination is 7 more than the position."""

    def termination(self, states: Array, actions: Array, next_states: Array) -> Array:
        return jnp.where(next_states[..., 0] > 1, 0.9, 0.1)

    def reward(self, states: Array, actions: Array, next_states: Array) -> Array:
        return next_states[..., 0] + 7.0

    def continuing_reward(self, states: Array, actions: Array, next_states: Array) -> Array:
        return next_states[..., 0]


def test_a_termination_ends_the_rollout_and_only_it_has_the_rewards_of_terminations() -> None:
    world = replace(line(Ending(conveyor().networks)), rewards=jnp.array([-2.0, 20.0]))
    assert step(world, 0.0, 0.5) == pytest.approx((0.5, 0.5, True))
    assert step(world, 0.0, 1.5) == pytest.approx((1.5, 8.5, False))
    # out of the box, the model's termination is not believed
    assert step(world, 4.0, 2.0)[1] == pytest.approx(13.0 + GAMMA * -3.0)


def test_the_cost_rises_between_the_inner_and_the_outer_distance() -> None:
    cost = support_cost([0.0, 10.0], limit=2.0, step_value=0.5)
    distance = jnp.array([0.0, INNER, (INNER + OUTER) / 2, OUTER, 2 * OUTER])
    expected = OUTSIDE_COST * 0.5 * np.array([0, 0, 0.5, 1, 1])
    np.testing.assert_allclose(cost(-2.0 * distance[:, None]), expected, atol=1e-5)
    np.testing.assert_allclose(cost(10 + 2.0 * distance[:, None]), expected, atol=1e-5)


def test_states_that_the_graphs_policy_visits_belong_to_the_support() -> None:
    cost = support_cost([0.0], visited=[30.0])
    np.testing.assert_allclose(cost(jnp.array([[0.0], [15.0], [30.5]])), [0.0, OUTSIDE_COST, 0.0], atol=1e-5)


def test_the_support_is_looked_at_now_and_then_for_all_steps_between() -> None:
    world = line(cost=support_cost([0.0], limit=0.5))
    for number in range(1, 2 * CHECKED_EVERY + 1):
        cost = CHECKED_EVERY * OUTSIDE_COST if number % CHECKED_EVERY == 0 else 0.0
        assert step(world, 1.0, 0.5, number=number)[1] == pytest.approx(1.5 - cost)
    assert step(world, 0.0, 0.1, number=CHECKED_EVERY)[1] == pytest.approx(0.1)


def test_returns_are_discounted_sums_with_the_critics_value_at_the_end() -> None:
    actor = ModelActor.of(moving(positions(), step=0.25))
    visits = roll_out(line(), actor, constant_critic(4.0), everywhere(0.0), 3)
    np.testing.assert_allclose(visits.states[:, 0, 0, 0], [0.0, 0.25, 0.5])
    third = 0.75 + GAMMA * 4.0
    second = 0.5 + GAMMA * third
    np.testing.assert_allclose(visits.returns[:, 0, 0], [0.25 + GAMMA * second, second, third], rtol=1e-6)


def test_nothing_counts_after_a_rollouts_end() -> None:
    actor = ModelActor.of(moving(positions(), step=0.75))
    world = replace(line(Ending(conveyor().networks)), rewards=jnp.array([-2.0, 20.0]))
    visits = roll_out(world, actor, constant_critic(1e6), everywhere(0.0), 5)
    np.testing.assert_array_equal(visits.running[:, 0, 0], [True, True, False, False, False])
    states, returns = visits.rows()
    assert len(states) == 2 * MEMBERS
    np.testing.assert_allclose(sorted(set(returns.tolist())), sorted([8.5, 0.75 + GAMMA * 8.5]), rtol=1e-6)


def test_each_member_gets_its_share_of_the_states_and_too_few_are_repeated() -> None:
    shares = shared_out(np.arange(7.0)[:, None], MEMBERS)
    np.testing.assert_array_equal(shares[..., 0], [[0, 1], [2, 3], [4, 5]])
    np.testing.assert_array_equal(shared_out(np.arange(2.0)[:, None], MEMBERS)[..., 0], [[0], [1], [0]])


def two_components() -> tuple[Solution, np.ndarray]:
    """A log whose second component is 7 in all rows."""
    states = np.column_stack([positions()[:, 0], np.full(200, 7.0)])
    log = Dataset.from_arrays(states, np.zeros((200, 1)), states[:, 0], next_observations=states)
    return policy_iteration(from_dataset(log, gamma=GAMMA)), log.rewards


def test_a_component_that_is_constant_in_the_log_ends_no_rollout() -> None:
    solution, rewards = two_components()
    weight = np.array([1.0, 0.0], np.float32)
    support = Support((solution.mdp.states * weight).astype(np.float32), weight, 0.5)
    cost = SupportCost.of(support, np.zeros((0, 2)), step_value=0.1, rng=np.random.default_rng(0))
    world = World.of(conveyor(), cost, solution, rewards)
    np.testing.assert_array_equal(np.isinf([world.low, world.high]), [[False, True]] * 2)
    assert world.low[0] == pytest.approx(-0.5, abs=0.02)
    assert world.high[0] == pytest.approx(1.5, abs=0.02)
    assert cost(jnp.array([0.5, 1e6])) == 0.0


def test_nothing_in_the_box_is_worse_than_to_leave_it() -> None:
    solution, rewards = two_components()
    support = Support(solution.mdp.states.astype(np.float32), np.ones(2, np.float32), 0.5)
    cost = SupportCost.of(support, np.zeros((0, 2)), step_value=0.1, rng=np.random.default_rng(0))
    world = World.of(conveyor(), cost, solution, rewards)
    never_back = rewards.min() / (1 - GAMMA) - OUTSIDE_COST * 0.1 / (1 - GAMMA)
    assert float(world.worst) <= never_back + 0.01
