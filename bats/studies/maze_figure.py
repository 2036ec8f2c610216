"""The paper's figure 3: trajectories of several methods in the medium maze, side by side.

Rows of the map go downwards and columns to the right, as in the pictures of the environment. The trajectories of all
methods begin in the same states: one in each of the cells that are farthest from the goal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from bats.evaluation.episodes import Actor, evaluate
from bats.studies.drawing import STYLE, Axes, Circle, Figure, ListedColormap, rc_context
from bats.tasks.maze2d import Maze, stratified_starts
from bats.tasks.maze2d.environment import CELL_START
from bats.tasks.maze2d.maps import GOAL_RADIUS
from bats.tasks.maze2d.waypoints import steps_to

CUT = 0.6
"""share of the outermost walls that is not shown"""
STARTS = 3
"""trajectories of each method"""
WALL, GOAL = "#3c4452", "#b7e2c4"
COLOURS = ("#2f74b5", "#e4572e", "#7d6bb3")


def far_starts(maze: Maze, count: int = STARTS, *, seed: int = 0) -> Float[np.ndarray, "n 4"]:
    """A start state in each of the cells that are farthest from the goal."""
    starts = stratified_starts(maze, 1, seed=seed)
    steps = steps_to(maze, maze.goal)
    cells = np.rint(starts[:, :2]).astype(int)
    distance = [steps.get((int(row), int(column)), 0) for row, column in cells]
    return starts[np.argsort(distance, kind="stable")[::-1][:count]]


def record_trajectories(actor: Actor, maze: Maze, starts: Float[np.ndarray, "n 4"]) -> list[Float[np.ndarray, "T 2"]]:
    """The positions that a policy visits in one episode from each start."""
    played = evaluate(actor, maze.environment, starts=starts, record=True)
    return [episode.observations[:, :2] for episode in played.episodes]


def draw_trajectories(trajectories: Mapping[str, Sequence[Float[np.ndarray, "_ 2"]]], maze: Maze) -> Figure:
    """A panel for each method, with the share of its steps in the goal."""
    rows, columns = maze.shape
    with rc_context(STYLE):
        figure = Figure(figsize=(3.2 * len(trajectories), 3.5 * rows / columns))
        panels = np.atleast_1d(figure.subplots(1, len(trajectories)))
        for axes, (name, paths) in zip(panels, trajectories.items(), strict=True):
            draw_maze(axes, maze)
            for path, colour in zip(paths, COLOURS, strict=False):
                axes.plot(path[:, 1], path[:, 0], color=colour, linewidth=1.2, alpha=0.9)
                axes.plot(path[:1, 1], path[:1, 0], "o", color=colour, markersize=5)
            share = np.mean([maze.at_goal(path[1:]).mean() for path in paths])
            axes.set_title(f"{name}: {share:.0%} of the steps in the goal")
        figure.tight_layout()
    return figure


def draw_maze(axes: Axes, maze: Maze) -> None:
    """The walls and the goal."""
    rows, columns = maze.shape
    # a cell's point is not its middle: it begins 0.7 before it and ends 0.3 after it
    extent = (-CELL_START, columns - CELL_START, rows - CELL_START, -CELL_START)
    floor = np.array([[mark != "#" for mark in row] for row in maze.rows])
    walls = np.ma.masked_array(np.ones(maze.shape), floor)
    axes.imshow(walls, cmap=ListedColormap([WALL]), extent=extent, interpolation="nearest", zorder=1)
    axes.add_patch(Circle(maze.goal[::-1], GOAL_RADIUS, color=GOAL, zorder=0))  # walls may cover some of it
    axes.set_axis_off()
    axes.set(xlim=(CUT - CELL_START, columns - CUT - CELL_START), ylim=(rows - CUT - CELL_START, CUT - CELL_START))
