"""Held-out rows: their segments and halves, the summary of errors, and the error near a state by brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from bats.config import ModelConfig
from bats.metric.scaled import ScaledMetric
from bats.model import held_out
from bats.model.held_out import (
    NEAREST,
    HeldOut,
    LocalErrors,
    error_summary,
    predict_rows,
    prediction_errors,
)
from bats.model.training import split_rows, untrained
from tests.mdps import SEEDS
from tests.model_logs import linear_log


def rows_of_chain(states: list[float], *, terminations: list[bool] | None = None) -> HeldOut:
    """Rows that lead from each state to the next number up, predicted exactly, with reward 0."""
    observations = np.array(states, dtype=np.float64)[:, None]
    count = len(states)
    return HeldOut(
        observations=observations,
        actions=np.zeros((count, 1)),
        next_observations=observations + 1,
        rewards=np.zeros(count),
        terminations=np.zeros(count, dtype=bool) if terminations is None else np.array(terminations),
        predicted_next=observations + 1,
        predicted_reward=np.zeros(count),
        predicted_termination=np.zeros(count),
    )


def test_a_segment_ends_where_the_next_row_does_not_follow_and_where_the_episode_terminates() -> None:
    rows = rows_of_chain([0, 1, 2, 7, 8, 9, 10], terminations=[False, False, False, False, True, False, False])
    assert rows.segment.tolist() == [0, 0, 0, 1, 1, 2, 2]
    first, second = rows.halves()
    assert first.observations[:, 0].tolist() == [0, 1, 2, 9, 10]
    assert second.observations[:, 0].tolist() == [7, 8]


def test_the_error_summary_worked_by_hand() -> None:
    rows = rows_of_chain([0, 1, 2, 3])
    rows = replace(
        rows,
        predicted_next=rows.next_observations + np.array([[3.0], [-4.0], [0.0], [0.0]]),
        rewards=np.array([0.0, 0.0, 1.0, 1.0]),
        predicted_reward=np.array([0.0, 0.75, 1.0, 0.25]),
        terminations=np.array([False, False, True, True]),
        predicted_termination=np.array([0.1, 0.2, 0.9, 0.8]),
    )
    assert error_summary(rows) == {
        "mean_absolute": [1.75],
        "root_mean_square": [2.5],
        "largest": [4.0],
        "reward_mean_absolute": 0.375,
        "reward_precision": 0.5,
        "reward_recall": 0.5,
        "termination_precision": 1.0,
        "termination_recall": 1.0,
    }
    assert "termination_recall" not in error_summary(rows_of_chain([0, 1]))


def test_prediction_errors_are_distances_in_the_metric() -> None:
    rows = rows_of_chain([0, 1])
    rows = replace(rows, predicted_next=rows.next_observations + np.array([[0.5], [-2.0]]))
    metric = ScaledMetric(np.array([10.0], dtype=np.float32))
    assert prediction_errors(rows, metric).tolist() == [5.0, 20.0]
    local = LocalErrors.of(rows, metric)
    assert local.errors.tolist() == [[5.0], [20.0]]
    assert local.tree.data.tolist() == [[0.0], [10.0]]


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.integers(1, 40), st.integers(1, 3))
def test_the_error_near_a_state_is_the_mean_of_the_nearest_rows(seed: int, count: int, kinds: int) -> None:
    rng = np.random.default_rng(seed)
    places, errors, points = rng.normal(size=(count, 2)), rng.random((count, kinds)), rng.normal(size=(7, 2))
    found = LocalErrors(cKDTree(places), errors).near(points)
    for point, mean in zip(points, found, strict=True):
        order = np.argsort(np.linalg.norm(places - point, axis=1))[:NEAREST]
        assert mean == pytest.approx(errors[order].mean(axis=0))


def test_errors_along_a_plan_are_those_near_its_states_and_0_beyond_its_length() -> None:
    # both of two rows are among the nearest, so every step has their mean
    local = LocalErrors(cKDTree(np.array([[9.0, 9.0], [0.3, 0.0]])), np.array([[5.0, 1.0], [0.0, 3.0]]))
    plans = np.zeros((3, 2, 2))
    along = local.along(plans, np.array([1, 2, 0]))
    assert along.shape == (3, 2, 2)
    assert along.sum(axis=1).tolist() == [[2.5, 2.0], [5.0, 4.0], [0.0, 0.0]]


def test_predicting_in_blocks_gives_the_same_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log = linear_log(100, noise=0.1)
    dynamics, _ = untrained(log, split_rows(log, seed=0), ModelConfig(members=2, elites=2, hidden=(8,)), seed=0)
    rows = np.arange(0, 100, 2)
    whole = predict_rows(dynamics, log, rows)
    monkeypatch.setattr(held_out, "PREDICT_ROWS", 16)
    blocks = predict_rows(dynamics, log, rows)
    assert blocks.predicted_next == pytest.approx(whole.predicted_next, abs=1e-6)
    assert blocks.predicted_reward == pytest.approx(whole.predicted_reward, abs=1e-6)
    assert np.array_equal(whole.observations, log.observations[rows])
