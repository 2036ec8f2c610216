"""What to clone from: walks of the solved policy that earn about as much as the best from about the same place.

The graph is deterministic, and so is its policy: every start has one walk. A walk is measured against its peers, the
starts nearest to its own, as where an episode begins decides most of what it can earn:

    share = (return - floor) / (best return among the peers - floor)      floor: 0, or the worst return if less

Walks whose share falls short of the cut are left out, unless the cut is found to tell nobody apart. Walks run
together on their way, and those that reach a rewarding place go round in it for as long as there are steps. So each
pair of a state and its edge is taken once, imagined states on stitches among them. Part of the weight goes by how many
walks come through: nobody may fail where everybody passes. The rest is spread evenly: in the large maze half of what
goes by walks lies on 183 of 42,305 states, and a clone of little else is lost beside them. For the same reason there
are walks that begin in stitched states beside those from the starts; they are measured among themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial import cKDTree

from bats.arrays import Metric
from bats.data.dataset import Dataset
from bats.errors import DataError, SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED, TabularMDP
from bats.graph.rollouts import Walks, undiscounted_return, walk
from bats.graph.solve import Solution

LEAST_KEPT = 0.5
"""share of the start weight that a cut which was found, not given, must leave"""


@dataclass(frozen=True)
class RolloutConfig:
    """Which walks are cloned, and how much each of their states weighs."""

    trajectories: int = 10_000
    """most walks; of more starts, so many are drawn by their weights"""
    steps: int = 1000
    """most steps of a walk"""
    peers: int = 20
    """nearest starts, itself included, whose best return a walk is measured against"""
    cut: float | None = None
    """least share of the peers' best that is kept; None: found from the distribution of all shares"""
    threshold: float | None = None
    """keep by this return instead, the same wherever a walk starts, as the paper does"""
    beside: float = 0.5
    """share of the walks' weight that is of walks which begin in stitched states instead of starts"""
    even: float = 0.5
    """share of the weight that is spread evenly over all states on the walks; the rest goes by how many walks come
    through each"""

    def __post_init__(self) -> None:
        for name in ("trajectories", "steps", "peers"):
            if getattr(self, name) < 1:
                raise SettingError(f"`{name}` must be at least 1; got {getattr(self, name)}.")
        if self.cut is not None and not 0 <= self.cut <= 1:
            raise SettingError(f"`cut` must be a share from 0 to 1; got {self.cut}.")
        for name in ("even", "beside"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingError(f"`{name}` must be a share from 0 to 1; got {getattr(self, name)}.")
        if self.cut is not None and self.threshold is not None:
            raise SettingError("Give `cut` or `threshold`, not both.")


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """States with the actions to take there, and how it came to them."""

    states: Float[np.ndarray, "n D"]
    actions: Float[np.ndarray, "n A"] | Int[np.ndarray, "n"]
    weights: Float[np.ndarray, "n"]
    """how much each counts; they sum to 1"""
    group: Int[np.ndarray, "n"]
    """the walk that came there first: what belongs together when some are held back"""
    low: Float[np.ndarray, "A"]
    """least logged actions; without a number where actions are discrete"""
    high: Float[np.ndarray, "A"]
    action_count: int | None
    start: Int[np.ndarray, "w"]
    """the state where each walk starts"""
    start_weights: Float[np.ndarray, "w"]
    """share of episodes that begin there"""
    returns: Float[np.ndarray, "w"]
    """neither discounted nor charged"""
    share: Float[np.ndarray, "w"]
    """of the best return among its peers"""
    kept: Bool[np.ndarray, "w"]
    cut: float
    """least share of a start's walk that was kept; the least return where a threshold was set"""

    def __len__(self) -> int:
        return len(self.states)


def demonstrate(
    mdp: TabularMDP, solution: Solution, metric: Metric, config: RolloutConfig, *, seed: int
) -> Demonstrations:
    """Walks from the starts and keeps what is worth cloning. The same seed gives the same rows in the same order."""
    own, own_weight = _walked_starts(mdp, config.trajectories, seed)
    start, weight = _with_others(mdp, own, own_weight, config, seed)
    walks = walk(mdp, solution.policy, start, config.steps)
    returns = undiscounted_return(mdp, walks)
    places, kinds = metric.embed(mdp.states[start]), np.split(np.arange(len(start)), [len(own)])
    kinds = [kind for kind in kinds if len(kind)]
    share = np.concatenate([shares_of_best(returns[kind], places[kind], config.peers) for kind in kinds])
    measured, given = (share, config.cut) if config.threshold is None else (returns, config.threshold)
    cuts = [natural_cut(share[kind], weight[kind]) if given is None else given for kind in kinds]
    kept = (measured >= np.repeat(cuts, [len(kind) for kind in kinds])) & (walks.length > 0)
    cut = cuts[0]
    if not kept.any():
        raise DataError(f"a walk that reaches the cut of {cut:g}", f"{measured.max():g} at most")
    edge, group, crowd = _distinct(Walks(walks.edge[kept]), weight[kept])
    logged = mdp.action[mdp.stitch_round == LOGGED] if mdp.action_count is None else np.empty((1, 0))
    return Demonstrations(
        states=mdp.states[mdp.source[edge]],
        actions=mdp.action[edge],
        weights=(1 - config.even) * crowd / crowd.sum() + config.even / len(crowd),
        group=np.flatnonzero(kept)[group],
        low=logged.min(axis=0),
        high=logged.max(axis=0),
        action_count=mdp.action_count,
        start=own,
        start_weights=own_weight,
        returns=returns[: len(own)],
        share=share[: len(own)],
        kept=kept[: len(own)],
        cut=float(cut),
    )


def logged_rows(log: Dataset, rows: Int[np.ndarray, "n"], group: Int[np.ndarray, "n"]) -> Demonstrations:
    """Rows of a log as they are, each counting the same: what cloning has to learn from without stitching.

    `group` says which of them belong together when some are held back.
    """
    one = np.ones(1)
    numbers = log.actions if log.action_count is None else np.empty((1, 0))
    return Demonstrations(
        states=log.observations[rows],
        actions=log.actions[rows],
        weights=np.full(len(rows), 1 / len(rows)),
        group=group,
        low=numbers.min(axis=0),
        high=numbers.max(axis=0),
        action_count=log.action_count,
        start=np.zeros(1, dtype=np.int64),
        start_weights=one,
        returns=one,
        share=one,
        kept=one > 0,
        cut=0.0,
    )


def shares_of_best(
    returns: Float[np.ndarray, "w"], places: Float[np.ndarray, "w m"], peers: int
) -> Float[np.ndarray, "w"]:
    """What each walk earns as a share of the best among the walks that start nearest to it, itself included."""
    count = min(peers, len(returns))
    _, nearest = cKDTree(places).query(places, k=np.arange(1, count + 1))
    best = np.maximum(returns[nearest].max(axis=1), returns)  # of many equal starts, some do not find themselves
    floor = min(0.0, float(returns.min()))
    share = np.ones(len(returns))
    return np.divide(returns - floor, best - floor, out=share, where=best > floor)


def natural_cut(share: Float[np.ndarray, "w"], weight: Float[np.ndarray, "w"]) -> float:
    """The share above which walks go well: where splitting them in two leaves the least spread within both parts.

    At least half of the start weight stays, so that a task where luck decides much is not cloned from luck alone.
    """
    order = np.argsort(share, kind="stable")
    ranked, mass = share[order], weight[order] / weight.sum()
    below = np.cumsum(mass)[:-1]  # the weight that a cut before each later walk leaves out
    total, part = float(mass @ ranked), np.cumsum(mass * ranked)[:-1]
    apart = np.diff(ranked) > 0
    sensible = apart & (below <= 1 - LEAST_KEPT) & (below > 0)
    if not sensible.any():
        return float(ranked[0])
    between = np.full(len(below), -np.inf)
    between[sensible] = ((total * below - part)[sensible] ** 2) / (below * (1 - below))[sensible]
    return float(ranked[int(between.argmax()) + 1])


def _walked_starts(mdp: TabularMDP, most: int, seed: int) -> tuple[Int[np.ndarray, "w"], Float[np.ndarray, "w"]]:
    """The starts to walk from, and what each weighs."""
    possible = mdp.start_weights > 0
    starts, weights = mdp.starts[possible], mdp.start_weights[possible]
    if len(starts) <= most:
        return starts, weights
    drawn = np.random.default_rng([seed, 4]).choice(len(starts), size=most, p=weights)
    chosen, times = np.unique(drawn, return_counts=True)
    return starts[chosen], times / most


def _with_others(
    mdp: TabularMDP, own: Int[np.ndarray, "o"], weight: Float[np.ndarray, "o"], config: RolloutConfig, seed: int
) -> tuple[Int[np.ndarray, "w"], Float[np.ndarray, "w"]]:
    """The starts to walk from, and behind them as many stitched states as may be, with all their weights."""
    stitched = np.unique(mdp.source[mdp.stitch_round != LOGGED])
    others = np.setdiff1d(stitched[stitched < mdp.real_count], own)
    if config.beside == 0 or len(others) == 0:
        return own, weight
    if len(others) > config.trajectories:
        others = np.random.default_rng([seed, 6]).choice(others, config.trajectories, replace=False)
    even = np.full(len(others), config.beside / len(others))
    return np.concatenate([own, others]), np.concatenate([(1 - config.beside) * weight, even])


def _distinct(
    walks: Walks, weight: Float[np.ndarray, "k"]
) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """The distinct edges on the walks, the walk that takes each first, and the weight of all walks that take it."""
    row, step = np.nonzero(walks.edge != NO_EDGE)
    taken = walks.edge[row, step].astype(np.int64)
    pair = np.unique(taken * len(weight) + row)  # each walk counts once, however often it goes round
    edge, first, place = np.unique(pair // len(weight), return_index=True, return_inverse=True)
    walker = pair % len(weight)
    return edge, walker[first], np.bincount(place, weights=weight[walker])
