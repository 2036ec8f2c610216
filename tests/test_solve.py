"""The solver against closed forms, someone else's solver, and the slow reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantecon.markov import DiscreteDP
from scipy.sparse import csr_matrix

from bats.errors import NotConvergedError, SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import TabularMDP
from bats.graph.solve import (
    boltzmann_policy,
    boundary_values,
    edge_values,
    greedy_policy,
    policy_iteration,
    policy_value,
    sample_occupancy,
    value_iteration,
)
from tests.mdps import mdp_from_edges, random_mdps


def close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return bool(np.all(np.abs(ours - theirs) <= 1e-9 * np.maximum(1, np.abs(theirs))))


def solved_by_quantecon(mdp: TabularMDP, dead_end_value: float) -> np.ndarray:
    """Dead ends and terminals as absorbing states: a dead end pays its value's interest for ever, the end nothing."""
    over = mdp.state_count  # one more state, where every ended episode goes
    dead = np.flatnonzero(mdp.out_degree == 0)
    target = np.where(mdp.discount == 0, over, mdp.target)
    source = np.concatenate([mdp.source, dead, [over]])
    target = np.concatenate([target, dead, [over]])
    worth = np.where(mdp.terminal[dead], 0.0, dead_end_value)
    reward = np.concatenate([mdp.reward, worth * (1 - mdp.gamma), [0.0]])
    order = np.argsort(source, kind="stable")
    nth = np.arange(len(order)) - np.searchsorted(source[order], source[order])
    moves = csr_matrix((np.ones(len(order)), (np.arange(len(order)), target[order])), shape=(len(order), over + 1))
    problem = DiscreteDP(reward[order], moves, mdp.gamma, source[order], nth)
    return problem.solve(method="policy_iteration", max_iter=10_000).v[:-1]


@settings(max_examples=600, deadline=None)
@given(random_mdps(), st.sampled_from([0.0, -3.5, 40.0]))
def test_values_equal_quantecon_and_value_iteration_and_the_policys_own(mdp: TabularMDP, dead_end_value: float) -> None:
    solution = policy_iteration(mdp, dead_end_value=dead_end_value)
    assert close(solution.value, solved_by_quantecon(mdp, dead_end_value))
    assert close(solution.value, value_iteration(mdp, tolerance=1e-10, dead_end_value=dead_end_value).value)
    assert close(policy_value(mdp, solution.policy, dead_end_value=dead_end_value), solution.value)


@settings(max_examples=100, deadline=None)
@given(random_mdps(), st.integers(0, 2**32 - 1))
def test_a_warm_start_changes_nothing(mdp: TabularMDP, seed: int) -> None:
    anyhow = np.random.default_rng(seed).random(mdp.state_count)
    chosen = mdp.first_edge[:-1] + np.floor(anyhow * mdp.out_degree).astype(np.int64)
    warm = policy_iteration(mdp, policy=np.where(mdp.out_degree > 0, chosen, NO_EDGE))
    assert close(warm.value, policy_iteration(mdp).value)


def test_an_optimal_policy_is_recognised_in_one_round() -> None:
    mdp = mdp_from_edges(3, [(0, 1, 0.0), (0, 2, 1.0), (1, 0, 5.0), (1, 1, 0.0), (2, 0, 0.0), (2, 2, 0.5)])
    solution = policy_iteration(mdp)
    assert policy_iteration(mdp, policy=solution.policy).rounds == 1


@pytest.mark.parametrize("gamma", [0.9, 0.99, 0.9999])
@pytest.mark.parametrize("upwards", [True, False])
def test_a_ladder_of_choices_is_climbed_whatever_its_direction(gamma: float, upwards: bool) -> None:
    """Each rung may stay, for nothing, or go on; the last pays 1 for ever. Rung i is worth gamma^i / (1 - gamma)."""
    rungs = 150
    order = list(range(rungs)) if upwards else list(range(rungs))[::-1]
    edges = [(order[i], order[i], 0.0) for i in range(rungs - 1)]
    edges += [(order[i], order[i + 1], 0.0) for i in range(rungs - 1)]
    edges += [(order[-1], order[-1], 0.0), (order[-1], order[-1], 1.0)]
    value = policy_iteration(mdp_from_edges(rungs, edges, gamma=gamma)).value
    worth = gamma ** np.arange(rungs - 1, -1, -1) / (1 - gamma)
    assert value[order] == pytest.approx(worth, rel=1e-9)


@pytest.mark.parametrize("huge", [1e6, 1e12])
def test_large_values_elsewhere_do_not_hide_small_ones(huge: float) -> None:
    edges = [edge for k in range(1, 60) for edge in ((k, k, 0.0), (k, k - 1, 0.0))]
    edges += [(0, 0, 0.0), (0, 0, 1.0), (60, 60, huge), (60, 60, huge / 2)]
    value = policy_iteration(mdp_from_edges(62, edges, gamma=0.99), dead_end_value=-huge).value
    assert value[:60] == pytest.approx(0.99 ** np.arange(60) / 0.01, rel=1e-9)
    assert value[60:] == pytest.approx([100 * huge, -huge])


def test_values_that_are_not_finite_are_refused() -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (0, 0, 1.0)])
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(SettingError, match="must be finite"):
            policy_iteration(mdp, dead_end_value=wrong)
        with pytest.raises(SettingError, match="state 1 is not"):
            greedy_policy(mdp, np.array([0.0, wrong]))


def test_a_self_loop_is_worth_its_reward_for_ever() -> None:
    mdp = mdp_from_edges(1, [(0, 0, 1.0)], gamma=0.9)
    assert policy_iteration(mdp).value == pytest.approx([10.0], abs=1e-12)  # 1 / (1 - 0.9)


def test_a_cycle_is_closed_by_its_geometric_series() -> None:
    # once around: 1 + 0.5 * 2 + 0.25 * 4 = 3, discounted 0.125 a turn: 3 / 0.875; then 4 + V(0) / 2 and 2 + V(2) / 2
    mdp = mdp_from_edges(3, [(0, 1, 1.0), (1, 2, 2.0), (2, 0, 4.0)], gamma=0.5)
    first = 3 / 0.875
    assert policy_iteration(mdp).value == pytest.approx([first, 2 + (4 + first / 2) / 2, 4 + first / 2], abs=1e-12)


def test_an_episodes_end_cuts_the_future_off() -> None:
    # the edge into state 1 ends the episode, so state 1's riches do not count
    mdp = mdp_from_edges(2, [(0, 1, 3.0), (1, 1, 100.0)], ends=(0,))
    assert policy_iteration(mdp).value == pytest.approx([3.0, 1000.0])


def test_a_dead_end_is_worth_what_the_caller_says_and_a_terminal_state_nothing() -> None:
    mdp = mdp_from_edges(4, [(0, 1, 1.0), (2, 3, 1.0)], ends=(1,), gamma=0.9)
    assert policy_iteration(mdp, dead_end_value=-7.0).value == pytest.approx([1 - 6.3, -7.0, 1.0, 0.0])
    each = np.array([9.0, 50.0, 9.0, 9.0])
    assert policy_iteration(mdp, dead_end_value=each).value == pytest.approx([46.0, 50.0, 1.0, 0.0])
    assert boundary_values(mdp, 5.0).tolist() == [0.0, 5.0, 0.0, 0.0]


def test_value_iteration_keeps_its_promise_or_says_that_it_could_not() -> None:
    mdp = mdp_from_edges(1, [(0, 0, 1.0)], gamma=0.9)
    for tolerance in (1e-1, 1e-4, 1e-8):
        assert abs(value_iteration(mdp, tolerance=tolerance).value[0] - 10) <= tolerance
    with pytest.raises(NotConvergedError, match="after 5 sweeps"):
        value_iteration(mdp, tolerance=1e-8, max_sweeps=5)


def test_greedy_takes_the_best_edge_and_of_equals_the_first() -> None:
    mdp = mdp_from_edges(4, [(0, 1, 0.0), (0, 2, 1.0), (0, 3, 1.0), (1, 1, 0.0)])
    assert greedy_policy(mdp, np.zeros(4)).tolist() == [1, 3, NO_EDGE, NO_EDGE]
    assert edge_values(mdp, np.array([0.0, 2.0, 0.0, 0.0])).tolist() == pytest.approx([1.8, 1.0, 1.0, 1.8])


def test_a_policy_that_takes_someone_elses_edge_is_refused() -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (1, 0, 0.0)])
    with pytest.raises(ValueError, match="State 0 has the edges 0 to 0; the policy takes 1"):
        policy_value(mdp, np.array([1, 1]))
    with pytest.raises(ValueError, match="must have 2 entries"):
        policy_value(mdp, np.array([0]))


def test_boltzmann_shares_are_those_of_the_formula() -> None:
    # Q = 0, 0.25, -1000 in state 0 with temperature 0.25: shares 1, e and nothing; state 1 has one edge
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (0, 1, 0.25), (0, 1, -1000.0), (1, 1, 0.0)])
    share = boltzmann_policy(mdp, np.zeros(2), temperature=0.25)
    assert share == pytest.approx([1 / (1 + np.e), np.e / (1 + np.e), 0.0, 1.0], abs=1e-12)
    with pytest.raises(ValueError, match="must be positive"):
        boltzmann_policy(mdp, np.zeros(2), temperature=0.0)


@settings(max_examples=25, deadline=None)
@given(random_mdps(max_states=12), st.integers(0, 2**32 - 1))
def test_sampled_states_follow_the_discounted_occupancy(mdp: TabularMDP, seed: int) -> None:
    """Oracle: mu is proportional to rho (I - gamma P)^-1, with P's rows losing what ends the episode."""
    share = boltzmann_policy(mdp, policy_iteration(mdp).value, temperature=0.5)
    moves = np.zeros((mdp.state_count, mdp.state_count))
    np.add.at(moves, (mdp.source, mdp.target), np.where(mdp.discount > 0, share, 0.0))
    start = np.bincount(mdp.starts, weights=mdp.start_weights, minlength=mdp.state_count)
    visits = np.linalg.solve(np.eye(mdp.state_count) - mdp.gamma * moves.T, start)
    expected = visits / visits.sum()
    count = 20_000
    drawn = sample_occupancy(mdp, share, count, rng=np.random.default_rng(seed))
    assert len(drawn) == count
    # six standard deviations of a binomial share: once in 5e8 per state
    spread = 6 * np.sqrt(expected * (1 - expected) / count) + 1e-9
    assert np.all(np.abs(np.bincount(drawn, minlength=mdp.state_count) / count - expected) <= spread)


def test_walkers_that_start_in_dead_ends_are_sampled_where_they_stand() -> None:
    """Only one start in three has an action, and with gamma 0.999 most walkers end long before they are stopped."""
    mdp = mdp_from_edges(3, [(0, 1, 0.0)], gamma=0.999, starts=(0, 1, 2))
    drawn = sample_occupancy(mdp, np.ones(1), 30_000, rng=np.random.default_rng(0))
    # visits: state 0 once from its start, 1 from its own start and discounted after 0, 2 once
    expected = np.array([1.0, 1.999, 1.0]) / 3.999
    assert np.bincount(drawn) / 30_000 == pytest.approx(expected, abs=0.02)


def test_sampling_is_repeated_by_its_seed() -> None:
    mdp = mdp_from_edges(3, [(0, 1, 0.0), (0, 2, 1.0), (1, 0, 5.0), (2, 0, 0.0)])
    share = boltzmann_policy(mdp, np.zeros(3), temperature=1.0)
    first, second = (sample_occupancy(mdp, share, 1000, rng=np.random.default_rng(7)) for _ in range(2))
    assert np.array_equal(first, second)
