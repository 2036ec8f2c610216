"""The loop in a plane where every step is known: what must be found is found, and what is added is true."""

from __future__ import annotations

from dataclasses import fields, replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from bats.data.dataset import Dataset
from bats.errors import SettingError
from bats.graph.mdp import LOGGED, Stitches, TabularMDP, add_stitches, from_dataset
from bats.graph.rollouts import on_the_way, walk
from bats.graph.solve import policy_iteration, start_value
from bats.metric.neighbours import NeighbourConfig
from bats.metric.scaled import ScaledMetric
from bats.model.ensemble import states_along
from bats.model.local_error import LocalError
from bats.planning.planner import PlannerConfig
from bats.stitching.acceptance import Learned, attempt
from bats.stitching.candidates import CandidateConfig, Candidates
from bats.stitching.history import Experience
from bats.stitching.loop import Round, StitchConfig, sample_sources, stitch
from bats.stitching.records import Outcome
from tests.small_runs import walks

REACH = 0.06
"""how far an action moves in each direction"""
GAMMA = 0.9


class Plane(eqx.Module):
    """The action is the move; three members differ by a small shift, and none expects a reward."""

    networks: Float[Array, "M 1 D"]
    action_count: int | None = eqx.field(static=True, default=None)

    @property
    def member_count(self) -> int:
        return self.networks.shape[0]

    def change(self, states: Array, actions: Array) -> tuple[Array, Array]:
        return actions + self.networks, jnp.zeros_like(states)

    def reward(self, states: Array, actions: Array, after: Array) -> Array:
        return jnp.zeros(states.shape[:-1])


def crossing() -> Dataset:
    """One walk to the right that earns nothing, and one upwards that crosses it and ends where 1 is paid for ever."""
    right = np.stack([REACH * np.arange(11), np.zeros(11)], axis=1)
    up = np.stack([np.full(11, 0.3), REACH * (np.arange(11) - 5.5)], axis=1)
    stay = np.repeat(up[-1:], 2, axis=0)
    states = np.concatenate([right[:-1], up[:-1], stay[:1]]).astype(np.float32)
    after = np.concatenate([right[1:], up[1:], stay[1:]]).astype(np.float32)
    rewards = np.zeros(len(states), dtype=np.float32)
    rewards[-1] = 1.0
    ends = np.zeros(len(states), dtype=bool)
    ends[[9, 20]] = True
    log = Dataset.from_arrays(states, after - states, rewards, next_observations=after, timeouts=ends)
    return log.with_starts(np.array([0]))


CONFIG = StitchConfig(
    rounds=10,
    samples=200,
    attempts=100,
    tolerance=0.01,
    calibrate=False,
    candidates=CandidateConfig(longest=1, branches=None, lengths="all", per_source=None),
    neighbours=NeighbourConfig(count=None, radius=0.07, scales=(1.0,)),
    planner=PlannerConfig(batch=64, fallback=False),
)


def learned(log: Dataset, *, shift: float = 0.0, local_error: LocalError | None = None) -> Learned:
    plane = Plane(jnp.array([-shift, 0.0, shift])[:, None, None] * jnp.ones((1, 1, 2)))
    box = (np.full(2, -REACH, dtype=np.float32), np.full(2, REACH, dtype=np.float32))
    return Learned(plane, ScaledMetric.of(log, "raw"), box, local_error)


def rounds_of(log: Dataset, config: StitchConfig, *, seed: int = 0, penalty: float = 0.0) -> list[Round]:
    return list(stitch(from_dataset(log, gamma=GAMMA, penalty=penalty), learned(log), config, seed=seed))


def stitched_pairs(mdp: TabularMDP) -> list[tuple[list[float], list[float]]]:
    """Where the stitches on the policy's walk begin and end, if each has one action."""
    policy = policy_iteration(mdp).policy
    edges = walk(mdp, policy, mdp.starts, 30).edge[0]
    used = edges[(edges >= 0) & (mdp.stitch_round[edges] != LOGGED)]
    return [
        (
            np.float64(mdp.states[mdp.source[edge]]).round(2).tolist(),
            np.float64(mdp.states[mdp.target[edge]]).round(2).tolist(),
        )
        for edge in used
    ]


def test_the_one_best_stitch_is_found() -> None:
    # an action moves 0.06, as far as the log moved: only from (0.24, 0) is the upward walk met without losing a step
    log = crossing()
    found = rounds_of(log, CONFIG)
    assert found[0].record.value_before == 0.0
    assert stitched_pairs(found[-1].mdp) == [([0.24, 0.0], [0.3, 0.03])]
    # four steps to the right, the stitch, four steps up to (0.3, 0.27), then 1 for ever
    assert found[-1].record.value == pytest.approx(GAMMA**9 / (1 - GAMMA))


def test_the_loop_ends_when_nothing_is_left_to_try() -> None:
    found = rounds_of(crossing(), CONFIG)
    assert len(found) < CONFIG.rounds
    pairs = np.concatenate([np.stack([each.attempts.source, each.attempts.target], axis=1) for each in found])
    assert len(np.unique(pairs, axis=0)) == len(pairs)


@pytest.mark.parametrize("shortest", [True, False])
def test_a_pair_is_planned_again_only_with_a_number_of_actions_that_nothing_is_known_of(shortest: bool) -> None:
    wanted = replace(CONFIG.candidates, longest=3)
    found = rounds_of(crossing(), replace(CONFIG, candidates=wanted, shortest=shortest, short_every=None))
    plans: dict[tuple[int, int], list[tuple[int, int, bool]]] = {}
    for each in found:
        tried = each.attempts
        for source, target, first, last, did in zip(
            tried.source, tried.target, tried.fewest, tried.length, tried.accepted, strict=True
        ):
            before = plans.setdefault((source, target), [])
            for _, missed, joined in before:
                assert last < missed if joined else last > missed
            before.append((first, last, did))
    again = [tries for tries in plans.values() if len(tries) > 1]
    assert again  # some pairs come back
    if shortest:  # what was accepted was tried with fewer before
        assert not any(tries[0][2] for tries in again)
    else:
        assert any(tries[0][2] and tries[-1][2] for tries in again)  # joined, and joined sooner


def test_longer_stitches_go_through_imagined_states_and_end_in_real_ones() -> None:
    config = replace(CONFIG, candidates=CandidateConfig(longest=4, per_source=4))
    log = crossing()
    found = rounds_of(log, config, penalty=0.5)
    mdp = found[-1].mdp
    assert mdp.state_count > mdp.real_count
    for each in found:
        assert np.all(each.stitches.target < mdp.real_count)
        assert np.all(each.stitches.source < mdp.real_count)
        assert np.count_nonzero(each.attempts.accepted) == len(each.stitches) == each.record.accepted
        assert sum(each.record.refused.values()) + each.record.accepted == each.record.tried
    # with diagonal moves the upward walk is met higher up
    assert found[-1].record.value > GAMMA**9 / (1 - GAMMA)
    values = [each.record.value for each in found]
    assert np.all(np.diff(values) >= -1e-9)


def test_every_accepted_stitch_is_within_tolerance_when_its_actions_are_simulated_again() -> None:
    log = crossing()
    config = replace(CONFIG, candidates=CandidateConfig(longest=4, per_source=None))
    means = learned(log, shift=0.001)
    mdp = from_dataset(log, gamma=GAMMA)
    for each in stitch(mdp, means, config, seed=0):
        planned = each.stitches
        length = jnp.asarray(planned.length)
        source = jnp.asarray(mdp.states[planned.source])
        ends = states_along(means.dynamics, source, jnp.asarray(planned.action), length)[:, :, -1]
        distance = np.linalg.norm(np.asarray(ends) - mdp.states[planned.target], axis=2)
        assert pytest.approx(distance, abs=1e-6) == planned.distance.T
        assert np.all(np.quantile(distance, 0.8, axis=0) < config.tolerance + 1e-6)


def test_where_held_out_rows_doubt_the_model_stitches_cost_more_or_are_refused() -> None:
    log = crossing()
    mdp = from_dataset(log, gamma=GAMMA)

    def first_round(residual: float) -> Round:
        local = LocalError(log.observations, np.full(len(log), residual))
        return next(stitch(mdp, learned(log, local_error=local), CONFIG, seed=0))

    sure, doubtful = first_round(0.0), first_round(0.008)
    same = sure.attempts.accepted & doubtful.attempts.accepted
    assert same.any()
    assert doubtful.attempts.error[same] == pytest.approx(sure.attempts.error[same] + 0.008)
    assert np.all(doubtful.stitches.model_error == np.float32(0.008))
    refused = first_round(0.02)
    assert refused.record.accepted == 0
    assert refused.record.refused["doubted"] == sure.record.accepted
    # both of two rows are among the nearest, so one step is wrong by their mean, and two by twice that
    away = LocalError(np.array([[9.0, 9.0], [0.3, 0.0]]), np.array([5.0, 0.0]))
    plan = np.array([[[0.3, 0.0], [0.3, 0.0]]])
    assert [away.along(plan, np.array([length])).tolist() for length in (1, 2)] == [[2.5], [5.0]]


def test_some_rounds_look_for_stitches_half_as_long() -> None:
    log = crossing()
    config = replace(CONFIG, candidates=replace(CONFIG.candidates, longest=4), attempts=6, rounds=4, short_every=2)
    rounds = list(stitch(from_dataset(log, gamma=GAMMA), learned(log), config, seed=0))
    longest = {done.record.round: int(done.attempts.length.max()) for done in rounds}
    assert longest[1] > 2
    assert all(length <= 2 for number, length in longest.items() if number % 2 == 0)


def equal(one: object, other: object) -> bool:
    return all(np.array_equal(getattr(one, part.name), getattr(other, part.name)) for part in fields(one))  # type: ignore[arg-type]


def test_a_loop_that_goes_on_from_saved_rounds_ends_as_if_it_had_not_stopped() -> None:
    log = crossing()
    wanted = CandidateConfig(longest=3, lengths="all", per_source=2)
    config = replace(CONFIG, candidates=wanted, samples=10, attempts=8, rounds=4, rounds_beside=0, off_walks=1.0)
    whole = rounds_of(log, config)
    assert len(whole) == 4
    experience = Experience.none()
    for done, each in enumerate(whole[:-1], 1):
        experience = experience.and_then(each.attempts, each.mdp.real_count)
        rest = list(stitch(each.mdp, learned(log), config, seed=0, rounds_done=done, experience=experience))
        assert [later.record for later in rest] == [later.record for later in whole[done:]]
        assert all(equal(one.attempts, two.attempts) for one, two in zip(rest, whole[done:], strict=True))
        assert equal(rest[-1].mdp, whole[-1].mdp)
    other = rounds_of(log, config, seed=1)
    assert [each.record for each in other] != [each.record for each in whole]


def three_lanes() -> Dataset:
    """Walks to the right: the start's, which ends where little is paid; one beside it that ends in nothing; and one
    beside that, too far from the first to be its neighbour, that ends where 1 is paid for ever. A place that pays 0.2
    lies at the first one's other side."""
    lanes = [np.stack([REACH * np.arange(11), np.full(11, height)], axis=1) for height in (0.0, 0.05, 0.1)]
    places = np.array([[0.6, 0.0], [0.6, 0.1], [0.3, -0.05]])
    states = np.concatenate([*(lane[:-1] for lane in lanes), places]).astype(np.float32)
    after = np.concatenate([*(lane[1:] for lane in lanes), places]).astype(np.float32)
    rewards = np.zeros(len(states), dtype=np.float32)
    rewards[30:] = [0.01, 1.0, 0.2]
    ends = np.zeros(len(states), dtype=bool)
    ends[[9, 19, 29, 30, 31, 32]] = True
    log = Dataset.from_arrays(states, after - states, rewards, next_observations=after, timeouts=ends)
    return log.with_starts(np.array([0]))


def test_a_better_way_is_made_one_neighbour_off_the_walk_before_it_is_worth_taking() -> None:
    log = three_lanes()
    own, both = (rounds_of(log, replace(CONFIG, off_walks=share)) for share in (0.0, 1.0))

    def joins_of_the_middle_lane(tried: Round) -> int:
        return int(np.isclose(tried.mdp.states[tried.attempts.source, 1], 0.05).sum())

    assert own[0].record.tried > 0
    assert joins_of_the_middle_lane(own[0]) == 0
    assert joins_of_the_middle_lane(both[0]) > 0
    # two steps for the lanes, eight to the right, then 1 for ever
    best = GAMMA**10 / (1 - GAMMA)
    assert own[1].record.value < best
    assert both[1].record.value == pytest.approx(best)


def test_the_last_rounds_join_states_beside_the_walks_to_them() -> None:
    log = walks(60)
    wanted = CandidateConfig(longest=5, per_source=2)
    config = replace(CONFIG, candidates=wanted, samples=50, attempts=30, rounds=3, rounds_beside=2, tolerance=0.1)
    *_, before, after, last = rounds_of(log, config)
    assert [each.record.round for each in (before, after, last)] == [3, 4, 5]
    met = on_the_way(before.mdp, before.solution.policy, before.mdp.starts)
    assert len(after.attempts)
    assert not np.isin(after.attempts.source, met).any()
    gained = after.solution.value[after.stitches.source] - before.solution.value[after.stitches.source]
    assert np.all(gained > 0)
    assert len(np.unique(after.attempts.source)) == len(after.attempts)  # one try each
    with pytest.raises(SettingError, match="rounds_beside"):
        replace(config, rounds_beside=-1)


def test_the_shortest_plan_that_will_do_is_taken_where_algorithm_2_is_asked_for() -> None:
    log = crossing()
    config = replace(CONFIG, candidates=CandidateConfig(longest=4, per_source=None))
    shortest = next(stitch(from_dataset(log, gamma=GAMMA), learned(log), replace(config, shortest=True), seed=0))
    done = shortest.attempts.accepted
    move = np.abs(shortest.mdp.states[shortest.attempts.target] - shortest.mdp.states[shortest.attempts.source])
    fewest = np.ceil(move.max(axis=1) / REACH - 1e-3)
    assert done.any()
    assert shortest.attempts.length[done].tolist() == np.maximum(fewest[done], 1).tolist()


def test_imagined_states_are_sources_only_on_request() -> None:
    # wide gaps and few tries at a time: what is reached by a first stitch can be left by a second one half-way
    config = replace(CONFIG, candidates=CandidateConfig(longest=4, per_source=4), rounds=4)
    asked = rounds_of(crossing(), replace(config, imagined_sources=True))
    real = asked[0].mdp.real_count
    from_imagined = [np.any(each.stitches.source >= real) for each in asked]
    assert not from_imagined[0]
    assert any(from_imagined)
    assert all(np.all(each.stitches.target < real) for each in asked)
    assert not any(np.any(each.stitches.source >= real) for each in rounds_of(crossing(), config))


class Ring(eqx.Module):
    """Two actions in a ring of ten places, told by sine and cosine: back or forth."""

    networks: Float[Array, "M 1 1"]
    action_count: int = eqx.field(static=True, default=2)

    @property
    def member_count(self) -> int:
        return self.networks.shape[0]

    def change(self, states: Array, actions: Array) -> tuple[Array, Array]:
        angle = jnp.arctan2(states[..., 1], states[..., 0]) + 0.2 * jnp.pi * (actions[..., 1] - actions[..., 0])
        change = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1) - states + self.networks
        return change, jnp.zeros_like(change)

    def reward(self, states: Array, actions: Array, after: Array) -> Array:
        paid_at = jnp.array([jnp.cos(0.8 * jnp.pi), jnp.sin(0.8 * jnp.pi)])
        return jnp.where(jnp.linalg.norm(after - paid_at, axis=-1) < 0.1, 1.0, 0.0)


def test_discrete_actions_are_stitched_too() -> None:
    # one walk goes round forwards from 0 to 4 and pays there; another begins at 2 and only goes back
    angle = 0.2 * np.pi * np.array([0, 1, 2, 3, 2, 1, 0, 9])
    after = 0.2 * np.pi * np.array([1, 2, 3, 4, 1, 0, 9, 8])
    states, ends = (np.stack([np.cos(each), np.sin(each)], axis=1).astype(np.float32) for each in (angle, after))
    states[4:] += 0.001  # the same places, but for a trifle: other states
    ends[4:] += 0.001
    log = Dataset.from_arrays(
        states,
        np.array([1, 1, 1, 1, 0, 0, 0, 0]),
        np.array([0.0, 0, 0, 1, 0, 0, 0, 0], dtype=np.float32),
        next_observations=ends,
        timeouts=np.array([0, 0, 0, 1, 0, 0, 0, 1], dtype=bool),
    ).with_starts(np.array([4]))
    box = (np.zeros(2), np.ones(2))
    means = Learned(Ring(jnp.zeros((2, 1, 1))), ScaledMetric.of(log, "raw"), box, None)
    config = replace(
        CONFIG,
        short_every=None,
        neighbours=NeighbourConfig(count=4, scales=(1.0,)),
        candidates=CandidateConfig(longest=16),
    )
    found = list(stitch(from_dataset(log, gamma=GAMMA), means, config, seed=0))
    assert found[-1].mdp.action.dtype.kind == "i"
    # from 2 forwards to 3 and to 4, which pays 1, and then back to 3 and to 4 again for ever
    assert found[-1].record.value == pytest.approx(GAMMA / (1 - GAMMA**2))
    stitches = found[0].stitches
    assert stitches.length.max() <= 10  # two to the tenth sequences are searched through, no more


def test_discrete_actions_are_tried_in_every_number() -> None:
    # round the ring from 0 to 2: two steps lead there, one or three do not
    angle = 0.2 * np.pi * np.arange(4)
    states = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    log = Dataset.from_arrays(states[:-1], np.ones(3, dtype=np.int64), np.zeros(3), next_observations=states[1:])
    means = Learned(Ring(jnp.zeros((2, 1, 1))), ScaledMetric.of(log, "raw"), (np.zeros(2), np.ones(2)), None)
    wanted = Candidates(
        source=np.array([0]),
        target=np.array([2]),
        length=np.array([3]),
        edge=np.array([[0, 1, 2]]),
        gain=np.array([1.0]),
        gap=np.array([0.6]),
    )
    mdp = from_dataset(log, gamma=GAMMA)
    tried, stitches = attempt(mdp, wanted, means, PlannerConfig(), tolerance=0.01, shortest=False, seed=0)
    assert (tried.outcome.tolist(), tried.fewest.tolist(), tried.length.tolist()) == ([Outcome.ACCEPTED], [1], [2])
    assert stitches.action[0, :2].tolist() == [1, 1]


def test_walks_that_have_ended_are_no_sources() -> None:
    # every walk ends in state 2, by the log or through a stitch of two actions
    states = np.array([[0.0, 0.0], [0.06, 0.0]], dtype=np.float32)
    ends = np.array([[0.06, 0.0], [0.12, 0.0]], dtype=np.float32)
    log = Dataset.from_arrays(
        states, ends - states, np.array([0.0, 1.0]), next_observations=ends, terminations=np.array([False, True])
    )
    mdp = from_dataset(log, gamma=GAMMA)
    joined = Stitches.judged_by_one(
        source=np.array([0]),
        target=np.array([2]),
        length=np.array([2]),
        action=np.full((1, 2, 2), 0.06, dtype=np.float32),
        state=np.full((1, 1, 2), 0.05),
        reward=np.array([[5.0, 5.0]]),
        planning_error=np.zeros(1),
    )
    mdp = add_stitches(mdp, joined, stitch_round=1)
    solution = policy_iteration(mdp)
    sources, _ = sample_sources(mdp, solution, CONFIG, np.random.default_rng(0))
    assert sources.tolist() == [0]  # the stitch is worth so much more that nobody takes the log's own way


def test_a_plan_of_which_one_member_knows_nothing_is_refused() -> None:
    log = crossing()
    plane = Plane(jnp.array([0.0, 0.0, jnp.nan])[:, None, None] * jnp.ones((1, 1, 2)))
    means = replace(learned(log), dynamics=plane)
    config = replace(CONFIG, planner=replace(CONFIG.planner, quantile=0.5))
    tried = next(stitch(from_dataset(log, gamma=GAMMA), means, config, seed=0))
    assert tried.record.accepted == 0
    assert tried.record.refused == {"ran_away": tried.record.tried}


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"tolerance": 0.0}, {"temperature": -1.0}, {"attempts": 0}, {"off_walks": 1.5}]
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        replace(StitchConfig(), **wrong)


def test_start_values_in_the_records_are_those_of_the_mdp() -> None:
    found = rounds_of(crossing(), CONFIG)
    for each in found:
        assert each.record.value == start_value(each.mdp, policy_iteration(each.mdp).value)
