"""Claims, how far they can be trusted, and the bounds that follow: worked cases and a world that is known exactly."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Array

from bats.bounds.cloned_policy import STRETCH, Chain, Links, follow, follow_on, joined
from bats.bounds.error_calibration import Reliability, Stakes, _windows, measure_reliability
from bats.bounds.error_estimates import Evidence, Factors
from bats.bounds.graph_policy import (
    CertificateConfig,
    certify,
    find_doubts,
    lengths,
    stitch_claims,
    stitch_stakes,
    used_stitches,
)
from bats.bounds.sandwich import sandwich
from bats.data.dataset import Dataset
from bats.errors import SettingError
from bats.graph.mdp import Stitches, add_stitches, from_dataset
from bats.graph.rollouts import walk
from bats.graph.solve import policy_iteration
from bats.metric.scaled import ScaledMetric
from bats.model.fit import HeldOut
from bats.model.local_error import LocalError
from bats.policy.policy import Familiar, Policy
from bats.stitching.acceptance import Learned

GAMMA = 0.9
STEP = 0.1


class Conveyor(eqx.Module):
    """A place on a line: every action moves it by itself, and where it comes to be is what it is paid."""

    networks: Array
    action_count: None = None

    @property
    def member_count(self) -> int:
        return len(self.networks)

    def change(self, states: Array, actions: Array) -> tuple[Array, Array]:
        return actions + self.networks, jnp.zeros_like(actions)

    def reward(self, states: Array, actions: Array, after: Array) -> Array:
        return after[..., 0]


def conveyor(*, apart: float = 0.0) -> Conveyor:
    return Conveyor(jnp.array([-apart, 0.0, apart])[:, None, None])


def line(rows: int = 200, *, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 1, (rows, 1))


def held_out(model: Conveyor, *, miss: float = 0.0, stretches: int = 40, steps: int = 10) -> HeldOut:
    """Stretches of steps that truly go `miss` farther than the middle member says."""
    actions = np.random.default_rng(1).uniform(-STEP, STEP, (stretches, steps, 1))
    places = np.concatenate([np.zeros((stretches, 1, 1)), np.cumsum(actions + miss, axis=1)], axis=1)
    before, after = (part.reshape(-1, 1) for part in (places[:, :-1], places[:, 1:]))
    predicted = before + actions.reshape(-1, 1)
    ends = np.zeros(len(before), dtype=bool)
    return HeldOut(before, actions.reshape(-1, 1), after, after[:, 0], ends, predicted, predicted[:, 0], 0.0 * ends)


def evidence(*, apart: float = 0.0, miss: float = 0.0, local: bool = True, tolerance: float = 10.0) -> Evidence:
    model = conveyor(apart=apart)
    rows = held_out(model, miss=miss)
    metric = ScaledMetric(np.ones(1, dtype=np.float32))
    error = None
    if local:
        judging = rows.halves()[0]
        error = LocalError.measured(metric, judging.observations, judging.next_observations, judging.predicted_next)
    learned = Learned(model, metric, (np.array([-1.0]), np.array([1.0])), error)
    # the value of standing at x for ever is x / (1 - gamma)
    value = ScaledMetric(np.full(1, 1 / (1 - GAMMA), dtype=np.float32))
    return Evidence.of(learned, rows, value, quantile=0.8, tolerance=tolerance)


def still(states: np.ndarray) -> Policy:
    """A policy that stays where it is."""
    familiar = Familiar(states.astype(np.float32), np.ones(1, dtype=np.float32), 0.5)
    flat = np.zeros((1, 2), dtype=np.float32)
    return Policy((flat,), (np.zeros(2, np.float32),), np.zeros(1), np.ones(1), -np.ones(1), np.ones(1), None, familiar)


def onwards(states: np.ndarray) -> Policy:
    """A policy that always goes one step ahead."""
    return replace(still(states), biases=(np.array([STEP, 0.0], np.float32),))


def test_halves_share_no_stretch_and_make_up_the_whole() -> None:
    rows = held_out(conveyor())
    first, second = rows.halves()
    assert len(first.rewards) + len(second.rewards) == len(rows.rewards)
    assert len(np.unique(rows.stretch)) == 40
    assert len(first.rewards) == len(second.rewards) == 200


def test_claims_are_what_members_dispute_plus_what_was_wrong_nearby_step_by_step() -> None:
    known = evidence(apart=0.01, miss=0.02)
    source, length = np.array([[0.5]]), np.array([3])
    visited = np.array([0.53, 0.5, 0.47])[:, None, None, None] * np.ones((1, 1, 3, 1))
    claims = known.claims(visited, np.zeros((1, 3)), source, np.array([[0.5]]), length)
    # the 80th percentile of 0.03, 0 and 0.03 is 0.03; every held-out step was wrong by 0.02
    np.testing.assert_allclose(claims.landing, 0.03 + 3 * 0.02, rtol=1e-4)
    np.testing.assert_allclose(claims.value, (0.03 + 3 * 0.02) / (1 - GAMMA), rtol=1e-4)
    np.testing.assert_allclose(claims.reward, 0.02, rtol=1e-4)


def test_windows_stay_within_stretches_and_have_the_wanted_lengths() -> None:
    rows = held_out(conveyor())
    first, length = _windows(rows, np.array([3, 7]), np.random.default_rng(0))
    assert set(length) == {3, 7}
    assert np.array_equal(rows.stretch[first], rows.stretch[first + length - 1])
    assert len(np.unique(np.column_stack([first, length]), axis=0)) == len(first)
    _, longest = _windows(rows, np.array([99]), np.random.default_rng(0))
    assert set(longest) == {10}


def test_a_model_that_is_right_needs_no_factor_and_one_that_is_steadily_wrong_is_told_by_its_neighbours() -> None:
    right = measure_reliability(evidence(), np.array([4]), seed=0)
    assert right.value.max() < 1e-2
    wrong = measure_reliability(evidence(miss=0.02), np.array([4]), seed=0)
    np.testing.assert_allclose(wrong.value, 1.0, rtol=1e-3)  # off by 4 times 0.02, and claimed to be
    unaware = measure_reliability(evidence(miss=0.02, local=False), np.array([4]), seed=0)
    np.testing.assert_allclose(unaware.value, 1.0, rtol=1e-3)  # the metric of value has neighbours of its own


def test_windows_that_claim_more_than_the_tolerance_do_not_count() -> None:
    assert len(measure_reliability(evidence(miss=0.02, tolerance=0.01), np.array([4]), seed=0).value) == 0


def stakes(plans: int, walks: int = 10) -> Stakes:
    return Stakes(*np.ones((2, walks, plans)))


def test_factors_cover_the_sum_of_a_walks_errors() -> None:
    ratios = np.arange(1.0, 101.0)
    both = Reliability(ratios, ratios)
    one = both.factors(0.9, stakes(1), seed=0)
    assert one.value == one.reward == pytest.approx(91, abs=1.5)  # the 91st of 100 and one without bound
    two = both.factors(0.9, stakes(2), seed=0)  # the mean of two even draws keeps below 1 - (0.1 / 2)^0.5 of the most
    assert two.value == pytest.approx(100 * (1 - 0.05**0.5), abs=3)
    heavy = Stakes(*np.tile([100.0, 1.0], (2, 10, 1)))
    assert both.factors(0.9, heavy, seed=0).value == pytest.approx(91, abs=2)  # what weighs nothing evens nothing out
    # 20 draws all miss the one without bound with 82%
    assert both.factors(0.9, stakes(20), seed=0) == Factors(math.inf, math.inf, 100)
    with pytest.raises(SettingError, match="confidence"):
        both.factors(1.0, stakes(1), seed=0)


def test_one_window_in_a_hundred_that_goes_astray_does_not_set_the_factor_of_all() -> None:
    ratios = np.ones(10_000)
    ratios[:100] = 100.0
    found = Reliability(ratios, ratios).factors(0.95, stakes(10), seed=0)
    assert found.value == pytest.approx((9 + 100) / 10)  # one of ten may: two do with less than 1%


def test_claims_about_places_have_a_margin_and_those_about_rewards_are_taken_at_their_word() -> None:
    assert Factors(0.5, 0.1, 7).at_least(2.5) == Factors(2.5, 1.0, 7)
    assert Factors(4.0, 3.0, 7).at_least(2.5) == Factors(4.0, 3.0, 7)


def test_no_windows_say_nothing() -> None:
    assert Reliability(np.zeros(0), np.zeros(0)).factors(0.9, stakes(1), seed=0).value == math.inf


@given(st.integers(0, 2**32), st.floats(0.5, 0.95))
def test_enough_walks_keep_within_both_factors(seed: int, confidence: float) -> None:
    rng = np.random.default_rng(seed)
    both = Reliability(rng.exponential(size=300), rng.exponential(size=300))
    found = both.factors(confidence, stakes(1), seed=0)
    assert np.mean((both.value <= found.value) & (both.reward <= found.reward)) >= confidence - 0.03


def test_a_chain_that_leads_to_itself_has_a_closed_form() -> None:
    chain = Chain(np.array([[0]]), np.array([[2.0]]), np.array([0.5]), np.array([[3.0, 4.0]]))
    lower, upper = chain.bounds(0.0, 100.0)
    np.testing.assert_allclose([lower[0], upper[0]], [(3 - 0.5 * 2) / 0.5, (4 + 0.5 * 2) / 0.5], rtol=1e-6)
    unknown = Chain(np.array([[0]]), np.array([[np.inf]]), np.array([0.5]), np.array([[3.0, 4.0]]))
    np.testing.assert_allclose(np.concatenate(unknown.bounds(0.0, 100.0)), [0.0, 100.0])


def test_a_chain_goes_on_from_the_state_that_says_most() -> None:
    near, apart = np.array([[1, 2], [1, 1], [2, 2]]), np.array([[1.0, 3.0], [0.0, 0.0], [0.0, 0.0]])
    chain = Chain(near, apart, np.full(3, 0.5), np.array([[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]]))
    lower, upper = chain.bounds(0.0, 10.0)  # the states that only lead to themselves are worth 4 and 8
    np.testing.assert_allclose([lower[0], upper[0]], [0.5 * (8 - 3), 0.5 * (4 + 1)], rtol=1e-6)


def test_claims_that_exclude_each_other_are_stretched_until_they_do_not() -> None:
    near, apart = np.array([[1, 2], [1, 1], [2, 2]]), np.array([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    chain = Chain(near, apart, np.full(3, 0.5), np.array([[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]]))
    # neighbours worth 4 and 8 cannot both be 1 away; 2 would do, and 1.25 to the fourth is the first power above
    stretch = STRETCH**4
    for margin in (1.0, 1.5):
        lower, upper = chain.bounds(0.0, 10.0, margin=margin)
        expected = [0.5 * (8 - margin * stretch), 0.5 * (4 + margin * stretch)]
        np.testing.assert_allclose([lower[0], upper[0]], expected, rtol=1e-6)
        np.testing.assert_allclose([lower[1:], upper[1:]], [[4, 8], [4, 8]], rtol=1e-6)


def test_claims_of_no_difference_at_all_can_be_refuted_too() -> None:
    near = np.array([[1, 2], [1, 1], [2, 2]])
    chain = Chain(near, np.zeros((3, 2)), np.full(3, 0.5), np.array([[0.0, 0.0], [2.0, 2.0], [4.0, 4.0]]))
    lower, upper = chain.bounds(0.0, 10.0)
    assert np.all((lower >= 0) & (lower <= upper) & (upper <= 10))
    assert lower[1] <= 4 <= upper[1]
    assert lower[2] <= 8 <= upper[2]


def test_a_stretch_ends_before_its_claim_reaches_the_tolerance() -> None:
    known = evidence(miss=0.02, tolerance=0.07)
    stretches = follow(still(line()), line(), known, gamma=GAMMA, steps=20)
    assert set(stretches.length) == {3}  # 4 steps would claim 0.08
    np.testing.assert_allclose(stretches.discount, GAMMA**3)
    np.testing.assert_allclose(stretches.earned, line()[:, 0] * (1 + GAMMA + GAMMA**2), rtol=1e-5)


def test_a_policy_that_stays_where_it_is_earns_what_the_place_pays() -> None:
    states, known = line(), evidence()
    stretches = follow(still(states), states, known, gamma=GAMMA, steps=5)
    chain = joined(
        stretches,
        Links.of(stretches, states, known, known=len(states)),
        still(states),
        states,
        known,
        Factors(1.0, 1.0, 100),
    )
    lower, upper = chain.bounds(0.0, 10.0)
    truth = states[:, 0] / (1 - GAMMA)
    assert np.all(lower <= truth + 1e-4)
    assert np.all(truth <= upper + 1e-4)
    assert np.mean(upper - lower) < 0.1  # claims have a least size, so bounds are not quite points


def test_a_walker_goes_on_from_where_it_came_to_be() -> None:
    states, known = line(), evidence()
    ahead = np.array([3, 5])
    found, stretches = follow_on(onwards(states), states, ahead, known, gamma=GAMMA, steps=2, counting=6, most=100)
    assert len(found) == len(states) + 2 * 2  # two of three stretches more
    np.testing.assert_allclose(found[-2:], states[ahead] + 4 * STEP, rtol=1e-5)
    np.testing.assert_allclose(stretches.place[-2:], states[ahead] + 6 * STEP, rtol=1e-5)
    links = Links.of(stretches, found, known, known=len(states))
    assert links.near[ahead, 0].tolist() == [len(states), len(states) + 1]  # where their first stretches ended
    beyond = stretches.place[-2:, 0] - states.max()  # of the line: where only the model's word leads nobody is known
    assert np.all(links.distance[-2:] >= beyond - 1e-6)


def test_walkers_are_followed_no_farther_than_counts_or_the_log_knows() -> None:
    states, known = line(), evidence()
    everybody = np.arange(len(states))
    far = partial(follow_on, onwards(states), states, everybody, known, gamma=GAMMA, steps=5)
    found, _ = far(counting=1000, most=10_000)  # half a unit a turn, and 0.5 beyond the line all is strange
    assert found.max() <= states.max() + 0.5 + 1e-6
    assert len(states) < len(found) < 4 * len(states)
    assert len(far(counting=1000, most=1)[0]) <= 2 * len(states)
    assert len(far(counting=5, most=10_000)[0]) == len(states)


def test_what_rests_on_a_chains_claims_is_discounted_and_counted_once_a_stretch() -> None:
    states, known = line(), evidence(miss=0.02)
    stretches = follow(still(states), states, known, gamma=GAMMA, steps=5)
    found = Links.of(stretches, states, known, known=len(states)).stakes(stretches, np.array([7]), least=0.05)
    weight = GAMMA ** (5 * np.arange(6))  # it stays where it is: the same stretch again, until 0.9^30 < 0.05
    np.testing.assert_allclose(found.reward, [[stretches.off[7] * weight.sum()]])
    np.testing.assert_allclose(found.value, [[stretches.value[7] * GAMMA**5 * weight.sum()]])


def test_a_plan_made_again_is_as_wrong_as_before() -> None:
    ratios = np.random.default_rng(0).exponential(size=2000)
    both, once = Reliability(ratios, ratios), np.zeros(30, dtype=np.int64)
    often = Stakes.of_plans(once, once, *np.ones((2, 30)), walks=1)
    assert often.value.shape == (1, 1)
    assert both.factors(0.95, often, seed=0) == both.factors(0.95, stakes(1, 1), seed=0)
    apart = Stakes.of_plans(np.array([1, 0, 1, 1]), np.array([4, 4, 2, 4]), np.arange(4.0), np.ones(4), walks=3)
    np.testing.assert_array_equal(apart.value, [[1, 0], [2, 3], [0, 0]])  # walker 1: plan 2 once, plan 4 twice
    np.testing.assert_array_equal(apart.reward, [[1, 0], [1, 2], [0, 0]])


def test_an_end_that_may_be_none_is_worth_what_the_value_may_differ() -> None:
    states, known = line(), evidence(miss=0.02)
    stretches = follow(still(states), states, known, gamma=GAMMA, steps=5)
    over = replace(stretches, over=np.ones(len(states), dtype=bool))
    links = Links.of(over, states, known, known=len(states))
    chain = joined(over, links, still(states), states, known, Factors(3.0, 0.0, 100))
    lower, upper = chain.bounds(-100.0, 100.0)
    np.testing.assert_allclose((lower + upper) / 2, stretches.earned)
    np.testing.assert_allclose((upper - lower) / 2, 3 * GAMMA**5 * stretches.value)
    strange = replace(over, landing=np.full(len(states), 1e9))
    lower, upper = joined(strange, links, still(states), states, known, Factors(3.0, 0.0, 100)).bounds(-100.0, 100.0)
    assert lower.max() == -100.0
    assert upper.min() == 100.0


def test_without_factors_nothing_is_known() -> None:
    states, known = line(), evidence()
    stretches = follow(still(states), states, known, gamma=GAMMA, steps=5)
    chain = joined(
        stretches,
        Links.of(stretches, states, known, known=len(states)),
        still(states),
        states,
        known,
        Factors(math.inf, math.inf, 3),
    )
    lower, upper = chain.bounds(0.0, 10.0)
    np.testing.assert_allclose(lower, 0.0)
    np.testing.assert_allclose(upper, 10.0)


def test_a_place_that_is_strange_to_all_is_not_known() -> None:
    states, known = line(), evidence()
    away = Policy(
        (np.zeros((1, 2), np.float32),),
        (np.array([1.0, 0.0], np.float32),),
        np.zeros(1),
        np.ones(1),
        -np.ones(1),
        np.ones(1),
        None,
        still(states).familiar,
    )
    stretches = follow(away, states, known, gamma=GAMMA, steps=5)  # five steps of 1: far beyond the line
    chain = joined(
        stretches, Links.of(stretches, states, known, known=len(states)), away, states, known, Factors(1.0, 1.0, 100)
    )
    assert np.all(np.isinf(chain.apart))


def test_a_graph_with_one_stitch_is_bounded_by_its_claim_times_the_factor() -> None:
    """Two actions of 0.1 from 0, meant for 0.25: off by 0.05 by every member, and by 0.02 a step on rows nearby."""
    places = np.array([[0.0], [0.05], [0.25]])
    log = Dataset.from_arrays(
        places[:2],
        np.full((2, 1), 0.05),
        np.array([0.05, 0.0]),
        next_observations=np.array([[0.05], [0.1]]),
        timeouts=np.array([False, True]),
        name="line",
    )
    mdp = from_dataset(log.with_starts(np.array([0])), gamma=GAMMA)
    mdp = replace(mdp, states=np.concatenate([mdp.states[:2], places[2:]]))  # the dead end is where the stitch goes
    joining = Stitches.judged_by_one(
        source=np.array([0]),
        target=np.array([2]),
        length=np.array([2]),
        action=np.full((1, 2, 1), 0.1),
        state=np.full((1, 1, 1), 0.1),
        reward=np.array([[0.1, 0.25]]),
        planning_error=np.zeros(1),
    )
    mdp = add_stitches(mdp, joining, stitch_round=1)
    policy = policy_iteration(mdp).policy
    assert used_stitches(mdp, policy, mdp.starts).tolist() == [0]
    assert lengths(mdp).tolist() == [2]
    used, known = np.array([0]), evidence(miss=0.02)
    claims = stitch_claims(mdp, used, known)
    resting = stitch_stakes(mdp, walk(mdp, policy, mdp.starts, 10), used, claims)
    # begun at once, and what it says of its end counts after two steps
    np.testing.assert_allclose(resting.value, [[GAMMA**2 * claims.value[0]]])
    np.testing.assert_allclose(resting.reward, [[claims.reward[0].sum()]])
    doubts = find_doubts(mdp, used, claims, Factors(3.0, 2.0, 100))
    np.testing.assert_allclose(doubts.landing, 3 * (0.05 + 2 * 0.02) / (1 - GAMMA), rtol=1e-4)
    assert doubts.rewards is not None
    # the last step pays 0.25 by the graph and 0.2 by the members; both are wrong by 0.02 nearby
    off = 2 * np.array([0.02, 0.05 + 0.02])
    expected = np.array([0.1, 0.25])[:, None] + np.stack([-off, off], axis=-1)
    np.testing.assert_allclose(doubts.rewards[0], expected, rtol=1e-4)
    bounds = sandwich(mdp, replace(doubts, reward_range=(0.0, 1.0)), policy=policy)
    # the landing is worth less than nothing, so on the way there the floor of 0 stands in
    assert expected[1, 0] < GAMMA * doubts.landing[0]
    assert bounds.lower[0] == pytest.approx(expected[0, 0], rel=1e-6)
    nothing = find_doubts(mdp, used, claims, Factors(math.inf, math.inf, 3))
    assert np.isinf(nothing.landing).all()


def test_settings_that_mean_nothing_are_refused() -> None:
    for wrong in ({"confidence": 1.0}, {"margin": -1.0}, {"steps": 0}, {"anchors": 0}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            CertificateConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("anchors", [3, 200])
def test_a_clone_that_stays_where_it_is_is_bounded_at_every_start(anchors: int) -> None:
    """Five starts of different weight along the line, more than may be followed on where anchors are few."""
    places = np.tile(np.linspace(0, 0.5, 11)[:, None], (5, 1)) + np.repeat(0.1 * np.arange(5), 11)[:, None]
    rows = np.arange(55).reshape(5, 11)[:, :-1].ravel()
    log = Dataset.from_arrays(
        places[rows],
        places[rows + 1] - places[rows],
        places[rows + 1, 0],
        next_observations=places[rows + 1],
        terminations=np.arange(50) % 10 == 9,
        name="line",
    )
    mdp = from_dataset(log, gamma=GAMMA)
    mdp = replace(mdp, start_weights=np.array([0.1, 0.1, 0.2, 0.2, 0.4]))
    solution, asked = policy_iteration(mdp), CertificateConfig(confidence=0.9, steps=5, anchors=anchors)
    found = certify(mdp, solution.policy, still(places), evidence(), asked, seed=0)
    assert found.clone_factors.value == asked.margin  # the model is right, and claims are doubled all the same
    truth = mdp.states[mdp.starts, 0] / (1 - GAMMA)
    lower, upper = found.clone.lower[mdp.starts], found.clone.upper[mdp.starts]
    assert np.all(lower <= truth + 1e-6)
    assert np.all(truth <= upper + 1e-6)
    assert np.all(upper - lower < 0.5)
    assert found.clone.start_lower == pytest.approx(float(mdp.start_weights @ lower))


def test_a_log_without_stitches_is_certain_of_what_it_shows() -> None:
    """One run along the line: the graph knows its value exactly, whatever the model says."""
    places = np.linspace(0, 1, 41)[:, None]
    log = Dataset.from_arrays(
        places[:-1],
        np.diff(places, axis=0),
        places[1:, 0],
        next_observations=places[1:],
        terminations=np.arange(40) == 39,
        name="line",
    )
    mdp = from_dataset(log, gamma=GAMMA)
    solution = policy_iteration(mdp)
    found = certify(mdp, solution.policy, still(places), evidence(), CertificateConfig(confidence=0.9, steps=5), seed=0)
    np.testing.assert_allclose([found.graph.start_lower, found.graph.start_upper], solution.value[0], rtol=1e-6)
    assert found.clone.start_lower <= 0.0 + 1e-6  # standing still at 0 earns nothing
    assert found.clone.start_upper < solution.value[0]
