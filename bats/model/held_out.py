"""Rows that the model never saw: what it predicts for them, and how wrong it is near a given state.

The members of an ensemble agree on much that none of them knows. Model error is local, tiny in free flight and large
at contacts, so a plan is measured by the residuals of held-out rows near the states it visits as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.spatial import cKDTree

from bats.arrays import Metric, in_batches, padded_length, short_repr, take
from bats.data.dataset import MAX_NUMBER, Dataset
from bats.model.ensemble import Dynamics, one_hot

NEAREST = 8
"""held-out rows averaged around a state"""
PREDICT_ROWS = 8192
"""rows predicted at a time, to bound the memory of a long log"""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out rows with the mean prediction of the elites."""

    observations: Float[np.ndarray, "H D"]
    actions: Float[np.ndarray, "H A"]
    """as the networks take them"""
    next_observations: Float[np.ndarray, "H D"]
    rewards: Float[np.ndarray, "H"]
    terminations: Bool[np.ndarray, "H"]
    predicted_next: Float[np.ndarray, "H D"]
    predicted_reward: Float[np.ndarray, "H"]
    predicted_termination: Float[np.ndarray, "H"]

    __repr__ = short_repr

    @cached_property
    def segment(self) -> Int[np.ndarray, "H"]:
        """The number of the segment of consecutive rows that each row belongs to."""
        continues = np.all(self.observations[1:] == self.next_observations[:-1], axis=1) & ~self.terminations[:-1]
        return np.concatenate([[0], np.cumsum(~continues)])

    def halves(self) -> tuple[HeldOut, HeldOut]:
        """Every other segment, and the rest: one half to estimate errors with, one that only calibrates bounds."""
        first = self.segment % 2 == 0
        return take(self, first), take(self, ~first)


@dataclass(frozen=True, eq=False)
class LocalErrors:
    """Held-out rows in a KD-tree, with one or more kinds of model error at each."""

    tree: cKDTree
    errors: Float[np.ndarray, "H kinds"]

    @classmethod
    def of(cls, rows: HeldOut, metric: Metric) -> LocalErrors:
        """The distance of the predicted from the true next state, in units of the metric."""
        return cls(cKDTree(np.asarray(metric.embed(rows.observations))), prediction_errors(rows, metric)[:, None])

    def near(self, points: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "n kinds"]:
        """The mean error of the held-out rows nearest to each embedded state; infinite where a prediction diverged."""
        ranks, finite = np.arange(1, min(NEAREST, len(self.errors)) + 1), np.isfinite(points).all(axis=1)
        errors = np.full((len(points), self.errors.shape[1]), np.inf)
        errors[finite] = self.errors[self.tree.query(points[finite], k=ranks, workers=-1)[1]].mean(axis=1)
        return errors

    def along(self, points: Float[np.ndarray, "C K m"], length: Int[np.ndarray, "C"]) -> Float[np.ndarray, "C K kinds"]:
        """The errors near the states that each plan acts in; 0 beyond its length.

        Their sum, unlike their maximum, grows with the number of actions as the true error does.
        """
        acting = np.arange(points.shape[1]) < length[:, None]
        errors = np.zeros((*acting.shape, self.errors.shape[1]))
        errors[acting] = self.near(points[acting])
        return errors


def prediction_errors(rows: HeldOut, metric: Metric) -> Float[np.ndarray, "H"]:
    """The distance of the predicted from the true next state, in units of the metric."""
    residual = np.asarray(metric.embed(rows.predicted_next)) - np.asarray(metric.embed(rows.next_observations))
    return np.linalg.norm(residual, axis=1)


def predict_rows(dynamics: Dynamics, dataset: Dataset, rows: Int[np.ndarray, "H"]) -> HeldOut:
    """The elites' mean prediction for some rows of a log."""
    states = dataset.observations[rows].astype(np.float32)
    actions = one_hot(dataset.actions[rows], dataset.action_count).astype(np.float32)
    size = min(padded_length(len(rows)), PREDICT_ROWS)
    delta, reward, termination = in_batches(partial(_predict, dynamics), size, states, actions)
    predicted_next = dataset.observations[rows] + delta.astype(dataset.observations.dtype)
    # a prediction may exceed the largest number of a log, and a saved model is read by the same limit
    predicted_next, reward = (np.clip(numbers, -MAX_NUMBER, MAX_NUMBER) for numbers in (predicted_next, reward))
    return HeldOut(
        observations=dataset.observations[rows],
        actions=actions,
        next_observations=dataset.next_observations[rows],
        rewards=dataset.rewards[rows],
        terminations=dataset.terminations[rows],
        predicted_next=predicted_next,
        predicted_reward=reward,
        predicted_termination=termination,
    )


def error_summary(rows: HeldOut) -> dict[str, Any]:
    """How wrong the elites' mean prediction is on held-out rows, per number of the state, in the log's own units."""
    absolute = np.abs(rows.predicted_next - rows.next_observations)
    rewards = np.unique(rows.rewards)
    summary: dict[str, Any] = {
        "mean_absolute": absolute.mean(axis=0).tolist(),
        "root_mean_square": np.sqrt((absolute**2).mean(axis=0)).tolist(),
        "largest": absolute.max(axis=0).tolist(),
        "reward_mean_absolute": float(np.abs(rows.predicted_reward - rows.rewards).mean()),
    }
    if len(rewards) == 2:
        summary |= _precision_recall("reward", rows.predicted_reward > rewards.mean(), rows.rewards == rewards[1])
    if rows.terminations.any():
        summary |= _precision_recall("termination", rows.predicted_termination > 0.5, rows.terminations)
    return summary


def _precision_recall(name: str, predicted: Bool[np.ndarray, "H"], true: Bool[np.ndarray, "H"]) -> dict[str, float]:
    both = int(np.count_nonzero(predicted & true))
    return {
        f"{name}_precision": both / max(int(np.count_nonzero(predicted)), 1),
        f"{name}_recall": both / max(int(np.count_nonzero(true)), 1),
    }


@eqx.filter_jit
def _predict(
    dynamics: Dynamics, states: Float[Array, "B D"], actions: Float[Array, "B A"]
) -> list[Float[Array, "B ..."]]:
    """The members' mean delta, reward and probability of termination."""
    state, action = (dynamics.per_member(part) for part in (states, actions))
    delta, _ = dynamics.delta(state, action)
    transition = (state, action, state + delta)
    predictions = (delta, dynamics.reward(*transition), dynamics.termination(*transition))
    return [prediction.mean(axis=0) for prediction in predictions]
