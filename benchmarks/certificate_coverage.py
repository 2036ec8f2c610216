"""Whether certificates hold: the share of starts whose true value lies within the certified bounds.

    python -m benchmarks.certificate_coverage RUN ...         folders of finished runs of a maze or of mountain car

The true value of a start is a discounted return in the simulator, put into exactly that state, over 1,400 steps and
without a time limit. There are two for each start:

    graph       of the actions of the graph's rollout, open loop; where the rollout ends before the task does, its last
                action is repeated
    clone       of the cloned policy

The simulator of a run is that of the task which its log is named after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import numpy as np
from jaxtyping import Bool, Float, Int

from bats.arrays import TabularPolicy
from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import TabularMDP
from bats.graph.rollouts import roll_out
from bats.policy.policy import Policy
from bats.runs.result import Result, load_result
from bats.tasks import find_task, mountain_car, task_of_log
from bats.tasks.maze2d import MAZES, find_maze
from bats.tasks.maze2d.physics import MazePhysics
from benchmarks.common import print_figures, script_parser

STEPS = 1400
"""after these, discounts of 0.99 are below a millionth"""
STARTS = 200
"""starts of a run that are played from, if it has that many"""
ROUNDING = 1e-6
"""of a value, as a share of the range of all values"""

States = Float[np.ndarray, "n D"]
Simulator = Callable[[States, Float[np.ndarray, "n A"]], tuple[States, Float[np.ndarray, "n"], Bool[np.ndarray, "n"]]]
"""one step from many states: next states, rewards, and whether the task ended"""


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--task", help="task to simulate, where the names of the logs do not say it")
    parser.add_argument("--seed", type=int, default=0, help="of the starts (default: 0)")
    arguments = parser.parse_args()
    for folder in arguments.runs:
        result = load_result(folder)
        task = task_of_log(result.log) if arguments.task is None else find_task(arguments.task)
        if task is None:
            raise SettingError(f"The name of the log of {folder}, {result.log}, is not that of a task: give --task.")
        name = folder.resolve().name.replace("-", "_")
        print_figures(coverage(result, task.name, seed=arguments.seed), prefix=f"coverage_{name}_")


def coverage(result: Result, task: str, *, seed: int) -> Iterator[tuple[str, float, str]]:
    """Figures of both policies: how many true values lie within the bounds, below and above them."""
    certificate, mdp = result.certificate, result.mdp
    if certificate is None:
        raise SettingError(f"{result.folder} has no certificate; `bats-rl certify {result.folder}` makes one.")
    simulate = simulator(task)
    at_starts, possible = certificate.at_starts, certificate.ceiling - certificate.floor
    # playing is slow in pure Python, and 200 starts tell a share of 95% from one of 90%
    sample = np.random.default_rng([seed, 12]).permutation(len(at_starts.starts))[:STARTS]
    starts = at_starts.starts[sample]
    true = {
        "graph": graph_values(mdp, result.solution.policy, starts, simulate),
        "clone": clone_values(result.policy, mdp.states[starts], simulate, mdp.gamma),
    }
    for policy, values in true.items():
        lower, upper = (getattr(at_starts, f"{policy}_{end}")[sample] for end in ("lower", "upper"))
        below, above = values < lower - ROUNDING * possible, values > upper + ROUNDING * possible
        yield f"{policy}_covered", float(np.mean(~below & ~above)), "share"
        yield f"{policy}_below", float(np.mean(below)), "share"
        yield f"{policy}_above", float(np.mean(above)), "share"
        yield f"{policy}_width", float(np.mean(upper - lower) / possible), "share"
        yield f"{policy}_lower", float(lower.mean()), "value"
        yield f"{policy}_true", float(values.mean()), "value"
        yield f"{policy}_upper", float(upper.mean()), "value"


def graph_values(
    mdp: TabularMDP, policy: TabularPolicy, starts: Int[np.ndarray, "n"], simulate: Simulator
) -> Float[np.ndarray, "n"]:
    """Discounted returns of the actions of the graph's rollouts."""
    edges = roll_out(mdp, policy, starts, STEPS).edge
    # the last step so far that has an edge: after the end of a rollout its action is repeated
    last = np.maximum.accumulate(np.where(edges != NO_EDGE, np.arange(STEPS), 0), axis=1)
    repeated = np.take_along_axis(edges, last, axis=1)
    return _returns(mdp.states[starts], lambda step, _: mdp.action[repeated[:, step]], simulate, mdp.gamma)


def clone_values(clone: Policy, states: States, simulate: Simulator, gamma: float) -> Float[np.ndarray, "n"]:
    """Discounted returns of a cloned policy."""
    return _returns(states, lambda _, current: clone.predict(current.astype(np.float32)), simulate, gamma)


def _returns(
    states: States, act: Callable[[int, States], np.ndarray], simulate: Simulator, gamma: float
) -> Float[np.ndarray, "n"]:
    current, returns, weight = states.astype(np.float64), np.zeros(len(states)), np.ones(len(states))
    for step in range(STEPS):
        current, rewards, ended = simulate(current, act(step, current))
        returns += weight * rewards
        weight *= gamma * ~ended  # 0 for good once the task has ended
        if not weight.any():
            break
    return returns


def simulator(task: str) -> Simulator:
    """The real environment of a task, without its time limit."""
    if task in (maze.task for maze in MAZES):
        return _maze(task)
    if task == mountain_car.TASK:
        return _car()
    raise SettingError(f"Only mazes and mountain car can be put into any state; got {task}.")


def _maze(task: str) -> Simulator:
    maze = find_maze(task)
    physics = MazePhysics(maze)

    def step(states: States, actions: np.ndarray) -> tuple[States, np.ndarray, np.ndarray]:
        rows = zip(map(tuple, states.tolist()), map(tuple, actions.tolist()), strict=True)
        after = np.array([physics.step(state, action) for state, action in rows])
        return after, maze.at_goal(after).astype(np.float64), np.zeros(len(after), dtype=bool)

    return step


def _car() -> Simulator:
    car = gymnasium.make(mountain_car.ENVIRONMENT).unwrapped
    car.reset(seed=0)

    def step(states: States, actions: np.ndarray) -> tuple[States, np.ndarray, np.ndarray]:
        after, rewards, ended = np.empty_like(states), np.empty(len(states)), np.empty(len(states), dtype=bool)
        for row, (state, action) in enumerate(zip(states, actions, strict=True)):
            car.state = state.astype(np.float32)  # type: ignore[attr-defined]
            after[row], rewards[row], ended[row], _, _ = car.step(action)
        return after, rewards, ended

    return step


if __name__ == "__main__":
    main()
