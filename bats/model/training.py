"""Training the ensemble: its data on the device, its loss, and the split of a log into training and held-out rows.

    training rows        fit the weights
    validation rows      stop training, keep each member's best weights, choose the elites
    held-out rows        choose nothing: they measure the error, and their residuals calibrate stitches and bounds

Rows are split by segments of consecutive rows, so that held-out rows have no neighbours in time among the training
rows, except at the ends of a segment, and predictions over several steps can be tested on held-out rows too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bats.config import ModelConfig
from bats.data.dataset import Dataset
from bats.errors import DataError
from bats.model.ensemble import Dynamics, Kind, Networks, Standardizer, mean_and_log_variance, new_dynamics, one_hot
from bats.model.rare_labels import (
    Label,
    has_two_rewards,
    importance_weights,
    oversample,
    rare_reward_rows,
    rows_near_switches,
)
from bats.networks.held_out import SEGMENT, segments, split_groups
from bats.networks.inference import CONSTANT, mean_and_std
from bats.networks.mlp import MLP
from bats.networks.training import Problem, Schedule, rows_on_device
from bats.streams import Stream, generator

Batch = tuple[Int[Array, "M B"], Int[Array, "M B"]]
"""rows to regress on, and rows to classify"""
LossConfig = tuple[ModelConfig, bool]
"""the settings, and whether there are only two rewards"""

VALIDATION_ROWS, HELD_OUT_ROWS = 1000, 20_000
MAX_SHARE = 0.1
"""most of a log's rows for validation, and as many for holding out: a small log needs its rows for training"""
WARM_UP = 0.05
CLASSIFIER_RATE = 5.0
"""learning rate of the classifiers, relative to that of the networks that regress"""
BOUND_WEIGHT = 0.01
"""pulls the learned bounds of the log-variance together"""


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of a log by use. Rows whose next state is unknown are in none."""

    validation: Int[np.ndarray, "V"]
    held_out: Int[np.ndarray, "H"]
    training: Int[np.ndarray, "T"]
    near_switches: Int[np.ndarray, "E"]
    """training rows where a label switches nearby"""


class Rows(eqx.Module):
    """The log as the networks take it: standardised, in single precision, on the device."""

    inputs: Float[Array, "N inputs"]
    next_states: Float[Array, "N D"]
    delta: Float[Array, "N D"]
    reward: Float[Array, "N"]
    """standardised; rare ones by their own scale"""
    rare: Label | None
    """the larger of two rewards, or a rare one; None where all rewards are ordinary"""
    terminates: Label | None
    importance: Float[Array, "N"]
    """weight of a row in a classifier's batch"""
    validation: Int[Array, "V"]
    validation_weight: Float[Array, "V"]
    """adds up to 1; 0 where the validation rows are filled up"""

    def transition(self, rows: Int[Array, "M B"]) -> Float[Array, "M B inputs"]:
        """State, action and next state, as the reward and termination networks take them."""
        return jnp.concatenate([self.inputs[rows], self.next_states[rows]], axis=-1)


class RewardNetworks(eqx.Module):
    """The networks that are trained where the dynamics are known and the rewards are new."""

    reward: MLP
    rare: MLP | None


def split_rows(dataset: Dataset, *, seed: int) -> Split:
    """Draws the validation and held-out rows; the others are for training."""
    rows = np.flatnonzero(dataset.next_known)
    segment = segments(len(rows))
    sizes = (min(size, MAX_SHARE * len(rows)) for size in (VALIDATION_ROWS, HELD_OUT_ROWS))
    counts = [max(math.ceil(size / SEGMENT), 1) for size in sizes]
    if segment[-1] + 1 <= sum(counts):
        expected = f"at least {3 * SEGMENT} rows with a known next state to train a model on"
        raise DataError(expected, f"{len(rows)}", file=dataset.name, field="observations")
    parts = split_groups(segment, counts, generator(seed, Stream.MODEL_SPLIT))
    validation, held_out, training = (rows[part] for part in parts)
    return Split(validation, held_out, training, rows_near_switches(dataset, training))


def untrained(dataset: Dataset, split: Split, config: ModelConfig, *, seed: int) -> tuple[Dynamics, Rows]:
    """The model before its first update, standardised by the training rows, and all rows as it takes them."""
    rows = split.training
    actions = one_hot(dataset.actions[rows], dataset.action_count)
    delta = dataset.next_observations[rows] - dataset.observations[rows]
    rewards, rare, ends = dataset.rewards[rows], rare_reward_rows(dataset, rows)[rows], dataset.terminations[rows]
    binary = has_two_rewards(dataset.rewards)
    has_rare = bool(rare.any()) and not binary
    kind = Kind(
        state_width=delta.shape[1],
        action_width=actions.shape[1],
        action_count=dataset.action_count,
        terminations=bool(ends.any()),
        binary_reward=binary,
        rare_rewards=has_rare,
        rare_rewards_terminate=has_rare and bool(ends[rare].all()),
    )
    span = jnp.asarray([dataset.rewards.min(), np.ptp(dataset.rewards)], jnp.float32)
    model = new_dynamics(config, kind, jax.random.key(seed))
    model = replace(
        model,
        states=_standardizer(dataset.observations[rows]),
        actions=_standardizer(actions),
        deltas=_standardizer(delta),
        # of two rewards the network predicts the probability of the larger one
        rewards=Standardizer(span[:1], span[1:]) if binary else _standardizer(rewards[~rare][:, None]),
        rare_rewards=_standardizer(rewards[rare][:, None]) if has_rare else model.rare_rewards,
    )
    on_device = _rows_on_device(dataset, model, split)
    if config.linear:
        linear = model.per_member(_least_squares(on_device, rows))
        model = eqx.tree_at(lambda whole: whole.networks.linear, model, linear)
    return model, on_device


def _rows_on_device(dataset: Dataset, model: Dynamics, split: Split) -> Rows:
    """Deltas are taken before the change to single precision, so that small steps keep their digits."""
    states, next_states = dataset.observations.astype(np.float32), dataset.next_observations.astype(np.float32)
    actions = one_hot(dataset.actions, dataset.action_count).astype(np.float32)
    delta = (dataset.next_observations - dataset.observations).astype(np.float32)
    rewards = dataset.rewards.astype(np.float32)[:, None]
    reward, rare = _standardized(rewards, model.rewards)[:, 0], rare_reward_rows(dataset, split.training)
    if model.kind.rare_rewards:
        reward = np.where(rare, _standardized(rewards, model.rare_rewards)[:, 0], reward)
    classified = model.kind.binary_reward or model.kind.rare_rewards
    inputs = np.concatenate([_standardized(states, model.states), _standardized(actions, model.actions)], axis=1)
    return Rows(
        inputs=rows_on_device(inputs),
        next_states=rows_on_device(_standardized(next_states, model.states)),
        delta=rows_on_device(_standardized(delta, model.deltas)),
        reward=rows_on_device(reward),
        rare=Label.of(rare, split.training) if classified else None,
        terminates=Label.of(dataset.terminations, split.training) if model.kind.terminations else None,
        importance=rows_on_device(importance_weights(len(dataset), split.near_switches, len(split.training))),
        validation=rows_on_device(split.validation, np.int32),
        validation_weight=rows_on_device(np.full(len(split.validation), 1 / len(split.validation))),
    )


def training_problem(
    model: Dynamics, split: Split, config: ModelConfig, *, seed: int, rewards_only: bool = False
) -> tuple[Problem, Callable[[int, int], Any]]:
    """The problem, and the function that draws batches: (regression rows, classification rows).

    The parameters are the model's networks, or `RewardNetworks` where the rewards alone are trained.
    """

    def draw(done: int, count: int) -> tuple[Int[Array, "T M B"], Int[Array, "T M B"]]:
        rng = generator(seed, Stream.MODEL_BATCHES, done)
        drawn = rng.integers(0, len(split.training), (count, config.members, config.batch_size))
        rows = split.training[drawn]
        classified = oversample(rows, split.near_switches, rng)
        return jax.device_put(rows.astype(np.int32)), jax.device_put(classified.astype(np.int32))

    # networks that classify learn faster
    fast = ("reward", "rare", "termination") if model.kind.binary_reward else ("rare", "termination")
    constant = config.schedule == "constant"
    schedule = Schedule(config.learning_rate, config.updates, WARM_UP, constant, fast, CLASSIFIER_RATE)
    problem = Problem(
        loss=_reward_loss if rewards_only else _loss,
        error=None if rewards_only else _validation_error,
        schedule=schedule,
        config=(config, model.kind.binary_reward),
        evaluate_every=config.evaluate_every or max(len(split.training) // config.batch_size, 1),
        patience=None if rewards_only else config.patience,
    )
    return problem, draw


def _loss(networks: Networks, rows: Rows, batch: Batch, config: LossConfig) -> Float[Array, ""]:
    """Sum of the members' losses; no weight belongs to two members, so each gets its own gradient."""
    (regressed, classified), (settings, _) = batch, config
    inputs = rows.inputs[regressed]
    mean, log_variance = mean_and_log_variance(networks, inputs)
    squared = (mean - rows.delta[regressed]) ** 2
    # weighting by a power of the variance keeps the gradient of rows that are hard to predict
    weight = jax.lax.stop_gradient(jnp.exp(settings.variance_weight * log_variance))
    loss = (weight * (squared * jnp.exp(-log_variance) + log_variance)).mean(axis=(1, 2)).sum()
    loss += BOUND_WEIGHT * (networks.max_log_variance - networks.min_log_variance).mean(axis=(1, 2)).sum()
    loss += _weight_penalty(settings, networks.delta, networks.termination)
    if networks.termination is not None and rows.terminates is not None:
        log_odds = networks.termination(rows.transition(classified))[..., 0]
        loss += rows.terminates.loss(networks.termination, log_odds, classified, rows.importance[classified])
    return loss + _reward_loss(RewardNetworks(networks.reward, networks.rare), rows, batch, config)


def _reward_loss(networks: RewardNetworks, rows: Rows, batch: Batch, config: LossConfig) -> Float[Array, ""]:
    """The part of the loss that the reward networks have to themselves."""
    reward, rare = networks.reward, networks.rare
    (regressed, classified), (settings, binary_reward) = batch, config
    loss = _weight_penalty(settings, reward, rare)
    if not binary_reward:
        predicted = reward(rows.transition(regressed))[..., 0]
        ordinary = 1.0 if rows.rare is None else 1.0 - rows.rare.true[regressed]
        loss += (ordinary * (predicted - rows.reward[regressed]) ** 2).mean(axis=1).sum()
    if rows.rare is None:
        return loss
    transition, weight = rows.transition(classified), rows.importance[classified]
    if rare is None:
        return loss + rows.rare.loss(reward, reward(transition)[..., 0], classified, weight)
    log_odds, amount = (part[..., 0] for part in jnp.split(rare(transition), 2, axis=-1))
    squared = weight * rows.rare.true[classified] * (amount - rows.reward[classified]) ** 2
    return loss + rows.rare.loss(rare, log_odds, classified, weight) + (squared.mean(axis=1) / rows.rare.share).sum()


def _weight_penalty(settings: ModelConfig, *networks: MLP | None) -> Float[Array, ""]:
    if not settings.weight_decay:
        return jnp.zeros(())
    weights = [weight for network in networks if network is not None for weight in network.weights]
    return settings.weight_decay * sum((jnp.sum(weight**2) for weight in weights), jnp.zeros(()))


def _validation_error(networks: Networks, rows: Rows, config: LossConfig) -> Float[Array, "M"]:
    """Each member's error on the validation rows, in units of the delta's std."""
    inputs = rows.inputs[rows.validation]
    inputs = jnp.broadcast_to(inputs, (len(networks.max_log_variance), *inputs.shape))
    residual = mean_and_log_variance(networks, inputs)[0] - rows.delta[rows.validation]
    squared = config[0].validation_measure == "squared"
    return (residual**2 if squared else jnp.abs(residual)).mean(axis=2) @ rows.validation_weight


def _least_squares(rows: Rows, training: Int[np.ndarray, "T"]) -> Float[Array, "inputs D"]:
    """The linear map that explains most of the standardised delta, so that a linear world is known from the start."""
    inputs, target = (np.asarray(part)[training].astype(np.float64) for part in (rows.inputs, rows.delta))
    square = inputs.T @ inputs + CONSTANT * len(inputs) * np.eye(inputs.shape[1])
    return jnp.asarray(np.linalg.solve(square, inputs.T @ target), jnp.float32)


def _standardized(values: np.ndarray, by: Standardizer) -> np.ndarray:
    # in NumPy: JAX would compile this for every length of a log
    return (values - np.asarray(by.mean)) / np.asarray(by.std)


def _standardizer(values: np.ndarray) -> Standardizer:
    mean, std = mean_and_std(values)
    return Standardizer(jnp.asarray(mean), jnp.asarray(std))
