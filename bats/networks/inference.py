"""A trained network in plain NumPy, and the standardisation of its inputs. Needs neither JAX nor jaxtyping."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

Layers = tuple[tuple[np.ndarray, np.ndarray], ...]
"""weight (inputs by outputs) and bias of each layer"""

CONSTANT = 1e-6
"""a number with a smaller std counts as constant and keeps its scale"""


def forward(layers: Layers, inputs: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n outputs"]:
    """What `networks.mlp.MLP` computes."""
    hidden = inputs
    for weight, bias in layers[:-1]:
        hidden = hidden @ weight + bias
        hidden *= sigmoid(hidden)
    weight, bias = layers[-1]
    return hidden @ weight + bias


def sigmoid(values: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    # by way of tanh, which never overflows
    return np.float32(0.5) * np.tanh(np.float32(0.5) * values) + np.float32(0.5)


def mean_and_std(rows: Float[np.ndarray, "n D"]) -> tuple[Float[np.ndarray, "D"], Float[np.ndarray, "D"]]:
    """What inputs are standardised by; constant numbers get a std of 1, so that they are not blown up."""
    mean, std = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
    return mean.astype(np.float32), np.where(std > CONSTANT, std, 1.0).astype(np.float32)
