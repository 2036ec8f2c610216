"""Planning against systems whose answer is known."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from scipy.optimize import lsq_linear

from bats.model.ensemble import Dynamics, DynamicsConfig, blank_scale, new_networks, states_along
from bats.planning.cross_entropy import CrossEntropyConfig
from bats.planning.gauss_newton import boxed_step, step_jacobians
from bats.planning.planner import PlannerConfig, Plans, Problems, plan

BOX = (np.array([-1.0]), np.array([1.0]))


class LinearWorld(eqx.Module):
    """next = state + state·A + action·B, the same for each of three members but for a small shift."""

    networks: tuple[Float[Array, "M D D"], Float[Array, "M A D"], Float[Array, "M 1 D"]]
    action_count: int | None = eqx.field(static=True, default=None)

    @property
    def member_count(self) -> int:
        return self.networks[0].shape[0]

    def change(self, states: Array, actions: Array) -> tuple[Array, Array]:
        by_state, by_action, shift = self.networks
        change = states @ by_state + actions @ by_action + shift
        return change, jnp.zeros_like(change)

    def reward(self, states: Array, actions: Array, after: Array) -> Array:
        return after[..., 0]


def cart(*, shift: float = 0.0, push: float = 0.2) -> LinearWorld:
    """Position and speed on a line: the action changes the speed, the speed the position."""
    members = 3
    by_state = jnp.broadcast_to(jnp.array([[0.0, 0.0], [0.1, 0.0]]), (members, 2, 2))
    by_action = jnp.broadcast_to(jnp.array([[0.0, push]]), (members, 1, 2))
    shifts = jnp.array([-shift, 0.0, shift])[:, None, None] * jnp.ones((1, 1, 2))
    return LinearWorld((by_state, by_action, shifts))


def same(states: Float[Array, "... D"]) -> Float[Array, "... D"]:
    return states


def reached(world: LinearWorld, source: np.ndarray, actions: np.ndarray) -> np.ndarray:
    return np.asarray(states_along(world, jnp.asarray(source), jnp.asarray(actions))[1, :, -1])


def problems(source: list[float], target: np.ndarray, length: int, *, width: int = 1) -> Problems:
    count = len(target)
    start = np.tile(np.array(source, dtype=np.float32), (count, 1))
    actions = np.zeros((count, length, width), dtype=np.float32)
    return Problems(start, np.asarray(target, dtype=np.float32), np.full(count, length), actions)


PLANNERS = {
    "gauss-newton": (PlannerConfig(fallback=False), 1e-4),
    "cross-entropy": (PlannerConfig(method="cross-entropy", cross_entropy=CrossEntropyConfig(iterations=12)), 4e-2),
}


@pytest.mark.parametrize("method", PLANNERS)
def test_the_only_solution_inside_the_box_is_found(method: str) -> None:
    # two steps of 0.1: speed 0.2(a1 + a2), position 0.1 * 0.2 a1, so a1 = x / 0.02 and a2 = v / 0.2 - a1
    config, near = PLANNERS[method]
    wanted = np.array([[0.3, -0.5], [-0.7, 0.2], [0.0, 0.9]])
    target = np.stack([0.02 * wanted[:, 0], 0.2 * wanted.sum(axis=1)], axis=1)
    found = plan(cart(), same, problems([0.0, 0.0], target, 2), config, box=BOX, tolerance=0.05, seed=0)
    assert found.error(0.8) == pytest.approx(np.zeros(3), abs=near)
    if method == "gauss-newton":
        assert found.action[:, :, 0] == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("method", PLANNERS)
def test_a_target_out_of_reach_is_approached_as_far_as_the_box_allows(method: str) -> None:
    config, near = PLANNERS[method]
    length, rng = 3, np.random.default_rng(0)
    target = rng.normal(scale=[0.1, 0.5], size=(20, 2))
    found = plan(cart(), same, problems([0.0, 0.0], target, length), config, box=BOX, tolerance=0.05, seed=0)
    slope = np.array([[0.02 * (length - 1 - step) for step in range(length)], [0.2] * length])
    best = [np.sqrt(2 * lsq_linear(slope, goal, (-1, 1)).cost) for goal in target]
    assert min(best) < 0.01 < max(best)  # some in reach, some not
    assert found.error(0.8) == pytest.approx(np.array(best), abs=near)
    assert np.abs(found.action).max() <= 1


def test_boxed_steps_equal_scipys_bounded_least_squares() -> None:
    rng = np.random.default_rng(1)
    count, entries = 200, 12
    slope, error = rng.normal(size=(count, 4, entries)), rng.normal(size=(count, 4)) * rng.uniform(1, 12, (count, 1))
    start = rng.uniform(-1, 1, (count, entries))
    room = [jnp.asarray(edge - start, jnp.float32) for edge in (-1, 1)]
    step = boxed_step(jnp.asarray(slope, jnp.float32), jnp.asarray(error, jnp.float32), *room, jnp.full(count, 1e-6))
    left = np.linalg.norm(error + np.einsum("bmn,bn->bm", slope, np.asarray(step)), axis=1)
    best = [
        np.sqrt(2 * lsq_linear(slope[i], -error[i], (-1.000001 - start[i], 1.000001 - start[i])).cost)
        for i in range(count)
    ]
    assert np.quantile(left / (np.array(best) + 0.1), 0.99) < 1.01
    assert np.mean(np.array(best) > 0.1) > 0.2  # the box stands in the way of many
    assert np.all(np.asarray(step) >= np.asarray(room[0]))
    assert np.all(np.asarray(step) <= np.asarray(room[1]))


def network_model(*, width: int = 3, actions: int = 2, members: int = 5, action_count: int | None = None) -> Dynamics:
    """An untrained ensemble: any smooth function will do."""
    config = DynamicsConfig(members=members, elites=members, hidden=(32, 32))
    networks = new_networks(config, state_width=width, action_width=actions, ends=False, key=jax.random.key(3))
    return Dynamics(
        networks,
        states=blank_scale(width),
        actions=blank_scale(actions),
        changes=blank_scale(width),
        rewards=blank_scale(1),
        binary_reward=False,
        action_count=action_count,
    )


def test_step_jacobians_equal_finite_differences() -> None:
    model = network_model(members=1)
    rng = np.random.default_rng(0)
    state, action = (jnp.asarray(rng.normal(size=(4, n)), jnp.float32) for n in (3, 2))
    by_state, by_action = step_jacobians(model, state, action)

    def following(state: Array, action: Array) -> np.ndarray:
        return np.asarray(states_along(model, state, action[:, None])[0, :, 0], dtype=np.float64)

    small = 1e-2
    for number in range(3):
        nudge = small * jnp.eye(3)[number]
        slope = (following(state + nudge, action) - following(state - nudge, action)) / (2 * small)
        assert np.asarray(by_state[:, :, number]) == pytest.approx(slope, abs=2e-3)
    for number in range(2):
        nudge = small * jnp.eye(2)[number]
        slope = (following(state, action + nudge) - following(state, action - nudge)) / (2 * small)
        assert np.asarray(by_action[:, :, number]) == pytest.approx(slope, abs=2e-3)


def test_gauss_newton_never_does_worse_than_its_start_and_reaches_what_a_bent_model_can() -> None:
    """Targets are ends of action sequences, so a solution exists; the start is some way off."""
    model, rng = network_model(), np.random.default_rng(0)
    source = rng.normal(size=(64, 3)).astype(np.float32)
    truth = rng.uniform(-0.6, 0.6, (64, 4, 2)).astype(np.float32)
    target = np.asarray(states_along(model, jnp.asarray(source), jnp.asarray(truth))[:, :, -1].mean(axis=0))
    start = np.clip(truth + rng.normal(scale=0.3, size=truth.shape), -1, 1).astype(np.float32)
    task = Problems(source, target, np.full(64, 4), start)
    box = (np.full(2, -1.0), np.full(2, 1.0))
    still, moving = PlannerConfig(iterations=0, more_iterations=0, fallback=False), PlannerConfig(iterations=6)
    exact = Problems(source, target, np.full(64, 4), truth)
    before, true_plans, after = (
        plan(model, same, what, config, box=box, tolerance=1e-9, seed=0)
        for what, config in ((task, still), (exact, still), (task, replace(moving, fallback=False)))
    )
    true_error = true_plans.error(0.8)
    assert np.all(after.error(0.8) <= before.error(0.8))
    # what is left is the members' disagreement, which no plan can remove
    assert np.median(after.error(0.8)) <= 1.1 * np.median(true_error)


def test_plans_of_several_lengths_are_planned_each_with_its_own() -> None:
    wanted = np.array([0.5, -0.25])
    target = np.array([[0.0, 0.2 * wanted[0]], [0.02 * wanted[1], 0.2 * wanted[1]]])
    task = Problems(
        np.zeros((2, 2), np.float32), target.astype(np.float32), np.array([1, 2]), np.zeros((2, 2, 1), np.float32)
    )
    found = plan(cart(), same, task, PlannerConfig(fallback=False), box=BOX, tolerance=0.05, seed=0)
    assert found.error(0.8) == pytest.approx([0, 0], abs=1e-4)
    assert found.action[0, 0, 0] == pytest.approx(0.5, abs=1e-3)
    assert found.action[1, :, 0] == pytest.approx([-0.25, 0.0], abs=1e-3)
    # the reward is the position after each step, and the last one that of the target itself
    assert found.reward[1, :, 1] == pytest.approx([0.0, target[1, 0]], abs=1e-5)


def test_the_error_is_the_quantile_of_the_members_distances() -> None:
    """Members end 0.01 off in both numbers, to either side, so the 80th percentile lies between 0.0141 and the same."""
    found = plan(
        cart(shift=0.01),
        same,
        problems([0.0, 0.0], np.array([[0.0, 0.1]]), 1),
        PlannerConfig(fallback=False),
        box=BOX,
        tolerance=1.0,
        seed=0,
    )
    assert np.sort(found.distance[0]) == pytest.approx([0.0, np.hypot(0.01, 0.01), np.hypot(0.01, 0.01)], abs=1e-5)
    assert found.error(0.5) == pytest.approx([np.hypot(0.01, 0.01)], abs=1e-5)
    assert found.error(0.25) == pytest.approx([np.hypot(0.01, 0.01) / 2], abs=1e-5)


def test_the_last_step_leans_from_the_mean_towards_the_quantile() -> None:
    """Ends are a + (0, 0, 0, 0.1, 0.4). The mean is hit with a = -0.1, where the quantile is 0.8 * 0.1 + 0.2 * 0.3 =
    0.14; it is least, 0.11, at a = -0.05."""
    shift = jnp.array([0.0, 0.0, 0.0, 0.1, 0.4])[:, None, None]
    world = LinearWorld((jnp.zeros((5, 1, 1)), jnp.ones((5, 1, 1)), shift))
    task = problems([0.0], np.zeros((1, 1)), 1)
    found = plan(world, same, task, PlannerConfig(fallback=False), box=BOX, tolerance=1.0, seed=0)
    assert 0.11 - 1e-6 < found.error(0.8)[0] < 0.125


@pytest.mark.parametrize("method", PLANNERS)
def test_a_plan_that_runs_away_is_a_rejection(method: str) -> None:
    wild = LinearWorld((jnp.full((3, 2, 2), jnp.nan), jnp.ones((3, 1, 2)), jnp.zeros((3, 1, 2))))
    found = plan(
        wild, same, problems([0.0, 0.0], np.zeros((2, 2)), 2), PLANNERS[method][0], box=BOX, tolerance=9.0, seed=0
    )
    assert np.all(np.isinf(found.distance))
    assert not found.accepted(0.8, 1e30).any()
    some = Plans(
        np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), np.zeros((1, 1, 5)), np.array([[0.1, 0.1, 0.1, np.inf, np.inf]])
    )
    assert np.isinf(some.error(0.8)[0])
    assert some.error(0.5)[0] == pytest.approx(0.1)


def test_discrete_actions_are_tried_one_by_one_or_sampled_and_found_either_way() -> None:
    """Five actions push by -0.2 … 0.2; a sequence of four is found exactly, one of six by sampling."""
    pushes = jnp.array([[0.0, push] for push in (-0.2, -0.1, 0.0, 0.1, 0.2)])
    by_state = jnp.broadcast_to(jnp.array([[0.0, 0.0], [0.1, 0.0]]), (3, 2, 2))
    world = LinearWorld((by_state, jnp.broadcast_to(pushes, (3, 5, 2)), jnp.zeros((3, 1, 2))), action_count=5)
    box = (np.zeros(5), np.ones(5))
    for length in (4, 6):
        chosen = np.random.default_rng(length).integers(0, 5, size=(4, length))
        sequence = np.eye(5, dtype=np.float32)[chosen]
        target = reached(world, np.zeros((4, 2), np.float32), sequence)
        task = problems([0.0, 0.0], target, length, width=5)
        task = Problems(task.source, task.target, task.length, np.full((4, length, 5), 0.2, np.float32))
        found = plan(world, same, task, PlannerConfig(), box=box, tolerance=0.01, seed=0)
        assert found.error(0.8) == pytest.approx(np.zeros(4), abs=1e-4 if length == 4 else 0.03)
        assert np.all(found.action.sum(axis=2) == 1)
        assert set(np.unique(found.action)) <= {0.0, 1.0}


def test_leaving_at_the_first_success_still_succeeds_and_seeds_repeat() -> None:
    target = np.random.default_rng(0).normal(scale=[0.005, 0.05], size=(9, 2))
    leaving = PlannerConfig(method="cross-entropy", cross_entropy=CrossEntropyConfig(leave_at_success=True))
    task = problems([0.0, 0.0], target, 2)
    first, second = (plan(cart(), same, task, leaving, box=BOX, tolerance=0.03, seed=5) for _ in range(2))
    assert first.accepted(0.8, 0.03).all()
    assert np.array_equal(first.action, second.action)
    patient = PlannerConfig(method="cross-entropy")
    longer = plan(cart(), same, task, patient, box=BOX, tolerance=0.03, seed=5)
    assert longer.error(0.8).mean() < first.error(0.8).mean()


@pytest.mark.parametrize(("promised", "sampled"), [(0.0, True), (np.nan, True), (9.0, False)])
def test_what_stalled_is_sampled_and_what_the_box_does_not_reach_is_not(
    promised: float, sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gauss-Newton is made to stay where it started, promising to arrive, nothing at all, or not to."""

    def stays(*arguments: Array, **_: object) -> tuple[Array, Array]:
        return arguments[4], jnp.full(len(arguments[2]), promised)

    monkeypatch.setattr("bats.planning.planner.gauss_newton", stays)
    target = np.array([[0.004, 0.06], [-0.006, 0.1]])
    task = problems([0.0, 0.0], target, 2)
    found = plan(cart(), same, task, PlannerConfig(), box=BOX, tolerance=0.05, seed=0)
    assert np.all(found.accepted(0.8, 0.05) == sampled)
    if not sampled:
        assert np.array_equal(found.action, task.actions)
