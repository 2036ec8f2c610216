"""BRAC-v, with the primal form of the KL divergence: https://arxiv.org/abs/1911.11361.

behaviour   a model b of the log's policy, trained first, by behaviour cloning with SAC's bonus for its entropy
divergence  D(s) = E [log pi(a | s) - log b(a | s)],  a from pi
critics     SAC's, but the value of the next state is lowered by alpha D(s')
actor       SAC's loss + alpha D(s); only D(s) while it warms up
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bats.baselines.config import BRACConfig
from bats.baselines.core import Batch, Group, Method, Networks, Sizes
from bats.baselines.methods import sac
from bats.baselines.networks import (
    SoftPolicy,
    gaussian_log_prob,
    mean_and_log_std,
    relu_mlp,
    sample_gaussian,
    sample_squashed,
    squared_error,
    squashed_log_prob,
    values,
)


def new_networks(sizes: Sizes, config: BRACConfig, key: Array) -> Networks:
    network = relu_mlp((sizes.states, *config.hidden, 2 * sizes.actions), jax.random.fold_in(key, 1))
    return {**sac.new_networks(sizes, config, key), "behaviour": SoftPolicy(network, jnp.zeros((), jnp.float32))}


def divergence(networks: Networks, states: Float[Array, "B D"], key: Array, config: BRACConfig) -> Float[Array, "B"]:
    """An estimate of the KL divergence between the policy and the log's."""
    # before the tanh, which changes no divergence and has no inverse where it is 1
    raw, log_prob = sample_gaussian(networks["actor"].network, states, key, config.sampled_actions)
    of_log = gaussian_log_prob(raw, *mean_and_log_std(networks["behaviour"].network, states))
    return (log_prob - of_log).mean(axis=0)


def behaviour_loss(
    networks: Networks, targets: Networks, batch: Batch, key: Array, config: BRACConfig
) -> Float[Array, ""]:
    behaviour, tuned = networks["behaviour"], replace(config, temperature=None, target_entropy=None)
    _, log_prob = sample_squashed(behaviour.network, batch.states, key)
    likelihood = squashed_log_prob(behaviour.network, batch.states, batch.actions)
    loss = (sac.temperature(behaviour, tuned) * log_prob - likelihood).mean()
    return loss + sac.temperature_loss(behaviour, log_prob, batch.actions.shape[1], tuned)


def critic_loss(
    networks: Networks, targets: Networks, batch: Batch, key: Array, config: BRACConfig
) -> Float[Array, ""]:
    penalty = config.penalty * divergence(networks, batch.next_states, jax.random.fold_in(key, 1), config)
    target = sac.soft_target(networks, targets, batch, key, config) - batch.discounts * penalty
    return squared_error(values(networks["critics"], batch.states, batch.actions), target)


def actor_loss(networks: Networks, targets: Networks, batch: Batch, key: Array, config: BRACConfig) -> Float[Array, ""]:
    penalty = divergence(networks, batch.states, jax.random.fold_in(key, 1), config).mean()
    soft = sac.actor_loss(networks, targets, batch, key, config) + config.penalty * penalty
    warm = batch.update < config.behaviour_updates + config.warm_start
    return jnp.where(warm, penalty, soft)


def is_first(update: Int[Array, ""], config: BRACConfig) -> Bool[Array, ""]:
    return update < config.behaviour_updates


def is_later(update: Int[Array, ""], config: BRACConfig) -> Bool[Array, ""]:
    return update >= config.behaviour_updates


GROUPS = {
    "behaviour": Group(behaviour_loss, rate="behaviour_learning_rate", trains=is_first),
    "critics": Group(critic_loss, rate="critic_learning_rate", has_target=True, trains=is_later),
    "actor": Group(actor_loss, trains=is_later),
}
METHOD = Method("brac-v", BRACConfig, new_networks, GROUPS, squashed=True)
