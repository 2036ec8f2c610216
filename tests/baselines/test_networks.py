"""Squashed Gaussians, pairs of critics, and layer norm."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bats.baselines.networks import (
    INSIDE,
    mean_and_log_std,
    new_critics,
    relu_mlp,
    sample_squashed,
    squashed_log_prob,
    values,
)
from bats.networks.mlp import MLP
from bats.policy.policy import MAX_LOG_STD, MIN_LOG_STD
from tests.baselines.hand_made import KEY, close, gaussian, jitted, log_squashed


@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.3), (0.7, 1.0), (-0.5, 0.05)])
def test_a_squashed_density_integrates_to_1(mean: float, std: float) -> None:
    edges = np.tanh(np.linspace(-3.7, 3.7, 20_001))  # finer where tanh is flat
    middles = (edges[1:] + edges[:-1]) / 2
    states = jnp.zeros((len(middles), 1))
    density = np.exp(jitted(squashed_log_prob)(gaussian(mean, std), states, jnp.asarray(middles, jnp.float32)[:, None]))
    assert np.sum(np.asarray(density, np.float64) * np.diff(edges)) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("count", [None, 4])
def test_a_sample_comes_with_the_log_probability_of_its_action(count: int | None) -> None:
    policy = relu_mlp((3, 8, 4), KEY)
    states = jax.random.normal(KEY, (5, 3))
    actions, log_prob = jitted(sample_squashed)(policy, states, KEY, count)
    assert actions.shape == (5, 2) if count is None else (count, 5, 2)
    assert np.asarray(log_prob) == close(jitted(squashed_log_prob)(policy, states, actions), 1e-3)


def test_the_log_probability_of_a_saturated_action_is_exact() -> None:
    """Beyond 9, tanh is 1 in single precision, and 1 - tanh^2 would be 0."""
    _, log_prob = sample_squashed(gaussian(20.0, 0.5), jnp.zeros((1, 1)), KEY)
    raw = 20 + 0.5 * np.asarray(jax.random.normal(KEY, (1, 1)), np.float64)
    # 1 - tanh(u)^2 = 4 exp(-2 u) for large u
    at_zero = log_squashed(raw - 20.0, 0.0, 0.5) + np.log(1 - np.tanh(raw - 20.0) ** 2)
    assert np.asarray(log_prob) == close((at_zero - np.log(4) + 2 * raw)[:, 0])


def test_a_logged_action_at_its_bound_counts_as_one_just_inside() -> None:
    policy, states = gaussian(0.0, 0.5), jnp.zeros((2, 1))
    found = squashed_log_prob(policy, states, jnp.array([[1.0], [-1.0]]))
    assert pytest.approx(0.999) == INSIDE
    assert np.asarray(found) == close(np.full(2, log_squashed(np.arctanh(INSIDE), 0.0, 0.5)), 1e-3)


def test_stds_have_bounds() -> None:
    policy = MLP((jnp.zeros((1, 2)),), (jnp.array([0.0, -99.0]),), "relu")
    assert float(mean_and_log_std(policy, jnp.zeros((1, 1)))[1][0, 0]) == close(MIN_LOG_STD)
    policy = MLP((jnp.zeros((1, 2)),), (jnp.array([0.0, 99.0]),), "relu")
    assert float(mean_and_log_std(policy, jnp.zeros((1, 1)))[1][0, 0]) == close(MAX_LOG_STD)


def test_values_are_of_each_action_in_its_state_by_each_critic() -> None:
    critics = new_critics(2, 1, (8,), KEY)
    states, actions = jax.random.normal(KEY, (3, 2)), jax.random.normal(KEY, (4, 3, 1))
    found = jitted(values)(critics, states, actions)
    assert found.shape == (2, 4, 3)
    row = jnp.concatenate([states[1], actions[2, 1]])[None]
    assert np.asarray(found[:, 2, 1]) == close(critics(row)[:, 0, 0])


def test_layer_norm_is_relu_then_standardised_then_the_next_layer() -> None:
    """A learned scale g and shift b are part of the next layer: W (g x + b) + c = (W g) x + (W b + c)."""
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=shape) for shape in ((3, 8), (8, 5), (5, 2))]
    biases = [rng.normal(size=size) for size in (8, 5, 2)]
    scales, shifts = ([rng.normal(size=size) for size in (8, 5)] for _ in range(2))
    inputs = rng.normal(size=(6, 3))

    hidden = inputs
    for layer in range(2):
        hidden = np.maximum(hidden @ weights[layer] + biases[layer], 0)
        mean, variance = hidden.mean(axis=1, keepdims=True), hidden.var(axis=1, keepdims=True)
        hidden = (hidden - mean) / np.sqrt(variance + 1e-6) * scales[layer] + shifts[layer]
    expected = hidden @ weights[2] + biases[2]

    folded = [weights[0], *(scale[:, None] * weight for scale, weight in zip(scales, weights[1:], strict=True))]
    moved = [
        biases[0],
        *(shift @ weight + bias for shift, weight, bias in zip(shifts, weights[1:], biases[1:], strict=True)),
    ]
    as_arrays = (tuple(jnp.asarray(part, jnp.float32) for part in parts) for parts in (folded, moved))
    network = MLP(*as_arrays, "relu", layer_norm=True)
    assert np.asarray(network(jnp.asarray(inputs, jnp.float32))) == close(expected, 1e-4)
