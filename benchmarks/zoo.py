"""The logs of the zoo: their mean returns, and the returns of random actions and of the controllers, their references.

    python -m benchmarks.zoo                        about a quarter of an hour on one core
    python -m benchmarks.zoo --tasks pendulum       some tasks, separated by commas
    python -m benchmarks.zoo --quick                20 episodes and 20,000 rows each, to see that it runs

Returns of random actions and of controllers are means over 1,000 episodes; those of the log are means over its
episodes, the one that is cut at its end included.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bats.data.dataset import Dataset
from bats.evaluation.episodes import evaluate, open_environments
from bats.tasks.episodes import Controller, closed_loop
from bats.tasks.zoo.skill import ControlTask, goals_seen, random_controller
from bats.tasks.zoo.tasks import MOUNTAIN_CAR, ZOO
from benchmarks.common import QUICK_ROWS, print_figures, script_parser, task_log

Figures = Iterator[tuple[str, float, str]]
EPISODES = 1_000


def main() -> None:
    parser = script_parser(__doc__, quick="20 episodes and 20,000 rows each")
    parser.add_argument("--tasks", help="some of the tasks, separated by commas")
    arguments = parser.parse_args()
    for task in (*(collector.task for collector in ZOO), MOUNTAIN_CAR):
        if arguments.tasks is None or task.name in arguments.tasks.split(","):
            print_figures(references(task, 20 if arguments.quick else EPISODES), prefix=f"{task.name}_")
            log = task_log(task.name, rows=QUICK_ROWS if arguments.quick else None)
            print_figures(of_log(task, log), prefix=f"{task.name}_")


def references(task: ControlTask, episodes: int) -> Figures:
    """Mean returns of random actions and of the controller, with standard errors, and what they are as scores."""
    with open_environments(task.environment, 1) as (environment,):
        random = random_controller(environment.action_space, np.random.default_rng(0))
    policies: dict[str, Controller] = {"random": random, "reference": task.controller}
    for name, controller in policies.items():
        returns = evaluate(closed_loop(controller), task.environment, episodes=episodes, seed=0).returns
        yield f"{name}_return", float(returns.mean()), "return"
        yield f"{name}_return_standard_error", float(returns.std(ddof=1) / episodes**0.5), "return"
        yield f"{name}_score", float(task.normalised_score(returns).mean()), "score"


def of_log(task: ControlTask, log: Dataset) -> Figures:
    """What the rule for logs is about."""
    yield "log_rows", len(log), "rows"
    yield "log_episodes", log.episode_count, "episodes"
    yield "log_return", float(log.episode_returns.mean()), "return"
    yield "log_score", float(task.normalised_score(log.episode_returns).mean()), "score"
    yield "log_goals", goals_seen(task, log), "episodes"


if __name__ == "__main__":
    main()
