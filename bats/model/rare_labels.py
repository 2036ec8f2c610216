"""What the model has to tell apart: which rows end the task, and which are paid the rare amount.

Such a label mostly hangs on few numbers of the state and changes at a sharp edge, with hardly a row near it among
millions. Three measures for the networks that classify, none for those that regress:

    draws                half of each batch are rows a few steps from an edge, weighted so that the loss, and with it
                         the probabilities, stay those of the log
    inputs               the norm of the weights that leave an input is charged, which takes useless inputs to zero:
                         a few hundred terminations are otherwise told apart by chance, not by their cause
    learning rate        higher: a sharp edge needs large weights
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from bats.data.dataset import Dataset
from bats.model.ensemble import Perceptron

BULK = (0.05, 0.95)
"""quantiles between which a log's rewards are ordinary whatever they are"""
FAR = 10.0
"""rewards further from the median than this many times the bulk's width are exceptional"""
EDGE_STEPS = 10
"""rows before and after a switch of a label that are drawn more often"""
EDGE_SHARE = 0.5
"""share of a classifier's batch that is drawn from those rows alone"""
INPUT_CHARGE = 0.25
"""on the norm of the weights that leave an input, over the root of how many rows there are of the rarer kind (as in the
theory of the lasso); knowing nothing about a label costs 1"""
SMOOTH_NORM = 1e-4
"""below this the norm is bent, so that it has a slope at zero"""
LEAST_SHARE = 1e-6
"""a label is never taken to be rarer than this, nor the bulk of the rewards to be narrower"""

RowFlags = Bool[np.ndarray, "N"]


class Label(eqx.Module):
    """A yes or no for every row that a network learns to tell."""

    true: Float[Array, "N"]
    share: Float[Array, ""]
    """of the training rows for which it is true"""
    entropy: Float[Array, ""]
    """the loss of knowing nothing but how often it is true"""
    charge: Float[Array, ""]
    """on the norm of the weights that leave an input of its network"""

    @classmethod
    def of(cls, true: RowFlags, training: Int[np.ndarray, "T"]) -> Label:
        count, rows = int(np.count_nonzero(true[training])), len(training)
        share = np.clip(count / rows, LEAST_SHARE, 1 - LEAST_SHARE)
        entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
        charge = INPUT_CHARGE / np.sqrt(max(min(count, rows - count), 1))
        return cls(jnp.asarray(true, jnp.float32), *(jnp.asarray(one, jnp.float32) for one in (share, entropy, charge)))

    def loss(
        self,
        classifier: Perceptron,
        log_odds: Float[Array, "M B"],
        chosen: Int[Array, "M B"],
        weight: Float[Array, "M B"],
    ) -> Float[Array, ""]:
        """Cross-entropy of the members' answers in parts of what knowing nothing costs, and the charge on inputs."""
        miss = (weight * optax.sigmoid_binary_cross_entropy(log_odds, self.true[chosen])).mean(axis=1).sum()
        leaving = jnp.sqrt((classifier.weights[0] ** 2).sum(axis=-1) + SMOOTH_NORM**2)
        return miss / self.entropy + self.charge * leaving.sum()


def two_amounts(rewards: Float[np.ndarray, "N"]) -> bool:
    """Whether a log pays two amounts and nothing else."""
    least, most = rewards.min(), rewards.max()
    return bool(least < most and np.all((rewards == least) | (rewards == most)))


def paid_apart(dataset: Dataset, training: Int[np.ndarray, "T"]) -> RowFlags:
    """Rows paid the larger of two amounts, or else far more or less than the bulk of the training rows."""
    rewards = dataset.rewards
    if two_amounts(rewards):
        return rewards == rewards.max()
    low, middle, high = np.quantile(rewards[training], (BULK[0], 0.5, BULK[1]))
    return np.abs(rewards - middle) > max(FAR * (high - low), LEAST_SHARE)


def edge_rows(dataset: Dataset, training: Int[np.ndarray, "T"]) -> Int[np.ndarray, "E"]:
    """Training rows within a few steps of a switch: where the next row of the log is labelled otherwise."""
    switches = np.zeros(len(dataset) - 1, dtype=bool)
    for label in (paid_apart(dataset, training), dataset.terminations):
        switches |= label[1:] != label[:-1]
    nearby = np.flatnonzero(switches)[:, None] + np.arange(1 - EDGE_STEPS, EDGE_STEPS + 1)
    return np.intersect1d(np.clip(nearby, 0, len(dataset) - 1), training)


def with_edges(
    chosen: Int[np.ndarray, "T M B"], edges: Int[np.ndarray, "E"], rng: np.random.Generator
) -> Int[np.ndarray, "T M B"]:
    """The chosen rows, some of them replaced by rows near an edge."""
    if len(edges) == 0:
        return chosen
    return np.where(rng.random(chosen.shape) < EDGE_SHARE, edges[rng.integers(0, len(edges), chosen.shape)], chosen)


def weights_back(rows: int, edges: Int[np.ndarray, "E"], training: int) -> Float[np.ndarray, "N"]:
    """What each row counts in a batch `with_edges`, being drawn more or less often than by right."""
    often = np.full(rows, 1.0 - EDGE_SHARE if len(edges) else 1.0)
    often[edges] += EDGE_SHARE * training / max(len(edges), 1)
    return 1 / often
