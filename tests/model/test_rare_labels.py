"""Rare rewards and terminations: which rows have them, how they are drawn, and that they are learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from bats.config import ModelConfig
from bats.data.dataset import Dataset
from bats.model.fit import Model, fit_model, load_model, save_model
from bats.model.held_out import HeldOut, error_summary, predict_rows
from bats.model.rare_labels import (
    SWITCH_SHARE,
    SWITCH_STEPS,
    has_two_rewards,
    importance_weights,
    oversample,
    rare_reward_rows,
    rows_near_switches,
)
from bats.model.training import split_rows, untrained
from tests.model_logs import GOAL, rare_goal_reward, wide_log

CONFIG = ModelConfig(members=2, elites=2, hidden=(16,), batch_size=128, updates=600, evaluate_every=300, passes=0.0)
WIDTH = 3


@pytest.fixture(scope="module")
def rare_model() -> Model:
    """-0.1 a² for every action, and 100 more where the episode terminates, in one row of a hundred."""
    log = wide_log(6000, rare_goal_reward, width=WIDTH)
    assert 0.005 < log.terminations.mean() < 0.015
    return fit_model(log, CONFIG, seed=0)


def reward_log(rewards: np.ndarray, terminations: np.ndarray | None = None) -> Dataset:
    count = len(rewards)
    states = np.arange(count, dtype=np.float64)[:, None]
    return Dataset.from_arrays(
        states, np.zeros((count, 1)), rewards, next_observations=states + 1, terminations=terminations
    )


def check_rare_rewards_and_terminations(rows: HeldOut) -> None:
    """Small errors everywhere but within 0.05 of the boundary, which so few rows cannot place exactly."""
    error, rare = np.abs(rows.predicted_reward - rows.rewards), rows.rewards > 50
    clear = np.abs(rows.next_observations[:, 0] - GOAL) > 0.05
    assert error[rare & clear].mean() < 25
    assert error[~rare & clear].mean() < 0.5
    predicted, terminates = rows.predicted_termination > 0.5, rows.terminations
    assert predicted[clear & terminates].mean() > 0.9
    assert predicted[clear & ~terminates].mean() < 0.001
    # undoing the oversampling keeps the probabilities those of the log
    assert rows.predicted_termination.mean() == pytest.approx(rows.terminations.mean(), rel=0.15)


@pytest.mark.slow
def test_rare_large_rewards_are_learned_beside_a_small_dense_cost_and_so_are_rare_terminations(
    rare_model: Model,
) -> None:
    fresh = wide_log(8000, rare_goal_reward, width=WIDTH, seed=1)
    check_rare_rewards_and_terminations(predict_rows(rare_model.dynamics, fresh, np.arange(len(fresh))))


@pytest.mark.slow
def test_rare_rewards_and_terminations_are_learned_with_more_numbers_in_a_state() -> None:
    config = replace(CONFIG, members=3, hidden=(32, 32), batch_size=256, updates=1500, evaluate_every=500)
    check_rare_rewards_and_terminations(fit_model(wide_log(20_000, rare_goal_reward), config, seed=0).held_out)


@pytest.mark.slow
def test_a_dense_reward_has_no_rare_ones_and_is_learned() -> None:
    log = wide_log(2000, lambda after, action: after[:, 0] + action**2, width=WIDTH)
    model = fit_model(log, replace(CONFIG, updates=400, evaluate_every=200), seed=0)
    assert not model.dynamics.kind.rare_rewards
    assert model.dynamics.networks.rare is None
    assert error_summary(model.held_out)["reward_mean_absolute"] < 0.03  # its std is about 1


@pytest.mark.slow
def test_a_model_with_rare_rewards_is_saved_and_loaded(rare_model: Model, tmp_path: Path) -> None:
    save_model(rare_model, tmp_path / "model.safetensors")
    loaded = load_model(tmp_path / "model.safetensors").dynamics
    states, actions = jnp.ones((2, 5, WIDTH)), jnp.zeros((2, 5, 1))
    assert loaded.kind == rare_model.dynamics.kind
    assert loaded.kind.rare_rewards
    assert loaded.kind.rare_rewards_terminate
    expected = rare_model.dynamics.reward(states, actions, states)
    assert np.array_equal(loaded.reward(states, actions, states), expected)


@pytest.mark.slow
def test_a_reward_that_only_terminations_have_is_not_expected_of_steps_that_continue(rare_model: Model) -> None:
    dynamics = rare_model.dynamics
    beyond = jnp.full((2, 5, WIDTH), 0.0).at[..., 0].set(3.0)
    actions = jnp.zeros((2, 5, 1))
    assert dynamics.kind.rare_rewards_terminate
    assert float(dynamics.reward(beyond, actions, beyond).min()) > 50
    assert float(jnp.abs(dynamics.continuing_reward(beyond, actions, beyond)).max()) < 1


def test_a_rare_reward_without_a_termination_is_expected_of_steps_that_continue() -> None:
    log = wide_log(500, lambda after, action: 100.0 * (after[:, 1] > GOAL) - 0.1 * action**2, width=WIDTH)
    dynamics, _ = untrained(log, split_rows(log, seed=0), CONFIG, seed=0)
    assert dynamics.kind.rare_rewards
    assert not dynamics.kind.rare_rewards_terminate
    states, actions = jnp.ones((2, 5, WIDTH)), jnp.zeros((2, 5, 1))
    expected = dynamics.reward(states, actions, states)
    assert float(expected.max()) > 10  # before any training a reward is as likely rare as not
    assert np.array_equal(dynamics.continuing_reward(states, actions, states), expected)


def test_the_larger_of_two_rewards_is_rare_and_so_are_rewards_far_outside_the_bulk() -> None:
    two = np.array([0.0, 1.0, 0.0, 0.0])
    assert has_two_rewards(two)
    assert not has_two_rewards(np.zeros(4))
    assert not has_two_rewards(np.array([0.0, 1.0, 2.0]))
    assert rare_reward_rows(reward_log(two), np.arange(4)).tolist() == [False, True, False, False]
    # 99 rewards between 0 and 1, whose bulk is 0.9 wide: 8 above the median is ordinary, 11 below it is rare
    spread = np.append(np.linspace(0.0, 1.0, 99), [8.0, -11.0])
    rare = rare_reward_rows(reward_log(spread), np.arange(99))
    assert np.flatnonzero(rare).tolist() == [100]


def test_rows_near_a_switch_are_those_within_some_steps_where_a_label_changes() -> None:
    count = 100
    terminations = np.arange(count) == 50
    log = reward_log(np.zeros(count), terminations)
    near = rows_near_switches(log, np.arange(count))
    # the label switches after row 49 and after row 50
    assert near.tolist() == list(range(49 - SWITCH_STEPS + 1, 50 + SWITCH_STEPS + 1))
    assert rows_near_switches(log, np.arange(0, count, 2)).tolist() == near[near % 2 == 0].tolist()
    assert len(rows_near_switches(reward_log(np.zeros(count)), np.arange(count))) == 0


def test_importance_weights_undo_the_oversampling() -> None:
    """The weighted share of every row among the drawn ones is the same as in a uniform draw."""
    rng = np.random.default_rng(0)
    count, near = 20, np.array([3, 4, 5])
    drawn = oversample(rng.integers(0, count, (4000, 2, 50)), near, rng)
    assert np.isin(drawn, near).mean() == pytest.approx(SWITCH_SHARE + (1 - SWITCH_SHARE) * 3 / 20, abs=0.01)
    weight = importance_weights(count, near, count)
    shares = np.bincount(drawn.ravel(), weights=weight[drawn.ravel()], minlength=count) / drawn.size
    assert shares == pytest.approx(np.full(count, 1 / count), rel=0.05)
    nothing = np.array([], dtype=np.int64)
    rows = np.zeros((2, 2, 2), dtype=np.int64)
    assert oversample(rows, nothing, rng) is rows
    assert importance_weights(count, nothing, count).tolist() == [1.0] * count
