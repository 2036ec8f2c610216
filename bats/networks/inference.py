"""A trained network in plain NumPy, and the standardisation of its inputs. Needs neither JAX nor jaxtyping."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from bats.errors import SettingError

if TYPE_CHECKING:
    from jaxtyping import Float

Layers = tuple[tuple[np.ndarray, np.ndarray], ...]
"""weight (inputs by outputs) and bias of each layer"""
Activation = Literal["silu", "relu"]
"""of the hidden layers"""

CONSTANT = 1e-6
"""a number with a smaller std counts as constant and keeps its scale"""

LARGEST = 1e37
"""no number that a network computes may be larger, far enough below the largest in single precision"""
MIN_REACH = 1000.0
"""standardised inputs up to this must not make any number that large: a network of larger weights is refused"""


def forward(
    layers: Layers, inputs: Float[np.ndarray, "n D"], activation: Activation = "silu"
) -> Float[np.ndarray, "n outputs"]:
    """What `networks.mlp.MLP` computes."""
    hidden = inputs
    for weight, bias in layers[:-1]:
        hidden = hidden @ weight + bias
        hidden *= sigmoid(hidden) if activation == "silu" else hidden > 0
    weight, bias = layers[-1]
    return hidden @ weight + bias


def sigmoid(values: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    # by way of tanh, which never overflows
    return np.float32(0.5) * np.tanh(np.float32(0.5) * values) + np.float32(0.5)


def mean_and_std(rows: Float[np.ndarray, "n D"]) -> tuple[Float[np.ndarray, "D"], Float[np.ndarray, "D"]]:
    """What inputs are standardised by; constant numbers get a std of 1, so that they are not blown up."""
    mean, std = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
    return mean.astype(np.float32), np.where(std > CONSTANT, std, 1.0).astype(np.float32)


def single_floats(name: str, array: np.ndarray, rank: int) -> Float[np.ndarray, "*shape"]:
    """An array in single precision; `SettingError` unless it has finite floats and so many dimensions."""
    if not (isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.ndim == rank):
        found = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise SettingError(f"`{name}` must be an array of floats with {rank} dimensions; got {found}.")
    with np.errstate(over="ignore"):
        single = array.astype(np.float32, copy=False)
    if not np.isfinite(single).all():
        raise SettingError(f"`{name}` must have finite numbers in single precision.")
    return single


def single_layers(
    weights: Sequence[np.ndarray], biases: Sequence[np.ndarray], *, inputs: int, outputs: int | None = None
) -> Layers:
    """Layers in single precision; `SettingError` unless they are finite and fit together."""
    if not len(weights) == len(biases) > 0:
        raise SettingError(f"At least one layer is needed, and a bias for each weight; got {len(weights)} weights.")
    layers = tuple(
        (single_floats(f"weights[{layer}]", weight, 2), single_floats(f"biases[{layer}]", bias, 1))
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True))
    )
    sizes = [inputs, *(len(bias) for _, bias in layers)]
    if [weight.shape for weight, _ in layers] != list(pairwise(sizes)) or outputs not in (None, sizes[-1]):
        last = "" if outputs is None else f", the last must give {outputs} outputs"
        ends = f"the first must take {inputs} inputs{last}"
        raise SettingError(f"Layer shapes do not match: {ends}, and each output size must be the next input size.")
    return layers


def input_limit(layers: Layers, *, scale: float = 1.0) -> np.float32:
    """How large inputs may be for no number in the network, nor `scale` times its outputs, to exceed `LARGEST`.

    The weights of a layer bound its outputs, and no activation makes a number larger. Below the limit nothing
    overflows, in whatever order the products are summed. `SettingError` if the limit would be below `MIN_REACH`.
    """
    slope, offset, limit = 1.0, 0.0, LARGEST
    for layer, (weight, bias) in enumerate(layers, start=1):
        total = float(np.abs(weight).sum(axis=0, dtype=np.float64).max(initial=0.0))
        slope, offset = slope * total, offset * total + float(np.abs(bias).max(initial=0.0))
        largest = LARGEST / max(scale, 1.0) if layer == len(layers) else LARGEST
        limit = min(limit, (largest - offset) / max(slope, 1.0))
        if limit < MIN_REACH:
            raise SettingError(f"The weights up to layer {layer} are so large that its outputs could overflow.")
    return np.float32(limit)
