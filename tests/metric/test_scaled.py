"""The metrics that scale each number of a state."""

from __future__ import annotations

import numpy as np
import pytest

from bats.data.dataset import Dataset
from bats.errors import DataError
from bats.metric.scaled import FAR_APART, ScaledMetric


def log_of(states: np.ndarray) -> Dataset:
    """One episode for each table of states."""
    before, after = states[:, :-1].reshape(-1, states.shape[2]), states[:, 1:].reshape(-1, states.shape[2])
    last = np.arange(len(before)) % (states.shape[1] - 1) == states.shape[1] - 2
    return Dataset.from_arrays(
        before, np.zeros((len(before), 1)), np.zeros(len(before)), next_observations=after, timeouts=last
    )


def test_a_distance_counts_ordinary_steps() -> None:
    # the first number moves by 3 and 4 in turn, the second by 0.1
    states = np.stack([np.cumsum([0, 3, 4, 3, 4]), 0.1 * np.arange(5)], axis=1)[None]
    metric = ScaledMetric.of(log_of(states))
    assert metric.weight == pytest.approx([1 / np.sqrt((9 + 16) / 2), 10.0])
    assert metric.embed(np.array([[1.0, 1.0]])) == pytest.approx(metric.weight[None])


def test_raw_numbers_and_standard_deviations() -> None:
    states = np.stack([np.arange(5.0), 7 * np.arange(5.0)], axis=1)[None]
    assert ScaledMetric.of(log_of(states), "raw").weight.tolist() == [1.0, 1.0]
    spread = np.arange(4.0).std()  # of the observations, which lack the last state
    assert ScaledMetric.of(log_of(states), "std").weight == pytest.approx([1 / spread, 1 / (7 * spread)])


def test_a_constant_number_is_ignored_and_one_that_differs_between_episodes_keeps_them_apart() -> None:
    moving = np.tile(np.arange(5.0), (2, 1))
    states = np.stack([moving, np.full((2, 5), 3.0), np.repeat([[0.0], [2.0]], 5, axis=1)], axis=2)
    assert ScaledMetric.of(log_of(states)).weight.tolist() == [1.0, 0.0, FAR_APART / 2]


def test_states_that_never_change_are_refused() -> None:
    with pytest.raises(DataError, match="states that change"):
        ScaledMetric.of(log_of(np.ones((1, 5, 2))))
