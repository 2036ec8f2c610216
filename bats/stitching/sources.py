"""Where a round searches for candidates, and which of them it plans.

A round samples states where the policy goes and searches from those. Where they have few candidates left, it searches
from their neighbours too, because two stitches may gain where neither does alone; where there are none at all, from
anywhere in the log, because what the policy could reach may have to be connected first.

The last rounds are for recovery: they stitch states near the policy's rollouts back to them, for a clone that drifts
off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from bats.arrays import Indices, concat, take
from bats.config import NeighbourConfig, StitchConfig
from bats.graph.rollouts import reachable
from bats.graph.solve import Solution, boltzmann_policy, sample_occupancy
from bats.metric.neighbours import Forest
from bats.stitching.candidates import Candidates, Search, find_candidates
from bats.stitching.history import History

NEARBY = NeighbourConfig(count=4, scales=(0.1, 0.01, 0.002, 0.0005))
"""where recovery sources are drawn from: half an ordinary step to five away from a rollout in the mazes"""
MAX_STITCH_SEQUENCES = 64
"""sequences of discrete actions that are searched for a stitch, because all of them have to be unrolled"""


@dataclass(frozen=True, eq=False)
class Proposal:
    """What a round plans."""

    source_count: int
    """distinct states searched"""
    candidate_count: int
    """candidates of all of them"""
    candidates: Candidates
    """the most promising ones"""


def lengths_to_search(
    longest: int, half_length_every: int | None, number: int, action_count: int | None
) -> tuple[int, ...]:
    """The maximum lengths that a round searches with in turn, until one gives candidates."""
    if action_count is not None and longest > 1:
        # every sequence of discrete actions is searched, so stitches are only as long as that is affordable
        count = max(action_count, 2)
        longest = max((length for length in range(2, longest + 1) if count**length <= MAX_STITCH_SEQUENCES), default=1)
    halved = half_length_every is not None and number % half_length_every == 0 and longest > 1
    return (longest // 2, longest) if halved else (longest,)


def search_along_policy(search: Search, rng: np.random.Generator) -> Proposal:
    """Candidates of states that the policy visits, of their neighbours, or of any states of the log."""
    mdp, config = search.solution.mdp, search.config
    sources, visits = sample_sources(search.solution, config, rng)
    forest = search.index.draw(rng)
    proposal = _propose(search, sources, visits, forest, config.attempts)
    room = int(config.neighbour_share * config.attempts) - len(proposal.candidates)
    if room > 0:
        nearby = _random_neighbours(search, sources[sources < mdp.real_count], forest, rng)
        nearby = nearby[~np.isin(nearby, sources)]
        proposal = _joined(proposal, _propose(search, nearby, np.ones_like(nearby), forest, room))
    if len(proposal.candidates) == 0:
        anywhere = np.unique(rng.integers(0, mdp.real_count, config.samples))
        anywhere = anywhere[~mdp.always_terminal[anywhere]]
        proposal = _joined(proposal, _propose(search, anywhere, np.ones_like(anywhere), forest, config.attempts))
    return proposal


def search_for_recovery(search: Search, rng: np.random.Generator) -> Proposal:
    """Candidates from states near the rollouts back to the rollouts: those from the starts, and those from states that
    earlier recovery rounds have stitched."""
    mdp, config = search.solution.mdp, search.config
    recovered = mdp.source[mdp.stitch_round > config.rounds]
    visited = reachable(mdp, search.solution.policy, np.union1d(mdp.starts, recovered[recovered < mdp.real_count]))
    visited = visited[visited < mdp.real_count]
    drawn = rng.choice(visited, min(len(visited), config.samples), replace=False)
    sources = _random_neighbours(search, drawn, search.index.draw(rng, NEARBY), rng)
    sources = sources[~np.isin(sources, visited)]
    forest = search.index.draw_among(visited, rng)
    search = replace(search, config=replace(config, candidates=replace(config.candidates, per_source=1)))
    return _propose(search, sources, np.ones_like(sources), forest, config.attempts)


def sample_sources(solution: Solution, config: StitchConfig, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Distinct real states as the Boltzmann policy visits them, and how often each was drawn."""
    mdp = solution.mdp
    probability = boltzmann_policy(mdp, solution.value, temperature=config.temperature)
    state = sample_occupancy(mdp, probability, config.samples, rng=rng)
    while np.any(imagined := state >= mdp.real_count):  # continue to the end of the stitch
        state = np.where(imagined, mdp.target[solution.policy[state]], state)
    state = state[~mdp.always_terminal[state]]  # nothing follows a termination
    sources, visits = np.unique(state, return_counts=True)
    return sources, visits


def most_promising(
    candidates: Candidates, sources: Indices, visits: Indices, history: History, count: int
) -> Candidates:
    """The candidates that should raise the value at the starts most: by visits, gain and chance of success."""
    if len(candidates) <= count:
        return candidates
    visited = visits[np.searchsorted(sources, candidates.source)]
    score = visited * candidates.gain * history.success_rate(candidates.distance, candidates.length)
    return take(candidates, np.sort(np.argsort(-score, kind="stable")[:count]))


def _propose(search: Search, sources: Indices, visits: Indices, forest: Forest, count: int) -> Proposal:
    found = find_candidates(search, sources, forest)
    return Proposal(len(sources), len(found), most_promising(found, sources, visits, search.history, count))


def _joined(first: Proposal, second: Proposal) -> Proposal:
    candidates = concat([first.candidates, second.candidates])
    counts = first.source_count + second.source_count, first.candidate_count + second.candidate_count
    return Proposal(*counts, candidates)


def _random_neighbours(
    search: Search, states: Indices, forest: Forest, rng: np.random.Generator
) -> Int[np.ndarray, "m"]:
    """For each state a random one of its neighbours, unless the log always terminates there; distinct."""
    pairs, terminal = forest.near(search.index.points[states]), search.solution.mdp.always_terminal
    usable = np.flatnonzero((pairs.neighbour != states[pairs.query]) & ~terminal[pairs.neighbour])
    shuffled = rng.permutation(usable)  # then the first pair of each query is a random one
    return np.unique(pairs.neighbour[shuffled][np.unique(pairs.query[shuffled], return_index=True)[1]])
