"""The loop in a plane where every step is known: what can be found is found, and what is added is true."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import cKDTree

from bats.config import CandidateConfig, NeighbourConfig, StitchConfig
from bats.data.dataset import Dataset
from bats.graph.mdp import LOGGED, TabularMDP, from_dataset
from bats.graph.rollouts import reachable, roll_out
from bats.graph.solve import policy_iteration, start_value
from bats.metric.scaled import ScaledMetric
from bats.model.ensemble import unroll_batches
from bats.model.held_out import LocalErrors
from bats.planning.context import PlanningContext
from bats.planning.planner import end_error
from bats.stitching.history import History
from bats.stitching.loop import Round, stitch
from bats.stitching.sources import MAX_STITCH_SEQUENCES
from tests.compilations import compilations
from tests.known_worlds import Ring, context_of
from tests.plane_logs import REACH, crossing, plane_context, three_lanes
from tests.small_runs import small_log

GAMMA = 0.9
ONE_ACTION = StitchConfig(
    rounds=10,
    recovery_rounds=0,
    samples=200,
    attempts=100,
    max_length=1,
    tolerance=0.01,
    local_error=False,
    candidates=CandidateConfig(branching=None, lengths="all", per_source=None),
    neighbours=NeighbourConfig(count=None, radius=0.07, scales=(1.0,)),
)
TWO_ACTIONS = replace(
    ONE_ACTION, max_length=2, half_length_every=None, candidates=CandidateConfig(lengths="all", per_source=None)
)


def rounds_of(log: Dataset, config: StitchConfig, *, seed: int = 0, penalty: float = 0.0) -> list[Round]:
    return list(stitch_all(from_dataset(log, gamma=GAMMA, penalty=penalty), plane_context(log), config, seed=seed))


def stitch_all(mdp: TabularMDP, context: PlanningContext, config: StitchConfig, *, seed: int = 0) -> Iterator[Round]:
    rounds = range(1, config.rounds + config.recovery_rounds + 1)
    return stitch(mdp, context, config, seed=seed, history=History.empty(mdp.real_count), rounds=rounds)


@pytest.fixture(scope="module")
def one_action_rounds() -> list[Round]:
    return rounds_of(crossing(), ONE_ACTION)


@pytest.fixture(scope="module")
def two_action_rounds() -> list[Round]:
    return rounds_of(crossing(), TWO_ACTIONS)


def stitches_on_the_rollout(mdp: TabularMDP) -> list[tuple[list[float], list[float]]]:
    """Where the stitches on the policy's rollout begin and end, if each has one action."""
    edges = roll_out(mdp, policy_iteration(mdp).policy, mdp.starts, 30).edge[0]
    used = edges[(edges >= 0) & (mdp.stitch_round[edges] != LOGGED)]
    ends = np.stack([mdp.states[mdp.source[used]], mdp.states[mdp.target[used]]], axis=1)
    return [tuple(pair) for pair in ends.astype(np.float64).round(2).tolist()]  # type: ignore[misc]


@pytest.mark.slow
def test_stitches_are_only_as_long_as_the_model_is_reliable_unless_a_length_is_set() -> None:
    log = crossing()
    # errors of 0.004 per step: two of them stay below the tolerance of 0.01, and three do not
    points = log.observations.astype(np.float64)
    context = plane_context(log, local_errors=LocalErrors(cKDTree(points), np.full((len(points), 1), 0.004)))
    mdp = from_dataset(log, gamma=GAMMA)
    chosen = list(stitch_all(mdp, context, replace(TWO_ACTIONS, max_length=None, local_error=True)))
    assert {done.record.max_length for done in chosen} == {2}
    assert max(done.attempts.length.max() for done in chosen) == 2
    as_set = list(stitch_all(mdp, context, replace(ONE_ACTION, local_error=True)))
    assert {done.record.max_length for done in as_set} == {1}


def test_stitching_ends_when_no_plan_ever_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    one_at_a_time = replace(ONE_ACTION, attempts=1)
    accepted = [one.record.accepted for one in rounds_of(crossing(), one_at_a_time)]
    assert accepted[:2] == [0, 1]
    assert len(accepted) == ONE_ACTION.rounds
    monkeypatch.setattr("bats.stitching.history.MAX_FAILED_PLANS", 1)
    assert [one.record.accepted for one in rounds_of(crossing(), one_at_a_time)] == [0]
    # a single success is enough to go on
    monkeypatch.setattr("bats.stitching.history.MAX_FAILED_PLANS", 2)
    assert [one.record.accepted for one in rounds_of(crossing(), one_at_a_time)] == accepted


def test_the_one_best_stitch_is_found(one_action_rounds: list[Round]) -> None:
    # an action moves 0.06, as far as the log moved: only from (0.24, 0) is the upward episode met without losing a step
    assert one_action_rounds[0].record.value_before == 0.0
    last = one_action_rounds[-1]
    assert stitches_on_the_rollout(last.solution.mdp) == [([0.24, 0.0], [0.3, 0.03])]
    # four steps to the right, the stitch, four steps up to (0.3, 0.27), then 1 for ever
    assert last.record.value == pytest.approx(GAMMA**9 / (1 - GAMMA))


def test_the_loop_ends_when_nothing_is_left_to_try(one_action_rounds: list[Round]) -> None:
    assert len(one_action_rounds) < ONE_ACTION.rounds
    pairs = np.concatenate(
        [np.stack([done.attempts.source, done.attempts.target], axis=1) for done in one_action_rounds]
    )
    assert len(np.unique(pairs, axis=0)) == len(pairs)  # with one action, no pair is planned twice


def test_records_count_what_became_of_the_attempts(two_action_rounds: list[Round]) -> None:
    for done in two_action_rounds:
        record = done.record
        assert record.value == start_value(done.solution.mdp, policy_iteration(done.solution.mdp).value)
        assert record.tried == len(done.attempts)
        assert record.accepted == len(done.stitches) == np.count_nonzero(done.attempts.accepted)
        assert sum(record.refused.values()) + record.accepted == record.tried
        assert (record.states, record.edges) == (done.solution.mdp.state_count, done.solution.mdp.edge_count)
    values = [one_round.record.value for one_round in two_action_rounds]
    before = [one_round.record.value_before for one_round in two_action_rounds]
    assert before[1:] == values[:-1]
    assert np.all(np.diff(values) >= -1e-9)


def test_longer_stitches_lead_through_imagined_states_from_real_states_to_real_states(
    two_action_rounds: list[Round],
) -> None:
    mdp = two_action_rounds[-1].solution.mdp
    assert mdp.state_count > mdp.real_count
    for done in two_action_rounds:
        assert np.all(done.stitches.target < mdp.real_count)
        assert np.all(done.stitches.source < mdp.real_count)
    # with diagonal moves the upward episode is met higher up
    assert two_action_rounds[-1].record.value > GAMMA**9 / (1 - GAMMA)


@pytest.mark.parametrize("every_length", [True, False])
def test_a_pair_is_planned_again_only_with_a_length_that_is_still_open(
    every_length: bool, two_action_rounds: list[Round]
) -> None:
    rounds = rounds_of(crossing(), replace(TWO_ACTIONS, every_length=True)) if every_length else two_action_rounds
    plans: dict[tuple[int, int], list[tuple[int, bool]]] = {}
    for done in rounds:
        tried = done.attempts
        for source, target, length, accepted in zip(
            tried.source.tolist(), tried.target.tolist(), tried.length.tolist(), tried.accepted.tolist(), strict=True
        ):
            earlier = plans.setdefault((source, target), [])
            for tried_length, was_accepted in earlier:
                assert length < tried_length if was_accepted else length > tried_length
            earlier.append((length, accepted))
    again = [tries for tries in plans.values() if len(tries) > 1]
    assert again  # some pairs come back
    if every_length:  # what is accepted was tried with fewer actions before
        assert not any(tries[0][1] for tries in again)
    else:
        assert any(tries[0][1] and tries[-1][1] for tries in again)  # stitched, and stitched with fewer actions


def test_every_stitch_is_within_the_tolerance_when_its_actions_are_simulated_again() -> None:
    log = crossing()
    context, mdp = plane_context(log, shift=0.001), from_dataset(log, gamma=GAMMA)
    for done in stitch_all(mdp, context, replace(TWO_ACTIONS, rounds=3)):
        stitches = done.stitches
        source = mdp.states[stitches.source]
        visited, _ = unroll_batches(context.dynamics, source, stitches.action, stitches.length)
        distance = np.linalg.norm(visited[:, :, -1] - mdp.states[stitches.target], axis=2).T
        assert end_error(distance) == pytest.approx(stitches.planning_error, abs=1e-6)
        assert np.all(stitches.planning_error < TWO_ACTIONS.tolerance)
        assert np.all(np.abs(stitches.action) <= REACH + 1e-6)


def test_some_rounds_search_for_stitches_half_as_long() -> None:
    rounds = rounds_of(crossing(), replace(TWO_ACTIONS, attempts=6, rounds=4, half_length_every=2))
    longest = {done.record.round: int(done.attempts.length.max()) for done in rounds}
    assert longest[1] > 1
    assert all(length <= 1 for number, length in longest.items() if number % 2 == 0)


def are_equal(one: object, other: object) -> bool:
    return all(np.array_equal(getattr(one, part.name), getattr(other, part.name)) for part in fields(one))  # type: ignore[arg-type]


def test_a_loop_that_continues_from_saved_rounds_ends_as_if_it_had_never_stopped() -> None:
    log = crossing()
    config = replace(
        TWO_ACTIONS,
        candidates=CandidateConfig(lengths="all", per_source=2),
        samples=10,
        attempts=8,
        rounds=4,
        neighbour_share=1.0,
    )
    whole = rounds_of(log, config)
    assert len(whole) == 4
    history = History.empty(whole[0].solution.mdp.real_count)
    for count, done in enumerate(whole[:-1], 1):
        history = history.extended(done.attempts)
        rounds = range(count + 1, config.rounds + 1)
        with compilations() as names:
            rest = list(stitch(done.solution.mdp, plane_context(log), config, seed=0, history=history, rounds=rounds))
        assert "jit(gauss_newton)" not in names  # nothing is compiled again
        assert [later.record for later in rest] == [later.record for later in whole[count:]]
        assert all(are_equal(one.attempts, two.attempts) for one, two in zip(rest, whole[count:], strict=True))
        assert are_equal(rest[-1].solution.mdp, whole[-1].solution.mdp)
    other = rounds_of(log, config, seed=1)
    assert [done.record for done in other] != [done.record for done in whole]


def test_two_stitches_that_gain_only_together_are_found_through_neighbours_of_the_rollout() -> None:
    log = three_lanes()
    own, both = (rounds_of(log, replace(ONE_ACTION, neighbour_share=share)) for share in (0.0, 1.0))

    def attempts_from_the_middle_lane(done: Round) -> int:
        return int(np.isclose(done.solution.mdp.states[done.attempts.source, 1], 0.05).sum())

    assert own[0].record.tried > 0
    assert attempts_from_the_middle_lane(own[0]) == 0
    assert attempts_from_the_middle_lane(both[0]) > 0
    # two steps to change lanes, eight to the right, then 1 for ever
    best = GAMMA**10 / (1 - GAMMA)
    assert own[1].record.value < best
    assert both[1].record.value == pytest.approx(best)


def test_recovery_rounds_stitch_states_near_the_rollouts_back_to_them() -> None:
    log = small_log(60)
    config = replace(
        TWO_ACTIONS,
        candidates=CandidateConfig(per_source=2),
        neighbours=NeighbourConfig(),
        samples=50,
        attempts=30,
        rounds=2,
        recovery_rounds=2,
        tolerance=0.1,
    )
    *_, before, after, last = rounds_of(log, config)
    assert [done.record.round for done in (before, after, last)] == [2, 3, 4]
    visited = reachable(before.solution.mdp, before.solution.policy, before.solution.mdp.starts)
    assert len(after.attempts)
    assert not np.isin(after.attempts.source, visited).any()
    assert np.isin(after.attempts.target, visited).all()
    sources = after.stitches.source
    assert len(sources)
    assert np.all(after.solution.value[sources] > before.solution.value[sources])
    assert len(np.unique(after.attempts.source)) == len(after.attempts)  # one attempt each


def test_discrete_actions_are_stitched_too() -> None:
    # one episode goes round forwards from 0 to 4, which has reward 1; another begins at 2 and goes back
    step = 0.2 * np.pi
    before, after = np.array([0, 1, 2, 3, 2, 1, 0, 9]), np.array([1, 2, 3, 4, 1, 0, 9, 8])
    states, next_states = (
        np.stack([np.cos(step * one), np.sin(step * one)], axis=1).astype(np.float32) for one in (before, after)
    )
    states[4:] += 0.001  # nearly the same, so that they are other states
    next_states[4:] += 0.001
    log = Dataset.from_arrays(
        states,
        np.array([1, 1, 1, 1, 0, 0, 0, 0]),
        np.array([0.0, 0, 0, 1, 0, 0, 0, 0], dtype=np.float32),
        next_observations=next_states,
        timeouts=np.array([0, 0, 0, 1, 0, 0, 0, 1], dtype=bool),
    ).with_starts(np.array([4]))
    context = context_of(Ring(jnp.zeros((2, 1, 1))), ScaledMetric.of(log, "raw"), bounds=(np.zeros(2), np.ones(2)))
    config = replace(
        ONE_ACTION,
        max_length=2,
        half_length_every=None,
        candidates=CandidateConfig(),
        neighbours=NeighbourConfig(count=4, scales=(1.0,)),
    )
    rounds = list(stitch_all(from_dataset(log, gamma=GAMMA), context, config))
    assert rounds[-1].solution.mdp.action.dtype.kind == "i"
    # from 2 forwards to 3 and to 4, which earns 1, and then back to 3 and to 4 again for ever
    assert rounds[-1].record.value == pytest.approx(GAMMA / (1 - GAMMA**2))
    assert all(2 ** int(done.stitches.length.max(initial=0)) <= MAX_STITCH_SEQUENCES for done in rounds)


@pytest.mark.slow
def test_longer_stitches_raise_the_value_further(two_action_rounds: list[Round]) -> None:
    longer = rounds_of(crossing(), replace(TWO_ACTIONS, max_length=6))
    assert longer[-1].record.value > two_action_rounds[-1].record.value
