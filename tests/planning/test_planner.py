"""Planning in worlds whose solution is known, by descent, by sampling and by exhaustive search."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import lsq_linear

from bats.arrays import take
from bats.metric.scaled import ScaledMetric
from bats.planning import cross_entropy
from bats.planning.context import Problems
from bats.planning.planner import BATCH, MAX_SEQUENCES, SMALL_BATCH, end_error, plan
from tests.compilations import compilations
from tests.known_worlds import LinearWorld, context_of

METHODS = {"gauss-newton": 1e-4, "cross-entropy": 4e-2}
"""and how close they come"""
LENGTH = 2
"""one length for most tests, so that they share compiled programs"""


def cart(*, shift: float = 0.0) -> LinearWorld:
    """Position and speed on a line: the action changes the speed by up to 0.2, the speed the position.

    The three members end a little to either side and in between.
    """
    members = 3
    by_state = jnp.broadcast_to(jnp.array([[0.0, 0.0], [0.1, 0.0]]), (members, 2, 2))
    by_action = jnp.broadcast_to(jnp.array([[0.0, 0.2]]), (members, 1, 2))
    shifts = jnp.array([-shift, 0.0, shift])[:, None, None] * jnp.ones((1, 1, 2))
    return LinearWorld((by_state, by_action, shifts))


def from_rest(target: np.ndarray, length: int = LENGTH, *, width: int = 1) -> Problems:
    """Problems that begin in the origin, with room for two actions and more."""
    count, room = len(target), max(length, LENGTH)
    source, actions = np.zeros_like(target, dtype=np.float32), np.zeros((count, room, width), dtype=np.float32)
    return Problems(source, np.asarray(target, dtype=np.float32), np.full(count, length), actions)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the iterations of the paper, to come closer."""
    monkeypatch.setattr(cross_entropy, "ITERATIONS", 12)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("method", METHODS)
def test_the_only_solution_within_the_bounds_is_found(method: str) -> None:
    # two steps of 0.1: speed 0.2(a1 + a2), position 0.1 * 0.2 a1, so a1 = x / 0.02 and a2 = v / 0.2 - a1
    solution = np.array([[0.3, -0.5], [-0.7, 0.2], [0.0, 0.9]])
    target = np.stack([0.02 * solution[:, 0], 0.2 * solution.sum(axis=1)], axis=1)
    plans = plan(context_of(cart()), from_rest(target), method, tolerance=1e-9, seed=0)
    assert end_error(plans.distance) == pytest.approx(np.zeros(3), abs=METHODS[method])
    if method == "gauss-newton":
        assert plans.action[:, :, 0] == pytest.approx(solution, abs=1e-3)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("method", METHODS)
def test_a_target_out_of_reach_is_approached_as_far_as_the_bounds_allow(method: str) -> None:
    target = np.random.default_rng(0).normal(scale=[0.01, 0.2], size=(20, 2))
    plans = plan(context_of(cart()), from_rest(target), method, tolerance=1e-9, seed=0)
    jacobian = np.array([[0.02, 0.0], [0.2, 0.2]])
    best = [np.sqrt(2 * lsq_linear(jacobian, goal, (-1, 1)).cost) for goal in target]
    assert min(best) < 1e-3 < max(best)  # some are in reach, some are not
    assert end_error(plans.distance) == pytest.approx(np.array(best), abs=METHODS[method])
    assert np.abs(plans.action).max() <= 1


def test_problems_of_several_lengths_are_planned_with_their_own() -> None:
    solution = np.array([0.5, -0.25])
    target = np.array([[0.0, 0.2 * solution[0]], [0.02 * solution[1], 0.2 * solution[1]]], dtype=np.float32)
    problems = Problems(np.zeros((2, 2), np.float32), target, np.array([1, 2]), np.zeros((2, 2, 1), np.float32))
    plans = plan(context_of(cart()), problems, "gauss-newton", tolerance=0.05, seed=0)
    assert end_error(plans.distance) == pytest.approx([0, 0], abs=1e-4)
    assert plans.action[0, 0, 0] == pytest.approx(0.5, abs=1e-3)
    assert plans.action[1, :, 0] == pytest.approx([-0.25, 0.0], abs=1e-3)
    # the reward is the position after each step, the last one that of the target, and 0 beyond the length
    assert plans.reward[1, :, 1] == pytest.approx([0.0, target[1, 0]], abs=1e-5)
    assert plans.reward[0, :, 1] == pytest.approx([target[0, 0], 0.0], abs=1e-5)


def reported(method: str, count: int) -> list[tuple[str, int, int]]:
    """The progress of planning some problems without a solution."""
    calls: list[tuple[str, int, int]] = []
    context = replace(context_of(cart()), progress=lambda *call: calls.append(call))
    plan(context, from_rest(np.full((count, 2), 9.0)), method, tolerance=1e-9, seed=0)
    return calls


def test_progress_moves_with_every_batch_that_is_planned() -> None:
    count = BATCH + 2 * SMALL_BATCH
    done = [0, BATCH, BATCH + SMALL_BATCH, count]
    assert reported("gauss-newton", count) == [("planning", part, count) for part in done]


def test_progress_moves_with_every_batch_of_every_draw() -> None:
    draws = cross_entropy.ITERATIONS
    expected = [(f"planning (iteration {draw} of {draws})", done, 20) for draw in range(1, 7) for done in (0, 8, 16)]
    assert reported("cross-entropy", 20) == expected


def test_sampled_plans_of_several_lengths_come_back_in_the_order_of_the_problems() -> None:
    target = np.array([[0.0, 0.1], [0.01, 0.1], [0.0, -0.1]], dtype=np.float32)
    problems = Problems(np.zeros((3, 2), np.float32), target, np.array([1, 2, 1]), np.zeros((3, 2, 1), np.float32))
    plans = plan(context_of(cart()), problems, "cross-entropy", tolerance=0.03, seed=0)
    assert end_error(plans.distance) == pytest.approx(np.zeros(3), abs=0.03)
    assert plans.action[[0, 2], 0, 0] == pytest.approx([0.5, -0.5], abs=0.15)
    assert np.all(plans.action[[0, 2], 1] == 0)


def test_the_end_error_is_the_quantile_of_the_members_distances() -> None:
    """Two of three members end 0.01 off in both numbers; a quarter of the way there are half of that."""
    plans = plan(
        context_of(cart(shift=0.01)), from_rest(np.array([[0.0, 0.1]]), 1), "gauss-newton", tolerance=1.0, seed=0
    )
    off = np.hypot(0.01, 0.01)
    assert np.sort(plans.distance[0]) == pytest.approx([0.0, off, off], abs=1e-5)
    assert end_error(plans.distance, 0.5) == pytest.approx([off], abs=1e-5)
    assert end_error(plans.distance, 0.25) == pytest.approx([off / 2], abs=1e-5)


def test_the_end_error_of_some_diverging_members_is_infinite_only_where_the_quantile_needs_them() -> None:
    distance = np.array([[0.1, 0.1, 0.1, np.inf, np.inf]])
    assert np.isinf(end_error(distance, 0.8)[0])
    assert end_error(distance, 0.5)[0] == pytest.approx(0.1)
    rng = np.random.default_rng(0)
    finite = rng.random((20, 5))
    for quantile in (0.0, 0.3, 0.8, 1.0):
        assert end_error(finite, quantile) == pytest.approx(np.quantile(finite, quantile, axis=1))


def test_the_last_step_leans_from_the_mean_towards_the_quantile() -> None:
    """Speeds at the end are x + (0, 0.05, 0.2), where x is up to the action. Their mean is 0 at x = -1/12, where the
    quantile is 0.4 * 1/12 + 0.6 * 7/60 = 0.1033; its minimum is 0.1, at x = -0.1."""
    shift = jnp.array([0.0, 0.05, 0.2])[:, None, None] * jnp.array([0.0, 1.0])
    world = LinearWorld((*cart().networks[:2], shift))
    plans = plan(context_of(world), from_rest(np.zeros((1, 2)), 1), "gauss-newton", tolerance=1.0, seed=0)
    assert 0.1 - 1e-6 < end_error(plans.distance)[0] < 0.1025


@pytest.mark.parametrize("method", METHODS)
def test_a_plan_that_diverges_has_an_infinite_error(method: str) -> None:
    diverging = LinearWorld((jnp.full((3, 2, 2), jnp.nan), jnp.ones((3, 1, 2)), jnp.zeros((3, 1, 2))))
    plans = plan(context_of(diverging), from_rest(np.zeros((2, 2))), method, tolerance=9.0, seed=0)
    assert np.all(np.isinf(plans.distance))
    assert np.all(np.isinf(end_error(plans.distance)))


@pytest.mark.parametrize("length", [4, 6])
def test_discrete_actions_are_searched_exhaustively_or_sampled_and_found_either_way(length: int) -> None:
    """Five actions push by -0.2 … 0.2; of four there are 625 sequences, of six too many."""
    assert 5**4 <= MAX_SEQUENCES < 5**6
    push = np.array([-0.2, -0.1, 0.0, 0.1, 0.2])
    by_action = jnp.broadcast_to(jnp.asarray([[0.0, one] for one in push]), (3, 5, 2))
    by_state = jnp.broadcast_to(jnp.array([[0.0, 0.0], [0.1, 0.0]]), (3, 2, 2))
    world = LinearWorld((by_state, by_action, jnp.zeros((3, 1, 2))), action_count=5)
    pushes = push[np.random.default_rng(length).integers(0, 5, size=(4, length))]
    speed = np.cumsum(pushes, axis=1)
    target = np.stack([0.1 * speed[:, :-1].sum(axis=1), speed[:, -1]], axis=1)
    problems = replace(from_rest(target, length, width=5), actions=np.full((4, length, 5), 0.2, np.float32))
    context = context_of(world, bounds=(np.zeros(5), np.ones(5)))
    plans = plan(context, problems, "gauss-newton", tolerance=0.01, seed=0)
    assert end_error(plans.distance) == pytest.approx(np.zeros(4), abs=1e-4 if length == 4 else 0.03)
    assert np.all(plans.action.sum(axis=2) == 1)
    assert set(np.unique(plans.action)) <= {0.0, 1.0}


def test_sampling_stops_at_the_first_plan_within_the_tolerance_and_is_repeated_by_its_seed() -> None:
    target = np.random.default_rng(0).normal(scale=[0.005, 0.05], size=(9, 2))
    context, problems = context_of(cart()), from_rest(target)
    first, again = (plan(context, problems, "cross-entropy", tolerance=0.03, seed=5) for _ in range(2))
    assert np.all(end_error(first.distance) < 0.03)
    assert np.array_equal(first.action, again.action)
    longer = plan(context, problems, "cross-entropy", tolerance=1e-9, seed=5)
    assert end_error(longer.distance).mean() < end_error(first.distance).mean()


@pytest.mark.slow
def test_a_plan_does_not_depend_on_the_batch_it_is_made_in() -> None:
    """Many problems make a large batch and two small ones, of which the last is filled up; few make one small batch."""
    count = BATCH + SMALL_BATCH + 10
    target = np.random.default_rng(0).normal(scale=[0.01, 0.2], size=(count, 2))
    context, problems = context_of(cart(shift=0.01)), from_rest(target)
    whole = plan(context, problems, "gauss-newton", tolerance=1.0, seed=0)
    assert len(whole.action) == count
    rows = np.array([0, 1, BATCH - 1, BATCH, BATCH + SMALL_BATCH - 1, BATCH + SMALL_BATCH, count - 1])
    few = plan(context, take(problems, rows), "gauss-newton", tolerance=1.0, seed=0)
    assert few.action == pytest.approx(whole.action[rows], abs=1e-4)
    assert few.distance == pytest.approx(whole.distance[rows], abs=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_planning_again_compiles_nothing_even_with_another_model_and_metric(method: str) -> None:
    problems = from_rest(np.array([[0.0, 0.1], [0.01, 0.1]]))
    plan(context_of(cart()), problems, method, tolerance=1e-9, seed=0)
    other = context_of(cart(shift=0.02), ScaledMetric(np.array([2.0, 0.5], dtype=np.float32)))
    with compilations() as names:
        plan(other, from_rest(np.array([[0.0, -0.1]])), method, tolerance=1e-9, seed=1)
    assert names == []
