"""The picture of the README: one rollout of a solved maze, over the log that it was stitched from.

    bats-rl data collect maze2d-large --rows 250000 --seed 0 --out large.hdf5
    bats-rl fit large.hdf5 --preset demo --stitch.rounds 15 --out runs/large
    python -m benchmarks.picture maze2d-large runs/large docs/pictures/stitched_maze.svg

The ending of the file's name decides the format, .svg or .png. Rows of the map go downwards and columns to the right,
as in the pictures of the environment.
"""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure

from bats.arrays import TabularPolicy
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED, TabularMDP
from bats.graph.rollouts import roll_out
from bats.runs.result import solve_again
from bats.studies.drawing import save_figure
from bats.studies.maze_figure import CUT, GOAL, WALL, draw_maze
from bats.tasks.maze2d import Maze, find_maze
from bats.tasks.maze2d.maps import GOAL_RADIUS
from bats.tasks.maze2d.waypoints import steps_to
from benchmarks.common import print_figures, script_parser

SIDE = 0.8
"""of a cell, in inches"""
LEGEND = 0.5
"""inches below the maze"""
LOG_STATES = 6000
"""logged positions that are drawn"""
PAPER, GREY = "#fbfbf9", "#8b95a5"
BLUE, ORANGE, GREEN = "#2f74b5", "#e4572e", "#2a9d5c"


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("task")
    parser.add_argument("run", type=Path, help="folder of a finished run of the maze's log")
    parser.add_argument("out", type=Path, help="file to write, replacing an earlier one")
    arguments = parser.parse_args()
    maze, solution = find_maze(arguments.task), solve_again(arguments.run)
    edges = farthest_rollout(solution.mdp, solution.policy, maze)
    save_figure(draw_rollout(solution.mdp, edges, maze), arguments.out)
    print(f"wrote {arguments.out}: {arguments.out.stat().st_size / 1000:.0f} KB")
    stitched = float(np.mean(solution.mdp.stitch_round[edges] != LOGGED))
    print_figures([("steps", len(edges), "steps"), ("stitched", stitched, "share")], prefix="picture_")


def farthest_rollout(mdp: TabularMDP, policy: TabularPolicy, maze: Maze) -> Int[np.ndarray, "T"]:
    """The edges to the goal from the cell that is farthest from it; of several rollouts from there, the fastest."""
    edges = roll_out(mdp, policy, mdp.starts, maze.episode_steps).edge
    near_goal = np.append(maze.goal_distance(mdp.states) <= GOAL_RADIUS / 3, False)
    arrived = near_goal[np.where(edges == NO_EDGE, mdp.state_count, mdp.target[edges])]
    steps = np.where(arrived.any(axis=1), arrived.argmax(axis=1) + 1, maze.episode_steps)
    cells = np.rint(mdp.states[mdp.starts][:, :2]).astype(int)
    steps_from_cell = steps_to(maze, maze.goal)
    distance = np.array([steps_from_cell.get((int(row), int(column)), 0) for row, column in cells])
    distance[~arrived.any(axis=1)] = -1
    chosen = np.lexsort((steps, -distance))[0]
    return edges[chosen, : steps[chosen]]


def draw_rollout(mdp: TabularMDP, edges: Int[np.ndarray, "T"], maze: Maze) -> Figure:
    """The maze with some states of the log and the rollout, in one colour along the log and another on stitches."""
    rows, columns = maze.shape
    width, height = (columns - 2 * CUT) * SIDE, (rows - 2 * CUT) * SIDE
    figure = Figure(figsize=(width, height + LEGEND), facecolor=PAPER)
    axes = figure.add_axes((0, LEGEND / (height + LEGEND), 1, height / (height + LEGEND)))
    draw_maze(axes, maze)

    sample = np.random.default_rng(0).choice(mdp.real_count, min(LOG_STATES, mdp.real_count), replace=False)
    # thousands of marks are an image within an SVG file, which would otherwise be many times as large
    axes.plot(*_points(mdp.states[sample]), ".", color=GREY, markersize=2.5, alpha=0.5, rasterized=True)

    states = mdp.states[np.append(mdp.source[edges[:1]], mdp.target[edges])]
    axes.plot(*_points(states), color="white", linewidth=7, solid_capstyle="round")
    stitched = mdp.stitch_round[edges] != LOGGED
    for on_stitch, part in groupby(range(len(edges)), key=lambda step: bool(stitched[step])):
        steps = list(part)
        colour = ORANGE if on_stitch else BLUE
        axes.plot(*_points(states[steps[0] : steps[-1] + 2]), color=colour, linewidth=3.5, solid_capstyle="round")
    axes.plot(*_points(states[:1]), "o", color=GREEN, markersize=11, markeredgecolor="white", markeredgewidth=2)

    # lines without a point, for the legend alone
    axes.plot([], [], "o", color=GREEN, markersize=9, label="start")
    axes.plot([], [], color=BLUE, linewidth=3.5, label="along the log")
    axes.plot([], [], color=ORANGE, linewidth=3.5, label="on stitches")
    axes.plot([], [], "o", color=GOAL, markersize=13, label="goal")
    size = min(13.0, 2.2 * width)  # all in one line, however narrow the maze is
    figure.legend(loc="lower center", ncols=4, frameon=False, fontsize=size, handlelength=1.5, labelcolor=WALL)
    return figure


def _points(states: Float[np.ndarray, "n D"]) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Where states lie in the picture: columns to the right, rows downwards."""
    return states[:, 1], states[:, 0]


if __name__ == "__main__":
    main()
