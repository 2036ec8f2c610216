"""Which rollouts are cloned and with what weight, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bats.config import RolloutConfig
from bats.data.dataset import Dataset
from bats.errors import DataError, SettingError
from bats.graph.mdp import TabularMDP, add_stitches
from bats.graph.solve import Solution, first_edges, policy_iteration, policy_value
from bats.metric.scaled import ScaledMetric
from bats.policy import demonstrations
from bats.policy.demonstrations import (
    Demonstrations,
    Selection,
    best_within,
    demonstrate,
    logged_rows,
    natural_threshold,
    shares_of_best,
)
from tests.mdps import mdp_from_edges, stitches_between

METRIC = ScaledMetric(np.ones(1, np.float32))
TWO_REGIONS = [(0, 4, 1.0), (1, 4, 10.0), (2, 6, 3.0), (3, 6, 2.9), (4, 5, 90.0), (5, 5, 0.0), (6, 6, 0.0)]
"""starts 0 and 1 lead through 4, where much is earned, starts 2 and 3 do not; 5 and 6 lead to themselves only"""


def first_edge_solution(mdp: TabularMDP) -> Solution:
    """The policy that takes every state's first edge, with its value."""
    policy = first_edges(mdp)
    return Solution(mdp, policy_value(mdp, policy), policy, 1)


def demonstrated(solution: Solution, config: RolloutConfig, seed: int = 0) -> tuple[Demonstrations, Selection]:
    return demonstrate(solution, METRIC, config, seed=seed)


def weight_by_state(rows: Demonstrations) -> dict[float, float]:
    return dict(zip(rows.states[:, 0].tolist(), rows.weights.tolist(), strict=True))


def test_rollouts_are_compared_with_those_that_start_nearby(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstrations, "PEERS", 2)
    mdp = mdp_from_edges(7, TWO_REGIONS, starts=(0, 1, 2, 3))
    solution = first_edge_solution(replace(mdp, states=np.array([0.0, 1, 100, 101, 50, 60, 70])[:, None]))
    rows, selection = demonstrated(solution, RolloutConfig(steps=5, min_share=0.95))
    assert selection.returns.tolist() == [91, 100, 3, 2.9]
    assert selection.share == pytest.approx([0.91, 1.0, 1.0, 2.9 / 3])
    assert selection.kept.tolist() == [False, True, True, True]  # start 3 returns little, but so does its neighbour
    assert sorted(rows.states[:, 0]) == [1, 50, 60, 70, 100, 101]


def test_rollouts_can_be_chosen_by_their_return_wherever_they_start() -> None:
    solution = first_edge_solution(mdp_from_edges(7, TWO_REGIONS, starts=(0, 1, 2, 3)))
    _, selection = demonstrated(solution, RolloutConfig(steps=5, min_return=91.0))
    assert selection.kept.tolist() == [True, True, False, False]
    assert (selection.threshold, selection.by_return) == (91, True)
    with pytest.raises(DataError, match="a return of at least 101, found a maximum of 100"):
        demonstrated(solution, RolloutConfig(steps=5, min_return=101.0))


def test_a_state_counts_once_however_often_a_rollout_visits_it() -> None:
    solution = first_edge_solution(mdp_from_edges(7, TWO_REGIONS, starts=(0, 1, 2, 3)))
    config = RolloutConfig(steps=1000, min_share=0.0, uniform_share=0.0)
    visits, _ = demonstrated(solution, config)
    relative = {state: weight / visits.weights.min() for state, weight in weight_by_state(visits).items()}
    assert relative == pytest.approx({0: 1, 1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2})  # rollouts through each
    assert visits.weights.sum() == pytest.approx(1)
    uniform, _ = demonstrated(solution, replace(config, uniform_share=1.0))
    assert uniform.weights == pytest.approx(np.full(7, 1 / 7))
    half, _ = demonstrated(solution, replace(config, uniform_share=0.5))
    assert half.weights == pytest.approx((visits.weights + uniform.weights) / 2)
    assert visits.group[visits.states[:, 0] == 5].tolist() == [0]  # the first rollout that visits it


def test_imagined_states_on_stitches_are_cloned_too() -> None:
    logged = mdp_from_edges(3, [(0, 1, 0.0), (2, 2, 1.0)], starts=(0,))
    stitch = stitches_between(
        [1], [2], reward=[[0.0, 0.0]], action=np.array([[[0.25], [0.75]]]), state=np.array([[[1.5]]])
    )
    rows, _ = demonstrated(policy_iteration(add_stitches(logged, stitch, stitch_round=1)), RolloutConfig())
    pairs = sorted(zip(rows.states[:, 0], rows.actions[:, 0], strict=True))
    assert pairs == [(0, 0), (1, 0.25), (1.5, 0.75), (2, 1)]
    assert (rows.low, rows.high) == (0, 1)  # of logged actions


def test_rollouts_from_stitched_states_are_cloned_too() -> None:
    # 0 → 1 earns nothing, 2 → 2 earns 1; 1 was stitched to 2, and so was 3, which no rollout from the start visits
    logged = mdp_from_edges(4, [(0, 1, 0.0), (2, 2, 1.0), (3, 0, 0.0)], starts=(0,))
    stitches = stitches_between([1, 3], [2, 2], action=np.array([[[0.25]], [[0.75]]]))
    solution = policy_iteration(add_stitches(logged, stitches, stitch_round=1))
    rows, selection = demonstrated(solution, RolloutConfig(steps=10, uniform_share=0.0, recovery_share=0.5))
    # the start's rollout has weight 1/2 and visits 0, 1, 2; those of 1 and 3 have 1/4 each and visit 2 after themselves
    assert weight_by_state(rows) == pytest.approx({0: 0.5 / 2.5, 1: 0.75 / 2.5, 2: 1 / 2.5, 3: 0.25 / 2.5})
    assert (selection.start.tolist(), selection.returns.tolist(), selection.kept.tolist()) == ([0], [8.0], [True])
    alone, _ = demonstrated(solution, RolloutConfig(steps=10, recovery_share=0.0))
    assert sorted(alone.states[:, 0].tolist()) == [0, 1, 2]


def test_rollouts_from_starts_set_no_cut_for_those_from_stitched_states() -> None:
    """One start, whose share is 1 whatever it returns; of twenty stitched states, most return nearly the best."""
    stitched = range(2, 22)  # each leads to the one before, and the first to 1, which earns 1 for ever
    logged = mdp_from_edges(23, [(0, 1, 0.0), (1, 1, 1.0), *((state, 22, 0.0) for state in stitched)], starts=(0,))
    mdp = add_stitches(logged, stitches_between(list(stitched), [1, *stitched][:20]), stitch_round=1)
    rows, selection = demonstrated(policy_iteration(mdp), RolloutConfig(steps=100))
    assert selection.threshold == 1.0
    assert len(set(rows.states[:, 0]) - {0.0, 1.0}) >= 10  # at least half of their weight stays


def test_shares_are_counted_from_the_worst_return_where_returns_are_negative() -> None:
    share = shares_of_best(np.array([-10.0, -20.0, -30.0]), np.zeros((3, 1)))
    assert share == pytest.approx([1, 0.5, 0])
    assert shares_of_best(np.zeros(3), np.arange(3.0)[:, None]).tolist() == [1, 1, 1]


def test_the_cut_found_from_the_data_separates_good_from_bad_and_keeps_half() -> None:
    rng = np.random.default_rng(0)
    good, bad = rng.uniform(0.9, 1.0, 80), rng.uniform(0.0, 0.4, 20)
    share = rng.permutation(np.concatenate([good, bad]))
    assert natural_threshold(share, np.ones(100), share) == good.min()
    mostly_bad = np.concatenate([good[:20], rng.uniform(0.0, 0.4, 80)])
    kept = mostly_bad >= natural_threshold(mostly_bad, np.ones(100), mostly_bad)
    assert 0.5 <= kept.mean() < 1
    assert natural_threshold(np.ones(5), np.ones(5), np.ones(5)) == 1
    assert natural_threshold(np.array([0.3]), np.ones(1), np.array([0.3])) == 0.3


def test_where_all_starts_are_alike_a_few_good_rollouts_are_enough() -> None:
    share = np.concatenate([np.full(80, 0.4), np.full(20, 1.0)])
    assert natural_threshold(share, np.ones(100), np.ones(100)) == 1.0
    # but not one alone, which may be luck
    assert natural_threshold(np.append(np.full(99, 0.5), 1.0), np.ones(100), np.ones(100)) == 0.5
    # two kinds of bad ones: the natural split is between these, and what is clearly below the best goes all the same
    mixed = np.concatenate([np.zeros(40), np.full(40, 0.5), np.full(20, 0.8)])
    assert natural_threshold(mixed, np.ones(100), np.full(100, 0.8)) == 0.75
    # unless too few starts would be left with a rollout
    assert natural_threshold(mixed, np.ones(100), mixed) < 0.75


@given(seeds=st.integers(0, 2**32 - 1), count=st.integers(1, 40))
def test_the_best_value_within_a_distance_is_the_largest_of_all_points_that_near(seeds: int, count: int) -> None:
    rng = np.random.default_rng(seeds)
    points, values = rng.integers(0, 5, (count, 2)).astype(float), rng.integers(0, 6, count).astype(float)
    near = np.linalg.norm(points[:, None] - points, axis=2) <= 1.0
    expected = np.where(near, values, -np.inf).max(axis=1)
    assert best_within(values, points, 1.0).tolist() == expected.tolist()


def test_of_many_starts_some_are_drawn_by_weight_and_the_same_for_the_same_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demonstrations, "MAX_ROLLOUTS", 50)
    mdp = mdp_from_edges(100, [(state, state, 1.0) for state in range(100)], starts=tuple(range(100)))
    solution = first_edge_solution(replace(mdp, start_weights=np.repeat([0.018, 0.002], 50)))
    (one, selection), (same, _) = (demonstrated(solution, RolloutConfig(), seed=7) for _ in range(2))
    assert np.array_equal(one.states, same.states)
    assert len(selection.start) <= 50
    assert np.mean(selection.start < 50) > 0.7
    assert selection.start_weights.sum() == pytest.approx(1)


def test_rows_of_a_log_are_cloned_as_they_are() -> None:
    log = Dataset.from_arrays(np.arange(6.0)[:, None], np.linspace(-1, 1, 6)[:, None], np.zeros(6))
    rows = logged_rows(log, np.array([1, 3]), np.array([0, 1]))
    assert rows.states[:, 0].tolist() == [1, 3]
    assert rows.actions == pytest.approx(log.actions[[1, 3]])
    assert rows.weights.tolist() == [0.5, 0.5]
    assert (rows.low.tolist(), rows.high.tolist()) == (
        log.actions.min(axis=0).tolist(),
        log.actions.max(axis=0).tolist(),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": np.array([0, -1])}, "state indices must not be negative"),
        ({"start_weights": np.array([1.0, -1.0])}, "weights must not be negative"),
        ({"steps": 0}, "at least one step"),
    ],
)
def test_a_selection_that_cannot_have_been_made_is_refused(change: dict[str, object], message: str) -> None:
    numbers = np.array([0.5, 0.5])
    kept = np.array([True, False])
    selection = Selection(np.array([0, 1]), numbers, numbers, numbers, kept, 0.5, by_return=True, steps=10)
    with pytest.raises(SettingError, match=message):
        replace(selection, **change)
