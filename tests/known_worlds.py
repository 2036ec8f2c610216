"""Models that are known exactly, in place of a trained ensemble, and what planning needs around them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bats.arrays import Metric
from bats.metric.scaled import ScaledMetric
from bats.model.ensemble import Dynamics, Kind
from bats.model.held_out import HeldOut, LocalErrors
from bats.planning.context import PlanningContext, Simulator


class KnownWorld(Dynamics):
    """A world without terminations and rewards; its parameters have the member axis first."""

    KIND: ClassVar[Kind] = Kind(
        state_width=2,
        action_width=2,
        action_count=None,
        terminations=False,
        binary_reward=False,
        rare_rewards=False,
        rare_rewards_terminate=False,
    )
    """only whether there are terminations and how many discrete actions matters where the world is known"""

    def __init__(self, parameters: Any, **kind: Any) -> None:
        self.networks, self.kind = parameters, replace(self.KIND, **kind)
        self.states = self.actions = self.deltas = self.rewards = self.rare_rewards = None  # nothing is standardised

    @property
    def member_count(self) -> int:
        return len(jax.tree.leaves(self.networks)[0])

    @abstractmethod
    def delta(self, states: Array, actions: Array) -> tuple[Array, Array]: ...

    def reward(self, states: Array, actions: Array, next_states: Array) -> Array:
        return jnp.zeros(states.shape[:-1])

    def continuing_reward(self, states: Array, actions: Array, next_states: Array) -> Array:
        return self.reward(states, actions, next_states)

    def termination(self, states: Array, actions: Array, next_states: Array) -> Array:
        return jnp.zeros(states.shape[:-1])


class LinearWorld(KnownWorld):
    """next = state + state·A + action·B + shift; the reward is the first number of the next state."""

    networks: tuple[Float[Array, "M D D"], Float[Array, "M A D"], Float[Array, "M 1 D"]]

    def delta(self, states: Array, actions: Array) -> tuple[Array, Array]:
        by_state, by_action, shift = self.networks
        delta = states @ by_state + actions @ by_action + shift
        return delta, jnp.zeros_like(delta)

    def reward(self, states: Array, actions: Array, next_states: Array) -> Array:
        return next_states[..., 0]


class Plane(KnownWorld):
    """The action is the move; the members differ by a shift."""

    networks: Float[Array, "M 1 D"]

    def delta(self, states: Array, actions: Array) -> tuple[Array, Array]:
        return actions + self.networks, jnp.zeros_like(states)


class Ring(KnownWorld):
    """Two actions in a ring of ten states, described by sine and cosine: back or forth. State 4 has reward 1."""

    networks: Float[Array, "M 1 1"]
    KIND = replace(KnownWorld.KIND, action_count=2)

    def delta(self, states: Array, actions: Array) -> tuple[Array, Array]:
        angle = jnp.arctan2(states[..., 1], states[..., 0]) + 0.2 * jnp.pi * (actions[..., 1] - actions[..., 0])
        delta = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1) - states + self.networks
        return delta, jnp.zeros_like(delta)

    def reward(self, states: Array, actions: Array, next_states: Array) -> Array:
        rewarded = jnp.array([jnp.cos(0.8 * jnp.pi), jnp.sin(0.8 * jnp.pi)])
        return jnp.where(jnp.linalg.norm(next_states - rewarded, axis=-1) < 0.1, 1.0, 0.0)


def plane(*shifts: float, width: int = 2) -> Plane:
    """A plane with one member for each shift."""
    return Plane(jnp.array(shifts)[:, None, None] * jnp.ones((1, 1, width)))


def no_held_out_rows(width: int, action_width: int) -> HeldOut:
    states, actions, numbers = np.zeros((0, width)), np.zeros((0, action_width)), np.zeros(0)
    return HeldOut(states, actions, states, numbers, np.zeros(0, dtype=bool), states, numbers, numbers)


def context_of(
    world: KnownWorld,
    metric: Metric | None = None,
    *,
    width: int = 2,
    bounds: tuple[np.ndarray, np.ndarray] | None = None,
    local_errors: LocalErrors | None = None,
) -> PlanningContext:
    """Planning in a known world, by default with plain distances and actions from -1 to 1."""
    low, high = (np.full(1, -1.0), np.full(1, 1.0)) if bounds is None else bounds
    simulator = Simulator(
        world,
        ScaledMetric(np.ones(width, dtype=np.float32)) if metric is None else metric,
        jnp.asarray(low, jnp.float32),
        jnp.asarray(high, jnp.float32),
    )
    return PlanningContext(simulator, no_held_out_rows(width, len(low)), local_errors)
