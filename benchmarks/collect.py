"""The tasks against known facts: how fast logs are collected, and whether they are like D4RL's.

    python -m benchmarks.collect             about six minutes on one core
    python -m benchmarks.collect --quick     a fiftieth of the rows and episodes, to see that it runs

Logs of all mazes at their usual sizes, episodes of a random policy and of the waypoint controller in them, and the
expert of mountain car.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import gymnasium
import numpy as np
from jaxtyping import Float

from bats.tasks.episodes import closed_loop, open_loop, play
from bats.tasks.maze2d import MAZES, Maze, collect_maze, find_maze, label_starts, stratified_starts
from bats.tasks.maze2d.waypoints import WaypointController
from bats.tasks.mountain_car import ENVIRONMENT as MOUNTAIN_CAR
from bats.tasks.mountain_car import expert_action
from benchmarks.common import print_figures, script_parser

Figures = Iterator[tuple[str, float, str]]
RANDOM_EPISODES = {"umaze": 400, "medium": 60, "large": 30}
"""from each start cell"""
PUBLISHED_ARRIVALS = 12_459
"""at the goal in the 1,000,000 rows of D4RL's umaze file"""


def main() -> None:
    quick = script_parser(__doc__, quick="a fiftieth of the rows and episodes").parse_args().quick
    share = 50 if quick else 1
    print_figures(umaze_statistics(1_000_000 // share, seeds=1 if quick else 4))
    for maze in MAZES:
        print_figures(log_figures(maze, maze.log_rows // share))
    for name, per_cell in RANDOM_EPISODES.items():
        print_figures(random_policy(find_maze(name), max(per_cell // share, 1), 400 // share))
        print_figures(waypoint_controller(find_maze(name), max(20 // share, 1)))
    print_figures(mountain_car_expert(100 // share))


def umaze_statistics(rows: int, seeds: int) -> Figures:
    """D4RL's umaze file has 12,459 arrivals and 1,565 exits from the goal in 1,000,000 rows, and 7-8% rewarded."""
    arrivals, rewarded, exits = [], [], []
    for seed in range(seeds):
        log = collect_maze(find_maze("umaze"), rows, seed)
        inside = log.maze.at_goal(log.states)
        arrivals.append(np.mean(log.arrivals) * 1e6)
        rewarded.append(np.mean(inside[1:]) * 100)
        exits.append(np.mean(inside[:-1] & ~inside[1:]) * 1e6)
    yield "umaze_arrivals_per_million", float(np.mean(arrivals)), "rows"
    yield "umaze_arrivals_against_published", float(np.mean(arrivals)) / PUBLISHED_ARRIVALS * 100 - 100, "%"
    yield "umaze_rewarded", float(np.mean(rewarded)), "%"
    yield "umaze_goal_exits_per_million", float(np.mean(exits)), "rows"


def log_figures(maze: Maze, rows: int) -> Figures:
    """Speed of collection, and how far the search for start states has to go."""
    began = time.perf_counter()
    log = collect_maze(maze, rows, 0)
    yield f"collect_{maze.name}", rows / (time.perf_counter() - began), "steps/s"
    _, report = label_starts(log.dataset(), maze)
    yield f"starts_min_{maze.name}", min(starts.count for starts in report.cells), "rows"
    yield f"starts_max_width_{maze.name}", max(starts.width for starts in report.cells), "of_0.5"
    yield f"starts_short_cells_{maze.name}", len(report.short), f"of_{len(report.cells)}_cells"


def random_policy(maze: Maze, per_cell: int, episodes: int) -> Figures:
    """0 by D4RL's own measurement, whose 100 episodes leave it uncertain by 1.6 (large) to 4 points (umaze).

    Once with `episodes` from the environment's own starts, and once with the same number from every start cell.
    """
    own = _random_scores(maze, range(episodes))
    yield f"random_policy_{maze.name}_{episodes}_own_starts", float(own.mean()), "score"
    yield f"random_policy_{maze.name}_{episodes}_own_starts_standard_error", float(own.std() / episodes**0.5), "score"
    starts = stratified_starts(maze, per_cell, seed=0)
    by_cell = _random_scores(maze, [None] * len(starts), starts).reshape(-1, per_cell)
    yield f"random_policy_{maze.name}", float(by_cell.mean()), "score"
    if per_cell > 1:
        spread = np.sqrt(by_cell.var(axis=1, ddof=1).mean() / by_cell.size)
        yield f"random_policy_{maze.name}_standard_error", float(spread), "score"


def _random_scores(
    maze: Maze, seeds: Sequence[int | None], states: Float[np.ndarray, "n 4"] | None = None
) -> Float[np.ndarray, "n"]:
    """Normalised scores of a random policy, in one episode per seed."""
    environment = gymnasium.make(maze.environment, disable_env_checker=True)
    actions = np.random.default_rng(1).uniform(-1, 1, (len(seeds), maze.episode_steps, 2))
    episodes = play([environment], open_loop(list(actions)), seeds=seeds, states=states, keep_observations=False)
    return maze.normalised_score([episode.rewards.sum() for episode in episodes])


def waypoint_controller(maze: Maze, per_cell: int) -> Figures:
    """The score of the controller that made the log, without noise and with a new plan in every episode."""
    environment = gymnasium.make(maze.environment, disable_env_checker=True)
    starts = stratified_starts(maze, per_cell, seed=0)
    controllers = [WaypointController(maze, np.random.default_rng(i)) for i in range(len(starts))]

    def choose(observations: np.ndarray, running: Sequence[int], step: int) -> list[np.ndarray]:
        states = map(tuple, observations.tolist())
        return [np.array(controllers[i].act(state, maze.goal)[:2]) for i, state in zip(running, states, strict=True)]

    episodes = play([environment], choose, seeds=[None] * len(starts), states=starts, keep_observations=False)
    scores = maze.normalised_score([episode.rewards.sum() for episode in episodes])
    yield f"waypoint_controller_{maze.name}", float(scores.mean()), "score"


def mountain_car_expert(episodes: int) -> Figures:
    environment = gymnasium.make(MOUNTAIN_CAR, disable_env_checker=True)
    played = play([environment], closed_loop(expert_action), seeds=range(episodes))
    returns = [episode.rewards.sum() for episode in played]
    yield "mountain_car_expert", float(np.mean(returns)), "return"
    yield "mountain_car_expert_worst", float(np.min(returns)), "return"


if __name__ == "__main__":
    main()
