"""Behaviour cloning: a network learns the actions of demonstrations.

    continuous actions      Gaussian, negative log-likelihood, censored at the action bounds
    discrete actions        categorical, cross-entropy

A logged action is often what a controller wanted plus a disturbance, clipped at the bounds. Its plain mean falls short
of the bound that the controller wanted; the censored likelihood, where an action at its bound counts as that or beyond,
does not.

Demonstrations of some rollouts are held out. They choose the weights that are kept, and nothing else. Of few
demonstrations none are held out: each may be the only one of its kind, as in small discrete worlds.
"""

from __future__ import annotations

import math
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from bats.arrays import Progress, no_progress
from bats.config import CloningConfig
from bats.errors import DataError
from bats.networks.held_out import SEGMENT, split_groups
from bats.networks.inference import mean_and_std
from bats.networks.mlp import MLP, new_mlp
from bats.networks.training import Problem, Schedule, new_state, rows_on_device, train
from bats.policy.demonstrations import Demonstrations
from bats.policy.policy import MAX_LOG_STD, MIN_LOG_STD, Policy
from bats.storage.json_records import to_plain
from bats.streams import Stream, generator

LEARNING_RATE, WARM_UP = 1e-3, 0.02
EVALUATE_EVERY = 1000
HELD_OUT_SHARE = 0.1
"""of the rollouts"""
MIN_TO_SPLIT = 1000
"""demonstrations below which none are held out"""
AT_BOUND = 1e-6
"""an action within this of its bound, in halves of the range, is at it"""
HALF_LOG_TAU = 0.5 * math.log(math.tau)


class _Rows(eqx.Module):
    """Demonstrations on the device."""

    states: Float[Array, "n D"]
    """standardised"""
    actions: Float[Array, "n A"] | Int[Array, "n"]
    """continuous ones scaled to -1 … 1 between their bounds"""
    cumulative: Float[Array, "n"]
    """cumulative weight of the rows, to draw by; it does not grow where rows are filled up"""


def clone(
    demonstrations: Demonstrations, config: CloningConfig, *, seed: int, progress: Progress = no_progress
) -> Policy:
    """Trains a network on demonstrations and keeps the weights that do best on those held out.

    The same seed gives the same weights on the same machine.
    """
    rows = demonstrations
    if len(rows) == 0:
        raise DataError("at least one row to clone", "none")
    held_out = held_out_rows(rows.group, seed=seed) if len(rows) >= MIN_TO_SPLIT else np.zeros(len(rows), dtype=bool)
    mean, std = mean_and_std(rows.states[~held_out])
    actions = rows.actions
    if rows.action_count is None:
        half = np.where(rows.high > rows.low, (rows.high - rows.low) / 2, 1.0)
        actions = ((rows.actions - (rows.low + rows.high) / 2) / half).astype(np.float32)
    scaled = replace(rows, states=(rows.states - mean) / std, actions=actions)
    training = _on_device(scaled, ~held_out)
    validation = _on_device(scaled, held_out) if held_out.any() else training

    def draw(done: int, count: int) -> Array:
        return jax.random.split(jax.random.fold_in(jax.random.key(seed), done), count)

    schedule = Schedule(LEARNING_RATE, config.updates, WARM_UP)
    problem = Problem(_training_loss, schedule, config, _validation_error, evaluate_every=EVALUATE_EVERY)
    outputs = rows.action_count or 2 * len(rows.low)
    state = initial = new_state(new_mlp((len(mean), *config.hidden, outputs), jax.random.key(seed)), problem)
    for state, _, error in train(problem, initial, (training, validation), draw):
        if not np.isfinite(error):
            raise DataError("a finite validation error while cloning", "an error that is not finite")
        progress(f"cloning (validation error {float(state.best_error):.3g})", int(state.update), config.updates)
    # the settings are plain, as they are read from the file
    card = {"cloning": to_plain(config), "seed": seed, "rows": len(rows), "validation_error": float(state.best_error)}
    return Policy(
        weights=tuple(map(np.asarray, state.best.weights)),
        biases=tuple(map(np.asarray, state.best.biases)),
        mean=mean,
        std=std,
        low=rows.low.astype(np.float32),
        high=rows.high.astype(np.float32),
        action_count=rows.action_count,
        card=card,
    )


def held_out_rows(group: Int[np.ndarray, "n"], *, seed: int) -> Bool[np.ndarray, "n"]:
    """Which rows are held out: all of some rollouts, or whole segments where few rollouts have rows of their own."""
    if len(np.unique(group)) * HELD_OUT_SHARE < 1:
        group = np.arange(len(group)) // min(SEGMENT, max(len(group) // 10, 1))
    count = len(np.unique(group))
    chosen = min(max(round(HELD_OUT_SHARE * count), 1), count - 1)
    rows, _ = split_groups(group, [chosen], generator(seed, Stream.CLONING_SPLIT))
    return np.isin(np.arange(len(group)), rows)


def _on_device(rows: Demonstrations, part: Bool[np.ndarray, "n"]) -> _Rows:
    cumulative = np.cumsum(rows.weights[part], dtype=np.float64)
    if not cumulative[-1] > 0:  # all of the weight is in the other part
        cumulative = np.arange(1.0, len(cumulative) + 1)
    states, actions = rows_on_device(rows.states[part]), rows_on_device(rows.actions[part], rows.actions.dtype)
    return _Rows(states, actions, rows_on_device(cumulative / cumulative[-1], fill=1.0))


def _training_loss(network: MLP, data: tuple[_Rows, _Rows], key: Array, config: CloningConfig) -> Float[Array, ""]:
    rows, _ = data
    drawn = jnp.searchsorted(rows.cumulative, jax.random.uniform(key, (config.batch_size,)), side="right")
    return _negative_log_likelihood(network, rows.states[drawn], rows.actions[drawn], config.censored).mean()


def _validation_error(network: MLP, data: tuple[_Rows, _Rows], config: CloningConfig) -> Float[Array, ""]:
    _, rows = data
    weight = jnp.diff(rows.cumulative, prepend=0.0)
    return weight @ _negative_log_likelihood(network, rows.states, rows.actions, config.censored)


def _negative_log_likelihood(
    network: MLP, states: Float[Array, "B D"], actions: Float[Array, "B A"] | Int[Array, "B"], censored: bool
) -> Float[Array, "B"]:
    outputs = network(states)
    if actions.ndim == 1:
        return optax.softmax_cross_entropy_with_integer_labels(outputs, actions)
    mean, raw = jnp.split(outputs, 2, axis=-1)
    log_std = MIN_LOG_STD + (MAX_LOG_STD - MIN_LOG_STD) * jax.nn.sigmoid(raw)
    error = (actions - mean) * jnp.exp(-log_std)
    loss = 0.5 * error**2 + log_std + HALF_LOG_TAU
    if censored:  # at a bound, the probability of that or beyond
        beyond = -jax.scipy.stats.norm.logcdf(-jnp.sign(actions) * error)
        loss = jnp.where(jnp.abs(actions) >= 1 - AT_BOUND, beyond, loss)
    return loss.sum(axis=-1)
