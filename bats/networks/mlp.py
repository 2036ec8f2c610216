"""The one network of this package: a fully connected perceptron, in JAX and in plain NumPy.

Its activations are smooth (SiLU), because planning differentiates through it; baselines have ReLU, as published.
Several members are one network whose weights carry a leading member axis, so that a whole ensemble is one matrix
product per layer.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bats.networks.inference import Activation, Layers

NORM_EPSILON = 1e-6
"""added to the variance that a layer norm divides by"""
DRAWS = 2**16
"""random numbers drawn at a time"""


class MLP(eqx.Module):
    """Weights and biases of the layers; with members, `M inputs outputs` and `M 1 outputs`."""

    weights: tuple[Float[Array | np.ndarray, "*M _ _"], ...]
    biases: tuple[Float[Array | np.ndarray, "... _"], ...]
    activation: Activation = eqx.field(static=True, default="silu")
    layer_norm: bool = eqx.field(static=True, default=False)
    """standardise what a hidden layer gives to the next one, whose weights do the rest of a layer norm"""

    def __call__(self, inputs: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
        """One answer for each input; with members, one of each member, whose axis the inputs may have or not."""
        hidden, activate = inputs, jax.nn.silu if self.activation == "silu" else jax.nn.relu
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = activate(hidden @ weight + bias)
            if self.layer_norm:
                hidden = jax.nn.standardize(hidden, epsilon=NORM_EPSILON)
        return hidden @ self.weights[-1] + self.biases[-1]

    def layers(self) -> Layers:
        """The same layers as NumPy arrays, for `inference`."""
        return tuple(zip(map(np.asarray, self.weights), map(np.asarray, self.biases), strict=True))


def filled_up(network: MLP, multiple: int) -> MLP:
    """The same function with a multiple of so many units in each hidden layer; the further units are always 0.

    Products of matrices of such sizes are several times as fast on a GPU. Not for layer norms, which would count them.
    """
    further = [0, *(-weight.shape[-1] % multiple for weight in network.weights[:-1]), 0]

    def fill(array: Array | np.ndarray, *more: int) -> Array:
        """Zeros behind the last axes."""
        return jnp.pad(array, [(0, 0)] * (array.ndim - len(more)) + [(0, count) for count in more])

    weights = tuple(fill(weight, *more) for weight, more in zip(network.weights, pairwise(further), strict=True))
    biases = tuple(fill(bias, more) for bias, more in zip(network.biases, further[1:], strict=True))
    return replace(network, weights=weights, biases=biases)


def new_mlp(sizes: tuple[int, ...], key: Array, *, members: int | None = None) -> MLP:
    """An untrained network with layers of these sizes; with members, each has weights of its own."""
    lead, row = ((), ()) if members is None else ((members,), (1,))
    weights = [
        _truncated_normal(layer_key, (*lead, inputs, outputs)) / math.sqrt(inputs)
        for layer_key, (inputs, outputs) in zip(jax.random.split(key, len(sizes) - 1), pairwise(sizes), strict=True)
    ]
    return MLP(tuple(weights), tuple(jnp.zeros((*lead, *row, outputs)) for outputs in sizes[1:]))


def _truncated_normal(key: Array, shape: tuple[int, ...]) -> Float[Array, "*shape"]:
    """Normal numbers between -2 and 2."""
    # a number depends on the key and its position alone, so one long draw serves all shapes; a program for each shape
    # would take up to a second to compile
    size = math.prod(shape)
    numbers = jax.random.truncated_normal(key, -2.0, 2.0, (-(-size // DRAWS) * DRAWS,))
    numbers.block_until_ready()  # raises a lack of memory; without it, NumPy's view of the missing array would crash
    return jnp.asarray(np.asarray(numbers)[:size].reshape(shape))
