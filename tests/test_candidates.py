"""Candidates against a plain enumeration of the paper's definition, neighbours against all pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import TabularMDP
from bats.graph.solve import Solution, policy_iteration
from bats.metric.neighbours import NeighbourConfig, Neighbours
from bats.metric.scaled import ScaledMetric
from bats.stitching.candidates import CandidateConfig, Candidates, find_candidates
from bats.stitching.history import Tried
from bats.stitching.records import Attempts, Outcome
from tests.mdps import mdp_from_edges, random_mdps

METRIC = ScaledMetric(np.ones(1, dtype=np.float32))
EVERYTHING = CandidateConfig(longest=3, branches=None, lengths="all", hurry=0, per_source=None)
EXPECTED_ERROR = 0.1


def sure(gap: np.ndarray, length: np.ndarray) -> np.ndarray:
    return np.ones(len(gap))


def found_in(
    mdp: TabularMDP,
    solution: Solution,
    config: CandidateConfig,
    *,
    sources: np.ndarray,
    radius: float,
    tried: Tried | None = None,
) -> Candidates:
    near = Neighbours(mdp.states[: mdp.real_count], NeighbourConfig(count=None, radius=radius, scales=(1.0,)))
    return find_candidates(
        mdp,
        solution,
        sources,
        near.drawn(np.random.default_rng(0)),
        METRIC,
        config,
        tried=Tried.none() if tried is None else tried,
        expected_error=EXPECTED_ERROR,
        chance=sure,
    )


def enumerated(
    mdp: TabularMDP, solution: Solution, config: CandidateConfig, source: int, radius: float
) -> dict[int, float]:
    """Target → gain by the definition: every path of up to K edges and one neighbour edge, one step at a time."""
    value, price = solution.value, mdp.gamma * mdp.penalty * EXPECTED_ERROR
    best: dict[int, float] = {}
    by_then, standing, ended = [value[source]], source, False  # what the policy has after each number of steps
    for _ in range(config.longest):
        edge = solution.policy[standing]
        if not ended and edge != NO_EDGE:
            standing, ended = int(mdp.target[edge]), mdp.discount[edge] == 0
        by_then.append(0.0 if ended else value[standing])

    def visit(place: int, length: int, earned: float, factor: float, hopped: bool) -> None:
        if hopped and length and place < mdp.real_count:
            gain = (
                earned + factor * value[place] - value[source]
                if config.impact == "advantage"
                else value[place] - by_then[length]
            )
            gain -= price * mdp.gamma ** (length - 1)
            if gain > 1e-9 * max(1.0, abs(value[source])):
                best[place] = max(best.get(place, -np.inf), gain)
        if not hopped:
            distance = np.abs(mdp.states[: mdp.real_count, 0] - mdp.states[place, 0])
            for neighbour in np.flatnonzero(distance <= radius):
                if neighbour != place:
                    visit(int(neighbour), length, earned, factor, True)
        if length < config.longest and factor > 0:
            for edge in range(mdp.first_edge[place], mdp.first_edge[place + 1]):
                paid = earned + factor * mdp.charged_reward[edge]
                visit(int(mdp.target[edge]), length + 1, paid, factor * mdp.discount[edge], hopped)

    visit(source, 0, 0.0, 1.0, False)
    return best


@settings(deadline=None, max_examples=150)
@given(random_mdps(max_states=8), st.sampled_from(["advantage", "value"]), st.sampled_from([1.0, 2.0]), st.booleans())
def test_candidates_are_those_of_the_papers_definition(
    mdp: TabularMDP, impact: str, radius: float, charged: bool
) -> None:
    mdp = replace(mdp, penalty=2.0 if charged else 0.0)
    solution = policy_iteration(mdp)
    config = replace(EVERYTHING, impact=impact)
    sources = np.arange(mdp.state_count)
    found = found_in(mdp, solution, config, sources=sources, radius=radius)
    by_definition = {
        (source, target): gain
        for source in sources.tolist()
        for target, gain in enumerated(mdp, solution, config, source, radius).items()
    }
    held = dict(zip(zip(found.source.tolist(), found.target.tolist(), strict=True), found.gain.tolist(), strict=True))
    assert len(held) == len(found)
    assert held == pytest.approx(by_definition)


@settings(deadline=None, max_examples=50)
@given(random_mdps(max_states=12), st.sampled_from(["longest", "all"]), st.integers(1, 3))
def test_fewer_branches_and_lengths_find_some_of_the_same(mdp: TabularMDP, lengths: str, per_source: int) -> None:
    solution, sources = policy_iteration(mdp), np.arange(mdp.state_count)
    config = CandidateConfig(longest=3, branches=1, lengths=lengths, hurry=0, per_source=per_source)
    found = found_in(mdp, solution, config, sources=sources, radius=2.0)
    assert np.all(np.bincount(found.source, minlength=1) <= per_source)
    for source in np.unique(found.source).tolist():
        possible = enumerated(mdp, solution, EVERYTHING, source, 2.0)
        own = found.some(found.source == source)
        assert set(own.target.tolist()) <= set(possible)
        assert np.all(own.gain <= [possible[target] + 1e-9 for target in own.target.tolist()])


def test_the_path_and_its_neighbour_edge_are_told() -> None:
    # 0 → 1 → 2 earns nothing; 3 → 4 → 5 lies half a step beside it, and 5 pays 1 for ever
    mdp = mdp_from_edges(6, [(0, 1, 0.0), (1, 2, 0.0), (3, 4, 0.0), (4, 5, 0.0), (5, 5, 1.0)])
    mdp = replace(mdp, states=np.array([[0.0], [1.0], [2.0], [10.0], [1.5], [20.0]]))
    config = CandidateConfig(longest=2, branches=1, hurry=0, per_source=None)
    found = found_in(mdp, policy_iteration(mdp), config, sources=np.array([0]), radius=0.6)
    # neighbour edges 1 ~ 4 and 2 ~ 4: after one edge there is room for one more, to 5, and after two there is none
    told = {
        (int(target), int(length)): edges.tolist()
        for target, length, edges in zip(found.target, found.length, found.edge, strict=True)
    }
    assert told == {(5, 2): [0, 3], (4, 2): [0, 1]}
    assert found.gap.tolist() == [0.5, 0.5]
    assert found.gain[found.target == 5] == pytest.approx([0.9**2 * 10])


def test_steps_of_the_own_walk_may_be_skipped() -> None:
    # 0 → 1 → … → 5, which pays 1 for ever; nobody is anybody's neighbour
    mdp = mdp_from_edges(6, [*((state, state + 1, 0.0) for state in range(5)), (5, 5, 1.0)])
    solution = policy_iteration(mdp)
    config = CandidateConfig(longest=4, branches=1, lengths="longest", hurry=2, per_source=None)
    found = found_in(mdp, solution, config, sources=np.array([0]), radius=0.5)
    # after no edge or two, one or two steps are skipped; with four edges in all that is as far as 5 and round in it
    assert set(zip(found.target.tolist(), found.length.tolist(), found.gap.tolist(), strict=True)) == {(5, 4, 2.0)}
    assert found.gain == pytest.approx([0.9**3 * 10 - 0.9**5 * 10])
    first = found_in(mdp, solution, replace(config, longest=2), sources=np.array([0]), radius=0.5)
    told = {int(target): edges.tolist() for target, edges in zip(first.target, first.edge, strict=True)}
    assert told == {3: [0, 2], 4: [0, 3]}  # the actions of 0 and of 2 or 3, to start a plan from
    assert first.gap[np.argsort(first.target)].tolist() == [1.0, 2.0]
    assert len(found_in(mdp, solution, replace(config, hurry=0), sources=np.array([0]), radius=0.5)) == 0


def planned(source: np.ndarray, target: np.ndarray, length: np.ndarray, outcome: Outcome, real_count: int) -> Tried:
    count = len(source)
    nothing, outcomes = np.zeros(count), np.full(count, outcome)
    return Tried.of(Attempts(source, target, length, length, nothing, nothing, outcomes), real_count)


@pytest.mark.parametrize("outcome", Outcome)
def test_joins_that_were_planned_are_left_out_before_the_best_are_chosen(outcome: Outcome) -> None:
    mdp = mdp_from_edges(4, [(0, 0, 0.0), (1, 1, 1.0), (2, 2, 2.0), (3, 3, 3.0)])
    solution, config = policy_iteration(mdp), CandidateConfig(longest=1, branches=1, per_source=1)
    best = found_in(mdp, solution, config, sources=np.array([0]), radius=5.0)
    assert best.target.tolist() == [3]
    tried = planned(best.source, best.target, best.length, outcome, 4)
    assert found_in(mdp, solution, config, sources=np.array([0]), radius=5.0, tried=tried).target.tolist() == [2]


def test_a_pair_is_planned_with_more_actions_after_it_was_missed_and_with_fewer_after_it_was_not() -> None:
    # 0 → 1 → 2 → 3 earns nothing; 4, beside 0, stays where it is and earns 1: 0 ~ 4 in one, two or three steps
    mdp = mdp_from_edges(5, [(0, 1, 0.0), (1, 2, 0.0), (2, 3, 0.0), (4, 4, 1.0)])
    mdp = replace(mdp, states=np.array([[0.0], [5.0], [10.0], [15.0], [0.5]]))
    solution = policy_iteration(mdp)
    config = CandidateConfig(longest=3, branches=1, lengths="all", hurry=0, per_source=None)

    def lengths(tried: Tried) -> list[int]:
        return found_in(mdp, solution, config, sources=np.array([0]), radius=1.0, tried=tried).length.tolist()

    def after(length: int, outcome: Outcome) -> Tried:
        return planned(np.array([0]), np.array([4]), np.array([length]), outcome, 5)

    assert lengths(after(2, Outcome.MISSED)) == [3]
    assert lengths(after(3, Outcome.MISSED)) == []
    assert lengths(after(3, Outcome.ACCEPTED).and_then(after(1, Outcome.MISSED))) == [2]
    assert lengths(after(3, Outcome.DOUBTED).and_then(after(1, Outcome.MISSED))) == [2]
    assert lengths(after(1, Outcome.ACCEPTED)) == []
    assert lengths(after(1, Outcome.DOUBTED)) == []


def test_a_source_gives_all_it_has_in_time() -> None:
    # sixty states around 0, each worth more than the last, and few looked at in a round
    mdp = mdp_from_edges(61, [(state, state, float(state)) for state in range(61)])
    mdp = replace(mdp, states=np.linspace(0, 1, 61)[:, None])
    solution, config = policy_iteration(mdp), CandidateConfig(longest=1, branches=1, per_source=2)
    tried = Tried.none()
    for _ in range(30):
        found = found_in(mdp, solution, config, sources=np.array([0]), radius=2.0, tried=tried)
        assert len(found) == 2
        tried = tried.and_then(planned(found.source, found.target, found.length, Outcome.MISSED, 61))
    assert tried.pair.tolist() == list(range(1, 61))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 6), st.sampled_from([None, 0.5, 2.0]))
def test_neighbours_are_the_nearest_of_all_pairs(seed: int, count: int, radius: float | None) -> None:
    rng = np.random.default_rng(seed)
    points, places = rng.normal(size=(50, 3)), rng.normal(size=(7, 3))
    pairs = Neighbours(points, NeighbourConfig(count, radius, scales=(1.0,))).drawn(rng).near(places)
    distance = np.linalg.norm(points[None] - places[:, None], axis=2)
    for place in range(7):
        nearest = np.argsort(distance[place])[:count]
        wanted = nearest if radius is None else nearest[distance[place, nearest] < radius]
        assert set(pairs.neighbour[pairs.place == place].tolist()) == set(wanted.tolist())
    assert pairs.distance == pytest.approx(distance[pairs.place, pairs.neighbour])
    everyone = Neighbours(points, NeighbourConfig(None, 1.0, scales=(1.0,))).drawn(rng).near(places)
    assert len(everyone) == np.count_nonzero(distance <= 1.0)


def test_thinner_scales_answer_with_neighbours_farther_away() -> None:
    rng = np.random.default_rng(0)
    points, places = rng.random((20_000, 2)), 0.1 + 0.8 * rng.random((200, 2))

    def reach(scale: float) -> float:
        pairs = (
            Neighbours(points, NeighbourConfig(8, None, scales=(scale,))).drawn(np.random.default_rng(1)).near(places)
        )
        return float(pairs.distance.mean())

    # in two dimensions a hundredth of the states lie ten times as far apart
    assert reach(0.01) / reach(1.0) == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize(
    "wrong",
    [{"count": None, "radius": None}, {"scales": ()}, {"scales": (1.5,)}, {"count": 0}, {"radius": -1.0}],
)
def test_neighbours_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        NeighbourConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["longest", "branches", "per_source"])
def test_candidates_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(SettingError, match=name):
        replace(CandidateConfig(), **{name: 0})
    with pytest.raises(SettingError, match="hurry"):
        replace(CandidateConfig(), hurry=-1)
