"""What policies truly earn, discounted, from exact states of a run: 1,400 steps in the simulator and no time limit.

    followed    the graph's actions along its walk, played open loop
    cloned      the cloned policy

Where the graph's walk ends before the task does, its last action is kept up, for as long as it takes.
"""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
from jaxtyping import Bool, Float, Int

from bats.kernels import NO_EDGE
from bats.mdp import TabularMDP
from bats.policy import Policy
from bats.rollouts import walk
from bats.tasks.maze2d import find_maze
from bats.tasks.maze2d.physics import MazePhysics
from bats.types import Policy as Choice

STEPS = 1400
"""after these, discounts of 0.99 are below a millionth"""

Numbers = Float[np.ndarray, "n D"]
Simulator = Callable[[Numbers, Float[np.ndarray, "n A"]], tuple[Numbers, Float[np.ndarray, "n"], Bool[np.ndarray, "n"]]]
"""next states, rewards and ends of a step from many states at once"""


def simulator(task: str) -> Simulator:
    """The true environment of a task, entered with exactly the given states."""
    return _car() if task == "mountain-car" else _maze(task)


def followed_values(
    mdp: TabularMDP, policy: Choice, starts: Int[np.ndarray, "n"], simulate: Simulator
) -> Float[np.ndarray, "n"]:
    """What the graph's actions earn from its states."""
    edges = walk(mdp, policy, starts, STEPS).edge
    last = np.maximum.accumulate(np.where(edges != NO_EDGE, np.arange(STEPS), 0), axis=1)
    kept_up = np.take_along_axis(edges, last, axis=1)
    return _earned(mdp.states[starts], lambda step, _: mdp.action[kept_up[:, step]], simulate, mdp.gamma)


def cloned_values(clone: Policy, states: Numbers, simulate: Simulator, gamma: float) -> Float[np.ndarray, "n"]:
    """What the clone earns from states."""
    return _earned(states, lambda _, here: clone.predict(here.astype(np.float32)), simulate, gamma)


def _earned(
    states: Numbers, act: Callable[[int, Numbers], np.ndarray], simulate: Simulator, gamma: float
) -> Float[np.ndarray, "n"]:
    here, earned, weight = states.astype(np.float64), np.zeros(len(states)), np.ones(len(states))
    for step in range(STEPS):
        here, paid, ends = simulate(here, act(step, here))
        earned += weight * paid
        weight *= gamma * ~ends
        if not weight.any():
            break
    return earned


def _maze(task: str) -> Simulator:
    maze = find_maze(task)
    physics = MazePhysics(maze)

    def step(states: Numbers, actions: np.ndarray) -> tuple[Numbers, np.ndarray, np.ndarray]:
        rows = zip(map(tuple, states.tolist()), map(tuple, actions.tolist()), strict=True)
        after = np.array([physics.step(state, action) for state, action in rows])
        return after, maze.at_goal(after).astype(np.float64), np.zeros(len(after), dtype=bool)

    return step


def _car() -> Simulator:
    car = gymnasium.make("MountainCarContinuous-v0").unwrapped
    car.reset(seed=0)

    def step(states: Numbers, actions: np.ndarray) -> tuple[Numbers, np.ndarray, np.ndarray]:
        after, paid, ends = np.empty_like(states), np.empty(len(states)), np.empty(len(states), dtype=bool)
        for row, (state, action) in enumerate(zip(states, actions, strict=True)):
            car.state = state.astype(np.float32)  # type: ignore[attr-defined]
            after[row], paid[row], ends[row], _, _ = car.step(action)
        return after, paid, ends

    return step
