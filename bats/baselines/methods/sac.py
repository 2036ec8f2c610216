"""Soft actor-critic, off policy: https://arxiv.org/abs/1812.05905.

critics     Q(s, a) -> r + gamma (min Q'(s', a') - alpha log pi(a' | s')),  a' from pi
actor       minimise  E [alpha log pi(a | s) - min Q(s, a)],  a from pi
alpha       raised where the entropy is below its target, lowered where it is above
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bats.baselines.config import SACConfig
from bats.baselines.core import Batch, Group, Method, Networks, Sizes
from bats.baselines.networks import SoftPolicy, new_critics, relu_mlp, sample_squashed, squared_error, values


def new_networks(sizes: Sizes, config: SACConfig, key: Array) -> Networks:
    actor_key, critic_key = jax.random.split(key)
    network = relu_mlp((sizes.states, *config.hidden, 2 * sizes.actions), actor_key)
    return {
        "actor": SoftPolicy(network, jnp.zeros((), jnp.float32)),
        "critics": new_critics(sizes.states, sizes.actions, config.critic_hidden, critic_key),
    }


def temperature(actor: SoftPolicy, config: SACConfig) -> Float[Array, ""]:
    """The weight of the entropy; it is trained by `temperature_loss` only."""
    if config.temperature is not None:
        return jnp.float32(config.temperature)
    return jax.lax.stop_gradient(jnp.exp(actor.log_temperature))


def soft_target(
    networks: Networks, targets: Networks, batch: Batch, key: Array, config: SACConfig
) -> Float[Array, "B"]:
    """What the critics are trained to predict."""
    actions, log_prob = sample_squashed(networks["actor"].network, batch.next_states, key)
    value = values(targets["critics"], batch.next_states, actions).min(axis=0)
    if config.entropy_bonus:
        value -= temperature(networks["actor"], config) * log_prob
    return batch.rewards + batch.discounts * value


def critic_loss(networks: Networks, targets: Networks, batch: Batch, key: Array, config: SACConfig) -> Float[Array, ""]:
    target = soft_target(networks, targets, batch, key, config)
    return squared_error(values(networks["critics"], batch.states, batch.actions), target)


def actor_loss(networks: Networks, targets: Networks, batch: Batch, key: Array, config: SACConfig) -> Float[Array, ""]:
    actor = networks["actor"]
    actions, log_prob = sample_squashed(actor.network, batch.states, key)
    value = values(networks["critics"], batch.states, actions).min(axis=0)
    loss = (temperature(actor, config) * log_prob - value).mean()
    return loss + temperature_loss(actor, log_prob, batch.actions.shape[1], config)


def temperature_loss(
    actor: SoftPolicy, log_prob: Float[Array, "B"], dimensions: int, config: SACConfig
) -> Float[Array, ""]:
    """Its gradient is that of the temperature alone; 0 where the temperature is given."""
    if config.temperature is not None:
        return jnp.zeros(())
    wanted = -dimensions if config.target_entropy is None else config.target_entropy
    excess = jax.lax.stop_gradient(-log_prob - wanted).mean()
    return actor.log_temperature * excess


CRITICS = Group(critic_loss, rate="critic_learning_rate", has_target=True)
METHOD = Method("sac", SACConfig, new_networks, {"critics": CRITICS, "actor": Group(actor_loss)}, squashed=True)
