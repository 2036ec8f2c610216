"""Walks of a policy against worked arithmetic, and against the exact value of the same policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import Stitches, TabularMDP, add_stitches
from bats.graph.rollouts import on_the_way, stitched_share, undiscounted_return, walk, weighted_return
from bats.graph.solve import first_edges, policy_iteration, policy_value
from tests.mdps import mdp_from_edges, random_mdps

CHAIN = [(0, 1, 1.0), (1, 2, 2.0), (2, 3, 4.0), (4, 4, 0.5)]
"""0 to 3, a dead end, in three steps; 4 circles"""


def test_walks_end_in_dead_ends_after_ending_edges_and_when_the_steps_are_up() -> None:
    mdp = mdp_from_edges(5, CHAIN, ends=(1,))
    walks = walk(mdp, first_edges(mdp), np.array([0, 2, 3, 4]), 4)
    nothing = NO_EDGE
    assert walks.edge.tolist() == [
        [0, 1, nothing, nothing],  # edge 1 ends the episode, though state 2 could go on
        [2, nothing, nothing, nothing],
        [nothing] * 4,
        [3, 3, 3, 3],
    ]
    assert walks.length.tolist() == [2, 1, 0, 4]
    assert undiscounted_return(mdp, walks).tolist() == [3, 4, 0, 2]
    assert walk(mdp, first_edges(mdp), np.array([0, 4]), 0).edge.shape == (2, 0)


def test_the_weighted_return_weighs_the_starts() -> None:
    mdp = replace(mdp_from_edges(5, CHAIN, starts=(0, 4)), start_weights=np.array([0.25, 0.75]))
    assert weighted_return(mdp, first_edges(mdp), 10) == 0.25 * 7 + 0.75 * 10 * 0.5
    assert weighted_return(mdp, first_edges(mdp), 2) == 0.25 * 3 + 0.75 * 2 * 0.5


def test_returns_are_not_charged_and_the_share_counts_steps_on_stitches() -> None:
    logged = replace(mdp_from_edges(5, CHAIN), penalty=1.0)
    joined = Stitches.judged_by_one(
        source=np.array([3]),
        target=np.array([4]),
        length=np.array([2]),
        action=np.zeros((1, 2, 1)),
        state=np.zeros((1, 1, 1)),
        reward=np.array([[10.0, 20.0]]),
        planning_error=np.array([7.0]),
    )
    mdp = add_stitches(logged, joined, stitch_round=1)
    walks = walk(mdp, first_edges(mdp), np.array([0, 4]), 6)
    assert walks.length.tolist() == [6, 6]
    assert undiscounted_return(mdp, walks).tolist() == [1 + 2 + 4 + 10 + 20 + 0.5, 6 * 0.5]
    assert stitched_share(mdp, walks) == 2 / 12
    assert stitched_share(mdp, walk(mdp, first_edges(mdp), np.array([4]), 6)) == 0
    assert stitched_share(logged, walk(logged, first_edges(logged), np.array([3]), 6)) == 0  # not a step taken


def test_a_policy_from_before_a_stitch_is_refused() -> None:
    mdp = mdp_from_edges(5, CHAIN)
    with pytest.raises(SettingError, match="5 entries, one a state; got 4"):
        walk(mdp, first_edges(mdp)[:-1], np.array([0]), 3)


@given(random_mdps(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_walks_discounted_are_worth_what_the_policy_is(mdp: TabularMDP, best: bool) -> None:
    policy = policy_iteration(mdp).policy if best else first_edges(mdp)
    steps = 400
    walks = walk(mdp, policy, np.arange(mdp.state_count), steps)
    assert np.all((walks.edge != NO_EDGE) == (np.arange(steps) < walks.length[:, None]))
    rewards = np.append(mdp.reward, 0.0)[walks.edge]
    beyond = mdp.gamma**steps * np.abs(mdp.reward).max() / (1 - mdp.gamma)
    difference = np.abs(rewards @ mdp.gamma ** np.arange(steps) - policy_value(mdp, policy))
    assert difference.max() <= beyond + 1e-9 * max(1.0, np.abs(mdp.reward).max())
    assert undiscounted_return(mdp, walks) == pytest.approx(rewards.sum(axis=1), abs=1e-9)


def test_who_is_met_on_the_way_is_told_once_and_nobody_beyond_an_end() -> None:
    edges = [(0, 1, 0.0), (1, 2, 0.0), (2, 1, 0.0), (3, 4, 0.0), (4, 5, 0.0)]
    mdp = mdp_from_edges(6, edges)
    assert on_the_way(mdp, first_edges(mdp), np.array([0, 0])).tolist() == [0, 1, 2]
    assert on_the_way(mdp, first_edges(mdp), np.array([3, 1])).tolist() == [1, 2, 3, 4, 5]
    ends = replace(mdp, discount=np.where(np.arange(5) == 4, 0.0, mdp.discount))
    assert on_the_way(ends, first_edges(ends), np.array([3])).tolist() == [3, 4]
