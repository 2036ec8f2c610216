"""AWAC, offline: https://arxiv.org/abs/2006.09359.

critics     Q(s, a) -> r + gamma min Q'(s', a'),  a' from pi
actor       clone logged actions, each weighted by min(exp((min Q(s, a) - min Q(s, b)) / lambda), 100),  b from pi;
            a Gaussian with one std for all states
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bats.baselines.config import AWACConfig
from bats.baselines.core import Batch, Group, Method, Networks, Sizes
from bats.baselines.networks import (
    SharedStdPolicy,
    gaussian_log_prob,
    mean_and_log_std,
    new_critics,
    new_shared_std_policy,
    squared_error,
    values,
)


def new_networks(sizes: Sizes, config: AWACConfig, key: Array) -> Networks:
    actor_key, critic_key = jax.random.split(key)
    return {
        "actor": new_shared_std_policy(sizes.states, config.hidden, sizes.actions, actor_key),
        "critics": new_critics(sizes.states, sizes.actions, config.critic_hidden, critic_key),
    }


def sample_clipped(actor: SharedStdPolicy, states: Float[Array, "B D"], key: Array) -> Float[Array, "B A"]:
    """Gaussian actions, clipped to the bounds."""
    mean, log_std = mean_and_log_std(actor, states)
    return jnp.clip(mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape), -1.0, 1.0)


def critic_loss(
    networks: Networks, targets: Networks, batch: Batch, key: Array, config: AWACConfig
) -> Float[Array, ""]:
    actions = sample_clipped(networks["actor"], batch.next_states, key)
    target = batch.rewards + batch.discounts * values(targets["critics"], batch.next_states, actions).min(axis=0)
    return squared_error(values(networks["critics"], batch.states, batch.actions), target)


def actor_loss(networks: Networks, targets: Networks, batch: Batch, key: Array, config: AWACConfig) -> Float[Array, ""]:
    actions = sample_clipped(networks["actor"], batch.states, key)
    both = jnp.stack([batch.actions, actions])
    logged, own = values(networks["critics"], batch.states, both).min(axis=0)
    weight = jnp.minimum(jnp.exp((logged - own) / config.temperature), config.max_weight)
    log_prob = gaussian_log_prob(batch.actions, *mean_and_log_std(networks["actor"], batch.states))
    return -(jax.lax.stop_gradient(weight) * log_prob).mean()


CRITICS = Group(critic_loss, rate="critic_learning_rate", has_target=True)
METHOD = Method("awac", AWACConfig, new_networks, {"critics": CRITICS, "actor": Group(actor_loss)}, squashed=False)
