"""Episodes of known policies in worlds whose returns are known, and intervals that cover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from bats.data.dataset import Dataset
from bats.errors import BatsError, SettingError
from bats.evaluation.episodes import evaluate, interval, open_environments, replay
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import from_dataset
from bats.graph.rollouts import roll_out, undiscounted_return
from bats.graph.solve import policy_iteration
from bats.tasks import collect, find_task
from bats.tasks.episodes import Environment, as_dataset, closed_loop, open_loop, play
from bats.tasks.maze2d import find_maze, stratified_starts
from bats.tasks.maze2d.physics import MazePhysics
from bats.tasks.worlds import CHAIN, CHAIN_ENVIRONMENT, EPISODE_STEPS, GRID_ENVIRONMENT, WorldEnv


class Always:
    """Acts the same everywhere."""

    def __init__(self, action: np.ndarray) -> None:
        self._action = action

    def predict(self, observation: np.ndarray, /) -> np.ndarray:
        return np.repeat(self._action[None], len(observation), axis=0)


class Verbal(gymnasium.Env[str, np.int64]):
    """Observations are words instead of numbers."""

    def reset(self, **options: object) -> tuple[str, dict[str, object]]:
        return "start", {}


class ToTheCorner:
    """The best policy of any world: up along the first axis that is not at its end."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._last = np.array(shape) - 1

    def predict(self, observation: np.ndarray, /) -> np.ndarray:
        return 2 * np.argmax(observation < self._last, axis=1) + 1


def test_the_best_policy_of_a_chain_reaches_the_goal_from_every_start() -> None:
    starts = CHAIN.positions()[:-1].astype(np.float64)
    found = evaluate(Always(np.array(1)), CHAIN_ENVIRONMENT, starts=starts, record=True)
    assert found.returns.tolist() == [1.0] * 9
    assert found.lengths.tolist() == list(range(9, 0, -1))
    assert found.scores is None
    assert [len(episode.rewards) for episode in found.episodes] == found.lengths.tolist()
    assert found.episodes[0].observations[:, 0].tolist() == list(range(10))
    assert all(episode.terminated for episode in found.episodes)
    assert np.array_equal(found.starts, starts)


def test_the_worst_policy_gets_nothing_until_the_time_limit() -> None:
    found = evaluate(Always(np.array(0)), CHAIN_ENVIRONMENT, episodes=5, seed=0)
    assert found.returns.tolist() == [0.0] * 5
    assert found.lengths.tolist() == [EPISODE_STEPS] * 5
    assert found.episodes == ()


def test_episodes_take_turns_in_few_environments_and_come_out_the_same() -> None:
    policy = ToTheCorner((6, 6))
    at_once = evaluate(policy, GRID_ENVIRONMENT, episodes=20, seed=3)
    few = [gymnasium.make(GRID_ENVIRONMENT) for _ in range(3)]
    in_turn = evaluate(policy, few, episodes=20, seed=3)
    assert np.array_equal(at_once.lengths, in_turn.lengths)
    assert at_once.returns.tolist() == [1.0] * 20
    assert len(set(at_once.lengths.tolist())) > 3  # every episode has a start of its own


def test_a_cost_for_every_move_is_counted() -> None:
    world = [gymnasium.wrappers.TimeLimit(WorldEnv((4,), move_cost=0.1), 50)]
    found = evaluate(Always(np.array(1)), world, starts=np.array([[0.0], [2.0]]))
    assert found.returns == pytest.approx([1 - 0.3, 1 - 0.1])


def test_maze_episodes_are_those_of_the_physics_and_are_scored() -> None:
    maze = find_maze("umaze")
    starts = stratified_starts(maze, 1, seed=0)
    push = np.array([-0.5, -1.0], np.float32)
    found = evaluate(Always(push), maze.environment, starts=starts, record=True)
    physics = MazePhysics(maze)
    for start, episode in zip(starts, found.episodes, strict=True):
        state = tuple(start.tolist())
        for seen in episode.observations[1:]:
            state = physics.step(state, (float(push[0]), float(push[1])))
            assert tuple(seen.tolist()) == state
    inside = [maze.at_goal(episode.observations[1:]).sum() for episode in found.episodes]
    assert found.returns.tolist() == inside
    assert found.scores == pytest.approx(100 * (np.array(inside) - 23.85) / (161.86 - 23.85))


def test_a_replay_of_a_true_graph_gives_the_promised_returns_and_states() -> None:
    mdp = from_dataset(collect("grid", 2000, 0), gamma=0.95)
    rollouts = roll_out(mdp, policy_iteration(mdp).policy, mdp.starts, EPISODE_STEPS)
    kept = replay(mdp, rollouts, mdp.starts, GRID_ENVIRONMENT, record=True)
    assert np.array_equal(kept.returns, undiscounted_return(mdp, rollouts))
    assert np.array_equal(kept.lengths, rollouts.length)
    assert np.array_equal(kept.starts, mdp.states[mdp.starts])
    for edges, episode in zip(rollouts.edge, kept.episodes, strict=True):
        assert np.array_equal(episode.observations[1:], mdp.states[mdp.target[edges[: len(episode)]]])


def test_a_replay_reveals_a_false_graph_and_stops_at_the_end_of_the_rollout() -> None:
    states = np.array([[0.0], [1.0], [2.0], [5.0], [6.0]])
    log = Dataset.from_arrays(  # the reward of moving down from 1 is false; that 5 leads up to 6 is true
        states[[1, 2, 3]],
        np.array([0, 1, 1]),
        np.array([7.0, 0.0, 0.0]),
        next_observations=np.array([[2.0], [5.0], [6.0]]),
        timeouts=np.array([False, False, True]),
        action_count=2,
    )
    mdp = from_dataset(log, gamma=0.9)
    first_states = np.array([np.flatnonzero(mdp.states[:, 0] == position)[0] for position in (1, 5, 6)])
    rollouts = roll_out(mdp, policy_iteration(mdp).policy, first_states, EPISODE_STEPS)
    assert undiscounted_return(mdp, rollouts).tolist() == [7, 0, 0]
    found = replay(mdp, rollouts, first_states, CHAIN_ENVIRONMENT, record=True)
    assert found.returns.tolist() == [0, 0, 0]
    assert found.lengths.tolist() == [3, 1, 0]  # 6 is a dead end of the graph, so nothing is played from it
    assert [episode.observations[:, 0].tolist() for episode in found.episodes] == [[1, 0, 1, 2], [5, 6], [6]]
    with pytest.raises(SettingError, match="one first state per rollout"):
        replay(mdp, rollouts, first_states[:1], CHAIN_ENVIRONMENT)


def test_a_replay_in_a_maze_is_that_of_the_physics() -> None:
    maze = find_maze("umaze")
    mdp = from_dataset(collect("maze2d-umaze", 3000, 0), gamma=0.99)
    starts = mdp.starts[::40]
    rollouts = roll_out(mdp, policy_iteration(mdp).policy, starts, maze.episode_steps)
    found = replay(mdp, rollouts, starts, maze.environment, record=True)
    physics = MazePhysics(maze)
    for start, edges, episode in zip(mdp.states[starts], rollouts.edge, found.episodes, strict=True):
        states = [tuple(start.tolist())]
        for action in mdp.action[edges[edges != NO_EDGE]].tolist():
            states.append(physics.step(states[-1], tuple(action)))
        assert np.array_equal(episode.observations, np.array(states))
        assert episode.rewards.sum() == maze.at_goal(np.array(states[1:])).sum()
    assert found.scores == pytest.approx(maze.normalised_score(found.returns))


def test_a_discrete_observation_is_a_row_of_one_number() -> None:
    # action 1 moves down by a row of 4 fields in a lake that is not slippery, into the hole at field 12
    lake = [gymnasium.make("FrozenLake-v1", is_slippery=False)]
    found = evaluate(Always(np.array(1)), lake, episodes=1, record=True)
    assert found.episodes[0].observations.tolist() == [[0.0], [4.0], [8.0], [12.0]]
    with pytest.raises(SettingError, match="Observations must be numbers"):
        evaluate(Always(np.array(0)), [Verbal()], episodes=1)


def test_progress_counts_steps_over_all_turns() -> None:
    reports: list[tuple[str, int, int]] = []
    worlds = [gymnasium.make(CHAIN_ENVIRONMENT) for _ in range(2)]
    evaluate(Always(np.array(0)), worlds, episodes=4, progress=lambda *report: reports.append(report))
    assert reports[0] == ("playing", 0, 2 * EPISODE_STEPS)
    assert reports[-1] == ("playing", 2 * EPISODE_STEPS, 2 * EPISODE_STEPS)
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)


def test_what_cannot_be_evaluated_is_refused() -> None:
    policy = Always(np.array(1))
    with pytest.raises(SettingError, match="Give exactly one of `episodes`"):
        evaluate(policy, CHAIN_ENVIRONMENT)
    with pytest.raises(SettingError, match="`episodes` must be between 1 and"):
        evaluate(policy, CHAIN_ENVIRONMENT, episodes=0)
    with pytest.raises(SettingError, match=r"or a list of environments; got \[\]"):
        evaluate(policy, [], episodes=1)
    with pytest.raises(BatsError, match="cannot make 'nowhere-v0'"):
        evaluate(policy, "nowhere-v0", episodes=1)
    with pytest.raises(BatsError, match="cannot make 'no_such_module:nowhere-v0'"):
        evaluate(policy, "no_such_module:nowhere-v0", episodes=1)


def hang(environment: Environment, state: np.ndarray) -> np.ndarray:
    """Puts Gymnasium's pendulum into the state that it observed."""
    cosine, sine, speed = state.astype(np.float64)
    pendulum: Any = environment.unwrapped
    pendulum.state = np.array([np.arctan2(sine, cosine), speed])
    return np.array(pendulum._get_obs())


def test_a_function_puts_an_environment_into_logged_states() -> None:
    torques = np.random.default_rng(0).uniform(-2, 2, (30, 1)).astype(np.float32)
    (played,) = play([gymnasium.make("Pendulum-v1")], open_loop([torques]), seeds=[7])
    log = as_dataset([played], name="pendulum")
    later = open_loop([torques[first:] for first in (0, 10, 20)])
    found = evaluate(later, "Pendulum-v1", starts=log.observations[[0, 10, 20]], set_state=hang, record=True)
    assert found.lengths.tolist() == [30, 20, 10]
    for first, episode in zip((0, 10, 20), found.episodes, strict=True):
        np.testing.assert_allclose(episode.observations, played.observations[first:], atol=1e-3)
        np.testing.assert_allclose(episode.rewards, played.rewards[first:], atol=1e-2)


def test_a_function_that_does_not_reach_the_state_is_refused() -> None:
    state = np.array([[1.0, 0.0, 0.5]], np.float32)

    def broken(environment: Environment, state: np.ndarray) -> np.ndarray:
        raise KeyError("theta")

    def silent(environment: Environment, state: np.ndarray) -> None:
        hang(environment, state)

    def backwards(environment: Environment, state: np.ndarray) -> np.ndarray:
        return hang(environment, state * [1, 1, -1])

    def short(environment: Environment, state: np.ndarray) -> np.ndarray:
        return hang(environment, state)[:2]

    expected = "must return the observation, which must be the state [1.0, 0.0, 0.5]"
    for set_state, message in (
        (broken, "broken failed to set the state [1.0, 0.0, 0.5]: KeyError: 'theta'."),
        (silent, f"silent {expected}; got nothing."),
        (backwards, f"backwards {expected}; got [1.0, 0.0, -0.5]."),
        (short, f"short {expected}; got [1.0, 0.0]."),
    ):
        with pytest.raises(SettingError) as caught:
            evaluate(Always(np.zeros(1)), "Pendulum-v1", starts=state, set_state=set_state)
        assert str(caught.value) == message


def test_episodes_of_different_lengths_are_played_together_from_given_states() -> None:
    worlds = [gymnasium.make(CHAIN_ENVIRONMENT) for _ in range(2)]
    up, down = np.ones(3, np.int64), np.zeros(1, np.int64)
    states = np.array([[2.0], [5.0], [7.0]])  # the third takes its turn after the first two
    batches = []
    choose = open_loop([up, down, up])

    def noted(observations: np.ndarray, running: Sequence[int], step: int) -> Iterable[object]:
        batches.append((observations[:, 0].tolist(), list(running), step))
        return choose(observations, running, step)

    episodes = play(worlds, noted, seeds=[0, 1, 2], states=states)
    assert [episode.observations[:, 0].tolist() for episode in episodes] == [[2, 3, 4, 5], [5, 4], [7, 8, 9]]
    assert [episode.actions.tolist() for episode in episodes] == [[1, 1, 1], [0], [1, 1]]
    assert [episode.terminated for episode in episodes] == [False, False, True]
    assert batches == [
        *(([2, 5], [0, 1], 0), ([3, 4], [0, 1], 1), ([4], [0], 2), ([5], [0], 3)),
        *(([7], [2], 0), ([8], [2], 1)),
    ]


def test_an_episode_stops_at_the_step_limit_and_may_keep_its_first_observation_alone() -> None:
    world = gymnasium.make(CHAIN_ENVIRONMENT)
    options = {"seeds": [0], "states": np.array([[4.0]]), "max_steps": 3}
    (whole,) = play([world], closed_loop(lambda _: np.int64(0)), **options)
    (bare,) = play([world], closed_loop(lambda _: np.int64(0)), **options, keep_observations=False)
    assert whole.observations.tolist() == [[4], [3], [2], [1]]
    assert bare.observations.tolist() == [[4]]
    assert len(whole) == len(bare) == 3
    assert not whole.terminated


def test_every_main_maze_is_evaluated_in_a_hundred_episodes_and_a_few_more() -> None:
    starts = {name: find_task(f"maze2d-{name}").starts for name in ("umaze", "medium", "large")}
    assert {name: len(draw(0)) for name, draw in starts.items()} == {"umaze": 140, "medium": 104, "large": 138}


def test_intervals_cover_the_mean_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    found = [interval(rng.exponential(2.0, 60), seed=seed) for seed in range(60)]
    assert np.mean([low <= 2.0 <= high for low, high in found]) >= 0.88
    low, high = interval(rng.normal(5.0, 1.0, 400))
    assert low < 5.1
    assert high > 4.9
    assert high - low == pytest.approx(2 * 1.96 / 20, rel=0.2)
    assert interval(np.full(10, 3.0)) == (3.0, 3.0)
    assert interval(np.append(np.zeros(99), 1e-300)) == pytest.approx((0.0, 0.0))


def test_a_robot_of_an_old_form_is_made_without_a_warning_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mujoco", reason="robots need the extra `mujoco`")
    monkeypatch.chdir(tmp_path)
    with open_environments("HalfCheetah-v5", 2) as opened:
        assert len(opened) == 2
    assert capfd.readouterr().err == ""
    assert not list(tmp_path.iterdir())  # MuJoCo writes its warnings into a file
