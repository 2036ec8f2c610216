"""The same graph under other settings, against building it anew and against worked arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from bats.arrays import take
from bats.errors import SettingError
from bats.graph.mdp import TabularMDP, add_stitches
from bats.graph.relabel import (
    final_graph,
    goal_reward,
    prune,
    stitch_errors,
    value_of_a_step,
    with_errors,
    with_gamma,
    with_reward,
)
from bats.graph.solve import policy_iteration, start_value
from tests.mdps import SEEDS, mdp_from_edges, random_mdps, random_stitches, stitches_between


@settings(deadline=None, max_examples=60)
@given(random_mdps(max_states=12), SEEDS)
def test_a_pruned_graph_has_the_values_of_one_that_never_had_the_stitches(mdp: TabularMDP, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = random_stitches(mdp, rng), random_stitches(mdp, rng)
    grown = add_stitches(add_stitches(mdp, first, stitch_round=1), second, stitch_round=2)
    kept = rng.random(10) < 0.5
    anew = add_stitches(mdp, take(first, kept[:5]), stitch_round=1)
    anew = add_stitches(anew, take(second, kept[5:]), stitch_round=2)
    for penalty in (0.0, 3.0):
        pruned = policy_iteration(replace(prune(grown, kept), penalty=penalty)).value
        expected = policy_iteration(replace(anew, penalty=penalty)).value
        assert pruned[: mdp.state_count] == pytest.approx(expected[: mdp.state_count])
    error = np.concatenate([first.planning_error, second.planning_error])
    assert stitch_errors(prune(grown, kept)) == pytest.approx(np.where(kept, error, np.inf))


def test_new_errors_and_a_new_penalty_replace_the_old_ones() -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (1, 1, 1.0)])
    stitch = stitches_between([0], [1], reward=[[4.0, 5.0]], planning_error=[0.5])
    grown = add_stitches(mdp, stitch, stitch_round=1)
    for _ in range(2):
        grown = with_errors(grown, np.array([0.25]), penalty=2.0)
    # only the last edge is penalized, by gamma * c * d = 0.9 * 2 * 0.25
    assert grown.penalized_reward == pytest.approx([0.0, 4.0, 1.0, 5 - 0.45])


def test_another_gamma_keeps_terminations_and_another_reward_sees_every_transition() -> None:
    mdp = mdp_from_edges(3, [(0, 1, 1.0), (1, 2, 1.0), (1, 0, 0.0)], gamma=0.9, ends=(1,))
    assert with_gamma(mdp, 0.5).discount.tolist() == [0.5, 0.0, 0.5]
    assert with_gamma(mdp, 0.5).gamma == 0.5
    relabelled = with_reward(mdp, lambda states, actions, after: 10 * states[:, 0] + after[:, 0])
    assert relabelled.reward.tolist() == [1.0, 12.0, 10.0]
    with pytest.raises(SettingError, match="one finite number for each of 3 rows"):
        with_reward(mdp, lambda states, actions, after: np.full(3, np.nan))
    with pytest.raises(SettingError, match="gamma"):
        with_gamma(mdp, 1.0)
    with pytest.raises(SettingError, match="0 entries, one per stitch"):
        prune(mdp, np.ones(3, dtype=bool))


def test_the_final_graph_has_the_stitches_within_the_tolerance_and_the_final_penalty() -> None:
    # from 0 one stitch leads to 1, with value 10, and another to 2, with value 6; the first has the larger error
    mdp = mdp_from_edges(3, [(0, 0, 0.0), (1, 1, 1.0), (2, 2, 0.6)])
    grown = add_stitches(mdp, stitches_between([0, 0], [1, 2], planning_error=[0.2, 0.1]), stitch_round=1)
    values = {
        (penalty, tolerance): start_value(graph, policy_iteration(graph).value)
        for penalty in (0.0, 1.0, 50.0)
        for tolerance in (0.15, None)
        for graph in (final_graph(grown, penalty=penalty, tolerance=tolerance),)
    }
    # 0.9 * 6 or 0.9 * 10 less 0.9 * c * d; with c = 50 the worse stitch is better: 5.4 - 4.5 against 9 - 9
    assert values == pytest.approx(
        {
            (0.0, 0.15): 5.4,
            (0.0, None): 9.0,
            (1.0, 0.15): 5.4 - 0.09,
            (1.0, None): 9.0 - 0.18,
            (50.0, 0.15): 0.9,
            (50.0, None): 0.9,
        }
    )


def test_the_value_of_a_step_is_the_interest_on_the_range_of_the_logs_values() -> None:
    # values: 2 earns 1 for ever, 10; 1 is one step away, 9; 0 two steps, 8.1; 3 is a dead end, 0
    mdp = mdp_from_edges(4, [(0, 1, 0.0), (1, 2, 0.0), (2, 2, 1.0)], gamma=0.9)
    value = policy_iteration(mdp).value
    assert value_of_a_step(mdp, value) == pytest.approx(0.1 * 10)
    # imagined states do not count
    imagined = replace(mdp, real_count=3)
    assert value_of_a_step(imagined, value) == pytest.approx(0.1 * 1.9)


def test_a_rare_reward_does_not_decide_what_a_step_is_worth() -> None:
    # 1 and 2 for ever are 10 and 20; state 2 is a dead end
    edges = [(0, 0, 1.0)] * 100 + [(1, 1, 2.0)] * 100 + [(0, 2, 1.5)]
    usual = mdp_from_edges(3, edges, gamma=0.9)
    assert value_of_a_step(usual, policy_iteration(usual).value) == pytest.approx(0.1 * 10)
    once = mdp_from_edges(3, [*edges, (1, 2, -50.0)], gamma=0.9)
    value = policy_iteration(once).value
    assert value[2] == pytest.approx(-500)
    assert value_of_a_step(once, value) == pytest.approx(0.1 * 10)


def test_where_all_values_are_equal_the_range_of_the_rewards_stands_in_and_then_1() -> None:
    # both terminate with reward 2 at best; one has an alternative with reward -1
    equal = mdp_from_edges(4, [(0, 2, 2.0), (1, 3, 2.0), (1, 3, -1.0)], ends=(0, 1, 2), gamma=0.9)
    value = np.full(4, 2.0)
    assert value_of_a_step(equal, value) == pytest.approx(0.1 * 3)
    constant = mdp_from_edges(2, [(0, 1, 2.0), (1, 0, 2.0)], gamma=0.9)
    assert value_of_a_step(constant, policy_iteration(constant).value) == pytest.approx(0.1)
    # values of a larger graph are equal but for rounding
    assert value_of_a_step(constant, np.array([20.0, np.nextafter(20.0, 21.0)])) == pytest.approx(0.1)
    tiny = mdp_from_edges(2, [(0, 1, 0.0), (1, 1, 1e-15)], gamma=0.9)
    assert value_of_a_step(tiny, policy_iteration(tiny).value) == pytest.approx(1e-16)


def test_a_goal_is_rewarded_within_its_radius_by_the_first_numbers_of_the_next_state() -> None:
    reward = goal_reward(np.array([1.0, 1.0]), 0.5)
    states, actions = np.zeros((3, 3)), np.zeros((3, 1))
    after = np.array([[1.0, 1.5, 9.0], [1.0, 1.6, 0.0], [0.0, 0.0, 0.0]])
    assert reward(states, actions, after).tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(SettingError, match="A state has 1 components, but the goal has 2"):
        reward(states[:, :1], actions, after[:, :1])


@pytest.mark.parametrize("radius", [0.0, -1.0, np.nan, np.inf])
def test_a_goal_that_nothing_or_everything_reaches_is_refused(radius: float) -> None:
    with pytest.raises(SettingError, match="`radius` must be positive and at most"):
        goal_reward(np.zeros(2), radius)
    with pytest.raises(SettingError, match=r"`goal` must be finite numbers; got \[nan, 0.0\]"):
        goal_reward(np.array([np.nan, 0.0]), 0.5)


def test_a_goal_that_no_next_state_is_near_is_refused_with_the_distance_of_the_nearest() -> None:
    states = np.array([[0.0, 0.0], [3.0, 4.0]])
    with pytest.raises(SettingError, match=r"No next state is within the radius of the goal, 1; .* is 5 away"):
        goal_reward(np.array([6.0, 8.0]), 1.0)(states, np.zeros((2, 1)), states)
