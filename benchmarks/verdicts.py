"""The verdict on logs that are good, poor, optimal or misleading, and whether the bounds of each are true.

python -m benchmarks.verdicts                       all logs
python -m benchmarks.verdicts umaze no-goal         some of them
python -m benchmarks.verdicts --preset demo         with fewer updates and rounds
python -m benchmarks.verdicts umaze car --quick     few rows, updates and rounds, to see that it runs

umaze           250,000 rows as collected
no-goal         the same without the rows within 1 of the goal; possible rewards are set to 0 to 1
optimal         episodes of the policy that was cloned from `umaze`: nothing is left to gain
random-car      mountain car without the expert's episodes; possible rewards are set to -0.1 to 100
noisy           umaze with noise of half an ordinary step on every next state
hopper          11 numbers in a state
car             mountain car as in `bats-rl benchmark`, with 200 starts in the valley
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bats.config import CertificateConfig, Config
from bats.data.dataset import Dataset
from bats.errors import SettingError
from bats.evaluation.episodes import evaluate
from bats.metric.scaled import ScaledMetric
from bats.policy.policy import Policy
from bats.presets import preset
from bats.runs.pipeline import fit
from bats.runs.result import Result
from bats.studies.mountain_car import car_config
from bats.tasks import collect
from bats.tasks.episodes import as_dataset
from bats.tasks.maze2d import find_maze, label_starts, stratified_starts
from bats.tasks.mountain_car import collect_mountain_car
from benchmarks.certificate_coverage import STARTS, coverage
from benchmarks.common import QUICK, QUICK_ROWS, print_figures, script_parser

LOGS = ("umaze", "no-goal", "optimal", "random-car", "noisy", "hopper", "car")
ROWS = 250_000
UMAZE = "maze2d-umaze"
NEAR_GOAL = 1.0
"""distance from the goal, whose disc has a radius of 0.5"""


def main() -> None:
    parser = script_parser(__doc__, quick="few rows, updates and rounds")
    parser.add_argument("logs", nargs="*", help=f"some of {', '.join(LOGS)}; all of them where none is named")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    config, rows = (QUICK, QUICK_ROWS) if arguments.quick else (preset(arguments.preset), ROWS)
    umaze: Result | None = None
    for name in arguments.logs or LOGS:
        if name == "optimal" and umaze is None:
            umaze = fit(collect(UMAZE, rows, 0), config, seed=arguments.seed)
        log, settings, task = make_log(name, config, rows, None if umaze is None else umaze.policy)
        result = fit(log, settings, seed=arguments.seed)
        umaze = result if name == "umaze" else umaze  # `optimal` needs its policy
        print_verdict(name, result, task, seed=arguments.seed)


def make_log(name: str, config: Config, rows: int, optimal: Policy | None) -> tuple[Dataset, Config, str | None]:
    """A log, the settings for it, and its task where that has a simulator that can be put into a state."""
    certificate = config.certificate or CertificateConfig()
    if name == "hopper":
        return collect("hopper", None if rows == ROWS else rows, 0), config, None
    if name == "car":
        return car_log(), car_config(config), "mountain-car"
    if name == "random-car":
        settings = replace(config, certificate=replace(certificate, reward_range=(-0.1, 100.0)))
        return collect_mountain_car(None, 0, expert_episodes=0), settings, "mountain-car"
    if name == "optimal" and optimal is not None:
        return optimal_log(optimal), config, UMAZE
    log = collect(UMAZE, rows, 0)
    if name == "no-goal":
        return without_goal(log), replace(config, certificate=replace(certificate, reward_range=(0.0, 1.0))), UMAZE
    return (with_noise(log) if name == "noisy" else log), config, UMAZE


def car_log() -> Dataset:
    """The log of mountain car, with other states almost at rest in the valley as starts: its own 25 are too few."""
    log = collect("mountain-car", None, 0)
    position, velocity = log.observations.T
    resting = np.flatnonzero((position > -0.6) & (position < -0.4) & (np.abs(velocity) < 0.002))
    return log.with_starts(np.sort(np.random.default_rng(0).choice(resting, STARTS, replace=False)))


def without_goal(log: Dataset) -> Dataset:
    """The rows that neither start nor end near the goal; episodes are split where rows are missing."""
    maze = find_maze(UMAZE)
    distance = np.minimum(maze.goal_distance(log.observations), maze.goal_distance(log.next_observations))
    kept = np.flatnonzero(distance >= NEAR_GOAL)
    rows = Dataset.from_arrays(
        log.observations[kept],
        log.actions[kept],
        log.rewards[kept],
        next_observations=log.next_observations[kept],
        timeouts=np.append(np.diff(kept) > 1, True) | log.episode_ends[kept],
        name="umaze-without-goal",
    )
    return label_starts(rows, maze)[0]


def optimal_log(policy: Policy) -> Dataset:
    """Episodes of a policy, ten from every start cell."""
    maze = find_maze(UMAZE)
    evaluation = evaluate(policy, maze.environment, starts=stratified_starts(maze, 10, seed=1), record=True)
    return as_dataset(evaluation.episodes, name="umaze-optimal")


def with_noise(log: Dataset) -> Dataset:
    """The same log in a world that is not deterministic: noise of half an ordinary step on every next state."""
    metric = ScaledMetric.of(log)
    shape = log.next_observations.shape
    # spread over all numbers of a state, so that its length is about half an ordinary step
    noise = np.random.default_rng(0).normal(size=shape) * 0.5 / np.sqrt(shape[1]) / metric.weight
    moved = (log.next_observations + noise).astype(log.next_observations.dtype)
    # a row starts where the row before it ended, noise included, unless it is the first of its episode
    first = np.append(True, log.episode_ends[:-1])[:, None]
    rows = Dataset.from_arrays(
        np.where(first, log.observations, np.roll(moved, 1, axis=0)),
        log.actions,
        log.rewards,
        next_observations=moved,
        timeouts=log.episode_ends,
        name="umaze-noisy",
    )
    return rows.with_starts(log.starts, log.start_weights)


def print_verdict(name: str, result: Result, task: str | None, *, seed: int) -> None:
    """The verdict, what it rests on and, where there is a simulator, how many true values lie within the bounds."""
    certificate = result.certificate
    if certificate is None:
        raise SettingError("Verdicts need a preset with a certificate.")
    print(f"{name}: {certificate.verdict}", flush=True)
    figures = [
        ("deploy", float(certificate.deploy), "yes"),
        ("lower", certificate.clone.lower, "value"),
        ("upper", certificate.clone.upper, "value"),
        ("logged_value", certificate.logged_value, "value"),
        ("width", certificate.clone.width, "share"),
        ("coverage", certificate.coverage, "share"),
        ("share_on_stitches", certificate.share_on_stitches, "share"),
    ]
    print_figures(figures, prefix=f"verdict_{name}_")
    if task is not None:
        print_figures(coverage(result, task, seed=seed), prefix=f"verdict_{name}_")


if __name__ == "__main__":
    main()
