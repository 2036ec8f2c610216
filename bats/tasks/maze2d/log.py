"""D4RL's maze2d logs, collected again: one run without resets, from target to target, with noisy actions.

The run is D4RL's, and so is a slip in it: in the step after a target was reached the controller still looks at the
state before (and after that step too, where the same cell is drawn again). What differs is what is written down:

    row                  t-1     t      t+1    t+2          the target is reached in row t
    state of the ball    s t-1   s t    s t+1  s t+2        `dataset`: these, each with the state that followed
    published files      s t-1   s t    s t    s t+2        `published`: what the controller looked at
    their `timeouts`     false   true   false  false

Also, published files carry the reward of the state in the same row, `dataset` that of the state after the step, as
the environment pays it. So a reader of the published layout sees, besides rewards one row late, a step that stands
still in each row t and one that spans two steps in the row after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float32, Int

from bats.arrays import Progress, no_progress
from bats.data.dataset import Dataset
from bats.tasks.maze2d.maps import START_SPREAD, Maze, start_state
from bats.tasks.maze2d.physics import MazePhysics
from bats.tasks.maze2d.waypoints import WaypointController
from bats.tasks.recording import check_rows
from bats.tasks.seeds import generator

ACTION_NOISE = 0.5
BLOCK = 10_000
"""rows between two reports; random numbers are drawn in blocks of this size as well"""


@dataclass(frozen=True, eq=False)
class MazeLog:
    """A run through a maze, as it was; single precision, as D4RL's files."""

    maze: Maze
    states: Float32[np.ndarray, "M 4"]
    """one more than there are rows: the state before every action, then the last"""
    actions: Float32[np.ndarray, "N 2"]
    arrivals: Bool[np.ndarray, "N"]
    """the controller was done with its target in this row: reached, or given up after an episode's length"""
    seen: Int[np.ndarray, "N"]
    """which of `states` the controller looked at"""
    targets: Float32[np.ndarray, "N 2"]

    def dataset(self) -> Dataset:
        """The log with every row right."""
        return Dataset.from_arrays(
            self.states[:-1],
            self.actions,
            self.maze.at_goal(self.states[1:]).astype(np.float32),
            next_observations=self.states[1:],
            name=self.maze.task,
        )

    def published(self) -> dict[str, np.ndarray]:
        """The arrays of D4RL's files under their keys, slips included."""
        observations = self.states[self.seen]
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

    def misread(self) -> Bool[np.ndarray, "N"]:
        """Rows whose step a reader of the published layout sees wrongly: it starts late or ends early."""
        late = self.seen != np.arange(len(self.seen))
        return late | np.append(late[1:], False)


def collect_maze(
    maze: Maze, rows: int, seed: int, *, noise: float = ACTION_NOISE, progress: Progress = no_progress
) -> MazeLog:
    """Collects `rows` steps of one run. The same seed gives the same bytes.

    `noise` is the deviation of what is added to the controller's actions; D4RL's files have 0.5.
    """
    check_rows(rows)
    starting, targeting, planning, disturbing = generator(seed).spawn(4)
    physics = MazePhysics(maze)
    controller = WaypointController(maze, planning)
    states, actions = np.empty((rows + 1, 4), np.float32), np.empty((rows, 2), np.float32)
    arrivals, seen = np.zeros(rows, bool), np.empty(rows, np.int64)
    targets = np.empty((rows, 2), np.float32)

    first = start_state(maze.cells[starting.integers(len(maze.cells))], starting).tolist()
    state = looked_at = (first[0], first[1], first[2], first[3])
    states[0] = state
    looked_at_row, since_target, target_from = 0, 0, 0
    cell = maze.cells[targeting.integers(len(maze.cells))]
    for row in range(rows):
        if row % BLOCK == 0:
            progress("collect", row, rows)
            disturbances = disturbing.normal(0, noise, (BLOCK, 2)).tolist()
        along, across, arrived = controller.act(looked_at, cell)
        push, pull = disturbances[row % BLOCK]
        action = max(-1.0, min(1.0, along + push)), max(-1.0, min(1.0, across + pull))
        seen[row] = looked_at_row
        actions[row] = action
        state = physics.step(state, action)
        states[row + 1] = state
        if arrived or since_target >= maze.episode_steps:
            arrivals[row] = True
            targets[target_from : row + 1] = cell + targeting.uniform(-START_SPREAD, START_SPREAD, 2)
            cell = maze.cells[targeting.integers(len(maze.cells))]
            since_target, target_from = 0, row + 1
        else:
            looked_at, looked_at_row = state, row + 1
            since_target += 1
    targets[target_from:] = cell + targeting.uniform(-START_SPREAD, START_SPREAD, 2)
    progress("collect", rows, rows)
    return MazeLog(maze, states, actions, arrivals, seen, targets)
