"""Implicit Q-learning: https://arxiv.org/abs/2110.06169. No action outside the log is ever evaluated.

value       V(s) -> the tau-expectile of min Q'(s, a) over logged actions
critics     Q(s, a) -> r + gamma V(s')
actor       clone logged actions, each weighted by min(exp(beta (min Q'(s, a) - V(s))), 100); a Gaussian around the
            tanh of a network, with one std for all states
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from bats.baselines.config import IQLConfig
from bats.baselines.core import Batch, Group, Method, Networks, Sizes
from bats.baselines.networks import (
    PAIR,
    SharedStdPolicy,
    gaussian_log_prob,
    mean_and_log_std,
    new_critics,
    new_shared_std_policy,
    relu_mlp,
    squared_error,
    values,
)
from bats.networks.mlp import MLP


def new_networks(sizes: Sizes, config: IQLConfig, key: Array) -> Networks:
    actor_key, critic_key, value_key = jax.random.split(key, 3)
    states, actions, hidden = sizes.states, sizes.actions, config.critic_hidden
    actor: MLP | SharedStdPolicy
    if sizes.discrete:  # a critic has an output for each action
        critics = relu_mlp((states, *hidden, actions), critic_key, members=PAIR)
        actor = relu_mlp((states, *config.hidden, actions), actor_key)
    else:
        critics = new_critics(states, actions, hidden, critic_key)
        actor = new_shared_std_policy(states, config.hidden, actions, actor_key)
    return {"actor": actor, "critics": critics, "value": relu_mlp((states, *hidden, 1), value_key)}


def logged_values(critics: MLP, batch: Batch) -> Float[Array, "two B"]:
    """The value of each logged action by each critic."""
    if batch.actions.ndim > 1:
        return values(critics, batch.states, batch.actions)
    return jnp.take_along_axis(critics(batch.states), batch.actions[None, :, None], axis=-1)[..., 0]


def advantage(networks: Networks, targets: Networks, batch: Batch) -> Float[Array, "B"]:
    return logged_values(targets["critics"], batch).min(axis=0) - networks["value"](batch.states)[:, 0]


def value_loss(networks: Networks, targets: Networks, batch: Batch, key: Array, config: IQLConfig) -> Float[Array, ""]:
    gap = advantage(networks, targets, batch)
    return (jnp.where(gap > 0, config.expectile, 1 - config.expectile) * gap**2).mean()


def critic_loss(networks: Networks, targets: Networks, batch: Batch, key: Array, config: IQLConfig) -> Float[Array, ""]:
    target = batch.rewards + batch.discounts * networks["value"](batch.next_states)[:, 0]
    return squared_error(logged_values(networks["critics"], batch), target)


def actor_loss(networks: Networks, targets: Networks, batch: Batch, key: Array, config: IQLConfig) -> Float[Array, ""]:
    gap = jax.lax.stop_gradient(advantage(networks, targets, batch))
    weight = jnp.minimum(jnp.exp(config.inverse_temperature * gap), config.max_weight)
    if batch.actions.ndim == 1:
        logits = networks["actor"](batch.states)
        return (weight * optax.softmax_cross_entropy_with_integer_labels(logits, batch.actions)).mean()
    mean, log_std = mean_and_log_std(networks["actor"], batch.states)
    return -(weight * gaussian_log_prob(batch.actions, jnp.tanh(mean), log_std)).mean()


GROUPS = {
    "value": Group(value_loss, rate="critic_learning_rate"),
    "critics": Group(critic_loss, rate="critic_learning_rate", has_target=True),
    "actor": Group(actor_loss, decays=True),
}
METHOD = Method("iql", IQLConfig, new_networks, GROUPS, squashed=True, discrete=True)
