"""Three worlds small enough for the exact bisimulation metric, each with every action of every state known.

    grid            30 x 30 cells with walls and doors; the goal has reward 1 for every step in it
    mountain car    positions and velocities on a grid; the true car with one of three forces for four steps, moved to
                    the nearest grid point; a step costs 1 and a tenth of the squared force until the hill is reached
    random          50 x 50 points, each moved at random by up to 0.3 of their spacing, with moves to the 8 nearest; a
                    step costs a random smooth function of the point until a random goal is reached

In a random world whose states are mere names, nothing could be known of a state that was not seen. This one is random
in its points, costs and goal, and distances mean something in it, as they do in the world of a log.
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

POSITIONS, VELOCITIES = 60, 60
REPEATS = 4
"""steps of the car with the same force"""
LOW, HIGH, MAX_SPEED, HILL = -1.2, 0.6, 0.07, 0.5

ROWS, JITTER, NEAREST, ROUGHNESS = 50, 0.3, 8, 0.3


def walled_grid() -> TabularMDP:
    """Two walls across with a door each at opposite ends, and a third wall around the goal's room."""
    free = np.ones((SIDE, SIDE), dtype=bool)
    free[10, :], free[20, :], free[21:, 14] = False, False, False
    free[10, 24:27] = free[20, 3:6] = free[24:27, 14] = True
    cells = np.argwhere(free)
    source = np.repeat(cells, len(MOVES), axis=0)
    action = np.tile(np.arange(len(MOVES)), len(cells))
    target = np.clip(source + MOVES[action], 0, SIDE - 1)
    blocked = ~free[tuple(target.T)] | (source == GOAL).all(axis=1)  # no move leaves the goal
    target = np.where(blocked[:, None], source, target)
    reward = (target == GOAL).all(axis=1).astype(np.float64)
    return _graph(source.astype(np.float32), action, reward, target.astype(np.float32), np.zeros(len(source), bool))


def gridded_mountain_car() -> TabularMDP:
    """The car of Gymnasium's tasks; all of the hill is one terminal state."""
    axes = np.linspace(LOW, HIGH, POSITIONS), np.linspace(-MAX_SPEED, MAX_SPEED, VELOCITIES)
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    points = points[points[:, 0] < HILL]
    source, force = np.repeat(points, 3, axis=0), np.tile([-1.0, 0.0, 1.0], len(points))
    position, velocity = source.T
    arrived, steps = np.zeros(len(source), dtype=bool), np.zeros(len(source))
    for _ in range(REPEATS):
        steps += ~arrived
        next_velocity = np.clip(velocity + 0.001 * force - 0.0025 * np.cos(3 * position), -MAX_SPEED, MAX_SPEED)
        next_position = np.clip(position + next_velocity, LOW, HIGH)
        next_velocity = np.where((next_position == LOW) & (next_velocity < 0), 0.0, next_velocity)
        position, velocity = np.where(arrived, position, next_position), np.where(arrived, velocity, next_velocity)
        arrived |= position >= HILL
    spacing = np.array([axis[1] - axis[0] for axis in axes])
    nearest = points[cKDTree(points / spacing).query(np.stack([position, velocity], axis=1) / spacing)[1]]
    target = np.where(arrived[:, None], [HIGH, 0.0], nearest)
    reward = -(1 + 0.1 * force**2) * steps / REPEATS
    return _graph(source.astype(np.float32), (force + 1).astype(int), reward, target.astype(np.float32), arrived)


def random_places(seed: int) -> TabularMDP:
    """A world of its own for every seed."""
    rng = np.random.default_rng(seed)
    lattice = np.stack(np.meshgrid(np.arange(ROWS), np.arange(ROWS), indexing="ij"), axis=-1).reshape(-1, 2)
    points = ((lattice + JITTER * rng.uniform(-1, 1, lattice.shape)) / ROWS).astype(np.float32)
    nearest = cKDTree(points).query(points, k=NEAREST + 1)[1][:, 1:]
    waves, shifts = rng.normal(scale=3.0, size=(2, 8)), rng.uniform(0, 2 * np.pi, 8)
    cost = np.exp(ROUGHNESS * np.sin(points @ waves + shifts) @ rng.normal(scale=0.5, size=8))
    goal = int(rng.integers(len(points)))
    source, action = np.repeat(np.arange(len(points)), NEAREST), np.tile(np.arange(NEAREST), len(points))
    leaves = source != goal
    source, action, target = source[leaves], action[leaves], nearest.ravel()[leaves]
    return _graph(points[source], action, -cost[source], points[target], target == goal)


def _graph(
    source: Float[np.ndarray, "N D"],
    action: Int[np.ndarray, "N"],
    reward: Float[np.ndarray, "N"],
    target: Float[np.ndarray, "N D"],
    terminations: Bool[np.ndarray, "N"],
) -> TabularMDP:
    log = Dataset.from_arrays(
        source,
        action,
        reward,
        next_observations=target,
        terminations=terminations,
        episode_ends=np.ones(len(source), dtype=bool),
    )
    return from_dataset(log, gamma=GAMMA)
