"""True discounted returns of policies from exact states of a run, beside the certified bounds.

Both are played for 1,400 steps in the simulator, without a time limit:

    replayed    the actions of a rollout of the graph's policy, open loop
    cloned      the cloned policy

If a rollout ends in the graph before the task does, its last action is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import gymnasium
import numpy as np
from jaxtyping import Bool, Float, Int

from bats.arrays import TabularPolicy
from bats.bounds.certificate import Certified
from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import TabularMDP
from bats.graph.rollouts import walk
from bats.policy.policy import Policy
from bats.runs.pipeline import Result
from bats.tasks.maze2d import find_maze
from bats.tasks.maze2d.physics import MazePhysics

STEPS = 1400
"""after these, discounts of 0.99 are below a millionth"""

STARTS = 200
"""start states of a run that are played from, if it has that many"""

Numbers = Float[np.ndarray, "n D"]
Simulator = Callable[[Numbers, Float[np.ndarray, "n A"]], tuple[Numbers, Float[np.ndarray, "n"], Bool[np.ndarray, "n"]]]
"""one step from many states: next states, rewards, and whether the task ended"""


def simulator(task: str) -> Simulator:
    """The real environment of a task, put into exactly the given states."""
    return _car() if task == "mountain-car" else _maze(task)


def replayed_values(
    mdp: TabularMDP, policy: TabularPolicy, starts: Int[np.ndarray, "n"], simulate: Simulator
) -> Float[np.ndarray, "n"]:
    """Discounted returns of the graph's actions from its states."""
    edges = walk(mdp, policy, starts, STEPS).edge
    last = np.maximum.accumulate(np.where(edges != NO_EDGE, np.arange(STEPS), 0), axis=1)
    repeated = np.take_along_axis(edges, last, axis=1)
    return _returns(mdp.states[starts], lambda step, _: mdp.action[repeated[:, step]], simulate, mdp.gamma)


def cloned_values(clone: Policy, states: Numbers, simulate: Simulator, gamma: float) -> Float[np.ndarray, "n"]:
    """Discounted returns of the clone from states."""
    return _returns(states, lambda _, current: clone.predict(current.astype(np.float32)), simulate, gamma)


def coverage_lines(name: str, result: Result, task: str, *, seed: int) -> Iterator[str]:
    """The share of 200 starts whose true values lie within the bounds, for both policies."""
    certified, mdp, simulate = certificate(result), result.mdp, simulator(task)
    drawn = np.random.default_rng([seed, 12]).permutation(len(certified.at_starts.starts))[:STARTS]
    starts = certified.at_starts.starts[drawn]
    span = certified.card.ceiling - certified.card.floor
    true = {
        "graph": replayed_values(mdp, result.solution.policy, starts, simulate),
        "clone": cloned_values(result.policy, mdp.states[starts], simulate, mdp.gamma),
    }
    for kind, values in true.items():
        lower, upper = (getattr(certified.at_starts, f"{kind}_{end}")[drawn] for end in ("lower", "upper"))
        below, above = values < lower - 1e-6 * span, values > upper + 1e-6 * span  # apart from rounding
        yield f"figure {name}_{kind}_covered {np.mean(~below & ~above):.4g} share"
        yield f"figure {name}_{kind}_below {np.mean(below):.4g} share"
        yield f"figure {name}_{kind}_above {np.mean(above):.4g} share"
        yield f"figure {name}_{kind}_width {np.mean(upper - lower) / span:.4g} share"
        yield f"figure {name}_{kind}_lower {lower.mean():.6g} value"
        yield f"figure {name}_{kind}_true {values.mean():.6g} value"
        yield f"figure {name}_{kind}_upper {upper.mean():.6g} value"


def certificate(result: Result) -> Certified:
    if result.certificate is None:
        raise SettingError("Verdicts need a configuration that asks for a certificate.")
    return result.certificate


def _returns(
    states: Numbers, act: Callable[[int, Numbers], np.ndarray], simulate: Simulator, gamma: float
) -> Float[np.ndarray, "n"]:
    current, returns, weight = states.astype(np.float64), np.zeros(len(states)), np.ones(len(states))
    for step in range(STEPS):
        current, rewards, ended = simulate(current, act(step, current))
        returns += weight * rewards
        weight *= gamma * ~ended
        if not weight.any():
            break
    return returns


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
        after, rewards, ended = np.empty_like(states), np.empty(len(states)), np.empty(len(states), dtype=bool)
        for row, (state, action) in enumerate(zip(states, actions, strict=True)):
            car.state = state.astype(np.float32)  # type: ignore[attr-defined]
            after[row], rewards[row], ended[row], _, _ = car.step(action)
        return after, rewards, ended

    return step
