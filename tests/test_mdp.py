"""What becomes of a log's rows, worked by hand; growing; saving and loading."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.data.dataset import Dataset
from bats.errors import DataError, OutputError, SettingError
from bats.graph.files import load_mdp, save_mdp, save_round
from bats.graph.mdp import LOGGED, NO_STITCH, Stitches, TabularMDP, add_stitches, amiss_in_mdp, from_dataset
from bats.graph.solve import carry_policy, policy_iteration
from tests.mdps import mdp_from_edges, random_mdps

ARRAYS = (
    "states",
    "first_edge",
    "target",
    "action",
    "reward",
    "discount",
    "stitch_round",
    "stitch",
    "planning_error",
    "starts",
)


def same(first: TabularMDP, second: TabularMDP) -> bool:
    return all(
        np.array_equal(getattr(first, name), getattr(second, name))
        and getattr(first, name).dtype == getattr(second, name).dtype
        for name in (*ARRAYS, "start_weights")
    ) and all(
        getattr(first, name) == getattr(second, name) for name in ("real_count", "gamma", "penalty", "action_count")
    )


def log(rows: list[tuple[float, float, float, float]], **fields: object) -> Dataset:
    """A log of (state, action, reward, next state) rows."""
    table = np.array(rows, dtype=np.float64)
    return Dataset.from_arrays(table[:, :1], table[:, 1:2], table[:, 2], next_observations=table[:, 3:4], **fields)


def edges_of(mdp: TabularMDP) -> list[tuple[float, float, float, float]]:
    """(state, action, reward, next state), as a log would have them."""
    columns = (mdp.states[mdp.source, 0], mdp.action[:, 0], mdp.reward, mdp.states[mdp.target, 0])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_equal_states_are_one_state_numbered_as_first_met() -> None:
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


def test_repeated_rows_are_one_edge_that_pays_their_mean_and_equal_rewards_exactly() -> None:
    mdp = from_dataset(log([(0, 1, 0.1, 1), (0, 1, 0.1, 1), (0, 1, 0.1, 1), (1, 1, 1.0, 2), (1, 1, 2.0, 2)]))
    assert edges_of(mdp) == [(0, 1, 0.1, 1), (1, 1, 1.5, 2)]


def test_several_actions_and_several_outcomes_stay_apart() -> None:
    mdp = from_dataset(log([(0, 1, 0, 1), (0, 2, 0, 1), (0, 1, 0, 5), (0, 1, 0, 0)]))
    assert edges_of(mdp) == [(0, 1, 0, 1), (0, 2, 0, 1), (0, 1, 0, 5), (0, 1, 0, 0)]


def test_an_ending_and_a_continuing_row_are_two_edges() -> None:
    mdp = from_dataset(log([(0, 1, 0, 1), (0, 1, 0, 1)], terminations=[True, False]), gamma=0.5)
    assert mdp.discount.tolist() == [0.0, 0.5]


def test_a_self_loop_is_an_edge_and_a_last_state_a_dead_end_unless_the_task_ended_there() -> None:
    rows = [(0.0, 0.0, 1.0, 0.0), (0.0, 1.0, 0.0, 4.0), (7.0, 0.0, 2.0, 8.0)]
    mdp = from_dataset(log(rows, terminations=[False, False, True]), gamma=0.9)
    assert mdp.out_degree.tolist() == [2, 0, 1, 0]
    assert mdp.terminal.tolist() == [False, False, False, True]
    assert policy_iteration(mdp, dead_end_value=50.0).value == pytest.approx([45.0, 50.0, 2.0, 0.0])


def test_starts_in_one_state_share_their_weight() -> None:
    data = log([(0, 0, 0, 1), (1, 0, 0, 0), (0, 0, 0, 1), (1, 1, 0, 2)])
    mdp = from_dataset(data.with_starts([0, 2, 3], weights=[1, 2, 3]))
    assert mdp.states[mdp.starts, 0].tolist() == [0, 1]
    assert mdp.start_weights.tolist() == [0.5, 0.5]


def test_discrete_actions_are_carried() -> None:
    data = Dataset.from_arrays(
        [[0.0], [1.0], [0.0]], [2, 0, 1], [0.0, 0.0, 0.0], next_observations=[[1.0], [0.0], [1.0]]
    )
    mdp = from_dataset(data)
    assert mdp.action.tolist() == [2, 1, 0]
    assert mdp.action.dtype == np.int32
    assert mdp.action_count == 3


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 200), st.integers(1, 6), st.sampled_from([np.float32, np.float64]))
def test_merging_equals_a_dictionary_of_rows(seed: int, rows: int, places: int, precision: type) -> None:
    """Two implementations: the hash table of the kernel and Python's own."""
    rng = np.random.default_rng(seed)
    grid = rng.normal(size=(places, 3)).astype(precision)
    here, there = rng.integers(0, places, size=(2, rows))
    moves = rng.integers(0, 3, size=rows).astype(precision)
    ended = rng.random(rows) < 0.2
    data = Dataset.from_arrays(
        grid[here], moves[:, None], rng.normal(size=rows), next_observations=grid[there], terminations=ended
    )
    mdp = from_dataset(data)
    assert {tuple(state) for state in mdp.states.tolist()} == {tuple(grid[i].tolist()) for i in (*here, *there)}
    assert len(set(map(tuple, mdp.states.tolist()))) == mdp.state_count
    pooled: dict[tuple[object, ...], list[float]] = {}
    for row in range(rows):
        key = (*grid[here[row]].tolist(), moves[row], *grid[there[row]].tolist(), ended[row])
        pooled.setdefault(key, []).append(float(data.rewards[row]))
    held = {
        (*mdp.states[source].tolist(), action[0], *mdp.states[target].tolist(), discount == 0): reward
        for source, action, target, discount, reward in zip(
            mdp.source, mdp.action, mdp.target, mdp.discount, mdp.reward, strict=True
        )
    }
    assert held == pytest.approx({key: np.mean(rewards) for key, rewards in pooled.items()})
    assert np.all(np.diff(mdp.source) >= 0)


def stitches(mdp: TabularMDP, rng: np.random.Generator, *, count: int = 5, longest: int = 3) -> Stitches:
    """Arbitrary stitches between the states of an MDP."""
    width = mdp.states.shape[1]
    return Stitches.judged_by_one(
        source=rng.integers(0, mdp.real_count, size=count),
        target=rng.integers(0, mdp.real_count, size=count),
        length=rng.integers(1, longest + 1, size=count),
        action=rng.normal(size=(count, longest, 1)),
        state=rng.normal(size=(count, longest - 1, width)),
        reward=rng.normal(size=(count, longest)),
        planning_error=rng.random(count),
    )


def test_a_stitch_of_three_actions_adds_two_states_and_three_edges_and_is_charged_on_its_last() -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.0)], gamma=0.9)
    joined = Stitches.judged_by_one(
        source=np.array([1]),
        target=np.array([0]),
        length=np.array([3]),
        action=np.array([[[0.1], [0.2], [0.3], [9.9]]]),
        state=np.array([[[10.0], [11.0], [99.0]]]),
        reward=np.array([[1.0, 2.0, 4.0, 99.0]]),
        planning_error=np.array([0.25]),
    )
    grown = add_stitches(mdp, joined, stitch_round=1)
    assert grown.states[:, 0].tolist() == [0, 1, 10, 11]
    assert (grown.real_count, grown.target.tolist()) == (2, [1, 2, 3, 0])
    assert edges_of(grown) == [(0, 0, 0, 1), (1, 0.1, 1, 10), (10, 0.2, 2, 11), (11, 0.3, 4, 0)]
    assert grown.planning_error.tolist() == [0, 0, 0, 0.25]
    assert grown.stitch_round.tolist() == [LOGGED, 1, 1, 1]
    assert grown.stitch.tolist() == [NO_STITCH, 0, 0, 0]
    assert add_stitches(grown, joined, stitch_round=2).stitch.max() == 1
    # the last edge pays 4 - gamma * c * d = 4 - 0.9 * 2 * 0.25, and charging again does not charge twice
    once = replace(grown, penalty=2.0)
    assert once.charged_reward == pytest.approx([0, 1, 2, 3.55])
    assert replace(once, penalty=2.0).charged_reward == pytest.approx([0, 1, 2, 3.55])


def test_a_stitch_into_a_terminal_state_ends_the_episode_and_still_pays_its_penalty() -> None:
    mdp = replace(mdp_from_edges(3, [(0, 1, 5.0), (2, 2, 0.0)], ends=(0,), gamma=0.9), penalty=10.0)
    joined = Stitches.judged_by_one(
        source=np.array([2]),
        target=np.array([1]),
        length=np.array([1]),
        action=np.array([[[0.5]]]),
        state=np.zeros((1, 0, 1)),
        reward=np.array([[5.0]]),
        planning_error=np.array([0.1], dtype=np.float32),
    )
    grown = add_stitches(mdp, joined, stitch_round=1)
    assert grown.discount.tolist() == [0.0, 0.9, 0.0]
    assert policy_iteration(grown).value == pytest.approx([5.0, 0.0, 4.1])


def test_a_stitch_to_where_the_log_only_ends_is_worth_what_the_logs_own_edge_is() -> None:
    # state 1 ends an episode whenever it is entered, though another episode begins there and pays 1 for ever
    mdp = mdp_from_edges(4, [(0, 1, 5.0), (1, 2, 0.0), (2, 2, 1.0), (3, 3, 0.0)], ends=(0,))
    joined = replace(
        stitches(mdp, np.random.default_rng(0), count=1, longest=1),
        source=np.array([3]),
        target=np.array([1]),
        reward=np.array([[5.0]]),
        planning_error=np.zeros(1),
    )
    value = policy_iteration(add_stitches(mdp, joined, stitch_round=1)).value
    assert value[[0, 3]] == pytest.approx([5.0, 5.0])
    # once the log also passes through it, a stitch may pass through too: 5 + 0.9 * V(1), V(1) = 0.9 * 10
    passed = mdp_from_edges(4, [(0, 1, 5.0), (1, 2, 0.0), (2, 2, 1.0), (3, 3, 0.0), (2, 1, 0.0)], ends=(0,))
    assert policy_iteration(add_stitches(passed, joined, stitch_round=1)).value[3] == pytest.approx(5 + 0.9 * 9)


WRONG_STITCHES: list[tuple[dict[str, np.ndarray], str]] = [
    ({"source": np.array([9])}, "sources that exist"),
    ({"target": np.array([-1])}, "real targets that exist"),
    ({"length": np.array([3])}, "lengths from 1 to 2"),
    ({"length": np.array([0])}, "lengths from 1 to 2"),
    ({"reward": np.array([[np.nan, 0.0]])}, "finite rewards"),
    ({"planning_error": np.array([-1.0])}, "finite rewards, states and errors"),
    ({"action": np.zeros((1, 2, 3))}, "one entry of each kind"),
]


@pytest.mark.parametrize(("wrong", "told"), WRONG_STITCHES, ids=[next(iter(wrong)) for wrong, _ in WRONG_STITCHES])
def test_stitches_that_lead_nowhere_are_refused(wrong: dict[str, np.ndarray], told: str) -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (1, 0, 0.0)])
    fine = replace(stitches(mdp, np.random.default_rng(0), count=1, longest=2), length=np.array([2]))
    add_stitches(mdp, fine, stitch_round=1)
    with pytest.raises(SettingError, match=told):
        add_stitches(mdp, replace(fine, **wrong), stitch_round=1)


WRONG_MDPS: list[tuple[dict[str, object], str]] = [
    ({"target": np.array([1, 7], dtype=np.int32)}, "targets that exist"),
    ({"first_edge": np.array([0, 99, 2], dtype=np.int64)}, "edges sorted by source"),
    ({"first_edge": np.array([0, 99, 2], dtype=np.uint64)}, "one signed offset a state"),
    ({"first_edge": np.array([0, 1], dtype=np.int64)}, "one signed offset a state"),
    ({"real_count": 99}, "no more real states than states"),
    ({"discount": np.array([0.9, 1.5])}, "discounts from 0 to gamma"),
    ({"reward": np.array([0.0, np.inf])}, "finite rewards"),
    ({"starts": np.array([5])}, "starts that exist"),
    ({"start_weights": np.array([-1.0])}, "a weight from 0"),
    ({"gamma": 1.0}, "gamma strictly between 0 and 1"),
]


@pytest.mark.parametrize(("wrong", "told"), WRONG_MDPS, ids=[told for _, told in WRONG_MDPS])
def test_what_would_mislead_a_kernel_is_seen(wrong: dict[str, object], told: str) -> None:
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (1, 0, 0.0)])
    assert amiss_in_mdp(mdp) is None
    bad = object.__new__(TabularMDP)  # past the tests' own shape checks, as a user's program would be
    vars(bad).update({field.name: getattr(mdp, field.name) for field in fields(TabularMDP)} | wrong)
    assert told in (amiss_in_mdp(bad) or "")


def test_a_file_that_would_mislead_a_kernel_is_refused(tmp_path: Path) -> None:
    """Written with a right checksum, as somebody who means harm could."""
    mdp = mdp_from_edges(2, [(0, 1, 0.0), (1, 0, 0.0)])
    save_mdp(replace(mdp, target=np.array([1, 7], dtype=np.int32)), tmp_path)
    with pytest.raises(DataError, match="expected targets that exist"):
        load_mdp(tmp_path)


@settings(max_examples=150, deadline=None)
@given(random_mdps(), st.integers(0, 2**32 - 1))
def test_stitches_never_lower_a_value_but_where_a_dead_end_gets_its_first_action(mdp: TabularMDP, seed: int) -> None:
    grown = add_stitches(mdp, stitches(mdp, np.random.default_rng(seed)), stitch_round=1)
    gave_a_first_action = np.any((mdp.out_degree == 0) & (grown.out_degree[: mdp.state_count] > 0))
    before, after = policy_iteration(mdp).value, policy_iteration(grown).value[: mdp.state_count]
    assert gave_a_first_action or np.all(after >= before - 1e-9 * np.maximum(1, np.abs(before)))
    assert np.all(grown.stitch_round[grown.source >= mdp.state_count] == 1)
    assert np.count_nonzero(grown.stitch_round == LOGGED) == mdp.edge_count


@settings(max_examples=100, deadline=None)
@given(random_mdps(), st.integers(0, 2**32 - 1))
def test_a_policy_carries_over_to_the_grown_mdp(mdp: TabularMDP, seed: int) -> None:
    grown = add_stitches(mdp, stitches(mdp, np.random.default_rng(seed)), stitch_round=1)
    solution = policy_iteration(mdp)
    carried = carry_policy(solution.policy, mdp, grown)
    taken = np.flatnonzero(solution.policy >= 0)
    assert np.array_equal(grown.action[carried[taken]], mdp.action[solution.policy[taken]])
    assert np.array_equal(grown.target[carried[taken]], mdp.target[solution.policy[taken]])
    warm, cold = policy_iteration(grown, policy=carried), policy_iteration(grown)
    assert warm.value == pytest.approx(cold.value, rel=1e-9, abs=1e-9)


def saved_rounds(folder: Path, *, seed: int = 0, rounds: int = 3) -> TabularMDP:
    """An MDP grown by some rounds, saved as it grew."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(300, 2)).astype(np.float32)
    mdp = from_dataset(Dataset.from_arrays(table, rng.normal(size=(300, 1)), rng.normal(size=300)), gamma=0.95)
    save_mdp(mdp, folder)
    for stitch_round in range(1, rounds + 1):
        new = stitches(mdp, rng)
        save_round(new, folder, stitch_round=stitch_round)
        mdp = add_stitches(mdp, new, stitch_round=stitch_round)
    return mdp


def test_a_base_and_its_rounds_load_to_the_same_mdp(tmp_path: Path) -> None:
    mdp = saved_rounds(tmp_path / "mdp")
    assert same(load_mdp(tmp_path / "mdp"), mdp)
    assert sorted(path.name for path in (tmp_path / "mdp").iterdir()) == [
        "base.safetensors",
        "round-0001.safetensors",
        "round-0002.safetensors",
        "round-0003.safetensors",
    ]


def test_a_round_costs_what_it_added_and_not_the_log_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(50_000, 4)).astype(np.float32)
    mdp = from_dataset(Dataset.from_arrays(table, rng.normal(size=(50_000, 2)), rng.normal(size=50_000)))
    save_mdp(mdp, tmp_path)
    few = stitches(from_dataset(log([(0, 0, 0, 1), (1, 0, 0, 0)])), rng, count=20)
    widened = replace(few, state=np.zeros((20, 2, 4)), action=np.zeros((20, 3, 2)))
    for stitch_round in range(1, 21):
        save_round(widened, tmp_path, stitch_round=stitch_round)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    base = sizes.pop("base.safetensors")
    assert len(sizes) == 20
    assert sum(sizes.values()) < 0.1 * base


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    mdp = saved_rounds(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(OutputError, match="exists already"):
        save_mdp(mdp, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_any_damaged_byte_is_noticed(tmp_path: Path) -> None:
    saved_rounds(tmp_path)
    rng = np.random.default_rng(0)
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for place in rng.integers(0, len(whole), size=60):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << rng.integers(0, 8)
            path.write_bytes(damaged)
            with pytest.raises(DataError, match=path.name):
                load_mdp(tmp_path)
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DataError, match=path.name):
            load_mdp(tmp_path)
        path.write_bytes(whole)
    load_mdp(tmp_path)


def test_missing_and_foreign_files_are_told(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"base\.safetensors: expected a file saved by this package, found no such file"
    ):
        load_mdp(tmp_path)
    saved_rounds(tmp_path / "a", seed=1)
    saved_rounds(tmp_path / "b", seed=2)
    (tmp_path / "a" / "round-0002.safetensors").replace(tmp_path / "kept")
    with pytest.raises(DataError, match=r"expected round 2 next, found round-0003"):
        load_mdp(tmp_path / "a")
    (tmp_path / "b" / "round-0002.safetensors").replace(tmp_path / "a" / "round-0002.safetensors")
    with pytest.raises(DataError, match="one of another MDP"):
        load_mdp(tmp_path / "a")


def test_gamma_must_discount() -> None:
    with pytest.raises(ValueError, match="strictly between 0 and 1; got 1"):
        from_dataset(log([(0, 0, 0, 1), (1, 0, 0, 0)]), gamma=1.0)
