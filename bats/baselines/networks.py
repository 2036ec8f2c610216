"""What the methods build on: policies that answer between -1 and 1, pairs of critics, and losses of values."""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bats.networks.mlp import MLP, new_mlp
from bats.policy.policy import MAX_LOG_STD, MIN_LOG_STD

Actions = Float[Array, "... A"]
"""one for each state, or several, in front"""
PAIR = 2
INSIDE = 1 - 1e-3
"""a logged action at its bound counts as this, where the inverse of tanh is needed"""
HALF_LOG_TAU = 0.5 * math.log(math.tau)


def relu_mlp(sizes: tuple[int, ...], key: Array, *, members: int | None = None, layer_norm: bool = False) -> MLP:
    """An untrained network as the papers have it."""
    network = new_mlp(sizes, key, members=members)
    return MLP(network.weights, network.biases, "relu", layer_norm)


class SharedStdPolicy(eqx.Module):
    """A Gaussian policy with one std for all states."""

    network: MLP
    """of the means"""
    raw_std: Float[Array, "A"]
    """its log lies between its limits by the sigmoid of this number"""

    def __call__(self, states: Float[Array, "*batch D"]) -> Float[Array, "*batch _"]:
        mean = self.network(states)
        return jnp.concatenate([mean, jnp.broadcast_to(self.raw_std, mean.shape)], axis=-1)


def new_shared_std_policy(states: int, hidden: tuple[int, ...], actions: int, key: Array) -> SharedStdPolicy:
    """Untrained, with a std of 1."""
    raw = math.log(-MIN_LOG_STD / MAX_LOG_STD)  # log std 0
    return SharedStdPolicy(relu_mlp((states, *hidden, actions), key), jnp.full(actions, raw, jnp.float32))


def mean_and_log_std(policy: MLP | SharedStdPolicy, states: Float[Array, "*batch D"]) -> tuple[Actions, Actions]:
    """What a Gaussian policy answers, before any tanh."""
    mean, raw = jnp.split(policy(states), 2, axis=-1)
    return mean, MIN_LOG_STD + (MAX_LOG_STD - MIN_LOG_STD) * jax.nn.sigmoid(raw)


def gaussian_log_prob(actions: Actions, mean: Actions, log_std: Actions) -> Float[Array, "..."]:
    return -(0.5 * ((actions - mean) * jnp.exp(-log_std)) ** 2 + log_std + HALF_LOG_TAU).sum(axis=-1)


def sample_gaussian(
    policy: MLP, states: Float[Array, "*batch D"], key: Array, count: int | None = None
) -> tuple[Actions, Float[Array, "..."]]:
    """Actions before any tanh, and their log-probability; with a count, so many for each state, in front."""
    mean, log_std = mean_and_log_std(policy, states)
    noise = jax.random.normal(key, mean.shape if count is None else (count, *mean.shape))
    raw = mean + jnp.exp(log_std) * noise
    return raw, gaussian_log_prob(raw, mean, log_std)


def sample_squashed(
    policy: MLP, states: Float[Array, "*batch D"], key: Array, count: int | None = None
) -> tuple[Actions, Float[Array, "..."]]:
    """The same with a tanh."""
    raw, log_prob = sample_gaussian(policy, states, key, count)
    return jnp.tanh(raw), log_prob - log_slope_of_tanh(raw).sum(axis=-1)


def squashed_log_prob(policy: MLP, states: Float[Array, "*batch D"], actions: Actions) -> Float[Array, "..."]:
    """The log-probability of given actions under a squashed Gaussian."""
    raw = jnp.arctanh(jnp.clip(actions, -INSIDE, INSIDE))
    return gaussian_log_prob(raw, *mean_and_log_std(policy, states)) - log_slope_of_tanh(raw).sum(axis=-1)


def log_slope_of_tanh(raw: Actions) -> Actions:
    """log(1 - tanh(u)^2), without loss of digits where tanh is close to 1."""
    return 2 * (math.log(2) - raw - jax.nn.softplus(-2 * raw))


def new_critics(states: int, actions: int, hidden: tuple[int, ...], key: Array, *, layer_norm: bool = False) -> MLP:
    return relu_mlp((states + actions, *hidden, 1), key, members=PAIR, layer_norm=layer_norm)


def values(critics: MLP, states: Float[Array, "*batch D"], actions: Actions) -> Float[Array, "two ..."]:
    """The value of each action by each critic."""
    batch = actions.shape[:-1]
    states = jnp.broadcast_to(states, (*batch, states.shape[-1]))
    rows = jnp.concatenate([states, actions], axis=-1).reshape(math.prod(batch), -1)
    return critics(rows).reshape(PAIR, *batch)


def squared_error(predicted: Float[Array, "two B"], target: Float[Array, "B"]) -> Float[Array, ""]:
    """Of each critic against one target that is held fixed, summed over critics and averaged over rows."""
    return ((predicted - jax.lax.stop_gradient(target)) ** 2).sum(axis=0).mean()


class SoftPolicy(eqx.Module):
    """A squashed Gaussian and the weight of its entropy, which is tuned with it."""

    network: MLP
    log_temperature: Float[Array, ""]
