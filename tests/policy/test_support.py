"""How far an observation lies from the log: at most 1 for nearly all of the log, more beyond it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import cKDTree

from bats.errors import SettingError
from bats.policy.support import SAMPLE, Support
from tests.policy.policies import some_policy


@pytest.mark.parametrize("width", [1, 2, 3, 7, 20, 50])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_distances_are_those_of_a_kd_tree(width: int, offset: float) -> None:
    rng = np.random.default_rng(width)
    weight = rng.uniform(0.1, 10.0, width).astype(np.float32)
    sample = ((offset + rng.normal(size=(700, width))) * weight).astype(np.float32)
    observations = offset + 2 * rng.normal(size=(150, width))
    expected, _ = cKDTree(sample.astype(np.float64)).query(observations * weight.astype(np.float64))
    np.testing.assert_allclose(Support(sample, weight, 1.0).distance(observations), expected, rtol=1e-9, atol=1e-6)


def test_a_state_of_the_sample_is_at_no_distance() -> None:
    rng = np.random.default_rng(0)
    sample = rng.normal(size=(500, 4)).astype(np.float32)
    assert Support(sample, np.ones(4, np.float32), 1.0).distance(sample).max() < 1e-6


def test_nearly_all_of_the_log_is_within_support_and_the_distance_grows_outside() -> None:
    rng = np.random.default_rng(0)
    logged = rng.normal(size=(5000, 3)).astype(np.float32)
    weight = np.array([1.0, 2.0, 0.0], np.float32)  # the last number does not count
    policy = some_policy(support=Support.of(logged, weight, rng))
    others = rng.normal(size=(5000, 3))
    assert np.mean(policy.support_distance(others) <= 1) == pytest.approx(0.99, abs=0.01)
    away = np.array([[x, 0.0, 0.0] for x in (0.0, 5.0, 10.0, 20.0)])
    distance = policy.support_distance(away)
    assert distance[0] < 1 < distance[1] < distance[2] < distance[3]
    assert policy.support_distance([0.0, 0.0, 1e6]) == pytest.approx(distance[0])
    assert policy.support_limit == policy.support.limit


@pytest.mark.parametrize("gap", [1.0, 0.25])
def test_where_few_states_were_logged_many_times_the_smallest_gap_between_them_is_the_limit(gap: float) -> None:
    states = gap * np.array([0.0, 1, 2, 3, 4, 5, 6, 7, 9, 12], dtype=np.float32)
    support = Support.of(np.repeat(states[:, None], 100, axis=0), np.ones(1, np.float32), np.random.default_rng(0))
    assert support.limit == pytest.approx(gap)
    assert support.distance(gap * np.array([[3.0], [15.0]])) == pytest.approx([0.0, 3.0 * gap])


def test_a_log_of_a_single_state_has_a_limit_of_1() -> None:
    support = Support.of(np.ones((50, 2), np.float32), np.ones(2, np.float32), np.random.default_rng(0))
    assert support.limit == 1.0


def test_a_long_log_is_sampled_and_the_same_generator_gives_the_same_sample() -> None:
    logged = np.random.default_rng(0).normal(size=(3 * SAMPLE, 1)).astype(np.float32)
    one, other = (Support.of(logged, np.ones(1, np.float32), np.random.default_rng(4)) for _ in range(2))
    assert len(one.sample) == SAMPLE
    assert np.array_equal(one.sample, other.sample)
    assert one.limit == other.limit


def test_support_needs_at_least_two_logged_states() -> None:
    with pytest.raises(SettingError, match="at least 2 logged states; got 1"):
        Support.of(np.zeros((1, 2), np.float32), np.ones(2, np.float32), np.random.default_rng(0))
