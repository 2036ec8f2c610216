"""The mountain car log: the return of the expert, the failure of random actions, and how episodes end."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from bats.errors import BatsError
from bats.tasks import collect
from bats.tasks.episodes import closed_loop, play
from bats.tasks.mountain_car import ENVIRONMENT, EXPERT_FORCE, collect_mountain_car, expert_action


def test_the_expert_s_return_is_the_goal_s_reward_less_its_steps() -> None:
    # Every step costs 0.1 * 0.6^2 = 0.036, the goal is rewarded with 100: a return of 95.6 is 122 steps.
    environment = gymnasium.make(ENVIRONMENT, disable_env_checker=True)
    episodes = play([environment], closed_loop(expert_action), seeds=range(100))
    returns = np.array([episode.rewards.sum() for episode in episodes])
    lengths = np.array([len(episode) for episode in episodes])
    assert all(episode.terminated for episode in episodes)
    np.testing.assert_allclose(returns, 100 - 0.1 * EXPERT_FORCE**2 * lengths, rtol=1e-6)
    assert returns.mean() >= 95
    assert returns.min() >= 93


def test_log_is_20_random_episodes_and_5_of_the_expert() -> None:
    dataset = collect("mountain-car", None, 0)
    lengths = np.diff(np.flatnonzero(np.append(True, dataset.episode_ends)))
    assert dataset.episode_count == len(lengths) == 25
    assert set(lengths[:20].tolist()) == {999}  # random actions run into the time limit
    assert lengths[20:].max() < 150
    assert len(dataset) == 20 * 999 + lengths[20:].sum()

    # Only the expert's episodes end in the goal: position 0.45 or more, moving right.
    ended = np.flatnonzero(dataset.terminations)
    np.testing.assert_array_equal(ended, np.flatnonzero(dataset.episode_ends)[20:])
    assert (dataset.next_observations[ended, 0] >= 0.45).all()
    assert (dataset.next_observations[ended, 1] >= 0).all()
    assert (dataset.next_observations[~dataset.terminations, 0] < 0.45).all()
    assert dataset.next_known.all()

    # Starts are the 25 first rows: at rest, between -0.6 and -0.4.
    np.testing.assert_array_equal(dataset.starts, np.append(0, np.flatnonzero(dataset.episode_ends)[:-1] + 1))
    first = dataset.observations[dataset.starts]
    assert (first[:, 1] == 0).all()
    assert -0.6 <= first[:, 0].min() <= first[:, 0].max() <= -0.4


def test_rows_obey_the_car_s_own_dynamics() -> None:
    # v' = v + 0.0015 a - 0.0025 cos(3 x), clipped to 0.07; x' = x + v', stopped at -1.2; reward -0.1 a^2.
    dataset = collect("mountain-car", 3_000, 1)
    position, speed = dataset.observations.astype(np.float64).T
    action = dataset.actions[:, 0].astype(np.float64)
    expected = np.clip(speed + 0.0015 * action - 0.0025 * np.cos(3 * position), -0.07, 0.07)
    free = position + expected > -1.2
    np.testing.assert_allclose(dataset.next_observations[free, 1], expected[free], atol=1e-7)
    np.testing.assert_allclose(dataset.next_observations[free, 0], (position + expected)[free], atol=1e-6)
    np.testing.assert_allclose(dataset.rewards, 100 * dataset.terminations - 0.1 * action**2, atol=1e-6)


def test_rows_are_counted_exactly_and_seeds_decide() -> None:
    dataset = collect("mountain-car", 2_500, 7)
    assert len(dataset) == 2_500
    again, other = collect("mountain-car", 2_500, 7), collect("mountain-car", 2_500, 8)
    assert dataset.observations.tobytes() == again.observations.tobytes()
    assert dataset.actions.tobytes() == again.actions.tobytes()
    assert dataset.actions.tobytes() != other.actions.tobytes()


def test_too_few_rows_for_the_expert_are_refused() -> None:
    with pytest.raises(BatsError, match="a log of 300 is too short"):
        collect("mountain-car", 300, 0)
    alone = collect_mountain_car(200, 0, expert_episodes=0)
    assert (len(alone), alone.terminations.sum()) == (200, 0)
