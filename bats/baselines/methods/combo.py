"""COMBO: https://arxiv.org/abs/2102.08363. CQL on a log and on short rollouts of the policy in a learned model.

    batch       logged rows, and rows of rollouts from logged states in the model
    critics     SAC's loss on the whole batch + beta (E_rollouts [log integral exp Q(s, b) db] - E_log [Q(s, a)])

The rollouts are made anew for every batch, with the policy of that moment, each step by a member of the ensemble drawn
at random; COMBO keeps them for some epochs.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bats.baselines.config import COMBOConfig
from bats.baselines.core import Batch, Group, Method, Networks
from bats.baselines.methods import sac
from bats.baselines.methods.cql import soft_maximum
from bats.baselines.model import ScaledDynamics
from bats.baselines.networks import sample_squashed, squared_error, values

LIKELY = 0.5
"""a step with a smaller probability of going on is taken for a termination"""


def logged_rows(config: COMBOConfig) -> int:
    """How many rows of a batch are logged ones: they come first."""
    return max(round(config.real_share * config.batch_size), 1)


def with_rollouts(networks: Networks, batch: Batch, model: ScaledDynamics, key: Array, config: COMBOConfig) -> Batch:
    """The batch with its last rows replaced by rollouts from their states, which restart after a termination."""
    first = logged_rows(config)
    length = config.rollout_length
    count = -(-(config.batch_size - first) // length)
    if count == 0:
        return batch
    starts = batch.states[first : first + count]

    def step(states: Array, step_key: Array) -> tuple[Array, tuple[Array, ...]]:
        action_key, model_key = jax.random.split(step_key)
        actions, _ = sample_squashed(networks["actor"].network, states, action_key)
        next_states, rewards, continues = model.step(states, actions, model_key)
        following = jnp.where((continues < LIKELY)[:, None], starts, next_states)
        return following, (states, actions, rewards, config.gamma * continues, next_states)

    _, steps = jax.lax.scan(step, starts, jax.random.split(key, length))
    rolled = [part.reshape(-1, *part.shape[2:])[: config.batch_size - first] for part in steps]
    names = ("states", "actions", "rewards", "discounts", "next_states")
    joined = {
        name: jnp.concatenate([getattr(batch, name)[:first], new]) for name, new in zip(names, rolled, strict=True)
    }
    return replace(batch, **joined)


def critic_loss(
    networks: Networks, targets: Networks, batch: Batch, key: Array, config: COMBOConfig
) -> Float[Array, ""]:
    target = sac.soft_target(networks, targets, batch, key, config)
    predicted, first = values(networks["critics"], batch.states, batch.actions), logged_rows(config)
    # without rollouts the term is CQL's
    rolled = slice(first if first < config.batch_size else 0, None)
    rollouts, sample_key = (batch.states[rolled], batch.next_states[rolled]), jax.random.fold_in(key, 1)
    unseen = soft_maximum(networks["critics"], networks["actor"].network, *rollouts, sample_key, config)
    gap = unseen.mean(axis=1) - predicted[:, :first].mean(axis=1)
    return squared_error(predicted, target) + config.beta * gap.sum()


METHOD = Method(
    "combo",
    COMBOConfig,
    sac.new_networks,
    {
        "critics": Group(critic_loss, rate="critic_learning_rate", has_target=True),
        "actor": Group(sac.actor_loss),
    },
    squashed=True,
    extend=with_rollouts,
)
