"""Worlds that are known exactly, for the tests of improvement in the model."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from bats.improvement.critic import Critic
from bats.improvement.simulation import World
from bats.improvement.support_cost import SupportCost
from bats.model.ensemble import Dynamics
from bats.networks.mlp import MLP
from bats.policy.support import Support
from tests.bounds.conveyor import GAMMA, conveyor


def constant_critic(value: float, *, width: int = 1) -> Critic:
    """All states have the same value."""
    network = MLP((jnp.zeros((width, 1)),), (jnp.full(1, value),))
    limits = jnp.array([-1e9, 1e9])
    return Critic(network, jnp.zeros(width), jnp.ones(width), jnp.zeros(()), jnp.ones(()), limits)


def support_cost(
    states: Sequence[float], *, limit: float = 1.0, step_value: float = 1.0, visited: Sequence[float] = ()
) -> SupportCost:
    """The cost of leaving these numbers, and those that the graph's policy visits."""
    support = Support(np.array(states, np.float32)[:, None], np.ones(1, np.float32), limit)
    rng = np.random.default_rng(0)
    return SupportCost.of(support, np.array(visited).reshape(-1, 1), step_value=step_value, rng=rng)


def line(dynamics: Dynamics | None = None, *, cost: SupportCost | None = None) -> World:
    """Positions from -5 to 5; the reward is the position that an action leads to, at most 2. The least value is -3."""
    cost = support_cost([0.0], limit=100.0) if cost is None else cost
    limits = jnp.array([-5.0]), jnp.array([5.0]), jnp.array([-2.0, 2.0]), jnp.asarray(-3.0)
    return World(conveyor() if dynamics is None else dynamics, cost, *limits, GAMMA)
