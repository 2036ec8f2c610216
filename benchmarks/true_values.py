"""What policies truly earn, discounted, from exact states of a run, beside what was certified.

1,400 steps in the simulator and no time limit:

    followed    the graph's actions along its walk, played open loop
    cloned      the cloned policy

Where the graph's walk ends before the task does, its last action is kept up, for as long as it takes.
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
"""of a run that are played from, if it has as many"""

Numbers = Float[np.ndarray, "n D"]
Simulator = Callable[[Numbers, Float[np.ndarray, "n A"]], tuple[Numbers, Float[np.ndarray, "n"], Bool[np.ndarray, "n"]]]
"""next states, rewards and ends of a step from many states at once"""


def simulator(task: str) -> Simulator:
    """The true environment of a task, entered with exactly the given states."""
    return _car() if task == "mountain-car" else _maze(task)


def followed_values(
    mdp: TabularMDP, policy: TabularPolicy, starts: Int[np.ndarray, "n"], simulate: Simulator
) -> Float[np.ndarray, "n"]:
    """What the graph's actions earn from its states."""
    edges = walk(mdp, policy, starts, STEPS).edge
    last = np.maximum.accumulate(np.where(edges != NO_EDGE, np.arange(STEPS), 0), axis=1)
    kept_up = np.take_along_axis(edges, last, axis=1)
    return _earned(mdp.states[starts], lambda step, _: mdp.action[kept_up[:, step]], simulate, mdp.gamma)


def cloned_values(clone: Policy, states: Numbers, simulate: Simulator, gamma: float) -> Float[np.ndarray, "n"]:
    """What the clone earns from states."""
    return _earned(states, lambda _, here: clone.predict(here.astype(np.float32)), simulate, gamma)


def coverage_lines(name: str, result: Result, task: str, *, seed: int) -> Iterator[str]:
    """How many of 200 starts have their true values within the bounds, of both policies."""
    found, mdp, simulate = certificate(result), result.mdp, simulator(task)
    drawn = np.random.default_rng([seed, 12]).permutation(len(found.at_starts.starts))[:STARTS]
    starts = found.at_starts.starts[drawn]
    true = {
        "graph": followed_values(mdp, result.solution.policy, starts, simulate),
        "clone": cloned_values(result.policy, mdp.states[starts], simulate, mdp.gamma),
    }
    for kind, values in true.items():
        lower, upper = (getattr(found.at_starts, f"{kind}_{end}")[drawn] for end in ("lower", "upper"))
        rounding = 1e-6 * (found.card.ceiling - found.card.floor)
        below, above = values < lower - rounding, values > upper + rounding
        yield f"figure {name}_{kind}_covered {np.mean(~below & ~above):.4g} share"
        yield f"figure {name}_{kind}_below {np.mean(below):.4g} share"
        yield f"figure {name}_{kind}_above {np.mean(above):.4g} share"
        yield f"figure {name}_{kind}_width {np.mean(upper - lower) / (found.card.ceiling - found.card.floor):.4g} share"
        yield f"figure {name}_{kind}_lower {lower.mean():.6g} value"
        yield f"figure {name}_{kind}_true {values.mean():.6g} value"
        yield f"figure {name}_{kind}_upper {upper.mean():.6g} value"


def certificate(result: Result) -> Certified:
    if result.certificate is None:
        raise SettingError("Verdicts need a configuration that asks for a certificate.")
    return result.certificate


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
