"""Small worlds with discrete actions, whose optimal values have a closed form.

A position in a box of whole numbers moves by one along one axis at a time; a move against the edge leads nowhere. The
goal is the far corner. A step that ends in the goal is rewarded with 1, and every step costs `move_cost`. A box with
one axis is a chain, one with two a grid; any number of axes works.

In the tasks `chain` and `grid` moves are free and episodes end in the goal, so the optimal value is discount^(d-1) at
d moves from the goal.
"""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium
import numpy as np
from jaxtyping import Float, Int, UInt8

from bats.arrays import Progress, RowFlags, RowNumbers, no_progress
from bats.data.dataset import Dataset
from bats.errors import BatsError, SettingError
from bats.tasks.common import Info, check_rows, generator
from bats.tasks.episodes import as_dataset, play_rows

Positions = Int[np.ndarray, "N K"]
Shape = tuple[int, ...]
"""the sides of a box"""


@dataclass(frozen=True)
class World:
    """A box of positions with the goal in its far corner."""

    shape: Shape
    ends: bool = True
    """an episode ends in the goal; otherwise pushing against the corner is rewarded forever"""
    move_cost: float = 0.0

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1 or max(self.shape) < 2:
            raise BatsError(f"`shape` must have positive sides, at least one of them above 1; got {self.shape}.")

    @property
    def action_count(self) -> int:
        """Action 2k moves down along axis k, action 2k + 1 up."""
        return 2 * len(self.shape)

    def positions(self) -> Positions:
        """All positions, the last axis running fastest, so that the goal comes last."""
        return np.stack(np.unravel_index(np.arange(np.prod(self.shape)), self.shape), axis=1)

    def moves_to_goal(self, positions: Positions) -> Int[np.ndarray, "N"]:
        return np.asarray((np.array(self.shape) - 1 - positions).sum(axis=1))

    def step(self, positions: Positions, actions: Int[np.ndarray, "N"]) -> tuple[Positions, RowNumbers, RowFlags]:
        """The next positions, the rewards, and whether the task has ended."""
        if actions.min(initial=0) < 0 or actions.max(initial=0) >= self.action_count:
            raise SettingError(f"Actions must be integers from 0 to {self.action_count - 1}; got {actions}.")
        moved = positions.copy()
        moved[np.arange(len(moved)), actions // 2] += np.where(actions % 2 == 1, 1, -1)
        moved = np.clip(moved, 0, np.array(self.shape) - 1)  # a move against the edge
        at_goal = self.moves_to_goal(moved) == 0
        return moved, at_goal - self.move_cost, at_goal & self.ends


CHAIN, GRID = World((10,)), World((6, 6))
CHAIN_ENVIRONMENT, GRID_ENVIRONMENT = "bats/chain-v0", "bats/grid-v0"
WORLDS = (("chain", CHAIN_ENVIRONMENT, CHAIN), ("grid", GRID_ENVIRONMENT, GRID))
"""name, id in Gymnasium and world of each task"""
EPISODE_STEPS = 100
LOG_ROWS = 5_000
PIXELS = 40
"""side of a position in an image"""
FLOOR, GOAL, PLAYER, LINE = (245, 245, 240), (190, 225, 190), (200, 70, 50), (70, 75, 85)


class WorldEnv(gymnasium.Env[Float[np.ndarray, "K"], np.int64]):
    """A world as a Gymnasium environment. Episodes start in every position except the goal, with equal probability."""

    metadata: Info = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 (as in the base class)

    def __init__(
        self, shape: Shape = GRID.shape, *, ends: bool = True, move_cost: float = 0.0, render_mode: str | None = None
    ) -> None:
        if render_mode is not None and (render_mode != "rgb_array" or len(shape) > 2):
            valid = "None, or 'rgb_array' if the world has 1 or 2 axes"
            raise SettingError(f"`render_mode` must be {valid}; got {render_mode!r} for {len(shape)} axes.")
        self.render_mode = render_mode
        self.world = World(tuple(shape), ends=ends, move_cost=move_cost)
        high = np.array(self.world.shape, dtype=np.float64) - 1
        self.observation_space = gymnasium.spaces.Box(np.zeros_like(high), high, dtype=np.float64)
        self.action_space = gymnasium.spaces.Discrete(self.world.action_count)
        self._position = self.world.positions()[:1]

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Float[np.ndarray, "K"], Info]:
        """Starts in `options["state"]`, or in a random position."""
        super().reset(seed=seed)
        if options and "state" in options:
            state = np.asarray(options["state"])
            # states of a graph are floats, so whole numbers are accepted in any type
            whole = state.dtype.kind in "iuf" and bool(np.all(state == np.floor(state)))
            if not whole or not self.observation_space.contains(state.astype(np.float64)):
                raise SettingError(f"`state` must be a position within {self.world.shape}; got {options['state']}.")
            self._position = state.astype(np.int64)[None]
        else:
            positions = self.world.positions()
            self._position = positions[self.np_random.integers(len(positions) - 1)][None]  # the last one is the goal
        return self._position[0].astype(np.float64), {}

    def step(self, action: np.int64 | int) -> tuple[Float[np.ndarray, "K"], float, bool, bool, Info]:
        """One move."""
        if not self.action_space.contains(action):
            raise SettingError(f"An action must be an integer from 0 to {self.world.action_count - 1}; got {action!r}.")
        self._position, rewards, ended = self.world.step(self._position, np.array([action]))
        return self._position[0].astype(np.float64), float(rewards[0]), bool(ended[0]), False, {}

    def render(self) -> UInt8[np.ndarray, "H W 3"] | None:
        """An image if `render_mode` is `rgb_array`: the first axis points down, a chain runs to the right."""
        if self.render_mode is None:
            return None
        rows, columns = (1, *self.world.shape)[-2:]
        cells = np.full((rows, columns, 3), FLOOR, dtype=np.uint8)
        cells[-1, -1] = GOAL
        cells[tuple((0, *self._position[0])[-2:])] = PLAYER
        image = cells.repeat(PIXELS, axis=0).repeat(PIXELS, axis=1)
        image[::PIXELS], image[:, ::PIXELS] = LINE, LINE
        return image


def collect_world(
    world: World, rows: int | None, seed: int, *, name: str = "world", progress: Progress = no_progress
) -> Dataset:
    """Random actions in episodes of at most 100 steps; 5,000 rows if `rows` is None. Starts are the first rows."""
    rows = check_rows(rows, LOG_ROWS)
    start_rng, action_rng = generator(seed).spawn(2)
    world_env = WorldEnv(world.shape, ends=world.ends, move_cost=world.move_cost)
    environment = gymnasium.wrappers.TimeLimit(world_env, EPISODE_STEPS)

    def random_action(observation: np.ndarray) -> np.int64:
        return action_rng.integers(world.action_count)

    episodes = play_rows(environment, lambda: random_action, rows, start_rng, progress)
    return as_dataset(episodes, name=name, action_count=world.action_count)
