"""Rollouts of a policy in the model, each by one member of the ensemble alone, and what they return.

The starts are shared out among the members, so that a policy that is good on average is good for every member. The
model is not to be believed everywhere:

    out of the support     the members may agree and still be wrong, on a way through a wall for example. Being there
                           costs reward, the more the farther from the log and from what the graph's policy visits
    out of the box         around the log, networks may predict anything. The rollout ends there, and what follows is
                           assumed to be worse than anything in the box
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bats.graph.solve import Solution
from bats.improvement.critic import Critic
from bats.improvement.support_cost import SupportCost
from bats.model.ensemble import Dynamics
from bats.policy.model_actor import ModelActor
from bats.stitching.acceptance import LIKELY

CHECKED_EVERY = 4
"""steps after which the support is looked at again"""
BOX_MARGIN = 0.5
"""how far the box reaches beyond the logged states, in their range"""


class World(eqx.Module):
    """The model, and what limits its predictions."""

    dynamics: Dynamics
    support_cost: SupportCost
    low: Float[Array, "D"]
    """smallest numbers of a state in the box"""
    high: Float[Array, "D"]
    rewards: Float[Array, "2"]
    """smallest and largest logged reward"""
    worst: Float[Array, ""]
    """less than any value in the box: the least value of the graph less the cost of never returning to the support"""
    gamma: float = eqx.field(static=True)

    @classmethod
    def of(
        cls, dynamics: Dynamics, support_cost: SupportCost, solution: Solution, rewards: Float[np.ndarray, "N"]
    ) -> World:
        """The world of a log with these rewards."""
        logged = slice(solution.mdp.real_count)
        states, worst = solution.mdp.states[logged], solution.value[logged].min()
        low, high = states.min(axis=0), states.max(axis=0)
        # a component that is constant in the log limits nothing: the model predicts small changes of it
        margin = np.where(np.asarray(support_cost.weight) > 0, BOX_MARGIN * (high - low), np.inf)
        # otherwise it would pay to leave the box rather than to return to the support
        worst = worst - float(support_cost.cost) / (1 - solution.mdp.gamma)
        limits = (low - margin, high + margin, np.array([rewards.min(), rewards.max()]), worst)
        low_limit, high_limit, reward_limits, least = (jnp.asarray(limit, jnp.float32) for limit in limits)
        return cls(dynamics, support_cost, low_limit, high_limit, reward_limits, least, solution.mdp.gamma)

    def step(
        self, number: Int[Array, ""], states: Float[Array, "M B D"], actions: Float[Array, "M B A"]
    ) -> tuple[Float[Array, "M B D"], Float[Array, "M B"], Bool[Array, "M B"]]:
        """The next states, the rewards less the costs, and where the rollout goes on, in a step of this number."""
        dynamics = self.dynamics
        after = states + dynamics.delta(states, actions)[0]
        ends = dynamics.termination(states, actions, after) > LIKELY
        # a termination's reward is not earned in part before it
        continuing = dynamics.continuing_reward(states, actions, after)
        reward = jnp.where(ends, dynamics.reward(states, actions, after), continuing)
        reward = jnp.clip(jnp.nan_to_num(reward, nan=self.rewards[0]), self.rewards[0], self.rewards[1])
        leaves = ~jnp.all((after >= self.low) & (after <= self.high), axis=-1)  # true for NaN
        goes_on = ~(ends | leaves)
        # distances to the whole sample take as long as the model; what leaves the support for less time goes unseen
        checked = number % CHECKED_EVERY == 0
        cost = jax.lax.cond(checked, lambda at: self.support_cost(at), lambda _: jnp.zeros(goes_on.shape), after)
        reward = reward - CHECKED_EVERY * jnp.where(leaves, 0.0, cost)
        return after, reward + jnp.where(leaves, self.gamma * self.worst, 0.0), goes_on


class Visits(eqx.Module):
    """What rollouts have visited, step by step."""

    states: Float[Array, "T M B D"]
    returns: Float[Array, "T M B"]
    """discounted, from each state on"""
    running: Bool[Array, "T M B"]
    """false once the rollout has ended"""

    def rows(self) -> tuple[Float[np.ndarray, "n D"], Float[np.ndarray, "n"]]:
        """The visited states, and the returns from there."""
        running = np.asarray(self.running)
        return np.asarray(self.states)[running], np.asarray(self.returns)[running]


@eqx.filter_jit
def roll_out(world: World, actor: ModelActor, critic: Critic, starts: Float[Array, "M B D"], steps: int) -> Visits:
    """Rollouts of the policy; the critic says what comes after the last step."""

    def step(carried: tuple[Array, Array], number: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        states, running = carried
        after, reward, goes_on = world.step(number, states, actor.act(states))
        kept = running & goes_on
        return (jnp.where(kept[..., None], after, states), kept), (states, running, jnp.where(running, reward, 0.0))

    def back(later: Float[Array, "M B"], now: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, kept = now
        value = reward + world.gamma * jnp.where(kept, later, 0.0)
        return value, value

    running = jnp.ones(starts.shape[:2], bool)
    (last, going), (states, running, rewards) = jax.lax.scan(step, (starts, running), 1 + jnp.arange(steps))
    kept = jnp.concatenate([running[1:], going[None]])
    _, returns = jax.lax.scan(back, critic(last), (rewards, kept), reverse=True)
    return Visits(states, returns, running)


def shared_out(states: Float[np.ndarray, "n D"], members: int) -> Float[Array, "M B D"]:
    """Every member's share of the states; a few at the end are left out, and too few are repeated."""
    count = max(len(states) // members, 1)
    rows = np.arange(members * count) % len(states)
    return jnp.asarray(states[rows].reshape(members, count, -1), jnp.float32)
