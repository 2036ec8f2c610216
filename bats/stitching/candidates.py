"""What is worth joining: pairs of states that a short path almost joins, and that would raise the value.

**Feasible** [section 3.2]: from the source a path of at most K edges of the graph and exactly one neighbour edge, which
may stand anywhere in it, leads to the target, and the target is real.

    source = x0 → x1 → … → xi  ~  n → … → target          i edges before, j after, k = i + j from 1 to K
                               └ the neighbour edge

The actions of the k edges are what a planner starts from. **Impactful**: the path's rewards and the value of the target
are together worth more than the value of the source, by more than the penalty that the stitch must be expected to pay.

Values are optimal, so no way of going on from n is worth more than V(n). Pairs (xi, n) that cannot gain are dropped
before anything is followed further.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.arrays import Metric
from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import TabularMDP
from bats.graph.solve import Solution
from bats.metric.neighbours import Forest, Pairs
from bats.stitching.history import Tried, pair_number

Chance = Callable[[Float[np.ndarray, "P"], Int[np.ndarray, "P"]], Float[np.ndarray, "P"]]
"""how likely a planner is to close a gap of some length with some number of actions"""

ROUNDING = 1e-9
"""a gain below this, relative to the source's value or 1, is none"""
AT_ONCE = 2000
"""sources looked at together, for the memory that their neighbours take"""
FEW_AT_ONCE = 100
"""the same where nothing limits how many neighbours a state has"""
SPARE = 4
"""neighbour edges followed for each candidate kept, since several may lead to one target"""


@dataclass(frozen=True)
class CandidateConfig:
    """Which joins are looked at."""

    longest: int = 25
    """most actions in a stitch [K]"""
    branches: int | None = 1
    """edges followed in each state, the best ones; None: all of them, as the paper defines it"""
    lengths: Literal["longest", "all"] = "longest"
    """longest: each neighbour edge is followed as far as a path may go, which leaves a planner the most room; all:
    every target on the way"""
    impact: Literal["advantage", "value"] = "advantage"
    """advantage: rewards on the path count; value: the paper's test, V(target) > V(where the policy is by then)"""
    hurry: int = 3
    """most steps of the policy's own walk that a path may skip: who is a few steps ahead is a neighbour too, and a log
    that dawdles is caught up with; 0: none, as in the paper"""
    per_source: int | None = 6
    """most candidates of one source, the best ones by gain times chance; None: all"""

    def __post_init__(self) -> None:
        for name in ("longest", "branches", "per_source"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise SettingError(f"`{name}` must be at least 1; got {getattr(self, name)}.")
        if self.hurry < 0:
            raise SettingError(f"`hurry` must not be negative; got {self.hurry}.")


@dataclass(frozen=True, eq=False)
class Candidates:
    """Joins to be planned, each pair once, the best of it."""

    source: Int[np.ndarray, "C"]
    target: Int[np.ndarray, "C"]
    length: Int[np.ndarray, "C"]
    edge: Int[np.ndarray, "C K"]
    """edges of the path; NO_EDGE beyond its length"""
    gain: Float[np.ndarray, "C"]
    """what joining them would add to the value of the source"""
    gap: Float[np.ndarray, "C"]
    """length of the neighbour edge"""

    def __len__(self) -> int:
        return len(self.source)

    def some(self, rows: Int[np.ndarray, "n"] | Bool[np.ndarray, "C"]) -> Candidates:
        return Candidates(*(getattr(self, part.name)[rows] for part in fields(self)))

    def and_also(self, *others: Candidates) -> Candidates:
        """These and others after them."""
        every = (self, *others)
        return Candidates(*(np.concatenate([getattr(each, part.name) for each in every]) for part in fields(self)))


@dataclass(frozen=True, eq=False)
class _Paths:
    """Paths through the graph, each from one of the sources, side by side."""

    origin: Int[np.ndarray, "P"]
    """which source"""
    hop: Int[np.ndarray, "P"]
    """which neighbour edge, once there is one"""
    place: Int[np.ndarray, "P"]
    """where it has come to"""
    length: Int[np.ndarray, "P"]
    edge: Int[np.ndarray, "P K"]
    earned: Float[np.ndarray, "P"]
    factor: Float[np.ndarray, "P"]
    """discount of whatever comes next; 0 where the path has ended the episode"""
    gap: Float[np.ndarray, "P"]
    """length of the neighbour edge, once there is one"""

    def some(self, rows: Int[np.ndarray, "n"] | Bool[np.ndarray, "P"]) -> _Paths:
        return _Paths(*(getattr(self, part.name)[rows] for part in fields(self)))


def find_candidates(
    mdp: TabularMDP,
    solution: Solution,
    sources: Int[np.ndarray, "n"],
    forest: Forest,
    metric: Metric,
    config: CandidateConfig,
    *,
    tried: Tried,
    expected_error: float,
    chance: Chance,
) -> Candidates:
    """The feasible and impactful joins of some distinct sources, the best of each; the forest holds the real states.

    Joins of which `tried` knows what becomes of them are left out.
    """
    price = mdp.gamma * mdp.penalty * expected_error
    found = []
    at_once = AT_ONCE if forest.config.count is not None else FEW_AT_ONCE
    for first in range(0, max(len(sources), 1), at_once):
        some = sources[first : first + at_once]
        every = _from_sources(mdp, _Judge(mdp, solution, some, config, price), forest, metric, chance, tried)
        new = tried.is_open(pair_number(every.source, every.target, mdp.real_count), every.length)
        found.append(_best_pairs(every.some(new), mdp.real_count, chance, config.per_source))
    return found[0].and_also(*found[1:])


def _from_sources(
    mdp: TabularMDP, judge: _Judge, forest: Forest, metric: Metric, chance: Chance, tried: Tried
) -> Candidates:
    """All that gains, a pair perhaps several times, and pairs that were tried among them."""
    config, sources = judge.config, judge.sources
    graph = _Graph(mdp, judge.solution, config.branches)
    reached = graph.walks(_standing(sources, config.longest))
    pairs = forest.near(np.asarray(metric.embed(mdp.states[reached.place])))
    if config.hurry:
        pairs = pairs.and_also(graph.steps_ahead(reached, metric, config))
    gain = judge.most(reached, pairs)
    hops = np.flatnonzero((gain > 0) & (pairs.neighbour != reached.place[pairs.place]))
    if config.per_source is not None and config.impact == "advantage":
        score = gain[hops] * chance(pairs.distance[hops], np.full(len(hops), config.longest))
        origin = reached.origin[pairs.place[hops]]
        known = tried.count_of(sources, mdp.real_count)
        most = SPARE * (config.per_source + known)  # what was tried must not crowd out what was not
        hops = hops[_best_of_each(origin, score, most[origin])]
    hopped = replace(reached.some(pairs.place[hops]), place=pairs.neighbour[hops], gap=pairs.distance[hops])
    ahead = graph.walks(replace(hopped, hop=np.arange(len(hops))))
    ahead = ahead.some((ahead.place < mdp.real_count) & (ahead.length > 0))
    if config.lengths == "longest":
        farthest = np.zeros(len(hops), dtype=np.int64)
        np.maximum.at(farthest, ahead.hop, ahead.length)
        ahead = ahead.some(ahead.length == farthest[ahead.hop])
    gain = judge.gain(ahead)
    found = ahead.some(gain > 0)
    return Candidates(sources[found.origin], found.place, found.length, found.edge, gain[gain > 0], found.gap)


def _best_pairs(every: Candidates, real_count: int, chance: Chance, per_source: int | None) -> Candidates:
    """Each pair once, in its best form, and of each source the best pairs."""
    score = every.gain * chance(every.gap, every.length)
    pair = pair_number(every.source, every.target, real_count)
    order = np.lexsort((-every.length, -score, pair))  # of equally good forms the longest, which is planned best
    rows = order[np.flatnonzero(np.diff(pair[order], prepend=-1))]
    if per_source is not None:
        rows = rows[_best_of_each(every.source[rows], score[rows], per_source)]
    return every.some(rows)


def _best_of_each(
    group: Int[np.ndarray, "P"], score: Float[np.ndarray, "P"], most: int | Int[np.ndarray, "P"]
) -> Int[np.ndarray, "kept"]:
    """The rows with the highest scores of each group, at most so many."""
    order = np.lexsort((-score, group))
    ordered = group[order]
    first = np.searchsorted(ordered, ordered)
    return order[np.arange(len(order)) - first < np.broadcast_to(most, len(order))[order]]


def _standing(sources: Int[np.ndarray, "n"], longest: int) -> _Paths:
    """Paths that have not left their source yet."""
    count = len(sources)
    return _Paths(
        origin=np.arange(count),
        hop=np.arange(count),
        place=sources,
        length=np.zeros(count, dtype=np.int64),
        edge=np.full((count, longest), NO_EDGE, dtype=np.int64),
        earned=np.zeros(count),
        factor=np.ones(count),
        gap=np.zeros(count),
    )


@dataclass(frozen=True, eq=False)
class _Graph:
    """The edges that paths follow."""

    mdp: TabularMDP
    solution: Solution
    branches: int | None

    def walks(self, paths: _Paths) -> _Paths:
        """The paths themselves and all that go on from them, up to the most edges there may be."""
        levels = [paths]
        while len(levels[-1].place):
            longer = self._extended(levels[-1])
            levels.append(longer if self.branches == 1 else _best_ways(longer))
        return _Paths(*(np.concatenate([getattr(level, part.name) for level in levels]) for part in fields(_Paths)))

    def steps_ahead(self, paths: _Paths, metric: Metric, config: CandidateConfig) -> Pairs:
        """Of paths at their beginning and half-way, who is a few steps ahead on the policy's walk."""
        rows = np.flatnonzero(np.isin(paths.length, (0, config.longest // 2)) & (paths.factor > 0))
        here, found = paths.place[rows], []
        for _ in range(config.hurry):
            edge = self.solution.policy[here]
            goes_on = (edge != NO_EDGE) & (self.mdp.discount[edge] > 0)
            rows, here = rows[goes_on], self.mdp.target[edge[goes_on]]
            apart = metric.embed(self.mdp.states[here]) - metric.embed(self.mdp.states[paths.place[rows]])
            found.append(Pairs(rows, here.astype(np.int64), np.linalg.norm(apart, axis=1)))
        return found[0].and_also(*found[1:])

    def _extended(self, paths: _Paths) -> _Paths:
        """The paths one edge longer, as many of each as there are edges to follow."""
        rows, edge = self._followed(paths)
        longer = paths.some(rows)
        longer.edge[np.arange(len(rows)), longer.length] = edge
        return replace(
            longer,
            place=self.mdp.target[edge].astype(np.int64),
            length=longer.length + 1,
            earned=longer.earned + longer.factor * self.mdp.charged_reward[edge],
            factor=longer.factor * self.mdp.discount[edge],
        )

    def _followed(self, paths: _Paths) -> tuple[Int[np.ndarray, "Q"], Int[np.ndarray, "Q"]]:
        """Rows of the paths that go on, and the edge each takes."""
        going = (paths.factor > 0) & (paths.length < paths.edge.shape[1]) & (self.mdp.out_degree[paths.place] > 0)
        rows = np.flatnonzero(going)
        if self.branches == 1:
            return rows, self.solution.policy[paths.place[rows]].astype(np.int64)
        place = paths.place[rows]
        degree = self.mdp.out_degree[place]
        edge = _ranges(self.mdp.first_edge[place], degree)
        rows = np.repeat(rows, degree)
        if self.branches is None:
            return rows, edge
        worth = self.mdp.charged_reward[edge] + self.mdp.discount[edge] * self.solution.value[self.mdp.target[edge]]
        kept = np.sort(_best_of_each(rows, worth, self.branches))
        return rows[kept], edge[kept]


def _best_ways(paths: _Paths) -> _Paths:
    """Of several ways to one place with as many edges, the best: whatever follows, the others gain less.

    Without this their number would grow like the out-degree to the power of the length.
    """
    order = np.lexsort((-paths.earned, paths.factor > 0, paths.place, paths.hop))
    keys = np.stack([paths.hop, paths.place, paths.factor > 0])[:, order]
    first = np.any(np.diff(keys, axis=1, prepend=-1) != 0, axis=0)
    return paths.some(np.sort(order[first]))


def _ranges(first: Int[np.ndarray, "n"], count: Int[np.ndarray, "n"]) -> Int[np.ndarray, "total"]:
    """first, first + 1, … of each, as many as its count, one after the other."""
    before = np.cumsum(count) - count
    return np.arange(count.sum()) + np.repeat(first - before, count)


@dataclass(frozen=True, eq=False)
class _Judge:
    """What a join would be worth. Gains that are rounding errors count as none."""

    mdp: TabularMDP
    solution: Solution
    sources: Int[np.ndarray, "n"]
    config: CandidateConfig
    price: float
    """expected penalty of a stitch of one action"""

    def gain(self, paths: _Paths) -> Float[np.ndarray, "P"]:
        """What joining a path's ends is expected to gain."""
        charge = self.price * self.mdp.gamma ** (paths.length - 1)
        if self.config.impact == "value":
            gain = self.solution.value[paths.place] - self._by_then[paths.origin, paths.length]
        else:
            gain = paths.earned + paths.factor * self.solution.value[paths.place] - self._now[paths.origin]
        return self._clear(gain - charge, paths.origin)

    def most(self, paths: _Paths, pairs: Pairs) -> Float[np.ndarray, "P"]:
        """The most that a path can gain by hopping to a neighbour, however it goes on; the paper's test sets none."""
        if self.config.impact == "value":
            return np.ones(len(pairs))
        origin = paths.origin[pairs.place]
        ahead = paths.factor[pairs.place] * self.solution.value[pairs.neighbour]
        least_charge = self.price * self.mdp.gamma ** (self.config.longest - 1)
        return self._clear(paths.earned[pairs.place] + ahead - self._now[origin] - least_charge, origin)

    def _clear(self, gain: Float[np.ndarray, "P"], origin: Int[np.ndarray, "P"]) -> Float[np.ndarray, "P"]:
        return np.where(gain > ROUNDING * np.maximum(np.abs(self._now[origin]), 1.0), gain, 0.0)

    @cached_property
    def _now(self) -> Float[np.ndarray, "n"]:
        return self.solution.value[self.sources]

    @cached_property
    def _by_then(self) -> Float[np.ndarray, "n steps"]:
        """Value of where the policy is after each number of steps; it stays in a dead end, and an end is worth 0."""
        place, goes_on = self.sources, np.ones(len(self.sources), dtype=bool)
        values = [self._now]
        for _ in range(self.config.longest):
            edge = self.solution.policy[place]
            acts = goes_on & (edge != NO_EDGE)
            goes_on = goes_on & ~(acts & (self.mdp.discount[edge] == 0))
            place = np.where(acts, self.mdp.target[edge], place)
            values.append(np.where(goes_on, self.solution.value[place], 0.0))
        return np.stack(values, axis=1)
