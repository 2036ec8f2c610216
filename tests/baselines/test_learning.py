"""Each method learns a world whose optimum is known; IQL and cloning evaluate a policy whose value is known."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bats.baselines.training import Trainer
from tests.baselines.small_worlds import (
    EACH_METHOD,
    EPISODE,
    EPISODES,
    acting,
    best_action,
    line_log,
    mean_return,
    small_trainer,
    trained,
    two_state_log,
)

BEST = mean_return(best_action)
LOGGED = float(line_log().rewards.sum()) / EPISODES


def test_the_log_is_much_worse_than_the_optimum() -> None:
    # from x = 0, 1/20, ... 1: what is left after steps of 1/4, squared and summed
    assert (
        pytest.approx(
            -np.mean([sum(max(k - 5 * n, 0) ** 2 for n in range(1, 5)) / 400 for k in range(21)] * 2), abs=0.01
        )
        == BEST
    )
    assert LOGGED < BEST - 0.4
    assert mean_return(np.zeros_like) < LOGGED - 1
    assert len(line_log()) == EPISODE * EPISODES


@pytest.mark.parametrize("name", EACH_METHOD)
def test_each_method_learns_the_line(name: str) -> None:
    trainer, states = trained(name)
    reached = mean_return(acting(trainer.policy(states, 0)))
    assert reached <= BEST + 1e-6
    if name == "bc":  # the mean of the log's actions, without their noise
        assert reached > LOGGED
    else:
        assert reached > BEST - 0.2 * (BEST - LOGGED)


EVALUATION = {"expectile": 0.5, "inverse_temperature": 0.0, "gamma": 0.8, "updates": 2000}
"""IQL with the mean of the logged actions' values, and plain cloning"""
BOTH_STATES = np.array([[-1.0], [1.0]], np.float32)


@lru_cache
def two_state_runs(name: str, *, discrete: bool, **changes: float) -> tuple[Trainer, Any]:
    trainer = small_trainer(name, two_state_log(discrete=discrete), **changes)
    states = trainer.initial()
    for reached in trainer.train(states):
        states = reached.states
    return trainer, states


def learned_values(states: Any) -> np.ndarray:
    """The values of both states."""
    network = jax.tree.map(lambda leaf: leaf[0], states.networks["value"])
    return np.asarray(network(jnp.asarray(BOTH_STATES)))[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("discrete", [False, True])
def test_iql_without_preferences_learns_the_value_of_the_logs_policy(discrete: bool) -> None:
    trainer, states = two_state_runs("iql", discrete=discrete, **EVALUATION)
    assert learned_values(states) == pytest.approx([3.5, 4.0], abs=0.1)
    policy = trainer.policy(states, 0)
    if discrete:
        assert policy.probabilities(BOTH_STATES) == pytest.approx(np.full((2, 2), 0.5), abs=0.05)
    else:
        assert policy.predict(BOTH_STATES) == pytest.approx(np.zeros((2, 1)), abs=0.1)


@pytest.mark.parametrize("discrete", [pytest.param(False, marks=pytest.mark.slow), True])
def test_iql_with_a_large_expectile_learns_the_best_policy_and_its_value(discrete: bool) -> None:
    settings = {**EVALUATION, "expectile": 0.99, "inverse_temperature": 3.0}
    trainer, states = two_state_runs("iql", discrete=discrete, **settings)
    assert learned_values(states) == pytest.approx([9.0, 10.0], abs=0.4)
    policy = trainer.policy(states, 0)
    if discrete:
        assert policy.predict(BOTH_STATES).tolist() == [1, 1]
    else:
        assert np.all(policy.predict(BOTH_STATES) > 0.9)


@pytest.mark.parametrize("discrete", [False, True])
def test_cloning_learns_the_logs_policy(discrete: bool) -> None:
    trainer, states = two_state_runs("bc", discrete=discrete, updates=500)
    policy = trainer.policy(states, 0)
    if discrete:
        assert policy.probabilities(BOTH_STATES) == pytest.approx(np.full((2, 2), 0.5), abs=0.05)
    else:  # -1 and 1, equally often: mean 0 and std 1
        mean, std = policy.distribution(BOTH_STATES)
        assert mean == pytest.approx(np.zeros((2, 1)), abs=0.1)
        assert std == pytest.approx(np.ones((2, 1)), abs=0.1)
