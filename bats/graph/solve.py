"""Solving a tabular MDP, exactly.

The Bellman equation of a deterministic MDP with a discount per edge:

    V(s) = max over edges e of s:  r(e) + g(e) V(target(e))

Policy iteration is exact and near-linear here for two reasons. A deterministic policy is a functional graph, whose
value has a closed form (`kernels.follow_edges`). And most states of a log have one edge only, so whole chains of states
leave no choice: each is contracted to a single edge first, and only states with a choice are iterated over.

A dead end is a state without an edge that is not terminal. By default it has the smallest value that is possible. Any
larger number would be a promise: if all rewards are negative and a dead end counted as 0, the best policy would go
where the log stops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from bats.arrays import EdgeValues, Indices, StateValues, TabularPolicy, short_repr
from bats.config import checked
from bats.data.dataset import Dataset
from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE, choose_edges, follow_edges, improve_policy
from bats.graph.mdp import LOGGED, TabularMDP
from bats.storage.json_records import shown

DeadEnds = float | StateValues | None
"""the value of dead ends, one for each state, or None: the smallest possible"""
RewardRange = tuple[float, float]
"""smallest and largest reward"""
SWEEPS = 4
"""improvement sweeps after each evaluation: cheaper than an evaluation, and they halve the iterations"""
ROUNDING = 1e-12
"""a gain below this, relative to the value or 1, is rounding error"""


@dataclass(frozen=True, eq=False)
class Solution:
    """The optimal value of an MDP, and the edge to take in every state."""

    mdp: TabularMDP
    value: StateValues
    policy: TabularPolicy
    iterations: int
    """policy evaluations"""

    __repr__ = short_repr

    @property
    def start_value(self) -> float:
        return start_value(self.mdp, self.value)


@dataclass(frozen=True, eq=False)
class _Ends:
    """Where following one edge per state leads: value(state) = gain + factor * value(end)."""

    gain: StateValues
    factor: StateValues
    end: Int[np.ndarray, "S"]

    def value(self, at_end: StateValues) -> StateValues:
        return self.gain + self.factor * at_end[self.end]


def policy_iteration(mdp: TabularMDP, *, dead_end_value: DeadEnds = None) -> Solution:
    """The optimal value and policy, exact up to rounding.

    An iteration that gains no state more than g leaves the value within g / (1 - gamma) of the optimum, and iterations
    continue until g is rounding error.
    """
    mdp = checked("mdp", TabularMDP, mdp)
    boundary, policy = boundary_values(mdp, dead_end_value), first_edges(mdp)
    chains = _follow(np.where(mdp.out_degree == 1, policy, NO_EDGE), mdp.target, mdp.penalized_reward, mdp.discount)

    # the graph of the junctions: each of their edges continues along its chain to the junction at the end
    junctions = np.flatnonzero(mdp.out_degree != 1)
    number = np.zeros(mdp.state_count, dtype=np.int32)  # a chain that ends in no junction has factor 0
    number[junctions] = np.arange(len(junctions))
    edge = np.flatnonzero(np.repeat(mdp.out_degree != 1, mdp.out_degree))
    after, edge_discount = mdp.target[edge], mdp.discount[edge]
    first_edge = np.concatenate([[0], np.cumsum(mdp.out_degree[junctions])])
    target = number[chains.end[after]]
    reward = mdp.penalized_reward[edge] + edge_discount * chains.gain[after]
    discount = edge_discount * chains.factor[after]

    # Howard's iteration on the junctions; `chosen` changes in place
    chosen = np.where(mdp.out_degree[junctions] > 0, first_edge[:-1], NO_EDGE)
    value = _follow(chosen, target, reward, discount).value(boundary[junctions])
    iterations = 1
    while improve_policy(first_edge, target, reward, discount, value.copy(), chosen, SWEEPS):
        before, value = value, _follow(chosen, target, reward, discount).value(boundary[junctions])
        iterations += 1
        if np.all(value - before <= ROUNDING * np.maximum(1.0, np.abs(value))):
            break

    policy[junctions] = np.where(chosen == NO_EDGE, NO_EDGE, chosen - first_edge[:-1] + mdp.first_edge[junctions])
    boundary[junctions] = value
    return Solution(mdp, chains.value(boundary), policy, iterations)


def policy_value(mdp: TabularMDP, policy: TabularPolicy, *, dead_end_value: DeadEnds = None) -> StateValues:
    """The exact value of any fixed policy, in time linear in the states."""
    mdp = checked("mdp", TabularMDP, mdp)
    ends = _follow(checked_policy(mdp, policy), mdp.target, mdp.penalized_reward, mdp.discount)
    return ends.value(boundary_values(mdp, dead_end_value))


def start_value(mdp: TabularMDP, value: StateValues) -> float:
    """The mean value of the start states, by their weights."""
    mdp = checked("mdp", TabularMDP, mdp)
    if not isinstance(value, np.ndarray) or value.shape != (mdp.state_count,):
        raise SettingError(f"`value` must be an array of {mdp.state_count} numbers, one per state; got {shown(value)}.")
    return float(mdp.start_weights @ value[mdp.starts])


def logged_value(dataset: Dataset, *, gamma: float, dead_end_value: float) -> float:
    """The discounted return of the logged behaviour from the start states, by their weights.

    After the last row of a truncated episode comes `dead_end_value`, as in the MDP.
    """
    row = np.arange(len(dataset))
    truncated = dataset.episode_ends & ~dataset.terminations
    rewards = dataset.rewards + gamma * dead_end_value * truncated
    discount = np.where(dataset.episode_ends, 0.0, gamma)
    returns = _follow(row, np.append(row[1:], row[-1]), rewards, discount).gain
    return float(dataset.start_weights @ returns[dataset.starts])


def reward_limits(logged: Float[np.ndarray, "n"], given: RewardRange | None) -> RewardRange:
    """The smallest and largest reward, as given or as logged; refuses limits that the log exceeds."""
    low, high = float(logged.min()), float(logged.max())
    if given is not None and not (np.isfinite(given).all() and given[0] <= low and high <= given[1]):
        limits = f"{low:g} to {high:g}; got {given[0]:g} to {given[1]:g}"
        raise SettingError(f"`reward_range` must include all logged rewards, {limits}.")
    return (low, high) if given is None else given


def possible_rewards(mdp: TabularMDP, given: RewardRange | None = None) -> tuple[RewardRange, RewardRange | None]:
    """The range of rewards of a step that continues, and of one that terminates; None where nothing does."""
    logged = mdp.stitch_round == LOGGED
    kinds = [mdp.reward[logged & (mdp.discount > 0)], mdp.reward[logged & (mdp.discount == 0)]]
    continuing, terminating = (reward_limits(rewards, given) if len(rewards) else None for rewards in kinds)
    # without a continuing row, the rewards of terminating ones stand in
    return continuing or terminating or given or (0.0, 0.0), terminating


def smallest_and_largest(continuing: RewardRange, terminating: RewardRange | None) -> RewardRange:
    """The range of rewards if it is not known whether a step continues, terminates or comes after the end."""
    if terminating is None:
        return continuing
    return min(continuing[0], terminating[0], 0.0), max(continuing[1], terminating[1], 0.0)


def possible_values(mdp: TabularMDP, given: RewardRange | None = None) -> tuple[float, float]:
    """The smallest and largest value of any state.

    A reward of a step that continues may be had for ever, one of a step that terminates only once, and after that 0.
    """
    (low, high), terminating = possible_rewards(mdp, given)
    return smallest_and_largest((low / (1 - mdp.gamma), high / (1 - mdp.gamma)), terminating)


def value_of_dead_ends(mdp: TabularMDP, given: float | None) -> float:
    """The given value of dead ends, or the smallest possible one."""
    return possible_values(mdp)[0] if given is None else given


def boundary_values(mdp: TabularMDP, dead_end_value: DeadEnds) -> StateValues:
    """The values of states before any action: at dead ends the given one or the smallest possible, 0 elsewhere."""
    if dead_end_value is None:
        dead_end_value = value_of_dead_ends(mdp, None)
    try:
        given = np.broadcast_to(np.asarray(dead_end_value, dtype=np.float64), mdp.state_count)
    except (TypeError, ValueError, OverflowError):
        given = np.array(np.nan)
    if not np.isfinite(given).all():
        expected = f"a finite number, or one for each of {mdp.state_count} states"
        raise SettingError(f"`dead_end_value` must be {expected}; got {shown(dead_end_value)}.")
    return np.where((mdp.out_degree == 0) & ~mdp.terminal, given, 0.0)


def edge_values(mdp: TabularMDP, value: StateValues) -> EdgeValues:
    """The value of each edge, given the values of the states it leads to [Q]."""
    return mdp.penalized_reward + mdp.discount * value[mdp.target]


def best_edge_values(mdp: TabularMDP, edge_value: EdgeValues) -> Float[np.ndarray, "acting"]:
    """The best edge value of every state that has an edge."""
    return np.maximum.reduceat(edge_value, mdp.first_edge[:-1][mdp.out_degree > 0])


def first_edges(mdp: TabularMDP) -> TabularPolicy:
    """The policy that takes each state's first edge."""
    return np.where(mdp.out_degree > 0, mdp.first_edge[:-1], NO_EDGE)


def checked_policy(mdp: TabularMDP, policy: TabularPolicy) -> TabularPolicy:
    """The policy, if every state takes an edge of its own; the compiled kernels rely on that."""
    if not isinstance(policy, np.ndarray) or policy.shape != (mdp.state_count,) or policy.dtype.kind not in "iu":
        expected = f"an array of {mdp.state_count} integers, the edge of each state"
        raise SettingError(f"`policy` must be {expected}; got {shown(policy)}.")
    owned = np.where(
        mdp.out_degree > 0, (mdp.first_edge[:-1] <= policy) & (policy < mdp.first_edge[1:]), policy == NO_EDGE
    )
    if not owned.all():
        state = int(np.flatnonzero(~owned)[0])
        first, last = mdp.first_edge[state], mdp.first_edge[state + 1] - 1
        allowed = f"{first} to {last}" if mdp.out_degree[state] else "none (-1)"
        raise SettingError(f"State {state} has the edges {allowed}, but the policy chooses edge {policy[state]}.")
    return policy


def boltzmann_policy(mdp: TabularMDP, value: StateValues, *, temperature: float) -> EdgeValues:
    """The probability of each edge in its state, proportional to exp(Q / temperature)."""
    if temperature <= 0:
        raise SettingError(f"`temperature` must be positive; got {temperature}.")
    if not np.isfinite(value).all():
        raise SettingError(f"Values must be finite; the value of state {int(np.argmin(np.isfinite(value)))} is not.")
    edge_value = edge_values(mdp, value)
    acting = mdp.out_degree > 0
    degree, first = mdp.out_degree[acting], mdp.first_edge[:-1][acting]
    # relative to the best edge, so that no exponential overflows
    weight = np.exp((edge_value - np.repeat(best_edge_values(mdp, edge_value), degree)) / temperature)
    return weight / np.repeat(np.add.reduceat(weight, first), degree)


def sample_occupancy(mdp: TabularMDP, probability: EdgeValues, count: int, *, rng: np.random.Generator) -> Indices:
    """Samples states from a stochastic policy's discounted occupancy [mu].

    A rollout begins in a weighted start and stops before each step with probability 1 - gamma; the state where it stops
    is a sample. Rollouts that terminate first give none, which is what makes the distribution exact, and more are
    started until there are enough samples.
    """
    cumulative = np.cumsum(probability)
    acting = mdp.out_degree > 0
    before = np.concatenate([[0.0], cumulative])[mdp.first_edge[:-1][acting]]
    cumulative -= np.repeat(before, mdp.out_degree[acting])

    samples = np.empty(0, dtype=np.int64)
    started = 0
    while len(samples) < count:
        missing = count - len(samples)
        batch = missing if started == 0 else min(missing * started // max(len(samples), 1) + 1, 16 * count)
        started += batch
        samples = np.concatenate([samples, _stopped_states(mdp, cumulative, batch, rng)])
    return samples[:count]


def _stopped_states(mdp: TabularMDP, cumulative: EdgeValues, count: int, rng: np.random.Generator) -> Indices:
    """Starts `count` rollouts together and returns where those stop that have not terminated before."""
    state = rng.choice(mdp.starts, size=count, p=mdp.start_weights).astype(np.int64)
    lifetime = rng.geometric(1 - mdp.gamma, size=count) - 1
    stopped = [state[lifetime == 0]]
    step = 0
    while len(state):  # mostly far shorter than the longest lifetime, because rollouts terminate
        running = lifetime > step
        state, lifetime = state[running], lifetime[running]
        edge = np.empty(len(state), dtype=np.int64)
        choose_edges(state, rng.random(len(state)), mdp.first_edge, cumulative, edge)
        acting = edge != NO_EDGE
        edge, lifetime = edge[acting], lifetime[acting]
        continues = mdp.discount[edge] > 0
        state, lifetime = mdp.target[edge[continues]].astype(np.int64), lifetime[continues]
        step += 1
        stopped.append(state[lifetime == step])
    return np.concatenate(stopped)


def _follow(edge_of: TabularPolicy, target: Int[np.ndarray, "E"], reward: EdgeValues, discount: EdgeValues) -> _Ends:
    states = len(edge_of)
    ends = _Ends(np.empty(states), np.empty(states), np.empty(states, dtype=np.int32))
    follow_edges(edge_of, target, reward, discount, ends.gain, ends.factor, ends.end)
    return ends
