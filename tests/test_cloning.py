"""What is cloned, and how well: walks kept and left out by hand, then linear, disturbed and discrete experts."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from bats.errors import DataError, SettingError
from bats.graph.mdp import Stitches, TabularMDP, add_stitches
from bats.graph.solve import Solution, first_edges, policy_iteration, policy_value
from bats.metric.scaled import ScaledMetric
from bats.policy import cloning
from bats.policy.cloning import CloningConfig, clone, split
from bats.policy.demonstrations import Demonstrations, RolloutConfig, demonstrate, natural_cut, shares_of_best
from tests.mdps import mdp_from_edges

METRIC = ScaledMetric(np.ones(1, np.float32))
QUICK = CloningConfig(hidden=(32, 32), updates=1000, batch_size=128, learning_rate=3e-3, evaluate_every=250)

TWO_PLACES = [(0, 4, 1.0), (1, 4, 10.0), (2, 6, 3.0), (3, 6, 2.9), (4, 5, 90.0), (5, 5, 0.0), (6, 6, 0.0)]
"""starts 0 and 1 lead on to great things through 4, starts 2 and 3 never; 5 and 6 are left by themselves only"""


def expert_rows(
    actions: np.ndarray, states: np.ndarray, *, walks: int = 20, action_count: int | None = None
) -> Demonstrations:
    """Rows as `demonstrate` gives them, with actions between -1 and 1."""
    count, width = len(states), 0 if action_count else actions.shape[1]
    every = np.zeros(walks, dtype=np.int64)
    return Demonstrations(
        states=states,
        actions=actions,
        weights=np.full(count, 1 / count),
        group=np.arange(count) * walks // count,
        low=np.full(width, -1.0),
        high=np.full(width, 1.0),
        action_count=action_count,
        start=every,
        start_weights=np.full(walks, 1 / walks),
        returns=np.ones(walks),
        share=np.ones(walks),
        kept=every == 0,
        cut=1.0,
    )


def first(mdp: TabularMDP) -> Solution:
    """The policy that takes every state's first edge, with its value."""
    policy = first_edges(mdp)
    return Solution(policy_value(mdp, policy), policy, 1)


def some_states(count: int, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal([5.0, -100.0], [0.5, 20.0], (count, 2))


def test_walks_are_kept_by_what_their_peers_earn_not_by_what_everybody_does() -> None:
    mdp = mdp_from_edges(7, TWO_PLACES, starts=(0, 1, 2, 3))
    mdp = replace(mdp, states=np.array([0.0, 1, 100, 101, 50, 60, 70])[:, None])
    policy = first(mdp)
    found = demonstrate(mdp, policy, METRIC, RolloutConfig(steps=5, peers=2, cut=0.95), seed=0)
    assert found.returns.tolist() == [91, 100, 3, 2.9]
    assert found.share == pytest.approx([0.91, 1.0, 1.0, 2.9 / 3])
    assert found.kept.tolist() == [False, True, True, True]  # 3 is poor, but nobody near it does better
    assert sorted(found.states[:, 0]) == [1, 50, 60, 70, 100, 101]
    everywhere = demonstrate(mdp, policy, METRIC, RolloutConfig(steps=5, threshold=91.0), seed=0)
    assert everywhere.kept.tolist() == [True, True, False, False]
    assert everywhere.cut == 91
    with pytest.raises(DataError, match="100 at most"):
        demonstrate(mdp, policy, METRIC, RolloutConfig(steps=5, threshold=101.0), seed=0)


def test_each_state_counts_once_however_often_it_is_gone_round_in() -> None:
    mdp = mdp_from_edges(7, TWO_PLACES, starts=(0, 1, 2, 3))
    config = RolloutConfig(steps=1000, cut=0.0, even=0.0)
    found = demonstrate(mdp, first(mdp), METRIC, config, seed=0)
    weight = dict(zip(found.states[:, 0].tolist(), (found.weights / found.weights.min()).tolist(), strict=True))
    assert weight == pytest.approx({0: 1, 1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 2})  # walks through each
    assert found.weights.sum() == pytest.approx(1)
    same = demonstrate(mdp, first(mdp), METRIC, replace(config, even=1.0), seed=0)
    assert same.weights == pytest.approx(np.full(7, 1 / 7))
    half = demonstrate(mdp, first(mdp), METRIC, replace(config, even=0.5), seed=0)
    assert half.weights == pytest.approx((found.weights + same.weights) / 2)
    assert found.group[found.states[:, 0] == 5].tolist() == [0]  # the walk that came first


def test_imagined_states_on_stitches_are_cloned_too() -> None:
    logged = mdp_from_edges(3, [(0, 1, 0.0), (2, 2, 1.0)], starts=(0,))
    joined = Stitches.judged_by_one(
        source=np.array([1]),
        target=np.array([2]),
        length=np.array([2]),
        action=np.array([[[0.25], [0.75]]]),
        state=np.array([[[1.5]]]),
        reward=np.zeros((1, 2)),
        planning_error=np.zeros(1),
    )
    mdp = add_stitches(logged, joined, stitch_round=1)
    found = demonstrate(mdp, policy_iteration(mdp), METRIC, RolloutConfig(), seed=0)
    assert sorted(zip(found.states[:, 0], found.actions[:, 0], strict=True)) == [(0, 0), (1, 0.25), (1.5, 0.75), (2, 1)]
    assert (found.low, found.high) == (0, 1)  # of logged actions


def test_shares_are_measured_from_the_worst_where_returns_are_negative() -> None:
    share = shares_of_best(np.array([-10.0, -20.0, -30.0]), np.zeros((3, 1)), 3)
    assert share == pytest.approx([1, 0.5, 0])
    assert shares_of_best(np.zeros(3), np.arange(3.0)[:, None], 2).tolist() == [1, 1, 1]


def test_the_cut_that_is_found_parts_the_good_from_the_bad_and_keeps_half() -> None:
    rng = np.random.default_rng(0)
    good, bad = rng.uniform(0.9, 1.0, 80), rng.uniform(0.0, 0.4, 20)
    share = rng.permutation(np.concatenate([good, bad]))
    assert natural_cut(share, np.ones(100)) == good.min()
    mostly_bad = np.concatenate([good[:20], rng.uniform(0.0, 0.4, 80)])
    kept = mostly_bad >= natural_cut(mostly_bad, np.ones(100))
    assert 0.5 <= kept.mean() < 1
    assert natural_cut(np.ones(5), np.ones(5)) == 1
    assert natural_cut(np.array([0.3]), np.ones(1)) == 0.3


def test_more_starts_than_trajectories_are_drawn_by_weight_and_the_same_again() -> None:
    edges = [(state, state, 1.0) for state in range(100)]
    mdp = mdp_from_edges(100, edges, starts=tuple(range(100)))
    mdp = replace(mdp, start_weights=np.repeat([0.018, 0.002], 50))
    drawn = [demonstrate(mdp, first(mdp), METRIC, RolloutConfig(trajectories=50), seed=7) for _ in range(2)]
    assert np.array_equal(drawn[0].states, drawn[1].states)
    assert len(drawn[0].start) <= 50
    assert np.mean(drawn[0].start < 50) > 0.7


def test_rows_of_one_walk_are_held_back_together() -> None:
    group = np.repeat(np.arange(20), 10)
    held_back = split(group, 0.1, seed=0)
    assert held_back.sum() == 20
    assert all(len(set(held_back[group == walk])) == 1 for walk in range(20))
    alone = split(np.zeros(1000, dtype=np.int64), 0.1, seed=0)  # one walk: stretches of it
    assert alone.sum() == 100
    assert np.count_nonzero(np.diff(alone.astype(int))) <= 8
    empty = {"states": np.zeros((0, 1)), "actions": np.zeros((0, 1)), "weights": np.zeros(0), "group": np.zeros(0, int)}
    with pytest.raises(DataError, match="rows to clone from"):
        clone(replace(expert_rows(np.zeros((1, 1)), np.zeros((1, 1))), **empty), CloningConfig(updates=1), seed=0)
    only = clone(expert_rows(np.full((1, 1), 0.5), np.zeros((1, 1))), CloningConfig(hidden=(8,), updates=500), seed=0)
    assert only.predict([0.0]) == pytest.approx([0.5], abs=0.05)


def test_walks_from_stitched_states_are_cloned_too_and_measured_among_themselves() -> None:
    # 0 → 1 earns nothing, 2 → 2 pays 1; 1 was stitched to 2, and so was 3, which no walk from the start meets
    logged = mdp_from_edges(4, [(0, 1, 0.0), (2, 2, 1.0), (3, 0, 0.0)], starts=(0,))
    joined = Stitches.judged_by_one(
        source=np.array([1, 3]),
        target=np.array([2, 2]),
        length=np.array([1, 1]),
        action=np.array([[[0.25]], [[0.75]]]),
        state=np.zeros((2, 0, 1)),
        reward=np.zeros((2, 1)),
        planning_error=np.zeros(2),
    )
    mdp = add_stitches(logged, joined, stitch_round=1)
    solution = policy_iteration(mdp)
    found = demonstrate(mdp, solution, METRIC, RolloutConfig(steps=10, even=0.0, beside=0.5), seed=0)
    weight = dict(zip(found.states[:, 0].tolist(), found.weights.tolist(), strict=True))
    # by walks: the start's weighs 1/2 and meets 0, 1, 2; those of 1 and 3 weigh 1/4 each and meet 2 besides themselves
    assert weight == pytest.approx({0: 0.5 / 2.5, 1: 0.75 / 2.5, 2: 1 / 2.5, 3: 0.25 / 2.5})
    assert (found.start.tolist(), found.returns.tolist(), found.kept.tolist()) == ([0], [8.0], [True])
    alone = demonstrate(mdp, solution, METRIC, RolloutConfig(steps=10, beside=0.0), seed=0)
    assert sorted(alone.states[:, 0].tolist()) == [0, 1, 2]


def test_starts_that_all_do_well_set_no_cut_for_walks_from_elsewhere() -> None:
    """One start, whose share is 1 whatever it earns; of twenty stitched states, most earn nearly the best."""
    away = range(2, 22)  # each goes on to the next, and the last to 1, which pays for ever: the farther, the less
    logged = mdp_from_edges(23, [(0, 1, 0.0), (1, 1, 1.0), *((state, 22, 0.0) for state in away)], starts=(0,))
    joined = Stitches.judged_by_one(
        source=np.array(away),
        target=np.array([1, *away][:20]),
        length=np.ones(20, dtype=np.int64),
        action=np.zeros((20, 1, 1)),
        state=np.zeros((20, 0, 1)),
        reward=np.zeros((20, 1)),
        planning_error=np.zeros(20),
    )
    mdp = add_stitches(logged, joined, stitch_round=1)
    found = demonstrate(mdp, policy_iteration(mdp), METRIC, RolloutConfig(steps=100), seed=0)
    assert found.cut == 1.0
    assert len(set(found.states[:, 0]) - {0.0, 1.0}) >= 10  # at least half of their weight stays


def test_of_few_demonstrations_none_is_held_back() -> None:
    """Every row is the only one of its kind here, as in a small discrete world, and all must be learned."""
    states = np.arange(12.0)[:, None]
    wanted = np.random.default_rng(0).integers(0, 4, 12)
    policy = clone(expert_rows(wanted, states, action_count=4), CloningConfig(hidden=(64, 64), updates=3000), seed=0)
    assert policy.predict(states).tolist() == wanted.tolist()


def test_a_linear_expert_is_cloned_to_a_hundredth() -> None:
    def expert(states: np.ndarray) -> np.ndarray:
        scaled = (states - [5.0, -100.0]) / [0.5, 20.0]
        return np.clip(scaled @ np.array([[0.3, -0.2], [0.1, 0.4]]), -1, 1)

    states = some_states(3000)
    policy = clone(expert_rows(expert(states), states), QUICK, seed=0)
    fresh = some_states(1000, seed=1)
    assert np.sqrt(np.mean((policy.predict(fresh) - expert(fresh)) ** 2)) < 0.02


def test_the_same_seed_gives_the_same_policy_and_another_another() -> None:
    states = some_states(500)
    rows = expert_rows(np.sin(states), states)
    first_time, again, other = (clone(rows, replace(QUICK, updates=100), seed=seed) for seed in (3, 3, 4))
    assert all(np.array_equal(*pair) for pair in zip(first_time.weights, again.weights, strict=True))
    assert not np.array_equal(first_time.weights[0], other.weights[0])


def test_what_a_controller_wanted_is_found_behind_disturbances_cut_off_at_the_limits() -> None:
    states = some_states(4000)
    rng = np.random.default_rng(2)
    actions = np.clip(1.0 + rng.normal(0, 0.5, (4000, 1)), -1, 1)  # wants 1 everywhere; the mean of these is 0.8
    rows = expert_rows(actions, states)
    config = replace(QUICK, updates=500)
    found = clone(rows, config, seed=0).predict(states)
    plain = clone(rows, replace(config, cut_off=False), seed=0).predict(states)
    assert plain.mean() == pytest.approx(0.8, abs=0.03)
    assert found.mean() > 0.93


def test_discrete_experts_are_cloned_too() -> None:
    states = some_states(3000)
    wanted = (states[:, 0] > 5).astype(np.int32) + 2 * (states[:, 1] > -100).astype(np.int32)
    policy = clone(expert_rows(wanted, states, action_count=4), replace(QUICK, updates=800), seed=0)
    fresh = some_states(1000, seed=1)
    expected = (fresh[:, 0] > 5) + 2 * (fresh[:, 1] > -100)
    assert np.mean(policy.predict(fresh) == expected) > 0.97


def test_rows_that_weigh_nothing_are_not_learned_from() -> None:
    states = some_states(2000)
    right = np.arange(2000) % 2 == 0
    rows = expert_rows(np.where(right, 0.5, -0.5)[:, None], states)
    policy = clone(replace(rows, weights=right / right.sum()), replace(QUICK, updates=300), seed=0)
    assert policy.predict(states).mean() == pytest.approx(0.5, abs=0.05)


def test_two_actions_in_the_same_place_are_cloned_as_their_mean() -> None:
    rng = np.random.default_rng(4)
    place = rng.uniform(0, 1, (4000, 1))
    push = rng.choice([0.2, 0.6], 4000)
    policy = clone(expert_rows(push[:, None], place), replace(QUICK, updates=400), seed=0)
    assert policy.predict(place).mean() == pytest.approx(0.4, abs=0.03)


def test_the_policy_answers_as_the_network_that_was_trained() -> None:
    states = some_states(1000)
    actions = np.tanh(np.random.default_rng(3).normal(size=(1000, 2)))
    policy = clone(expert_rows(actions, states), replace(QUICK, updates=100), seed=0)
    network = cloning.Network(
        tuple(jnp.asarray(weight) for weight in policy.weights), tuple(jnp.asarray(bias) for bias in policy.biases)
    )
    raw = eqx.filter_jit(network)(jnp.asarray((states - policy.mean) / policy.deviation, jnp.float32))
    assert policy.predict(states) == pytest.approx(np.clip(np.asarray(raw)[:, :2], -1, 1), abs=1e-5)
    assert policy.distribution(states)[0] == pytest.approx(np.asarray(raw)[:, :2], abs=1e-5)


def test_progress_is_told_and_settings_are_checked() -> None:
    told = []
    states = some_states(200)
    config = replace(QUICK, updates=100, evaluate_every=40)
    clone(expert_rows(np.zeros((200, 1)), states), config, seed=0, progress=lambda *heard: told.append(heard[1:]))
    assert told == [(40, 100), (80, 100), (100, 100)]
    with pytest.raises(SettingError, match="updates"):
        CloningConfig(updates=0)
    with pytest.raises(SettingError, match="not both"):
        RolloutConfig(cut=0.5, threshold=1.0)
