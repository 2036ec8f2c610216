"""Three worlds small enough for the exact bisimulation metric, each with every action of every state known.

    grid            30 x 30 cells with walls and doors; the goal pays 1 for every step in it, nothing else pays
    mountain car    positions and speeds on a grid; the true car with one of three pushes held for four of its steps,
                    snapped to the grid; a step costs 1 and a tenth of the squared push, until the hill ends it
    random          50 x 50 places, each moved at random by up to 0.3 of their spacing, with moves to the 8 nearest;
                    a step costs what a random smooth function of the place says, until a random goal ends it

A random world whose states are mere names has nothing to tell about a state that was not seen. So this one is random in
its places, costs and goal, and nearness means something in it as it does in the world of a log.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial import cKDTree

from bats.data.dataset import Dataset
from bats.graph.mdp import TabularMDP, from_dataset

GAMMA = 0.99

SIDE = 30
GOAL = (27, 27)
MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])

POSITIONS, SPEEDS = 60, 60
HELD = 4
"""steps of the car for which a push is held"""
LOW, HIGH, FASTEST, HILL = -1.2, 0.6, 0.07, 0.5

ROWS, JITTER, NEAREST, ROUGHNESS = 50, 0.3, 8, 0.3
PLACES = ROWS**2


def walled_grid() -> TabularMDP:
    """Two walls across with a door each at opposite ends, and a third wall around the goal's room."""
    free = np.ones((SIDE, SIDE), dtype=bool)
    free[10, :], free[20, :], free[21:, 14] = False, False, False
    free[10, 24:27] = free[20, 3:6] = free[24:27, 14] = True
    cells = np.argwhere(free)
    source = np.repeat(cells, len(MOVES), axis=0)
    action = np.tile(np.arange(len(MOVES)), len(cells))
    target = np.clip(source + MOVES[action], 0, SIDE - 1)
    target = np.where(free[tuple(target.T)][:, None], target, source)
    stays = (source == GOAL).all(axis=1)
    target = np.where(stays[:, None], source, target)
    reward = (target == GOAL).all(axis=1).astype(np.float64)
    return _graph(source.astype(np.float32), action, reward, target.astype(np.float32), np.zeros(len(source), bool))


def gridded_mountain_car() -> TabularMDP:
    """The car of Gymnasium's tasks; where it stands on the hill is one state, in which all is over."""
    axes = np.linspace(LOW, HIGH, POSITIONS), np.linspace(-FASTEST, FASTEST, SPEEDS)
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    points = points[points[:, 0] < HILL]
    source, push = np.repeat(points, 3, axis=0), np.tile([-1.0, 0.0, 1.0], len(points))
    place, speed = source.T
    arrived, steps = np.zeros(len(source), dtype=bool), np.zeros(len(source))
    for _ in range(HELD):
        steps += ~arrived
        faster = np.clip(speed + 0.001 * push - 0.0025 * np.cos(3 * place), -FASTEST, FASTEST)
        further = np.clip(place + faster, LOW, HIGH)
        faster = np.where((further == LOW) & (faster < 0), 0.0, faster)
        place, speed = np.where(arrived, place, further), np.where(arrived, speed, faster)
        arrived |= place >= HILL
    cell = np.array([axis[1] - axis[0] for axis in axes])
    snapped = points[cKDTree(points / cell).query(np.stack([place, speed], axis=1) / cell)[1]]
    target = np.where(arrived[:, None], [HIGH, 0.0], snapped)
    reward = -(1 + 0.1 * push**2) * steps / HELD
    return _graph(source.astype(np.float32), (push + 1).astype(int), reward, target.astype(np.float32), arrived)


def random_places(seed: int) -> TabularMDP:
    """A world of its own for every seed."""
    rng = np.random.default_rng(seed)
    lattice = np.stack(np.meshgrid(np.arange(ROWS), np.arange(ROWS), indexing="ij"), axis=-1).reshape(-1, 2)
    places = ((lattice + JITTER * rng.uniform(-1, 1, lattice.shape)) / ROWS).astype(np.float32)
    near = cKDTree(places).query(places, k=NEAREST + 1)[1][:, 1:]
    waves, shifts = rng.normal(scale=3.0, size=(2, 8)), rng.uniform(0, 2 * np.pi, 8)
    cost = np.exp(ROUGHNESS * np.sin(places @ waves + shifts) @ rng.normal(scale=0.5, size=8))
    goal = int(rng.integers(PLACES))
    source, action = np.repeat(np.arange(PLACES), NEAREST), np.tile(np.arange(NEAREST), PLACES)
    leaves = source != goal
    source, action, target = source[leaves], action[leaves], near.ravel()[leaves]
    return _graph(places[source], action, -cost[source], places[target], target == goal)


def _graph(
    source: Float[np.ndarray, "N D"],
    action: Int[np.ndarray, "N"],
    reward: Float[np.ndarray, "N"],
    target: Float[np.ndarray, "N D"],
    ends: Bool[np.ndarray, "N"],
) -> TabularMDP:
    log = Dataset.from_arrays(
        source,
        action,
        reward,
        next_observations=target,
        terminations=ends,
        episode_ends=np.ones(len(source), dtype=bool),
    )
    return from_dataset(log, gamma=GAMMA)
