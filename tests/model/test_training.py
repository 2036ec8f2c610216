"""The split of a log, and what the model knows before its first update."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bats.config import ModelConfig
from bats.data.dataset import Dataset
from bats.errors import DataError
from bats.model.training import split_rows, untrained
from bats.networks.held_out import SEGMENT
from tests.model_logs import linear_log

CONFIG = ModelConfig(members=2, elites=2, hidden=(8,))


def test_the_parts_of_a_split_share_no_row_and_consist_of_segments() -> None:
    split = split_rows(linear_log(5000, noise=0.1), seed=3)
    together = np.concatenate([split.training, split.validation, split.held_out])
    assert np.array_equal(np.sort(together), np.arange(5000))
    assert len(split.validation) == pytest.approx(500, abs=SEGMENT)  # a tenth of a small log
    assert len(split.held_out) == pytest.approx(500, abs=SEGMENT)
    assert np.mean(np.diff(split.held_out) == 1) > 0.9
    other = split_rows(linear_log(5000, noise=0.1), seed=4)
    assert not np.array_equal(other.held_out, split.held_out)


def test_a_log_with_too_few_rows_is_refused() -> None:
    with pytest.raises(DataError, match="at least 75 rows"):
        split_rows(linear_log(40, noise=0.1), seed=0)


def test_rows_without_a_known_next_state_are_in_no_part() -> None:
    states = np.cumsum(np.ones(400)) % 100
    log = Dataset.from_arrays(states[:, None], np.zeros((400, 1)), np.arange(400.0), terminations=states == 99)
    split = split_rows(log, seed=0)
    unknown = set(np.flatnonzero(~log.next_known))
    assert unknown
    assert not unknown & set(np.concatenate([split.training, split.validation, split.held_out]).tolist())


def test_the_linear_part_is_the_least_squares_solution_of_the_training_rows() -> None:
    log = linear_log(500, noise=0.05)
    split = split_rows(log, seed=0)
    model, _ = untrained(log, split, CONFIG, seed=0)
    rows = split.training
    inputs = np.concatenate([log.observations[rows], log.actions[rows]], axis=1)
    delta = log.next_observations[rows] - log.observations[rows]
    inputs, delta = ((part - part.mean(axis=0)) / part.std(axis=0) for part in (inputs, delta))
    expected = np.linalg.lstsq(inputs, delta, rcond=None)[0]
    assert model.networks.linear is not None
    for member in np.asarray(model.networks.linear):
        assert member == pytest.approx(expected, abs=1e-3)
    assert untrained(log, split, replace(CONFIG, linear=False), seed=0)[0].networks.linear is None
