"""Logs of systems that are known exactly, for the tests of the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bats.data.dataset import Dataset

MATRIX = np.array([[0.95, 0.1], [-0.1, 0.95]])
PUSH = np.array([[0.0, 0.3]])
GOAL = 2.1
"""the first number of a state beyond which an episode of `wide_log` terminates, in about one row of a hundred"""


def linear_log(rows: int, *, noise: float, seed: int = 0) -> Dataset:
    """s' = s MATRIX + a PUSH + noise; the reward is 1 in the half plane s'_0 > 0.5, and nothing terminates."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(rows, 2))
    actions = rng.uniform(-1, 1, (rows, 1))
    after = states @ MATRIX + actions @ PUSH + noise * rng.normal(size=(rows, 2))
    return Dataset.from_arrays(states, actions, (after[:, 0] > 0.5).astype(float), next_observations=after)


def wide_log(
    rows: int, reward: Callable[[np.ndarray, np.ndarray], np.ndarray], *, width: int = 6, seed: int = 0
) -> Dataset:
    """Numbers that drift by the action, of which only the first one matters for terminations; `reward` is of the next
    states and the actions."""
    rng = np.random.default_rng(seed)
    states, actions = rng.normal(size=(rows, width)), rng.uniform(-1, 1, (rows, 1))
    after = 0.9 * states + 0.3 * actions
    return Dataset.from_arrays(
        states,
        actions,
        reward(after, actions[:, 0]),
        next_observations=after,
        terminations=after[:, 0] > GOAL,
    )


def rare_goal_reward(after: np.ndarray, action: np.ndarray) -> np.ndarray:
    """A small dense cost, and 100 where the episode terminates."""
    return 100.0 * (after[:, 0] > GOAL) - 0.1 * action**2
