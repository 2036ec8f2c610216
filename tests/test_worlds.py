"""Small worlds with known optimal values, the log of many dimensions, and the catalogue of tasks."""

from __future__ import annotations

import inspect
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.errors import BatsError
from bats.evaluation.episodes import open_environments
from bats.tasks import TASKS, collect, find_task
from bats.tasks.hopper import posture_action
from bats.tasks.worlds import CHAIN, FLOOR, GOAL, GRID, PLAYER, Positions, World, WorldEnv, collect_world


def optimal_values(world: World, positions: Positions, discount: float) -> np.ndarray:
    """The closed form: with d the number of moves to the goal and g the discount,

    V*(d) = g^(d-1) - cost (1 - g^d) / (1 - g)      for d > 0, and 0 in the goal, if the world ends there,
    V*(d) = (g^max(d-1, 0) - cost) / (1 - g)        if it does not, so that the corner is rewarded forever.
    """
    moves = world.moves_to_goal(positions)
    arrival = discount ** np.maximum(moves - 1, 0)
    if not world.ends:
        return (arrival - world.move_cost) / (1 - discount)
    cost = world.move_cost * (1 - discount**moves) / (1 - discount)
    return np.where(moves > 0, arrival - cost, 0.0)


@settings(deadline=None, max_examples=60)
@given(
    sides=st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda sides: max(sides) > 1),
    ends=st.booleans(),
    cost=st.sampled_from([0.0, 0.1, 0.5]),
    discount=st.sampled_from([0.5, 0.9, 0.99]),
)
def test_closed_form_solves_bellman_s_equation(sides: list[int], ends: bool, cost: float, discount: float) -> None:
    # V*(s) = max over a of r + g V*(s'), with nothing after the end. In an ended task there is no choice left.
    world = World(tuple(sides), ends=ends, move_cost=cost)
    positions = world.positions()
    values = optimal_values(world, positions, discount)
    choices = []
    for action in range(world.action_count):
        moved, rewards, ended = world.step(positions, np.full(len(positions), action))
        choices.append(rewards + discount * np.where(ended, 0, optimal_values(world, moved, discount)))
    alive = (world.moves_to_goal(positions) > 0) | (not world.ends)
    np.testing.assert_allclose(values[alive], np.max(choices, axis=0)[alive], rtol=1e-12, atol=1e-12)
    assert (values[~alive] == 0).all()


def test_worked_values() -> None:
    # Three moves from the goal at discount 0.9: 0.9^2 = 0.81; moves at 0.1 each cost 0.1 (1 + 0.9 + 0.81) = 0.271.
    positions = np.array([[0], [2], [3]])
    np.testing.assert_allclose(optimal_values(World((4,)), positions, 0.9), [0.81, 1, 0])
    np.testing.assert_allclose(optimal_values(World((4,), move_cost=0.1), positions, 0.9), [0.81 - 0.271, 0.9, 0])
    # Without an end: 1 / (1 - 0.9) = 10 once in the goal.
    np.testing.assert_allclose(optimal_values(World((4,), ends=False), positions, 0.9), [8.1, 10, 10])


def test_moves_stop_at_the_edge() -> None:
    moved, rewards, ended = World((2, 3)).step(np.array([[0, 1], [0, 1], [1, 1], [1, 2]]), np.array([0, 1, 3, 3]))
    assert moved.tolist() == [[0, 1], [1, 1], [1, 2], [1, 2]]
    assert (rewards.tolist(), ended.tolist()) == ([0, 0, 1, 1], [False, False, True, True])
    with pytest.raises(BatsError, match="shape"):
        World((1, 1))


@pytest.mark.parametrize(("name", "world"), [("chain", CHAIN), ("grid", GRID)])
def test_environment_and_log_play_the_world(name: str, world: World) -> None:
    check_env(gymnasium.make(find_task(name).environment).unwrapped)
    dataset = collect(name, 4_000, 0)
    assert (len(dataset), dataset.action_count) == (4_000, world.action_count)
    positions = dataset.observations.astype(np.int64)
    moved, rewards, ended = world.step(positions, dataset.actions.astype(np.int64))
    np.testing.assert_array_equal(dataset.next_observations, moved)
    np.testing.assert_array_equal(dataset.rewards, rewards)
    np.testing.assert_array_equal(dataset.terminations, ended)
    # Every action of every state but the goal is in the log, so its own optimal values are the world's.
    tried = np.unique(np.column_stack([positions, dataset.actions]), axis=0)
    assert len(tried) == (np.prod(world.shape) - 1) * world.action_count


@pytest.mark.parametrize("action", [7, -1, 4, 0.5, None, np.array([1])])
def test_an_action_that_does_not_exist_is_refused(action: object) -> None:
    environment = gymnasium.make("bats/grid-v0", disable_env_checker=True).unwrapped
    environment.reset(seed=0)
    step = inspect.unwrap(WorldEnv.step)  # past the checks of types, which users do not have
    with pytest.raises(BatsError, match="An action must be an integer from 0 to 3; got"):
        step(environment, action)
    with pytest.raises(BatsError, match="Actions must be integers from 0 to 3; got"):
        GRID.step(np.zeros((1, 2), dtype=np.int64), np.array([7]))


@pytest.mark.parametrize("shape", [(4,), (2, 3)])
def test_image_shows_goal_and_player_at_their_positions(shape: tuple[int, ...]) -> None:
    environment = WorldEnv(shape, render_mode="rgb_array")
    environment.reset(options={"state": np.zeros(len(shape))})
    image = environment.render()
    assert image is not None
    rows, columns = (1, *shape)[-2:]
    assert image.shape == (rows * 40, columns * 40, 3)
    middles = image[20::40, 20::40]
    assert tuple(middles[0, 0]) == PLAYER
    assert tuple(middles[-1, -1]) == GOAL
    assert (middles == FLOOR).all(axis=-1).sum() == rows * columns - 2


def test_the_error_says_what_can_be_drawn() -> None:
    with pytest.raises(BatsError, match=r"'rgb_array' if the world has 1 or 2 axes; got 'human' for 2 axes"):
        WorldEnv((2, 2), render_mode="human")
    with pytest.raises(BatsError, match="got 'rgb_array' for 3 axes"):
        WorldEnv((2, 2, 2), render_mode="rgb_array")
    assert WorldEnv((2, 2, 2)).render() is None
    assert gymnasium.make("bats/chain-v0", render_mode="rgb_array").unwrapped.render().shape == (40, 400, 3)


def test_a_fractional_position_is_refused() -> None:
    with pytest.raises(BatsError, match="position within"):
        WorldEnv((2, 2)).reset(options={"state": [0.5, 0]})


@pytest.mark.parametrize("task", ["chain", "mountain-car", "hopper"])
def test_a_negative_seed_is_refused(task: str) -> None:
    with pytest.raises(BatsError, match=r"`seed` must be between 0 and .*; got -1\."):
        collect(task, 1_000, -1)


def test_episodes_start_anywhere_except_in_the_goal() -> None:
    environment = WorldEnv((2, 2))
    starts = {tuple(environment.reset(seed=seed)[0]) for seed in range(50)}
    assert starts == {(0, 0), (0, 1), (1, 0)}
    assert environment.reset(options={"state": [1, 1]})[0].tolist() == [1, 1]
    with pytest.raises(BatsError, match="position within"):
        environment.reset(options={"state": [2, 0]})


def test_a_world_without_an_end_never_terminates() -> None:
    dataset = collect_world(World((3,), ends=False), 1_000, 0)
    assert not dataset.terminations.any()
    assert dataset.episode_count == 10  # of a hundred steps each
    assert dataset.rewards.sum() == (dataset.next_observations[:, 0] == 2).sum()


def test_hopper_log_has_eleven_numbers_and_falls() -> None:
    pytest.importorskip("mujoco", reason="the hopper needs the extra `mujoco`")
    dataset = collect("hopper", 3_000, 0)
    assert dataset.observations.shape == (3_000, 11)
    assert dataset.actions.shape == (3_000, 3)
    assert np.abs(dataset.actions).max() <= 1
    # Falling is what terminates: outside the healthy range of height (0.7) or angle (0.2).
    height, angle = dataset.next_observations[:, 0], dataset.next_observations[:, 1]
    fallen = (height < 0.7) | (np.abs(angle) > 0.2)
    assert dataset.terminations.sum() >= 3
    np.testing.assert_array_equal(dataset.terminations, fallen)
    assert collect("hopper", 500, 1).observations.tobytes() == collect("hopper", 500, 1).observations.tobytes()


def test_posture_controller_pulls_back_to_zero() -> None:
    observation = np.zeros(11)
    observation[2:5], observation[8:11] = [0.1, -0.2, 0.0], [1.0, 0.0, -2.0]
    np.testing.assert_allclose(posture_action(observation), [-0.2, 0.2, 0.2])


@pytest.mark.parametrize("task", [task.name for task in TASKS if not task.name.startswith("maze2d")])
def test_every_other_task_has_an_environment(task: str) -> None:
    environment = find_task(task).environment
    for extra, module in {"mujoco": "mujoco", "box2d": "Box2D"}.items():
        if f".{extra}." in str(gymnasium.spec(environment).entry_point):
            pytest.importorskip(module, reason=f"{task} needs the extra `{extra}`")
    with open_environments(environment, 1):
        pass


@pytest.mark.parametrize("task", ["chain", "grid", "hopper", "hopper-mixed"])
def test_a_log_of_one_row_is_refused(task: str) -> None:
    with pytest.raises(BatsError, match="`rows` must be between 2 and"):
        collect(task, 1, 0)


def test_logs_are_collected_after_importing_the_package_alone() -> None:
    program = "import bats; print(len(bats.tasks.collect('chain', rows=50, seed=0)))"
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert printed.split() == ["50"]
