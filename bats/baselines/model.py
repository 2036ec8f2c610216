"""The dynamics ensemble as the baselines see the world: standardised states, actions between -1 and 1."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bats.model.ensemble import Dynamics


class ScaledDynamics(eqx.Module):
    """A trained ensemble, and the scales of a method's states and actions."""

    dynamics: Dynamics
    mean: Float[Array, "D"]
    std: Float[Array, "D"]
    centre: Float[Array, "A"]
    half: Float[Array, "A"]

    def step(
        self, states: Float[Array, "B D"], actions: Float[Array, "B A"], key: Array
    ) -> tuple[Float[Array, "B D"], Float[Array, "B"], Float[Array, "B"]]:
        """Next states, each drawn from a member that is drawn at random; rewards; probabilities of going on."""
        member_key, noise_key = jax.random.split(key)
        ensemble, rows = self.dynamics, jnp.arange(len(states))
        raw_states, raw_actions = states * self.std + self.mean, actions * self.half + self.centre
        every = ensemble.per_member(raw_states), ensemble.per_member(raw_actions)
        delta, std = ensemble.delta(*every)
        next_states = every[0] + delta + std * jax.random.normal(noise_key, delta.shape)
        member = jax.random.randint(member_key, rows.shape, 0, ensemble.member_count)
        rewards, ends = (
            predict(*every, next_states)[member, rows] for predict in (ensemble.reward, ensemble.termination)
        )
        return (next_states[member, rows] - self.mean) / self.std, rewards, 1.0 - ends
