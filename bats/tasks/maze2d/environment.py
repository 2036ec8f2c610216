"""D4RL's maze2d as a Gymnasium environment; `import bats.tasks` registers one for every map."""

from __future__ import annotations

import math

import gymnasium
import numpy as np
from jaxtyping import Float, Float64, UInt8
from numpy.typing import ArrayLike

from bats.errors import BatsError, SettingError
from bats.tasks.common import Info
from bats.tasks.maze2d.maps import GOAL_RADIUS, find_maze, start_state
from bats.tasks.maze2d.physics import BALL_RADIUS, MazePhysics, State

MAX_SPEED = 6.0
"""bound of the observation space: 5.2263 is the maximum in free flight, and a wall can add a little"""

PIXELS = 40
"""side of a cell in an image"""
CELL_START = 0.7
"""distance of a cell's lower edge from its point (i, j)"""
_FLOOR, _WALL, _GOAL, _BALL = (245, 245, 240), (70, 75, 85), (190, 225, 190), (200, 70, 50)


class Maze2dEnv(gymnasium.Env[Float64[np.ndarray, "4"], Float[np.ndarray, "2"]]):
    """A ball that has to be steered to the goal and kept there.

    Observation: (row, column, row velocity, column velocity) in double precision, so that
    `reset(options={"state": observation})` returns to exactly the observed state. Action: force in both directions,
    clipped to [-1, 1]. Every step is rewarded for the state that it ends in: 1 within 0.5 of the goal (`sparse`), or
    exp(-distance) (`dense`). Nothing terminates; registration adds the time limit.
    """

    metadata: Info = {"render_modes": ["rgb_array"], "render_fps": 100}  # noqa: RUF012 (as in the base class)

    def __init__(self, maze: str = "umaze", *, reward: str = "sparse", render_mode: str | None = None) -> None:
        if reward not in ("sparse", "dense"):
            raise SettingError(f"`reward` must be 'sparse' or 'dense'; got {reward!r}.")
        if render_mode not in (None, "rgb_array"):
            raise SettingError(f"`render_mode` must be 'rgb_array' or None; got {render_mode!r}.")
        self.maze = find_maze(maze)
        self.render_mode = render_mode
        self._dense = reward == "dense"
        self._physics = MazePhysics(self.maze)
        low = np.array([0.0, 0.0, -MAX_SPEED, -MAX_SPEED])
        high = np.array([self.maze.shape[0] - 1, self.maze.shape[1] - 1, MAX_SPEED, MAX_SPEED])
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float64)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), dtype=np.float32)
        self._state: State | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Float64[np.ndarray, "4"], Info]:
        """Starts in `options["state"]`, or at random near the start point of a random cell."""
        super().reset(seed=seed)
        # a misspelt option would otherwise go unnoticed and the episode start in a random cell
        unknown = set(options or {}) - {"state"}
        if unknown:
            raise BatsError(f"Unknown reset options {sorted(unknown)}; 'state' is the only one.")
        if options and "state" in options:
            state = np.asarray(options["state"], dtype=np.float64)
            if not self.observation_space.contains(state):
                raise BatsError(f"`state` must be 4 numbers within {self.observation_space}; got {options['state']}.")
        else:
            cell = self.maze.cells[self.np_random.integers(len(self.maze.cells))]
            state = start_state(cell, self.np_random)
        self._state = (float(state[0]), float(state[1]), float(state[2]), float(state[3]))
        return np.array(self._state), {}

    def step(self, action: ArrayLike) -> tuple[Float64[np.ndarray, "4"], float, bool, bool, Info]:
        """One hundredth of a second."""
        if self._state is None:
            raise BatsError("`reset` must be called before `step`.")
        force = np.asarray(action)
        if force.shape != (2,) or force.dtype.kind not in "fiu":
            raise SettingError(f"An action must be 2 numbers; got {action!r}.")
        # plain floats and `math`: this runs once per step, and NumPy is slow on two numbers
        first, second = float(force[0]), float(force[1])
        if not (math.isfinite(first) and math.isfinite(second)):
            raise SettingError(f"An action must be finite; got {action!r}.")
        self._state = self._physics.step(self._state, (first, second))
        distance = math.hypot(self._state[0] - self.maze.goal[0], self._state[1] - self.maze.goal[1])
        reward = math.exp(-distance) if self._dense else float(distance <= GOAL_RADIUS)
        return np.array(self._state), reward, False, False, {"at_goal": distance <= GOAL_RADIUS}

    def render(self) -> UInt8[np.ndarray, "H W 3"] | None:
        """An image from above if `render_mode` is `rgb_array`: the walls, the goal's disc between them, and the ball.

        Rows of the map run downwards, columns to the right.
        """
        if self.render_mode is None or self._state is None:
            return None
        rows, columns = self.maze.shape
        image = np.empty((rows * PIXELS, columns * PIXELS, 3), dtype=np.uint8)
        image[:] = _FLOOR
        # the position of the centre of each pixel
        x, y = (np.mgrid[: rows * PIXELS, : columns * PIXELS] + 0.5) / PIXELS - CELL_START
        image[(x - self.maze.goal[0]) ** 2 + (y - self.maze.goal[1]) ** 2 <= GOAL_RADIUS**2] = _GOAL
        for i, j in self.maze.walls:
            image[i * PIXELS : (i + 1) * PIXELS, j * PIXELS : (j + 1) * PIXELS] = _WALL
        image[(x - self._state[0]) ** 2 + (y - self._state[1]) ** 2 <= BALL_RADIUS**2] = _BALL
        return image
