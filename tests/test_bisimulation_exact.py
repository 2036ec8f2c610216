"""The exact bisimulation metric against closed forms, its axioms, and plain iteration of its definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import TabularMDP
from bats.graph.solve import boundary_values, first_edges, policy_value
from bats.metric.bisimulation_exact import bisimulation_distances
from tests.mdps import mdp_from_edges, random_mdps

DEAD_END_VALUES = st.sampled_from([0.0, -3.5, 40.0])


def some_policy(mdp: TabularMDP, rng: np.random.Generator) -> np.ndarray:
    chosen = mdp.first_edge[:-1] + np.floor(rng.random(mdp.state_count) * mdp.out_degree).astype(np.int64)
    return np.where(mdp.out_degree > 0, chosen, NO_EDGE)


def some_discounts(mdp: TabularMDP, rng: np.random.Generator) -> TabularMDP:
    """Some edges of the MDP with a discount between 0 and gamma, as an edge of several steps has."""
    shrink = np.where(rng.random(mdp.edge_count) < 0.3, rng.random(mdp.edge_count), 1.0)
    return replace(mdp, discount=mdp.discount * shrink)


def iterated(mdp: TabularMDP, policy: np.ndarray, dead_end_value: float, sweeps: int) -> np.ndarray:
    """The definition, swept from 0, with a last state for where all is over: it pays nothing and stays.

    A pair's outcomes are transported at the least cost: what both keep goes from one successor to the other, what one
    keeps and the other does not goes from its successor to where all is over.
    """
    over = mdp.state_count
    target, reward, keeps = np.arange(over + 1), np.zeros(over + 1), np.full(over + 1, mdp.gamma)
    for state, worth in enumerate(boundary_values(mdp, dead_end_value)):
        edge = policy[state]
        reward[state] = (1 - mdp.gamma) * worth if edge == NO_EDGE else mdp.reward[edge]
        if edge != NO_EDGE:
            target[state], keeps[state] = mdp.target[edge], mdp.discount[edge]
    distance = np.zeros((over + 1, over + 1))
    both = np.minimum(keeps[:, None], keeps[None, :])
    for _ in range(sweeps):
        alone = distance[target, over]
        distance = (
            np.abs(reward[:, None] - reward[None, :])
            + both * distance[np.ix_(target, target)]
            + (keeps[:, None] - both) * alone[:, None]
            + (keeps[None, :] - both) * alone[None, :]
        )
    return distance[:over, :over]


def close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return bool(np.all(np.abs(ours - theirs) <= 1e-9 * max(1.0, float(np.abs(theirs).max()))))


@settings(max_examples=200, deadline=None)
@given(random_mdps(max_states=14), DEAD_END_VALUES, st.booleans(), st.integers(0, 2**32 - 1))
def test_values_differ_by_no_more_than_the_states_do(
    mdp: TabularMDP, dead_end_value: float, several_steps: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    mdp = some_discounts(mdp, rng) if several_steps else mdp
    policy = some_policy(mdp, rng)
    distances = bisimulation_distances(mdp, policy, dead_end_value=dead_end_value)
    value = policy_value(mdp, policy, dead_end_value=dead_end_value)
    gap = np.abs(value[:, None] - value[None, :])
    assert np.all(gap <= distances + 1e-9 * max(1.0, float(np.abs(value).max())))


@settings(max_examples=100, deadline=None)
@given(random_mdps(max_states=14), DEAD_END_VALUES, st.booleans(), st.integers(0, 2**32 - 1))
def test_it_is_a_pseudo_metric(mdp: TabularMDP, dead_end_value: float, several_steps: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mdp = some_discounts(mdp, rng) if several_steps else mdp
    distances = bisimulation_distances(mdp, some_policy(mdp, rng), dead_end_value=dead_end_value)
    assert np.all(np.diag(distances) == 0)
    assert np.all(distances >= 0)
    assert np.array_equal(distances, distances.T)
    detour = (distances[:, :, None] + distances[None, :, :]).min(axis=1)  # the best way from s over any u to t
    assert np.all(distances <= detour + 1e-9 * max(1.0, float(distances.max())))


@settings(max_examples=60, deadline=None)
@given(random_mdps(max_states=10), DEAD_END_VALUES, st.booleans(), st.integers(0, 2**32 - 1))
def test_it_is_the_fixed_point_of_its_definition(
    mdp: TabularMDP, dead_end_value: float, several_steps: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    mdp = some_discounts(mdp, rng) if several_steps else mdp
    policy = some_policy(mdp, rng)
    distances = bisimulation_distances(mdp, policy, dead_end_value=dead_end_value)
    assert close(distances, iterated(mdp, policy, dead_end_value, sweeps=3000))  # 0.99^3000 is 1e-13


def test_states_of_a_chain_are_a_geometric_series_apart() -> None:
    # 0 → 1 → 2 → 3 ⟲, with 1 for each step in 3 alone: state i waits for 3 - i steps
    mdp = mdp_from_edges(4, [(0, 1, 0.0), (1, 2, 0.0), (2, 3, 0.0), (3, 3, 1.0)], gamma=0.5)
    distances = bisimulation_distances(mdp, first_edges(mdp))
    # against 3, state 2 misses one reward, state 1 two and state 0 three: 1, 1 + 1/2, 1 + 1/2 + 1/4
    assert distances[3].tolist() == pytest.approx([1.75, 1.5, 1.0, 0.0], abs=1e-12)
    # and against each other, what the nearer has while the farther still waits
    assert distances[0].tolist() == pytest.approx([0.0, 0.25, 0.75, 1.75], abs=1e-12)


def test_rewards_that_come_at_other_times_keep_states_apart_though_their_values_are_equal() -> None:
    # 0 pays 1 now and nothing after, 1 pays 2 one step later at a discount of 1/2: both are worth 1
    mdp = mdp_from_edges(4, [(0, 3, 1.0), (1, 2, 0.0), (2, 3, 2.0), (3, 3, 0.0)], gamma=0.5)
    policy = first_edges(mdp)
    assert policy_value(mdp, policy)[:2].tolist() == [1.0, 1.0]
    assert bisimulation_distances(mdp, policy)[0, 1] == pytest.approx(2.0)  # |1 - 0| + 1/2 |0 - 2|


def test_states_with_the_same_future_are_not_apart() -> None:
    # two copies of one cycle, a state that joins the first, and one of other rewards
    one = [(0, 1, 1.0), (1, 0, -2.0), (4, 0, 1.0)]
    other = [(2, 3, 1.0), (3, 2, -2.0), (5, 2, 7.0)]
    distances = bisimulation_distances(mdp := mdp_from_edges(6, one + other), first_edges(mdp))
    assert distances[0, 2] == distances[1, 3] == 0
    assert distances[5, 4] == 6.0  # their rewards differ once, and then they fare the same
    assert distances[0, 1] > 0


def test_an_end_is_like_being_paid_nothing_for_ever_and_a_dead_end_like_interest() -> None:
    # 0 ends with a reward of 3, 1 is paid 3 and goes to 2, which is paid nothing for ever
    ends = mdp_from_edges(4, [(0, 3, 3.0), (1, 2, 3.0), (2, 2, 0.0)], ends=(0,), gamma=0.9)
    distances = bisimulation_distances(ends, first_edges(ends))
    assert distances[0, 1] == distances[2, 3] == 0
    assert distances[0, 2] == 3.0
    # 0 is a dead end worth 20, so it earns as 1 does, which is paid 2 for ever, and 20 more than 2, which ends at once
    dead = mdp_from_edges(4, [(1, 1, 2.0), (2, 3, 0.0)], ends=(1,), gamma=0.9)
    distances = bisimulation_distances(dead, first_edges(dead), dead_end_value=20.0)
    assert distances[0] == pytest.approx([0.0, 0.0, 20.0, 20.0])


def test_one_state_alone_and_someone_elses_edge() -> None:
    alone = mdp_from_edges(1, [(0, 0, 1.0)])
    assert bisimulation_distances(alone, np.array([0])).tolist() == [[0.0]]
    with pytest.raises(SettingError, match="the policy takes 7"):
        bisimulation_distances(alone, np.array([7]))
