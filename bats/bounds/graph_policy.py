"""A certificate for a run: bounds on what its policies truly earn, from doubts that are measured.

`bounds.sandwich` turns doubts about stitches into bounds; here the doubts are found, all of them in units of value.

    landing     the model's claim, in the metric of value, about where a stitch ends (`evidence`), times a factor that
                makes the claims of a walk true in sum (`reliability`)
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

from bats.arrays import TabularPolicy
from bats.bounds.cloned_policy import Links, follow_on, joined
from bats.bounds.error_calibration import Stakes, measure_reliability
from bats.bounds.error_estimates import Claims, Evidence, Factors
from bats.bounds.sandwich import Bounds, Doubts, sandwich
from bats.errors import SettingError
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import NO_STITCH, TabularMDP
from bats.graph.rollouts import FAR, Walks, on_the_way, walk
from bats.model.ensemble import one_hot, unroll
from bats.policy.policy import Policy

NEGLIGIBLE = 0.05
"""share of all value that lies beyond the steps whose claims count"""
WALKS = 1000
"""walks from the starts that show what rests on claims"""


@dataclass(frozen=True)
class CertificateConfig:
    """How sure a certificate is to be, and of what."""

    confidence: float = 0.95
    """share of the walks whose claims must be true in sum"""
    reward_range: tuple[float, float] | None = None
    """least and greatest reward that can be; None: the log's own, which knows nothing of rewards it never saw"""
    margin: float = 2.5
    """least factor for claims about where plans end. Held-out rows are not chosen, plans are, by the model that speaks
    for them; and where one plan ends the next begins, not where it should have ended"""
    steps: int = 20
    """most actions that the cloned policy is followed for at a time"""
    anchors: int = 8000
    """states that it is followed from: the starts, others on the graph's way, and as many on its own way"""

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise SettingError(f"`confidence` must lie strictly between 0 and 1; got {self.confidence}.")
        if not (self.margin >= 0 and math.isfinite(self.margin)):
            raise SettingError(f"`margin` must be finite and not negative; got {self.margin}.")
        for name in ("steps", "anchors"):
            if getattr(self, name) < 1:
                raise SettingError(f"`{name}` must be at least 1; got {getattr(self, name)}.")


@dataclass(frozen=True, eq=False)
class Certificate:
    """What two policies are worth at least and at most."""

    graph: Bounds
    """of doing as the graph says"""
    clone: Bounds
    """of the cloned policy; known where it was followed from, elsewhere it is what is known without any data"""
    factors: Factors
    """what the claims about stitches were multiplied by"""
    clone_factors: Factors
    """and those about stretches of the clone's actions"""


def certify(
    mdp: TabularMDP,
    policy: TabularPolicy,
    clone: Policy,
    evidence: Evidence,
    config: CertificateConfig,
    *,
    seed: int,
) -> Certificate:
    """Bounds for whoever does as the graph's policy says, and for its clone."""
    rng = np.random.default_rng([seed, 9])
    graph, factors = bound_graph(mdp, policy, evidence, config, seed=seed)
    anchors = _anchors(mdp, policy, config.anchors, rng)
    counting = _steps_that_count(mdp)
    walkers = np.arange(len(mdp.starts))  # the first of the anchors
    room = math.ceil(config.anchors * config.steps / counting)
    if len(walkers) > room:
        walkers = np.sort(rng.choice(walkers, room, replace=False))
    states, stretches = follow_on(
        clone,
        mdp.states[anchors],
        walkers,
        evidence,
        gamma=mdp.gamma,
        steps=config.steps,
        counting=counting,
        most=config.anchors,
    )
    links = Links.of(stretches, states, evidence, known=len(anchors))
    first = rng.choice(len(mdp.starts), WALKS, p=mdp.start_weights)
    stakes = links.stakes(stretches, first, least=NEGLIGIBLE)
    followed = measure_reliability(evidence, stretches.length, seed=seed)
    clone_factors = followed.factors(config.confidence, stakes, seed=seed).at_least(config.margin)
    chain = joined(stretches, links, clone, states, evidence, clone_factors)
    lower, upper = np.full((2, mdp.state_count), [[graph.floor], [graph.ceiling]])
    found = chain.bounds(graph.floor, graph.ceiling, margin=max(config.margin, 1.0))
    lower[anchors], upper[anchors] = (each[: len(anchors)] for each in found)
    return Certificate(graph, replace(graph, lower=lower, upper=upper), factors, clone_factors)


def bound_graph(
    mdp: TabularMDP,
    policy: TabularPolicy,
    evidence: Evidence,
    config: CertificateConfig,
    *,
    seed: int,
    first_states: Int[np.ndarray, "n"] | None = None,
    factors: Factors | None = None,
) -> tuple[Bounds, Factors]:
    """Bounds for whoever does as the graph says on the way from the first states, by default the starts.

    `factors` that were found before make bounds of several policies comparable.
    """
    used = used_stitches(mdp, policy, mdp.starts if first_states is None else first_states)
    claims = stitch_claims(mdp, used, evidence)
    if factors is None:
        factors = graph_factors(mdp, policy, used, claims, evidence, config, seed=seed, first_states=first_states)
    doubts = find_doubts(mdp, used, claims, factors)
    return sandwich(mdp, replace(doubts, reward_range=config.reward_range), policy=policy), factors


def graph_factors(
    mdp: TabularMDP,
    policy: TabularPolicy,
    used: Int[np.ndarray, "U"],
    claims: Claims,
    evidence: Evidence,
    config: CertificateConfig,
    *,
    seed: int,
    first_states: Int[np.ndarray, "n"] | None = None,
) -> Factors:
    """What the claims of the used stitches must be multiplied by on walks from the first states, or from the starts."""
    rng = np.random.default_rng([seed, 11])
    if first_states is None:
        first = rng.choice(mdp.starts, WALKS, p=mdp.start_weights)
    else:
        first = rng.choice(first_states, WALKS)
    stakes = stitch_stakes(mdp, walk(mdp, policy, first, _steps_that_count(mdp)), used, claims)
    stitched = measure_reliability(evidence, lengths(mdp)[used], seed=seed)
    return stitched.factors(config.confidence, stakes, seed=seed).at_least(config.margin)


def stitch_claims(mdp: TabularMDP, used: Int[np.ndarray, "U"], evidence: Evidence) -> Claims:
    """What the model says of its own error in some stitches."""
    length = lengths(mdp)[used]
    if len(used) == 0:
        return Claims(np.zeros(0), np.zeros(0), np.zeros((0, 1)))
    edge = _edges(mdp, used, length)
    last = edge[np.arange(len(used)), length - 1]
    source, target = mdp.states[mdp.source[edge[:, 0]]], mdp.states[mdp.target[last]]
    actions = one_hot(mdp.action[edge], mdp.action_count)
    plans = jnp.asarray(source, jnp.float32), jnp.asarray(actions, jnp.float32), jnp.asarray(length)
    visited, expected = map(np.asarray, unroll(evidence.learned.dynamics, *plans))
    dispute = np.abs(expected - mdp.reward[edge]).max(axis=0)
    return evidence.claims(visited, dispute, source, target, length)


def stitch_stakes(mdp: TabularMDP, walks: Walks, used: Int[np.ndarray, "U"], claims: Claims) -> Stakes:
    """What rests on the claims of the stitches that some walks begin."""
    edge, length = walks.edge, lengths(mdp)
    stitch = np.append(mdp.stitch, NO_STITCH)[edge]  # NO_EDGE, which is -1, picks the last
    walker, step = np.nonzero((stitch != NO_STITCH) & (np.append(mdp.source, mdp.state_count)[edge] < mdp.real_count))
    begun = stitch[walker, step]
    which = np.searchsorted(used, begun)
    value = mdp.gamma ** (step + length[begun]) * claims.value[which]
    reward = mdp.gamma**step * claims.reward[which].sum(axis=1)
    return Stakes.of_plans(walker, begun, value, reward, walks=len(edge))


def find_doubts(mdp: TabularMDP, used: Int[np.ndarray, "U"], claims: Claims, factors: Factors) -> Doubts:
    """How wrong some stitches may be, if their claims times the factors are right. Of others nothing is known."""
    length = lengths(mdp)
    landing = np.full(mdp.stitch_count, np.inf)
    paid = np.full((mdp.stitch_count, max(int(length.max(initial=1)), 1), 2), [-np.inf, np.inf])
    if not (math.isfinite(factors.value) and len(used)):
        return Doubts(landing=landing, rewards=paid)
    edge = _edges(mdp, used, length[used])
    landing[used] = factors.value * claims.value
    off = factors.reward * claims.reward
    paid[used, : edge.shape[1]] = mdp.reward[edge][:, :, None] + np.stack([-off, off], axis=-1)
    return Doubts(landing=landing, rewards=paid)


def used_stitches(mdp: TabularMDP, policy: TabularPolicy, first_states: Int[np.ndarray, "n"]) -> Int[np.ndarray, "U"]:
    """The stitches that the policy takes on its way from some states, in order."""
    edge = policy[on_the_way(mdp, policy, first_states)]
    stitch = mdp.stitch[edge[edge != NO_EDGE]]
    return np.unique(stitch[stitch != NO_STITCH])


def lengths(mdp: TabularMDP) -> Int[np.ndarray, "C"]:
    """How many actions each stitch has; 0 for those that were pruned."""
    return np.bincount(mdp.stitch[mdp.stitch != NO_STITCH], minlength=mdp.stitch_count)


def _steps_that_count(mdp: TabularMDP) -> int:
    """After which little is left to come; no more than stitches are looked for on."""
    return min(math.ceil(math.log(NEGLIGIBLE) / math.log(mdp.gamma)), FAR)


def _edges(mdp: TabularMDP, used: Int[np.ndarray, "U"], length: Int[np.ndarray, "U"]) -> Int[np.ndarray, "U K"]:
    """The edges of some stitches in their order, the last one repeated beyond a stitch's length."""
    edge = np.flatnonzero(np.isin(mdp.stitch, used))
    edge = edge[np.argsort(mdp.stitch[edge], kind="stable")]  # imagined states are numbered along their stitch
    first = np.searchsorted(mdp.stitch[edge], used)
    step = np.minimum(np.arange(int(length.max())), length[:, None] - 1)
    return edge[first[:, None] + step]


def _anchors(mdp: TabularMDP, policy: TabularPolicy, most: int, rng: np.random.Generator) -> Int[np.ndarray, "n"]:
    """The starts, and as many other states on the policy's way as there may be."""
    others = np.setdiff1d(on_the_way(mdp, policy, mdp.starts), mdp.starts)
    room = max(most - len(mdp.starts), 0)
    if len(others) > room:
        others = rng.choice(others, room, replace=False)
    return np.concatenate([mdp.starts, others])
