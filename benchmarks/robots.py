"""Gymnasium's MuJoCo robots: what a random policy earns, and how fast online soft actor-critic learns in them.

    python -m benchmarks.robots             about two minutes on one core
    python -m benchmarks.robots --quick     a tenth of the episodes and steps, to see that it runs

Returns of random policies are printed with their standard errors, as returns and as scores by D4RL's references.
Seconds are seconds of all cores that are used, so that other work on the machine hardly matters.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bats.baselines.config import OnlineConfig
from bats.baselines.online import train_online
from bats.evaluation.episodes import evaluate, open_environments
from bats.tasks.locomotion import ROBOTS, Robot
from benchmarks.common import print_figures, script_parser

Figures = Iterator[tuple[str, float, str]]


def main() -> None:
    quick = script_parser(__doc__, quick="a tenth of the episodes and steps").parse_args().quick
    share = 10 if quick else 1
    for robot in ROBOTS:
        print_figures(random_policy(robot, 100 // share), prefix=f"{robot.name}_")
        print_figures(online_steps(robot, 1_000 // share), prefix=f"{robot.name}_")


def random_policy(robot: Robot, episodes: int) -> Figures:
    """The mean return of uniformly random actions."""
    with open_environments(robot.environment, 1) as (environment,):
        [count] = environment.action_space.shape or ()
    rng = np.random.default_rng(0)
    played = evaluate(
        lambda observations, running, step: rng.uniform(-1, 1, (len(running), count)).astype(np.float32),
        robot.environment,
        episodes=episodes,
        seed=0,
    )
    for unit, values in {"return": played.returns, "score": robot.normalised_score(played.returns)}.items():
        yield f"random_{unit}", float(values.mean()), unit
        yield f"random_{unit}_standard_error", float(values.std(ddof=1) / episodes**0.5), unit
    yield "random_length", float(played.lengths.mean()), "steps"


def online_steps(robot: Robot, steps: int) -> Figures:
    """Steps in the environment with an update each, beyond those of a shorter run, which compiles the same."""
    seconds, passed = [], []
    for count in (steps, 3 * steps):
        config = OnlineConfig(steps=count, random_steps=steps // 2, block=steps // 2, evaluate_every=10**9)
        busy, began = time.process_time(), time.monotonic()
        train_online(robot.environment, config, seed=0)
        seconds.append(time.process_time() - busy)
        passed.append(time.monotonic() - began)
    yield "online_processor_time", 1e3 * (seconds[1] - seconds[0]) / (2 * steps), "ms/step"
    yield "online_speed", 2 * steps / (passed[1] - passed[0]), "steps/s"


if __name__ == "__main__":
    main()
