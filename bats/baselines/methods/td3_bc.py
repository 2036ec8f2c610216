"""TD3+BC: https://arxiv.org/abs/2106.06860.

critics     Q(s, a) -> r + gamma min Q'(s', pi'(s') + clipped noise)
actor       minimise  -lambda Q(s, pi(s)) + |pi(s) - a|^2,  lambda = alpha / mean |Q|,  in every second update
Q', pi'     follow Q and pi, in every second update too
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bats.baselines.config import ReBRACConfig, TD3BCConfig
from bats.baselines.core import Batch, Group, Method, Networks, Sizes
from bats.baselines.networks import new_critics, relu_mlp, squared_error, values
from bats.networks.mlp import MLP

Config = TD3BCConfig | ReBRACConfig


def new_networks(sizes: Sizes, config: TD3BCConfig, key: Array) -> Networks:
    actor_key, critic_key = jax.random.split(key)
    return {
        "actor": relu_mlp((sizes.states, *config.hidden, sizes.actions), actor_key),
        "critics": new_critics(sizes.states, sizes.actions, config.critic_hidden, critic_key),
    }


def noisy_target_actions(
    actor: MLP, next_states: Float[Array, "B D"], key: Array, config: Config
) -> Float[Array, "B A"]:
    """Actions of the target policy with smoothing noise."""
    actions = jnp.tanh(actor(next_states))
    noise = config.target_noise * jax.random.normal(key, actions.shape)
    return jnp.clip(actions + jnp.clip(noise, -config.noise_limit, config.noise_limit), -1.0, 1.0)


def critic_loss(
    networks: Networks, targets: Networks, batch: Batch, key: Array, config: TD3BCConfig
) -> Float[Array, ""]:
    actions = noisy_target_actions(targets["actor"], batch.next_states, key, config)
    value = values(targets["critics"], batch.next_states, actions).min(axis=0)
    target = batch.rewards + batch.discounts * value
    return squared_error(values(networks["critics"], batch.states, batch.actions), target)


def actor_loss(
    networks: Networks, targets: Networks, batch: Batch, key: Array, config: TD3BCConfig
) -> Float[Array, ""]:
    actions = jnp.tanh(networks["actor"](batch.states))
    value = values(networks["critics"], batch.states, actions)[0]
    weight = config.alpha / jax.lax.stop_gradient(jnp.abs(value).mean())
    return -weight * value.mean() + ((actions - batch.actions) ** 2).mean()


def policy_is_due(update: Int[Array, ""], config: Config) -> Bool[Array, ""]:
    return update % config.policy_every == 0


CRITICS = Group(critic_loss, rate="critic_learning_rate", has_target=True, follows=policy_is_due)
ACTOR = Group(actor_loss, has_target=True, trains=policy_is_due)
METHOD = Method("td3-bc", TD3BCConfig, new_networks, {"critics": CRITICS, "actor": ACTOR}, squashed=True)
