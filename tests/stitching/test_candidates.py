"""Candidates against a plain enumeration of the paper's definition, and small graphs worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.arrays import take
from bats.config import CandidateConfig, NeighbourConfig, StitchConfig
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import TabularMDP
from bats.graph.solve import Solution, policy_iteration
from bats.metric.neighbours import NeighbourIndex
from bats.metric.scaled import ScaledMetric
from bats.stitching import candidates
from bats.stitching.candidates import Candidates, Search, find_candidates
from bats.stitching.history import History
from bats.stitching.records import Attempts, Outcome
from tests.mdps import mdp_from_edges, random_mdps

METRIC = ScaledMetric(np.ones(1, dtype=np.float32))
EVERYTHING = CandidateConfig(branching=None, lengths="all", skip=0, per_source=None)
SIMPLE = CandidateConfig(branching=1, lengths="longest", skip=0, per_source=None)
TOLERANCE = 0.2
"""before there are any stitches, their errors are expected to be half of this"""


def find(
    solution: Solution,
    config: CandidateConfig,
    *,
    radius: float,
    max_length: int,
    sources: np.ndarray | None = None,
    history: History | None = None,
) -> Candidates:
    """The candidates of some states, or of all, with every state within the radius as a neighbour."""
    mdp = solution.mdp
    index = NeighbourIndex(mdp.states[: mdp.real_count], NeighbourConfig(None, radius, scales=(1.0,)))
    history = History.empty(mdp.real_count) if history is None else history
    settings = StitchConfig(candidates=config, tolerance=TOLERANCE)
    search = Search(solution, METRIC, index, history, settings, max_length)
    sources = np.arange(mdp.state_count) if sources is None else sources
    return find_candidates(search, sources, index.draw(np.random.default_rng(0)))


def gains_by_definition(
    solution: Solution, config: CandidateConfig, source: int, *, radius: float, max_length: int
) -> dict[int, float]:
    """The gain of every target: every path of up to K edges and one neighbour edge, one step at a time."""
    mdp, value = solution.mdp, solution.value
    penalty = mdp.gamma * mdp.penalty * TOLERANCE / 2
    gains: dict[int, float] = {}
    by_then, state, ended = [value[source]], source, False  # the policy's value after each number of steps
    for _ in range(max_length):
        edge = solution.policy[state]
        if not ended and edge != NO_EDGE:
            state, ended = int(mdp.target[edge]), mdp.discount[edge] == 0
        by_then.append(0.0 if ended else value[state])

    def visit(state: int, length: int, reward: float, discount: float, hopped: bool) -> None:
        if hopped and length and state < mdp.real_count:
            advantage = reward + discount * value[state] - value[source]
            gain = advantage if config.impact == "advantage" else value[state] - by_then[length]
            gain -= penalty * mdp.gamma ** (length - 1)
            if gain > 1e-9 * max(1.0, abs(value[source])):
                gains[state] = max(gains.get(state, -np.inf), gain)
        if not hopped:
            distance = np.abs(mdp.states[: mdp.real_count, 0] - mdp.states[state, 0])
            for neighbour in np.flatnonzero(distance <= radius):
                if neighbour != state:
                    visit(int(neighbour), length, reward, discount, True)
        if length < max_length and discount > 0:
            for edge in range(mdp.first_edge[state], mdp.first_edge[state + 1]):
                longer = reward + discount * mdp.penalized_reward[edge]
                visit(int(mdp.target[edge]), length + 1, longer, discount * mdp.discount[edge], hopped)

    visit(source, 0, 0.0, 1.0, False)
    return gains


@settings(deadline=None, max_examples=80)
@given(random_mdps(max_states=8), st.sampled_from(["advantage", "value"]), st.sampled_from([1.0, 2.0]), st.booleans())
def test_candidates_are_those_of_the_papers_definition(
    mdp: TabularMDP, impact: str, radius: float, penalized: bool
) -> None:
    solution = policy_iteration(replace(mdp, penalty=2.0 if penalized else 0.0))
    config = replace(EVERYTHING, impact=impact)
    found = find(solution, config, radius=radius, max_length=3)
    expected = {
        (source, target): gain
        for source in range(mdp.state_count)
        for target, gain in gains_by_definition(solution, config, source, radius=radius, max_length=3).items()
    }
    pairs = zip(found.source.tolist(), found.target.tolist(), strict=True)
    gains = dict(zip(pairs, found.gain.tolist(), strict=True))
    assert len(gains) == len(found)
    assert gains == pytest.approx(expected)


@settings(deadline=None, max_examples=40)
@given(random_mdps(max_states=12), st.sampled_from(["longest", "all"]), st.integers(1, 2), st.integers(1, 3))
def test_less_branching_and_fewer_lengths_find_a_part_of_the_same(
    mdp: TabularMDP, lengths: str, branching: int, per_source: int
) -> None:
    solution = policy_iteration(mdp)
    config = CandidateConfig(branching=branching, lengths=lengths, skip=0, per_source=per_source)
    found = find(solution, config, radius=2.0, max_length=3)
    assert np.all(np.bincount(found.source, minlength=1) <= per_source)
    for source in np.unique(found.source).tolist():
        possible = gains_by_definition(solution, EVERYTHING, source, radius=2.0, max_length=3)
        own = take(found, found.source == source)
        assert set(own.target.tolist()) <= set(possible)
        assert np.all(own.gain <= [possible[target] + 1e-9 for target in own.target.tolist()])


def test_blocks_of_sources_find_the_same_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mdp = mdp_from_edges(30, [(state, state, float(state)) for state in range(30)])
    solution = policy_iteration(mdp)
    whole = find(solution, EVERYTHING, radius=3.0, max_length=2)
    monkeypatch.setattr(candidates, "SMALL_BLOCK", 7)
    parts = find(solution, EVERYTHING, radius=3.0, max_length=2)
    assert len(whole)
    assert (parts.source.tolist(), parts.target.tolist()) == (whole.source.tolist(), whole.target.tolist())


def test_the_path_and_the_length_of_its_neighbour_edge_are_kept() -> None:
    # 0 → 1 → 2 earns nothing; 3 → 4 → 5 is half a step beside it, and 5 earns 1 for ever
    mdp = mdp_from_edges(6, [(0, 1, 0.0), (1, 2, 0.0), (3, 4, 0.0), (4, 5, 0.0), (5, 5, 1.0)])
    mdp = replace(mdp, states=np.array([[0.0], [1.0], [2.0], [10.0], [1.5], [20.0]]))
    found = find(policy_iteration(mdp), SIMPLE, radius=0.6, max_length=2, sources=np.array([0]))
    # neighbour edges 1 ~ 4 and 2 ~ 4: after one edge there is room for one more, to 5, and after two there is none
    paths = {
        (int(target), int(length)): edges.tolist()
        for target, length, edges in zip(found.target, found.length, found.edge, strict=True)
    }
    assert paths == {(5, 2): [0, 3], (4, 2): [0, 1]}
    assert found.distance.tolist() == [0.5, 0.5]
    assert found.gain[found.target == 5] == pytest.approx([0.9**2 * 10])


def test_steps_of_the_policys_own_rollout_may_be_skipped() -> None:
    # 0 → 1 → … → 5, which earns 1 for ever; no state is within the radius of another
    mdp = mdp_from_edges(6, [*((state, state + 1, 0.0) for state in range(5)), (5, 5, 1.0)])
    solution, source, config = policy_iteration(mdp), np.array([0]), replace(SIMPLE, skip=2)
    found = find(solution, config, radius=0.5, max_length=4, sources=source)
    # after no edge or two, one or two steps are skipped; with four edges in all that leads to 5, and round in it
    assert set(zip(found.target.tolist(), found.length.tolist(), found.distance.tolist(), strict=True)) == {(5, 4, 2.0)}
    assert found.gain == pytest.approx([0.9**3 * 10 - 0.9**5 * 10])
    short = find(solution, config, radius=0.5, max_length=2, sources=source)
    paths = {int(target): edges.tolist() for target, edges in zip(short.target, short.edge, strict=True)}
    assert paths == {3: [0, 2], 4: [0, 3]}  # a plan begins with the actions of 0 and of 2 or 3
    assert short.distance[np.argsort(short.target)].tolist() == [1.0, 2.0]
    assert len(find(solution, SIMPLE, radius=0.5, max_length=4, sources=source)) == 0


def history_of(
    source: np.ndarray, target: np.ndarray, length: np.ndarray, outcome: Outcome, real_count: int
) -> History:
    count = len(source)
    attempts = Attempts(source, target, length, length, np.zeros(count), np.zeros(count), np.full(count, outcome))
    return History.of([attempts], real_count)


@pytest.mark.parametrize("outcome", Outcome)
def test_pairs_that_were_planned_are_left_out_before_the_best_are_chosen(outcome: Outcome) -> None:
    solution = policy_iteration(mdp_from_edges(4, [(0, 0, 0.0), (1, 1, 1.0), (2, 2, 2.0), (3, 3, 3.0)]))
    config, source = replace(SIMPLE, per_source=1), np.array([0])
    best = find(solution, config, radius=5.0, max_length=1, sources=source)
    assert best.target.tolist() == [3]
    history = history_of(best.source, best.target, best.length, outcome, 4)
    assert find(solution, config, radius=5.0, max_length=1, sources=source, history=history).target.tolist() == [2]


def test_a_pair_is_planned_with_more_actions_after_it_ended_too_far_and_otherwise_with_fewer() -> None:
    # 0 → 1 → 2 → 3 earns nothing; 4, beside 0, stays where it is and earns 1: 0 ~ 4 in one, two or three steps
    mdp = mdp_from_edges(5, [(0, 1, 0.0), (1, 2, 0.0), (2, 3, 0.0), (4, 4, 1.0)])
    solution = policy_iteration(replace(mdp, states=np.array([[0.0], [5.0], [10.0], [15.0], [0.5]])))
    config = replace(SIMPLE, lengths="all")

    def lengths(*attempts: tuple[int, Outcome]) -> list[int]:
        """The lengths that are left after attempts from 0 to 4."""
        history = History.empty(5)
        for length, outcome in attempts:
            nothing = np.zeros(1)
            history = history.extended(
                Attempts(*map(np.array, ([0], [4], [length], [length])), nothing, nothing, np.array([outcome]))
            )
        found = find(solution, config, radius=1.0, max_length=3, sources=np.array([0]), history=history)
        return found.length.tolist()

    assert lengths((2, Outcome.TOO_FAR)) == [3]
    assert lengths((3, Outcome.TOO_FAR)) == []
    assert lengths((3, Outcome.ACCEPTED), (1, Outcome.TOO_FAR)) == [2]
    assert lengths((3, Outcome.UNRELIABLE), (1, Outcome.TOO_FAR)) == [2]
    assert lengths((1, Outcome.ACCEPTED)) == []
    assert lengths((1, Outcome.UNRELIABLE)) == []


def test_a_source_offers_all_its_candidates_in_time() -> None:
    # sixty states around 0, each with a higher value than the last, of which a round takes two
    mdp = mdp_from_edges(61, [(state, state, float(state)) for state in range(61)])
    solution = policy_iteration(replace(mdp, states=np.linspace(0, 1, 61)[:, None]))
    history, config = History.empty(61), replace(SIMPLE, per_source=2)
    for _ in range(30):
        found = find(solution, config, radius=2.0, max_length=1, sources=np.array([0]), history=history)
        assert len(found) == 2
        nothing, outcome = np.zeros(2), np.full(2, Outcome.TOO_FAR)
        history = history.extended(
            Attempts(found.source, found.target, found.length, found.length, nothing, nothing, outcome)
        )
    assert history.pair.tolist() == list(range(1, 61))
