"""Rare labels: which rows terminate, and which have the rare reward.

Such a label mostly depends on few numbers of the state and switches at a sharp boundary, with hardly a row near it
among millions. The networks that classify it get three measures that those which regress do without:

    oversampling         half of each batch are rows a few steps from a switch, weighted so that the loss, and with it
                         the probabilities, stay those of the log
    input sparsity       the norm of the weights that leave an input is penalized, which drives useless inputs to zero:
                         a few hundred terminations could otherwise be told apart by chance instead of by their cause
    learning rate        higher, because a sharp boundary needs large weights
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from bats.arrays import RowFlags
from bats.data.dataset import Dataset
from bats.networks.mlp import MLP
from bats.networks.training import rows_on_device

BULK = (0.05, 0.95)
"""quantiles of the rewards between which a reward is always ordinary"""
FAR = 10.0
"""a reward is rare if its distance from the median exceeds the width of the bulk by this factor"""
SWITCH_STEPS = 10
"""rows before and after a switch of a label that are oversampled"""
SWITCH_SHARE = 0.5
"""share of a classifier's batch that is drawn from those rows alone"""
SPARSITY = 0.25
"""weight of the input penalty, over the root of the number of rows with the rarer label (as in the theory of the
lasso); the cross-entropy of knowing nothing but the label's frequency is scaled to 1"""
SMOOTH_NORM = 1e-4
"""below this the norm is rounded off, so that it has a gradient at zero"""
MIN_SHARE = 1e-6
"""a label never counts as rarer than this, nor the bulk of the rewards as narrower"""


class Label(eqx.Module):
    """A binary label of every row, with what its loss is scaled by."""

    true: Float[Array, "N"]
    share: Float[Array, ""]
    """of the training rows where it is true"""
    entropy: Float[Array, ""]
    """cross-entropy of predicting that share everywhere"""
    sparsity: Float[Array, ""]
    """weight of the input penalty"""

    @classmethod
    def of(cls, true: RowFlags, training: Int[np.ndarray, "T"]) -> Label:
        count, rows = int(np.count_nonzero(true[training])), len(training)
        share = np.clip(count / rows, MIN_SHARE, 1 - MIN_SHARE)
        entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
        sparsity = SPARSITY / np.sqrt(max(min(count, rows - count), 1))
        numbers = (jnp.asarray(number, jnp.float32) for number in (share, entropy, sparsity))
        return cls(rows_on_device(true), *numbers)

    def loss(
        self, classifier: MLP, log_odds: Float[Array, "M B"], rows: Int[Array, "M B"], weight: Float[Array, "M B"]
    ) -> Float[Array, ""]:
        """Sum over the members of the relative cross-entropy and the input penalty."""
        error = (weight * optax.sigmoid_binary_cross_entropy(log_odds, self.true[rows])).mean(axis=1).sum()
        input_norms = jnp.sqrt((classifier.weights[0] ** 2).sum(axis=-1) + SMOOTH_NORM**2)
        return error / self.entropy + self.sparsity * input_norms.sum()


def has_two_rewards(rewards: Float[np.ndarray, "N"]) -> bool:
    """Whether a log has exactly two different rewards."""
    low, high = rewards.min(), rewards.max()
    return bool(low < high and np.all((rewards == low) | (rewards == high)))


def rare_reward_rows(dataset: Dataset, training: Int[np.ndarray, "T"]) -> RowFlags:
    """Rows with the larger of two rewards, or else with one far outside the bulk of the training rows."""
    rewards = dataset.rewards
    if has_two_rewards(rewards):
        return rewards == rewards.max()
    low, median, high = np.quantile(rewards[training], (BULK[0], 0.5, BULK[1]))
    return np.abs(rewards - median) > max(FAR * (high - low), MIN_SHARE)


def rows_near_switches(dataset: Dataset, training: Int[np.ndarray, "T"]) -> Int[np.ndarray, "E"]:
    """Training rows within a few steps of a switch, where the next row of the log has the other label."""
    switches = np.zeros(len(dataset) - 1, dtype=bool)
    for label in (rare_reward_rows(dataset, training), dataset.terminations):
        switches |= label[1:] != label[:-1]
    nearby = np.flatnonzero(switches)[:, None] + np.arange(1 - SWITCH_STEPS, SWITCH_STEPS + 1)
    return np.intersect1d(np.clip(nearby, 0, len(dataset) - 1), training)


def oversample(
    rows: Int[np.ndarray, "T M B"], near: Int[np.ndarray, "E"], rng: np.random.Generator
) -> Int[np.ndarray, "T M B"]:
    """The drawn rows, a share of them replaced by rows near a switch."""
    if len(near) == 0:
        return rows
    return np.where(rng.random(rows.shape) < SWITCH_SHARE, near[rng.integers(0, len(near), rows.shape)], rows)


def importance_weights(rows: int, near: Int[np.ndarray, "E"], training: int) -> Float[np.ndarray, "N"]:
    """The weight of each row that undoes the oversampling."""
    frequency = np.full(rows, 1.0 - SWITCH_SHARE if len(near) else 1.0)
    frequency[near] += SWITCH_SHARE * training / max(len(near), 1)
    return 1 / frequency
