"""What planning takes from a model and a log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bats.config import ModelConfig
from bats.graph.mdp import add_stitches, from_dataset
from bats.metric.scaled import ScaledMetric
from bats.model.fit import Model
from bats.model.held_out import predict_rows, prediction_errors
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


def test_half_of_the_held_out_rows_estimate_errors_and_only_if_they_should() -> None:
    log = linear_log(1000, noise=0.05)
    config, split = ModelConfig(members=2, elites=2, hidden=(8,)), split_rows(log, seed=0)
    dynamics, _ = untrained(log, split, config, seed=0)
    model = Model(dynamics, predict_rows(dynamics, log, split.held_out), config, 0)
    metric, mdp = ScaledMetric(np.ones(2, dtype=np.float32)), from_dataset(log)
    context = PlanningContext.of(model, metric, mdp, local_error=True)
    first, _ = model.held_out.halves()
    assert context.local_errors is not None
    assert context.local_errors.errors[:, 0] == pytest.approx(prediction_errors(first, metric))
    assert context.local_errors.tree.data == pytest.approx(first.observations)
    assert PlanningContext.of(model, metric, mdp, local_error=False).local_errors is None
