"""A maze seen from above, drawn with NumPy alone: rows of the map downwards, columns to the right."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, UInt8

from bats.tasks.maze2d.maps import GOAL_RADIUS, Maze
from bats.tasks.maze2d.physics import BALL_RADIUS

PIXELS = 40
"""along the side of a cell"""
CELL_START = 0.7
"""a cell's low edge lies this far below its point (i, j)"""

_FLOOR, _WALL, _GOAL, _BALL = (245, 245, 240), (70, 75, 85), (190, 225, 190), (200, 70, 50)


def draw(maze: Maze, state: Float[np.ndarray, "4"]) -> UInt8[np.ndarray, "H W 3"]:
    """The walls, the goal's disc where walls do not hide it, and the ball."""
    rows, columns = maze.shape
    image = np.empty((rows * PIXELS, columns * PIXELS, 3), dtype=np.uint8)
    image[:] = _FLOOR
    down, right = np.mgrid[: rows * PIXELS, : columns * PIXELS]
    positions = np.stack([down, right], axis=-1)
    positions = (positions + 0.5) / PIXELS - CELL_START
    image[_within(positions, np.asarray(maze.goal, dtype=np.float64), GOAL_RADIUS)] = _GOAL
    for i, j in maze.walls:
        image[i * PIXELS : (i + 1) * PIXELS, j * PIXELS : (j + 1) * PIXELS] = _WALL
    image[_within(positions, state[:2], BALL_RADIUS)] = _BALL
    return image


def _within(
    positions: Float[np.ndarray, "H W 2"], centre: Float[np.ndarray, "2"], radius: float
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    offset = positions - centre
    return np.asarray(np.einsum("hwd,hwd->hw", offset, offset) <= radius**2)
