"""A synthetic log shaped like a maze's: one long run back and forth through a corridor, of any length at once."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from bats.data.dataset import Dataset
from bats.graph.mdp import Stitches, TabularMDP

STEP = 0.01
"""distance of one step; the corridor has length 1"""
GOAL = (0.45, 0.5)
"""the part of the corridor with reward 1"""
NEARBY = 50
"""states between the two ends of a stitch at most, in the order of their positions"""


def corridor_log(rows: int, *, seed: int = 0) -> Dataset:
    """A log of `rows` transitions: 4 observation and 2 action numbers in single precision, no state visited twice."""
    rng = np.random.default_rng(seed)
    waypoints = rng.random(rows // 20 + 3)  # from one to the next is a third of the corridor, 33 steps, on average
    steps = np.maximum(np.ceil(np.abs(np.diff(waypoints)) / STEP).astype(np.int64), 1)
    last = np.cumsum(steps)
    legs = int(np.searchsorted(last, rows + 1)) + 1
    leg = np.repeat(np.arange(legs), steps[:legs])[: rows + 1]
    progress = (np.arange(rows + 1) - np.concatenate([[0], last])[leg]) / steps[leg]
    position = waypoints[leg] + (waypoints[leg + 1] - waypoints[leg]) * progress
    speed = np.sign(waypoints[leg + 1] - waypoints[leg])
    observations = np.empty((rows + 1, 4), dtype=np.float32)
    observations[:, 0] = position
    observations[:, 1:] = rng.normal(scale=0.01, size=(rows + 1, 3))
    observations[:, 2] += speed
    actions = rng.normal(size=(rows, 2)).astype(np.float32)
    actions[:, 0] += speed[:-1]
    rewards = _at_goal(position[1:]).astype(np.float32)
    return Dataset.from_arrays(observations[:-1], actions, rewards, next_observations=observations[1:], name="corridor")


def nearby_stitches(mdp: TabularMDP, count: int, *, seed: int = 0) -> Stitches:
    """One-step stitches between states that are close in the corridor, forwards or backwards in time."""
    rng = np.random.default_rng(seed)
    order = np.argsort(mdp.states[:, 0], kind="stable")
    first = rng.integers(0, len(order) - NEARBY, size=count)
    second = first + rng.integers(1, NEARBY, size=count)
    forwards = rng.random(count) < 0.5
    target = order[np.where(forwards, second, first)]
    return Stitches(
        source=order[np.where(forwards, first, second)],
        target=target,
        length=np.ones(count, dtype=np.int64),
        action=np.zeros((count, 1, 2), dtype=np.float32),
        state=np.zeros((count, 0, 4), dtype=np.float32),
        reward=_at_goal(mdp.states[target, 0]).astype(np.float64)[:, None],
        planning_error=np.zeros(count, dtype=np.float32),
    )


def _at_goal(position: Float[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
    return (position > GOAL[0]) & (position < GOAL[1])
