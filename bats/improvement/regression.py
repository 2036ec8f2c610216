"""Fitting a network to targets, for the critic and for the policy."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from bats.networks.mlp import MLP
from bats.networks.training import Problem, new_state, train

BATCH = 512


class Rows(eqx.Module):
    """Inputs of a network, and what it should make of them."""

    inputs: Float[Array, "n inputs"]
    targets: Float[Array, "n outputs"]


def regress(
    problem: Problem, network: MLP, inputs: Float[np.ndarray, "n _"], targets: Float[np.ndarray, "n _"], *, seed: int
) -> MLP:
    """The network after all updates of the problem's schedule on some rows; its loss takes a network and rows."""
    rows = Rows(*(jax.device_put(part.astype(np.float32)) for part in (inputs, targets)))

    def draw(done: int, count: int) -> Array:
        drawn = np.random.default_rng([seed, done]).integers(0, len(inputs), (count, BATCH))
        return jax.device_put(drawn.astype(np.int32))

    *_, (trained, _, _) = train(problem, new_state(network, problem), rows, draw)
    return trained.params
