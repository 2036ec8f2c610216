"""The theorem and its corollary as properties of random worlds, the bounds' algebra by hand, and the verdict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.bounds.sandwich import Bounds, Doubts, improvement, possible_rewards, reward_ranges, sandwich
from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import NO_STITCH, Stitches, TabularMDP, add_stitches
from bats.graph.relabel import last_edges, prune, sweep
from bats.graph.solve import edge_values, policy_value
from tests.mdps import mdp_from_edges
from tests.stitched_worlds import (
    ACTIONS,
    Stitched,
    World,
    random_log,
    random_stitches,
    random_world,
    truly_bounded,
)

REWARDS = st.sampled_from(["normal", "sparse", "negative", "positive"])
SEEDS = st.integers(0, 2**32 - 1)


def rounding(bounds: Bounds) -> float:
    return 1e-9 * max(1.0, abs(bounds.floor), abs(bounds.ceiling))


def holds(bounds: Bounds, truth: np.ndarray) -> bool:
    real, slack = slice(bounds.real_count), rounding(bounds)
    return bool(np.all(bounds.lower[real] <= truth + slack) and np.all(truth <= bounds.upper[real] + slack))


def some_world(rewards: str, ends: bool, seed: int, *, wrong_rewards: float = 0.5) -> tuple[World, Stitched]:
    rng = np.random.default_rng(seed)
    world = random_world(rng, rewards=rewards, ends=ends)
    log = random_log(world, rng)
    return world, random_stitches(world, log, rng, count=int(rng.integers(0, 9)), wrong_rewards=wrong_rewards)


@settings(max_examples=300, deadline=None)
@given(REWARDS, st.booleans(), st.booleans(), SEEDS)
def test_the_true_value_lies_between_the_bounds(rewards: str, ends: bool, bisimulation: bool, seed: int) -> None:
    """The theorem: dead ends, ends, stitches of one to three actions that land elsewhere and pay otherwise."""
    world, graph = some_world(rewards, ends, seed)
    found = truly_bounded(world, graph, bisimulation=bisimulation)
    assert holds(found.bounds, found.truth)
    assert found.bounds.floor - rounding(found.bounds) <= found.bounds.lower.min()
    assert found.bounds.upper.max() <= found.bounds.ceiling + rounding(found.bounds)


@settings(max_examples=150, deadline=None)
@given(REWARDS, st.booleans(), st.booleans(), SEEDS)
def test_it_does_for_any_policy(rewards: str, ends: bool, bisimulation: bool, seed: int) -> None:
    """One that takes stitches wherever it can: there is nothing careful about it."""
    world, graph = some_world(rewards, ends, seed)
    last = graph.mdp.first_edge[1:] - 1  # new edges stand after those that a state had
    policy = np.where(graph.mdp.out_degree > 0, last, NO_EDGE)
    found = truly_bounded(world, graph, policy=policy, bisimulation=bisimulation)
    assert holds(found.bounds, found.truth)


@settings(max_examples=150, deadline=None)
@given(REWARDS, st.booleans(), SEEDS, st.booleans())
def test_the_true_value_of_a_policy_that_strays_lies_between_the_bounds(
    rewards: str, ends: bool, seed: int, one_number: bool
) -> None:
    world, graph = some_world(rewards, ends, seed)
    rng = np.random.default_rng(seed)
    strays = np.where(rng.random(len(graph.place)) < 0.4, rng.integers(0, ACTIONS, len(graph.place)), -1)
    found = truly_bounded(world, graph, strays=strays)
    assert holds(found.bounds, found.truth)
    if one_number:
        doubts = replace(found.doubts, deviation=float(np.max(found.doubts.deviation)))
        assert holds(sandwich(graph.mdp, doubts, policy=found.bounds.policy), found.truth)


def too_small(world: World, graph: Stitched) -> bool | None:
    """Whether the theorem fails with a tenth of what one stitch of the policy is off by; None without such a stitch."""
    found = truly_bounded(world, graph)
    off = np.abs(found.played.value[graph.landing] - found.played.value[graph.target])
    taken = found.bounds.policy[found.bounds.policy != NO_EDGE]
    used = np.unique(graph.mdp.stitch[taken[graph.mdp.stitch[taken] != NO_STITCH]])
    used = used[(off[used] > 0.1) & (graph.stitches.source[used] < len(graph.place))]
    if len(used) == 0:
        return None
    landing = found.doubts.landing.copy()
    landing[used[0]] = off[used[0]] / 10
    lax = sandwich(graph.mdp, replace(found.doubts, landing=landing), policy=found.bounds.policy)
    return not holds(lax, found.truth)


def test_with_one_error_too_small_the_theorem_fails() -> None:
    """So the tests above can fail: the slack of other terms hides it at times, and often it does not."""
    outcomes = [too_small(*some_world("normal", seed % 2 == 0, seed, wrong_rewards=0.0)) for seed in range(300)]
    failed = outcomes.count(True)
    assert failed > 50, f"{failed} violations, {outcomes.count(False)} hidden"


@settings(max_examples=150, deadline=None)
@given(REWARDS, st.booleans(), SEEDS)
def test_an_improvement_that_is_certified_is_one(rewards: str, ends: bool, seed: int) -> None:
    """The corollary, between two sets of stitches on one log, each policy with an extension of its own."""
    assert certified_truly(rewards, ends, seed) >= 0


def certified_truly(rewards: str, ends: bool, seed: int) -> int:
    """How many states are certified, after checking each and the mean."""
    rng = np.random.default_rng(seed)
    world = random_world(rng, rewards=rewards, ends=ends)
    log = random_log(world, rng)
    graphs = [random_stitches(world, log, rng, count=count, wrong_rewards=0.1) for count in (1, 12)]
    worlds = [world, replace(world, habit=rng.integers(0, ACTIONS, len(world.habit)))]
    old, new = (truly_bounded(truth, graph) for truth, graph in zip(worlds, graphs, strict=True))
    found = improvement(old.bounds, new.bounds)
    assert np.all((new.truth - old.truth)[found.certified] > 0)
    if found.certified_at_starts:
        weights, starts = log.mdp.start_weights, log.mdp.starts
        assert weights @ (new.truth - old.truth)[starts] > 0
    return int(found.certified.sum())


def test_improvements_do_get_certified() -> None:
    assert sum(certified_truly("normal", seed % 2 == 0, seed) > 0 for seed in range(100)) > 10


@settings(max_examples=100, deadline=None)
@given(REWARDS, st.booleans(), SEEDS)
def test_without_doubts_the_bounds_meet_in_the_true_value(rewards: str, ends: bool, seed: int) -> None:
    """Stitches that land where they say: nothing is left open but what lies behind dead ends."""
    rng = np.random.default_rng(seed)
    world = random_world(rng, rewards=rewards, ends=ends)
    log = random_log(world, rng)
    graph = random_stitches(world, log, rng, count=12, wrong_rewards=0.0)
    number = np.full(len(world.move), -1)
    number[log.place] = np.arange(len(log.place))
    arrive = number[graph.landing] >= 0
    exact = Stitches(*(getattr(graph.stitches, name)[arrive] for name in graph.stitches.__dataclass_fields__))
    exact = replace(exact, target=number[graph.landing[arrive]])
    grown = add_stitches(log.mdp, exact, stitch_round=1)
    graph = Stitched(grown, log.place, exact, graph.landing[arrive], graph.earned[arrive])
    found = truly_bounded(world, graph)
    assert np.all(found.doubts.landing == 0)
    known = unknown_weight(grown, found.bounds.policy)[: len(log.place)] == 0
    for bound in (found.bounds.lower, found.bounds.upper):
        assert np.allclose(bound[: len(log.place)][known], found.truth[known], atol=rounding(found.bounds))


def unknown_weight(mdp: TabularMDP, policy: np.ndarray) -> np.ndarray:
    """How much of each state's value comes from dead ends that are not ends, discounted."""
    return policy_value(replace(mdp, reward=np.zeros(mdp.edge_count)), policy, dead_end_value=1.0)


@settings(max_examples=60, deadline=None)
@given(REWARDS, st.booleans(), SEEDS)
def test_bounds_are_the_fixed_points_of_their_definition(rewards: str, ends: bool, seed: int) -> None:
    """Against plain sweeps: the best edge, or the floor; the policy's edge, or the ceiling."""
    _, graph = some_world(rewards, ends, seed)
    mdp, rng = graph.mdp, np.random.default_rng(seed)
    doubts = Doubts(rng.exponential(size=mdp.stitch_count), reward_ranges([graph.stitches]), deviation=0.05)
    bounds = sandwich(mdp, doubts)
    least, greatest = possible_rewards(mdp)
    low, high = mdp.reward.copy(), mdp.reward.copy()
    for edge in np.flatnonzero(mdp.stitch != NO_STITCH):
        stitch = mdp.stitch[edge]
        on_the_way = [
            at for at in range(mdp.edge_count) if mdp.stitch[at] == stitch and mdp.source[at] < mdp.source[edge]
        ]
        low[edge], high[edge] = graph.stitches.reward_range[stitch, len(on_the_way)]
    landing = np.minimum(np.append(doubts.landing, 0.0), bounds.ceiling - bounds.floor)[mdp.stitch]
    charge = np.minimum(0.05, bounds.ceiling - bounds.floor) + mdp.gamma * np.where(last_edges(mdp), landing, 0.0)
    pessimistic = replace(mdp, reward=np.clip(low, least, greatest) - charge)
    optimistic = replace(mdp, reward=np.clip(high, least, greatest) + charge)
    over = mdp.only_ended_in & (mdp.out_degree == 0)
    lower, upper = (np.where(over, 0.0, at) for at in (bounds.floor, bounds.ceiling))
    for _ in range(800):  # 0.97^800 is 3e-11
        best = edge_values(pessimistic, lower)
        lower = np.where(over, 0.0, bounds.floor)
        np.maximum.at(lower, mdp.source, best)
        taken = np.append(edge_values(optimistic, upper), np.inf)[bounds.policy]
        upper = np.where(over, 0.0, np.minimum(taken, bounds.ceiling))
    assert np.allclose(bounds.lower, lower, atol=rounding(bounds))
    assert np.allclose(bounds.upper, upper, atol=rounding(bounds))
    again = sandwich(mdp, doubts, policy=bounds.policy)
    assert np.allclose(again.lower, bounds.lower, atol=rounding(bounds))


@settings(max_examples=100, deadline=None)
@given(REWARDS, st.booleans(), SEEDS)
def test_more_doubt_is_wider_and_the_scale_of_rewards_is_the_scale_of_bounds(
    rewards: str, ends: bool, seed: int
) -> None:
    _, graph = some_world(rewards, ends, seed)
    mdp, rng = graph.mdp, np.random.default_rng(seed)
    doubts = Doubts(rng.exponential(size=mdp.stitch_count))
    narrow = sandwich(mdp, doubts)
    wide = sandwich(mdp, replace(doubts, landing=2 * doubts.landing, deviation=0.1), policy=narrow.policy)
    assert np.all(wide.lower <= narrow.lower + rounding(narrow))
    assert np.all(wide.upper >= narrow.upper - rounding(narrow))
    ignorant = sandwich(mdp, replace(doubts, landing=np.full(mdp.stitch_count, np.inf)), policy=narrow.policy)
    assert np.all(ignorant.without_stitches <= ignorant.lower + rounding(narrow))
    assert np.all(narrow.without_stitches <= narrow.lower + rounding(narrow))
    tenfold = sandwich(replace(mdp, reward=10 * mdp.reward), Doubts(10 * doubts.landing), policy=narrow.policy)
    for name in ("lower", "upper", "without_stitches"):
        assert np.allclose(getattr(tenfold, name), 10 * getattr(narrow, name), atol=10 * rounding(narrow))
    assert tenfold.width == pytest.approx(narrow.width, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(REWARDS, st.booleans(), SEEDS)
def test_no_setting_of_a_grid_beats_the_policy_of_the_lower_bound(rewards: str, ends: bool, seed: int) -> None:
    _, graph = some_world(rewards, ends, seed)
    mdp, rng = graph.mdp, np.random.default_rng(seed)
    doubts = Doubts(rng.exponential(size=mdp.stitch_count), reward_ranges([graph.stitches]))
    best = sandwich(mdp, doubts)

    def lower_bound(kept: TabularMDP, policy: np.ndarray) -> float:
        return sandwich(kept, doubts, policy=policy).start_lower

    error, tolerances = rng.random(mdp.stitch_count), (0.3, 0.7, np.inf)
    points = list(sweep(mdp, error, penalties=(0.0, 1.0, 10.0), tolerances=tolerances, judge=lower_bound))
    assert len(points) == 9
    assert max(point.judged_value for point in points) <= best.start_lower + rounding(best)


def one_stitch(source: int, target: int, rewards: list[float]) -> Stitches:
    """A stitch of as many actions as rewards."""
    length = len(rewards)
    return Stitches.judged_by_one(
        source=np.array([source]),
        target=np.array([target]),
        length=np.array([length]),
        action=np.zeros((1, length, 1)),
        state=np.zeros((1, length - 1, 1)),
        reward=np.array([rewards]),
        planning_error=np.zeros(1),
    )


def joined(mdp: TabularMDP, source: int, target: int, rewards: list[float]) -> TabularMDP:
    return add_stitches(mdp, one_stitch(source, target, rewards), stitch_round=1)


def island() -> TabularMDP:
    """State 0 is paid nothing for ever and state 1 is paid 1: worth 0 and 10. A stitch of two actions joins them."""
    return joined(mdp_from_edges(2, [(0, 0, 0.0), (1, 1, 1.0)], gamma=0.9), 0, 1, [0.0, 0.0])


def test_a_stitch_of_two_actions_is_charged_gamma_squared_times_its_error() -> None:
    bounds = sandwich(island(), Doubts(np.array([0.5])))
    assert bounds.lower[:2] == pytest.approx([0.81 * (10 - 0.5), 10.0])
    assert bounds.upper[:2] == pytest.approx([0.81 * (10 + 0.5), 10.0])
    assert (bounds.floor, bounds.ceiling) == pytest.approx((0.0, 10.0))
    assert bounds.width == pytest.approx(0.81 * 2 * 0.5 / 10)
    assert bounds.share_on_stitches == 1.0  # without the stitch nothing is known of state 0, and 0 is the floor


def test_a_stitch_that_may_land_anywhere_is_not_taken() -> None:
    bounds = sandwich(island(), Doubts(np.array([np.inf])))
    assert bounds.policy[0] == 0
    assert bounds.lower[:2] == pytest.approx([0.0, 10.0])
    assert bounds.upper[:2] == pytest.approx([0.0, 10.0])
    assert bounds.share_on_stitches == 0.0


def test_uncertain_rewards_and_straying_have_terms_of_their_own() -> None:
    rewards = np.array([[[0.0, 0.2], [-5.0, 0.1]]])  # no reward can be below 0, so -5 is taken as 0
    doubts = Doubts(np.array([0.5]), rewards, deviation=np.array([0.01, 0.0, 0.02]))
    bounds = sandwich(island(), doubts)
    assert bounds.lower[0] == pytest.approx(-0.01 + 0.9 * (-0.02 + 0.0 + 0.9 * (10 - 0.5)))
    assert bounds.upper[0] == pytest.approx(0.2 + 0.01 + 0.9 * (0.1 + 0.02 + 0.9 * (10 + 0.5)))
    # one number charges every step: 0.01 off each reward is 0.1 off each value, but no value leaves the range
    everywhere = sandwich(island(), Doubts(np.array([0.5]), deviation=0.01))
    assert everywhere.lower[:2] == pytest.approx([0.81 * (10 - 0.1 - 0.5) - 0.01 * 1.9, 9.9])
    assert everywhere.upper[1] == pytest.approx(10.0)


def test_many_doubts_never_add_up_to_more_than_knowing_nothing() -> None:
    # staying in the goal is a stitch with an error of 0.4: without the ceiling it would be worth up to 1.36 / 0.1
    mdp = joined(mdp_from_edges(2, [(0, 1, 0.0), (0, 0, 0.0), (1, 0, 1.0)], gamma=0.9), 1, 1, [1.0])
    bounds = sandwich(mdp, Doubts(np.array([0.4])))
    hopeful = replace(mdp, reward=mdp.reward + 0.9 * 0.4 * (mdp.stitch != NO_STITCH))
    assert policy_value(hopeful, bounds.policy) == pytest.approx([0.9 * 13.6, 13.6])
    assert bounds.upper == pytest.approx([9.0, 10.0])  # state 0 sees the ceiling of state 1, not its own alone


def test_what_lies_behind_a_dead_end_may_be_worst_or_best() -> None:
    mdp = mdp_from_edges(3, [(0, 1, -1.0), (1, 2, 2.0)], gamma=0.9)
    bounds = sandwich(mdp, Doubts(np.zeros(0)))
    assert bounds.lower == pytest.approx([-1 + 0.9 * (2 + 0.9 * -10), 2 + 0.9 * -10, -10])
    assert bounds.upper == pytest.approx([-1 + 0.9 * (2 + 0.9 * 20), 2 + 0.9 * 20, 20])
    known = sandwich(mdp, Doubts(np.zeros(0), reward_range=(-2.0, 3.0)))
    assert (known.floor, known.ceiling) == pytest.approx((-20.0, 30.0))


def test_where_a_task_may_end_nothing_is_a_reward_too() -> None:
    """A dead end behind which the task may end at once is not worth r_min / (1 - gamma) = 10 for certain."""
    mdp = mdp_from_edges(4, [(0, 1, 1.0), (2, 3, 2.0)], gamma=0.9, ends=(1,))
    bounds = sandwich(mdp, Doubts(np.zeros(0)))
    assert possible_rewards(mdp) == (0.0, 2.0)
    assert bounds.lower == pytest.approx([1.0, 0.0, 2.0, 0.0])
    assert bounds.upper == pytest.approx([1 + 0.9 * 20, 20.0, 2.0, 0.0])


def test_a_state_that_one_episode_ends_in_and_another_was_cut_off_in_is_not_known_to_be_the_end() -> None:
    mdp = mdp_from_edges(3, [(0, 2, 0.0), (1, 2, 1.0)], gamma=0.9, ends=(0,))
    assert mdp.terminal[2]
    bounds = sandwich(mdp, Doubts(np.zeros(0)))
    assert bounds.upper == pytest.approx([0.0, 1 + 0.9 * 10, 10.0])


def test_a_stitch_into_an_end_is_charged_though_nothing_comes_after_it() -> None:
    """It may miss the end, and what comes then is worth as much as the error says."""
    mdp = joined(mdp_from_edges(3, [(0, 0, -1.0), (1, 2, -1.0)], gamma=0.9, ends=(1,)), 0, 2, [-1.0])
    bounds = sandwich(mdp, Doubts(np.array([2.0])))
    assert bounds.lower[0] == pytest.approx(-1 - 0.9 * 2)
    assert bounds.upper[0] == 0.0  # the ceiling, as no reward is above 0


def test_giving_a_dead_end_its_first_action_never_lowers_its_bound() -> None:
    mdp = joined(mdp_from_edges(2, [(0, 1, 1.0), (0, 0, 0.0)], gamma=0.9), 1, 0, [0.0])
    bounds = sandwich(mdp, Doubts(np.array([1000.0])))
    assert bounds.lower[1] == 0.0
    assert bounds.policy[1] == 2  # there is nothing else to do


def test_a_false_error_makes_a_false_certificate_and_a_true_one_none() -> None:
    """The stitch from 0 claims to reach 1, worth 10, and truly lands in a state worth nothing: epsilon is 10."""
    old = sandwich(prune(island(), np.array([False])), Doubts(np.zeros(1)))
    believed = improvement(old, sandwich(island(), Doubts(np.array([1.0]))))
    assert believed.certified.tolist() == [True, False]
    assert believed.certified_at_starts
    assert believed.start_gain == pytest.approx(0.81 * 9)
    known = improvement(old, sandwich(island(), Doubts(np.array([10.0]))))
    assert not known.certified.any()
    assert not known.certified_at_starts


def test_policies_of_two_logs_cannot_be_compared() -> None:
    other = mdp_from_edges(3, [(0, 0, 0.0), (1, 1, 1.0)], gamma=0.9)
    with pytest.raises(SettingError, match="same log"):
        improvement(sandwich(other, Doubts(np.zeros(0))), sandwich(island(), Doubts(np.zeros(1))))


def test_the_reward_ranges_of_several_rounds_are_put_in_order() -> None:
    mdp = mdp_from_edges(2, [(0, 0, 0.0), (1, 1, 10.0)], gamma=0.5)
    rounds = [one_stitch(1, 0, [3.0]), one_stitch(0, 1, [1.0, 2.0])]
    rounds = [replace(added, reward_range=added.reward_range + np.array([-0.5, 0.25])) for added in rounds]
    for number, added in enumerate(rounds, start=1):
        mdp = add_stitches(mdp, added, stitch_round=number)
    ranges = reward_ranges(rounds)
    assert ranges.tolist() == [[[2.5, 3.25], [0.0, 0.0]], [[0.5, 1.25], [1.5, 2.25]]]
    bounds = sandwich(mdp, Doubts(np.zeros(2), ranges))
    assert bounds.lower[:2] == pytest.approx([0.5 + 0.5 * (1.5 + 0.5 * 20), 20])
    assert bounds.upper[:2] == pytest.approx([1.25 + 0.5 * (2.25 + 0.5 * 20), 20])
    # a graph that lost a stitch still knows which range is whose
    pruned = sandwich(prune(mdp, np.array([False, True])), Doubts(np.zeros(2), ranges))
    assert pruned.lower[:2] == pytest.approx(bounds.lower[:2])
    assert reward_ranges([]).shape == (0, 1, 2)


def test_doubts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SettingError, match="each of 1 stitches"):
        sandwich(island(), Doubts(np.zeros(2)))
    with pytest.raises(SettingError, match="`landing` must not be negative"):
        sandwich(island(), Doubts(np.array([-1.0])))
    with pytest.raises(SettingError, match="`landing` must not be negative"):
        sandwich(island(), Doubts(np.array([np.nan])))
    with pytest.raises(SettingError, match="`deviation` must not be negative"):
        sandwich(island(), Doubts(np.zeros(1), deviation=-0.1))
    with pytest.raises(SettingError, match="must hold all logged rewards"):
        sandwich(island(), Doubts(np.zeros(1), reward_range=(0.0, 0.5)))
    with pytest.raises(SettingError, match="`rewards` must have an entry for each action; got 1 a stitch"):
        sandwich(island(), Doubts(np.zeros(1), rewards=np.zeros((1, 1, 2))))
    with pytest.raises(SettingError, match="start in imagined ones"):
        sandwich(joined(island(), 2, 0, [0.0]), Doubts(np.zeros(2)))


def test_the_share_that_rests_on_stitches_is_counted_from_the_floor() -> None:
    # 0 is paid 1, then a stitch leads to what is paid 1 for ever; half of the steps' worth, 1 + 0.5 * 2, is the log's
    mdp = joined(mdp_from_edges(3, [(0, 1, 1.0), (1, 1, -1.0), (2, 2, 1.0)], gamma=0.5), 1, 2, [1.0])
    bounds = sandwich(mdp, Doubts(np.zeros(1)))
    assert (bounds.floor, bounds.start_lower) == (-2.0, 2.0)
    assert bounds.without_stitches[0] == 1 + 0.5 * -2
    assert bounds.share_on_stitches == pytest.approx((2 - 0) / (2 + 2))
