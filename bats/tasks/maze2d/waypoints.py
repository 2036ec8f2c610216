"""The controller that wrote D4RL's maze2d logs: from cell to cell along a shortest path.

D4RL finds the path by tabular Q-iteration on the map (discount 0.99, reward at the target), which amounts to a shortest
path with ties broken in the order of `MOVES`. Every cell on the path gives a waypoint, shifted at random towards lower
numbers, where the middle of the corridor is; the last waypoint is the target itself. A proportional-derivative
controller steers to the current waypoint.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from bats.tasks.maze2d.maps import Cell, Maze
from bats.tasks.maze2d.physics import State

MOVES: tuple[Cell, ...] = ((0, -1), (0, 1), (-1, 0), (1, 0))
"""in the order in which equally short paths are preferred"""

WAYPOINT_SPREAD = 0.2
ARRIVED = 0.1
"""a waypoint or a target is reached within this distance"""
POSITION_GAIN, VELOCITY_GAIN = 10.0, -1.0


def neighbours(cell: Cell) -> list[Cell]:
    """The four cells around a cell, in the order of `MOVES`."""
    return [(cell[0] + move[0], cell[1] + move[1]) for move in MOVES]


def steps_to(maze: Maze, target: Cell) -> dict[Cell, int]:
    """The number of moves to `target`, from each cell that it can be reached from."""
    free = set(maze.cells)
    distance = {target: 0}
    queue = deque([target])
    while queue:
        cell = queue.popleft()
        # Walls are never entered but can be left: the position of a ball beside a wall may round to a wall cell.
        if cell not in free:
            continue
        for before in neighbours(cell):
            if before not in distance:
                distance[before] = distance[cell] + 1
                queue.append(before)
    return distance


def shortest_path(maze: Maze, start: Cell, target: Cell) -> list[Cell]:
    """The cells after `start` up to and including `target`; `target` alone if both are the same."""
    distance = steps_to(maze, target)
    free = set(maze.cells)
    path = []
    cell = start
    while cell != target:
        cell = next(n for n in neighbours(cell) if n in free and distance[n] == distance[cell] - 1)
        path.append(cell)
    return path or [target]


class WaypointController:
    """Steers to a target cell. It plans when the target changes and never again, even if the ball is thrown off."""

    def __init__(self, maze: Maze, rng: np.random.Generator) -> None:
        self._maze, self._rng = maze, rng
        self._target: Cell | None = None
        self._waypoints: list[tuple[float, float]] = []
        self._next = 0

    def act(self, state: State, target: Cell) -> tuple[float, float, bool]:
        """The forces along rows and columns, within [-1, 1], and whether the target has been reached."""
        x, y, u, v = state
        if target != self._target:
            self._plan(x, y, target)
        arrived = math.hypot(x - target[0], y - target[1]) < ARRIVED
        waypoint = target if arrived else self._waypoints[self._next]
        dx, dy = waypoint[0] - x, waypoint[1] - y
        if not arrived and math.hypot(dx, dy) < ARRIVED:
            self._next += 1  # never past the last, which is the target itself
        force_x = POSITION_GAIN * dx + VELOCITY_GAIN * u
        force_y = POSITION_GAIN * dy + VELOCITY_GAIN * v
        return max(-1.0, min(1.0, force_x)), max(-1.0, min(1.0, force_y)), arrived

    def _plan(self, x: float, y: float, target: Cell) -> None:
        """Waypoints from the cell nearest to the ball."""
        start = (round(x), round(y))
        free = set(self._maze.cells)
        # D4RL starts in the nearest cell even if that is a wall, but from a corner of walls no path leads out.
        if free.isdisjoint([start, *neighbours(start)]):
            start = min(free, key=lambda cell: (math.hypot(x - cell[0], y - cell[1]), cell))
        cells = shortest_path(self._maze, start, target)
        shifts = self._rng.uniform(0, WAYPOINT_SPREAD, (len(cells), 2)).tolist()
        shifted = [(i - down, j - left) for (i, j), (down, left) in zip(cells[:-1], shifts, strict=False)]
        self._waypoints = [*shifted, target]
        self._target, self._next = target, 0
