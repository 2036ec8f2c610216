"""Solving a tabular MDP, exactly.

The Bellman equation of a deterministic MDP with a discount per edge:

    V(s) = max over edges e of s:  r(e) + g(e) V(target(e))

**Policy iteration** is exact and near-linear here for two reasons. A deterministic policy is a functional graph, whose
value has a closed form (`kernels.follow_edges`). And most states of a log have one edge only, so whole stretches of it
are fixed: they are contracted to a single edge first, and only states with a choice are iterated over.

**Value iteration** stays as the reference: a few readable lines with a guaranteed error.

What a dead end is worth (a state without an edge that is not terminal) is the caller's to say: 0, or the reward range's
ends over 1 - gamma for a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from bats.arrays import EdgeValues, StateValues, TabularPolicy
from bats.data.dataset import Dataset
from bats.errors import NotConvergedError, SettingError
from bats.graph.kernels import NO_EDGE, choose_edges, follow_edges, improve_policy
from bats.graph.mdp import TabularMDP

SWEEPS = 4
"""sweeps of improvement after each evaluation: cheaper than an evaluation, and they halve the rounds"""
ROUNDING = 1e-12
"""a round in which no state gains more than this, relative to its value or 1, gained rounding errors"""


@dataclass(frozen=True, eq=False)
class Solution:
    """What the states are worth and the edge to take in each."""

    value: StateValues
    policy: TabularPolicy
    rounds: int
    """evaluations (policy iteration) or sweeps (value iteration) it took"""


def policy_iteration(
    mdp: TabularMDP, *, dead_end_value: float | StateValues = 0.0, policy: TabularPolicy | None = None
) -> Solution:
    """The optimal value and policy, exact up to rounding.

    `policy` warm-starts it (see `carry_policy`). A round of policy iteration that gains no state more than g leaves
    the value within g / (1 - gamma) of the optimum, and it goes on until g is rounding error.
    """
    boundary = boundary_values(mdp, dead_end_value)
    policy = first_edges(mdp) if policy is None else checked_policy(mdp, policy).copy()
    only_edge = np.where(mdp.out_degree == 1, policy, NO_EDGE)
    stretches = _follow(only_edge, mdp.target, mdp.charged_reward, mdp.discount)
    junctions = np.flatnonzero(only_edge == NO_EDGE)
    graph = _between(mdp, stretches, junctions)

    chosen = np.where(
        mdp.out_degree[junctions] > 0, graph.first_edge[:-1] + policy[junctions] - mdp.first_edge[junctions], NO_EDGE
    )
    value, rounds = _improve_until_optimal(graph, chosen, boundary[junctions])
    policy[junctions] = np.where(chosen == NO_EDGE, NO_EDGE, chosen - graph.first_edge[:-1] + mdp.first_edge[junctions])
    boundary[junctions] = value
    return Solution(stretches.value(boundary), policy, rounds)


def policy_value(mdp: TabularMDP, policy: TabularPolicy, *, dead_end_value: float | StateValues = 0.0) -> StateValues:
    """The exact value of any fixed policy, in time linear in the states."""
    walks = _follow(checked_policy(mdp, policy), mdp.target, mdp.charged_reward, mdp.discount)
    return walks.value(boundary_values(mdp, dead_end_value))


def value_iteration(
    mdp: TabularMDP, *, tolerance: float, dead_end_value: float | StateValues = 0.0, max_sweeps: int = 1_000_000
) -> Solution:
    """Solves the MDP with a promise: `max |value - V*| <= tolerance`.

    A sweep contracts distances by gamma, so it is enough that the last one moved no state by more than
    `tolerance * (1 - gamma) / gamma`.
    """
    enough = tolerance * (1 - mdp.gamma) / mdp.gamma
    value = boundary_values(mdp, dead_end_value)
    acting = mdp.out_degree > 0
    change = 0.0
    for sweep in range(1, max_sweeps + 1):
        best = best_by_state(mdp, edge_values(mdp, value))
        change = float(np.max(np.abs(best - value[acting]), initial=0.0))
        value[acting] = best
        if change <= enough:
            return Solution(value, greedy_policy(mdp, value), sweep)
    raise NotConvergedError(f"{change=:.2g} after {max_sweeps} sweeps; {enough:.2g} was needed.")


def boundary_values(mdp: TabularMDP, dead_end_value: float | StateValues) -> StateValues:
    """What states are worth before any action: the given value at dead ends, 0 at terminal states and elsewhere."""
    given = np.broadcast_to(np.asarray(dead_end_value, dtype=np.float64), mdp.state_count)
    if not np.isfinite(given).all():
        raise SettingError(f"`dead_end_value` must be finite; got {dead_end_value}.")
    return np.where((mdp.out_degree == 0) & ~mdp.terminal, given, 0.0)


def edge_values(mdp: TabularMDP, value: StateValues) -> EdgeValues:
    """What each edge is worth if `value` is what comes after it [Q]."""
    return mdp.charged_reward + mdp.discount * value[mdp.target]


def best_by_state(mdp: TabularMDP, edge_value: EdgeValues) -> Float[np.ndarray, "acting"]:
    """The best edge value of every state that has an edge."""
    return np.maximum.reduceat(edge_value, mdp.first_edge[:-1][mdp.out_degree > 0])


def first_edges(mdp: TabularMDP) -> TabularPolicy:
    """The policy that takes each state's first edge."""
    return np.where(mdp.out_degree > 0, mdp.first_edge[:-1], NO_EDGE)


def greedy_policy(mdp: TabularMDP, value: StateValues) -> TabularPolicy:
    """The best edge of every state if `value` is what comes after it; of equally good ones the first."""
    edge_value = edge_values(mdp, _finite(value))
    acting = mdp.out_degree > 0
    best = np.repeat(best_by_state(mdp, edge_value), mdp.out_degree[acting])
    best_edges = np.flatnonzero(edge_value == best)
    policy = first_edges(mdp)
    policy[acting] = best_edges[np.searchsorted(best_edges, policy[acting])]
    return policy


def boltzmann_policy(mdp: TabularMDP, value: StateValues, *, temperature: float) -> EdgeValues:
    """Probability of each edge in its state, proportional to exp(Q / temperature)."""
    if temperature <= 0:
        raise SettingError(f"`temperature` must be positive; got {temperature}.")
    edge_value = edge_values(mdp, _finite(value))
    acting = mdp.out_degree > 0
    degree, first = mdp.out_degree[acting], mdp.first_edge[:-1][acting]
    # relative to the best edge, so that no exponential overflows
    share = np.exp((edge_value - np.repeat(best_by_state(mdp, edge_value), degree)) / temperature)
    return share / np.repeat(np.add.reduceat(share, first), degree)


def sample_occupancy(
    mdp: TabularMDP, probability: EdgeValues, count: int, *, rng: np.random.Generator
) -> Int[np.ndarray, "count"]:
    """Draws states as a stochastic policy visits them, later ones discounted [mu].

    A walker sets out from a weighted start and is stopped before each step with probability 1 - gamma; where it is
    stopped is a sample. One that ends its episode first gives none, which is what makes the law exact, and others
    are sent until there are enough.
    """
    running = np.cumsum(probability)
    acting = mdp.out_degree > 0
    before = np.concatenate([[0.0], running])[mdp.first_edge[:-1][acting]]
    running -= np.repeat(before, mdp.out_degree[acting])

    found = np.empty(0, dtype=np.int64)
    sent = 0
    while len(found) < count:
        missing = count - len(found)
        walkers = missing if sent == 0 else min(missing * sent // max(len(found), 1) + 1, 16 * count)
        sent += walkers
        found = np.concatenate([found, _walk_until_stopped(mdp, running, walkers, rng)])
    return found[:count]


def carry_policy(policy: Int[np.ndarray, "S"], before: TabularMDP, after: TabularMDP) -> Int[np.ndarray, "S_after"]:
    """A policy of an MDP as one of the same MDP grown by stitches, which keeps the order of each state's edges."""
    carried = first_edges(after)
    acting = policy != NO_EDGE
    carried[: len(policy)][acting] = (after.first_edge[: len(policy)] + policy - before.first_edge[:-1])[acting]
    return carried


def checked_policy(mdp: TabularMDP, policy: TabularPolicy) -> TabularPolicy:
    """The policy, if it takes in every state an edge of that state; the compiled kernels rely on it."""
    if len(policy) != mdp.state_count:
        raise SettingError(f"The policy must have {mdp.state_count} entries, one a state; got {len(policy)}.")
    owned = np.where(
        mdp.out_degree > 0, (mdp.first_edge[:-1] <= policy) & (policy < mdp.first_edge[1:]), policy == NO_EDGE
    )
    if not owned.all():
        state = int(np.flatnonzero(~owned)[0])
        allowed = (
            f"{mdp.first_edge[state]} to {mdp.first_edge[state + 1] - 1}" if mdp.out_degree[state] else "none (-1)"
        )
        raise SettingError(f"State {state} has the edges {allowed}; the policy takes {policy[state]}.")
    return policy


def logged_value(dataset: Dataset, *, gamma: float, dead_end_value: float = 0.0) -> float:
    """What the logged behaviour earned from the start states: discounted returns along the log, weighted.

    An episode that was cut off goes on to be worth `dead_end_value`, as in the MDP.
    """
    row = np.arange(len(dataset))
    cut_off = dataset.episode_ends & ~dataset.terminations
    rewards = dataset.rewards + gamma * dead_end_value * cut_off
    discount = np.where(dataset.episode_ends, 0.0, gamma)
    returns = _follow(row, np.append(row[1:], row[-1]), rewards, discount).gain
    return float(dataset.start_weights @ returns[dataset.starts])


def start_value(mdp: TabularMDP, value: StateValues) -> float:
    """The mean value of the start states, by their weights."""
    return float(mdp.start_weights @ value[mdp.starts])


@dataclass(frozen=True, eq=False)
class _Walks:
    """Where following one edge a state leads: value(state) = gain + factor * value(end)."""

    gain: StateValues
    factor: StateValues
    end: Int[np.ndarray, "S"]

    def value(self, at_end: StateValues) -> StateValues:
        return self.gain + self.factor * at_end[self.end]


@dataclass(frozen=True, eq=False)
class _Graph:
    """The junctions of an MDP, which are all that is left once stretches without a choice are single edges."""

    first_edge: Int[np.ndarray, "offsets"]
    target: Int[np.ndarray, "E"]
    reward: EdgeValues
    discount: EdgeValues


def _follow(edge_of: TabularPolicy, target: Int[np.ndarray, "E"], reward: EdgeValues, discount: EdgeValues) -> _Walks:
    states = len(edge_of)
    walks = _Walks(np.empty(states), np.empty(states), np.empty(states, dtype=np.int32))
    follow_edges(edge_of, target, reward, discount, walks.gain, walks.factor, walks.end)
    return walks


def _between(mdp: TabularMDP, stretches: _Walks, junctions: Int[np.ndarray, "J"]) -> _Graph:
    """The graph of the junctions alone: each edge of theirs goes on along its stretch to the junction at its end."""
    number = np.zeros(mdp.state_count, dtype=np.int32)  # a stretch that ends in no junction has factor 0
    number[junctions] = np.arange(len(junctions))
    edge = np.flatnonzero(np.repeat(mdp.out_degree != 1, mdp.out_degree))
    after, discount = mdp.target[edge], mdp.discount[edge]
    return _Graph(
        first_edge=np.concatenate([[0], np.cumsum(mdp.out_degree[junctions])]),
        target=number[stretches.end[after]],
        reward=mdp.charged_reward[edge] + discount * stretches.gain[after],
        discount=discount * stretches.factor[after],
    )


def _improve_until_optimal(
    graph: _Graph, chosen: Int[np.ndarray, "J"], boundary: Float[np.ndarray, "J"]
) -> tuple[Float[np.ndarray, "J"], int]:
    """Howard's iteration, changing `chosen` in place; returns its value and the number of evaluations."""
    value = _follow(chosen, graph.target, graph.reward, graph.discount).value(boundary)
    rounds = 1
    while improve_policy(graph.first_edge, graph.target, graph.reward, graph.discount, value.copy(), chosen, SWEEPS):
        before, value = value, _follow(chosen, graph.target, graph.reward, graph.discount).value(boundary)
        rounds += 1
        if np.all(value - before <= ROUNDING * np.maximum(1.0, np.abs(value))):
            break
    return value, rounds


def _finite(value: StateValues) -> StateValues:
    if not np.isfinite(value).all():
        raise SettingError(f"Values must be finite; state {int(np.argmin(np.isfinite(value)))} is not.")
    return value


def _walk_until_stopped(
    mdp: TabularMDP, running: EdgeValues, walkers: int, rng: np.random.Generator
) -> Int[np.ndarray, "stopped"]:
    """Sends walkers out together and returns where those were stopped that had not ended their episode before."""
    place = rng.choice(mdp.starts, size=walkers, p=mdp.start_weights).astype(np.int64)
    lifetime = rng.geometric(1 - mdp.gamma, size=walkers) - 1
    stopped = [place[lifetime == 0]]
    step = 0
    while len(place):  # mostly far shorter than the longest lifetime: walkers end their episodes
        going = lifetime > step
        place, lifetime = place[going], lifetime[going]
        edge = np.empty(len(place), dtype=np.int64)
        choose_edges(place, rng.random(len(place)), mdp.first_edge, running, edge)
        acting = edge != NO_EDGE
        edge, lifetime = edge[acting], lifetime[acting]
        goes_on = mdp.discount[edge] > 0
        place, lifetime = mdp.target[edge[goes_on]].astype(np.int64), lifetime[goes_on]
        step += 1
        stopped.append(place[lifetime == step])
    return np.concatenate(stopped)
