"""The tasks against their facts: how fast logs are collected, and whether they are D4RL's.

    python -m benchmarks.collect            everything, about six minutes on one core
    python -m benchmarks.collect --quick    a twentieth of the rows and episodes, to see that it runs

Prints one line per measurement: `figure <name> <value> <unit>`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Float

from bats.tasks.maze2d import MAZES, Maze, WaypointController, collect_maze, find_maze, label_starts, stratified_starts
from bats.tasks.mountain_car import ENVIRONMENT as MOUNTAIN_CAR
from bats.tasks.mountain_car import expert_action
from bats.tasks.recording import play

RANDOM_EPISODES = {"umaze": 400, "medium": 60, "large": 30}
"""a start cell"""


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
    figure(f"starts_fewest_{maze.name}", min(found.count for found in report.cells), "rows")
    figure(f"starts_widest_{maze.name}", max(found.width for found in report.cells), "of_0.5")
    figure(f"starts_short_cells_{maze.name}", len(report.short), f"of_{len(report.cells)}_cells")


def random_scores(maze: Maze, resets: Iterable[dict[str, Any]]) -> Float[np.ndarray, "episodes"]:
    """Normalised scores of a random policy, an episode for each way to call `reset`."""
    environment = gymnasium.make(maze.environment, disable_env_checker=True)
    rng = np.random.default_rng(1)
    scores = []
    for reset in resets:
        environment.reset(seed=reset.get("seed"), options=reset.get("options"))
        pushes = rng.uniform(-1, 1, (maze.episode_steps, 2))
        scores.append(float(maze.normalised_score(sum(float(environment.step(push)[1]) for push in pushes))))
    return np.array(scores)


def measure_random_policy(maze: Maze, per_cell: int, plain: int) -> None:
    """0 by D4RL's own measurement, whose 100 episodes leave it uncertain by 1.6 (large) to 4 points (umaze).

    Once with as many plainly drawn episodes as are often played, and once with every start cell equally often.
    """
    drawn = random_scores(maze, ({"seed": seed} for seed in range(plain)))
    figure(f"random_policy_{maze.name}_{plain}_plain", float(drawn.mean()), "score")
    figure(f"random_policy_{maze.name}_{plain}_plain_standard_error", float(drawn.std() / plain**0.5), "score")
    starts = stratified_starts(maze, per_cell, seed=0)
    by_cell = random_scores(maze, ({"options": {"state": start}} for start in starts)).reshape(-1, per_cell)
    figure(f"random_policy_{maze.name}", float(by_cell.mean()), "score")
    if per_cell > 1:
        spread = np.sqrt(by_cell.var(axis=1, ddof=1).mean() / by_cell.size)
        figure(f"random_policy_{maze.name}_standard_error", float(spread), "score")


def measure_waypoint_controller(maze: Maze, per_cell: int) -> None:
    """Without noise, and with a new plan in every episode."""
    environment = gymnasium.make(maze.environment, disable_env_checker=True)
    returns = []
    for number, start in enumerate(stratified_starts(maze, per_cell, seed=0)):
        controller = WaypointController(maze, np.random.default_rng(number))
        observation, _ = environment.reset(options={"state": start})
        total, truncated = 0.0, False
        while not truncated:
            along, across, _ = controller.act(tuple(observation.tolist()), maze.goal)
            observation, reward, _, truncated, _ = environment.step(np.array([along, across]))
            total += float(reward)
        returns.append(total)
    figure(f"waypoint_controller_{maze.name}", float(maze.normalised_score(returns).mean()), "score")


def measure_mountain_car(episodes: int) -> None:
    environment = gymnasium.make(MOUNTAIN_CAR, disable_env_checker=True)
    returns = [play(environment, expert_action, seed=seed).rewards.sum() for seed in range(episodes)]
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
