"""Bounds on the true value of a policy of a stitched graph: the sandwich of the paper's section 4.

The graph claims that stitch j, k actions from state b with rewards r_0 … r_(k-1), ends in its target c. In truth it
ends in some state near c. If V, the policy's true value, differs by at most e_j between the two, then

    V(b) >= r_0 + … + gamma^(k-1) (r_(k-1) - gamma e_j) + gamma^k V(c)        and at most that with + gamma e_j.

So M- is the graph with gamma e_j subtracted from the reward of every stitch's last edge, and M+ the graph with as much
added. Logged edges are exact. Two more things may be wrong:

    rewards        a stitched edge has its smallest possible reward in M- and its largest in M+
    dead ends      a state whose future the log does not show may have any value that rewards allow: the smallest one
                   in M- and the largest one in M+. Rewards of steps that continue may be had for ever, r / (1 - gamma),
                   and rewards of steps that terminate once

**Why it holds.** Let D = V - V-. On a logged edge D(s) >= gamma D(s'), on a stitch D(b) >= gamma^k D(c), and at a dead
end D >= 0. So the smallest D is at least gamma times itself, or 0: it is not negative. M+ likewise.

No value lies below the floor or above the ceiling that rewards allow. Where an error could push a value beyond, the
state takes the floor or the ceiling instead, so that many errors never add up to less than knowing nothing.

The bounds are about real states; imagined ones only serve to compute them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.arrays import EdgeValues, StateValues, TabularPolicy
from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED, NO_STITCH, TabularMDP
from bats.graph.solve import checked_policy, policy_iteration, possible_rewards, possible_values, smallest_and_largest


@dataclass(frozen=True, eq=False)
class ErrorBounds:
    """How wrong a stitched graph may be, in units of value and reward."""

    end_value: Float[np.ndarray, "C"]
    """how much the policy's true value may differ between where each stitch ends and its target (or 0, where it
    terminates), such as their bisimulation distance [epsilon]; infinite where nothing is known"""
    rewards: Float[np.ndarray, "C K 2"] | None = None
    """smallest and largest reward of each action of each stitch; None: exactly the graph's"""
    reward_range: tuple[float, float] | None = None
    """smallest and largest possible reward; None: the log's own"""


@dataclass(frozen=True)
class StartValue:
    """Bounds on a policy's mean value at the starts."""

    lower: float
    upper: float
    width: float
    """difference of the two as a share of the range of all values; 0 where that is empty"""


@dataclass(frozen=True, eq=False)
class ValueBounds:
    """Lower and upper bounds on a policy's value in every state."""

    lower: StateValues
    upper: StateValues
    floor: float
    """no value can be below this: what is known without any data"""
    ceiling: float
    starts: Int[np.ndarray, "W"]
    start_weights: Float[np.ndarray, "W"]

    @property
    def start(self) -> StartValue:
        lower, upper = self._at_starts(self.lower), self._at_starts(self.upper)
        possible = self.ceiling - self.floor
        return StartValue(lower, upper, (upper - lower) / possible if possible > 0 else 0.0)

    def _at_starts(self, value: StateValues) -> float:
        return float(self.start_weights @ value[self.starts])


@dataclass(frozen=True, eq=False)
class GraphBounds(ValueBounds):
    """Bounds on the graph's own policy."""

    without_stitches: StateValues
    """the lower bound if nothing were known from where a stitch is taken"""

    @property
    def share_on_stitches(self) -> float:
        """The share of the lower bound at the starts, counted from the floor, that is lost without any stitch."""
        above = self.start.lower - self.floor
        lost = self.start.lower - self._at_starts(self.without_stitches)
        return float(np.clip(lost / above, 0.0, 1.0)) if above > 0 else 0.0


def sandwich(mdp: TabularMDP, errors: ErrorBounds, policy: TabularPolicy) -> GraphBounds:
    """The policy's value in M- and in M+, both exact [Theorem].

    The errors must hold for the policy that is bounded: a bisimulation metric belongs to one policy.
    """
    if np.any(mdp.out_degree[mdp.real_count :] > 1):
        raise SettingError("Bounds need stitches that start in real states; some stitches start in imagined states.")
    counts = {len(errors.end_value)} | ({len(errors.rewards)} if errors.rewards is not None else set())
    if counts != {mdp.stitch_count}:
        raise SettingError(f"One error is needed for each of {mdp.stitch_count} stitches; got {max(counts)} errors.")
    if not np.all(errors.end_value >= 0):
        raise SettingError("`end_value` must not be negative.")
    floor, ceiling = possible_values(mdp, errors.reward_range)
    # Whether a stitched step terminates is a prediction, so its smallest reward may be that of either kind of steps, or
    # 0 after the end; but not more than its own kind has, so that the bound stays below the ceiling. Largest likewise.
    continuing, terminating = possible_rewards(mdp, errors.reward_range)
    low, high = smallest_and_largest(continuing, terminating)
    own_low, own_high = np.where(mdp.discount[:, None] > 0, continuing, terminating or continuing).T
    smallest, largest = _edge_rewards(mdp, errors.rewards)
    smallest, largest = np.clip(smallest, low, own_high), np.clip(largest, own_low, high)
    error = np.zeros(mdp.edge_count)
    kept = mdp.last_edge >= 0
    error[mdp.last_edge[kept]] = mdp.gamma * np.minimum(errors.end_value, ceiling - floor)[kept]
    terminal = mdp.always_terminal & (mdp.out_degree == 0)
    taken = np.zeros(mdp.edge_count, dtype=bool)
    taken[checked_policy(mdp, policy)[policy != NO_EDGE]] = True
    is_logged = mdp.stitch_round == LOGGED
    uncertain, at_floor, logged = ~is_logged, np.where(terminal, 0.0, floor), taken & is_logged
    return GraphBounds(
        lower=_capped_value(mdp, smallest - error, uncertain, at_floor, taken),
        # the upper bound is the lower bound of everything negated
        upper=-_capped_value(mdp, -(largest + error), uncertain, np.where(terminal, 0.0, -ceiling), taken),
        floor=floor,
        ceiling=ceiling,
        starts=mdp.starts,
        start_weights=mdp.start_weights,
        without_stitches=_capped_value(mdp, smallest - error, uncertain, at_floor, logged),
    )


def stitch_edges(mdp: TabularMDP, stitches: Int[np.ndarray, "U"]) -> Int[np.ndarray, "U K"]:
    """The edges of some stitches in order, the last one repeated beyond a stitch's length."""
    length = mdp.stitch_length[stitches]
    edge = np.flatnonzero(np.isin(mdp.stitch, stitches))
    edge = edge[np.argsort(mdp.stitch[edge], kind="stable")]  # imagined states are numbered along their stitch
    first = np.searchsorted(mdp.stitch[edge], stitches)
    step = np.minimum(np.arange(int(length.max(initial=1))), length[:, None] - 1)
    return edge[first[:, None] + step]


def _edge_rewards(mdp: TabularMDP, rewards: Float[np.ndarray, "C K 2"] | None) -> tuple[EdgeValues, EdgeValues]:
    """The smallest and the largest reward of every edge."""
    smallest, largest = mdp.reward.copy(), mdp.reward.copy()
    stitches = np.flatnonzero(mdp.stitch_length)
    if rewards is None or len(stitches) == 0:
        return smallest, largest
    edge = stitch_edges(mdp, stitches)
    if edge.shape[1] > rewards.shape[1]:
        raise SettingError(f"`rewards` must have one entry per action of a stitch; got {rewards.shape[1]} per stitch.")
    used = np.arange(edge.shape[1]) < mdp.stitch_length[stitches][:, None]
    given = rewards[stitches, : edge.shape[1]]
    smallest[edge[used]], largest[edge[used]] = given[used, 0], given[used, 1]
    return smallest, largest


def _capped_value(
    mdp: TabularMDP,
    reward: EdgeValues,
    uncertain: Bool[np.ndarray, "E"],
    fallback: StateValues,
    kept: Bool[np.ndarray, "E"],
) -> StateValues:
    """The values with only some of the edges, where certain states may take a fallback value instead.

    States without an edge need it, and states with an uncertain edge. Elsewhere a value cannot leave the possible
    range: a logged reward before a possible value gives a possible value.
    """
    degree = np.bincount(mdp.source[kept], minlength=mdp.state_count)
    falls_back = degree == 0
    falls_back[mdp.source[kept & uncertain]] = True
    # the fallback is one more edge, the last of its state, that terminates with the fallback value as reward
    first_edge = np.concatenate([[0], np.cumsum(degree + falls_back)])
    original = np.ones(first_edge[-1], dtype=bool)
    original[first_edge[1:][falls_back] - 1] = False
    edge = np.full(len(original), NO_EDGE)
    edge[original] = np.flatnonzero(kept)
    rewards = reward[edge]
    rewards[~original] = fallback[falls_back]
    capped = replace(
        mdp,
        penalty=0.0,
        first_edge=first_edge,
        target=mdp.target[edge],  # irrelevant for an edge that terminates
        action=np.zeros((len(edge), 0)),
        reward=rewards,
        discount=np.where(original, mdp.discount[edge], 0.0),
        stitch_round=np.full(len(edge), LOGGED),
        stitch=np.full(len(edge), NO_STITCH),
        planning_error=np.zeros(len(edge)),
    )
    return policy_iteration(capped, dead_end_value=0.0).value  # there are no dead ends
