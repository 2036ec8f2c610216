"""Replays of maze policies on logs whose replay is known: a log without stitches keeps its promise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from bats.data.dataset import Dataset
from bats.errors import SettingError
from bats.evaluation.comparison import nearest_starts
from bats.evaluation.episodes import replay
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import Stitches, TabularMDP, add_stitches, from_dataset
from bats.graph.rollouts import Rollouts, roll_out, stitched_share, undiscounted_return
from bats.graph.solve import first_edges, policy_iteration
from bats.metric.scaled import ScaledMetric
from bats.tasks import collect
from bats.tasks.episodes import as_dataset, open_loop, play
from bats.tasks.maze2d import Maze2dEnv, find_maze, label_starts, stratified_starts
from benchmarks.maze_replay import NEVER, Replay, compare_in_maze, end_errors, replay_starts, stitches_used

UMAZE = find_maze("umaze")
STEPS = UMAZE.episode_steps


@pytest.fixture(scope="module")
def collected() -> Dataset:
    """In single precision, as logs are: each row is rounded, but the run continued unrounded."""
    return collect("maze2d-umaze", 3000, 0)


@pytest.fixture(scope="module")
def exact(collected: Dataset) -> Dataset:
    """The same actions again, with every state in the simulator's own double precision."""
    actions = open_loop([collected.actions])
    (episode,) = play([Maze2dEnv("umaze")], actions, seeds=[None], states=collected.observations[:1])
    return label_starts(as_dataset([episode], name="exact"), UMAZE)[0]


def with_stitch(mdp: TabularMDP, source: int, actions: np.ndarray, *, target: int, stitch_round: int = 1) -> TabularMDP:
    """A stitch along a logged run, whose imagined states are those of the log; states are numbered along the run."""
    between = mdp.states[source + 1 : source + len(actions)]
    joined = Stitches(
        source=np.array([source]),
        target=np.array([target]),
        length=np.array([len(actions)]),
        action=actions[None],
        state=between[None],
        reward=np.zeros((1, len(actions))),
        planning_error=np.zeros(1),
    )
    return add_stitches(mdp, joined, stitch_round=stitch_round)


def taking_stitches(mdp: TabularMDP) -> np.ndarray:
    """The policy that takes the last edge of every state, which is a stitch if there is one."""
    return np.where(mdp.out_degree > 0, mdp.first_edge[1:] - 1, NO_EDGE)


def replayed_states(mdp: TabularMDP, policy: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The states after each step of a full episode."""
    played = replay(mdp, roll_out(mdp, policy, start, STEPS), start, UMAZE.environment, record=True)
    return np.stack([episode.observations[1:] for episode in played.episodes])


def test_an_exact_log_replays_exactly_with_the_environment_s_rewards(exact: Dataset) -> None:
    mdp = from_dataset(exact)
    policy = policy_iteration(mdp).policy
    start = np.array([0, 700, 2000])
    expected = np.stack([exact.next_observations[row : row + STEPS] for row in start])
    np.testing.assert_array_equal(replayed_states(mdp, policy, start), expected)

    found = replay_starts(mdp, policy, UMAZE, ScaledMetric.of(exact), per_cell=3, seed=0)
    assert len(found.start) == 3 * len(UMAZE.cells)
    assert found.promised.returns.sum() > 0
    for kind in ("returns", "entered", "remaining", "inside", "stay"):
        np.testing.assert_array_equal(getattr(found.promised, kind), getattr(found.replayed, kind))
    assert found.share == 1


def test_a_log_in_single_precision_replays_within_its_rounding(collected: Dataset) -> None:
    mdp, metric = from_dataset(collected), ScaledMetric.of(collected)
    policy = first_edges(mdp)
    start = np.arange(0, 2700, 300)
    played = replayed_states(mdp, policy, start)
    logged = np.stack([collected.next_observations[row : row + STEPS] for row in start])
    assert np.linalg.norm(metric.embed(played - logged), axis=2).max() < 1e-3  # ordinary steps
    found = replay_starts(mdp, policy, UMAZE, metric, per_cell=2, seed=0)
    np.testing.assert_array_equal(found.promised.returns, found.replayed.returns)


def test_goal_times_are_counted_from_the_first_step_into_the_disc(exact: Dataset) -> None:
    mdp = from_dataset(exact)
    found: Replay = replay_starts(mdp, first_edges(mdp), UMAZE, ScaledMetric.of(exact), per_cell=2, seed=1)
    inside_steps = remaining_steps = 0
    for row, promised, entered, stay in zip(
        found.start, found.promised.returns, found.replayed.entered, found.replayed.stay, strict=True
    ):
        inside = UMAZE.at_goal(exact.next_observations[row : row + STEPS])
        assert promised == inside.sum() == exact.rewards[row : row + STEPS].sum()
        if not inside.any():
            assert entered == NEVER
            assert math.isnan(stay)
            continue
        first = int(np.flatnonzero(inside)[0])
        assert (entered, stay) == (first, inside[first:].mean())
        inside_steps, remaining_steps = inside_steps + inside.sum(), remaining_steps + len(inside) - first
    assert found.replayed.goal_time == inside_steps / remaining_steps
    assert 0 < np.count_nonzero(found.replayed.entered == NEVER) < len(found.start)  # both kinds were seen


def test_a_replay_stops_where_the_graph_has_no_more_actions(exact: Dataset) -> None:
    last = len(exact) - 10
    log = exact.with_starts([last])
    mdp, metric = from_dataset(log), ScaledMetric.of(log)
    found = replay_starts(mdp, first_edges(mdp), UMAZE, metric, per_cell=1, seed=0)
    assert set(found.start.tolist()) == {last}
    np.testing.assert_array_equal(found.replayed.returns, np.full(7, exact.rewards[last:].sum()))


def test_the_nearest_start_is_nearest_in_ordinary_steps(exact: Dataset) -> None:
    mdp, metric = from_dataset(exact), ScaledMetric.of(exact)
    states = stratified_starts(UMAZE, 2, seed=3)
    chosen = nearest_starts(mdp, states, metric)
    assert np.isin(chosen, mdp.starts).all()
    nearest = np.linalg.norm(metric.embed(mdp.states[chosen] - states), axis=1)
    for start in mdp.starts:
        assert np.all(nearest <= np.linalg.norm(metric.embed(mdp.states[start] - states), axis=1))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_stitch_of_logged_actions_ends_in_its_target_and_one_of_others_does_not(exact: Dataset, length: int) -> None:
    metric, source = ScaledMetric.of(exact), 500
    logged = from_dataset(exact.with_starts([source - 20]))
    actions = exact.actions[source : source + length]
    true = with_stitch(logged, source, actions, target=source + length)
    found = end_errors(true, UMAZE, metric, roll_out(true, taking_stitches(true), true.starts, 40), tolerance=0.0)
    assert found.distance.tolist() == [0.0]
    assert true.source[found.first_edge].tolist() == [source]
    assert (found.share_within, found.percentile(99)) == (1, 0)

    altered = with_stitch(logged, source, -actions, target=source + length)
    rollouts = roll_out(altered, taking_stitches(altered), altered.starts, 40)
    missed = end_errors(altered, UMAZE, metric, rollouts, tolerance=0.1)
    environment = Maze2dEnv("umaze")
    state, _ = environment.reset(options={"state": exact.observations[source]})
    for action in -actions:
        state = environment.step(action)[0]
    error = np.linalg.norm(metric.embed(state - exact.observations[source + length]))
    assert error > 0.1
    assert missed.distance.tolist() == [error]
    assert (missed.share_within, missed.percentile(50)) == (0, error)


def test_stitches_are_listed_once_each_in_full_even_if_a_rollout_is_truncated(exact: Dataset) -> None:
    mdp = from_dataset(exact)
    for number, (source, length) in enumerate([(100, 3), (150, 1), (400, 2)]):
        actions = exact.actions[source : source + length]
        mdp = with_stitch(mdp, source, actions, target=source + length, stitch_round=1 + number)
    policy = taking_stitches(mdp)
    starts = np.array([60, 90, 90, 148])
    assert roll_out(mdp, policy, starts, 12).length.tolist() == [12] * 4
    # from 60 no stitch is reached, and from 90 the rollout ends within one
    found = stitches_used(mdp, roll_out(mdp, policy, starts, 12))
    assert found.length.tolist() == [3, 1]
    assert mdp.source[found.edge[:, 0]].tolist() == [100, 150]
    assert mdp.target[found.edge[np.arange(2), found.length - 1]].tolist() == [103, 151]
    assert stitches_used(mdp, roll_out(mdp, policy, np.array([200]), 12)).edge.shape == (0, 1)


def test_an_imagined_state_with_a_choice_is_refused(exact: Dataset) -> None:
    once = with_stitch(from_dataset(exact), 100, exact.actions[100:103], target=103)
    twice = with_stitch(once, once.real_count, exact.actions[:1], target=50)
    with pytest.raises(SettingError, match="one edge each"):
        stitches_used(twice, Rollouts(np.zeros((1, 1), dtype=np.int64)))


def test_the_comparison_holds_all_measurements_and_names_them_as_figures(exact: Dataset) -> None:
    metric = ScaledMetric.of(exact)
    logged = from_dataset(exact)
    mdp = with_stitch(logged, 500, exact.actions[500:504], target=504)
    mdp = with_stitch(mdp, 900, -exact.actions[900:904], target=904, stitch_round=2)
    policy = taking_stitches(mdp)
    found = compare_in_maze(mdp, policy, UMAZE, metric, tolerance=0.5, per_cell=2, seed=0)
    rollouts = roll_out(mdp, policy, mdp.starts, STEPS)
    assert found.promise == pytest.approx(mdp.start_weights @ undiscounted_return(mdp, rollouts))
    assert found.stitched_share == stitched_share(mdp, rollouts) > 0
    assert (len(found.end_errors.distance), found.end_errors.share_within) == (2, 0.5)
    figures = {name: value for name, value, _ in found.figures()}
    assert figures["end_error_within_tolerance"] == 0.5
    assert figures["stitches_used"] == 2
    share = figures["replay"] / figures["promise_at_replayed_starts"]
    assert figures["replay_share"] == pytest.approx(share)


def test_without_stitches_there_are_no_end_errors(exact: Dataset) -> None:
    mdp = replace(from_dataset(exact), reward=np.zeros(len(exact)))
    found = compare_in_maze(mdp, first_edges(mdp), UMAZE, ScaledMetric.of(exact), tolerance=0.5, per_cell=1, seed=0)
    assert found.stitched_share == 0
    assert math.isnan(found.end_errors.share_within)
    assert math.isnan(found.replay.share)  # nothing was promised
