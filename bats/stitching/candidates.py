"""Candidates for stitches: pairs of states that a short path almost connects, and that would raise the value.

**Feasible** [section 3.2]: from the source a path of at most K edges of the graph and exactly one neighbour edge, which
may stand anywhere in it, leads to the target, and the target is real.

    source = x0 → x1 → … → xi  ~  n → … → target          i edges before, j after, k = i + j from 1 to K
                               └ the neighbour edge

The actions of the k edges are what the planner starts from. **Impactful**: the rewards along the path and the value of
the target together exceed the value of the source, by more than the penalty that the stitch must expect.

Values are optimal, so no continuation from n is worth more than V(n). Neighbour edges that cannot gain are dropped
before anything is followed further.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from bats.arrays import Indices, Metric, concat, take
from bats.config import StitchConfig
from bats.graph.kernels import NO_EDGE
from bats.graph.rollouts import roll_out
from bats.graph.solve import Solution
from bats.metric.neighbours import Forest, NeighbourIndex, Pairs
from bats.stitching.history import History

ROUNDING = 1e-9
"""a gain below this, relative to the source's value or 1, counts as none"""
BLOCK = 2000
"""sources searched together, to bound the memory of their neighbours"""
SMALL_BLOCK = 100
"""the same where the number of neighbours has no limit"""
SPARE = 4
"""neighbour edges followed for each candidate kept, since several may lead to one target"""


@dataclass(frozen=True, eq=False)
class Search:
    """What to search in, and what is known from earlier rounds."""

    solution: Solution
    metric: Metric
    index: NeighbourIndex
    """the real states, by that metric"""
    history: History
    config: StitchConfig
    max_length: int
    """most actions of a stitch [K]"""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Pairs to be planned, each once, with its best path."""

    source: Int[np.ndarray, "C"]
    target: Int[np.ndarray, "C"]
    length: Int[np.ndarray, "C"]
    edge: Int[np.ndarray, "C K"]
    """edges of the path; NO_EDGE beyond its length"""
    gain: Float[np.ndarray, "C"]
    """what the stitch would add to the value of the source"""
    distance: Float[np.ndarray, "C"]
    """length of the neighbour edge"""

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, eq=False)
class _Paths:
    """Paths through the graph, side by side."""

    origin: Int[np.ndarray, "P"]
    """which source a path begins in"""
    hop: Int[np.ndarray, "P"]
    """which neighbour edge it took, once there is one"""
    state: Int[np.ndarray, "P"]
    """where it has arrived"""
    length: Int[np.ndarray, "P"]
    edge: Int[np.ndarray, "P K"]
    reward: Float[np.ndarray, "P"]
    """discounted sum along the path"""
    discount: Float[np.ndarray, "P"]
    """of what comes next; 0 where the path has terminated"""
    distance: Float[np.ndarray, "P"]
    """length of the neighbour edge, once there is one"""


def find_candidates(search: Search, sources: Indices, forest: Forest) -> Candidates:
    """The feasible and impactful candidates of distinct sources that the history leaves open.

    The forest holds the real states that count as neighbours.
    """
    block = BLOCK if forest.config.count is not None else SMALL_BLOCK
    if len(sources) > block:
        blocks = (sources[first : first + block] for first in range(0, len(sources), block))
        return concat([find_candidates(search, part, forest) for part in blocks])
    solution, history, max_length = search.solution, search.history, search.max_length
    mdp, config = solution.mdp, search.config.candidates
    penalty = mdp.gamma * mdp.penalty * history.expected_error(search.config.tolerance)
    value = solution.value[sources]

    # i edges from each source, and one neighbour edge from wherever they lead
    before = _follow_edges(solution, _at_sources(sources, max_length), config.branching)
    pairs = forest.near(np.asarray(search.metric.embed(mdp.states[before.state])))
    if config.skip:
        pairs = concat([pairs, _states_ahead(search, before)])
    origin, query = before.origin[pairs.query], pairs.query
    bound = np.ones(len(pairs))
    if config.impact == "advantage":  # what a hop can gain at most, however it continues
        bound = before.reward[query] + before.discount[query] * solution.value[pairs.neighbour] - value[origin]
        bound = _clear(bound - penalty * mdp.gamma ** (max_length - 1), value[origin])
    hop = np.flatnonzero((bound > 0) & (pairs.neighbour != before.state[query]))
    if config.per_source is not None and config.impact == "advantage":
        score = bound[hop] * history.success_rate(pairs.distance[hop], np.full(len(hop), max_length))
        # more room for sources with many tried pairs, so that these do not crowd out the open ones
        room = SPARE * (config.per_source + history.pairs_tried(sources))
        hop = hop[_best_in_group(origin[hop], score, room[origin[hop]])]
    hopped = take(before, query[hop])
    hopped = replace(hopped, state=pairs.neighbour[hop], distance=pairs.distance[hop], hop=np.arange(len(hop)))

    # j more edges from the neighbour
    after = _follow_edges(solution, hopped, config.branching)
    after = take(after, (after.state < mdp.real_count) & (after.length > 0))
    if config.lengths == "longest":
        longest = np.zeros(len(hop), dtype=np.int64)
        np.maximum.at(longest, after.hop, after.length)
        after = take(after, after.length == longest[after.hop])
    if config.impact == "advantage":
        gain = after.reward + after.discount * solution.value[after.state] - value[after.origin]
    else:
        by_then = _values_along_policy(solution, sources, max_length)
        gain = solution.value[after.state] - by_then[after.origin, after.length]
    gain = _clear(gain - penalty * mdp.gamma ** (after.length - 1), value[after.origin])
    kept, gain = take(after, gain > 0), gain[gain > 0]
    every = Candidates(sources[kept.origin], kept.state, kept.length, kept.edge, gain, kept.distance)
    return _best_of_each_pair(every, history, config.per_source)


def _best_of_each_pair(every: Candidates, history: History, per_source: int | None) -> Candidates:
    """Each open pair once, with its best path, and of each source the best pairs."""
    pair = history.pair_numbers(every.source, every.target)
    is_open = history.is_open(pair, every.length)
    every, pair = take(every, is_open), pair[is_open]
    score = every.gain * history.success_rate(every.distance, every.length)
    order = np.lexsort((-every.length, -score, pair))  # of equally good paths the longest, which is planned best
    rows = order[np.flatnonzero(np.diff(pair[order], prepend=-1))]
    if per_source is not None:
        rows = rows[_best_in_group(every.source[rows], score[rows], per_source)]
    return take(every, rows)


def _best_in_group(group: Indices, score: Float[np.ndarray, "n"], count: int | Indices) -> Int[np.ndarray, "kept"]:
    """The rows with the highest scores of each group, at most `count` of them."""
    order = np.lexsort((-score, group))
    first = np.searchsorted(group[order], group[order])
    return order[np.arange(len(order)) - first < np.broadcast_to(count, len(order))[order]]


def _clear(gain: Float[np.ndarray, "P"], value: Float[np.ndarray, "P"]) -> Float[np.ndarray, "P"]:
    """The gain, or 0 where it is rounding error or a loss."""
    return np.where(gain > ROUNDING * np.maximum(np.abs(value), 1.0), gain, 0.0)


def _at_sources(sources: Indices, max_length: int) -> _Paths:
    """Paths that have not left their source yet."""
    count = len(sources)
    return _Paths(
        origin=np.arange(count),
        hop=np.arange(count),
        state=sources,
        length=np.zeros(count, dtype=np.int64),
        edge=np.full((count, max_length), NO_EDGE, dtype=np.int64),
        reward=np.zeros(count),
        discount=np.ones(count),
        distance=np.zeros(count),
    )


def _follow_edges(solution: Solution, paths: _Paths, branching: int | None) -> _Paths:
    """The paths themselves and all their continuations, up to the most edges there may be."""
    mdp = solution.mdp
    levels = [paths]
    while len(levels[-1].state):
        paths = levels[-1]
        going = (paths.discount > 0) & (paths.length < paths.edge.shape[1]) & (mdp.out_degree[paths.state] > 0)
        row, edge = _next_edges(solution, np.flatnonzero(going), paths.state[going], branching)
        longer = take(paths, row)
        longer.edge[np.arange(len(row)), longer.length] = edge
        longer = replace(
            longer,
            state=mdp.target[edge].astype(np.int64),
            length=longer.length + 1,
            reward=longer.reward + longer.discount * mdp.penalized_reward[edge],
            discount=longer.discount * mdp.discount[edge],
        )
        levels.append(longer if branching == 1 else _best_of_each_state(longer))
    return concat(levels)


def _next_edges(
    solution: Solution, row: Indices, state: Indices, branching: int | None
) -> tuple[Int[np.ndarray, "m"], Int[np.ndarray, "m"]]:
    """The edges that paths continue with, and the row of the path that each belongs to."""
    if branching == 1:
        return row, solution.policy[state].astype(np.int64)
    mdp = solution.mdp
    degree = mdp.out_degree[state]
    first_in_list = np.cumsum(degree) - degree
    edge = np.arange(degree.sum()) + np.repeat(mdp.first_edge[state] - first_in_list, degree)
    row = np.repeat(row, degree)
    if branching is None:
        return row, edge
    edge_value = mdp.penalized_reward[edge] + mdp.discount[edge] * solution.value[mdp.target[edge]]
    kept = np.sort(_best_in_group(row, edge_value, branching))
    return row[kept], edge[kept]


def _best_of_each_state(paths: _Paths) -> _Paths:
    """Of several paths to one state with equally many edges, the best: whatever follows, the others gain less.

    Without this the number of paths would grow like the out-degree to the power of the length.
    """
    order = np.lexsort((-paths.reward, paths.discount > 0, paths.state, paths.hop))
    keys = np.stack([paths.hop, paths.state, paths.discount > 0])[:, order]
    first = np.any(np.diff(keys, axis=1, prepend=-1) != 0, axis=0)
    return take(paths, np.sort(order[first]))


def _states_ahead(search: Search, paths: _Paths) -> Pairs:
    """The next states of the policy's rollout as neighbours, for paths at their beginning and half-way."""
    mdp, embed = search.solution.mdp, search.metric.embed
    row = np.flatnonzero(np.isin(paths.length, (0, search.max_length // 2)) & (paths.discount > 0))
    edge = roll_out(mdp, search.solution.policy, paths.state[row], search.config.candidates.skip).edge.T
    step, rollout = np.nonzero((edge != NO_EDGE) & (mdp.discount[edge] > 0))
    query, ahead = row[rollout], mdp.target[edge[step, rollout]].astype(np.int64)
    difference = embed(mdp.states[ahead]) - embed(mdp.states[paths.state[query]])
    return Pairs(query, ahead, np.linalg.norm(difference, axis=1))


def _values_along_policy(solution: Solution, sources: Indices, max_length: int) -> Float[np.ndarray, "n steps"]:
    """The value where the policy is after each number of steps; it stays in a dead end, and a termination has 0."""
    mdp, rollouts = solution.mdp, roll_out(solution.mdp, solution.policy, sources, max_length)
    after = np.where(mdp.discount[rollouts.edge] > 0, solution.value[mdp.target[rollouts.edge]], 0.0)
    step = np.minimum(np.arange(max_length + 1), rollouts.length[:, None])  # stays where the rollout ends
    return np.take_along_axis(np.column_stack([solution.value[sources], after]), step, axis=1)
