"""Networks whose answers can be worked out by hand, and batches of a few rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bats.baselines.core import Batch
from bats.baselines.model import ScaledDynamics
from bats.baselines.networks import SharedStdPolicy
from bats.model.ensemble import Dynamics, Kind, Networks, Standardizer
from bats.networks.mlp import MLP
from bats.policy.policy import MAX_LOG_STD, MIN_LOG_STD

KEY = jax.random.key(3)


jitted = partial(
    eqx.filter_jit,
    # compiling takes longer than running, so the compiler takes little trouble
    compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True},
)


def close(expected: object, tolerance: float = 1e-5) -> object:
    """Equal to so many digits, in sizes of about 1."""
    return pytest.approx(np.asarray(expected), rel=tolerance, abs=tolerance)


def linear(weight: Sequence[Sequence[float]], bias: Sequence[float]) -> MLP:
    """x -> x weight + bias."""
    return MLP((jnp.asarray(weight, jnp.float32),), (jnp.asarray(bias, jnp.float32),), "relu")


def linear_critics(*members: tuple[float, float, float]) -> MLP:
    """Two critics Q(s, a) = of_state s + of_action a + constant, for states and actions of one number."""
    weights = jnp.asarray([[[of_state], [of_action]] for of_state, of_action, _ in members], jnp.float32)
    biases = jnp.asarray([[[constant]] for _, _, constant in members], jnp.float32)
    return MLP((weights,), (biases,), "relu")


def gaussian(mean: float, std: float, slope: float = 0.0) -> MLP:
    """A policy of one action with mean slope s + mean and a fixed std, before any tanh."""
    return linear([[slope, 0.0]], [mean, raw_std(std)])


def gaussian_of_one_std(mean: float, std: float, slope: float = 0.0) -> SharedStdPolicy:
    """The same as a policy whose std does not depend on the state."""
    return SharedStdPolicy(linear([[slope]], [mean]), jnp.array([raw_std(std)], jnp.float32))


def raw_std(std: float) -> float:
    """What a network answers for a std."""
    share = (math.log(std) - MIN_LOG_STD) / (MAX_LOG_STD - MIN_LOG_STD)
    return math.log(share / (1 - share))


def log_normal(value: np.ndarray, mean: np.ndarray | float, std: float) -> np.ndarray:
    """The log-density of a normal distribution."""
    return -0.5 * ((value - mean) / std) ** 2 - math.log(std * math.sqrt(2 * math.pi))


def log_squashed(raw: np.ndarray, mean: np.ndarray | float, std: float) -> np.ndarray:
    """The log-density of tanh(raw), where raw is normal: that of raw over the slope of tanh."""
    return log_normal(raw, mean, std) - np.log(1 - np.tanh(raw) ** 2)


def noise(key: jax.Array, *shape: int) -> np.ndarray:
    """The normal numbers that a loss draws with this key."""
    return np.asarray(jax.random.normal(key, shape), np.float64)


def one_number_batch(
    states: Sequence[float],
    actions: Sequence[float],
    rewards: Sequence[float],
    next_states: Sequence[float],
    *,
    discounts: Sequence[float] | None = None,
    next_actions: Sequence[float] | None = None,
    update: int = 0,
) -> Batch:
    """Rows with states and actions of one number; the discount is 0.5, unless given."""
    columns = (states, actions, next_states, actions if next_actions is None else next_actions)
    state, action, after, action_after = (jnp.asarray(column, jnp.float32)[:, None] for column in columns)
    kept = [0.5] * len(states) if discounts is None else discounts
    numbers = (jnp.asarray(column, jnp.float32) for column in (rewards, kept))
    return Batch(state, action, *numbers, after, action_after, jnp.int32(update))


def known_model(push: float, reward: MLP, termination: MLP | None) -> Dynamics:
    """A model of two equal members, without noise: the state grows by `push` times the action."""

    def members(network: MLP) -> MLP:
        weights = tuple(jnp.stack([weight] * 2) for weight in network.weights)
        return MLP(weights, tuple(jnp.stack([bias[None]] * 2) for bias in network.biases))

    bound = jnp.full((2, 1, 1), -40.0)
    networks = Networks(
        delta=members(linear([[0.0, 0.0], [push, 0.0]], [0.0, -40.0])),
        linear=None,
        max_log_variance=bound,
        min_log_variance=bound,
        reward=members(reward),
        termination=None if termination is None else members(termination),
        rare=None,
    )
    ends = termination is not None
    kind = Kind(1, 1, None, terminations=ends, binary_reward=False, rare_rewards=False, rare_rewards_terminate=False)
    return Dynamics(networks, *[Standardizer(jnp.zeros(1), jnp.ones(1))] * 5, kind)


def push_model(
    *, mean: float = 0.0, std: float = 1.0, centre: float = 0.0, half: float = 1.0, end_log_odds: float = 0.0
) -> ScaledDynamics:
    """The action is added to the state, the reward is 10 s', and half of all steps end."""
    dynamics = known_model(1.0, linear([[0.0], [0.0], [10.0]], [0.0]), linear([[0.0]] * 3, [end_log_odds]))
    return ScaledDynamics(dynamics, *(jnp.array([number]) for number in (mean, std, centre, half)))


TWO_ROWS = one_number_batch([1.0, -1.0], [0.5, -0.5], [1.0, 2.0], [0.0, 2.0], discounts=[0.5, 0.0])
"""the second row ends the task"""
