"""Small worlds with discrete actions whose optimal values are known in closed form.

A position in a box of whole numbers moves by one along one axis at a time; a move against the edge stays put. The
goal is the far corner. Every step that ends in the goal pays 1, every step costs `move_cost`. With d the number of
moves to the goal and g the discount, the optimal value is, for a world that ends in the goal,

    V*(d) = g^(d-1) - cost (1 - g^d) / (1 - g)      for d > 0, and 0 in the goal,

and for one that goes on, where pushing against the corner earns 1 for ever,

    V*(d) = (g^max(d-1, 0) - cost) / (1 - g).

One axis makes a chain, two a grid, any number works.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from bats.arrays import Progress, no_progress
from bats.data.dataset import Dataset
from bats.errors import BatsError, SettingError
from bats.tasks.recording import as_dataset, check_rows, play
from bats.tasks.seeds import draw_seed, generator

Positions = Int[np.ndarray, "N K"]


@dataclass(frozen=True)
class World:
    """A box of positions with the goal in its far corner."""

    shape: tuple[int, ...]
    ends: bool = True
    """an episode ends in the goal"""
    move_cost: float = 0.0

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 1 or max(self.shape) < 2:
            raise BatsError(f"`shape` must have positive sides, one of them over 1; got {self.shape}.")

    @property
    def action_count(self) -> int:
        """Action 2k moves down along axis k, action 2k + 1 up."""
        return 2 * len(self.shape)

    def positions(self) -> Positions:
        """Every position, the last axis running fastest; the goal comes last."""
        return np.stack(np.unravel_index(np.arange(np.prod(self.shape)), self.shape), axis=1)

    def moves_to_goal(self, positions: Positions) -> Int[np.ndarray, "N"]:
        return np.asarray((np.array(self.shape) - 1 - positions).sum(axis=1))

    def step(
        self, positions: Positions, actions: Int[np.ndarray, "N"]
    ) -> tuple[Positions, Float[np.ndarray, "N"], Bool[np.ndarray, "N"]]:
        """Where each action leads, what it earns, and whether the task has ended."""
        if actions.min(initial=0) < 0 or actions.max(initial=0) >= self.action_count:
            raise SettingError(f"Actions are numbered from 0 to {self.action_count - 1}; got {actions}.")
        moved = positions.copy()
        moved[np.arange(len(moved)), actions // 2] += np.where(actions % 2 == 1, 1, -1)
        moved = np.clip(moved, 0, np.array(self.shape) - 1)
        arrived = self.moves_to_goal(moved) == 0
        return moved, arrived - self.move_cost, arrived & self.ends

    def optimal_values(self, positions: Positions, discount: float) -> Float[np.ndarray, "N"]:
        """What the best policy earns from each position, discounted; needs a discount below 1."""
        if not 0 < discount < 1:
            raise BatsError(f"`discount` must lie between 0 and 1; got {discount}.")
        moves = self.moves_to_goal(positions)
        reached = discount ** np.maximum(moves - 1, 0)
        if not self.ends:
            return np.asarray((reached - self.move_cost) / (1 - discount))
        spent = self.move_cost * (1 - discount**moves) / (1 - discount)
        return np.where(moves > 0, reached - spent, 0.0)


CHAIN = World((10,))
GRID = World((6, 6))
CHAIN_ENVIRONMENT, GRID_ENVIRONMENT = "bats/chain-v0", "bats/grid-v0"
EPISODE_STEPS = 100
PIXELS = 40
"""along the side of a position in a picture"""
FLOOR, GOAL, PLAYER, LINE = (245, 245, 240), (190, 225, 190), (200, 70, 50), (70, 75, 85)


class WorldEnv(gymnasium.Env[Float[np.ndarray, "K"], np.int64]):
    """A world as a Gymnasium environment. Episodes begin anywhere but in the goal, equally often."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 (as in the base class)

    def __init__(
        self,
        shape: tuple[int, ...] = GRID.shape,
        *,
        ends: bool = True,
        move_cost: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        if render_mode is not None and (render_mode != "rgb_array" or len(shape) > 2):
            found = f"{render_mode!r} of a world with {len(shape)} axes"
            raise SettingError(f"`render_mode` must be None, or 'rgb_array' of a world with 1 or 2 axes; got {found}.")
        self.render_mode = render_mode
        self.world = World(tuple(shape), ends=ends, move_cost=move_cost)
        high = np.array(self.world.shape, dtype=np.float64) - 1
        self.observation_space = gymnasium.spaces.Box(np.zeros_like(high), high, dtype=np.float64)
        self.action_space = gymnasium.spaces.Discrete(self.world.action_count)
        self._position = self.world.positions()[:1]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float[np.ndarray, "K"], dict[str, Any]]:
        """Begins at a random place, or at `options["state"]`."""
        super().reset(seed=seed)
        places = self.world.positions()
        if options and "state" in options:
            wanted = np.asarray(options["state"])
            whole = wanted.dtype.kind in "iuf" and bool(np.all(wanted == np.floor(wanted)))
            if not whole or not self.observation_space.contains(wanted.astype(np.float64)):
                raise SettingError(f"`state` must be a position within {self.world.shape}; got {options['state']}.")
            self._position = wanted.astype(np.int64)[None]
        else:
            chosen = self.np_random.integers(len(places) - 1)
            self._position = places[chosen][None]
        return self._position[0].astype(np.float64), {}

    def step(self, action: np.int64 | int) -> tuple[Float[np.ndarray, "K"], float, bool, bool, dict[str, Any]]:
        """One move."""
        if not self.action_space.contains(action):
            raise SettingError(f"An action is a whole number from 0 to {self.world.action_count - 1}; got {action!r}.")
        self._position, rewards, ended = self.world.step(self._position, np.array([action]))
        return self._position[0].astype(np.float64), float(rewards[0]), bool(ended[0]), False, {}

    def render(self) -> UInt8[np.ndarray, "H W 3"] | None:
        """The world as an image, where `render_mode` is `rgb_array`: the first axis downwards, a chain to the right."""
        if self.render_mode is None:
            return None
        rows, columns = (1, *self.world.shape)[-2:]
        cells = np.full((rows, columns, 3), FLOOR, dtype=np.uint8)
        cells[-1, -1] = GOAL
        cells[tuple((0, *self._position[0])[-2:])] = PLAYER
        image = cells.repeat(PIXELS, axis=0).repeat(PIXELS, axis=1)
        image[::PIXELS], image[:, ::PIXELS] = LINE, LINE
        return image


def register_worlds() -> None:
    """Makes the chain and the grid known to Gymnasium."""
    for name, world in ((CHAIN_ENVIRONMENT, CHAIN), (GRID_ENVIRONMENT, GRID)):
        gymnasium.register(
            id=name,
            entry_point="bats.tasks.worlds:WorldEnv",
            max_episode_steps=EPISODE_STEPS,
            kwargs={"shape": world.shape},
        )


def collect_world(
    world: World, rows: int, seed: int, *, name: str = "world", progress: Progress = no_progress
) -> Dataset:
    """Random actions from random places, in episodes of at most 100 steps. Starts are the first rows."""
    check_rows(rows)
    starting, acting = generator(seed).spawn(2)
    environment = WorldEnv(world.shape, ends=world.ends, move_cost=world.move_cost)

    def random_action(observation: np.ndarray) -> np.int64:
        return acting.integers(world.action_count)

    episodes, done = [], 0
    while done < rows:
        progress("collect", done, rows)
        most = min(EPISODE_STEPS, rows - done)
        episodes.append(play(environment, random_action, seed=draw_seed(starting), most=most))
        done += len(episodes[-1])
    progress("collect", rows, rows)
    return as_dataset(episodes, name=name, action_count=world.action_count)
