"""A certificate for a run: bounds on what its policies truly earn, from doubts that are measured.

`bounds.sandwich` turns doubts about stitches into bounds; here the doubts are found, all of them in units of value.

    landing     the model's claim, in the metric of value, about where a stitch ends (`evidence`), times a factor that
                makes all claims of a walk true at once (`reliability`)
    rewards     a stitched step pays what the graph says, give or take the model's claim about that, times a factor

The clone does not do as the graph says, and seldom comes through its states. It is followed instead (`following`).
What is assumed beyond the theorem is told in docs/bounds.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from bats.bounds import Bounds, Doubts, sandwich
from bats.dynamics import one_hot, unroll
from bats.errors import SettingError
from bats.evidence import Evidence, Factors
from bats.following import follow, joined
from bats.kernels import NO_EDGE
from bats.mdp import NO_STITCH, TabularMDP
from bats.policy import Policy
from bats.reliability import measure_reliability
from bats.rollouts import on_the_way, walk
from bats.types import Policy as Choice

NEGLIGIBLE = 0.05
"""share of all value that lies beyond the steps whose claims must all be true at once"""


@dataclass(frozen=True)
class CertificateConfig:
    """How sure a certificate is to be, and of what."""

    confidence: float = 0.9
    """share of the walks for which all claims on their way must be true"""
    reward_range: tuple[float, float] | None = None
    """least and greatest reward that can be; None: the log's own, which knows nothing of rewards it never saw"""
    steps: int = 20
    """most actions that the cloned policy is followed for at a time"""
    anchors: int = 8000
    """states that it is followed from: the starts, and others on the policy's way"""

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise SettingError(f"`confidence` must lie strictly between 0 and 1; got {self.confidence}.")
        for name in ("steps", "anchors"):
            if getattr(self, name) < 1:
                raise SettingError(f"`{name}` must be at least 1; got {getattr(self, name)}.")


@dataclass(frozen=True, eq=False)
class Certificate:
    """What two policies are worth at least and at most."""

    graph: Bounds
    """of doing as the graph says"""
    clone: Bounds
    """of the cloned policy; known at the starts only, elsewhere it is what is known without any data"""
    factors: Factors
    """what the claims about stitches were multiplied by"""
    clone_factors: Factors
    """and those about stretches of the clone's actions"""


def certify(
    mdp: TabularMDP,
    policy: Choice,
    clone: Policy,
    evidence: Evidence,
    config: CertificateConfig,
    *,
    seed: int,
) -> Certificate:
    """Bounds for whoever does as the graph's policy says, and for its clone."""
    steps = math.ceil(math.log(NEGLIGIBLE) / math.log(mdp.gamma))
    used = used_stitches(mdp, policy)
    stitched = measure_reliability(evidence, lengths(mdp)[used], seed=seed)
    factors = stitched.factors(config.confidence, stitches_a_walk(mdp, policy, steps))
    doubts = find_doubts(mdp, used, evidence, factors)
    graph = sandwich(mdp, replace(doubts, reward_range=config.reward_range), policy=policy)

    anchors = _anchors(mdp, policy, config.anchors, seed)
    states = mdp.states[anchors]
    stretches = follow(clone, states, evidence, gamma=mdp.gamma, steps=config.steps)
    followed = measure_reliability(evidence, stretches.length, seed=seed)
    clone_factors = followed.factors(config.confidence, steps / float(stretches.length.mean()))
    chain = joined(stretches, clone, states, evidence, clone_factors)
    lower, upper = np.full((2, mdp.state_count), [[graph.floor], [graph.ceiling]])
    lower[anchors], upper[anchors] = chain.bounds(graph.floor, graph.ceiling)
    return Certificate(graph, replace(graph, lower=lower, upper=upper), factors, clone_factors)


def find_doubts(mdp: TabularMDP, used: Int[np.ndarray, "U"], evidence: Evidence, factors: Factors) -> Doubts:
    """How wrong some stitches may be, if their claims times the factors are right. Of others nothing is known."""
    length = lengths(mdp)
    landing = np.full(mdp.stitch_count, np.inf)
    paid = np.full((mdp.stitch_count, max(int(length.max(initial=1)), 1), 2), [-np.inf, np.inf])
    if not (math.isfinite(factors.value) and len(used)):
        return Doubts(landing=landing, rewards=paid)
    edge = _edges(mdp, used, length)
    last = edge[np.arange(len(used)), length[used] - 1]
    source, target = mdp.states[mdp.source[edge[:, 0]]], mdp.states[mdp.target[last]]
    actions = one_hot(mdp.action[edge], mdp.action_count)
    plans = jnp.asarray(source, jnp.float32), jnp.asarray(actions, jnp.float32), jnp.asarray(length[used])
    visited, expected = map(np.asarray, unroll(evidence.learned.dynamics, *plans))
    dispute = np.abs(expected - mdp.reward[edge]).max(axis=0)
    claims = evidence.claims(visited, dispute, source, target, length[used])
    landing[used] = factors.value * claims.value
    off = factors.reward * claims.reward
    paid[used, : edge.shape[1]] = mdp.reward[edge][:, :, None] + np.stack([-off, off], axis=-1)
    return Doubts(landing=landing, rewards=paid)


def used_stitches(mdp: TabularMDP, policy: Choice) -> Int[np.ndarray, "U"]:
    """The stitches that the policy takes on its way from the starts, in order."""
    edge = policy[on_the_way(mdp, policy, mdp.starts)]
    stitch = mdp.stitch[edge[edge != NO_EDGE]]
    return np.unique(stitch[stitch != NO_STITCH])


def lengths(mdp: TabularMDP) -> Int[np.ndarray, "C"]:
    """How many actions each stitch has; 0 for those that were pruned."""
    return np.bincount(mdp.stitch[mdp.stitch != NO_STITCH], minlength=mdp.stitch_count)


def stitches_a_walk(mdp: TabularMDP, policy: Choice, steps: int) -> float:
    """How many stitches a walk from the starts takes in the mean."""
    walks = walk(mdp, policy, mdp.starts, steps)
    begins = np.append((mdp.stitch != NO_STITCH) & (mdp.source < mdp.real_count), False)
    return float(mdp.start_weights @ np.count_nonzero(begins[walks.edge], axis=1))


def _edges(mdp: TabularMDP, used: Int[np.ndarray, "U"], length: Int[np.ndarray, "C"]) -> Int[np.ndarray, "U K"]:
    """The edges of some stitches in their order, the last one repeated beyond a stitch's length."""
    edge = np.flatnonzero(np.isin(mdp.stitch, used))
    edge = edge[np.argsort(mdp.stitch[edge], kind="stable")]  # imagined states are numbered along their stitch
    first = np.searchsorted(mdp.stitch[edge], used)
    step = np.minimum(np.arange(int(length[used].max())), length[used][:, None] - 1)
    return edge[first[:, None] + step]


def _anchors(mdp: TabularMDP, policy: Choice, most: int, seed: int) -> Int[np.ndarray, "n"]:
    """The starts, and as many other states on the policy's way as there may be."""
    others = np.setdiff1d(on_the_way(mdp, policy, mdp.starts), mdp.starts)
    room = max(most - len(mdp.starts), 0)
    if len(others) > room:
        others = np.random.default_rng([seed, 9]).choice(others, room, replace=False)
    return np.concatenate([mdp.starts, others])
