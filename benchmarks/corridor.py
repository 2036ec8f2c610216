"""A synthetic log shaped like a maze's: one long run back and forth through a corridor, of any length at once."""

from __future__ import annotations

import numpy as np

from bats.data.dataset import Dataset
from bats.graph.mdp import Stitches, TabularMDP

STEP = 0.01
"""distance of one step, where the corridor has length 1"""
GOAL = (0.45, 0.5)
"""the stretch of the corridor that pays"""


def corridor_log(rows: int, *, seed: int = 0) -> Dataset:
    """A log of `rows` transitions: 4 observation and 2 action numbers in single precision, no state met twice."""
    rng = np.random.default_rng(seed)
    goals = rng.random(rows // 20 + 3)  # a leg is a third of the corridor, 33 steps, on average
    steps = np.maximum(np.ceil(np.abs(np.diff(goals)) / STEP).astype(np.int64), 1)
    last = np.cumsum(steps)
    legs = int(np.searchsorted(last, rows + 1)) + 1
    leg = np.repeat(np.arange(legs), steps[:legs])[: rows + 1]
    along = (np.arange(rows + 1) - np.concatenate([[0], last])[leg]) / steps[leg]
    place = goals[leg] + (goals[leg + 1] - goals[leg]) * along
    speed = np.sign(goals[leg + 1] - goals[leg])
    observations = np.empty((rows + 1, 4), dtype=np.float32)
    observations[:, 0] = place
    observations[:, 1:] = rng.normal(scale=0.01, size=(rows + 1, 3))
    observations[:, 2] += speed
    actions = rng.normal(size=(rows, 2)).astype(np.float32)
    actions[:, 0] += speed[:-1]
    rewards = ((place[1:] > GOAL[0]) & (place[1:] < GOAL[1])).astype(np.float32)
    return Dataset.from_arrays(observations[:-1], actions, rewards, next_observations=observations[1:], name="corridor")


def joined_nearby(mdp: TabularMDP, count: int, *, seed: int = 0) -> Stitches:
    """One-step joins between states that lie close in the corridor, in either direction of time."""
    rng = np.random.default_rng(seed)
    order = np.argsort(mdp.states[:, 0], kind="stable")
    first = rng.integers(0, len(order) - 50, size=count)
    near = first + rng.integers(1, 50, size=count)
    there_and_back = rng.random(count) < 0.5
    source, target = order[np.where(there_and_back, first, near)], order[np.where(there_and_back, near, first)]
    place = mdp.states[target, 0]
    return Stitches.judged_by_one(
        source=source,
        target=target,
        length=np.ones(count, dtype=np.int64),
        action=np.zeros((count, 1, 2), dtype=np.float32),
        state=np.zeros((count, 0, 4), dtype=np.float32),
        reward=((place > GOAL[0]) & (place < GOAL[1])).astype(np.float64)[:, None],
        planning_error=np.zeros(count, dtype=np.float32),
    )
