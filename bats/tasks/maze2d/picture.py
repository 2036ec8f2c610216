"""A maze seen from above, drawn with NumPy alone: rows of the map downwards, columns to the right."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, UInt8

from bats.tasks.maze2d.maps import GOAL_RADIUS, Maze
from bats.tasks.maze2d.physics import BALL_RADIUS

PIXELS = 40
"""side of a cell"""
CELL_START = 0.7
"""distance of a cell's lower edge from its point (i, j)"""

_FLOOR, _WALL, _GOAL, _BALL = (245, 245, 240), (70, 75, 85), (190, 225, 190), (200, 70, 50)


def draw(maze: Maze, state: Float[np.ndarray, "4"]) -> UInt8[np.ndarray, "H W 3"]:
    """The walls, the goal's disc as far as walls do not cover it, and the ball."""
    rows, columns = maze.shape
    image = np.empty((rows * PIXELS, columns * PIXELS, 3), dtype=np.uint8)
    image[:] = _FLOOR
    # the position of the centre of each pixel
    x, y = (np.mgrid[: rows * PIXELS, : columns * PIXELS] + 0.5) / PIXELS - CELL_START
    image[(x - maze.goal[0]) ** 2 + (y - maze.goal[1]) ** 2 <= GOAL_RADIUS**2] = _GOAL
    for i, j in maze.walls:
        image[i * PIXELS : (i + 1) * PIXELS, j * PIXELS : (j + 1) * PIXELS] = _WALL
    image[(x - state[0]) ** 2 + (y - state[1]) ** 2 <= BALL_RADIUS**2] = _BALL
    return image
