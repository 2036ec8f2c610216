"""The steps of a policy as rows to learn from, and the split of the states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.errors import SettingError
from bats.graph.mdp import TabularMDP, add_stitches
from bats.graph.solve import first_edges, policy_value
from bats.metric.policy_steps import PolicySteps, StateSplit
from tests.mdps import mdp_from_edges, random_mdps, stitches_between


def test_a_dead_end_earns_the_interest_of_its_value() -> None:
    mdp = mdp_from_edges(2, [(0, 0, 1.0)], gamma=0.5)
    steps = PolicySteps.of(mdp, first_edges(mdp), dead_end_value=8.0)
    assert steps.rewards.tolist() == [1.0, 4.0]  # 4 in every step has value 8 at gamma 1/2
    assert steps.next_row.tolist() == [0, 1]
    assert steps.discounts.tolist() == [0.5, 0.5]


def test_steps_from_some_states_are_those_of_all_states_that_the_policy_reaches() -> None:
    mdp = mdp_from_edges(6, [(0, 3, 1.0), (1, 2, 2.0), (3, 5, 3.0), (5, 3, 4.0), (4, 1, 5.0)])
    policy = first_edges(mdp)
    some = PolicySteps.of(mdp, policy, from_states=np.array([0]))
    assert some.states[:, 0].tolist() == [0, 3, 5]
    assert some.next_row.tolist() == [1, 2, 1]
    assert some.rewards.tolist() == [1.0, 3.0, 4.0]
    assert len(PolicySteps.of(mdp, policy)) == 6
    with pytest.raises(SettingError, match="state indices from 0 to 5"):
        PolicySteps.of(mdp, policy, from_states=np.array([6]))


def test_rewards_are_penalized() -> None:
    mdp = add_stitches(
        mdp_from_edges(2, [(1, 1, 0.0)]), stitches_between([0], [1], planning_error=[0.5]), stitch_round=1
    )
    mdp = replace(mdp, penalty=2.0)
    assert PolicySteps.of(mdp, first_edges(mdp)).rewards == pytest.approx([-0.9, 0.0])


@settings(max_examples=60, deadline=None)
@given(random_mdps(), st.sampled_from([0.0, -3.5, 40.0]))
def test_the_values_of_the_steps_are_those_of_the_policy(mdp: TabularMDP, dead_end_value: float) -> None:
    policy = first_edges(mdp)
    steps = PolicySteps.of(mdp, policy, dead_end_value=dead_end_value)
    value = policy_value(mdp, policy, dead_end_value=dead_end_value)
    assert steps.values() == pytest.approx(value, rel=1e-9, abs=1e-9 * max(1.0, float(np.abs(value).max())))


def test_a_state_stays_in_its_part_whatever_other_states_there_are() -> None:
    states = np.random.default_rng(0).normal(size=(4000, 3)).astype(np.float32)
    split = StateSplit(seed=3, held_out=0.2)
    parts = {part: split.rows(states, part) for part in ("fit", "calibrate", "test")}
    assert sorted(np.concatenate(list(parts.values()))) == list(range(4000))
    assert len(parts["calibrate"]) == pytest.approx(400, abs=80)
    assert len(parts["test"]) == pytest.approx(400, abs=80)
    # every other state in reverse order: each keeps its part
    rows = np.arange(4000)[::-2]
    for part, expected in parts.items():
        assert set(rows[split.rows(states[rows], part)].tolist()) == set(rows.tolist()) & set(expected.tolist())
    assert not np.array_equal(StateSplit(seed=4, held_out=0.2).rows(states, "test"), parts["test"])
