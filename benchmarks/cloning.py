"""What cloning earns without stitching, and more clones of one stitched graph.

    python -m benchmarks.cloning maze2d-umaze                               the whole log, and its best tenth
    python -m benchmarks.cloning maze2d-umaze --run runs/umaze --clones 3   further clones of a run's graph

The best tenth are the stretches of an episode's length that earn most. Episodes begin in the stratified starts that
everybody is judged on; the environment judges and chooses nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from bats.data.dataset import Dataset
from bats.data.formats.load import load_dataset
from bats.policy.cloning import CloningConfig, clone
from bats.policy.demonstrations import Demonstrations, demonstrate, logged_rows
from bats.runs.pipeline import load_result
from bats.tasks import collect
from bats.tasks.maze2d import Maze, find_maze
from benchmarks.maze_score import evaluate_in_maze, score_lines

BEST = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--log", type=Path, help="the task's log, to collect none")
    parser.add_argument("--run", type=Path, help="folder of a finished run, to clone its graph instead of a log")
    parser.add_argument("--clones", type=int, default=1, help="how many of each, with seeds from 0 on")
    options = parser.parse_args()
    maze = find_maze(options.task)
    if options.run is None:
        log = collect(options.task, seed=0) if options.log is None else load_dataset(options.log)
        config = CloningConfig()
        lessons = {"whole_log": whole(log), "best_tenth": best(log, maze)}
    else:
        result = load_result(options.run)
        config = result.config.cloning
        shown = demonstrate(result.mdp, result.solution, result.metric, result.config.rollouts, seed=result.seed)
        lessons = {"graph": shown}
    for kind, lesson in lessons.items():
        for seed in range(options.clones):
            policy = clone(lesson, config, seed=seed)
            for line in score_lines(evaluate_in_maze(policy, maze, seed=seed), maze, f"{maze.name}_{kind}_{seed}"):
                print(line, flush=True)


def whole(log: Dataset) -> Demonstrations:
    """Every row of a log, each counting the same."""
    return logged_rows(log, np.arange(len(log)), np.arange(len(log)) // 1000)


def best(log: Dataset, maze: Maze) -> Demonstrations:
    """The tenth of the stretches of an episode's length that earns most."""
    count, steps = len(log) // maze.episode_steps, maze.episode_steps
    earned = log.rewards[: count * steps].reshape(count, steps).sum(axis=1)
    kept = np.sort(np.argsort(earned, kind="stable")[-max(int(BEST * count), 1) :])
    rows = (kept[:, None] * steps + np.arange(steps)).ravel()
    return logged_rows(log, rows, np.repeat(np.arange(len(kept)), steps))


if __name__ == "__main__":
    main()
