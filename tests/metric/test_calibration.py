"""Calibration: the learned metric bounds the stated share of value differences, also of states it never saw."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import numpy as np
import pytest

from bats.config import BisimulationConfig
from bats.errors import DataError, SettingError
from bats.graph.mdp import TabularMDP
from bats.graph.solve import first_edges, policy_value
from bats.metric import bisimulation
from bats.metric.bisimulation import BisimulationMetric, learn_bisimulation
from bats.metric.calibration import calibrate, held_out_pairs, pair_distances, value_differences
from bats.metric.policy_steps import PolicySteps, StateSplit
from tests.mdps import mdp_from_edges
from tests.oracles.exact_bisimulation import bisimulation_distances

SIDE = 20


def plane() -> tuple[TabularMDP, PolicySteps, np.ndarray]:
    """Diagonal steps through a grid of cells to a corner that earns 1 for ever; with the values."""
    cells = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij"), axis=-1).reshape(-1, 2)
    target = np.minimum(cells + 1, SIDE - 1) @ [SIDE, 1]
    edges = [(cell, int(after), float(after == SIDE**2 - 1)) for cell, after in enumerate(target)]
    mdp = replace(mdp_from_edges(SIDE**2, edges, gamma=0.95), states=cells.astype(np.float64))
    policy = first_edges(mdp)
    return mdp, PolicySteps.of(mdp, policy), policy_value(mdp, policy)


@pytest.fixture(scope="module")
def plane_metric() -> BisimulationMetric:
    config = BisimulationConfig(hidden=(64, 64), updates=1000, batch_size=64, horizon=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bisimulation, "HELD_OUT", 0.4)
        return learn_bisimulation(plane()[1], config, seed=0)


def test_calibration_bounds_the_stated_share_of_pairs_and_no_smaller_factor_would(
    plane_metric: BisimulationMetric,
) -> None:
    _, steps, values = plane()
    metric = calibrate(plane_metric, steps, share=0.95, seed=0)
    shares = {
        kind: np.mean(value_differences(values, pairs) <= pair_distances(metric, steps, pairs))
        for kind, pairs in held_out_pairs(metric, steps, "calibrate", seed=0).items()
    }
    assert min(shares.values()) >= 0.95
    assert min(shares.values()) < 0.97  # the kind that needed the largest factor has no more than it needed


def test_no_pair_contains_a_state_that_was_fitted_to(plane_metric: BisimulationMetric) -> None:
    _, steps, _ = plane()
    fitted = set(plane_metric.split.rows(steps.states, "fit").tolist())
    for part in ("calibrate", "test"):
        for pairs in held_out_pairs(plane_metric, steps, part, seed=0).values():
            assert len(pairs)
            assert not fitted & set(pairs.ravel().tolist())


def test_calibration_holds_for_states_that_neither_fitted_nor_calibrated(plane_metric: BisimulationMetric) -> None:
    mdp, steps, values = plane()
    metric = calibrate(plane_metric, steps, seed=0)
    exact = bisimulation_distances(mdp, first_edges(mdp))
    pairs = held_out_pairs(metric, steps, "test", seed=0)["random"]
    distance, difference = pair_distances(metric, steps, pairs), value_differences(values, pairs)
    assert np.mean(difference <= distance) >= 0.99
    assert np.median(distance[difference > 0] / difference[difference > 0]) <= 3
    assert np.corrcoef(distance, exact[tuple(pairs.T)])[0, 1] > 0.95


def test_near_pairs_are_the_nearest_held_out_states(plane_metric: BisimulationMetric) -> None:
    _, steps, _ = plane()
    rows = plane_metric.split.rows(steps.states, "test")
    near = held_out_pairs(plane_metric, steps, "test", seed=0)["near"]
    points = (steps.states - plane_metric.mean) / plane_metric.std
    for row in rows:
        distance = np.linalg.norm(points[rows] - points[row], axis=1)
        paired = np.linalg.norm(points[near[near[:, 0] == row, 1]] - points[row], axis=1)
        assert np.sort(paired) == pytest.approx(np.sort(distance)[1:5])


def test_equal_values_need_no_factor_and_a_metric_that_sees_no_difference_is_refused(
    plane_metric: BisimulationMetric,
) -> None:
    _, steps, _ = plane()
    equal = calibrate(plane_metric, replace(steps, rewards=np.zeros(SIDE**2)), seed=0)
    assert equal.margin == plane_metric.margin
    blind = eqx.tree_at(lambda metric: metric.scale, plane_metric, np.float32(0) * plane_metric.scale)
    with pytest.raises(DataError, match="separates states of different value"):
        calibrate(blind, steps, seed=0)


def test_value_differences_below_rounding_count_as_none() -> None:
    values = np.array([1e6, 1e6 + 1e-5, 1e6 + 1.0])
    assert value_differences(values, np.array([[0, 1], [0, 2]])).tolist() == [0.0, 1.0]


def test_what_cannot_be_calibrated_is_refused(plane_metric: BisimulationMetric) -> None:
    _, steps, _ = plane()
    with pytest.raises(SettingError, match="share"):
        calibrate(plane_metric, steps, share=1.0, seed=0)
    few = replace(plane_metric, split=StateSplit(seed=0, held_out=0.01))
    with pytest.raises(DataError, match="too small to calibrate a metric; use more data"):
        calibrate(few, steps, seed=0)
