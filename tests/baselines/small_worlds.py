"""Small worlds with known optima, logs of them, and training that is small enough for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
import pytest

from bats.baselines.catalogue import METHODS
from bats.baselines.config import Baseline
from bats.baselines.core import TrainingState
from bats.baselines.training import Trainer
from bats.data.dataset import Dataset
from bats.model.ensemble import Dynamics
from bats.networks.mlp import MLP
from bats.policy.policy import Policy
from tests.baselines.hand_made import known_model

STEP, EPISODE, EPISODES = 0.25, 8, 250
STARTS = np.linspace(-1.0, 1.0, 41)[:, None]
UPDATES = 1500

Act = Callable[[np.ndarray], np.ndarray]


def line_step(states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A point on the line from -1 to 1: x' = x + a / 4, at the walls no farther; the reward is -x'^2."""
    after = np.clip(states + STEP * actions, -1.0, 1.0)
    return after, -(after[:, 0] ** 2)


def best_action(states: np.ndarray) -> np.ndarray:
    """To 0 as fast as possible."""
    return np.clip(-states / STEP, -1.0, 1.0)


def mean_return(act: Act) -> float:
    """From starts all over the line."""
    states, total = STARTS, 0.0
    for _ in range(EPISODE):
        states, rewards = line_step(states, act(states))
        total += rewards.mean()
    return total


@lru_cache
def line_log() -> Dataset:
    """Two of three actions are good ones with noise, the others are anything. Actions are in twelfths of a step."""
    rng = np.random.default_rng(0)
    states, rows = rng.uniform(-1, 1, (EPISODES, 1)), []
    for step in range(EPISODE):
        good = best_action(states) + 0.3 * rng.normal(size=states.shape)
        actions = np.where(rng.random(states.shape) < 2 / 3, good, rng.uniform(-1, 1, states.shape)).clip(-1, 1)
        after, rewards = line_step(states, actions)
        rows.append((states, 12 * actions, rewards, after, np.full(EPISODES, step == EPISODE - 1)))
        states = after
    columns = [np.stack(column, axis=1).reshape(EPISODES * EPISODE, -1) for column in zip(*rows, strict=True)]
    observations, actions, rewards, next_observations, ends = columns
    return Dataset.from_arrays(
        observations, actions, rewards, next_observations=next_observations, episode_ends=ends.astype(bool)
    )


@lru_cache
def line_model() -> Dynamics:
    """The world of `line_log` without its walls."""
    # silu(u) + silu(-u) = u tanh(u / 2), which is u^2 / 2 for small u
    slope = 0.2
    first = (jnp.array([[0.0, 0.0], [0.0, 0.0], [slope, -slope]]), jnp.zeros(2))
    second = (jnp.full((2, 1), -2 / slope**2), jnp.zeros(1))
    return known_model(STEP / 12, MLP((first[0], second[0]), (first[1], second[1])), None)


def acting(policy: Policy) -> Act:
    """A policy of `line_log` in the world."""
    return lambda states: policy.predict(states) / 12


@lru_cache
def two_state_log(*, discrete: bool = False) -> Dataset:
    """States -1 and 1; action -1 or 1 leads to the state of that name; rewards 0 and 1 in state -1, 0 and 2 in state 1.

    Both actions are equally common in both states. With a discount of 0.8, the log's policy has the values 3.5 and 4
    (their mean is 0.75 / 0.2 = 3.75), and the best policy, which is always 1, has the values 9 and 10.
    """
    states = np.tile([-1.0, -1.0, 1.0, 1.0], 25)[:, None]
    actions = np.tile([-1.0, 1.0, -1.0, 1.0], 25)[:, None]
    rewards = np.tile([0.0, 1.0, 0.0, 2.0], 25)
    chosen = (actions[:, 0] > 0).astype(int) if discrete else actions
    ends = np.ones(len(states), bool)
    return Dataset.from_arrays(states, chosen, rewards, next_observations=actions, episode_ends=ends)


SMALL = {
    **{"updates": UPDATES, "batch_size": 64, "gamma": 0.8, "hidden": (64,), "critic_hidden": (64,)},
    **{"learning_rate": 2e-3, "critic_learning_rate": 2e-3, "target_rate": 0.02, "snapshots": 1, "normalize": False},
}
OWN = {
    "cql": {"alpha": 0.1, "target_gap": None, "sampled_actions": 4},
    "combo": {"sampled_actions": 4, "beta": 0.1},
    "brac-v": {"behaviour_updates": 500, "warm_start": 100, "behaviour_learning_rate": 5e-3, "penalty": 0.02},
    "bear": {
        **{"behaviour_hidden": (64,), "sampled_actions": 8, "target_actions": 4, "warm_start": 200},
        **{"threshold": 0.1, "kernel_width": 10.0},
    },
    "rebrac": {"policy_penalty": 0.1, "critic_penalty": 0.01},
}


HEAVY = ("brac-v", "bear", "cql", "combo")
"""methods whose programs take longest to compile"""
EACH_METHOD = [pytest.param(name, marks=pytest.mark.slow) if name in HEAVY else name for name in METHODS]


def small_config(name: str, **changes: object) -> Baseline:
    """Settings with which a method learns the line in a few seconds."""
    config = METHODS[name].config
    known = {field.name for field in fields(config)}
    settings = {**SMALL, **OWN.get(name, {}), **changes}
    return config(**{setting: value for setting, value in settings.items() if setting in known})


def small_trainer(name: str, log: Dataset | None = None, seeds: tuple[int, ...] = (0,), **changes: object) -> Trainer:
    method = METHODS[name]
    models = [line_model()] * len(seeds) if method.extend is not None else []
    dataset = line_log() if log is None else log
    return Trainer.of(method, small_config(name, **changes), [dataset], [(0, seed) for seed in seeds], models)


@lru_cache
def trained(name: str) -> tuple[Trainer, TrainingState]:
    """A method after its training on the line."""
    trainer = small_trainer(name)
    states = trainer.initial()
    for reached in trainer.train(states):
        states = reached.states
    return trainer, states
