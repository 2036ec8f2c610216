"""The oracle of the learned metric against closed forms, its axioms, and plain iteration of its definition."""

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
from tests.mdps import SEEDS, mdp_from_edges, random_mdps
from tests.oracles.exact_bisimulation import bisimulation_distances

DEAD_END_VALUES = st.sampled_from([0.0, -3.5, 40.0])


def random_policy(mdp: TabularMDP, rng: np.random.Generator) -> np.ndarray:
    chosen = mdp.first_edge[:-1] + np.floor(rng.random(mdp.state_count) * mdp.out_degree).astype(np.int64)
    return np.where(mdp.out_degree > 0, chosen, NO_EDGE)


def with_random_discounts(mdp: TabularMDP, rng: np.random.Generator) -> TabularMDP:
    """Some edges have a discount between 0 and gamma, as an edge of several steps has."""
    factor = np.where(rng.random(mdp.edge_count) < 0.3, rng.random(mdp.edge_count), 1.0)
    return replace(mdp, discount=mdp.discount * factor)


def iterated_distances(mdp: TabularMDP, policy: np.ndarray, dead_end_value: float, sweeps: int) -> np.ndarray:
    """The definition, iterated from 0, with a last state for after termination, which earns nothing and stays.

    The outcomes of a pair are transported at the least cost: the discount that both have from one successor to the
    other, and what one has beyond it from its successor to the last state.
    """
    ended = mdp.state_count
    target, reward, discount = np.arange(ended + 1), np.zeros(ended + 1), np.full(ended + 1, mdp.gamma)
    for state, value in enumerate(boundary_values(mdp, dead_end_value)):
        edge = policy[state]
        reward[state] = (1 - mdp.gamma) * value if edge == NO_EDGE else mdp.reward[edge]
        if edge != NO_EDGE:
            target[state], discount[state] = mdp.target[edge], mdp.discount[edge]
    distance = np.zeros((ended + 1, ended + 1))
    both = np.minimum(discount[:, None], discount[None, :])
    for _ in range(sweeps):
        to_end = distance[target, ended]
        distance = (
            np.abs(reward[:, None] - reward[None, :])
            + both * distance[np.ix_(target, target)]
            + (discount[:, None] - both) * to_end[:, None]
            + (discount[None, :] - both) * to_end[None, :]
        )
    return distance[:ended, :ended]


@settings(max_examples=80, deadline=None)
@given(random_mdps(max_states=14), DEAD_END_VALUES, st.booleans(), SEEDS)
def test_values_differ_by_at_most_the_distance_of_the_states(
    mdp: TabularMDP, dead_end_value: float, several_steps: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    mdp = with_random_discounts(mdp, rng) if several_steps else mdp
    policy = random_policy(mdp, rng)
    distances = bisimulation_distances(mdp, policy, dead_end_value=dead_end_value)
    value = policy_value(mdp, policy, dead_end_value=dead_end_value)
    difference = np.abs(value[:, None] - value[None, :])
    assert np.all(difference <= distances + 1e-9 * max(1.0, float(np.abs(value).max())))


@settings(max_examples=50, deadline=None)
@given(random_mdps(max_states=14), DEAD_END_VALUES, st.booleans(), SEEDS)
def test_it_is_a_pseudo_metric(mdp: TabularMDP, dead_end_value: float, several_steps: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mdp = with_random_discounts(mdp, rng) if several_steps else mdp
    distances = bisimulation_distances(mdp, random_policy(mdp, rng), dead_end_value=dead_end_value)
    assert np.all(np.diag(distances) == 0)
    assert np.all(distances >= 0)
    assert np.array_equal(distances, distances.T)
    over_any_third = (distances[:, :, None] + distances[None, :, :]).min(axis=1)
    assert np.all(distances <= over_any_third + 1e-9 * max(1.0, float(distances.max())))


@settings(max_examples=25, deadline=None)
@given(random_mdps(max_states=10), DEAD_END_VALUES, st.booleans(), SEEDS)
def test_it_is_the_fixed_point_of_its_definition(
    mdp: TabularMDP, dead_end_value: float, several_steps: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    mdp = with_random_discounts(mdp, rng) if several_steps else mdp
    policy = random_policy(mdp, rng)
    distances = bisimulation_distances(mdp, policy, dead_end_value=dead_end_value)
    sweeps = int(np.ceil(np.log(1e-13) / np.log(mdp.gamma)))
    expected = iterated_distances(mdp, policy, dead_end_value, sweeps)
    assert np.all(np.abs(distances - expected) <= 1e-9 * max(1.0, float(expected.max())))


def test_distances_along_a_chain_are_geometric_series() -> None:
    # 0 → 1 → 2 → 3 ⟲, with 1 for each step in 3 alone: state i waits for 3 - i steps
    mdp = mdp_from_edges(4, [(0, 1, 0.0), (1, 2, 0.0), (2, 3, 0.0), (3, 3, 1.0)], gamma=0.5)
    distances = bisimulation_distances(mdp, first_edges(mdp))
    # against 3, state 2 misses one reward, state 1 two and state 0 three: 1, 1 + 1/2, 1 + 1/2 + 1/4
    assert distances[3].tolist() == pytest.approx([1.75, 1.5, 1.0, 0.0], abs=1e-12)
    # against each other: the rewards of the nearer one while the farther one still waits
    assert distances[0].tolist() == pytest.approx([0.0, 0.25, 0.75, 1.75], abs=1e-12)


def test_states_of_equal_value_are_apart_if_their_rewards_come_at_different_times() -> None:
    # 0 has reward 1 now and nothing after, 1 has 2 one step later at a discount of 1/2: both have value 1
    mdp = mdp_from_edges(4, [(0, 3, 1.0), (1, 2, 0.0), (2, 3, 2.0), (3, 3, 0.0)], gamma=0.5)
    policy = first_edges(mdp)
    assert policy_value(mdp, policy)[:2].tolist() == [1.0, 1.0]
    assert bisimulation_distances(mdp, policy)[0, 1] == pytest.approx(2.0)  # |1 - 0| + 1/2 |0 - 2|


def test_states_with_the_same_rewards_ahead_have_distance_0() -> None:
    # two copies of one cycle, a state that leads into the first, and one with another reward that leads into the second
    one = [(0, 1, 1.0), (1, 0, -2.0), (4, 0, 1.0)]
    other = [(2, 3, 1.0), (3, 2, -2.0), (5, 2, 7.0)]
    distances = bisimulation_distances(mdp := mdp_from_edges(6, one + other), first_edges(mdp))
    assert distances[0, 2] == distances[1, 3] == 0
    assert distances[5, 4] == 6.0  # their rewards differ once, and not after
    assert distances[0, 1] > 0


def test_a_termination_is_like_reward_0_for_ever_and_a_dead_end_like_interest() -> None:
    # 0 terminates with reward 3, 1 has reward 3 and leads to 2, which has reward 0 for ever
    terminates = mdp_from_edges(4, [(0, 3, 3.0), (1, 2, 3.0), (2, 2, 0.0)], ends=(0,), gamma=0.9)
    distances = bisimulation_distances(terminates, first_edges(terminates))
    assert distances[0, 1] == distances[2, 3] == 0
    assert distances[0, 2] == 3.0
    # 0 is a dead end of value 20, like 1, which earns 2 for ever, and 20 more than 2, which terminates at once
    dead_end = mdp_from_edges(4, [(1, 1, 2.0), (2, 3, 0.0)], ends=(1,), gamma=0.9)
    distances = bisimulation_distances(dead_end, first_edges(dead_end), dead_end_value=20.0)
    assert distances[0] == pytest.approx([0.0, 0.0, 20.0, 20.0])


def test_a_single_state_and_an_edge_of_another_state() -> None:
    single = mdp_from_edges(1, [(0, 0, 1.0)])
    assert bisimulation_distances(single, np.array([0])).tolist() == [[0.0]]
    with pytest.raises(SettingError, match="the policy chooses edge 7"):
        bisimulation_distances(single, np.array([7]))
