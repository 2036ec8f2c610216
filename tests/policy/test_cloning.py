"""Cloning of experts that are known: linear, disturbed and discrete ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from bats.config import CloningConfig
from bats.errors import DataError
from bats.networks.mlp import MLP
from bats.policy import cloning
from bats.policy.cloning import clone, held_out_rows
from bats.policy.demonstrations import Demonstrations
from bats.policy.policy import Policy
from tests.compilations import compilations

ROWS = 2000
"""one number of rows and one setting for most tests, so that they share compiled programs"""
CONFIG = CloningConfig(hidden=(32, 32), updates=600, batch_size=128)


@pytest.fixture(autouse=True, scope="module")
def short_training() -> Iterator[None]:
    """Few updates with a higher rate, and two evaluations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cloning, "LEARNING_RATE", 3e-3)
        patch.setattr(cloning, "EVALUATE_EVERY", 300)
        yield


def expert_rows(
    actions: np.ndarray, states: np.ndarray, *, rollouts: int = 20, action_count: int | None = None
) -> Demonstrations:
    """Rows as `demonstrate` gives them, with actions between -1 and 1."""
    count, width = len(states), 0 if action_count else actions.shape[1]
    return Demonstrations(
        states=states,
        actions=actions,
        weights=np.full(count, 1 / count),
        group=np.arange(count) * rollouts // count,
        low=np.full(width, -1.0),
        high=np.full(width, 1.0),
        action_count=action_count,
    )


def random_states(count: int = ROWS, *, seed: int = 0) -> np.ndarray:
    """States of two numbers with very different means and scales."""
    return np.random.default_rng(seed).normal([5.0, -100.0], [0.5, 20.0], (count, 2))


def linear_expert(states: np.ndarray) -> np.ndarray:
    scaled = (states - [5.0, -100.0]) / [0.5, 20.0]
    return np.clip(scaled @ np.array([[0.3], [-0.2]]), -1, 1)


@pytest.fixture(scope="module")
def linear_policy(short_training: None) -> Policy:
    states = random_states()
    return clone(expert_rows(linear_expert(states), states), CONFIG, seed=0)


def test_a_linear_expert_is_cloned_to_two_hundredths(linear_policy: Policy) -> None:
    fresh = random_states(1000, seed=1)
    assert np.sqrt(np.mean((linear_policy.predict(fresh) - linear_expert(fresh)) ** 2)) < 0.02


def test_the_policy_computes_what_the_trained_network_does(linear_policy: Policy) -> None:
    states = random_states(100, seed=1)
    network = MLP(linear_policy.weights, linear_policy.biases)
    inputs = jnp.asarray((states - linear_policy.mean) / linear_policy.std, jnp.float32)
    mean = np.asarray(eqx.filter_jit(network)(inputs))[:, :1]
    assert linear_policy.predict(states) == pytest.approx(np.clip(mean, -1, 1), abs=1e-5)
    assert linear_policy.distribution(states)[0] == pytest.approx(mean, abs=1e-5)


def test_the_same_seed_gives_the_same_policy_and_compiles_nothing_anew(linear_policy: Policy) -> None:
    states = random_states()
    rows = expert_rows(linear_expert(states), states)
    calls: list[tuple[int, int]] = []
    with compilations() as names:
        again = clone(rows, CONFIG, seed=0, progress=lambda stage, done, total: calls.append((done, total)))
        other = clone(rows, CONFIG, seed=1)
    assert names == []
    assert calls == [(300, 600), (600, 600)]
    assert all(np.array_equal(*pair) for pair in zip(linear_policy.weights, again.weights, strict=True))
    assert not np.array_equal(linear_policy.weights[0], other.weights[0])


def test_what_a_controller_wanted_is_found_behind_disturbances_that_the_bounds_clip() -> None:
    states = random_states()
    rng = np.random.default_rng(2)
    actions = np.clip(1.0 + rng.normal(0, 0.5, (ROWS, 1)), -1, 1)  # 1 everywhere is wanted; the mean of these is 0.8
    rows = expert_rows(actions, states)
    censored, plain = (
        clone(rows, replace(CONFIG, censored=choice), seed=0).predict(states).mean() for choice in (True, False)
    )
    assert plain == pytest.approx(0.8, abs=0.03)
    assert censored > 0.93


def test_discrete_experts_are_cloned_too() -> None:
    states = random_states()
    expert = (states[:, 0] > 5).astype(np.int32) + 2 * (states[:, 1] > -100).astype(np.int32)
    policy = clone(expert_rows(expert, states, action_count=4), CONFIG, seed=0)
    fresh = random_states(1000, seed=1)
    expected = (fresh[:, 0] > 5) + 2 * (fresh[:, 1] > -100)
    assert np.mean(policy.predict(fresh) == expected) > 0.96


def test_rows_without_weight_are_not_learned_from() -> None:
    states = random_states()
    right = np.arange(ROWS) % 2 == 0
    rows = expert_rows(np.where(right, 0.5, -0.5)[:, None], states)
    policy = clone(replace(rows, weights=right / right.sum()), CONFIG, seed=0)
    assert policy.predict(states).mean() == pytest.approx(0.5, abs=0.05)


def test_two_actions_in_the_same_states_are_cloned_as_their_mean() -> None:
    states = random_states()
    actions = np.random.default_rng(4).choice([0.2, 0.6], (ROWS, 1))
    policy = clone(expert_rows(actions, states), CONFIG, seed=0)
    assert policy.predict(states).mean() == pytest.approx(0.4, abs=0.03)


def test_of_few_demonstrations_none_is_held_out() -> None:
    """Every row is the only one of its kind, as in a small discrete world, and all are learned."""
    states = np.arange(12.0)[:, None]
    expert = np.random.default_rng(0).integers(0, 4, 12)
    config = CloningConfig(hidden=(64, 64), updates=1500, batch_size=32)
    policy = clone(expert_rows(expert, states, action_count=4), config, seed=0)
    assert policy.predict(states).tolist() == expert.tolist()


def test_a_single_demonstration_is_enough_and_none_is_refused() -> None:
    config = CloningConfig(hidden=(8,), updates=300, batch_size=16)
    single = expert_rows(np.full((1, 1), 0.5), np.zeros((1, 1)))
    assert clone(single, config, seed=0).predict([0.0]) == pytest.approx([0.5], abs=0.05)
    none = replace(
        single,
        states=np.zeros((0, 1)),
        actions=np.zeros((0, 1)),
        weights=np.zeros(0),
        group=np.zeros(0, dtype=np.int64),
    )
    with pytest.raises(DataError, match="at least one row to clone"):
        clone(none, config, seed=0)


def test_rows_of_one_rollout_are_held_out_together() -> None:
    group = np.repeat(np.arange(20), 10)
    held_out = held_out_rows(group, seed=0)
    assert held_out.sum() == 20
    assert all(len(set(held_out[group == rollout])) == 1 for rollout in range(20))


def test_segments_are_held_out_where_there_is_one_rollout_only() -> None:
    held_out = held_out_rows(np.zeros(1000, dtype=np.int64), seed=0)
    assert held_out.sum() == 100
    assert np.count_nonzero(np.diff(held_out.astype(int))) <= 8  # four segments of 25 rows
