"""The picture of the README: one walk of a solved maze, over the log that it was put together from, as an SVG file.

    bats-rl data collect maze2d-large --rows 250000 --seed 0 --out large.hdf5
    bats-rl fit large.hdf5 --preset demo --stitch.rounds 15 --out runs/large
    python -m benchmarks.picture maze2d-large runs/large docs/pictures/stitched_maze.svg

Rows of the map go downwards and columns to the right, as in the pictures of the environment.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED, TabularMDP
from bats.graph.rollouts import walk
from bats.runs.folder import RunFolder
from bats.runs.solve_again import Changes, resolve
from bats.storage.atomic import atomic_path
from bats.tasks.maze2d import Maze, find_maze
from bats.tasks.maze2d.maps import GOAL_RADIUS
from bats.tasks.maze2d.picture import CELL_START
from bats.tasks.maze2d.waypoints import steps_to

SIDE = 60
"""of a cell, in pixels"""
DOTS = 6000
"""logged positions that are drawn"""
CUT = 36
"""pixels of the outermost walls that are left away"""
BELOW = 48
"""pixels below the maze, for the names of the colours"""
PAPER, WALL = "#fbfbf9", "#3c4452"
BLUE, ORANGE, GREEN, GOAL = "#2f74b5", "#e4572e", "#2a9d5c", "#b7e2c4"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("run", type=Path, help="folder of a finished run of the maze's log")
    parser.add_argument("out", type=Path, help="SVG file to write, over another if there is one")
    options = parser.parse_args()
    maze, solved = find_maze(options.task), resolve(RunFolder(options.run), Changes())
    taken = farthest_walk(solved.mdp, solved.solution.policy, maze)
    text = drawn(solved.mdp, taken, maze)
    with atomic_path(options.out, overwrite=True) as temporary:
        temporary.write_text(text, encoding="utf-8")
    stitched = np.count_nonzero(solved.mdp.stitch_round[taken] != LOGGED) / len(taken)
    print(f"wrote {options.out}: {len(text) / 1000:.0f} KB, {len(taken)} steps, {stitched:.0%} of them stitched")


def farthest_walk(mdp: TabularMDP, policy: Int[np.ndarray, "S"], maze: Maze) -> Int[np.ndarray, "T"]:
    """The edges to the goal from the cell that is farthest from it; of several walks from there, the quickest."""
    edges = walk(mdp, policy, mdp.starts, maze.episode_steps).edge
    near = np.append(maze.goal_distance(mdp.states) <= GOAL_RADIUS / 3, False)
    arrived = near[np.where(edges == NO_EDGE, mdp.state_count, mdp.target[edges])]
    steps = np.where(arrived.any(axis=1), arrived.argmax(axis=1) + 1, maze.episode_steps)
    far = steps_to(maze, maze.goal)
    cells = np.rint(mdp.states[mdp.starts][:, :2]).astype(int)
    distance = np.array([far.get((int(row), int(column)), 0) for row, column in cells])
    distance[~arrived.any(axis=1)] = -1
    chosen = np.lexsort((steps, -distance))[0]
    return edges[chosen, : steps[chosen]]


def drawn(mdp: TabularMDP, taken: Int[np.ndarray, "T"], maze: Maze) -> str:
    """The text of an SVG file."""
    rows, columns = maze.shape
    width, height = columns * SIDE - 2 * CUT, rows * SIDE - 2 * CUT
    chosen = np.random.default_rng(0).choice(mdp.real_count, min(DOTS, mdp.real_count), replace=False)
    goal, start = _places(np.array([maze.goal])), _places(mdp.states[mdp.source[taken[:1]]])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{CUT} {CUT} {width} {height + BELOW}">',
        f"<title>A walk through {maze.task}, stitched together from pieces of a log</title>",
        f'<rect x="{CUT}" y="{CUT}" width="{width}" height="{height + BELOW}" fill="{PAPER}"/>',
        f'<circle {_at(goal)} r="{GOAL_RADIUS * SIDE:g}" fill="{GOAL}"/>',
        f'<path d="{"".join(f"M{x:g} {y:g}h0" for x, y in _places(mdp.states[chosen]))}" stroke="#8b95a5" '
        'stroke-width="2.2" stroke-linecap="round" stroke-opacity="0.55"/>',
        f'<path d="{"".join(_walls(maze))}" fill="{WALL}"/>',
        '<g fill="none" stroke-linecap="round" stroke-linejoin="round">',
        f'<path d="{_line(mdp, taken)}" stroke="#ffffff" stroke-width="9"/>',
        *_pieces(mdp, taken),
        "</g>",
        f'<circle {_at(start)} r="8" fill="{GREEN}" stroke="#ffffff" stroke-width="2.5"/>',
        f'<rect x="{CUT}" y="{CUT + height}" width="{width}" height="{BELOW}" fill="{PAPER}"/>',
        *_names(columns * SIDE / 2, CUT + height + BELOW / 2),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _pieces(mdp: TabularMDP, taken: Int[np.ndarray, "T"]) -> Iterator[str]:
    """The walk's parts along the log and along stitches, each in its colour."""
    stitched = mdp.stitch_round[taken] != LOGGED
    for is_stitched, part in groupby(range(len(taken)), key=lambda step: bool(stitched[step])):
        colour, width = (ORANGE, 4) if is_stitched else (BLUE, 4.5)
        yield f'<path d="{_line(mdp, taken[list(part)])}" stroke="{colour}" stroke-width="{width}"/>'


def _line(mdp: TabularMDP, edges: Int[np.ndarray, "T"]) -> str:
    places = _places(mdp.states[np.append(mdp.source[edges[:1]], mdp.target[edges])])
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in places)


def _walls(maze: Maze) -> Iterator[str]:
    """One shape for each run of walls in a row, a little higher than the row: otherwise seams would be seen."""
    for row, marks in enumerate(maze.rows):
        for is_wall, run in groupby(range(len(marks)), key=lambda column: marks[column] == "#"):
            columns = list(run)
            if is_wall:
                yield f"M{columns[0] * SIDE} {row * SIDE}h{len(columns) * SIDE}v{SIDE + 0.5}h{-len(columns) * SIDE}z"


def _names(middle: float, y: float) -> Iterator[str]:
    """What the colours mean, around the middle below the maze."""
    names = (("start", GREEN, 92), ("along the log", BLUE, 160), ("along stitches", ORANGE, 166), ("goal", GOAL, 60))
    x = middle - sum(room for *_, room in names) / 2
    style = f'font-family="system-ui, sans-serif" font-size="17" fill="{WALL}" dominant-baseline="central"'
    for name, colour, room in names:
        line = name.startswith("along")
        mark = f'<path d="M{x:g} {y:g}h26" stroke="{colour}" stroke-width="5" stroke-linecap="round"/>'
        yield mark if line else f'<circle cx="{x + 17:g}" cy="{y:g}" r="8" fill="{colour}"/>'
        yield f'<text x="{x + 34:g}" y="{y:g}" {style}>{name}</text>'
        x += room


def _places(states: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n 2"]:
    """Where states lie in the picture, to a tenth of a pixel."""
    return np.round((states[:, 1::-1].astype(np.float64) + CELL_START) * SIDE, 1)


def _at(place: Float[np.ndarray, "1 2"]) -> str:
    return f'cx="{place[0, 0]:g}" cy="{place[0, 1]:g}"'


if __name__ == "__main__":
    main()
