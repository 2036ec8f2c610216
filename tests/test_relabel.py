"""The same graph under other settings, against building it anew."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from bats.errors import SettingError
from bats.graph.mdp import Stitches, TabularMDP, add_stitches
from bats.graph.relabel import charge, discounted, goal_reward, prune, rewarded, stitch_errors, sweep
from bats.graph.solve import policy_iteration, policy_value, start_value
from tests.mdps import mdp_from_edges, random_mdps
from tests.test_mdp import stitches


def some(joined: Stitches, rows: np.ndarray) -> Stitches:
    return Stitches(*(getattr(joined, part.name)[rows] for part in fields(Stitches)))


@settings(deadline=None, max_examples=60)
@given(random_mdps(max_states=12), st.integers(0, 2**31))
def test_pruned_graphs_are_worth_what_graphs_are_that_never_had_the_stitches(mdp: TabularMDP, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = stitches(mdp, rng), stitches(mdp, rng)
    grown = add_stitches(add_stitches(mdp, first, stitch_round=1), second, stitch_round=2)
    kept = rng.random(10) < 0.5
    anew = add_stitches(mdp, some(first, np.flatnonzero(kept[:5])), stitch_round=1)
    anew = add_stitches(anew, some(second, np.flatnonzero(kept[5:])), stitch_round=2)
    for penalty in (0.0, 3.0):
        pruned = policy_iteration(replace(prune(grown, kept), penalty=penalty)).value
        assert pruned[: mdp.state_count] == pytest.approx(
            policy_iteration(replace(anew, penalty=penalty)).value[: mdp.state_count]
        )
    error = np.concatenate([first.planning_error, second.planning_error])
    assert stitch_errors(prune(grown, kept)) == pytest.approx(np.where(kept, error, np.inf))


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])
@given(random_mdps(max_states=12), st.integers(0, 2**31))
def test_adding_stitches_never_lowers_a_value_but_where_a_dead_end_gets_its_first_action(
    mdp: TabularMDP, seed: int
) -> None:
    joined = stitches(mdp, np.random.default_rng(seed))
    grown = add_stitches(replace(mdp, penalty=1.0), joined, stitch_round=1)
    before, after = policy_iteration(mdp).value, policy_iteration(grown).value[: mdp.state_count]
    was_dead_end = (mdp.out_degree == 0) & (grown.out_degree[: mdp.state_count] > 0)
    assume(not was_dead_end.any())
    assert np.all(after >= before - 1e-9 * np.maximum(1.0, np.abs(before)))


def test_charging_again_replaces_the_charge() -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (1, 1, 1.0)])
    joined = Stitches.judged_by_one(
        source=np.array([0]),
        target=np.array([1]),
        length=np.array([2]),
        action=np.zeros((1, 2, 1)),
        state=np.zeros((1, 1, 1)),
        reward=np.array([[4.0, 5.0]]),
        planning_error=np.array([0.5]),
    )
    grown = add_stitches(mdp, joined, stitch_round=1)
    for _ in range(2):
        grown = charge(grown, np.array([0.25]), penalty=2.0)
    # only the last edge pays, gamma * c * d = 0.9 * 2 * 0.25
    assert grown.charged_reward == pytest.approx([0.0, 4.0, 1.0, 5 - 0.45])


def test_another_discount_and_another_reward() -> None:
    mdp = mdp_from_edges(3, [(0, 1, 1.0), (1, 2, 1.0), (1, 0, 0.0)], gamma=0.9, ends=(1,))
    assert discounted(mdp, 0.5).discount.tolist() == [0.5, 0.0, 0.5]
    assert discounted(mdp, 0.5).gamma == 0.5
    paid = rewarded(mdp, lambda states, actions, after: 10 * states[:, 0] + after[:, 0])
    assert paid.reward.tolist() == [1.0, 12.0, 10.0]
    with pytest.raises(SettingError, match="one finite number for each of 3 rows"):
        rewarded(mdp, lambda states, actions, after: np.full(3, np.nan))
    with pytest.raises(SettingError, match="gamma"):
        discounted(mdp, 1.0)
    with pytest.raises(SettingError, match="0 stitches"):
        prune(mdp, np.ones(3, dtype=bool))


def test_a_grid_is_judged_by_one_yardstick() -> None:
    # from 0 a stitch promises 10 and another 6; the ensemble thinks both are good, held-out rows doubt the first
    mdp = mdp_from_edges(3, [(0, 0, 0.0), (1, 1, 1.0), (2, 2, 0.6)])
    joined = Stitches.judged_by_one(
        source=np.array([0, 0]),
        target=np.array([1, 2]),
        length=np.array([1, 1]),
        action=np.zeros((2, 1, 1)),
        state=np.zeros((2, 0, 1)),
        reward=np.zeros((2, 1)),
        planning_error=np.array([0.2, 0.1]),
    )
    grown = add_stitches(mdp, joined, stitch_round=1)

    def judge(kept: TabularMDP, policy: np.ndarray) -> float:
        held_out = charge(kept, np.array([8.0, 0.1]), penalty=1.0)
        return start_value(held_out, policy_value(held_out, policy))

    points = list(sweep(grown, np.array([0.2, 0.1]), penalties=(0.0, 1.0), tolerances=(0.15, 1.0), judge=judge))
    assert [(point.penalty, point.tolerance, point.kept) for point in points] == [
        (0.0, 0.15, 1),
        (0.0, 1.0, 2),
        (1.0, 0.15, 1),
        (1.0, 1.0, 2),
    ]
    # own values: 0.9 * 6, 0.9 * 10, and the same less gamma * c * d; by the yardstick the first costs 0.9 * 8
    assert [point.own_value for point in points] == pytest.approx([5.4, 9.0, 5.31, 8.82])
    assert [point.judged_value for point in points] == pytest.approx([5.31, 1.8, 5.31, 1.8])
    assert start_value(grown, policy_iteration(grown).value) == pytest.approx(9.0)


@pytest.mark.parametrize(("goal", "radius"), [([np.nan, 0.0], 0.5), ([0.0, 0.0], -1.0), ([0.0], np.nan)])
def test_a_goal_that_nothing_reaches_is_refused(goal: list[float], radius: float) -> None:
    with pytest.raises(SettingError, match="goal must be finite"):
        goal_reward(np.array(goal), radius)
