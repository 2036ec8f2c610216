"""What the verdict says of logs that are good, poor, finished or misleading, and whether the bounds are true of each.

python -m benchmarks.verdicts                       all logs
python -m benchmarks.verdicts umaze no-goal         some of them
python -m benchmarks.verdicts --preset demo         with fewer updates and rounds

umaze           250,000 rows as collected
no-goal         the same without the rows within 1 of the goal; rewards are said to be 0 or 1
optimal         episodes of the policy that was cloned from `umaze`: nothing is left to gain
random-car      mountain car without the expert's episodes; rewards are said to go up to 100
noisy           umaze whose every next state is shaken by half an ordinary step
hopper          11 numbers a state
car             mountain car as in `bats-rl benchmark`, with 200 starts in the valley
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bats.bounds.graph_policy import CertificateConfig
from bats.config import Config, preset
from bats.data.dataset import Dataset
from bats.evaluation.episodes import evaluate
from bats.metric.scaled import ScaledMetric
from bats.runs.pipeline import Result, fit
from bats.studies.mountain_car import car_config
from bats.tasks import collect
from bats.tasks.episodes import as_dataset
from bats.tasks.maze2d import find_maze, label_starts, stratified_starts
from bats.tasks.mountain_car import collect_mountain_car
from benchmarks.true_values import STARTS, certificate, coverage_lines

LOGS = ("umaze", "no-goal", "optimal", "random-car", "noisy", "hopper", "car")
ROWS = 250_000
UMAZE = "maze2d-umaze"
FAR_ENOUGH = 1.0
"""from the goal, whose disc has a radius of 0.5"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="*", help=f"some of {', '.join(LOGS)}; all of them where none is named")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    config = preset(options.preset)
    fitted: Result | None = None
    for name in options.logs or LOGS:
        if name == "optimal" and fitted is None:
            fitted = fit(collect(UMAZE, ROWS, 0), config, seed=options.seed)
        log, own, task = made(name, config, fitted)
        result = fit(log, own, seed=options.seed)
        fitted = result if name == "umaze" else fitted
        for line in lines(name, result, task, seed=options.seed):
            print(line, flush=True)


def made(name: str, config: Config, fitted: Result | None) -> tuple[Dataset, Config, str | None]:
    """A log, the settings for it, and the task that it is of where there is a simulator to ask."""
    asked = config.certificate or CertificateConfig()
    if name == "hopper":
        return collect("hopper", None, 0), config, None
    if name == "car":
        return car_log(), car_config(config), "mountain-car"
    if name == "random-car":
        told = replace(asked, reward_range=(-0.1, 100.0))
        return collect_mountain_car(None, 0, expert_episodes=0), replace(config, certificate=told), "mountain-car"
    if name == "optimal":
        assert fitted is not None
        return optimal_log(fitted), config, UMAZE
    log = collect(UMAZE, ROWS, 0)
    if name == "no-goal":
        return (
            without_goal(log),
            replace(config, certificate=replace(asked, reward_range=(0.0, 1.0))),
            UMAZE,
        )
    return (shaken(log) if name == "noisy" else log), config, UMAZE


def car_log() -> Dataset:
    """The log of mountain car; its 25 episodes begin in too few states, so others that hardly move there do as well."""
    log = collect("mountain-car", None, 0)
    position, speed = log.observations.T
    alike = np.flatnonzero((position > -0.6) & (position < -0.4) & (np.abs(speed) < 0.002))
    return log.with_starts(np.sort(np.random.default_rng(0).choice(alike, STARTS, replace=False)))


def without_goal(log: Dataset) -> Dataset:
    """The rows that neither begin nor end near the goal; episodes are cut where rows are missing."""
    maze = find_maze(UMAZE)
    near = np.minimum(maze.goal_distance(log.observations), maze.goal_distance(log.next_observations)) < FAR_ENOUGH
    kept = np.flatnonzero(~near)
    cut = np.append(np.diff(kept) > 1, True) | log.episode_ends[kept]
    rows = Dataset.from_arrays(
        log.observations[kept],
        log.actions[kept],
        log.rewards[kept],
        next_observations=log.next_observations[kept],
        timeouts=cut,
        name="umaze-without-goal",
    )
    return label_starts(rows, maze)[0]


def optimal_log(fitted: Result) -> Dataset:
    """Episodes of the cloned policy, ten from every start cell."""
    maze = find_maze(UMAZE)
    played = evaluate(fitted.policy, maze.environment, starts=stratified_starts(maze, 10, seed=1), record=True)
    return as_dataset(played.episodes, name="umaze-optimal")


def shaken(log: Dataset) -> Dataset:
    """The same log in a world that is not deterministic: next states are where they were, give or take half a step."""
    metric = ScaledMetric.of(log)
    noise = np.random.default_rng(0).normal(size=log.next_observations.shape) * 0.5 / np.sqrt(4) / metric.weight
    moved = (log.next_observations + noise).astype(log.next_observations.dtype)
    rows = Dataset.from_arrays(
        np.where(np.append(True, log.episode_ends[:-1])[:, None], log.observations, np.roll(moved, 1, axis=0)),
        log.actions,
        log.rewards,
        next_observations=moved,
        timeouts=log.episode_ends,
        name="umaze-noisy",
    )
    return rows.with_starts(log.starts, log.start_weights)


def lines(name: str, result: Result, task: str | None, *, seed: int) -> Iterator[str]:
    """The verdict and, where there is a simulator, how many true values lie within the bounds."""
    verdict = certificate(result).verdict
    yield f"{name}: {verdict}"
    yield f"figure verdict_{name}_deploy {int(verdict.deploy)} yes"
    for kind in ("lower", "upper", "logged_value", "width", "coverage", "share_on_stitches"):
        yield f"figure verdict_{name}_{kind} {getattr(verdict, kind):.6g} {'value' if 'value' in kind else 'number'}"
    if task is not None:
        yield from coverage_lines(f"verdict_{name}", result, task, seed=seed)


if __name__ == "__main__":
    main()
