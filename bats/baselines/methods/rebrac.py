"""ReBRAC: https://arxiv.org/abs/2305.09836. TD3+BC with a penalty in the targets and layer norm in the critics.

critics     Q(s, a) -> r + gamma (min Q'(s', a') - beta_2 |a' - the next logged action|^2),  a' = pi'(s') + noise
actor       minimise  -Q(s, pi(s)) / mean |Q| + beta_1 |pi(s) - a|^2,  in every second update
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bats.baselines.config import ReBRACConfig
from bats.baselines.core import Batch, Group, Method, Networks, Sizes
from bats.baselines.methods.td3_bc import noisy_target_actions, policy_is_due
from bats.baselines.networks import new_critics, relu_mlp, squared_error, values


def new_networks(sizes: Sizes, config: ReBRACConfig, key: Array) -> Networks:
    actor_key, critic_key = jax.random.split(key)
    return {
        "actor": relu_mlp((sizes.states, *config.hidden, sizes.actions), actor_key),
        "critics": new_critics(sizes.states, sizes.actions, config.critic_hidden, critic_key, layer_norm=True),
    }


def critic_loss(
    networks: Networks, targets: Networks, batch: Batch, key: Array, config: ReBRACConfig
) -> Float[Array, ""]:
    actions = noisy_target_actions(targets["actor"], batch.next_states, key, config)
    distance = ((actions - batch.next_actions) ** 2).sum(axis=-1)
    value = values(targets["critics"], batch.next_states, actions).min(axis=0) - config.critic_penalty * distance
    target = batch.rewards + batch.discounts * value
    return squared_error(values(networks["critics"], batch.states, batch.actions), target)


def actor_loss(
    networks: Networks, targets: Networks, batch: Batch, key: Array, config: ReBRACConfig
) -> Float[Array, ""]:
    actions = jnp.tanh(networks["actor"](batch.states))
    value = values(networks["critics"], batch.states, actions).min(axis=0)
    weight = 1 / jax.lax.stop_gradient(jnp.abs(value).mean())
    distance = ((actions - batch.actions) ** 2).sum(axis=-1)
    return (config.policy_penalty * distance - weight * value).mean()


CRITICS = Group(critic_loss, rate="critic_learning_rate", has_target=True, follows=policy_is_due)
ACTOR = Group(actor_loss, has_target=True, trains=policy_is_due)
METHOD = Method("rebrac", ReBRACConfig, new_networks, {"critics": CRITICS, "actor": ACTOR}, squashed=True)
