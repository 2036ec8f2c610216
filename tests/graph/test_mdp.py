"""How a log becomes a graph, worked by hand and against a dictionary; how stitches extend it; what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.data.dataset import Dataset
from bats.errors import SettingError
from bats.graph.mdp import LOGGED, NO_STITCH, TabularMDP, add_stitches, from_dataset, mdp_defect
from bats.graph.relabel import prune
from bats.graph.solve import policy_iteration
from tests.mdps import SEEDS, mdp_from_edges, random_mdps, random_stitches, stitches_between


def log(rows: list[tuple[float, float, float, float]], **fields: object) -> Dataset:
    """A log of (state, action, reward, next state) rows."""
    table = np.array(rows, dtype=np.float64)
    return Dataset.from_arrays(table[:, :1], table[:, 1:2], table[:, 2], next_observations=table[:, 3:4], **fields)


def edges_of(mdp: TabularMDP) -> list[tuple[float, float, float, float]]:
    """(state, action, reward, next state), as in the rows of a log."""
    columns = (mdp.states[mdp.source, 0], mdp.action[:, 0], mdp.reward, mdp.states[mdp.target, 0])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_equal_states_are_one_state_numbered_by_first_appearance() -> None:
    mdp = from_dataset(log([(5, 0, 1, 7), (7, 0, 2, 3), (3, 0, 3, 5), (5, 1, 4, 9)]), gamma=0.9)
    assert mdp.states[:, 0].tolist() == [5, 7, 3, 9]
    assert edges_of(mdp) == [(5, 0, 1, 7), (5, 1, 4, 9), (7, 0, 2, 3), (3, 0, 3, 5)]
    assert mdp.first_edge.tolist() == [0, 2, 3, 4, 4]
    assert mdp.discount.tolist() == [0.9] * 4
    assert mdp.stitch_round.tolist() == [LOGGED] * 4
    assert mdp.real_count == 4


def test_negative_zero_is_the_same_state_and_the_same_action() -> None:
    mdp = from_dataset(log([(0.0, -0.0, 1, 2), (2, 1, 0, -0.0), (-0.0, 0.0, 1, 2)]))
    assert mdp.state_count == 2
    assert mdp.edge_count == 2


def test_repeated_rows_are_one_edge_with_their_mean_reward_and_equal_rewards_stay_exact() -> None:
    mdp = from_dataset(log([(0, 1, 0.1, 1), (0, 1, 0.1, 1), (0, 1, 0.1, 1), (1, 1, 1.0, 2), (1, 1, 2.0, 2)]))
    assert edges_of(mdp) == [(0, 1, 0.1, 1), (1, 1, 1.5, 2)]


def test_different_actions_and_different_outcomes_are_different_edges() -> None:
    mdp = from_dataset(log([(0, 1, 0, 1), (0, 2, 0, 1), (0, 1, 0, 5), (0, 1, 0, 0)]))
    assert edges_of(mdp) == [(0, 1, 0, 1), (0, 2, 0, 1), (0, 1, 0, 5), (0, 1, 0, 0)]


def test_a_terminating_and_a_continuing_row_are_two_edges() -> None:
    mdp = from_dataset(log([(0, 1, 0, 1), (0, 1, 0, 1)], terminations=[True, False]), gamma=0.5)
    assert mdp.discount.tolist() == [0.0, 0.5]


def test_a_self_loop_is_an_edge_and_a_last_state_is_a_dead_end_unless_the_log_terminates_there() -> None:
    rows = [(0.0, 0.0, 1.0, 0.0), (0.0, 1.0, 0.0, 4.0), (7.0, 0.0, 2.0, 8.0)]
    mdp = from_dataset(log(rows, terminations=[False, False, True]), gamma=0.9)
    assert mdp.out_degree.tolist() == [2, 0, 1, 0]
    assert mdp.terminal.tolist() == [False, False, False, True]
    assert policy_iteration(mdp, dead_end_value=50.0).value == pytest.approx([45.0, 50.0, 2.0, 0.0])


def test_starts_in_the_same_state_add_their_weights() -> None:
    data = log([(0, 0, 0, 1), (1, 0, 0, 0), (0, 0, 0, 1), (1, 1, 0, 2)])
    mdp = from_dataset(data.with_starts([0, 2, 3], weights=[1, 2, 3]))
    assert mdp.states[mdp.starts, 0].tolist() == [0, 1]
    assert mdp.start_weights.tolist() == [0.5, 0.5]


def test_discrete_actions_keep_their_type_and_count() -> None:
    data = Dataset.from_arrays(
        [[0.0], [1.0], [0.0]], [2, 0, 1], [0.0, 0.0, 0.0], next_observations=[[1.0], [0.0], [1.0]]
    )
    mdp = from_dataset(data)
    assert mdp.action.tolist() == [2, 1, 0]
    assert mdp.action.dtype == np.int32
    assert mdp.action_count == 3


def test_gamma_must_lie_strictly_between_0_and_1() -> None:
    with pytest.raises(SettingError, match="strictly between 0 and 1; got 1"):
        from_dataset(log([(0, 0, 0, 1), (1, 0, 0, 0)]), gamma=1.0)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(2, 200), st.integers(1, 6), st.sampled_from([np.float32, np.float64]))
def test_merged_states_and_edges_equal_those_of_a_dictionary(
    seed: int, rows: int, states: int, precision: type
) -> None:
    """Two implementations: the compiled hash table and Python's own."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(states, 3)).astype(precision)
    source, target = rng.integers(0, states, size=(2, rows))
    action = rng.integers(0, 3, size=rows).astype(precision)
    terminates = rng.random(rows) < 0.2
    data = Dataset.from_arrays(
        points[source],
        action[:, None],
        rng.normal(size=rows),
        next_observations=points[target],
        terminations=terminates,
    )
    mdp = from_dataset(data)
    visited = {tuple(points[state].tolist()) for state in (*source, *target)}
    assert set(map(tuple, mdp.states.tolist())) == visited
    assert mdp.state_count == len(visited)
    rewards: dict[tuple[object, ...], list[float]] = {}
    for row in range(rows):
        key = (*points[source[row]].tolist(), action[row], *points[target[row]].tolist(), terminates[row])
        rewards.setdefault(key, []).append(float(data.rewards[row]))
    edges = {
        (*mdp.states[edge_source].tolist(), edge_action[0], *mdp.states[edge_target].tolist(), discount == 0): reward
        for edge_source, edge_action, edge_target, discount, reward in zip(
            mdp.source, mdp.action, mdp.target, mdp.discount, mdp.reward, strict=True
        )
    }
    assert edges == pytest.approx({key: np.mean(several) for key, several in rewards.items()})
    assert np.all(np.diff(mdp.source) >= 0)


def test_a_stitch_of_three_actions_adds_two_states_and_three_edges_and_is_penalized_on_its_last() -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.0)], gamma=0.9)
    stitch = stitches_between(
        [1],
        [0],
        length=[3],
        action=np.array([[[0.1], [0.2], [0.3], [9.9]]]),
        state=np.array([[[10.0], [11.0], [99.0]]]),
        reward=[[1.0, 2.0, 4.0, 99.0]],
        planning_error=[0.25],
    )
    grown = add_stitches(mdp, stitch, stitch_round=1)
    assert grown.states[:, 0].tolist() == [0, 1, 10, 11]
    assert (grown.real_count, grown.target.tolist()) == (2, [1, 2, 3, 0])
    assert edges_of(grown) == [(0, 0, 0, 1), (1, 0.1, 1, 10), (10, 0.2, 2, 11), (11, 0.3, 4, 0)]
    assert grown.planning_error.tolist() == [0, 0, 0, 0.25]
    assert grown.stitch_round.tolist() == [LOGGED, 1, 1, 1]
    assert grown.stitch.tolist() == [NO_STITCH, 0, 0, 0]
    # the last edge has 4 - gamma * c * d = 4 - 0.9 * 2 * 0.25, and applying the penalty again does not apply it twice
    once = replace(grown, penalty=2.0)
    assert once.penalized_reward == pytest.approx([0, 1, 2, 3.55])
    assert replace(once, penalty=2.0).penalized_reward == pytest.approx([0, 1, 2, 3.55])


def test_stitches_are_counted_over_all_rounds_and_know_their_last_edge_and_length() -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.0)])
    pair = stitches_between([1, 0], [0, 0], length=[3, 1], reward=[[0.0] * 3] * 2)
    grown = add_stitches(add_stitches(mdp, pair, stitch_round=1), pair, stitch_round=2)
    assert grown.stitch_count == 4
    assert grown.stitch_length.tolist() == [3, 1, 3, 1]
    assert grown.stitch[grown.last_edge].tolist() == [0, 1, 2, 3]
    assert grown.target[grown.last_edge].tolist() == [0, 0, 0, 0]
    pruned = prune(grown, np.array([True, False, False, True]))
    assert pruned.stitch_length.tolist() == [3, 0, 0, 1]
    assert (grown.kept_stitches, pruned.kept_stitches) == (4, 2)
    assert (pruned.last_edge < 0).tolist() == [False, True, True, False]


def test_a_stitch_into_a_terminal_state_terminates_and_still_has_its_penalty() -> None:
    mdp = replace(mdp_from_edges(3, [(0, 1, 5.0), (2, 2, 0.0)], ends=(0,), gamma=0.9), penalty=10.0)
    grown = add_stitches(mdp, stitches_between([2], [1], reward=[[5.0]], planning_error=[0.1]), stitch_round=1)
    assert grown.discount.tolist() == [0.0, 0.9, 0.0]
    assert policy_iteration(grown).value == pytest.approx([5.0, 0.0, 4.1])


def test_a_stitch_into_a_state_that_always_terminates_is_worth_the_same_as_the_logged_edge() -> None:
    # state 1 terminates an episode whenever it is entered, though another episode begins there and earns 1 for ever
    mdp = mdp_from_edges(4, [(0, 1, 5.0), (1, 2, 0.0), (2, 2, 1.0), (3, 3, 0.0)], ends=(0,))
    stitch = stitches_between([3], [1], reward=[[5.0]])
    value = policy_iteration(add_stitches(mdp, stitch, stitch_round=1)).value
    assert value[[0, 3]] == pytest.approx([5.0, 5.0])
    # once the log also passes through it, a stitch may pass through too: 5 + 0.9 * V(1), V(1) = 0.9 * 10
    passed = mdp_from_edges(4, [(0, 1, 5.0), (1, 2, 0.0), (2, 2, 1.0), (3, 3, 0.0), (2, 1, 0.0)], ends=(0,))
    assert policy_iteration(add_stitches(passed, stitch, stitch_round=1)).value[3] == pytest.approx(5 + 0.9 * 9)


@settings(max_examples=60, deadline=None)
@given(random_mdps(), SEEDS, st.sampled_from([0.0, 1.0]))
def test_adding_stitches_never_lowers_a_value_except_where_a_dead_end_gets_its_first_action(
    mdp: TabularMDP, seed: int, penalty: float
) -> None:
    stitches = random_stitches(mdp, np.random.default_rng(seed))
    grown = add_stitches(replace(mdp, penalty=penalty), stitches, stitch_round=1)
    first_action = np.any((mdp.out_degree == 0) & (grown.out_degree[: mdp.state_count] > 0))
    before, after = policy_iteration(mdp).value, policy_iteration(grown).value[: mdp.state_count]
    assert first_action or np.all(after >= before - 1e-9 * np.maximum(1, np.abs(before)))
    assert np.all(grown.stitch_round[grown.source >= mdp.state_count] == 1)
    assert np.count_nonzero(grown.stitch_round == LOGGED) == mdp.edge_count


@settings(max_examples=30, deadline=None)
@given(random_mdps(), SEEDS)
def test_the_edges_that_a_state_had_keep_their_order_and_come_first(mdp: TabularMDP, seed: int) -> None:
    grown = add_stitches(mdp, random_stitches(mdp, np.random.default_rng(seed)), stitch_round=1)
    for state in range(mdp.state_count):
        first, degree = grown.first_edge[state], mdp.out_degree[state]
        before = slice(mdp.first_edge[state], mdp.first_edge[state + 1])
        assert np.array_equal(grown.target[first : first + degree], mdp.target[before])
        assert np.array_equal(grown.action[first : first + degree], mdp.action[before])


STITCH_DEFECTS: list[tuple[dict[str, np.ndarray], str]] = [
    ({"source": np.array([9])}, "every source must be an existing state"),
    ({"target": np.array([-1])}, "every target must be an existing real state"),
    ({"length": np.array([3])}, "lengths must be between 1 and 2"),
    ({"length": np.array([0])}, "lengths must be between 1 and 2"),
    ({"reward": np.array([[np.nan, 0.0]])}, "rewards, states and errors must be finite"),
    ({"planning_error": np.array([-1.0])}, "rewards, states and errors must be finite"),
    ({"planning_error": np.array([1e39])}, "rewards, states and errors must be finite"),  # in single precision
    ({"reward": np.array([[0.0, 1e302]])}, "values must not exceed"),
    ({"length": np.array([-128], dtype=np.int8)}, "lengths must be between 1 and 2"),
    ({"action": np.array([[[0.0], [np.nan]]])}, "every action must be finite"),
    ({"action": np.zeros((1, 2, 3))}, "one entry per stitch and step"),
]


@pytest.mark.parametrize(
    ("change", "message"),
    STITCH_DEFECTS,
    ids=[f"{next(iter(change))}-{i}" for i, (change, _) in enumerate(STITCH_DEFECTS)],
)
def test_defective_stitches_are_refused(change: dict[str, np.ndarray], message: str) -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (1, 0, 0.0)])
    stitches = stitches_between([0], [1], reward=[[0.0, 0.0]])
    add_stitches(mdp, stitches, stitch_round=1)
    with pytest.raises(SettingError, match=message):
        add_stitches(mdp, replace(stitches, **change), stitch_round=1)


MDP_DEFECTS: list[tuple[dict[str, object], str]] = [
    ({"target": np.array([1, 7], dtype=np.int32)}, "every edge must lead to an existing state"),
    ({"target": np.array([1, 0], dtype=np.int8)}, "`target` and `stitch` must have at least 32 bits"),
    ({"stitch": np.array([NO_STITCH, NO_STITCH], dtype=np.int16)}, "must have at least 32 bits"),
    ({"first_edge": np.array([0, 99, 99, 2], dtype=np.int64)}, "edges must be sorted by source"),
    # -100 - 100 is -200, which is 56 in 8 bits
    ({"first_edge": np.array([0, 100, -100, 2], dtype=np.int8)}, "edges must be sorted by source"),
    ({"states": np.zeros((3, 0))}, "a state must have at least one number"),
    ({"real_count": 99}, "there cannot be more real states than states"),
    ({"real_count": 0}, "starts must be existing real states"),
    ({"discount": np.array([0.9, 1.5])}, "discounts must be between 0 and gamma"),
    ({"discount": np.array([0.9, 0.9], dtype=np.float32)}, "discounts must be"),
    ({"starts": np.array([5])}, "starts must be existing real states"),
    ({"starts": np.zeros(0, dtype=int), "start_weights": np.zeros(0)}, "starts must be existing real states"),
    ({"start_weights": np.array([-1.0])}, "a non-negative weight"),
    ({"start_weights": np.array([0.5])}, "these must sum to 1"),
    ({"gamma": 1.0}, "gamma must be strictly between 0 and 1"),
    ({"penalty": -1.0}, "the penalty must not be negative"),
    ({"action_count": -1}, "`action_count` must be positive"),
    ({"action_count": 0}, "`action_count` must be positive"),
    ({"action_count": 2}, "one of `action_count` discrete ones"),  # the actions are continuous
    ({"action_count": 2, "action": np.array([0, 2])}, "one of `action_count` discrete ones"),
    ({"action": np.array([0, 1])}, "every action must be finite"),
    ({"stitch": np.array([NO_STITCH, 0], dtype=np.int32)}, "logged edges must belong to no stitch"),
    ({"stitch_round": np.array([0, 1], dtype=np.int16)}, "all others to an existing one"),
    ({"stitch_count": 10**12}, "stitches per state and edge"),
    ({"stitch_count": -1}, "stitches per state and edge"),
    ({"planning_error": np.array([0.0, -1.0], dtype=np.float32)}, "planning errors must not be negative"),
    ({"penalty": 1e38}, "nor penalties 1e+37"),
    ({"penalty": 1e20, "planning_error": np.array([0.0, 1e20], np.float32)}, "nor penalties 1e+37"),
    ({"reward": np.array([0.0, 1e308])}, "values must not exceed 1e+300"),
]


@pytest.mark.parametrize(
    ("change", "message"), MDP_DEFECTS, ids=[f"{next(iter(change))}-{i}" for i, (change, _) in enumerate(MDP_DEFECTS)]
)
def test_arrays_that_would_mislead_a_kernel_are_found(change: dict[str, object], message: str) -> None:
    mdp = mdp_from_edges(3, [(0, 1, 0.0), (1, 0, 0.0)])
    assert mdp_defect(mdp) is None
    assert message in (mdp_defect(replace(mdp, **change)) or "")
