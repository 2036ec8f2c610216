"""The mazes of D4RL's maze2d: maps, goals, reference scores, and where episodes begin.

A position is a pair (row direction, column direction), measured so that the cell in row i and column j has its
start point and goal point at exactly (i, j). The walls stand 0.2 lower: that cell reaches from i - 0.7 to i + 0.3,
and a ball of radius 0.1 can be anywhere from i - 0.6 to i + 0.2 in it.

    wall            cell i            wall
    ------|---------------+-----|------        +  the point (i, j), 0.2 beyond the middle of the cell
        i-0.7             i   i+0.3

Scores are normalised with D4RL's published constants: 0 for a random policy, 100 for D4RL's waypoint controller,
whose stale waypoints cost it most of its return, so that good policies score far above 100.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from bats.errors import BatsError
from bats.tasks.seeds import generator

Cell = tuple[int, int]
"""row and column in a map"""

GOAL_RADIUS = 0.5
START_SPREAD = 0.1
"""start positions are uniform within this of the start point, start velocities normal with this deviation"""


@dataclass(frozen=True)
class Maze:
    """One map and the task on it. An episode never ends by itself; its return counts the steps spent at the goal."""

    name: str
    version: int
    rows: tuple[str, ...]
    """`#` wall, `O` free, `G` free and the goal"""
    episode_steps: int
    random_return: float
    """mean return that scores 0"""
    reference_return: float
    """mean return that scores 100"""
    log_rows: int
    """how many rows D4RL's own log has"""

    @property
    def task(self) -> str:
        return f"maze2d-{self.name}"

    @property
    def environment(self) -> str:
        """The name under which Gymnasium knows it."""
        return f"bats/{self.task}-v{self.version}"

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), len(self.rows[0])

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell that is not a wall, row by row. Episodes begin in each of them equally often."""
        return tuple((i, j) for i, row in enumerate(self.rows) for j, mark in enumerate(row) if mark != "#")

    @cached_property
    def walls(self) -> tuple[Cell, ...]:
        return tuple((i, j) for i, row in enumerate(self.rows) for j, mark in enumerate(row) if mark == "#")

    @cached_property
    def goal(self) -> Cell:
        return next((i, j) for i, row in enumerate(self.rows) for j, mark in enumerate(row) if mark == "G")

    def at_goal(self, states: Float[np.ndarray, "N D"]) -> Bool[np.ndarray, "N"]:
        """Whether each state lies in the goal's disc, its edge included."""
        return self.goal_distance(states) <= GOAL_RADIUS

    def goal_distance(self, states: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N"]:
        return np.hypot(states[:, 0] - self.goal[0], states[:, 1] - self.goal[1])

    def normalised_score(self, returns: ArrayLike | float | int) -> Float[np.ndarray, "..."]:
        """Every return on the scale where a random policy earns 0 and D4RL's controller 100."""
        earned = np.asarray(returns, dtype=np.float64)
        return np.asarray(100 * (earned - self.random_return) / (self.reference_return - self.random_return))


def _maze(name: str, rows: str, steps: int, returns: tuple[float, float], log_rows: int, version: int = 1) -> Maze:
    return Maze(name, version, tuple(rows.split()), steps, *returns, log_rows)


_UMAZE = "##### #GOO# ###O# #OOO# #####"
_MEDIUM = "######## #OO##OO# #OO#OOO# ##OOO### #OO#OOO# #O#OO#O# #OOO#OG# ########"
_LARGE = (
    "############ #OOOO#OOOOO# #O##O#O#O#O# #OOOOOO#OOO# #O####O###O# "
    "#OO#O#OOOOO# ##O#O#O#O### #OO#OOO#OGO# ############"
)
_OPEN = "####### #OOOOO# #OOGOO# #OOOOO# #######"
_EVAL_UMAZE = "##### #OOG# #O### #OOO# #####"
_EVAL_MEDIUM = "######## #OOOOOG# #O#O##O# #OOOO#O# ###OO### #OOOOOO# #OO##OO# ########"
_EVAL_LARGE = (
    "############ #OO#OOO#OGO# ##O###O#O#O# #OO#O#OOOOO# #O##O#OO##O# "
    "#OOOOOO#OOO# #O##O#O#O### #OOOO#OOOOO# ############"
)

MAZES: tuple[Maze, ...] = (
    _maze("umaze", _UMAZE, 300, (23.85, 161.86), 1_000_000),
    _maze("medium", _MEDIUM, 600, (13.13, 277.39), 2_000_000),
    _maze("large", _LARGE, 800, (6.7, 273.99), 4_000_000),
    _maze("open", _OPEN, 150, (0.01, 20.66), 1_000_000, version=0),
    _maze("eval-umaze", _EVAL_UMAZE, 300, (36.63, 141.4), 1_000_000),
    _maze("eval-medium", _EVAL_MEDIUM, 600, (13.07, 204.93), 2_000_000),
    _maze("eval-large", _EVAL_LARGE, 800, (16.4, 302.22), 4_000_000),
)


def find_maze(name: str | Maze, *, wanted: str = "") -> Maze:
    """The maze called `umaze`, `maze2d-umaze`, or by its Gymnasium name; a maze is its own.

    `wanted`: what only mazes have, to be told where another task is asked for it.
    """
    if isinstance(name, Maze):
        return name
    for maze in MAZES:
        if name in (maze.name, maze.task, maze.environment, maze.environment.removeprefix("bats/")):
            return maze
    known = ", ".join(maze.task for maze in MAZES)
    if wanted:
        raise BatsError(f"Only mazes have {wanted}; got '{name}', known are {known}.")
    raise BatsError(f"There is no maze called '{name}'; known are {known}.")


def normalised_score(task: str | Maze, returns: ArrayLike | float | int) -> Float[np.ndarray, "..."]:
    """Normalised scores of a maze's returns, by the task's name."""
    return find_maze(task, wanted="reference scores").normalised_score(returns)


def start_state(cell: Cell, rng: np.random.Generator) -> Float[np.ndarray, "4"]:
    """A state drawn from the start distribution of one cell."""
    position = np.asarray(cell) + rng.uniform(-START_SPREAD, START_SPREAD, 2)
    return np.concatenate([position, rng.normal(0, START_SPREAD, 2)])


def stratified_starts(maze: Maze | str, per_cell: int, *, seed: int) -> Float[np.ndarray, "M 4"]:
    """`per_cell` start states of every cell, cell by cell: the start distribution without its luck of the draw.

    For an optimal policy the start cell alone makes returns vary by 15 to 22 points of score between episodes.
    """
    rng = generator(seed)
    return np.array([start_state(cell, rng) for cell in find_maze(maze).cells for _ in range(per_cell)])
