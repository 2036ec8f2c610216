"""D4RL's maze2d logs, collected again: one run without resets, from target to target, with noisy actions.

D4RL's collector has a slip that is repeated here, since it shapes the run: in the step after a target was reached, the
controller still acts on the state before (and once more after that step, if the same cell is drawn as the next target).
The published files record what the controller observed, a `dataset` records where the ball was:

    row                  t-1     t      t+1    t+2          the target is reached in row t
    state of the ball    s t-1   s t    s t+1  s t+2        `dataset`: these, each with the state that followed
    published files      s t-1   s t    s t    s t+2        `published`: what the controller observed
    their `timeouts`     false   true   false  false

Published files also pair each row with the reward of the row's own state, while a `dataset` has the reward of the state
after the step, as the environment gives it. A reader of the published layout therefore sees rewards one row late, a
step without motion in each row t, and a step of double length in the row after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32, Int

from bats.arrays import Arrays, Progress, no_progress
from bats.data.dataset import Dataset
from bats.data.formats.hdf5 import write_fields
from bats.tasks.common import check_rows, generator
from bats.tasks.maze2d.maps import START_SPREAD, Maze, start_state
from bats.tasks.maze2d.physics import MazePhysics
from bats.tasks.maze2d.waypoints import WaypointController

ACTION_NOISE = 0.5
BLOCK = 10_000
"""rows between two progress reports; noise is drawn in blocks of this size as well"""


@dataclass(frozen=True, eq=False)
class MazeLog:
    """A run through a maze, in single precision like D4RL's files."""

    maze: Maze
    states: Float32[np.ndarray, "M 4"]
    """the state before every action, and the last one"""
    actions: Float32[np.ndarray, "N 2"]
    arrivals: Bool[np.ndarray, "N"]
    """the target changes after this row: it was reached, or given up after an episode's length"""
    observed: Int[np.ndarray, "N"]
    """index in `states` of the state that the controller acted on"""
    targets: Float32[np.ndarray, "N 2"]

    def dataset(self) -> Dataset:
        """The log with the true state, next state and reward in every row."""
        states, next_states = self.states[:-1], self.states[1:]
        rewards = self.maze.at_goal(next_states).astype(np.float32)
        return Dataset.from_arrays(states, self.actions, rewards, next_observations=next_states, name=self.maze.task)

    def published(self) -> Arrays:
        """The arrays of D4RL's files under their keys, slips included."""
        observations = self.states[self.observed]
        return {
            "observations": observations,
            "actions": self.actions,
            "rewards": self.maze.at_goal(observations).astype(np.float32),
            "terminals": np.zeros(len(self.actions), dtype=bool),
            "timeouts": self.arrivals,
            "infos/goal": self.targets,
            "infos/qpos": self.states[:-1, :2],
            "infos/qvel": self.states[:-1, 2:],
        }


def write_published(arrays: Arrays, path: Path | str) -> None:
    """Writes the arrays of `MazeLog.published` as HDF5. Raises `OutputError` if the file exists already."""
    write_fields(arrays, Path(path))


def collect_maze(
    maze: Maze, rows: int | None, seed: int, *, noise: float = ACTION_NOISE, progress: Progress = no_progress
) -> MazeLog:
    """Collects one run of `rows` steps; None: the size of D4RL's log. The same seed gives the same bytes.

    `noise` is the std of what is added to the controller's actions; D4RL's files have 0.5.
    """
    rows = check_rows(rows, maze.log_rows)
    start_rng, target_rng, waypoint_rng, noise_rng = generator(seed).spawn(4)
    physics = MazePhysics(maze)
    controller = WaypointController(maze, waypoint_rng)
    states, actions = np.empty((rows + 1, 4), np.float32), np.empty((rows, 2), np.float32)
    arrivals, observed = np.zeros(rows, bool), np.empty(rows, np.int64)
    targets = np.empty((rows, 2), np.float32)

    x, y, u, v = start_state(maze.cells[start_rng.integers(len(maze.cells))], start_rng).tolist()
    state = observation = (x, y, u, v)
    states[0] = state
    observed_row, target_steps, target_row = 0, 0, 0
    target = maze.cells[target_rng.integers(len(maze.cells))]
    for row in range(rows):
        if row % BLOCK == 0:
            progress("collecting", row, rows)
            # drawn in blocks, because a call for every row would slow the loop down
            noises = noise_rng.normal(0, noise, (BLOCK, 2)).tolist()
        force_x, force_y, arrived = controller.act(observation, target)
        noise_x, noise_y = noises[row % BLOCK]
        action = max(-1.0, min(1.0, force_x + noise_x)), max(-1.0, min(1.0, force_y + noise_y))
        observed[row], actions[row] = observed_row, action
        state = physics.step(state, action)
        states[row + 1] = state
        if arrived or target_steps >= maze.episode_steps:
            arrivals[row] = True
            targets[target_row : row + 1] = target + target_rng.uniform(-START_SPREAD, START_SPREAD, 2)
            target = maze.cells[target_rng.integers(len(maze.cells))]
            target_steps, target_row = 0, row + 1
        else:
            # D4RL's slip: only this branch refreshes the observation, so an arrival is followed by a stale one
            observation, observed_row = state, row + 1
            target_steps += 1
    targets[target_row:] = target + target_rng.uniform(-START_SPREAD, START_SPREAD, 2)
    progress("collecting", rows, rows)
    return MazeLog(maze, states, actions, arrivals, observed, targets)
