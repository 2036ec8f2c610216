"""The logs of Gymnasium's own tasks: what their controllers earn, and what each log has to be."""

from __future__ import annotations

import sys
from collections.abc import Collection

import gymnasium
import numpy as np
import pytest

from bats.errors import BatsError
from bats.evaluation.episodes import evaluate
from bats.tasks import collect, find_task, normalised_score
from bats.tasks.episodes import closed_loop, placed, play
from bats.tasks.zoo.skill import ControlTask, SkillCollector, goals_seen, random_controller
from bats.tasks.zoo.tasks import MOUNTAIN_CAR, ZOO
from tests.logs import assert_same

TASKS = {task.name: task for task in (*(collector.task for collector in ZOO), MOUNTAIN_CAR)}
EXTRAS = {"mujoco": "mujoco", "box2d": "Box2D"}
"""the modules without which an environment cannot be made"""


def all_tasks(*, fast: Collection[str]) -> pytest.MarkDecorator:
    """A test for each task, a slow one for those that are not fast."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in TASKS]
    )


def available(name: str) -> ControlTask:
    """The task, if its environment can be made."""
    extra = str(gymnasium.spec(TASKS[name].environment).entry_point).split(".")[2]
    if extra in EXTRAS:
        pytest.importorskip(EXTRAS[extra], reason=f"{name} needs the extra `{extra}`")
    return TASKS[name]


def tolerance(task: ControlTask, returns: np.ndarray) -> float:
    """Three standard errors, and half a point of the score for rare episodes that a few do not show."""
    return 3 * returns.std(ddof=1) / len(returns) ** 0.5 + 0.005 * (task.reference_return - task.random_return)


@all_tasks(fast=("mountain-car",))
def test_a_log_is_mostly_bad_but_shows_the_goal(name: str) -> None:
    # the rule: at most a third of the way from random actions to the reference, five goals, 20,000 to 100,000 rows
    task, log = available(name), collect(name)
    assert 20_000 <= len(log) <= 100_000
    assert normalised_score(name, log.episode_returns).mean() <= 100 / 3
    assert goals_seen(task, log) >= 5


@all_tasks(fast=set(TASKS) - {"inverted-pendulum", "inverted-double-pendulum", "swimmer"})
def test_the_controller_earns_what_scores_100(name: str) -> None:
    task = available(name)
    returns = evaluate(closed_loop(task.controller), task.environment, episodes=30, seed=1).returns
    assert returns.mean() == pytest.approx(task.reference_return, abs=tolerance(task, returns))


@pytest.mark.parametrize("name", TASKS)
def test_random_actions_earn_what_scores_0(name: str) -> None:
    task = available(name)
    environment = gymnasium.make(task.environment, disable_env_checker=True)
    random = random_controller(environment.action_space, np.random.default_rng(1))
    episodes = 3 if name in ("swimmer", "mountain-car") else 30  # those of a thousand steps
    returns = evaluate(closed_loop(random), task.environment, episodes=episodes, seed=1).returns
    assert returns.mean() == pytest.approx(task.random_return, abs=tolerance(task, returns))


@pytest.mark.parametrize("name", TASKS)
def test_scores_are_0_at_random_and_100_at_the_reference(name: str) -> None:
    task = TASKS[name]
    scores = normalised_score(name, [task.random_return, task.reference_return])
    np.testing.assert_allclose(scores, [0, 100], atol=1e-9)
    assert find_task(name).environment == task.environment


@pytest.mark.parametrize("collector", ZOO, ids=lambda collector: collector.task.name)
def test_the_seed_decides_every_byte(collector: SkillCollector) -> None:
    available(collector.task.name)
    log, again, other = (collect(collector.task.name, 700, seed) for seed in (3, 3, 4))
    assert len(log) == 700
    assert_same(log, again)
    assert log.observations.tobytes() != other.observations.tobytes()
    assert log.episode_ends[-1]
    assert log.next_known.all()
    # rows continue within an episode, and nowhere else
    within = ~log.episode_ends[:-1]
    np.testing.assert_array_equal(log.observations[1:][within], log.next_observations[:-1][within])


def test_episodes_end_by_termination_or_at_the_time_limit() -> None:
    log = collect("cartpole", 20_000, 0)
    lengths = np.bincount(log.episode_numbers)
    (ends,) = np.nonzero(log.episode_ends)
    lasted = ~log.terminations[ends]
    assert (lengths[lasted][:-1] == 500).all()  # the last episode is cut
    # a pole falls at 12 degrees, or the cart leaves at 2.4
    fallen = log.next_observations[ends[~lasted]]
    assert ((np.abs(fallen[:, 2]) > np.deg2rad(12)) | (np.abs(fallen[:, 0]) > 2.4)).all()
    # the reward is 1 in every step, so an episode's return is its length
    np.testing.assert_array_equal(log.episode_returns, lengths)


def test_without_skill_all_actions_are_uniformly_random() -> None:
    log = collect("pendulum-random", 20_000, 0)
    # the mean square of a uniform number between -2 and 2 is 4/3, its mean fourth power 16/5
    assert log.actions.mean() == pytest.approx(0, abs=4 * (4 / 3 / len(log)) ** 0.5)
    assert (log.actions**2).mean() == pytest.approx(4 / 3, rel=0.03)
    assert (log.actions**4).mean() == pytest.approx(16 / 5, rel=0.03)


@pytest.mark.slow
def test_skill_is_the_share_of_the_controller_s_actions() -> None:
    # With three actions, an episode of skill s agrees with the controller in a share s + (1 - s) / 3 of its steps, of
    # which there are 200 in almost every episode. Skill is u^4 for a uniform u: its mean is 1/5.
    log = collect("mountain-car-discrete", None, 0)
    controller = TASKS["mountain-car-discrete"].controller
    agrees = np.array(
        [controller(state) == action for state, action in zip(log.observations, log.actions, strict=True)]
    )
    share = np.bincount(log.episode_numbers, agrees) / np.bincount(log.episode_numbers)
    skill = (share - 1 / 3) * 3 / 2
    assert skill.mean() == pytest.approx(1 / 5, abs=0.04)
    assert 0.5 < (skill < 0.1).mean() < 0.65  # 0.1^(1/4) = 0.56
    assert np.abs(np.quantile(skill, 0.95) - 0.95**4) < 0.1


def test_the_log_says_how_it_was_made() -> None:
    (fact,) = [note.text for note in collect("acrobot", 2_000, 5).notes if "seed 5" in note.text]
    assert "The goal, the tip one length above the base, is seen in" in fact


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("reacher", "mujoco", "mujoco"), ("lunar-lander", "Box2D", "box2d")]
)
def test_a_missing_extra_is_named(name: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for loaded in [loaded for loaded in sys.modules if loaded.startswith((f"gymnasium.envs.{extra}", module))]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BatsError, match=rf"pip install 'bats-rl\[{extra}\]'"):
        collect(name, 10, 0)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.set_state is not None])
def test_an_environment_that_is_put_into_an_observed_state_goes_on_as_it_did_from_there(name: str) -> None:
    task = available(name)
    assert task.set_state is not None
    one, other = (gymnasium.make(task.environment) for _ in range(2))
    controller = random_controller(one.action_space, np.random.default_rng(0))
    (episode,) = play([one], closed_loop(controller), seeds=[3], max_steps=20)
    for step in range(len(episode)):
        placed(other, episode.observations[step].astype(np.float32), task.set_state)
        after, reward, *_ = other.step(episode.actions[step])
        # logs have single precision
        assert after == pytest.approx(episode.observations[step + 1], abs=1e-4)
        assert reward == pytest.approx(episode.rewards[step], abs=1e-3)


def test_a_lander_s_observation_does_not_show_the_ground() -> None:
    assert {name for name, task in TASKS.items() if task.set_state is None} == {
        "lunar-lander",
        "lunar-lander-continuous",
    }
