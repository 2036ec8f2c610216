"""Rollouts of a policy against worked arithmetic, its exact value, and a plain breadth-first search."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.errors import SettingError
from bats.graph import rollouts
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import TabularMDP, add_stitches
from bats.graph.rollouts import ends_in_dead_end, reachable, roll_out, stitched_share, undiscounted_return
from bats.graph.solve import first_edges, policy_iteration, policy_value
from tests.mdps import SEEDS, mdp_from_edges, random_mdps, stitches_between

CHAIN = [(0, 1, 1.0), (1, 2, 2.0), (2, 3, 4.0), (4, 4, 0.5)]
"""0 leads to 3, a dead end, in three steps; 4 leads to itself"""


def test_a_rollout_ends_in_a_dead_end_after_a_terminating_edge_or_when_its_steps_are_used_up() -> None:
    mdp = mdp_from_edges(5, CHAIN, ends=(1,))
    rolled_out = roll_out(mdp, first_edges(mdp), np.array([0, 2, 3, 4]), 4)
    none = NO_EDGE
    assert rolled_out.edge.tolist() == [
        [0, 1, none, none],  # edge 1 terminates, though state 2 has an edge
        [2, none, none, none],
        [none] * 4,
        [3, 3, 3, 3],
    ]
    assert rolled_out.length.tolist() == [2, 1, 0, 4]
    assert undiscounted_return(mdp, rolled_out).tolist() == [3, 4, 0, 2]
    assert ends_in_dead_end(mdp, first_edges(mdp), np.array([0, 2, 3, 4]), 4).tolist() == [False, True, True, False]
    assert roll_out(mdp, first_edges(mdp), np.array([0, 4]), 0).edge.shape == (2, 0)


def test_rollouts_take_memory_for_the_steps_that_are_made_and_not_for_those_that_are_allowed() -> None:
    mdp = mdp_from_edges(5, CHAIN)
    tracemalloc.start()
    try:
        rolled_out = roll_out(mdp, first_edges(mdp), np.full(1000, 2), 100_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rolled_out.edge.tolist() == [[2]] * 1000
    assert peak < 1e6
    assert roll_out(mdp, first_edges(mdp), np.full(3, 3), 9).edge.shape == (3, 0)


def test_returns_are_not_penalized_and_the_stitched_share_counts_steps() -> None:
    logged = replace(mdp_from_edges(5, CHAIN), penalty=1.0)
    stitch = stitches_between([3], [4], reward=[[10.0, 20.0]], planning_error=[7.0])
    mdp = add_stitches(logged, stitch, stitch_round=1)
    rolled_out = roll_out(mdp, first_edges(mdp), np.array([0, 4]), 6)
    assert rolled_out.length.tolist() == [6, 6]
    assert undiscounted_return(mdp, rolled_out).tolist() == [1 + 2 + 4 + 10 + 20 + 0.5, 6 * 0.5]
    assert stitched_share(mdp, rolled_out) == 2 / 12
    assert stitched_share(mdp, roll_out(mdp, first_edges(mdp), np.array([4]), 6)) == 0
    assert stitched_share(logged, roll_out(logged, first_edges(logged), np.array([3]), 6)) == 0  # without any step


def test_a_policy_from_before_a_stitch_is_refused() -> None:
    mdp = mdp_from_edges(5, CHAIN)
    with pytest.raises(SettingError, match="5 entries, one per state; got 4"):
        roll_out(mdp, first_edges(mdp)[:-1], np.array([0]), 3)


@given(random_mdps(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_discounted_return_of_a_rollout_is_the_value_of_the_policy(mdp: TabularMDP, best: bool) -> None:
    policy = policy_iteration(mdp).policy if best else first_edges(mdp)
    steps = 400
    rolled_out = roll_out(mdp, policy, np.arange(mdp.state_count), steps)
    made = rolled_out.edge.shape[1]
    assert made == rolled_out.length.max()
    assert np.all((rolled_out.edge != NO_EDGE) == (np.arange(made) < rolled_out.length[:, None]))
    rewards = np.append(mdp.reward, 0.0)[rolled_out.edge]
    remainder = mdp.gamma**steps * np.abs(mdp.reward).max() / (1 - mdp.gamma)
    difference = np.abs(rewards @ mdp.gamma ** np.arange(made) - policy_value(mdp, policy, dead_end_value=0.0))
    assert difference.max() <= remainder + 1e-9 * max(1.0, np.abs(mdp.reward).max())
    assert undiscounted_return(mdp, rolled_out) == pytest.approx(rewards.sum(axis=1), abs=1e-9)


def test_reachable_states_are_listed_once_and_none_comes_after_a_termination() -> None:
    edges = [(0, 1, 0.0), (1, 2, 0.0), (2, 1, 0.0), (3, 4, 0.0), (4, 5, 0.0)]
    mdp = mdp_from_edges(6, edges)
    assert reachable(mdp, first_edges(mdp), np.array([0, 0])).tolist() == [0, 1, 2]
    assert reachable(mdp, first_edges(mdp), np.array([3, 1])).tolist() == [1, 2, 3, 4, 5]
    terminates = replace(mdp, discount=np.where(np.arange(5) == 4, 0.0, mdp.discount))
    assert reachable(terminates, first_edges(terminates), np.array([3])).tolist() == [3, 4]


def breadth_first(mdp: TabularMDP, policy: np.ndarray, first_states: list[int], steps: int) -> list[int]:
    """The states that the policy visits in its first `steps` steps from any of the first states."""
    reached, frontier = set(first_states), set(first_states)
    for _ in range(steps - 1):
        edges = [policy[state] for state in frontier if policy[state] != NO_EDGE]
        frontier = {int(mdp.target[edge]) for edge in edges if mdp.discount[edge] > 0} - reached
        reached |= frontier
    return sorted(reached)


@settings(max_examples=100, deadline=None)
@given(random_mdps(), SEEDS, st.integers(1, 12))
def test_reachable_equals_a_breadth_first_search_up_to_the_step_limit(mdp: TabularMDP, seed: int, steps: int) -> None:
    rng = np.random.default_rng(seed)
    first_states = rng.integers(0, mdp.state_count, rng.integers(1, 4))
    policy = first_edges(mdp)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollouts, "MAX_STEPS", steps)
        assert reachable(mdp, policy, first_states).tolist() == breadth_first(mdp, policy, first_states.tolist(), steps)


def test_the_step_limit_counts_from_the_nearest_first_state() -> None:
    """A chain that is longer than the limit: what one rollout cannot reach, one that starts farther along does."""
    length = rollouts.MAX_STEPS + 500
    mdp = mdp_from_edges(length, [(state, state + 1, 0.0) for state in range(length - 1)])
    policy = first_edges(mdp)
    assert reachable(mdp, policy, np.array([0])).tolist() == list(range(rollouts.MAX_STEPS))
    assert reachable(mdp, policy, np.array([0, 600])).tolist() == list(range(length))


@given(mdp=random_mdps(), steps=st.integers(0, 30))
@settings(deadline=None)
def test_rollouts_that_end_in_dead_ends_are_those_that_stop_early_without_a_termination(
    mdp: TabularMDP, steps: int
) -> None:
    policy, states = policy_iteration(mdp).policy, np.arange(mdp.state_count)
    rolled_out = roll_out(mdp, policy, states, steps)
    last = [edges[edges != NO_EDGE][-1:] for edges in rolled_out.edge]
    terminated = np.array([len(edge) > 0 and mdp.discount[edge[0]] == 0 for edge in last])
    expected = (rolled_out.length < steps) & ~terminated
    assert np.array_equal(ends_in_dead_end(mdp, policy, states, steps), expected)
