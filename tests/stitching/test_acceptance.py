"""Plans of candidates: accepted or refused for the right reason, with the right errors and rewards."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from scipy.spatial import cKDTree

from bats.config import StitchConfig
from bats.data.dataset import Dataset
from bats.graph.mdp import TabularMDP, from_dataset
from bats.metric.scaled import ScaledMetric
from bats.model.held_out import LocalErrors
from bats.planning.planner import end_error
from bats.stitching.acceptance import plan_candidates
from bats.stitching.candidates import Candidates
from bats.stitching.records import Attempts, Outcome
from tests.compilations import compilations
from tests.known_worlds import KnownWorld, Ring, context_of
from tests.mdps import mdp_from_edges

CONFIG = StitchConfig(max_length=3, tolerance=0.01)
BOUNDS = (np.full(2, -1.0), np.full(2, 1.0))
LENGTH = 3


class WorldWithGoal(KnownWorld):
    """The action is the move. Steps beyond a line terminate; the members expect rewards of 50 for every step, on
    average, but of 1 for steps that continue."""

    networks: tuple[Float[Array, "M 1 D"], Float[Array, "M 1"]]
    """shift of each member, and the line"""
    KIND = replace(KnownWorld.KIND, terminations=True, rare_rewards_terminate=True)

    def delta(self, states: Array, actions: Array) -> tuple[Array, Array]:
        return actions + self.networks[0], jnp.zeros_like(states)

    def reward(self, states: Array, actions: Array, next_states: Array) -> Array:
        return 50.0 * self.continuing_reward(states, actions, next_states)

    def continuing_reward(self, states: Array, actions: Array, next_states: Array) -> Array:
        factors = jnp.linspace(0.5, 1.5, self.member_count)[:, None]
        return jnp.broadcast_to(factors, states.shape[:-1])

    def termination(self, states: Array, actions: Array, next_states: Array) -> Array:
        return jnp.where(next_states[..., 0] > self.networks[1], 0.9, 0.1)


def world(shifts: tuple[float, ...] = (0.0,) * 6, *, line: float = np.inf) -> WorldWithGoal:
    """Six members everywhere, so that the tests share compiled programs."""
    return WorldWithGoal((jnp.array(shifts)[:, None, None] * jnp.ones((1, 1, 2)), jnp.full((6, 1), line)))


def grid_mdp(*, terminal: tuple[int, ...] = ()) -> TabularMDP:
    """States 0 … 5 in a row, one apart; episodes pass through them one by one, or terminate in them."""
    edges = [(state, state + 1, 0.0) for state in range(5)]
    mdp = mdp_from_edges(6, edges, ends=tuple(state - 1 for state in terminal))
    states = np.stack([np.arange(6.0), np.zeros(6)], axis=1)
    return replace(mdp, states=states, action=np.zeros((5, 2)))


def candidates(source: list[int], target: list[int], length: list[int]) -> Candidates:
    """Candidates whose plans begin with actions of 0."""
    count = len(source)
    return Candidates(
        source=np.array(source),
        target=np.array(target),
        length=np.array(length),
        edge=np.zeros((count, LENGTH), dtype=np.int64),
        gain=np.ones(count),
        distance=np.full(count, 0.5),
    )


def outcomes(attempts: Attempts) -> list[Outcome]:
    return [Outcome(outcome) for outcome in attempts.outcome.tolist()]


def test_a_target_within_reach_is_accepted_and_one_beyond_ends_too_far() -> None:
    attempts, stitches = plan_candidates(
        grid_mdp(), candidates([0, 0], [2, 5], [2, 3]), context_of(world(), bounds=BOUNDS), CONFIG, seed=0
    )
    assert outcomes(attempts) == [Outcome.ACCEPTED, Outcome.TOO_FAR]
    assert attempts.error == pytest.approx([0.0, 2.0], abs=1e-4)
    assert (attempts.length.tolist(), attempts.first_length.tolist()) == ([2, 3], [2, 3])
    assert (stitches.source.tolist(), stitches.target.tolist(), stitches.length.tolist()) == ([0], [2], [2])
    assert stitches.action[0, :2].sum(axis=0) == pytest.approx([2.0, 0.0], abs=1e-4)
    assert stitches.state[0, 0] == pytest.approx(stitches.action[0, 0], abs=1e-5)
    assert stitches.planning_error == pytest.approx(attempts.error[:1], abs=1e-6)


def test_the_error_is_the_end_error_plus_the_sum_of_the_local_errors_along_the_plan() -> None:
    rng = np.random.default_rng(0)
    points, errors = rng.uniform(0, 5, (60, 2)), 0.2 * rng.random((60, 1))
    metric = ScaledMetric(np.array([2.0, 1.0], dtype=np.float32))
    local = LocalErrors(cKDTree(points * metric.weight), errors)
    mdp, wanted = grid_mdp(), candidates([0, 1, 2], [2, 3, 3], [3, 2, 1])
    config = replace(CONFIG, tolerance=10.0)
    contexts = [
        context_of(world((-0.1, 0.0, 0.1) * 2), metric, bounds=BOUNDS, local_errors=one) for one in (None, local)
    ]
    (alone, _), (both, stitches) = (plan_candidates(mdp, wanted, context, config, seed=0) for context in contexts)
    acted_in = np.concatenate([mdp.states[stitches.source][:, None], stitches.state], axis=1)
    along = local.along(metric.embed(acted_in.astype(np.float32)), stitches.length)
    assert both.error - alone.error == pytest.approx(along.sum(axis=(1, 2)), abs=1e-5)
    for row, length in enumerate(stitches.length):
        by_hand = [
            errors[np.argsort(np.linalg.norm((points - state) * metric.weight, axis=1))[:8]].mean()
            for state in acted_in[row, :length]
        ]
        assert along[row].sum() == pytest.approx(sum(by_hand))
    # four of six members end off by 0.1 in each number and step
    off = np.linalg.norm(0.1 * stitches.length[:, None] * metric.weight, axis=1)
    assert alone.error == pytest.approx(end_error(np.outer(off, [1, 0, 1, 1, 0, 1])), abs=1e-4)


@pytest.mark.parametrize(
    ("local_error", "expected"), [(0.004, Outcome.ACCEPTED), (0.006, Outcome.UNRELIABLE), (9.0, Outcome.UNRELIABLE)]
)
def test_a_plan_is_unreliable_where_the_model_is_wrong_on_held_out_rows(local_error: float, expected: Outcome) -> None:
    """Two steps, each wrong by so much, with a tolerance of 0.01."""
    local = LocalErrors(cKDTree(np.zeros((8, 2))), np.full((8, 1), local_error))
    context = context_of(world(), bounds=BOUNDS, local_errors=local)
    attempts, stitches = plan_candidates(grid_mdp(), candidates([0, 0], [2, 5], [2, 2]), context, CONFIG, seed=0)
    assert outcomes(attempts) == [expected, Outcome.TOO_FAR]  # what ends too far is called that
    assert attempts.error == pytest.approx([2 * local_error, 3 + 2 * local_error], abs=1e-4)
    assert len(stitches) == (expected == Outcome.ACCEPTED)


def test_a_plan_that_diverges_in_one_member_is_refused_though_the_others_agree() -> None:
    context = context_of(world((0.0,) * 5 + (np.nan,)), bounds=BOUNDS)
    attempts, stitches = plan_candidates(grid_mdp(), candidates([0], [1], [1]), context, CONFIG, seed=0)
    assert outcomes(attempts) == [Outcome.DIVERGES]
    assert len(stitches) == 0


def test_a_plan_may_only_terminate_in_a_target_that_the_log_always_terminates_in() -> None:
    mdp = grid_mdp(terminal=(3,))
    assert mdp.always_terminal.tolist() == [False, False, False, True, False, False]
    wanted = candidates([1, 1, 2, 0], [3, 4, 4, 2], [2, 3, 2, 2])
    context = context_of(world(line=2.5), bounds=BOUNDS)
    attempts, _ = plan_candidates(mdp, wanted, context, CONFIG, seed=0)
    # the last one never comes so far; the others terminate, of which only the first one may
    assert outcomes(attempts) == [Outcome.ACCEPTED, Outcome.TERMINATES, Outcome.TERMINATES, Outcome.ACCEPTED]


def test_rewards_are_means_over_the_members_and_only_a_termination_has_its_own_reward() -> None:
    context = context_of(world(line=2.5), bounds=BOUNDS)
    wanted = candidates([1, 0], [3, 2], [2, 3])
    _, stitches = plan_candidates(grid_mdp(terminal=(3,)), wanted, context, CONFIG, seed=0)
    assert stitches.reward == pytest.approx(np.array([[1.0, 50.0, 0.0], [1.0, 1.0, 1.0]]))


def test_another_number_of_candidates_compiles_nothing() -> None:
    context, mdp = context_of(world(line=2.5), bounds=BOUNDS), grid_mdp(terminal=(3,))
    plan_candidates(mdp, candidates([1, 0], [3, 2], [2, 3]), context, CONFIG, seed=0)
    with compilations() as names:
        plan_candidates(mdp, candidates([1, 0, 2, 1, 0], [3, 2, 3, 4, 1], [2, 3, 1, 3, 1]), context, CONFIG, seed=0)
    assert names == []


def test_with_every_length_the_shortest_plan_that_is_accepted_is_kept() -> None:
    wanted = candidates([0, 0, 0, 0], [1, 2, 3, 5], [3, 3, 3, 3])
    context = context_of(world(), bounds=BOUNDS)
    attempts, stitches = plan_candidates(grid_mdp(), wanted, context, replace(CONFIG, every_length=True), seed=0)
    assert attempts.first_length.tolist() == [1, 1, 1, 1]
    assert attempts.length.tolist() == [1, 2, 3, 3]
    assert outcomes(attempts) == [Outcome.ACCEPTED] * 3 + [Outcome.TOO_FAR]
    assert stitches.length.tolist() == [1, 2, 3]


def test_discrete_actions_are_planned_with_every_length() -> None:
    # round the ring from 0 to 2: two steps lead there, one or three do not
    angle = 0.2 * np.pi * np.arange(4)
    states = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    log = Dataset.from_arrays(states[:-1], np.ones(3, dtype=np.int64), np.zeros(3), next_observations=states[1:])
    context = context_of(Ring(jnp.zeros((2, 1, 1))), bounds=(np.zeros(2), np.ones(2)))
    wanted = replace(candidates([0], [2], [3]), edge=np.array([[0, 1, 2]]))
    attempts, stitches = plan_candidates(from_dataset(log), wanted, context, CONFIG, seed=0)
    assert outcomes(attempts) == [Outcome.ACCEPTED]
    assert (attempts.first_length.tolist(), attempts.length.tolist()) == ([1], [2])
    assert stitches.action[0, :2].tolist() == [1, 1]
    assert stitches.action.dtype.kind == "i"
