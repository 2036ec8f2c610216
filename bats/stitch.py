"""Algorithm 1: round after round, solve the MDP, look for what is worth joining, plan it, add what arrives.

The loop is a generator. Each round it yields the grown MDP with all that was tried; whoever runs it logs, shows, saves
or stops. All chance in a round comes from the seed and the round's number, and what a round needs to know of those
before it is in what they yielded, so a loop that goes on from saved rounds ends as if it had never stopped.

The last rounds look beside the policy's walks: whoever acts on the result will not stay on them, and the states there
should know the way back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int

from bats.attempts import Learned, attempt
from bats.candidates import CandidateConfig, Candidates, find_candidates, pair_number
from bats.errors import SettingError
from bats.mdp import Stitches, TabularMDP, add_stitches
from bats.neighbours import Forest, NeighbourConfig, Neighbours
from bats.planner import MOST_SEQUENCES, PlannerConfig
from bats.records import WALKED, Attempts, Outcome, RoundRecord
from bats.rollouts import on_the_way, stitched_share, walk
from bats.solve import Solution, boltzmann_policy, policy_iteration, sample_occupancy, start_value
from bats.types import Policy

BESIDE = NeighbourConfig(count=4, scales=(0.1, 0.01, 0.002, 0.0005))
"""where sources beside a walk are drawn from: half an ordinary step to five away in the mazes"""
GAP_BINS = 2.0 ** np.arange(-8, 5)
"""gaps to be closed per action are told apart by their size to a factor of two"""


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


@dataclass(frozen=True, eq=False)
class Experience:
    """What was tried before: pairs are not tried twice, and it shows which gaps can be closed."""

    accepted: Int[np.ndarray, "a"]
    """pairs as single numbers, in order"""
    failed: Int[np.ndarray, "f"]
    tries: Float[np.ndarray, "gaps"]
    successes: Float[np.ndarray, "gaps"]
    error_sum: float
    """of the accepted ones"""

    @classmethod
    def none(cls) -> Experience:
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, np.zeros(len(GAP_BINS) + 1), np.zeros(len(GAP_BINS) + 1), 0.0)

    def and_then(self, attempts: Attempts, real_count: int) -> Experience:
        """With what a round tried."""
        pairs = pair_number(attempts.source, attempts.target, real_count)
        place, done = np.digitize(attempts.gap / attempts.length, GAP_BINS), attempts.accepted
        count = len(self.tries)
        return Experience(
            accepted=np.union1d(self.accepted, pairs[done]),
            failed=np.union1d(self.failed, pairs[~done]),
            tries=self.tries + np.bincount(place, minlength=count),
            successes=self.successes + np.bincount(place, weights=done, minlength=count),
            error_sum=self.error_sum + float(attempts.error[done].sum()),
        )

    def forgetting_failures(self) -> Experience:
        """For another metric or tolerance: what failed may be tried again, and nothing is known of what succeeds."""
        return replace(Experience.none(), accepted=self.accepted)

    def chance(self, gap: Float[np.ndarray, "P"], length: Int[np.ndarray, "P"]) -> Float[np.ndarray, "P"]:
        """Share of the attempts at as wide a gap per action that came off; hopeful where nothing was tried."""
        return ((self.successes + 1) / (self.tries + 1))[np.digitize(gap / length, GAP_BINS)]

    def expected_error(self, tolerance: float) -> float:
        """Mean error of the stitches so far; half the tolerance before there are any."""
        return (self.error_sum + tolerance / 2) / (self.successes.sum() + 1)

    def tried(self) -> Int[np.ndarray, "t"]:
        return np.union1d(self.accepted, self.failed)


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
        sources, visits, found = look.candidates(number)
        if len(found) == 0:
            return
        chosen = most_promising(found, sources, visits, experience, config.attempts)
        attempts, stitches = attempt(
            mdp,
            chosen,
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
        record = _record(number, len(sources), len(found), attempts, mdp, solution, values)
        yield Round(mdp, solution, stitches, attempts, record)


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

    def candidates(self, number: int) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"], Candidates]:
        """Sources, how often each was met, and what they could join, of this round."""
        config, wanted = self.config, self.wanted
        if config.short_every is not None and number % config.short_every == 0 and wanted.longest > 1:
            short = replace(self, wanted=replace(wanted, longest=wanted.longest // 2))
            found = short.candidates_of(number)
            if len(found[2]):
                return found
        return self.candidates_of(number)

    def candidates_of(self, number: int) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"], Candidates]:
        return self.along_walks() if number <= self.config.rounds else self.beside_walks()

    def along_walks(self) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"], Candidates]:
        """Sources where the policy goes, how often each was met, and what they could join."""
        sources, visits = sample_sources(self.mdp, self.solution, self.config, self.rng)
        forest = self.neighbours.drawn(self.rng)
        found = self._candidates(sources, forest, self.wanted)
        if len(found) == 0:  # where the policy goes nothing gains: what it could join may have to be joined up first
            sources = np.unique(self.rng.integers(0, self.mdp.real_count, self.config.samples))
            sources = sources[~self.mdp.only_ended_in[sources]]
            visits, found = np.ones(len(sources), dtype=np.int64), self._candidates(sources, forest, self.wanted)
        return sources, visits, found

    def beside_walks(self) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"], Candidates]:
        """The same with sources beside the walks from the starts, and from what was joined to those before."""
        mdp = self.mdp
        joined = mdp.source[mdp.stitch_round > self.config.rounds]
        way = on_the_way(mdp, self.solution.policy, np.union1d(mdp.starts, joined[joined < mdp.real_count]))
        met = way[way < mdp.real_count]
        picked = self.rng.choice(met, min(len(met), self.config.samples), replace=False)
        near = self.neighbours.at(BESIDE).drawn(self.rng).near(self.neighbours.points[picked])
        order = self.rng.permutation(len(near))  # then the first of each place is any of its neighbours
        sources = np.unique(near.neighbour[order][np.unique(near.place[order], return_index=True)[1]])
        sources = sources[~mdp.only_ended_in[sources] & ~np.isin(sources, met)]
        targets = self.neighbours.among(met, self.rng)
        found = self._candidates(sources, targets, replace(self.wanted, per_source=1))
        return sources, np.ones(len(sources), dtype=np.int64), found

    def _candidates(self, sources: Int[np.ndarray, "n"], forest: Forest, wanted: CandidateConfig) -> Candidates:
        return find_candidates(
            self.mdp,
            self.solution,
            sources,
            forest,
            self.learned.metric,
            wanted,
            tried=self.experience.tried(),
            expected_error=self.experience.expected_error(self.config.tolerance),
            chance=self.experience.chance,
        )


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


def _next_real(mdp: TabularMDP, policy: Policy, states: Int[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    """Each state itself if it is real, else the real state that its stitch leads to."""
    while np.any(imagined := states >= mdp.real_count):
        states = np.where(imagined, mdp.target[policy[states]], states)
    return states


def _record(
    number: int,
    sources: int,
    candidates: int,
    attempts: Attempts,
    mdp: TabularMDP,
    solution: Solution,
    values: tuple[float, float],
) -> RoundRecord:
    reasons = {reason.name.lower(): int(np.sum(attempts.outcome == reason)) for reason in Outcome}
    accepted = reasons.pop("accepted")
    return RoundRecord(
        round=number,
        sources=sources,
        candidates=candidates,
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
