"""Scores of cloning without stitching, and of further clones of one stitched graph.

    python -m benchmarks.cloning maze2d-umaze                               the whole log, and its best tenth
    python -m benchmarks.cloning maze2d-umaze --run runs/umaze --clones 3   further clones of a run's graph
    python -m benchmarks.cloning maze2d-umaze --quick                       few rows and updates, to see that it runs

The best tenth are the windows of an episode's length with the highest returns. Policies are evaluated from the
stratified starts that every policy is evaluated from.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bats.data.dataset import Dataset
from bats.policy.cloning import clone
from bats.policy.demonstrations import Demonstrations, demonstrate, logged_rows
from bats.presets import preset
from bats.runs.result import load_result
from bats.tasks.maze2d import Maze, find_maze
from benchmarks.common import QUICK, QUICK_ROWS, print_figures, script_parser, task_log
from benchmarks.maze_score import evaluate_in_maze, score_figures

BEST = 0.1
SEGMENT = 1000
"""rows of the log that are held out from cloning together"""


def main() -> None:
    parser = script_parser(__doc__, quick="few rows and updates")
    parser.add_argument("task")
    parser.add_argument("--log", type=Path, help="the task's log, to collect none")
    parser.add_argument("--run", type=Path, help="folder of a finished run, to clone its graph instead of a log")
    parser.add_argument("--clones", type=int, default=1, help="of each kind, with seeds from 0 (default: 1)")
    arguments = parser.parse_args()
    maze = find_maze(arguments.task)
    if arguments.run is None:
        log = task_log(arguments.task, arguments.log, rows=QUICK_ROWS if arguments.quick else None)
        config = preset("default").cloning
        row = np.arange(len(log))  # a maze's log is one long episode, so segments are held out instead of episodes
        kinds = {"whole_log": logged_rows(log, row, row // SEGMENT), "best_tenth": best_windows(log, maze)}
    else:
        result = load_result(arguments.run)
        config = result.config.cloning
        rollouts, seed = result.config.rollouts, result.seed
        kinds = {"graph": demonstrate(result.solution, result.metric, rollouts, seed=seed)[0]}
    for kind, demonstrations in kinds.items():
        for seed in range(arguments.clones):
            policy = clone(demonstrations, QUICK.cloning if arguments.quick else config, seed=seed)
            evaluation = evaluate_in_maze(policy, maze, seed=seed, per_cell=2 if arguments.quick else None)
            print_figures(score_figures(evaluation, maze), prefix=f"{maze.name}_{kind}_{seed}_")


def best_windows(log: Dataset, maze: Maze) -> Demonstrations:
    """The tenth of the windows of an episode's length with the highest returns."""
    steps = maze.episode_steps
    count = len(log) // steps
    returns = log.rewards[: count * steps].reshape(count, steps).sum(axis=1)
    best = np.sort(np.argsort(returns, kind="stable")[-max(int(BEST * count), 1) :])
    rows = (best[:, None] * steps + np.arange(steps)).ravel()
    return logged_rows(log, rows, np.repeat(np.arange(len(best)), steps))


if __name__ == "__main__":
    main()
