"""Algorithm 1: round after round, solve the MDP, look for what is worth joining, plan it, add what arrives.

The loop is a generator. Each round it yields the grown MDP with all that was tried; whoever runs it logs, shows, saves
or stops. All chance in a round comes from the seed and the round's number, and what a round needs to know of those
before it is in what they yielded, so a loop that goes on from saved rounds ends as if it had never stopped.

Where the walks have little left to join, a round also looks one neighbour edge off them: a better way may have to be
made before it is worth taking. The last rounds look beside the walks: whoever acts on the result will not stay on them,
and the states there should know the way back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Int

from bats.arrays import TabularPolicy
from bats.errors import SettingError
from bats.graph.mdp import Stitches, TabularMDP, add_stitches
from bats.graph.rollouts import on_the_way, stitched_share, walk
from bats.graph.solve import Solution, boltzmann_policy, policy_iteration, sample_occupancy, start_value
from bats.metric.neighbours import Forest, NeighbourConfig, Neighbours
from bats.planning.planner import MOST_SEQUENCES, PlannerConfig
from bats.stitching.acceptance import Learned, attempt
from bats.stitching.candidates import CandidateConfig, Candidates, find_candidates
from bats.stitching.history import Experience
from bats.stitching.records import WALKED, Attempts, Outcome, RoundRecord

BESIDE = NeighbourConfig(count=4, scales=(0.1, 0.01, 0.002, 0.0005))
"""where sources beside a walk are drawn from: half an ordinary step to five away in the mazes"""


@dataclass(frozen=True)
class StitchConfig:
    """How the log is stitched together."""

    rounds: int = 40
    """rounds of solving, looking and planning [n]"""
    rounds_beside: int = 10
    """further rounds that stitch states beside the policy's walks; none where the rounds before ran out of joins"""
    short_every: int | None = 4
    """in every so-manieth round stitches are at most half as long: where things are hit, a model is good for a few
    actions only; None: in none"""
    samples: int = 4000
    """states drawn from the policy's occupancy each round [m]"""
    attempts: int = 4000
    """most joins planned each round, the most promising ones"""
    off_walks: float = 0.25
    """share of the attempts that is filled up with joins of the walks' neighbours where the walks have fewer: no single
    join of a walk may gain where two would; 0: nothing off the walks, as in the paper, as long as they gain"""
    temperature: float = 0.25
    """of the Boltzmann policy that draws the states, in rewards [T]"""
    tolerance: float = 0.4
    """largest error of a stitch, in the units of the metric [delta]"""
    shortest: bool = False
    """try 1, 2, … actions in turn [Algorithm 2] instead of as many as the path has"""
    imagined_sources: bool = False
    """stitch from imagined states too; their true value is not defined, so bounds speak of real ones only"""
    calibrate: bool = True
    """add to a stitch's error how wrong the model was on held-out rows near it"""
    dead_end_value: float = 0.0
    """what a state is worth whose future the log does not show"""
    candidates: CandidateConfig = field(default_factory=CandidateConfig)
    neighbours: NeighbourConfig = field(default_factory=NeighbourConfig)
    planner: PlannerConfig = field(default_factory=lambda: PlannerConfig(more_iterations=0, fallback=False))
    """without the planner's further tries: the candidates that stall are few, and there are others"""

    def __post_init__(self) -> None:
        for name in ("rounds", "samples", "attempts"):
            if getattr(self, name) < 1:
                raise SettingError(f"`{name}` must be at least 1; got {getattr(self, name)}.")
        if self.short_every is not None and self.short_every < 1:
            raise SettingError(f"`short_every` must be at least 1; got {self.short_every}.")
        if self.rounds_beside < 0:
            raise SettingError(f"`rounds_beside` must not be negative; got {self.rounds_beside}.")
        if not 0 <= self.off_walks <= 1:
            raise SettingError(f"`off_walks` must lie from 0 to 1; got {self.off_walks}.")
        for name in ("temperature", "tolerance"):
            if not getattr(self, name) > 0:
                raise SettingError(f"`{name}` must be positive; got {getattr(self, name)}.")


@dataclass(frozen=True, eq=False)
class Round:
    """What the loop yields: the grown MDP, how it got there, and its solution."""

    mdp: TabularMDP
    solution: Solution
    stitches: Stitches
    attempts: Attempts
    record: RoundRecord


def stitch(
    mdp: TabularMDP,
    learned: Learned,
    config: StitchConfig,
    *,
    seed: int,
    rounds_done: int = 0,
    last_round: int | None = None,
    experience: Experience | None = None,
) -> Iterator[Round]:
    """Stitches a log's MDP together, yielding after each round; ends early when a round finds nothing left to try.

    Every round solves from scratch: a warm start could settle ties otherwise than a run that went on from saved rounds.

    To go on from saved rounds, give the MDP they grew, how many they were, and what they tried. To stop before the
    configuration says, give the last round.
    """
    last = config.rounds + config.rounds_beside
    last = last if last_round is None else min(last_round, last)
    experience = Experience.none() if experience is None else experience
    points = np.asarray(learned.metric.embed(mdp.states[: mdp.real_count]))
    neighbours = Neighbours(points, config.neighbours)
    wanted = _affordable(config.candidates, mdp.action_count)
    solution = policy_iteration(mdp, dead_end_value=config.dead_end_value)
    for number in range(rounds_done + 1, last + 1):
        rng = np.random.default_rng([seed, 3, number])
        look = _Look(mdp, solution, neighbours, learned, wanted, experience, config, rng)
        seen = look.candidates(number)
        if len(seen.chosen) == 0:
            return
        attempts, stitches = attempt(
            mdp,
            seen.chosen,
            learned,
            config.planner,
            tolerance=config.tolerance,
            shortest=config.shortest,
            seed=int(rng.integers(2**31)),
        )
        before, mdp = mdp, add_stitches(mdp, stitches, stitch_round=number)
        worth, solution = solution, policy_iteration(mdp, dead_end_value=config.dead_end_value)
        experience = experience.and_then(attempts, mdp.real_count)
        values = (start_value(before, worth.value), start_value(mdp, solution.value))
        record = _record(number, seen, attempts, mdp, solution, values)
        yield Round(mdp, solution, stitches, attempts, record)


@dataclass(frozen=True, eq=False)
class _Found:
    """What a round found worth joining."""

    sources: int
    """distinct states looked at"""
    candidates: int
    chosen: Candidates
    """the most promising of them"""

    def and_also(self, more: _Found) -> _Found:
        chosen = self.chosen.and_also(more.chosen)
        return _Found(self.sources + more.sources, self.candidates + more.candidates, chosen)


@dataclass(frozen=True, eq=False)
class _Look:
    """Looks for candidates as things stand in one round."""

    mdp: TabularMDP
    solution: Solution
    neighbours: Neighbours
    learned: Learned
    wanted: CandidateConfig
    experience: Experience
    config: StitchConfig
    rng: np.random.Generator

    def candidates(self, number: int) -> _Found:
        """What this round looks at, in the way that its number says."""
        config, wanted = self.config, self.wanted
        if config.short_every is not None and number % config.short_every == 0 and wanted.longest > 1:
            seen = replace(self, wanted=replace(wanted, longest=wanted.longest // 2)).candidates_of(number)
            if len(seen.chosen):
                return seen
        return self.candidates_of(number)

    def candidates_of(self, number: int) -> _Found:
        return self.along_walks() if number <= self.config.rounds else self.beside_walks()

    def along_walks(self) -> _Found:
        """Sources where the policy goes; where these have little to join, their neighbours; else the whole log."""
        config = self.config
        sources, visits = sample_sources(self.mdp, self.solution, config, self.rng)
        forest = self.neighbours.drawn(self.rng)
        seen = self._joins_of(sources, visits, forest, self.wanted, config.attempts)
        room = int(config.off_walks * config.attempts) - len(seen.chosen)
        if room > 0:
            off = self._neighbours_of(sources[sources < self.mdp.real_count], forest)
            seen = seen.and_also(self._joins_of(*_once(off[~np.isin(off, sources)]), forest, self.wanted, room))
        if len(seen.chosen) == 0:  # what the policy could join may have to be joined up first, however far away
            anywhere = np.unique(self.rng.integers(0, self.mdp.real_count, config.samples))
            anywhere = anywhere[~self.mdp.only_ended_in[anywhere]]
            seen = seen.and_also(self._joins_of(*_once(anywhere), forest, self.wanted, config.attempts))
        return seen

    def beside_walks(self) -> _Found:
        """Sources beside the walks from the starts, and beside those from what was joined to them before."""
        mdp, config = self.mdp, self.config
        joined = mdp.source[mdp.stitch_round > config.rounds]
        way = on_the_way(mdp, self.solution.policy, np.union1d(mdp.starts, joined[joined < mdp.real_count]))
        met = way[way < mdp.real_count]
        picked = self.rng.choice(met, min(len(met), config.samples), replace=False)
        sources = self._neighbours_of(picked, self.neighbours.at(BESIDE).drawn(self.rng))
        targets = self.neighbours.among(met, self.rng)
        wanted = replace(self.wanted, per_source=1)
        return self._joins_of(*_once(sources[~np.isin(sources, met)]), targets, wanted, config.attempts)

    def _neighbours_of(self, states: Int[np.ndarray, "n"], forest: Forest) -> Int[np.ndarray, "some"]:
        """For each state another one near it, drawn at random, where the log did not only ever end; distinct."""
        near = forest.near(self.neighbours.points[states])
        others = np.flatnonzero((near.neighbour != states[near.place]) & ~self.mdp.only_ended_in[near.neighbour])
        drawn = self.rng.permutation(others)  # then the first of each place is any of its neighbours
        return np.unique(near.neighbour[drawn][np.unique(near.place[drawn], return_index=True)[1]])

    def _joins_of(
        self,
        sources: Int[np.ndarray, "n"],
        visits: Int[np.ndarray, "n"],
        forest: Forest,
        wanted: CandidateConfig,
        most: int,
    ) -> _Found:
        """The most promising joins of some sources, which were met so often."""
        found = find_candidates(
            self.mdp,
            self.solution,
            sources,
            forest,
            self.learned.metric,
            wanted,
            tried=self.experience.tried,
            expected_error=self.experience.expected_error(self.config.tolerance),
            chance=self.experience.chance,
        )
        return _Found(len(sources), len(found), most_promising(found, sources, visits, self.experience, most))


def _affordable(config: CandidateConfig, action_count: int | None) -> CandidateConfig:
    """Stitches of discrete actions are no longer than what can be searched through, every sequence of it."""
    if action_count is None or config.longest == 1:
        return config
    searched = max(int(np.log(MOST_SEQUENCES) / np.log(max(action_count, 2)) + 1e-9), 1)
    return replace(config, longest=min(config.longest, searched))


def sample_sources(
    mdp: TabularMDP, solution: Solution, config: StitchConfig, rng: np.random.Generator
) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """Distinct states as the Boltzmann policy visits them, and how often each was drawn.

    A walker that is stopped in an imagined state goes on to the end of its stitch, unless those may be sources too.
    """
    probability = boltzmann_policy(mdp, solution.value, temperature=config.temperature)
    found = sample_occupancy(mdp, probability, config.samples, rng=rng)
    if not config.imagined_sources:
        found = _next_real(mdp, solution.policy, found)
    found = found[~mdp.only_ended_in[found]]  # a walk that has ended is nowhere
    sources, visits = np.unique(found, return_counts=True)
    return sources, visits


def most_promising(
    found: Candidates,
    sources: Int[np.ndarray, "n"],
    visits: Int[np.ndarray, "n"],
    experience: Experience,
    most: int,
) -> Candidates:
    """The candidates that should raise the value at the starts most: by visits, gain and the chance of success."""
    if len(found) <= most:
        return found
    often = visits[np.searchsorted(sources, found.source)]
    promise = often * found.gain * experience.chance(found.gap, found.length)
    return found.some(np.sort(np.argsort(-promise, kind="stable")[:most]))


def _next_real(mdp: TabularMDP, policy: TabularPolicy, states: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    """Each state itself if it is real, else the real state that its stitch leads to."""
    while np.any(imagined := states >= mdp.real_count):
        states = np.where(imagined, mdp.target[policy[states]], states)
    return states


def _once(states: Int[np.ndarray, "n"]) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """States, each met once."""
    return states, np.ones(len(states), dtype=np.int64)


def _record(
    number: int,
    seen: _Found,
    attempts: Attempts,
    mdp: TabularMDP,
    solution: Solution,
    values: tuple[float, float],
) -> RoundRecord:
    reasons = {reason.name.lower(): int(np.sum(attempts.outcome == reason)) for reason in Outcome}
    accepted = reasons.pop("accepted")
    return RoundRecord(
        round=number,
        sources=seen.sources,
        candidates=seen.candidates,
        tried=len(attempts),
        accepted=accepted,
        refused={reason: count for reason, count in reasons.items() if count},
        mean_error=float(attempts.error[attempts.accepted].mean()) if accepted else 0.0,
        value_before=values[0],
        value=values[1],
        stitched_share=stitched_share(mdp, walk(mdp, solution.policy, mdp.starts, WALKED)),
        states=mdp.state_count,
        edges=mdp.edge_count,
    )
