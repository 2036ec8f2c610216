"""Bounds on what a policy of a stitched graph is truly worth: the sandwich of the paper's section 4.

The graph claims that stitch j, k actions from state b with rewards r_0 … r_(k-1), ends in c. In truth it ends in some
state l near c. If V, the policy's true value, differs by at most e_j between the two, then

    V(b) >= r_0 + … + gamma^(k-1) (r_(k-1) - gamma e_j) + gamma^k V(c)        and at most that with + gamma e_j.

So M- is the graph with gamma e_j off the reward of every stitch's last edge, which is gamma^k e_j off V(b), and M+ the
graph with as much added. Logged edges are exact. Three more things may be wrong, and each has its term:

    rewards        a stitched edge pays its least expected reward in M- and its greatest in M+
    deviation      a cloned policy does not quite do as the graph says. If this changes r + gamma V(s'), what it has
                   from state s on, by at most n(s), then every edge of s pays n(s) less in M- and more in M+. With
                   actions off by x, n = (L_r + gamma L_V L_T) x: how fast reward, value and next state change
    the unknown    a state whose future the log does not show may be worth whatever rewards allow: r_min / (1 - gamma)
                   in M- and r_max / (1 - gamma) in M+. Where the task may end, 0 is a reward too

**Why it holds.** Let D = V - V-. On a logged edge D(s) >= gamma D(s'), on a stitch D(b) >= gamma^k D(c), and at a dead
end D >= 0. So the least D is at least gamma times itself or 0: it is not negative. M+ likewise.

No state is worth less than the floor of all values or more than their ceiling. Where a charge could take a value
beyond, the state takes the floor or the ceiling instead: many doubts never add up to more than knowing nothing.

The bounds speak of real states. Of imagined ones, which exist in the graph only, they are a means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from bats.arrays import EdgeValues, StateValues, TabularPolicy
from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED, NO_STITCH, Stitches, TabularMDP
from bats.graph.relabel import last_edges
from bats.graph.solve import Solution, checked_policy, greedy_policy, policy_iteration

ROUNDING = 1e-9
"""a gain below this, relative to the greatest value there may be or 1, may come from rounding"""


@dataclass(frozen=True, eq=False)
class Doubts:
    """How wrong a stitched graph may be, in units of reward and value."""

    landing: Float[np.ndarray, "C"]
    """how much the policy's true value may differ between where each stitch lands and its target (or the end, worth 0,
    where it ends the task), such as their bisimulation distance [epsilon]; infinite where nothing is known"""
    rewards: Float[np.ndarray, "C K 2"] | None = None
    """least and greatest reward of each action of each stitch (`reward_ranges`); None: known to be the graph's own"""
    deviation: float | StateValues = 0.0
    """how much a step may change because the cloned policy does not act as the graph does, at most or in each state"""
    reward_range: tuple[float, float] | None = None
    """least and greatest reward that can be; None: the log's own, which knows nothing of rewards it never saw"""


@dataclass(frozen=True, eq=False)
class Bounds:
    """A policy, and what it is worth at least and at most."""

    policy: TabularPolicy
    lower: StateValues
    upper: StateValues
    without_stitches: StateValues
    """the lower bound if nothing were known from where a stitch is taken"""
    floor: float
    """no state can be worth less: what is known without any data"""
    ceiling: float
    real_count: int
    starts: Int[np.ndarray, "W"]
    start_weights: Float[np.ndarray, "W"]

    @property
    def start_lower(self) -> float:
        return self._at_starts(self.lower)

    @property
    def start_upper(self) -> float:
        return self._at_starts(self.upper)

    @property
    def width(self) -> float:
        """Mean distance of the bounds at the starts as a share of the range of all values; 0 where that is a point."""
        possible = self.ceiling - self.floor
        return (self.start_upper - self.start_lower) / possible if possible > 0 else 0.0

    @property
    def share_on_stitches(self) -> float:
        """Share of the lower bound at the starts, counted from the floor, that is lost if no stitch is relied on."""
        above = self.start_lower - self.floor
        if above <= 0:
            return 0.0
        return float(np.clip((self.start_lower - self._at_starts(self.without_stitches)) / above, 0.0, 1.0))

    def _at_starts(self, value: StateValues) -> float:
        return float(self.start_weights @ value[self.starts])


@dataclass(frozen=True, eq=False)
class Improvement:
    """By how much a policy is sure to be better than another [Corollary]."""

    gain: Float[np.ndarray, "R"]
    """of each real state: the new lower bound less the old upper bound"""
    start_gain: float
    """the same for the means at the starts"""
    rounding: float
    """gains up to here are none"""

    @property
    def certified(self) -> Bool[np.ndarray, "R"]:
        """Where the new policy is better for certain."""
        return self.gain > self.rounding

    @property
    def certified_at_starts(self) -> bool:
        """Whether it is better for certain on average over the starts."""
        return self.start_gain > self.rounding


def sandwich(mdp: TabularMDP, doubts: Doubts, *, policy: TabularPolicy | None = None) -> Bounds:
    """The best policy of M- with its value in M- and in M+, both exact [Theorem].

    With a `policy` given, that one is bounded instead. The doubts must hold for the policy that is bounded: a
    bisimulation metric belongs to a policy, so where it is learned, learn it again for this one and compare.
    """
    _check(mdp, doubts)
    least, greatest = possible_rewards(mdp, doubts.reward_range)
    floor, ceiling = least / (1 - mdp.gamma), greatest / (1 - mdp.gamma)
    low, high = (np.clip(paid, least, greatest) for paid in _edge_rewards(mdp, doubts.rewards))
    charge = _edge_charges(mdp, doubts, most=ceiling - floor)
    over = mdp.only_ended_in & (mdp.out_degree == 0)
    pessimistic = _Capped(mdp, low - charge, charge > 0, np.where(over, 0.0, floor))
    optimistic = _Capped(mdp, -(high + charge), charge > 0, np.where(over, 0.0, -ceiling))
    if policy is None:
        policy = pessimistic.best_policy()
    taken = np.zeros(mdp.edge_count, dtype=bool)
    taken[checked_policy(mdp, policy)[policy != NO_EDGE]] = True
    return Bounds(
        policy=policy,
        lower=pessimistic.value(taken),
        upper=-optimistic.value(taken),
        without_stitches=pessimistic.value(taken & (mdp.stitch_round == LOGGED)),
        floor=floor,
        ceiling=ceiling,
        real_count=mdp.real_count,
        starts=mdp.starts,
        start_weights=mdp.start_weights,
    )


def improvement(old: Bounds, new: Bounds) -> Improvement:
    """Where and by how much the new policy is sure to be better: two rounds or two runs on the same log."""
    same = old.real_count == new.real_count and np.array_equal(old.starts, new.starts)
    if not (same and np.array_equal(old.start_weights, new.start_weights)):
        raise SettingError(
            "Two policies can be compared on the same log states and starts only; these are of two logs."
        )
    real = slice(new.real_count)
    rounding = ROUNDING * max(1.0, *(abs(end) for each in (old, new) for end in (each.floor, each.ceiling)))
    return Improvement(new.lower[real] - old.upper[real], new.start_lower - old.start_upper, rounding)


def possible_rewards(mdp: TabularMDP, reward_range: tuple[float, float] | None = None) -> tuple[float, float]:
    """The least and the greatest reward of a step: as given or as logged, and 0, which is what comes after an end."""
    logged = mdp.reward[mdp.stitch_round == LOGGED]
    least, greatest = float(logged.min()), float(logged.max())
    if reward_range is not None:
        if not (np.isfinite(reward_range).all() and reward_range[0] <= least and greatest <= reward_range[1]):
            raise SettingError(
                f"`reward_range` must hold all logged rewards, {least} to {greatest}; got {reward_range}."
            )
        least, greatest = float(reward_range[0]), float(reward_range[1])
    if np.any(mdp.discount == 0):
        least, greatest = min(least, 0.0), max(greatest, 0.0)
    return least, greatest


def reward_ranges(rounds: Sequence[Stitches]) -> Float[np.ndarray, "C K 2"]:
    """The least and greatest rewards that the model's members expect, of the stitches of all rounds in turn."""
    longest = max((added.reward_range.shape[1] for added in rounds), default=1)
    padded = [
        np.pad(added.reward_range.astype(np.float64), ((0, 0), (0, longest - added.reward_range.shape[1]), (0, 0)))
        for added in rounds
    ]
    return np.concatenate([np.zeros((0, longest, 2)), *padded])


@dataclass(frozen=True, eq=False)
class _Capped:
    """A graph with a last edge in some states that ends there and then, for what the state is worth in any case.

    States without another edge need one, and states from where a charged edge leads. Elsewhere a value cannot leave
    the range: a reward within the range before a value within the range is a value within the range.
    """

    mdp: TabularMDP
    reward: EdgeValues
    charged: Bool[np.ndarray, "E"]
    in_any_case: StateValues

    def best_policy(self) -> TabularPolicy:
        """The edges to take; where it is best to know nothing, the best of those that there are."""
        solution, edge = self._solved(np.ones(self.mdp.edge_count, dtype=bool))
        chosen = edge[solution.policy]
        greedy = greedy_policy(replace(self.mdp, reward=self.reward, penalty=0.0), solution.value)
        return np.where(chosen == NO_EDGE, greedy, chosen)

    def value(self, kept: Bool[np.ndarray, "E"]) -> StateValues:
        """What the states are worth with only some of the edges."""
        return self._solved(kept)[0].value

    def _solved(self, kept: Bool[np.ndarray, "E"]) -> tuple[Solution, Int[np.ndarray, "edges"]]:
        """The best there is with some of the edges, and which of the graph's edges each of its edges is."""
        mdp = self.mdp
        degree = np.bincount(mdp.source[kept], minlength=mdp.state_count)
        leaves = degree == 0
        leaves[mdp.source[kept & self.charged]] = True
        first_edge = np.concatenate([[0], np.cumsum(degree + leaves)])
        stays = np.ones(first_edge[-1], dtype=bool)
        stays[first_edge[1:][leaves] - 1] = False
        edge = np.full(len(stays), NO_EDGE)
        edge[stays] = np.flatnonzero(kept)
        reward, discount = self.reward[edge], np.where(stays, mdp.discount[edge], 0.0)
        reward[~stays] = self.in_any_case[leaves]
        capped = replace(
            mdp,
            penalty=0.0,
            first_edge=first_edge,
            target=mdp.target[edge],  # of an edge that ends here and now, no matter
            action=np.zeros((len(edge), 0)),
            reward=reward,
            discount=discount,
            stitch_round=np.full(len(edge), LOGGED),
            stitch=np.full(len(edge), NO_STITCH),
            planning_error=np.zeros(len(edge)),
        )
        return policy_iteration(capped), edge


def _check(mdp: TabularMDP, doubts: Doubts) -> None:
    if np.any(mdp.out_degree[mdp.real_count :] > 1):
        raise SettingError("Bounds are known for stitches between real states; some of these start in imagined ones.")
    counts = {len(doubts.landing)} | ({len(doubts.rewards)} if doubts.rewards is not None else set())
    if counts != {mdp.stitch_count}:
        raise SettingError(f"Doubts must have an entry for each of {mdp.stitch_count} stitches; got {max(counts)}.")
    for name, doubt in (("landing", doubts.landing), ("deviation", np.asarray(doubts.deviation))):
        if not np.all(doubt >= 0):
            raise SettingError(f"`{name}` must not be negative.")


def _edge_rewards(mdp: TabularMDP, rewards: Float[np.ndarray, "C K 2"] | None) -> tuple[EdgeValues, EdgeValues]:
    """The least and the greatest reward of every edge."""
    if rewards is None:
        return mdp.reward, mdp.reward
    low, high = mdp.reward.copy(), mdp.reward.copy()
    edge = np.flatnonzero(mdp.stitch != NO_STITCH)
    edge = edge[np.argsort(mdp.stitch[edge], kind="stable")]  # imagined states are numbered along their stitch
    stitch = mdp.stitch[edge]
    step = np.arange(len(edge)) - np.searchsorted(stitch, stitch)
    if len(edge) and step.max() >= rewards.shape[1]:
        raise SettingError(f"`rewards` must have an entry for each action; got {rewards.shape[1]} a stitch.")
    low[edge], high[edge] = rewards[stitch, step, 0], rewards[stitch, step, 1]
    return low, high


def _edge_charges(mdp: TabularMDP, doubts: Doubts, *, most: float) -> EdgeValues:
    """What is taken off each edge in M- and added in M+; no two values are farther apart than `most`."""
    deviation = np.broadcast_to(np.minimum(doubts.deviation, most), mdp.state_count)
    landing = np.append(np.minimum(doubts.landing, most), 0.0)[mdp.stitch]  # NO_STITCH, which is -1, picks the 0
    return deviation[mdp.source] + mdp.gamma * np.where(last_edges(mdp), landing, 0.0)
