"""Conservative Q-learning, CQL(H): https://arxiv.org/abs/2006.04779. SAC with a term that lowers unseen actions.

    critics     SAC's loss + alpha E_s [log integral exp Q(s, b) db - Q(s, a)],  a logged
    alpha       multiplied by a factor that is raised while the gap in brackets exceeds its target

The integral is estimated with actions that are drawn uniformly, from pi(. | s) and from pi(. | s'), each divided by its
density. As in published code it is their sum and not their mean, so that the gap is larger by the log of their number.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bats.baselines.config import COMBOConfig, CQLConfig
from bats.baselines.core import Batch, Group, Method, Networks, Sizes
from bats.baselines.methods import sac
from bats.baselines.networks import sample_squashed, squared_error, values
from bats.networks.mlp import MLP

MAX_MULTIPLIER = 1e6


class ConservativeCritics(eqx.Module):
    """Critics and the factor of their conservative term, which is tuned with them."""

    network: MLP
    log_multiplier: Float[Array, ""]


def new_networks(sizes: Sizes, config: CQLConfig, key: Array) -> Networks:
    networks = sac.new_networks(sizes, config, key)
    return {**networks, "critics": ConservativeCritics(networks["critics"], jnp.ones((), jnp.float32))}


def plain(networks: Networks) -> Networks:
    """The same networks as SAC has them."""
    return {name: getattr(group, "network", group) if name == "critics" else group for name, group in networks.items()}


def soft_maximum(
    critics: MLP,
    actor: MLP,
    states: Float[Array, "B D"],
    next_states: Float[Array, "B D"],
    key: Array,
    config: CQLConfig | COMBOConfig,
) -> Float[Array, "two B"]:
    """log of the sum of exp Q(s, b) / density over sampled actions b."""
    uniform_key, own_key, next_key = jax.random.split(key, 3)
    own, own_log_prob = sample_squashed(actor, states, own_key, config.sampled_actions)
    following, next_log_prob = sample_squashed(actor, next_states, next_key, config.sampled_actions)
    uniform = jax.random.uniform(uniform_key, own.shape, minval=-1.0, maxval=1.0)
    actions = jax.lax.stop_gradient(jnp.concatenate([uniform, own, following]))
    densities = [jnp.full_like(own_log_prob, -own.shape[-1] * math.log(2.0)), own_log_prob, next_log_prob]
    weighted = values(critics, states, actions) - jax.lax.stop_gradient(jnp.concatenate(densities))
    return jax.nn.logsumexp(weighted, axis=1)


def critic_loss(networks: Networks, targets: Networks, batch: Batch, key: Array, config: CQLConfig) -> Float[Array, ""]:
    critics = networks["critics"]
    target = sac.soft_target(networks, plain(targets), batch, key, config)
    logged = values(critics.network, batch.states, batch.actions)
    actor, sample_key = networks["actor"].network, jax.random.fold_in(key, 1)
    unseen = soft_maximum(critics.network, actor, batch.states, batch.next_states, sample_key, config)
    gap = (unseen - logged).mean(axis=1)
    loss = squared_error(logged, target)
    if config.target_gap is None:
        return loss + config.alpha * gap.sum()
    factor = jnp.clip(jnp.exp(critics.log_multiplier), 0.0, MAX_MULTIPLIER)
    excess = config.alpha * (gap - config.target_gap)
    # the critics descend the term, and its factor ascends it
    return loss + (jax.lax.stop_gradient(factor) * excess).sum() - factor * jax.lax.stop_gradient(excess).mean()


def actor_loss(networks: Networks, targets: Networks, batch: Batch, key: Array, config: CQLConfig) -> Float[Array, ""]:
    return sac.actor_loss(plain(networks), targets, batch, key, config)


CRITICS = Group(critic_loss, rate="critic_learning_rate", has_target=True)
METHOD = Method("cql", CQLConfig, new_networks, {"critics": CRITICS, "actor": Group(actor_loss)}, squashed=True)
