"""Promised, replayed and cloned returns side by side: where they are measured, from which starts, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bats.errors import BatsError, OutputError, SettingError
from bats.evaluation.comparison import ReturnEstimate, compare, nearest_starts
from bats.evaluation.episodes import evaluate, interval
from bats.graph.mdp import from_dataset
from bats.metric.scaled import ScaledMetric
from bats.policy.files import save_policy
from bats.policy.policy import Policy
from bats.storage.tensors import read_facts
from bats.tasks import TASKS, collect, task_of_log
from bats.tasks.maze2d import find_maze, stratified_starts


def constant(numbers: int, action: list[float] | int, *, action_count: int | None = None) -> Policy:
    """A policy for observations of `numbers` numbers that always chooses the same action."""
    if action_count is not None:
        bias = 5.0 * (np.arange(action_count) == action)
        low = high = np.empty(0, np.float32)
    else:
        bias = np.concatenate([action, np.zeros(len(action))])
        low, high = -np.ones(len(action), np.float32), np.ones(len(action), np.float32)
    return Policy(
        weights=(np.zeros((numbers, len(bias)), np.float32),),
        biases=(bias.astype(np.float32),),
        mean=np.zeros(numbers, np.float32),
        std=np.ones(numbers, np.float32),
        low=low,
        high=high,
        action_count=action_count,
    )


def test_a_maze_is_evaluated_from_the_same_number_of_starts_in_every_cell() -> None:
    policy, maze = constant(4, [-0.5, -1.0]), find_maze("open")
    found = compare(policy, "bats/maze2d-open-v0", seed=3)
    played = evaluate(policy, maze.environment, starts=stratified_starts(maze, 4, seed=3), seed=3)
    assert found.starts == "4 in every cell of the maze"
    assert found.episodes == 4 * len(maze.cells) == 60
    assert found.cloned.mean_return == played.mean_return
    assert (found.cloned.low, found.cloned.high) == interval(played.returns, seed=3)
    assert found.cloned.score == pytest.approx(played.scores.mean())
    assert found.cloned.score_low == pytest.approx(100 * (found.cloned.low - 0.01) / (20.66 - 0.01))
    assert (found.promised, found.replayed, found.recorded) == (None, None, ())
    own = compare(policy, "bats/maze2d-open-v0", episodes=7, record=True)
    assert (own.starts, own.episodes, len(own.recorded)) == ("the environment's own", 7, 7)


def test_other_tasks_are_evaluated_in_a_hundred_episodes_from_the_environment_s_own_starts() -> None:
    up = compare(constant(1, 1, action_count=2), "bats/chain-v0")
    assert (up.environment, up.starts, up.episodes) == ("bats/chain-v0", "the environment's own", 100)
    assert up.cloned == ReturnEstimate(1.0, 1.0, 1.0, None, None, None, 100)


def test_an_environment_that_only_gymnasium_knows_is_evaluated_without_scores() -> None:
    found = compare(constant(1, 0, action_count=4), "FrozenLake-v1", episodes=3)
    assert (found.environment, found.starts, found.episodes) == ("FrozenLake-v1", "the environment's own", 3)
    assert found.cloned.score is None
    assert list(found.columns) == ["cloned"]


def test_a_saved_comparison_can_be_read_and_is_not_overwritten(tmp_path: Path) -> None:
    policy = constant(1, 0, action_count=2)
    save_policy(policy, tmp_path / "policy.safetensors")
    found = compare(policy, "bats/chain-v0", episodes=3, seed=5)
    found.save(tmp_path / "evaluation.json")
    assert json.loads((tmp_path / "evaluation.json").read_text()) == {
        "policy": read_facts(tmp_path / "policy.safetensors")["checksum"],
        "environment": "bats/chain-v0",
        "starts": "the environment's own",
        "episodes": 3,
        "seed": 5,
        "cloned": {"mean_return": 0.0, "low": 0.0, "high": 0.0, "episodes": 3},
    }
    with pytest.raises(OutputError, match="exists already"):
        found.save(tmp_path / "evaluation.json")
    found.save(tmp_path / "evaluation.json", overwrite=True)


def test_nearest_starts_agree_with_a_search_through_all_of_them() -> None:
    mdp = from_dataset(collect("maze2d-umaze", 3000, 0), gamma=0.99)
    metric = ScaledMetric(np.array([1.0, 2.0, 0.1, 0.0], np.float32))
    states = stratified_starts("umaze", 3, seed=0)
    distance = np.linalg.norm(metric.embed(states[:, None] - mdp.states[mdp.starts].astype(np.float64)), axis=2)
    assert np.array_equal(nearest_starts(mdp, states, metric), mdp.starts[distance.argmin(axis=1)])


@pytest.mark.parametrize(
    ("policy", "environment", "message"),
    [
        (
            constant(2, 1, action_count=2),
            "bats/chain-v0",
            "expects observations of size 2, but 'bats/chain-v0' has observations of size 1",
        ),
        (
            constant(1, 3, action_count=4),
            "bats/chain-v0",
            r"one of 4 discrete actions, but 'bats/chain-v0' expects Discrete\(2\)",
        ),
        (constant(1, [0.5]), "bats/chain-v0", r"actions of size 1, but 'bats/chain-v0' expects Discrete\(2\)"),
        (constant(2, [0.5, 0.5]), "MountainCarContinuous-v0", "actions of size 2"),
        (constant(2, 0, action_count=2), "MountainCarContinuous-v0", "one of 2 discrete actions"),
        (constant(1, 0, action_count=2), "nowhere-v0", "cannot make 'nowhere-v0'"),
    ],
)
def test_a_policy_of_another_kind_than_the_environment_is_refused(
    policy: Policy, environment: str, message: str
) -> None:
    with pytest.raises((SettingError, BatsError), match=message):
        compare(policy, environment)


def test_the_task_of_a_log_is_guessed_from_its_name() -> None:
    for task in TASKS:
        assert task_of_log(task.name) is task
        assert task_of_log(f"logs/{task.name}-17.hdf5") is task
    for name, task in {
        "maze2d-umaze-sparse-v1.hdf5": "maze2d-umaze",
        "maze2d-eval-umaze.npz": "maze2d-eval-umaze",
        "grid [2].csv": "grid",
    }.items():
        found = task_of_log(name)
        assert found is not None
        assert found.name == task
    for name in ("walks.hdf5", "gridlock.hdf5", "my-grid.hdf5", "chains-0.hdf5", "maze2d.hdf5", ""):
        assert task_of_log(name) is None
