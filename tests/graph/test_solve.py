"""The solver against closed forms, another library's solver and value iteration; sampling against its distribution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantecon.markov import DiscreteDP
from scipy.sparse import csr_matrix

from bats.data.dataset import Dataset
from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import TabularMDP, from_dataset
from bats.graph.solve import (
    Solution,
    boltzmann_policy,
    boundary_values,
    edge_values,
    first_edges,
    logged_value,
    policy_iteration,
    policy_value,
    possible_values,
    sample_occupancy,
    start_value,
)
from tests.mdps import SEEDS, mdp_from_edges, random_mdps
from tests.oracles.value_iteration import greedy_policy, value_iteration

DEAD_END_VALUES = st.sampled_from([0.0, -3.5, 40.0])


def are_close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    return bool(np.all(np.abs(ours - theirs) <= 1e-9 * np.maximum(1, np.abs(theirs))))


def solve_with_quantecon(mdp: TabularMDP, dead_end_value: float) -> np.ndarray:
    """Dead ends and terminations are absorbing states: a dead end earns the interest of its value for ever."""
    ended = mdp.state_count  # one more state, for episodes that have terminated
    dead_ends = np.flatnonzero(mdp.out_degree == 0)
    target = np.where(mdp.discount == 0, ended, mdp.target)
    source = np.concatenate([mdp.source, dead_ends, [ended]])
    target = np.concatenate([target, dead_ends, [ended]])
    value = np.where(mdp.terminal[dead_ends], 0.0, dead_end_value)
    reward = np.concatenate([mdp.reward, value * (1 - mdp.gamma), [0.0]])
    order = np.argsort(source, kind="stable")
    action = np.arange(len(order)) - np.searchsorted(source[order], source[order])
    entries = (np.ones(len(order)), (np.arange(len(order)), target[order]))
    transitions = csr_matrix(entries, shape=(len(order), ended + 1))
    problem = DiscreteDP(reward[order], transitions, mdp.gamma, source[order], action)
    return problem.solve(method="policy_iteration", max_iter=10_000).v[:-1]


def check_solution(mdp: TabularMDP, dead_end_value: float) -> None:
    solution = policy_iteration(mdp, dead_end_value=dead_end_value)
    assert are_close(solution.value, solve_with_quantecon(mdp, dead_end_value))
    iterated, _ = value_iteration(mdp, tolerance=1e-10, dead_end_value=dead_end_value)
    assert are_close(solution.value, iterated)
    assert are_close(policy_value(mdp, solution.policy, dead_end_value=dead_end_value), solution.value)


@settings(max_examples=100, deadline=None)
@given(random_mdps(), DEAD_END_VALUES)
def test_values_equal_quantecon_and_value_iteration_and_those_of_the_policy_itself(
    mdp: TabularMDP, dead_end_value: float
) -> None:
    check_solution(mdp, dead_end_value)


@pytest.mark.slow
@settings(max_examples=800, deadline=None)
@given(random_mdps(max_states=60), DEAD_END_VALUES)
def test_values_equal_quantecon_and_value_iteration_on_many_mdps(mdp: TabularMDP, dead_end_value: float) -> None:
    check_solution(mdp, dead_end_value)


def test_an_mdp_whose_first_edges_are_optimal_is_solved_in_one_iteration() -> None:
    mdp = mdp_from_edges(3, [(0, 1, 0.0), (0, 2, 1.0), (1, 0, 5.0), (1, 1, 0.0), (2, 0, 0.0), (2, 2, 0.5)])
    solution = policy_iteration(mdp)
    assert solution.policy.tolist() == first_edges(mdp).tolist()
    assert solution.iterations == 1


@pytest.mark.parametrize("gamma", [0.9, 0.99, 0.9999])
@pytest.mark.parametrize("forwards", [True, False])
def test_a_ladder_of_choices_is_climbed_whatever_its_direction(gamma: float, forwards: bool) -> None:
    """Each rung may stay, for nothing, or continue; the last earns 1 for ever: rung i has gamma^i / (1 - gamma)."""
    rungs = 150
    order = list(range(rungs)) if forwards else list(range(rungs))[::-1]
    edges = [(order[i], order[i], 0.0) for i in range(rungs - 1)]
    edges += [(order[i], order[i + 1], 0.0) for i in range(rungs - 1)]
    edges += [(order[-1], order[-1], 0.0), (order[-1], order[-1], 1.0)]
    value = policy_iteration(mdp_from_edges(rungs, edges, gamma=gamma)).value
    expected = gamma ** np.arange(rungs - 1, -1, -1) / (1 - gamma)
    assert value[order] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("huge", [1e6, 1e12])
def test_large_values_in_one_part_do_not_hide_small_ones_in_another(huge: float) -> None:
    edges = [edge for k in range(1, 60) for edge in ((k, k, 0.0), (k, k - 1, 0.0))]
    edges += [(0, 0, 0.0), (0, 0, 1.0), (60, 60, huge), (60, 60, huge / 2)]
    value = policy_iteration(mdp_from_edges(62, edges, gamma=0.99), dead_end_value=-huge).value
    assert value[:60] == pytest.approx(0.99 ** np.arange(60) / 0.01, rel=1e-9)
    assert value[60:] == pytest.approx([100 * huge, -huge])


def test_values_that_are_not_finite_are_refused() -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (0, 0, 1.0)])
    for wrong in (np.nan, np.inf, -np.inf):
        with pytest.raises(SettingError, match="must be a finite number"):
            policy_iteration(mdp, dead_end_value=wrong)
        with pytest.raises(SettingError, match="state 1 is not"):
            boltzmann_policy(mdp, np.array([0.0, wrong]), temperature=1.0)


def test_a_self_loop_has_its_reward_over_1_minus_gamma() -> None:
    mdp = mdp_from_edges(1, [(0, 0, 1.0)], gamma=0.9)
    assert policy_iteration(mdp).value == pytest.approx([10.0], abs=1e-12)


def test_a_cycle_has_the_value_of_its_geometric_series() -> None:
    # once around: 1 + 0.5 * 2 + 0.25 * 4 = 3, discounted by 0.125: 3 / 0.875; then 4 + V(0) / 2 and 2 + V(2) / 2
    mdp = mdp_from_edges(3, [(0, 1, 1.0), (1, 2, 2.0), (2, 0, 4.0)], gamma=0.5)
    first = 3 / 0.875
    assert policy_iteration(mdp).value == pytest.approx([first, 2 + (4 + first / 2) / 2, 4 + first / 2], abs=1e-12)


def test_nothing_counts_after_a_terminating_edge() -> None:
    mdp = mdp_from_edges(2, [(0, 1, 3.0), (1, 1, 100.0)], ends=(0,))
    assert policy_iteration(mdp).value == pytest.approx([3.0, 1000.0])


def test_a_dead_end_has_the_value_that_is_given_and_a_terminal_state_has_0() -> None:
    mdp = mdp_from_edges(4, [(0, 1, 1.0), (2, 3, 1.0)], ends=(1,), gamma=0.9)
    assert policy_iteration(mdp, dead_end_value=-7.0).value == pytest.approx([1 - 6.3, -7.0, 1.0, 0.0])
    one_for_each = np.array([9.0, 50.0, 9.0, 9.0])
    assert policy_iteration(mdp, dead_end_value=one_for_each).value == pytest.approx([46.0, 50.0, 1.0, 0.0])
    assert boundary_values(mdp, 5.0).tolist() == [0.0, 5.0, 0.0, 0.0]


def test_a_dead_end_has_the_smallest_reward_for_ever_unless_a_value_is_given() -> None:
    # -1 / (1 - 0.9) = -10; the better way is not the one that stops first
    negative = mdp_from_edges(4, [(0, 1, -1.0), (0, 2, -0.5), (2, 3, -0.5)], gamma=0.9)
    assert policy_iteration(negative).value == pytest.approx([-0.5 + 0.9 * (-0.5 - 9), -10.0, -0.5 - 9, -10.0])
    # all rewards are 1, and nothing terminates: 1 / (1 - 0.9)
    assert policy_iteration(mdp_from_edges(2, [(0, 1, 1.0)], gamma=0.9)).value == pytest.approx([10.0, 10.0])
    # where something terminates, what follows may be nothing
    ends = mdp_from_edges(4, [(0, 1, 1.0), (2, 3, 1.0)], ends=(1,), gamma=0.9)
    assert policy_iteration(ends).value == pytest.approx([1.0, 0.0, 1.0, 0.0])
    assert possible_values(ends, (-2.0, 1.0)) == pytest.approx((-20.0, 10.0))


@settings(max_examples=50, deadline=None)
@given(random_mdps(), st.sampled_from([-100.0, -0.3, 7.0]))
def test_a_constant_that_is_added_to_all_rewards_changes_no_choice(mdp: TabularMDP, constant: float) -> None:
    """Where episodes never terminate: all values grow by what the constant is worth for ever."""
    endless = replace(mdp, discount=np.full(mdp.edge_count, mdp.gamma))
    shifted = replace(endless, reward=endless.reward + constant)
    one, other = policy_iteration(endless), policy_iteration(shifted)
    worth = constant / (1 - mdp.gamma)
    scale = max(1.0, abs(worth), float(np.abs(one.value).max()))
    assert np.abs(other.value - one.value - worth).max() <= 1e-9 * scale
    # each policy is as good as the other, in either MDP: they differ in ties at most
    assert np.abs(policy_value(endless, other.policy) - one.value).max() <= 1e-9 * scale


@settings(max_examples=50, deadline=None)
@given(random_mdps(), SEEDS)
def test_a_log_that_is_cut_promises_no_more(mdp: TabularMDP, seed: int) -> None:
    """Some edges lead to a state after which nothing is known, instead of going on."""
    cut = np.random.default_rng(seed).random(mdp.edge_count) < 0.3
    shorter = replace(
        mdp,
        states=np.append(mdp.states, [[-1.0]], axis=0),
        real_count=mdp.real_count + 1,
        first_edge=np.append(mdp.first_edge, mdp.first_edge[-1]),
        target=np.where(cut & (mdp.discount > 0), mdp.state_count, mdp.target).astype(mdp.target.dtype),
    )
    before, after = policy_iteration(mdp).value, policy_iteration(shorter).value[:-1]
    assert np.all(after <= before + 1e-9 * np.maximum(1.0, np.abs(before)))


def test_value_iteration_stays_within_its_tolerance_or_fails() -> None:
    mdp = mdp_from_edges(1, [(0, 0, 1.0)], gamma=0.9)
    for tolerance in (1e-1, 1e-4, 1e-8):
        value, sweeps = value_iteration(mdp, tolerance=tolerance)
        assert abs(value[0] - 10) <= tolerance
        assert sweeps > 10
    with pytest.raises(RuntimeError, match="after 5 sweeps"):
        value_iteration(mdp, tolerance=1e-8, max_sweeps=5)


def test_the_greedy_policy_takes_the_best_edge_and_the_first_of_equal_ones() -> None:
    mdp = mdp_from_edges(4, [(0, 1, 0.0), (0, 2, 1.0), (0, 3, 1.0), (1, 1, 0.0)])
    assert greedy_policy(mdp, np.zeros(4)).tolist() == [1, 3, NO_EDGE, NO_EDGE]
    assert edge_values(mdp, np.array([0.0, 2.0, 0.0, 0.0])).tolist() == pytest.approx([1.8, 1.0, 1.0, 1.8])


@settings(max_examples=50, deadline=None)
@given(random_mdps(), DEAD_END_VALUES)
def test_the_policy_is_greedy_for_its_own_value(mdp: TabularMDP, dead_end_value: float) -> None:
    solution = policy_iteration(mdp, dead_end_value=dead_end_value)
    value = edge_values(mdp, solution.value)
    acting = solution.policy != NO_EDGE
    best = value[greedy_policy(mdp, solution.value)[acting]]
    assert value[solution.policy[acting]] == pytest.approx(best, rel=1e-9, abs=1e-9)


def test_a_policy_that_takes_an_edge_of_another_state_is_refused() -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (1, 0, 0.0)])
    with pytest.raises(SettingError, match="State 0 has the edges 0 to 0, but the policy chooses edge 1"):
        policy_value(mdp, np.array([1, 1]))
    with pytest.raises(SettingError, match="must be an array of 2 integers"):
        policy_value(mdp, np.array([0]))


def test_the_start_value_is_weighted_and_the_logged_value_is_that_of_the_episodes_as_they_were() -> None:
    # 0 → 1 → 2 earns 1 and 2 and terminates; 0 → 3 earns 4 and is truncated
    states, after = np.array([[0.0], [1.0], [0.0]]), np.array([[1.0], [2.0], [3.0]])
    ends = {"terminations": [False, True, False], "timeouts": [False, False, True]}
    log = Dataset.from_arrays(states, np.arange(3.0)[:, None], [1.0, 2.0, 4.0], next_observations=after, **ends)
    log = log.with_starts([0, 2], weights=[3, 1])
    # returns 1 + 0.5 * 2 = 2 with weight 3/4, and 4 + 0.5 * 10 = 9 with weight 1/4
    assert logged_value(log, gamma=0.5, dead_end_value=10.0) == pytest.approx(0.75 * 2 + 0.25 * 9)
    mdp = from_dataset(log, gamma=0.5)
    assert start_value(mdp, policy_iteration(mdp, dead_end_value=10.0).value) == pytest.approx(9.0)


def test_boltzmann_probabilities_are_those_of_the_formula() -> None:
    # Q = 0, 0.25, -1000 in state 0 with temperature 0.25: proportional to 1, e and 0; state 1 has one edge
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (0, 1, 0.25), (0, 1, -1000.0), (1, 1, 0.0)])
    probability = boltzmann_policy(mdp, np.zeros(2), temperature=0.25)
    assert probability == pytest.approx([1 / (1 + np.e), np.e / (1 + np.e), 0.0, 1.0], abs=1e-12)
    with pytest.raises(SettingError, match="must be positive"):
        boltzmann_policy(mdp, np.zeros(2), temperature=0.0)


@settings(max_examples=15, deadline=None)
@given(random_mdps(max_states=12), SEEDS)
def test_sampled_states_follow_the_discounted_occupancy(mdp: TabularMDP, seed: int) -> None:
    """The exact occupancy is proportional to start (I - gamma P)^-1, where terminating edges are missing in P."""
    probability = boltzmann_policy(mdp, policy_iteration(mdp).value, temperature=0.5)
    transition = np.zeros((mdp.state_count, mdp.state_count))
    np.add.at(transition, (mdp.source, mdp.target), np.where(mdp.discount > 0, probability, 0.0))
    start = np.bincount(mdp.starts, weights=mdp.start_weights, minlength=mdp.state_count)
    visits = np.linalg.solve(np.eye(mdp.state_count) - mdp.gamma * transition.T, start)
    expected = visits / visits.sum()
    count = 20_000
    samples = sample_occupancy(mdp, probability, count, rng=np.random.default_rng(seed))
    assert len(samples) == count
    # six standard deviations of a binomial share: one failure in 5e8 per state
    spread = 6 * np.sqrt(expected * (1 - expected) / count) + 1e-9
    assert np.all(np.abs(np.bincount(samples, minlength=mdp.state_count) / count - expected) <= spread)


def test_rollouts_that_start_in_dead_ends_are_sampled_there() -> None:
    """Only one start in three has an action, and with gamma 0.999 most rollouts end long before they are stopped."""
    mdp = mdp_from_edges(3, [(0, 1, 0.0)], gamma=0.999, starts=(0, 1, 2))
    samples = sample_occupancy(mdp, np.ones(1), 5_000, rng=np.random.default_rng(0))
    # visits: state 0 once from its start, 1 from its own start and discounted after 0, 2 once
    expected = np.array([1.0, 1.999, 1.0]) / 3.999
    assert np.bincount(samples) / 5_000 == pytest.approx(expected, abs=0.03)


def test_the_same_seed_gives_the_same_samples() -> None:
    mdp = mdp_from_edges(3, [(0, 1, 0.0), (0, 2, 1.0), (1, 0, 5.0), (2, 0, 0.0)])
    probability = boltzmann_policy(mdp, np.zeros(3), temperature=1.0)
    first, second = (sample_occupancy(mdp, probability, 1000, rng=np.random.default_rng(7)) for _ in range(2))
    assert np.array_equal(first, second)


def test_a_solution_is_printed_in_one_line_without_its_numbers() -> None:
    states = 2000
    solution = policy_iteration(mdp_from_edges(states, [(state, 0, 0.0) for state in range(states)]))
    assert repr(solution) == (
        "Solution(mdp=TabularMDP(2,000 real and 0 imagined states, 2,000 logged and 0 stitched edges, 1 starts, "
        "gamma 0.9), value=float64[2000], policy=int64[2000], iterations=1)"
    )


def wandering_log(seed: int, *, rows: int = 60, states: int = 12, stored: bool = True) -> dict[str, np.ndarray]:
    """Random walks over a few states, so that many are visited again; episodes of 10 rows are truncated."""
    rng = np.random.default_rng(seed)
    visited = rng.integers(0, states, rows + 1).astype(float)[:, None]
    ends = np.arange(rows) % 10 == 9
    fields = {"observations": visited[:-1], "actions": rng.random((rows, 1)), "rewards": rng.normal(size=rows)}
    return fields | {"timeouts": ends} | ({"next_observations": visited[1:]} if stored else {})


def solved_wandering(fields: dict[str, np.ndarray], gamma: float = 0.9) -> Solution:
    return policy_iteration(from_dataset(Dataset.from_arrays(**fields, timeout_rule="trust"), gamma=gamma))


@given(seed=SEEDS, shift=st.floats(-50, 50))
@settings(deadline=None)
def test_shifting_all_rewards_changes_no_choice_where_episodes_never_terminate(seed: int, shift: float) -> None:
    fields = wandering_log(seed)
    plain, shifted = (solved_wandering(fields | {"rewards": fields["rewards"] + by}) for by in (0.0, shift))
    # dead ends have the smallest reward for ever, so they move with the others
    np.testing.assert_allclose(shifted.value, plain.value + shift / (1 - 0.9), rtol=1e-5, atol=1e-3)
    assert np.array_equal(shifted.policy, plain.policy)


@given(seed=SEEDS, cut=st.integers(1, 58), stored=st.booleans())
@settings(deadline=None)
def test_cutting_an_episode_in_two_raises_no_value(seed: int, cut: int, stored: bool) -> None:
    fields = wandering_log(seed, stored=stored)
    fields["rewards"][0] = -10.0  # the smallest reward is not lost with the row that is cut
    halves = fields | {"timeouts": fields["timeouts"] | (np.arange(60) == cut)}
    whole, parted = solved_wandering(fields), solved_wandering(halves)
    values = dict(zip(whole.mdp.states[:, 0].tolist(), whole.value.tolist(), strict=True))
    for state, value in zip(parted.mdp.states[:, 0].tolist(), parted.value.tolist(), strict=True):
        assert value <= values[state] + 1e-6
