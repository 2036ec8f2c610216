"""BEAR: https://arxiv.org/abs/1906.00949. The policy's actions stay near the log's, by a kernel distance of samples.

behaviour   a conditional variational autoencoder of the logged actions
critics     Q(s, a) -> r + gamma max over actions a' of pi of (3/4 min Q'(s', a') + 1/4 max Q'(s', a'))
actor       minimise  -min Q(s, a) + alpha (MMD(s) - threshold); only the second term while it warms up
MMD(s)      maximum mean discrepancy between actions of pi and of the autoencoder, both before their tanh
alpha       raised while MMD exceeds its threshold
"""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bats.baselines.config import BEARConfig
from bats.baselines.core import Batch, Group, Method, Networks, Sizes
from bats.baselines.networks import new_critics, relu_mlp, sample_gaussian, squared_error, values
from bats.networks.mlp import MLP, filled_up

PESSIMISM = 0.75
"""weight of the smaller of two critics in a target"""
LATENT_LIMIT = 0.5
"""the autoencoder decodes latent numbers within this, so that its actions are likely ones"""
MAX_LATENT_LOG_STD, MIN_LATENT_LOG_STD = 15.0, -4.0
MIN_LOG_MULTIPLIER, MAX_LOG_MULTIPLIER = -5.0, 10.0
FAST_MULTIPLE = 128
"""of units in a layer"""
MULTIPLIER_SPEED = 10.0
"""learning rate of the log of the multiplier, in those of the policy: Adam's steps do not depend on a loss's scale"""


class Autoencoder(eqx.Module):
    """Logged actions, given the state."""

    encoder: MLP
    decoder: MLP


class ConstrainedPolicy(eqx.Module):
    """A squashed Gaussian and the multiplier of its constraint, which is tuned with it."""

    network: MLP
    log_multiplier: Float[Array, ""]
    """in units of `MULTIPLIER_SPEED`"""

    @property
    def multiplier(self) -> Float[Array, ""]:
        return jnp.exp(MULTIPLIER_SPEED * self.log_multiplier)


def within_bounds(actor: ConstrainedPolicy) -> ConstrainedPolicy:
    """The multiplier is clipped after each step and not in the loss, where it would have no slope to come back by."""
    low, high = MIN_LOG_MULTIPLIER / MULTIPLIER_SPEED, MAX_LOG_MULTIPLIER / MULTIPLIER_SPEED
    return replace(actor, log_multiplier=jnp.clip(actor.log_multiplier, low, high))


def new_networks(sizes: Sizes, config: BEARConfig, key: Array) -> Networks:
    actor_key, critic_key, encoder_key, decoder_key = jax.random.split(key, 4)
    states, actions, hidden, latent = sizes.states, sizes.actions, config.behaviour_hidden, 2 * sizes.actions
    network = relu_mlp((states, *config.hidden, 2 * actions), actor_key)
    return {
        "behaviour": Autoencoder(
            relu_mlp((states + actions, *hidden, 2 * latent), encoder_key),
            relu_mlp((states + latent, *hidden, actions), decoder_key),
        ),
        "critics": new_critics(states, actions, config.critic_hidden, critic_key),
        "actor": ConstrainedPolicy(network, jnp.zeros((), jnp.float32)),
    }


def behaviour_loss(
    networks: Networks, targets: Networks, batch: Batch, key: Array, config: BEARConfig
) -> Float[Array, ""]:
    """Squared error of the decoded action, and half of the divergence of its latent numbers from normal ones."""
    model = networks["behaviour"]
    code = model.encoder(jnp.concatenate([batch.states, batch.actions], axis=-1))
    mean, raw = jnp.split(code, 2, axis=-1)
    log_std = jnp.clip(raw, MIN_LATENT_LOG_STD, MAX_LATENT_LOG_STD)
    latent = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    decoded = jnp.tanh(model.decoder(jnp.concatenate([batch.states, latent], axis=-1)))
    divergence = -0.5 * (1 + 2 * log_std - mean**2 - jnp.exp(2 * log_std)).mean()
    return ((decoded - batch.actions) ** 2).mean() + 0.5 * divergence


def raw_behaviour(model: Autoencoder, states: Float[Array, "B D"], key: Array, count: int) -> Float[Array, "n B A"]:
    """Likely logged actions before their tanh."""
    size = model.decoder.weights[0].shape[-2] - states.shape[-1]
    latent = jax.random.normal(key, (count, len(states), size))
    latent = jnp.clip(latent, -LATENT_LIMIT, LATENT_LIMIT)
    repeated = jnp.broadcast_to(states, (count, *states.shape))
    # its 750 units would keep a GPU from its fast products of matrices, and there are a hundred rows for each state
    return filled_up(model.decoder, FAST_MULTIPLE)(jnp.concatenate([repeated, latent], axis=-1))


def kernel_distance(one: Float[Array, "n B A"], other: Float[Array, "m B A"], width: float) -> Float[Array, "B"]:
    """Maximum mean discrepancy of two samples of actions in each state, with the kernel exp(-d^2 / (2 width))."""

    def similarity(left: Float[Array, "n B A"], right: Float[Array, "m B A"]) -> Float[Array, "B"]:
        # |l - r|^2 = |l|^2 + |r|^2 - 2 l.r: products of matrices, where all differences would need A times the memory
        products = jnp.einsum("nba,mba->bnm", left, right, precision="highest")
        of_left, of_right = ((sample**2).sum(axis=-1).T for sample in (left, right))
        squares = of_left[:, :, None] + of_right[:, None, :] - 2 * products
        return jnp.exp(-squares / (2 * width)).mean(axis=(1, 2))

    return jnp.sqrt(similarity(one, one) + similarity(other, other) - 2 * similarity(one, other) + 1e-6)


def critic_loss(
    networks: Networks, targets: Networks, batch: Batch, key: Array, config: BEARConfig
) -> Float[Array, ""]:
    raw, _ = sample_gaussian(targets["actor"].network, batch.next_states, key, config.target_actions)
    both = values(targets["critics"], batch.next_states, jnp.tanh(raw))
    value = PESSIMISM * both.min(axis=0) + (1 - PESSIMISM) * both.max(axis=0)
    target = batch.rewards + batch.discounts * value.max(axis=0)
    return squared_error(values(networks["critics"], batch.states, batch.actions), target)


def actor_loss(networks: Networks, targets: Networks, batch: Batch, key: Array, config: BEARConfig) -> Float[Array, ""]:
    own_key, behaviour_key = jax.random.split(key)
    actor, count = networks["actor"], config.sampled_actions
    own, _ = sample_gaussian(actor.network, batch.states, own_key, count)
    logged = raw_behaviour(networks["behaviour"], batch.states, behaviour_key, count)
    excess = kernel_distance(own, logged, config.kernel_width).mean() - config.threshold
    value = values(networks["critics"], batch.states, jnp.tanh(own[0])).min(axis=0).mean()
    loss = jax.lax.stop_gradient(actor.multiplier) * excess - jnp.where(batch.update < config.warm_start, 0.0, value)
    return loss - actor.multiplier * jax.lax.stop_gradient(excess)


GROUPS = {
    "behaviour": Group(behaviour_loss, rate="critic_learning_rate"),
    "critics": Group(critic_loss, rate="critic_learning_rate", has_target=True),
    "actor": Group(actor_loss, has_target=True, project=within_bounds),
}
METHOD = Method("bear", BEARConfig, new_networks, GROUPS, squashed=True)
