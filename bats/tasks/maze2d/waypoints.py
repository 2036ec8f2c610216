"""The controller that wrote D4RL's maze2d logs: from cell to cell along a shortest path.

The path is the one that tabular Q-iteration on the map finds (discount 0.99, reward at the target): a shortest
path, ties broken in the order of `MOVES`. Every cell on the way gives a waypoint, moved towards lower numbers at
random, where the middle of the corridor is; the last waypoint is the target's own point. A proportional-derivative
law steers to the current waypoint.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from bats.tasks.maze2d.maps import Cell, Maze

MOVES: tuple[Cell, ...] = ((0, -1), (0, 1), (-1, 0), (1, 0))
"""in the order in which equally short ways are preferred"""

WAYPOINT_SPREAD = 0.2
ARRIVED = 0.1
"""a waypoint is reached, and a target too, within this distance"""
POSITION_GAIN = 10.0
VELOCITY_GAIN = -1.0


def steps_to(maze: Maze, target: Cell) -> dict[Cell, int]:
    """How many moves from cell to cell lead from each cell to `target`.

    Walls are never entered, but left: beside a wall the ball's position may round to a wall cell.
    """
    rows, columns = maze.shape
    free = set(maze.cells)
    distance = {target: 0}
    queue = deque([target])
    while queue:
        cell = queue.popleft()
        for move in MOVES:
            before = (cell[0] - move[0], cell[1] - move[1])
            inside = 0 <= before[0] < rows and 0 <= before[1] < columns
            if inside and before not in distance and cell in free:
                distance[before] = distance[cell] + 1
                queue.append(before)
    return distance


def shortest_path(maze: Maze, start: Cell, target: Cell) -> list[Cell]:
    """The cells after `start` up to and including `target`; only `target` where both are the same."""
    distance = steps_to(maze, target)
    free = set(maze.cells)
    path = []
    cell = start
    while cell != target:
        neighbours = ((cell[0] + move[0], cell[1] + move[1]) for move in MOVES)
        cell = next(n for n in neighbours if n in free and distance[n] == distance[cell] - 1)
        path.append(cell)
    return path or [target]


class WaypointController:
    """Steers to a target cell. It plans when the target changes and never again: thrown off, it does not re-plan."""

    def __init__(self, maze: Maze, rng: np.random.Generator) -> None:
        self._maze, self._rng = maze, rng
        self._target: Cell | None = None
        self._waypoints: list[tuple[float, float]] = []
        self._next = 0

    def act(self, state: tuple[float, float, float, float], target: Cell) -> tuple[float, float, bool]:
        """The action, both directions within [-1, 1], and whether the target has been reached."""
        x, y, u, v = state
        if target != self._target:
            self._plan(self._cell_at(x, y), target)
        arrived = math.hypot(x - target[0], y - target[1]) < ARRIVED
        wx, wy = target if arrived else self._waypoints[self._next]
        across, along = wx - x, wy - y
        if not arrived and math.hypot(across, along) < ARRIVED:
            self._next += 1  # never past the last, which is the target itself
        push = POSITION_GAIN * across + VELOCITY_GAIN * u
        pull = POSITION_GAIN * along + VELOCITY_GAIN * v
        return max(-1.0, min(1.0, push)), max(-1.0, min(1.0, pull)), arrived

    def _cell_at(self, x: float, y: float) -> Cell:
        """The cell whose point is nearest, as D4RL has it, unless that is a wall's corner that no way leads out of."""
        nearest = (round(x), round(y))
        free = set(self._maze.cells)
        beside = ((nearest[0] + move[0], nearest[1] + move[1]) for move in MOVES)
        if nearest in free or any(cell in free for cell in beside):
            return nearest
        return min(free, key=lambda cell: (math.hypot(x - cell[0], y - cell[1]), cell))

    def _plan(self, start: Cell, target: Cell) -> None:
        cells = shortest_path(self._maze, start, target)
        shifts = self._rng.uniform(0, WAYPOINT_SPREAD, (len(cells), 2)).tolist()
        on_the_way = [(i - s[0], j - s[1]) for (i, j), s in zip(cells[:-1], shifts, strict=False)]
        self._waypoints = [*on_the_way, target]
        self._target, self._next = target, 0
