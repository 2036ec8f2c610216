"""Rollouts of the mountain-car study: their arithmetic, and replays of a log in the true car."""

from __future__ import annotations

import numpy as np
import pytest

from bats.data.dataset import Dataset
from bats.graph.mdp import from_dataset
from bats.graph.rollouts import Rollouts
from bats.studies.car_rollouts import (
    EXTRA_STEPS,
    failed_rows,
    logged_path,
    path_distance,
    replay_actions,
    states_of_rows,
)
from bats.studies.car_values import discounted_return
from bats.tasks.mountain_car import collect_mountain_car


@pytest.fixture(scope="module")
def log() -> Dataset:
    return collect_mountain_car(1_200, 0)


def test_later_rewards_count_for_less() -> None:
    # -1 - 0.5 * 2 + 0.25 * 8 = 0
    assert discounted_return(np.array([-1.0, -2.0, 8.0]), 0.5) == pytest.approx(0.0)
    assert discounted_return(np.zeros(0), 0.9) == 0.0


def test_distances_are_those_of_the_steps_that_both_paths_have() -> None:
    # 3 and 5 after one and two steps; the third step exists in one path only
    graph = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    path = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0], [9.0, 9.0]])
    assert path_distance(path, graph) == (4.0, 5.0)


def test_the_true_car_repeats_the_log_itself(log: Dataset) -> None:
    # every row of an expert's episode but the first, whose state was drawn in double precision
    mdp = from_dataset(log, gamma=0.99)
    last = int(np.flatnonzero(log.terminations)[0])
    first = int(np.flatnonzero(log.episode_ends[:last])[-1]) + 2
    rows = np.arange(first, last + 1)
    states = states_of_rows(log, rows)
    assert (mdp.out_degree[states] == 1).all()
    (episode,) = replay_actions(mdp, Rollouts(mdp.first_edge[states][None]), states[:1])
    np.testing.assert_array_equal(episode.observations, logged_path(log, first))
    np.testing.assert_allclose(episode.rewards, log.rewards[rows], rtol=1e-6)
    assert episode.terminated
    assert len(episode) == len(rows)
    value = discounted_return(episode.rewards, 0.99)
    assert value == pytest.approx(float(log.rewards[rows] @ 0.99 ** np.arange(len(rows))), rel=1e-6)


def test_a_replay_that_ends_short_of_the_goal_repeats_its_last_action(log: Dataset) -> None:
    # without its last step but one, the expert's episode is a step short
    mdp = from_dataset(log, gamma=0.99)
    last = int(np.flatnonzero(log.terminations)[0])
    states = states_of_rows(log, np.array([last - 2, last]))
    edges = mdp.first_edge[states]
    (episode,) = replay_actions(mdp, Rollouts(edges[None]), states[:1])
    assert episode.terminated
    assert 2 < len(episode) <= 2 + EXTRA_STEPS
    # where the rollout does not reach the goal in the graph, nothing is added
    (short,) = replay_actions(mdp, Rollouts(edges[None, :1]), states[:1])
    assert len(short) == 1


def test_failed_rows_are_those_of_the_random_episodes(log: Dataset) -> None:
    ends = np.flatnonzero(log.episode_ends)
    count = int(ends[~log.terminations[ends]][-1]) + 1  # random episodes come first
    np.testing.assert_array_equal(failed_rows(log), np.arange(count))
