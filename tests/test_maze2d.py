"""D4RL's maze2d: physics, rewards, starts, scores, and the logs of its waypoint controller."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from bats.data.dataset import Dataset
from bats.data.formats.load import load_dataset
from bats.errors import BatsError, OutputError
from bats.tasks import collect, collect_published, normalised_score, write_published
from bats.tasks.catalogue import TASK_NAMES
from bats.tasks.episodes import closed_loop, open_loop, play
from bats.tasks.maze2d import MAZES, Maze, Maze2dEnv, collect_maze, find_maze, label_starts, stratified_starts
from bats.tasks.maze2d.log import MazeLog
from bats.tasks.maze2d.physics import MazePhysics
from bats.tasks.maze2d.waypoints import ARRIVED, WaypointController, shortest_path, steps_to

pytest.importorskip("mujoco", reason="maze2d needs the extra `mujoco`")

GAIN = 100 / (4 / 3 * math.pi * 0.1**3 * 1000) * 0.01
"""velocity that full force adds in a step: gear / mass * time step = 0.23873"""
DAMPING = GAIN / 100

every_maze = pytest.mark.parametrize("maze", MAZES, ids=lambda maze: maze.name)


@pytest.fixture(scope="module")
def umaze() -> Maze:
    return find_maze("umaze")


@pytest.fixture(scope="module")
def umaze_logs(umaze: Maze) -> list[MazeLog]:
    return [collect_maze(umaze, 50_000, seed) for seed in range(4)]


# Physics


def test_ball_weighs_what_the_arithmetic_says(umaze: Maze) -> None:
    assert pytest.approx(0.23873, abs=1e-5) == GAIN
    x, y, u, v = MazePhysics(umaze).step((2.8, 2.0, 0.0, 0.0), (0.0, 1.0))
    assert (x, u) == (2.8, 0.0)
    assert v == pytest.approx(GAIN / (1 + DAMPING), rel=1e-12)
    assert y == pytest.approx(2.0 + 0.01 * v, rel=1e-12)


def test_velocity_follows_its_recursion_in_free_flight(umaze: Maze) -> None:
    physics, state, expected = MazePhysics(umaze), (3.0, 1.0, 0.0, 0.0), 0.0
    for force in (1.0, 0.5, -0.25, 0.75, 1.0, 1.0):
        state = physics.step(state, (0.0, force))
        expected = (expected + GAIN * force) / (1 + DAMPING)
        assert state[3] == pytest.approx(expected, rel=1e-12)


def test_no_speed_beyond_the_clipped_one_plus_a_push(umaze: Maze) -> None:
    # Velocities are clipped to 5 before the step: (5 + 0.23873) / 1.0023873 = 5.2263 is the fastest ever seen.
    physics = MazePhysics(umaze)
    fastest = (5 + GAIN) / (1 + DAMPING)
    assert fastest == pytest.approx(5.2263, abs=1e-4)
    assert physics.step((3.0, 1.0, 0.0, 5.9), (0.0, 1.0))[3] == pytest.approx(fastest, rel=1e-12)
    assert physics.step((3.0, 1.0, 0.0, 5.9), (0.0, 7.0))[3] == pytest.approx(fastest, rel=1e-12)


@pytest.mark.parametrize(
    ("push", "expected"), [((1.0, 0.0), 3.2), ((-1.0, 0.0), 2.4), ((0.0, -1.0), 0.4)], ids=["below", "above", "left"]
)
def test_walls_hold_the_ball_where_the_map_says(umaze: Maze, push: tuple[float, float], expected: float) -> None:
    # In a corridor along row i the ball's position lies within [i - 0.6, i + 0.2]. Contacts are soft: full force
    # presses the ball less than a hundredth into the wall.
    physics, state = MazePhysics(umaze), (3.0, 1.0, 0.0, 0.0)
    for _ in range(1000):
        state = physics.step(state, push)
    axis = 0 if push[0] else 1
    assert state[axis] == pytest.approx(expected, abs=0.01)
    assert state[2 + axis] == pytest.approx(0, abs=1e-6)


def test_next_state_depends_on_state_and_action_alone(umaze: Maze) -> None:
    # Also in wall contact, where a solver started from its last solution would remember.
    rng = np.random.default_rng(0)
    actions = np.repeat(rng.uniform(-1, 1, (40, 2)), 10, axis=0)
    environment = Maze2dEnv("umaze")
    before, _ = environment.reset(seed=1)
    seen = []
    for action in actions:
        after = environment.step(action)[0]
        seen.append((before, action, after))
        before = after
    for before, action, after in reversed(seen):
        environment.reset(options={"state": before})
        np.testing.assert_array_equal(environment.step(action)[0], after)


@pytest.mark.skipif("BATS_GOLDEN_MAZE2D" not in os.environ, reason="BATS_GOLDEN_MAZE2D names no file of D4RL rollouts")
@pytest.mark.parametrize("name", ["umaze", "medium", "large", "open"])
def test_returns_are_those_of_the_original_environments(name: str) -> None:
    # Rollouts of the real D4RL environments: start state, first action, then a tanh network's actions.
    # The map's share of equal returns was 100% on MuJoCo 2.3.7 and 4.0.0.
    with np.load(Path(os.environ["BATS_GOLDEN_MAZE2D"])) as file:
        golden = {key.removeprefix(f"{name}/"): file[key] for key in file if key.startswith(f"{name}/")}
    maze = find_maze(name)
    physics = MazePhysics(maze)
    step = getattr(MazePhysics.step, "__wrapped__", MazePhysics.step)  # type checks would take most of the time
    states, actions = golden["state"].copy(), golden["first_action"].astype(np.float64)
    returns = np.zeros(len(states), dtype=np.int64)
    for time in range(int(golden["horizon"].max())):
        alive = np.flatnonzero(golden["horizon"] > time)
        for policy in np.unique(golden["policy"][alive]) if time else ():
            rows = alive[golden["policy"][alive] == policy]
            layer = states[rows]
            for number in (1, 2, 3):
                weights, bias = golden[f"policy{policy}/w{number}"], golden[f"policy{policy}/b{number}"]
                layer = np.tanh(layer @ weights.T + bias)
            actions[rows] = layer
        steps = zip(states[alive].tolist(), actions[alive].tolist(), strict=True)
        states[alive] = [step(physics, state, action) for state, action in steps]
        returns[alive] += maze.at_goal(states[alive])
    equal = np.mean(returns == golden["return"])
    assert equal >= 0.999, f"{equal:.2%} of {len(states)} returns are equal"


# The environment


@every_maze
def test_environment_is_a_proper_gymnasium_one(maze: Maze) -> None:
    environment = gymnasium.make(maze.environment, render_mode="rgb_array")
    assert environment.spec is not None
    assert environment.spec.max_episode_steps == maze.episode_steps
    check_env(environment.unwrapped)


def test_time_limit_truncates_and_nothing_terminates() -> None:
    environment = gymnasium.make("bats/maze2d-open-v0")
    (episode,) = play([environment], closed_loop(lambda _: np.zeros(2)), seeds=[0])
    assert len(episode) == 150
    assert not episode.terminated


def test_reward_is_that_of_the_state_after_the_step(umaze: Maze) -> None:
    # The disc around (1, 1) reaches to column 1.5. At 5 columns/s the ball crosses the edge within one step.
    environment = Maze2dEnv("umaze")
    outside, inside = [1.0, 1.52, 0.0, -5.0], [1.0, 1.48, 0.0, 5.0]
    environment.reset(options={"state": outside})
    observation, reward, _, _, info = environment.step(np.zeros(2))
    assert (observation[1] < 1.5, reward, info["at_goal"]) == (True, 1.0, True)
    environment.reset(options={"state": inside})
    observation, reward, _, _, info = environment.step(np.zeros(2))
    assert (observation[1] > 1.5, reward, info["at_goal"]) == (True, 0.0, False)


def test_the_disc_includes_its_edge(umaze: Maze) -> None:
    edge = np.array([[1.0, 1.5, 0, 0], [1.0, np.nextafter(1.5, 2), 0, 0], [1.3, 1.4, 0, 0]])
    assert umaze.at_goal(edge).tolist() == [True, False, True]  # 0.3, 0.4, 0.5


def test_dense_reward_is_exp_of_minus_the_distance() -> None:
    environment = Maze2dEnv("umaze", reward="dense")
    environment.reset(options={"state": [3.0, 1.0, 0.0, 0.0]})
    assert environment.step(np.zeros(2))[1] == pytest.approx(math.exp(-2), rel=1e-12)
    with pytest.raises(BatsError, match="sparse"):
        Maze2dEnv("umaze", reward="shaped")


def test_starts_are_uniform_over_cells_with_a_little_noise(umaze: Maze) -> None:
    environment = Maze2dEnv("umaze")
    starts = np.array([environment.reset(seed=0 if i == 0 else None)[0] for i in range(7000)])
    cells, counts = np.unique(np.rint(starts[:, :2]), axis=0, return_counts=True)
    assert {tuple(cell) for cell in cells.astype(int).tolist()} == set(umaze.cells)  # the goal's cell as well
    # 1,000 expected in each, std sqrt(7000 * 1/7 * 6/7) = 29
    assert np.abs(counts - 1000).max() < 4 * 29
    offset = starts[:, :2] - np.rint(starts[:, :2])
    assert np.abs(offset).max() <= 0.1
    assert offset.std() == pytest.approx(0.2 / math.sqrt(12), rel=0.03)
    assert starts[:, 2:].mean() == pytest.approx(0, abs=4 * 0.1 / math.sqrt(14_000))
    assert starts[:, 2:].std() == pytest.approx(0.1, rel=0.03)


def test_stratified_starts_hold_every_cell_equally_often() -> None:
    large = find_maze("large")
    starts = stratified_starts(large, 3, seed=5)
    assert starts.shape == (138, 4)
    np.testing.assert_array_equal(np.rint(starts[:, :2]), np.repeat(large.cells, 3, axis=0))
    np.testing.assert_array_equal(starts, stratified_starts("maze2d-large", 3, seed=5))
    assert (starts != stratified_starts(large, 3, seed=6)).any()


def test_image_shows_walls_goal_and_ball_at_their_positions() -> None:
    environment = Maze2dEnv("umaze", render_mode="rgb_array")
    environment.reset(options={"state": [3.0, 2.0, 0.0, 0.0]})
    image = environment.render()
    assert image is not None
    assert image.shape == (5 * 40, 5 * 40, 3)

    def colour(row: float, column: float) -> tuple[int, ...]:
        return tuple(image[int((row + 0.7) * 40), int((column + 0.7) * 40)].tolist())

    wall, goal, ball, floor = colour(-0.2, -0.2), colour(1.0, 1.0), colour(3.0, 2.0), colour(2.0, 3.0)
    assert len({wall, goal, ball, floor}) == 4
    assert colour(2.0, 1.0) == wall  # the bar of the U
    assert colour(1.0, 1.29) == goal
    assert colour(3.09, 2.0) == ball
    assert colour(3.12, 2.0) == floor


@pytest.mark.parametrize("state", [[1, 1, 0], [1, 1, 0, math.nan], [9, 1, 0, 0], [1, 1, 0, 50]])
def test_impossible_states_are_refused(state: list[float]) -> None:
    with pytest.raises(BatsError, match="4 numbers within"):
        Maze2dEnv("umaze").reset(options={"state": state})


def test_misuse_is_refused() -> None:
    environment = Maze2dEnv("umaze")
    with pytest.raises(BatsError, match="reset"):
        environment.step(np.zeros(2))
    with pytest.raises(BatsError, match="'goal'"):
        environment.reset(options={"goal": (1, 1)})
    environment.reset(seed=0)
    with pytest.raises(BatsError, match="finite"):
        environment.step(np.array([math.nan, 0.0]))
    for action in (np.zeros(3), np.zeros((2, 1)), np.zeros(1), ["a", "b"]):
        with pytest.raises(BatsError, match="An action must be 2 numbers; got"):
            environment.step(action)
    with pytest.raises(BatsError, match="must be 'rgb_array' or None; got 'human'"):
        Maze2dEnv("umaze", render_mode="human")


@pytest.mark.parametrize(
    "call", [lambda: collect("maze2d-umaze", 9, -1), lambda: stratified_starts("umaze", 1, seed=-1)]
)
def test_a_negative_seed_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(BatsError, match=r"`seed` must be between 0 and .*; got -1\."):
        call()


def test_importing_the_tasks_does_not_import_mujoco() -> None:
    code = "import sys, bats.tasks; sys.exit('mujoco' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_missing_mujoco_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)  # another test may have imported what imports it
    for task in ("maze2d-umaze", "hopper"):
        with pytest.raises(BatsError, match=r"pip install 'bats-rl\[mujoco\]'"):
            collect(task, 10, 0)


# Maps and scores


def test_maps_have_the_published_sizes() -> None:
    facts = {maze.name: (len(maze.cells), maze.goal, maze.episode_steps) for maze in MAZES}
    assert facts["umaze"] == (7, (1, 1), 300)
    assert facts["medium"] == (26, (6, 6), 600)
    assert facts["large"] == (46, (7, 9), 800)
    assert facts["open"] == (15, (2, 3), 150)
    assert facts["eval-umaze"] == (7, (1, 3), 300)


@every_maze
def test_every_map_is_walled_in_and_connected(maze: Maze) -> None:
    assert len({len(row) for row in maze.rows}) == 1
    assert set(maze.rows[0] + maze.rows[-1]) == {"#"}
    assert {row[0] + row[-1] for row in maze.rows} == {"##"}
    assert set(maze.cells) <= set(steps_to(maze, maze.goal))


def test_scores_follow_the_published_constants() -> None:
    np.testing.assert_allclose(normalised_score("maze2d-umaze", [23.85, 161.86]), [0, 100], atol=1e-12)
    # One step at the goal is worth 100 / (161.86 - 23.85) = 0.7246 points; 300 of them 276.15 / 138.01 = 200.1.
    assert float(normalised_score("umaze", 24.85)) == pytest.approx(0.7246, abs=1e-4)
    assert float(normalised_score("bats/maze2d-umaze-v1", 300)) == pytest.approx(200.1, abs=0.05)
    assert float(normalised_score("maze2d-medium-v1", 600)) == pytest.approx(222.1, abs=0.05)
    assert float(normalised_score("large", 800)) == pytest.approx(296.8, abs=0.05)


def test_scores_of_robots_follow_the_published_constants() -> None:
    for robot, random, expert in [
        ("hopper", -20.272305, 3234.3),
        ("walker2d", 1.629008, 4592.3),
        ("halfcheetah", -280.178953, 12135.0),
    ]:
        np.testing.assert_allclose(normalised_score(f"{robot}-mixed", [random, expert]), [0, 100], atol=1e-12)
    # (1000 + 20.272305) / (3234.3 + 20.272305); the log of the posture controller is of the same environment
    for name in ("hopper", "hopper-mixed", "Hopper-v5"):
        assert float(normalised_score(name, 1000)) == pytest.approx(31.349, abs=0.001)


def test_errors_about_unknown_names_list_known_ones() -> None:
    with pytest.raises(BatsError, match="maze2d-eval-large"):
        find_maze("maze2d-huge")
    with pytest.raises(BatsError, match="similar: maze2d-umaze, maze2d-large"):
        collect("maze2d-huge", 10, 0)
    with pytest.raises(
        BatsError, match=r"task chain has no reference scores; all tasks except chain and grid have them"
    ):
        normalised_score("chain", 1.0)
    with pytest.raises(BatsError, match=r"Only mazes have a published layout; got 'chain'\. Known mazes: maze2d-umaze"):
        collect_published("chain", 10, 0)


# The waypoint controller


@pytest.mark.parametrize("name", ["umaze", "medium", "large"])
def test_paths_are_those_of_q_iteration(name: str) -> None:
    # D4RL plans by 50 sweeps of tabular Q-iteration, discount 0.99, reward 1 in the target, and takes the first best
    # of: stay, column down, column up, row down, row up.
    maze = find_maze(name)
    moves = ((0, 0), (0, -1), (0, 1), (-1, 0), (1, 0))
    number = {cell: i for i, cell in enumerate(maze.cells)}
    moved = [[number.get((i + di, j + dj), number[i, j]) for di, dj in moves] for i, j in maze.cells]
    following = np.array(moved)
    for target in maze.cells:
        values = np.zeros((len(maze.cells), len(moves)))
        earned = (np.arange(len(maze.cells)) == number[target])[:, None]
        for _ in range(50):
            values = earned + 0.99 * values.max(axis=1)[following]
        best = values.argmax(axis=1)
        for start in maze.cells:
            cell, path = number[start], []
            while maze.cells[cell] != target:
                cell = int(following[cell, best[cell]])
                path.append(maze.cells[cell])
            assert shortest_path(maze, start, target) == (path or [target])


@every_maze
def test_paths_are_shortest_and_avoid_walls(maze: Maze) -> None:
    for start in maze.cells:
        path = shortest_path(maze, start, maze.goal)
        assert path[-1] == maze.goal
        assert set(path) <= set(maze.cells)
        steps = [abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in pairwise([start, *path])]
        assert len(path) == max(steps_to(maze, maze.goal)[start], 1)
        assert set(steps) == ({1} if start != maze.goal else {0})


def test_controller_is_proportional_derivative_and_clipped(umaze: Maze) -> None:
    controller = WaypointController(umaze, np.random.default_rng(0))
    # At the target, (3, 1): 10 (3 - 3.02) - 0.3 = -0.5 and 10 (1 - 0.95) + 0.1 = 0.6. Within 0.1: arrived.
    push, pull, arrived = controller.act((3.02, 0.95, 0.3, -0.1), (3, 1))
    assert (push, pull, arrived) == (pytest.approx(-0.5), pytest.approx(0.6), True)
    push, pull, arrived = controller.act((3.0, 1.0 + ARRIVED, 0.0, 0.0), (3, 1))
    assert (push, pull, arrived) == (0.0, pytest.approx(-1.0), False)
    assert controller.act((3.0, 2.0, 0.0, 0.0), (3, 1))[:2] == (0.0, -1.0)


@pytest.mark.parametrize(("name", "at_least"), [("umaze", 130), ("medium", 130), ("large", 170)])
def test_fresh_waypoints_score_far_above_the_reference(name: str, at_least: float) -> None:
    maze = find_maze(name)
    starts = stratified_starts(maze, 1, seed=0)[:: max(1, len(maze.cells) // 12)]
    controllers = [WaypointController(maze, np.random.default_rng(0)) for _ in starts]

    def choose(observations: np.ndarray, running: Sequence[int], step: int) -> list[np.ndarray]:
        states = map(tuple, observations.tolist())
        return [np.array(controllers[i].act(state, maze.goal)[:2]) for i, state in zip(running, states, strict=True)]

    seeds = [None] * len(starts)
    episodes = play([Maze2dEnv(name)], choose, seeds=seeds, states=starts, max_steps=maze.episode_steps)
    assert maze.normalised_score([episode.rewards.sum() for episode in episodes]).mean() > at_least


def test_random_policy_scores_about_zero(umaze: Maze) -> None:
    starts = stratified_starts(umaze, 12, seed=0)
    actions = list(np.random.default_rng(1).uniform(-1, 1, (len(starts), 300, 2)))
    episodes = play([Maze2dEnv("umaze")], open_loop(actions), seeds=[None] * len(starts), states=starts)
    returns = [episode.rewards.sum() for episode in episodes]
    # 84 episodes. Within a start cell a score varies by 24 points, so their mean by 24 / sqrt(84) = 2.6; D4RL's own
    # zero, from 100 random starts where a score varies by 41, is uncertain by 4.1.
    assert abs(umaze.normalised_score(returns).mean()) < 2 * math.hypot(2.6, 4.1)


# Logs


def test_logs_have_the_statistics_of_the_published_one(umaze_logs: list[MazeLog]) -> None:
    # The published umaze log has 12,459 arrivals a million rows and 7-8% rewarded rows. Single runs of a million vary
    # by 1.3% and 3%; 200,000 rows in all by 2.9% and 7%. The million-row version is benchmarks/collect.py.
    arrivals = np.mean([log.arrivals.mean() for log in umaze_logs]) * 1e6
    rewarded = np.mean([log.dataset().rewards.mean() for log in umaze_logs])
    assert arrivals == pytest.approx(12_459, rel=3 * 0.029)
    assert rewarded == pytest.approx(0.075, rel=3 * 0.07)
    assert np.abs(np.concatenate([log.states for log in umaze_logs])[:, 2:]).max() <= 5.2263


def test_without_noise_targets_are_reached_sooner(umaze: Maze, umaze_logs: list[MazeLog]) -> None:
    calm = collect_maze(umaze, 50_000, 0, noise=0.0)
    assert calm.arrivals.mean() > 1.04 * np.mean([log.arrivals.mean() for log in umaze_logs])


def test_a_log_is_one_run_of_the_environment(umaze_logs: list[MazeLog]) -> None:
    dataset = umaze_logs[0].dataset()
    assert dataset.episode_count == 1
    np.testing.assert_array_equal(dataset.next_observations[:-1], dataset.observations[1:])
    environment = Maze2dEnv("umaze")
    for row in range(0, 50_000, 500):
        environment.reset(options={"state": dataset.observations[row]})
        observation, reward, *_ = environment.step(dataset.actions[row])
        np.testing.assert_allclose(observation, dataset.next_observations[row], atol=2e-5)  # single precision
        assert reward == dataset.rewards[row]


def test_the_same_seed_gives_the_same_bytes(umaze: Maze, umaze_logs: list[MazeLog]) -> None:
    again, first = collect_maze(umaze, 12_000, 0), umaze_logs[0]
    assert again.states.tobytes() == first.states[:12_001].tobytes()
    assert again.actions.tobytes() == first.actions[:12_000].tobytes()
    assert again.observed.tobytes() == first.observed[:12_000].tobytes()
    assert again.states.tobytes() != umaze_logs[1].states[:12_001].tobytes()


def misread(log: MazeLog) -> np.ndarray:
    """Rows whose step a reader of the published layout sees wrongly: it starts late or ends early."""
    late = log.observed != np.arange(len(log.observed))
    return late | np.append(late[1:], False)


def test_published_layout_differs_where_it_says(umaze_logs: list[MazeLog]) -> None:
    log = umaze_logs[0]
    published = log.published()
    right = log.dataset()
    read = Dataset.from_arrays(
        published["observations"],
        published["actions"],
        published["rewards"],
        terminations=published["terminals"],
        timeouts=published["timeouts"],
    )
    # One run, its last row without a known next state. All other rows correspond to each other.
    assert (read.episode_count, len(read)) == (1, len(right) - 1)
    same = (read.observations == right.observations[:-1]).all(axis=1)
    same &= (read.next_observations == right.next_observations[:-1]).all(axis=1)
    np.testing.assert_array_equal(same, ~misread(log)[:-1])
    np.testing.assert_array_equal(read.actions, right.actions[:-1])

    # The ball does not move in an arrival's row; the row after it spans two steps, unless it is an arrival itself.
    arrivals = np.flatnonzero(log.arrivals[:-2])
    np.testing.assert_array_equal(read.next_observations[arrivals], read.observations[arrivals])
    alone = arrivals[~log.arrivals[arrivals + 1] & (log.observed[arrivals] == arrivals)]
    np.testing.assert_array_equal(published["observations"][alone + 1], right.observations[alone])
    np.testing.assert_array_equal(published["observations"][alone + 2], right.observations[alone + 2])
    assert len(alone) > 0.7 * len(arrivals)

    # Rewards belong to the row's own state, so they come one row late.
    clean = ~misread(log)[1:-1] & ~misread(log)[:-2]
    np.testing.assert_array_equal(read.rewards[1:][clean], right.rewards[:-2][clean])
    np.testing.assert_array_equal(published["infos/qpos"], right.observations[:, :2])
    assert np.abs(published["infos/goal"] - np.rint(published["infos/goal"])).max() <= 0.1001


def test_published_file_is_read_as_its_arrays_are(umaze_logs: list[MazeLog], tmp_path: Path) -> None:
    arrays = umaze_logs[1].published()
    write_published(arrays, tmp_path / "umaze.hdf5")
    read = load_dataset(tmp_path / "umaze.hdf5")
    same = ~misread(umaze_logs[1])[:-1]
    right = umaze_logs[1].dataset()
    assert (len(read), read.episode_count) == (len(right) - 1, 1)
    np.testing.assert_array_equal(read.next_observations[same], right.next_observations[:-1][same])
    with pytest.raises(OutputError, match="exists"):
        write_published(arrays, tmp_path / "umaze.hdf5")


def test_collect_published_is_the_run_of_collect() -> None:
    arrays, dataset = collect_published("maze2d-umaze", 3_000, 4), collect("maze2d-umaze", 3_000, 4)
    np.testing.assert_array_equal(arrays["infos/qvel"], dataset.observations[:, 2:])
    assert {name: len(values) for name, values in arrays.items()} == dict.fromkeys(arrays, 3_000)


# Start states


def log_of(states: np.ndarray) -> Dataset:
    return Dataset.from_arrays(states, np.zeros((len(states), 2)), np.zeros(len(states)), next_observations=states)


def around(cell: tuple[int, int], width: float, count: int) -> np.ndarray:
    """States whose farthest number is `width` from the cell's start point, each of the four in turn."""
    states = np.tile([*cell, 0.0, 0.0], (count, 1)).astype(np.float64)
    states[np.arange(count), np.arange(count) % 4] += width * np.where(np.arange(count) % 8 < 4, 1, -1)
    return states


def test_starts_are_found_per_cell_and_widened_where_few(umaze: Maze) -> None:
    ample, thin, few, *empty = umaze.cells
    parts = [around(ample, 0.05, 70), around(ample, 0.2, 90), around(thin, 0.05, 20), around(thin, 0.3, 80)]
    parts += [around(few, 0.4, 30), around(few, 0.05, 500) + np.array([0, 0, 0.6, 0])]
    states = np.concatenate(parts)
    dataset, report = label_starts(log_of(states), umaze)
    by_cell = {item.cell: item for item in report.cells}
    assert (by_cell[ample].count, by_cell[ample].width) == (70, 0.1)
    assert (by_cell[thin].count, by_cell[thin].width) == (50, pytest.approx(0.3))
    assert (by_cell[few].count, by_cell[few].width) == (30, 0.5)
    assert [item.cell for item in report.short] == [few, *empty]
    assert (dataset.notes[-1].kind, f"{few}: 30" in dataset.notes[-1].text) == ("problem", True)

    # Three cells have starts: each gets a third of the weight, shared among its rows.
    assert len(dataset.starts) == 70 + 50 + 30
    cells = np.rint(dataset.observations[dataset.starts, :2])
    for cell, count in ((ample, 70), (thin, 50), (few, 30)):
        share = dataset.start_weights[(cells == cell).all(axis=1)]
        np.testing.assert_allclose(share, np.full(count, 1 / 3 / count))


def test_a_log_without_any_start_keeps_its_first_rows_and_says_so(umaze: Maze) -> None:
    dataset, report = label_starts(log_of(around((1, 1), 0.1, 2) + np.array([0, 0, 2, 0])), umaze)
    assert dataset.starts.tolist() == [0, 1]
    assert len(report.short) == len(umaze.cells)
    assert "No state" in dataset.notes[-1].text
    with pytest.raises(BatsError, match="have 4 components"):
        label_starts(Dataset.from_arrays(np.zeros((3, 2)), np.zeros(3), np.zeros(3)), umaze)


def test_notes_of_collected_logs_name_the_cells_with_few_starts(umaze: Maze, umaze_logs: list[MazeLog]) -> None:
    dataset, report = label_starts(umaze_logs[0].dataset(), umaze)
    np.testing.assert_array_equal(label_starts(umaze_logs[0].dataset(), "maze2d-umaze")[0].starts, dataset.starts)
    assert all(item.count >= 50 for item in report.cells)
    assert not report.short
    for maze in MAZES:
        dataset = collect(maze.task, 10_000, 0)
        _, report = label_starts(dataset, maze)
        assert len(report.cells) == len(maze.cells)
        for item in report.short:
            assert f"{item.cell}: {item.count}" in dataset.notes[-1].text


def test_progress_is_reported_in_order() -> None:
    reports: list[tuple[str, int, int]] = []
    collect("maze2d-umaze", 25_000, 0, progress=lambda stage, done, total: reports.append((stage, done, total)))
    assert reports == [("collecting", done, 25_000) for done in (0, 10_000, 20_000, 25_000)]
    with pytest.raises(BatsError, match="`rows` must be between 2 and"):
        collect("maze2d-umaze", 1, 0)


def test_every_maze_is_a_known_task() -> None:
    assert {maze.task for maze in MAZES} < set(TASK_NAMES)


def test_a_ball_in_a_corner_still_reaches_the_target(umaze: Maze) -> None:
    """Beside the outermost corner a position rounds to a wall cell that no free cell touches."""
    controller = WaypointController(umaze, np.random.default_rng(0))
    _, _, arrived = controller.act((0.45, 0.45, 0.0, 0.0), (3, 1))
    assert not arrived
    physics, state = MazePhysics(umaze), (0.45, 0.45, 0.0, 0.0)
    for _ in range(600):
        push, pull, arrived = controller.act(state, (3, 1))
        state = physics.step(state, (push, pull))
        if arrived:
            break
    assert arrived
