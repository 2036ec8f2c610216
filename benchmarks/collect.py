"""The tasks against their facts: how fast logs are collected, and whether they are D4RL's.

    python -m benchmarks.collect            everything, about six minutes on one core
    python -m benchmarks.collect --quick    a twentieth of the rows and episodes, to see that it runs

Prints one line per measurement: `figure <name> <value> <unit>`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import gymnasium
import numpy as np
from jaxtyping import Float

from bats.tasks.episodes import closed_loop, open_loop, play
from bats.tasks.maze2d import MAZES, Maze, WaypointController, collect_maze, find_maze, label_starts, stratified_starts
from bats.tasks.mountain_car import ENVIRONMENT as MOUNTAIN_CAR
from bats.tasks.mountain_car import expert_action

RANDOM_EPISODES = {"umaze": 400, "medium": 60, "large": 30}
"""episodes from each start cell"""


def figure(name: str, value: float, unit: str) -> None:
    print(f"figure {name} {value:.6g} {unit}", flush=True)


def measure_umaze_statistics(rows: int, seeds: int) -> None:
    """D4RL's umaze file has 12,459 arrivals and 1,565 exits from the goal in 1,000,000 rows, and 7-8% rewarded."""
    arrivals, rewarded, exits = [], [], []
    for seed in range(seeds):
        log = collect_maze(find_maze("umaze"), rows, seed)
        inside = log.maze.at_goal(log.states)
        arrivals.append(np.mean(log.arrivals) * 1e6)
        rewarded.append(np.mean(inside[1:]) * 100)
        exits.append(np.mean(inside[:-1] & ~inside[1:]) * 1e6)
    figure("umaze_arrivals_per_million", float(np.mean(arrivals)), "rows")
    figure("umaze_arrivals_against_published", float(np.mean(arrivals)) / 12_459 * 100 - 100, "%")
    figure("umaze_rewarded", float(np.mean(rewarded)), "%")
    figure("umaze_goal_exits_per_million", float(np.mean(exits)), "rows")


def measure_log(maze: Maze, rows: int) -> None:
    """Speed of collection, and how far the search for start states has to go."""
    began = time.perf_counter()
    log = collect_maze(maze, rows, 0)
    figure(f"collect_{maze.name}", rows / (time.perf_counter() - began), "steps/s")
    _, report = label_starts(log.dataset(), maze)
    figure(f"starts_min_{maze.name}", min(starts.count for starts in report.cells), "rows")
    figure(f"starts_max_width_{maze.name}", max(starts.width for starts in report.cells), "of_0.5")
    figure(f"starts_short_cells_{maze.name}", len(report.short), f"of_{len(report.cells)}_cells")


def random_scores(
    maze: Maze, seeds: Sequence[int | None], states: Float[np.ndarray, "n 4"] | None = None
) -> Float[np.ndarray, "n"]:
    """Normalised scores of a random policy, in an episode for each seed."""
    environment = gymnasium.make(maze.environment, disable_env_checker=True)
    actions = np.random.default_rng(1).uniform(-1, 1, (len(seeds), maze.episode_steps, 2))
    episodes = play([environment], open_loop(list(actions)), seeds=seeds, states=states, keep_observations=False)
    return maze.normalised_score([episode.rewards.sum() for episode in episodes])


def measure_random_policy(maze: Maze, per_cell: int, plain: int) -> None:
    """0 by D4RL's own measurement, whose 100 episodes leave it uncertain by 1.6 (large) to 4 points (umaze).

    Once with `plain` episodes from the environment's own starts, and once with the same number from every start cell.
    """
    drawn = random_scores(maze, range(plain))
    figure(f"random_policy_{maze.name}_{plain}_plain", float(drawn.mean()), "score")
    figure(f"random_policy_{maze.name}_{plain}_plain_standard_error", float(drawn.std() / plain**0.5), "score")
    starts = stratified_starts(maze, per_cell, seed=0)
    by_cell = random_scores(maze, [None] * len(starts), starts).reshape(-1, per_cell)
    figure(f"random_policy_{maze.name}", float(by_cell.mean()), "score")
    if per_cell > 1:
        spread = np.sqrt(by_cell.var(axis=1, ddof=1).mean() / by_cell.size)
        figure(f"random_policy_{maze.name}_standard_error", float(spread), "score")


def measure_waypoint_controller(maze: Maze, per_cell: int) -> None:
    """Without noise, and with a new plan in every episode."""
    environment = gymnasium.make(maze.environment, disable_env_checker=True)
    starts = stratified_starts(maze, per_cell, seed=0)
    controllers = [WaypointController(maze, np.random.default_rng(i)) for i in range(len(starts))]

    def choose(observations: np.ndarray, running: Sequence[int], step: int) -> list[np.ndarray]:
        states = map(tuple, observations.tolist())
        return [np.array(controllers[i].act(state, maze.goal)[:2]) for i, state in zip(running, states, strict=True)]

    episodes = play([environment], choose, seeds=[None] * len(starts), states=starts, keep_observations=False)
    scores = maze.normalised_score([episode.rewards.sum() for episode in episodes])
    figure(f"waypoint_controller_{maze.name}", float(scores.mean()), "score")


def measure_mountain_car(episodes: int) -> None:
    environment = gymnasium.make(MOUNTAIN_CAR, disable_env_checker=True)
    expert = play([environment], closed_loop(expert_action), seeds=range(episodes))
    returns = [episode.rewards.sum() for episode in expert]
    figure("mountain_car_expert", float(np.mean(returns)), "return")
    figure("mountain_car_expert_worst", float(np.min(returns)), "return")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the rows and episodes")
    share = 20 if parser.parse_args().quick else 1
    measure_umaze_statistics(1_000_000 // share, seeds=4)
    for maze in MAZES:
        measure_log(maze, maze.log_rows // share)
    for name, per_cell in RANDOM_EPISODES.items():
        measure_random_policy(find_maze(name), max(per_cell // share, 1), 400 // share)
        measure_waypoint_controller(find_maze(name), max(20 // share, 1))
    measure_mountain_car(100)


if __name__ == "__main__":
    main()
