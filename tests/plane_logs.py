"""Logs of moves in a plane, where an action is a move of up to `REACH` in each direction."""

from __future__ import annotations

import numpy as np

from bats.data.dataset import Dataset
from bats.metric.scaled import ScaledMetric
from bats.model.held_out import LocalErrors
from bats.planning.context import PlanningContext
from tests.known_worlds import context_of, plane

REACH = 0.06


def crossing() -> Dataset:
    """One episode to the right that earns nothing, and one upwards that crosses it and ends where 1 is earned for
    ever. The first one's beginning is the only start."""
    right = np.stack([REACH * np.arange(11), np.zeros(11)], axis=1)
    up = np.stack([np.full(11, 0.3), REACH * (np.arange(11) - 5.5)], axis=1)
    stay = np.repeat(up[-1:], 2, axis=0)
    return _log([right, up, stay], rewards=[0.0, 0.0, 1.0])


def three_lanes() -> Dataset:
    """Three episodes to the right: the start's, which ends where little is earned; one beside it that ends in nothing;
    and one beside that, too far from the first to be its neighbour, that ends where 1 is earned for ever. On the first
    one's other side there is a state that earns 0.2."""
    lanes = [np.stack([REACH * np.arange(11), np.full(11, height)], axis=1) for height in (0.0, 0.05, 0.1)]
    ends = [np.repeat([end], 2, axis=0) for end in ([0.6, 0.0], [0.6, 0.1], [0.3, -0.05])]
    return _log([*lanes, *ends], rewards=[0.0, 0.0, 0.0, 0.01, 1.0, 0.2])


def plane_context(log: Dataset, *, shift: float = 0.0, local_errors: LocalErrors | None = None) -> PlanningContext:
    """The exact model of the plane in three members, two of which are shifted."""
    bounds = (np.full(2, -REACH), np.full(2, REACH))
    metric = ScaledMetric.of(log, "raw")
    return context_of(plane(-shift, 0.0, shift), metric, bounds=bounds, local_errors=local_errors)


def _log(episodes: list[np.ndarray], *, rewards: list[float]) -> Dataset:
    """Episodes through these states, with one reward for every step of each."""
    lengths = [len(states) - 1 for states in episodes]
    states = np.concatenate([states[:-1] for states in episodes]).astype(np.float32)
    after = np.concatenate([states[1:] for states in episodes]).astype(np.float32)
    last = np.zeros(len(states), dtype=bool)
    last[np.cumsum(lengths) - 1] = True
    reward = np.repeat(rewards, lengths).astype(np.float32)
    log = Dataset.from_arrays(states, after - states, reward, next_observations=after, timeouts=last)
    return log.with_starts(np.array([0]))
