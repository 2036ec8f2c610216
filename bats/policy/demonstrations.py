"""What to clone: rollouts of the solved policy that return about as much as the best ones starting nearby.

The graph and its policy are deterministic, so every start has one rollout. Where an episode starts decides most of what
it can earn, so a rollout is compared with those of the nearest starts, and of all starts within an ordinary step:

    share = (return - floor) / (best return nearby - floor)      floor: 0, or the worst return if that is negative

Rollouts below the threshold are not cloned. In many tasks all starts are alike, and a clone of good and bad rollouts
from the same place would be the mean of ways that disagree.

Rollouts merge, and those that reach a rewarding region circle in it until the steps run out, so each pair of a state
and its edge is used once, including imagined states on stitches. Part of the weight is proportional to the number of
rollouts through a state: a clone must not fail where all rollouts pass. The rest is uniform: in the large maze half of
the first kind lies on 183 of 42,305 states, and a clone trained mostly on those states fails elsewhere. For the same
reason some rollouts begin in stitched states instead of start states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial import cKDTree

from bats.arrays import Metric, short_repr
from bats.config import RolloutConfig
from bats.data.dataset import Dataset
from bats.errors import DataError, check_rules
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import LOGGED, TabularMDP
from bats.graph.rollouts import Rollouts, roll_out, undiscounted_return
from bats.graph.solve import Solution
from bats.streams import Stream, generator

MAX_ROLLOUTS = 10_000
"""from starts, and as many from stitched states; of more, this many are drawn"""
PEERS = 20
"""nearest starts, itself included, whose best return a rollout is compared with"""
MIN_KEPT = 0.5
"""share of the start weight that must be left with a cloned rollout from a start that is alike"""
FEW = 32
"""of so few points the neighbours are looked up one by one"""
ALIKE = 1.0
"""starts within this distance, that of an ordinary step, are alike"""
MIN_SHARE = 0.75
"""an automatic threshold is at least this, if enough of the start weight is left"""


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """States with the actions to take there."""

    states: Float[np.ndarray, "n D"]
    actions: Float[np.ndarray, "n A"] | Int[np.ndarray, "n"]
    weights: Float[np.ndarray, "n"]
    """they sum to 1"""
    group: Int[np.ndarray, "n"]
    """the rollout that visited each row first: rows of one group are held out together"""
    low: Float[np.ndarray, "A"]
    """smallest logged actions; empty for discrete ones"""
    high: Float[np.ndarray, "A"]
    action_count: int | None

    __repr__ = short_repr

    def __len__(self) -> int:
        return len(self.states)


@dataclass(frozen=True, eq=False)
class Selection:
    """The rollouts from the starts, and which of them were cloned."""

    start: Int[np.ndarray, "w"]
    start_weights: Float[np.ndarray, "w"]
    returns: Float[np.ndarray, "w"]
    """neither discounted nor penalized"""
    share: Float[np.ndarray, "w"]
    """of the best return nearby"""
    kept: Bool[np.ndarray, "w"]
    threshold: float
    """smallest share that was kept, or smallest return"""
    by_return: bool
    """the threshold is a return"""
    steps: int
    """longest rollout"""

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_rules(
            {
                "there must be at least one rollout": len(self.start) > 0,
                "state indices must not be negative": np.all(self.start >= 0),
                "weights must not be negative": np.all(self.start_weights >= 0),
                "rollouts must be allowed at least one step": self.steps >= 1,
            }
        )

    @property
    def measure(self) -> str:
        """The quantity that the threshold applies to."""
        return "return" if self.by_return else "share of the best return from nearby starts"


def demonstrate(
    solution: Solution, metric: Metric, config: RolloutConfig, *, seed: int
) -> tuple[Demonstrations, Selection]:
    """Rolls the policy out from the starts and keeps what is worth cloning; the same seed gives the same rows."""
    mdp = solution.mdp
    starts, start_weights = _sampled_starts(mdp, seed)
    first, weight = _with_recovery_starts(mdp, starts, start_weights, config, seed)
    rollouts = roll_out(mdp, solution.policy, first, config.steps)
    returns = undiscounted_return(mdp, rollouts)

    # rollouts from starts and from stitched states are each compared among themselves
    kinds = [kind for kind in np.split(np.arange(len(first)), [len(starts)]) if len(kind)]
    points = np.asarray(metric.embed(mdp.states[first]))
    share = np.concatenate([shares_of_best(returns[kind], points[kind]) for kind in kinds])
    best_alike = np.concatenate([best_within(share[kind], points[kind], ALIKE) for kind in kinds])
    by_return = config.min_return is not None
    measured, given = (returns, config.min_return) if by_return else (share, config.min_share)
    thresholds = [
        natural_threshold(share[kind], weight[kind], best_alike[kind]) if given is None else given for kind in kinds
    ]
    kept = (measured >= np.repeat(thresholds, [len(kind) for kind in kinds])) & (rollouts.length > 0)
    if not kept.any():
        setting = "rollouts.min_return" if by_return else "rollouts.min_share"
        hint = f"Lower `{setting}`; the trained model and the stitches are kept."
        unit = "" if by_return else " times the best return from nearby starts"
        expected = f"a rollout with a return of at least {thresholds[0]:g}{unit}"
        raise DataError(expected, f"a maximum of {measured.max():g}{unit}", hint=hint)

    edge, group, visits = _distinct_edges(Rollouts(rollouts.edge[kept]), weight[kept])
    logged = mdp.action[mdp.stitch_round == LOGGED] if mdp.action_count is None else np.empty((1, 0))
    demonstrations = Demonstrations(
        states=mdp.states[mdp.source[edge]],
        actions=mdp.action[edge],
        weights=(1 - config.uniform_share) * visits / visits.sum() + config.uniform_share / len(visits),
        group=np.flatnonzero(kept)[group],
        low=logged.min(axis=0),
        high=logged.max(axis=0),
        action_count=mdp.action_count,
    )
    from_starts = slice(len(starts))
    selection = Selection(
        start=starts,
        start_weights=start_weights,
        returns=returns[from_starts],
        share=share[from_starts],
        kept=kept[from_starts],
        threshold=float(thresholds[0]),
        by_return=by_return,
        steps=config.steps,
    )
    return demonstrations, selection


def best_episodes(log: Dataset, share: float) -> Bool[np.ndarray, "N"]:
    """The rows of the episodes with the largest returns that make up a share of the log, one episode at least."""
    if share == 1:
        return np.ones(len(log), dtype=bool)
    episode = log.episode_numbers
    lengths, order = np.bincount(episode), np.argsort(-log.episode_returns, kind="stable")
    chosen = order[: max(int(np.searchsorted(np.cumsum(lengths[order]), share * len(log), side="right")), 1)]
    return np.isin(episode, chosen)


def logged_rows(log: Dataset, rows: Int[np.ndarray, "n"], group: Int[np.ndarray, "n"] | None = None) -> Demonstrations:
    """Rows of a log as they are, with equal weights: plain behaviour cloning, without stitching.

    They are grouped by their episodes unless `group` is given.
    """
    group = log.episode_numbers[rows] if group is None else group
    numbers = log.actions if log.action_count is None else np.empty((1, 0))
    return Demonstrations(
        states=log.observations[rows],
        actions=log.actions[rows],
        weights=np.full(len(rows), 1 / len(rows)),
        group=group,
        low=numbers.min(axis=0),
        high=numbers.max(axis=0),
        action_count=log.action_count,
    )


def shares_of_best(returns: Float[np.ndarray, "w"], points: Float[np.ndarray, "w m"]) -> Float[np.ndarray, "w"]:
    """Each return as a share of the best among the rollouts that start nearest, itself included."""
    ranks = np.arange(1, min(PEERS, len(returns)) + 1)
    _, nearest = cKDTree(points).query(points, k=ranks)
    best = np.maximum(returns[nearest].max(axis=1), best_within(returns, points, ALIKE))
    floor = min(0.0, float(returns.min()))
    share = np.ones(len(returns))
    return np.divide(returns - floor, best - floor, out=share, where=best > floor)


def best_within(
    values: Float[np.ndarray, "w"], points: Float[np.ndarray, "w m"], radius: float
) -> Float[np.ndarray, "w"]:
    """The largest value among all points within a distance of each, itself included."""
    tree, best, open_points = cKDTree(points), values.copy(), np.ones(len(points), dtype=bool)
    for index in np.argsort(-values, kind="stable"):  # the first to reach a point is the largest that does
        if np.count_nonzero(open_points) <= FEW:
            break
        reached = np.array(tree.query_ball_point(points[index], radius), dtype=np.int64)
        reached = reached[open_points[reached]]
        best[reached], open_points[reached] = values[index], False
    for index in np.flatnonzero(open_points):  # all others would have to be tried before they reach the last few
        best[index] = values[tree.query_ball_point(points[index], radius)].max()
    return best


def natural_threshold(
    share: Float[np.ndarray, "w"], weight: Float[np.ndarray, "w"], best_alike: Float[np.ndarray, "w"]
) -> float:
    """The share that separates good rollouts from bad ones: the split in two with the least variance within both.

    Half of the start weight at least is left with a cloned rollout, its own or that of a start that is alike, whose
    best share is `best_alike`. And at least `PEERS` rollouts are left, or half of them if there are fewer than twice as
    many, so that a task with some randomness is not cloned from luck alone.
    """
    order = np.argsort(share, kind="stable")
    ranked, mass = share[order], weight[order] / weight.sum()
    below = np.cumsum(mass)[:-1]  # the weight that a threshold before each later rollout leaves out
    total, part = float(mass @ ranked), np.cumsum(mass * ranked)[:-1]
    by_best = np.argsort(best_alike)
    lost = np.concatenate([[0.0], np.cumsum(weight[by_best] / weight.sum())])

    def leaves_enough(threshold: Float[np.ndarray, "t"]) -> Bool[np.ndarray, "t"]:
        several = len(ranked) - np.searchsorted(ranked, threshold) >= min(PEERS, len(ranked) / 2)
        return several & (lost[np.searchsorted(best_alike[by_best], threshold)] <= 1 - MIN_KEPT)

    possible = (np.diff(ranked) > 0) & leaves_enough(ranked[1:]) & (below > 0) & (below < 1)
    chosen = float(ranked[0])
    if possible.any():
        # maximising the variance between the parts minimises that within them
        between = np.full(len(below), -np.inf)
        between[possible] = ((total * below - part)[possible] ** 2) / (below * (1 - below))[possible]
        chosen = float(ranked[int(between.argmax()) + 1])
    return max(chosen, MIN_SHARE) if leaves_enough(np.array([MIN_SHARE]))[0] else chosen


def _sampled_starts(mdp: TabularMDP, seed: int) -> tuple[Int[np.ndarray, "w"], Float[np.ndarray, "w"]]:
    """The starts to roll out from, and their weights."""
    possible = mdp.start_weights > 0
    starts, weights = mdp.starts[possible], mdp.start_weights[possible]
    if len(starts) <= MAX_ROLLOUTS:
        return starts, weights
    drawn = generator(seed, Stream.CLONED_STARTS).choice(len(starts), size=MAX_ROLLOUTS, p=weights)
    chosen, times = np.unique(drawn, return_counts=True)
    return starts[chosen], times / MAX_ROLLOUTS


def _with_recovery_starts(
    mdp: TabularMDP, starts: Int[np.ndarray, "o"], weight: Float[np.ndarray, "o"], config: RolloutConfig, seed: int
) -> tuple[Int[np.ndarray, "w"], Float[np.ndarray, "w"]]:
    """The starts, followed by stitched states, with the weights of all."""
    stitched = np.unique(mdp.source[mdp.stitch_round != LOGGED])
    others = np.setdiff1d(stitched[stitched < mdp.real_count], starts)
    if config.recovery_share == 0 or len(others) == 0:
        return starts, weight
    if len(others) > MAX_ROLLOUTS:
        others = generator(seed, Stream.RECOVERY_STARTS).choice(others, MAX_ROLLOUTS, replace=False)
    uniform = np.full(len(others), config.recovery_share / len(others))
    return np.concatenate([starts, others]), np.concatenate([(1 - config.recovery_share) * weight, uniform])


def _distinct_edges(
    rollouts: Rollouts, weight: Float[np.ndarray, "k"]
) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """The distinct edges, the rollout that takes each first, and the weight of all rollouts that take it."""
    row, step = np.nonzero(rollouts.edge != NO_EDGE)
    taken = rollouts.edge[row, step].astype(np.int64)
    pair = np.unique(taken * len(weight) + row)  # a rollout counts once, however often it goes round
    edge, first, index = np.unique(pair // len(weight), return_index=True, return_inverse=True)
    rollout = pair % len(weight)
    return edge, rollout[first], np.bincount(index, weights=weight[rollout])
