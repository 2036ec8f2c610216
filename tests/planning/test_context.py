"""What planning takes from a model and a log."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial import cKDTree

from bats.config import ModelConfig
from bats.graph.mdp import add_stitches, from_dataset
from bats.metric.scaled import ScaledMetric
from bats.model.fit import Model
from bats.model.held_out import LocalErrors, predict_rows, prediction_errors
from bats.model.training import split_rows, untrained
from bats.planning.context import PlanningContext, action_bounds
from tests.mdps import mdp_from_edges, stitches_between
from tests.model_logs import linear_log


def test_action_bounds_are_those_of_the_logged_actions_alone() -> None:
    mdp = mdp_from_edges(3, [(0, 1, 0.0), (1, 2, 0.0), (2, 0, 0.0)])  # actions 0, 1 and 2
    beyond = stitches_between([0], [2], action=np.array([[[9.0]]]))
    low, high = action_bounds(add_stitches(mdp, beyond, stitch_round=1))
    assert (low.tolist(), high.tolist()) == ([0.0], [2.0])


def test_discrete_actions_are_shares_of_each() -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (1, 0, 0.0)])
    low, high = action_bounds(replace(mdp, action=np.array([1, 0]), action_count=4))
    assert (low.tolist(), high.tolist()) == ([0.0] * 4, [1.0] * 4)


LOG = linear_log(1000, noise=0.05)


def untrained_model() -> Model:
    config, split = ModelConfig(members=2, elites=2, hidden=(8,)), split_rows(LOG, seed=0)
    dynamics, _ = untrained(LOG, split, config, seed=0)
    return Model(dynamics, predict_rows(dynamics, LOG, split.held_out), config, 0)


def test_half_of_the_held_out_rows_estimate_errors_and_only_if_they_should() -> None:
    model, metric, mdp = untrained_model(), ScaledMetric(np.ones(2, dtype=np.float32)), from_dataset(LOG)
    context = PlanningContext.of(model, metric, mdp, local_error=True)
    first, _ = model.held_out.halves()
    assert context.local_errors is not None
    assert context.local_errors.errors[:, 0] == pytest.approx(prediction_errors(first, metric))
    assert context.local_errors.tree.data == pytest.approx(first.observations)
    assert PlanningContext.of(model, metric, mdp, local_error=False).local_errors is None


@pytest.mark.parametrize(
    ("error", "length"),
    [(0.0, 25), (0.001, 25), (0.02, 19), (0.11, 3), (0.5, 1), (math.inf, 1)],
)
def test_plans_are_as_long_as_the_errors_of_the_model_allow(error: float, length: int) -> None:
    """Errors of 0.02 add up to less than a tolerance of 0.4 in 19 actions; one error of 9 among 8 is not ordinary."""
    context = PlanningContext.of(untrained_model(), ScaledMetric.of(LOG), from_dataset(LOG), local_error=True)
    context = replace(context, local_errors=LocalErrors(cKDTree(np.zeros((8, 1))), np.array([[error]] * 7 + [[9.0]])))
    assert context.reliable_length(0.4) == length
    assert replace(context, local_errors=None).reliable_length(0.4) == 25
