"""The mazes of D4RL's maze2d: maps, goals, reference scores, and where episodes begin.

A position is a pair (row direction, column direction). The start point and the goal point of the cell in row i and
column j are exactly (i, j). The walls are shifted by 0.2: the cell reaches from i - 0.7 to i + 0.3, and a ball of
radius 0.1 can be anywhere from i - 0.6 to i + 0.2 in it.

    wall            cell i            wall
    ------|---------------+-----|------        +  the point (i, j), 0.2 beyond the middle of the cell
        i-0.7             i   i+0.3

Scores are normalised with D4RL's published constants: 0 is a random policy and 100 D4RL's waypoint controller, which
loses most of its return to stale waypoints, so good policies score far above 100.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from bats.errors import BatsError
from bats.tasks.common import generator, normalised

Cell = tuple[int, int]
"""row and column in a map"""

GOAL_RADIUS = 0.5
START_SPREAD = 0.1
"""start positions are uniform within this distance of the start point, start velocities normal with this std"""


@dataclass(frozen=True)
class Maze:
    """One map and the task on it. Episodes never terminate; the return is the number of steps spent at the goal."""

    name: str
    drawing: str
    """the rows of the map, one below the other: `#` wall, `O` free, `G` free and the goal"""
    episode_steps: int
    random_return: float
    """mean return that scores 0"""
    reference_return: float
    """mean return that scores 100"""
    log_rows: int
    """size of D4RL's own log"""
    starts_per_cell: int = 4
    """start states in each cell that policies are evaluated from"""
    version: int = 1

    @property
    def task(self) -> str:
        return f"maze2d-{self.name}"

    @property
    def environment(self) -> str:
        """Gymnasium's id."""
        return f"bats/{self.task}-v{self.version}"

    @cached_property
    def rows(self) -> tuple[str, ...]:
        return tuple(self.drawing.split())

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.rows[0])

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell that is not a wall, row by row. Episodes start in all of them with equal probability."""
        return tuple((i, j) for i, row in enumerate(self.rows) for j, mark in enumerate(row) if mark != "#")

    @cached_property
    def walls(self) -> tuple[Cell, ...]:
        return tuple((i, j) for i, row in enumerate(self.rows) for j, mark in enumerate(row) if mark == "#")

    @cached_property
    def goal(self) -> Cell:
        return next((i, j) for i, row in enumerate(self.rows) for j, mark in enumerate(row) if mark == "G")

    def at_goal(self, states: Float[np.ndarray, "N D"]) -> Bool[np.ndarray, "N"]:
        """Whether each state lies in the goal's disc, including its edge."""
        return self.goal_distance(states) <= GOAL_RADIUS

    def goal_distance(self, states: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N"]:
        return np.hypot(states[:, 0] - self.goal[0], states[:, 1] - self.goal[1])

    def normalised_score(self, returns: ArrayLike | float | int) -> Float[np.ndarray, "..."]:
        """The returns on the scale where a random policy has 0 and D4RL's controller 100."""
        return normalised(returns, self.random_return, self.reference_return)


MAZES = tuple(Maze(**entry) for entry in tomllib.loads(Path(__file__).with_name("mazes.toml").read_text())["maze"])
"""as they are drawn in mazes.toml"""


def find_maze(name: str | Maze, *, feature: str = "") -> Maze:
    """The maze called `umaze`, `maze2d-umaze`, or by its id in Gymnasium; a maze is returned as it is.

    `feature` is what the caller needs a maze for; the error names it if another task is given.
    """
    if isinstance(name, Maze):
        return name
    for maze in MAZES:
        if name in (maze.name, maze.task, maze.environment, maze.environment.removeprefix("bats/")):
            return maze
    known = ", ".join(maze.task for maze in MAZES)
    if feature:
        raise BatsError(f"Only mazes have {feature}; got '{name}'. Known mazes: {known}.")
    raise BatsError(f"There is no maze called '{name}'; known mazes: {known}.")


def start_state(cell: Cell, rng: np.random.Generator) -> Float[np.ndarray, "4"]:
    """A state drawn from the start distribution of one cell."""
    position = np.asarray(cell) + rng.uniform(-START_SPREAD, START_SPREAD, 2)
    return np.concatenate([position, rng.normal(0, START_SPREAD, 2)])


def stratified_starts(maze: Maze | str, per_cell: int, *, seed: int) -> Float[np.ndarray, "M 4"]:
    """`per_cell` start states of every cell, cell by cell.

    This removes the largest part of the variance between evaluations: even for an optimal policy the start cell alone
    makes the score of an episode vary by 15 to 22 points.
    """
    rng = generator(seed)
    return np.array([start_state(cell, rng) for cell in find_maze(maze).cells for _ in range(per_cell)])
