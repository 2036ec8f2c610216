"""Stitching with a metric that is learned on the way: errors measured anew by hand, and phases that can be stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial import cKDTree

from bats.arrays import Metric
from bats.config import BisimulationConfig, Config
from bats.graph.mdp import Stitches, TabularMDP, from_dataset
from bats.graph.relabel import stitch_errors, value_of_a_step
from bats.graph.solve import policy_iteration
from bats.metric.scaled import ScaledMetric
from bats.model.held_out import LocalErrors
from bats.networks.files import tree_arrays
from bats.planning.context import PlanningContext
from bats.stitching.loop import Round
from bats.stitching.metric_refresh import Finished, Refresh, in_steps, remeasured_errors, stitch_with_refresh
from tests.known_worlds import Plane, context_of, plane
from tests.small_runs import SMALL, small_log

Event = Refresh | Round | Finished
TOLERANCE = 27.5
CONFIG = replace(
    SMALL,
    metric="bisimulation",
    stitch=replace(
        SMALL.stitch, tolerance=TOLERANCE, rounds=3, recovery_rounds=1, max_length=2, half_length_every=None
    ),
    bisimulation=BisimulationConfig(
        hidden=(8,), horizon=20, updates=60, batch_size=16, refresh_rounds=2, refresh_updates=20
    ),
)
STATES = np.array([[0.0, 0.0], [1.0, 0.0]], dtype=np.float32)


def two_plans() -> Stitches:
    """From (0, 0) to (1, 0): in two actions, which end in (0.9, 0.2), and in one, which ends in (1, 0)."""
    return Stitches(
        source=np.array([0, 0]),
        target=np.array([1, 1]),
        length=np.array([2, 1]),
        action=np.array([[[0.5, 0.1], [0.4, 0.1]], [[1.0, 0.0], [7.0, 7.0]]], dtype=np.float32),
        state=np.array([[[0.5, 0.1]], [[0.0, 0.0]]]),
        reward=np.zeros((2, 2)),
        planning_error=np.array([5.0, 6.0], dtype=np.float32),  # by another metric
    )


def test_remeasured_errors_are_those_of_the_stored_actions_by_the_new_metric() -> None:
    # three members, off by -0.1, 0 and 0.1 along the first number in every step; the second number counts twice
    world = Plane(jnp.array([-0.1, 0.0, 0.1])[:, None, None] * jnp.array([1.0, 0.0]))
    metric = ScaledMetric(np.array([1.0, 2.0], dtype=np.float32))
    # two steps: ends (0.7, 0.2), (0.9, 0.2), (1.1, 0.2), at distances 0.5, √0.17 and √0.17; one step: 0.1, 0, 0.1
    context = context_of(world, metric)
    assert remeasured_errors(context, STATES, [two_plans()], quantile=1.0) == pytest.approx([0.5, 0.1], abs=1e-6)
    assert remeasured_errors(context, STATES, [two_plans()], quantile=0.5) == pytest.approx([0.17**0.5, 0.1], abs=1e-6)
    # the model is wrong by 0.3 near (0, 0) and by 0.02 near (0.5, 0.1), eight rows in each place
    places = np.array([[0.0, 0.0], [0.5, 0.2]]).repeat(8, axis=0)
    local = LocalErrors(cKDTree(places), np.array([[0.3], [0.02]]).repeat(8, axis=0))
    both = remeasured_errors(replace(context, local_errors=local), STATES, [two_plans(), two_plans()], quantile=1.0)
    assert both == pytest.approx([0.82, 0.4, 0.82, 0.4], abs=1e-6)


def test_a_plan_that_diverges_in_any_member_has_an_infinite_error() -> None:
    context = context_of(plane(0.0, 0.0, np.nan))
    assert np.isinf(remeasured_errors(context, STATES, [two_plans()], quantile=1.0)).all()


def test_rounds_without_stitches_have_no_errors() -> None:
    nothing = Stitches(
        source=np.zeros(0, dtype=int),
        target=np.zeros(0, dtype=int),
        length=np.zeros(0, dtype=int),
        action=np.zeros((0, 2, 2)),
        state=np.zeros((0, 1, 2)),
        reward=np.zeros((0, 2)),
        planning_error=np.zeros(0),
    )
    context = context_of(plane(0.0, 0.0, 0.0))
    assert len(remeasured_errors(context, STATES, [])) == 0
    assert len(remeasured_errors(context, STATES, [nothing, two_plans(), nothing])) == 2


def context(metric: Metric) -> PlanningContext:
    bounds = (np.full(2, -0.1), np.full(2, 0.1))
    return context_of(plane(-0.01, 0.0, 0.01), metric, bounds=bounds)


def log_mdp() -> tuple[TabularMDP, float]:
    """The MDP of the small log with a small penalty, and the value of a step."""
    mdp = from_dataset(small_log(), gamma=SMALL.gamma)
    step_value = value_of_a_step(mdp, policy_iteration(mdp).value)
    return replace(mdp, penalty=0.02 * step_value), step_value


def stitched(saved: list[Event] | None = None, config: Config = CONFIG) -> Iterator[Event]:
    """All events, or those that follow saved ones."""
    mdp, step_value = log_mdp()
    rounds = [event for event in saved or [] if isinstance(event, Round)]
    metrics = [event for event in saved or [] if isinstance(event, Refresh)]
    return stitch_with_refresh(
        mdp,
        context,
        config,
        seed=0,
        step_value=step_value,
        saved_rounds=[(done.stitches, done.attempts) for done in rounds],
        saved_metric=metrics[-1] if metrics else None,
    )


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return list(stitched())


@pytest.mark.slow
def test_the_metric_is_learned_before_the_first_round_every_few_rounds_and_after_the_last(events: list[Event]) -> None:
    numbers = [
        ("metric", event.rounds) if isinstance(event, Refresh) else ("round", event.record.round)
        for event in events[:-1]
        if not isinstance(event, Finished)
    ]
    assert numbers[:4] == [("metric", 0), ("round", 1), ("round", 2), ("metric", 2)]
    rounds = [number for kind, number in numbers if kind == "round"]
    assert rounds == list(range(1, len(rounds) + 1))
    assert numbers[-1] == ("metric", len(rounds))
    assert isinstance(events[-1], Finished)


def test_no_other_metric_is_learned_when_no_plan_ever_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bats.stitching.history.MAX_FAILED_PLANS", 1)
    hopeless = replace(CONFIG, stitch=replace(CONFIG.stitch, tolerance=1e-6))
    events = list(stitched(config=hopeless))
    assert [type(event) for event in events] == [Refresh, Round, Finished]
    # and none when it is continued after its round
    assert [type(event) for event in stitched(events[:2], hopeless)] == [Finished]


@pytest.mark.slow
def test_the_finished_graph_has_the_errors_by_the_last_metric_alone(events: list[Event]) -> None:
    finished, last = events[-1], events[-2]
    assert isinstance(finished, Finished)
    assert isinstance(last, Refresh)
    rounds = [event.stitches for event in events if isinstance(event, Round)]
    _, step_value = log_mdp()
    by_last = context(in_steps(last.metric, step_value))
    expected = remeasured_errors(by_last, finished.mdp.states, rounds)
    assert len(expected) == sum(len(stitches) for stitches in rounds) > 0
    assert finished.error == pytest.approx(expected)
    assert stitch_errors(finished.mdp) == pytest.approx(expected, rel=1e-6)
    as_planned = np.concatenate([stitches.planning_error for stitches in rounds])
    assert finished.error != pytest.approx(as_planned, rel=1e-2)


@pytest.mark.slow
def test_stitches_beyond_the_tolerance_are_left_out_while_a_metric_is_in_use(events: list[Event]) -> None:
    _, step_value = log_mdp()
    rounds: list[Stitches] = []
    metric, measured, left_out = None, 0, 0
    for event in events:
        if isinstance(event, Refresh):
            metric, measured = event.metric, len(rounds)
        elif isinstance(event, Round):
            rounds.append(event.stitches)
            assert metric is not None
            error = remeasured_errors(
                context(in_steps(metric, step_value)), event.solution.mdp.states, rounds[:measured]
            )
            kept = event.solution.mdp.stitch_length[: len(error)] > 0
            assert np.array_equal(kept, error < TOLERANCE)
            left_out += int(np.count_nonzero(~kept))
    assert left_out > 0


@pytest.mark.slow
def test_distances_in_steps_are_those_in_value_over_the_value_of_a_step(events: list[Event]) -> None:
    assert isinstance(events[0], Refresh)
    metric, states = events[0].metric, small_log().observations[:20]
    assert in_steps(metric, 0.25).embed(states) == pytest.approx(4 * metric.embed(states), rel=1e-5)


def assert_equal(one: Event, other: Event) -> None:
    assert type(one) is type(other)
    if isinstance(one, Refresh) and isinstance(other, Refresh):
        first, second = tree_arrays(one.metric), tree_arrays(other.metric)
        assert one.rounds == other.rounds
        assert all(np.array_equal(first[name], second[name]) for name in second)
    elif isinstance(one, Round) and isinstance(other, Round):
        assert one.record == other.record
        assert np.array_equal(one.stitches.action, other.stitches.action)
        assert np.array_equal(one.attempts.error, other.attempts.error)
    elif isinstance(one, Finished) and isinstance(other, Finished):
        assert np.array_equal(one.error, other.error)
        assert np.array_equal(one.mdp.planning_error, other.mdp.planning_error)
        assert np.array_equal(one.mdp.target, other.mdp.target)


@pytest.mark.slow
def test_stitching_that_is_stopped_after_any_event_ends_as_if_it_had_never_stopped(events: list[Event]) -> None:
    """No metric is learned twice, and no round is made twice."""
    for count in range(1, len(events)):
        rest = list(stitched(events[:count]))
        assert len(rest) == len(events) - count
        for one, other in zip(rest, events[count:], strict=True):
            assert_equal(one, other)
