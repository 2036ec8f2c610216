"""A finished run of a maze solved for another goal: seconds, and what a clone of that solution earns.

    python -m benchmarks.other_goal maze2d-medium --run runs/medium --goal 1,1
    python -m benchmarks.other_goal maze2d-medium --log medium.hdf5 --goal 1,1      the same by fitting from the start
    python -m benchmarks.other_goal maze2d-umaze --log umaze.hdf5 --goal 3,1 --quick        to see that it runs

What actions do does not depend on the goal: only rewards change, and nothing is planned.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from bats.data.formats.load import load_dataset
from bats.graph.relabel import RewardFunction, goal_reward
from bats.policy.policy import Policy
from bats.presets import preset
from bats.runs.pipeline import fit
from bats.runs.result import Changes, solve_again
from bats.runs.variants import clone_again
from bats.tasks.maze2d import find_maze
from bats.tasks.maze2d.maps import GOAL_RADIUS
from benchmarks.common import QUICK, print_figures, script_parser
from benchmarks.maze_score import evaluate_in_maze, goal_figures, inside


def main() -> None:
    parser = script_parser(__doc__, quick="few updates, rounds and starts")
    parser.add_argument("task")
    parser.add_argument("--goal", required=True, help="row and column, with a comma between")
    parser.add_argument("--seed", type=int, default=0, help="of the fit and of the starts (default: 0)")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, help="folder of a finished run, to be solved again")
    source.add_argument("--log", type=Path, help="the task's log, to be fitted from the start")
    arguments = parser.parse_args()
    maze = find_maze(arguments.task)
    row, column = (float(part) for part in arguments.goal.split(","))
    reward = goal_reward(np.array([row, column]), GOAL_RADIUS)
    prefix = f"{maze.name}_goal_{row:g}_{column:g}_"
    if arguments.run is not None:
        kind, policy = "solved_again", solve_for(arguments.run, reward, prefix)
    else:
        log = load_dataset(arguments.log)
        log = log.with_rewards(np.asarray(reward(log.observations, log.actions, log.next_observations)))
        config = QUICK if arguments.quick else preset("default")
        kind, policy = "fitted", fit(log, config, seed=arguments.seed).policy
    evaluation = evaluate_in_maze(policy, maze, seed=arguments.seed, per_cell=2 if arguments.quick else None)
    print_figures(goal_figures(inside(evaluation, (row, column))), prefix=f"{prefix}{kind}_")


def solve_for(run: Path, reward: RewardFunction, prefix: str) -> Policy:
    """A clone of a run's graph as solved for another reward."""
    began, changes = time.perf_counter(), Changes(reward=reward)
    solve_again(run, changes)
    solving = time.perf_counter() - began
    policy = clone_again(run, changes)
    cloning = time.perf_counter() - began - 2 * solving  # cloning solves the graph once more
    print_figures([("solve", solving, "s"), ("clone", cloning, "s")], prefix=prefix)
    return policy


if __name__ == "__main__":
    main()
