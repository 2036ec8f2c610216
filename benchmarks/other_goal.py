"""A finished run of a maze solved for another goal: seconds, and what the policy earns that is cloned from it.

    python -m benchmarks.other_goal maze2d-medium --run runs/medium --goal 1,1
    python -m benchmarks.other_goal maze2d-medium --log medium.hdf5 --goal 1,1      the same by fitting from the start

The graph knows what actions do, not what they are for: only the rewards change, and nothing is planned.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from bats.data.formats.load import load_dataset
from bats.graph.relabel import RewardFunction, goal_reward
from bats.policy.policy import Policy
from bats.runs.folder import RunFolder
from bats.runs.pipeline import clone_resolved, fit
from bats.runs.solve_again import Changes, resolve
from bats.tasks.maze2d import find_maze
from bats.tasks.maze2d.maps import GOAL_RADIUS
from benchmarks.maze_score import evaluate_in_maze, goal_lines, inside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--goal", required=True, help="row and column, with a comma between")
    parser.add_argument("--seed", type=int, default=0, help="of the fit and of the starts")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, help="folder of a finished run, to be solved again")
    source.add_argument("--log", type=Path, help="the task's log, to be fitted from the start")
    options = parser.parse_args()
    maze = find_maze(options.task)
    row, column = (float(part) for part in options.goal.split(","))
    reward = goal_reward(np.array([row, column]), GOAL_RADIUS)
    name = f"{maze.name}_goal_{row:g}_{column:g}"
    policy = resolved(options.run, reward, name) if options.run else fitted(options, reward)
    kind = "resolved" if options.run else "fitted"
    evaluation = evaluate_in_maze(policy, maze, seed=options.seed)
    for line in goal_lines(inside(evaluation, (row, column)), f"{name}_{kind}"):
        print(line, flush=True)


def resolved(folder: Path, reward: RewardFunction, name: str) -> Policy:
    """The policy of a run that is solved for another reward."""
    run = RunFolder(folder)
    began = time.perf_counter()
    solved = resolve(run, Changes(reward=reward))
    print(f"figure {name}_solve {time.perf_counter() - began:.2f} s")
    began = time.perf_counter()
    policy = clone_resolved(run, solved)
    print(f"figure {name}_clone {time.perf_counter() - began:.1f} s")
    return policy


def fitted(options: argparse.Namespace, reward: RewardFunction) -> Policy:
    """The policy of a log whose rewards are the other task's."""
    log = load_dataset(options.log)
    paid = np.asarray(reward(log.observations, log.actions, log.next_observations), dtype=log.rewards.dtype)
    return fit(replace(log, rewards=paid), seed=options.seed).policy


if __name__ == "__main__":
    main()
