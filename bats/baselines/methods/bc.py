"""Behaviour cloning: maximise the log-likelihood of the logged actions.

    minimise  E_(s, a) [-log pi(a | s)],  pi a Gaussian, or a categorical distribution of discrete actions

A Gaussian has the same mean as a squared error would give, and its std besides.
"""

from __future__ import annotations

import optax
from jaxtyping import Array, Float

from bats.baselines.config import BCConfig
from bats.baselines.core import Batch, Group, Method, Networks, Sizes
from bats.baselines.networks import gaussian_log_prob, mean_and_log_std, relu_mlp


def new_networks(sizes: Sizes, config: BCConfig, key: Array) -> Networks:
    outputs = sizes.actions if sizes.discrete else 2 * sizes.actions
    return {"actor": relu_mlp((sizes.states, *config.hidden, outputs), key)}


def actor_loss(networks: Networks, targets: Networks, batch: Batch, key: Array, config: BCConfig) -> Float[Array, ""]:
    if batch.actions.ndim == 1:
        logits = networks["actor"](batch.states)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch.actions).mean()
    return -gaussian_log_prob(batch.actions, *mean_and_log_std(networks["actor"], batch.states)).mean()


METHOD = Method("bc", BCConfig, new_networks, {"actor": Group(actor_loss)}, squashed=False, discrete=True)
