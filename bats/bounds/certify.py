"""The stage of a run that says what its policy is worth at least and at most, and whether to deploy it.

A metric of value is learned from the graph policy's own walks and calibrated (`bisimulation`). With it and the held-out
rows the policy and its clone are bounded (`certificate`), and the verdict follows from the clone's bounds. Where a log
is too small for that, nothing is known but what rewards allow, and that is what the certificate then says.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import numpy as np
from jaxtyping import Int

from bats.arrays import Progress, TabularPolicy, no_progress
from bats.bounds.certificate import CertificateCard, Certified, StartBounds, Trust, Worth
from bats.bounds.error_estimates import Evidence
from bats.bounds.graph_policy import CertificateConfig, certify
from bats.bounds.sandwich import Bounds, Doubts, sandwich
from bats.bounds.verdict import verdict
from bats.config import Config
from bats.data.dataset import Dataset
from bats.errors import DataError, SettingError
from bats.graph.mdp import NO_STITCH, TabularMDP
from bats.graph.solve import logged_value
from bats.metric.bisimulation import learn_bisimulation
from bats.metric.calibration import calibrated
from bats.metric.policy_steps import Transitions
from bats.model.fit import HeldOut
from bats.policy.policy import Policy
from bats.stitching.acceptance import Learned

SHARE = 0.95
"""share of held-out pairs of states whose values the metric must bound"""


def check_rewards(dataset: Dataset, config: CertificateConfig | None) -> None:
    """Complains of a reward range that the log leaves: before a model is learned, not after."""
    if config is None or config.reward_range is None:
        return
    (low, high), rewards = config.reward_range, dataset.rewards
    if not (math.isfinite(low) and math.isfinite(high) and low <= rewards.min() and rewards.max() <= high):
        raise SettingError(
            f"`certificate.reward_range` must hold all logged rewards, {rewards.min():g} to {rewards.max():g}; "
            f"got {low:g} to {high:g}."
        )


def certified(
    dataset: Dataset,
    mdp: TabularMDP,
    choice: TabularPolicy,
    clone: Policy,
    *,
    learned: Learned,
    held_out: HeldOut,
    config: Config,
    seed: int,
    progress: Progress = no_progress,
) -> Certified:
    """Bounds the graph's policy and its clone, and judges the clone. The graph's own penalties play no part in it."""
    asked = CertificateConfig() if config.certificate is None else config.certificate
    uncharged = replace(mdp, penalty=0.0)
    unknown: tuple[str, ...] = ()
    try:
        evidence = gather_evidence(uncharged, choice, learned, held_out, config, seed=seed, progress=progress)
        progress("bounding the policy", 0, 1)
        found = certify(uncharged, choice, clone, evidence, asked, seed=seed)
        progress("bounding the policy", 1, 1)
        graph, cloned = found.graph, found.clone
        factors, clone_factors = (Trust(**asdict(each)) for each in (found.factors, found.clone_factors))
        if not clone_factors.known:
            unknown = (_too_few(clone_factors.windows, asked.confidence),)
    except DataError as error:
        graph, cloned = nothing_known(uncharged, choice, asked)
        factors = clone_factors = Trust(math.inf, math.inf, 0)
        unknown = (f"It takes {error.expected} to bound the policy's value; found: {error.found}.",)
    within = clone.strangeness(mdp.states[mdp.starts]) <= 1
    said = verdict(
        cloned,
        logged_value=logged_value(dataset, gamma=mdp.gamma, dead_end_value=cloned.floor),
        coverage=float(mdp.start_weights @ within),
        share_on_stitches=graph.share_on_stitches,
        unknown=unknown,
    )
    card = CertificateCard(
        verdict=said,
        graph=Worth.of(graph),
        clone=Worth.of(cloned),
        floor=cloned.floor,
        ceiling=cloned.ceiling,
        confidence=asked.confidence,
        factors=factors,
        clone_factors=clone_factors,
    )
    return Certified(card, StartBounds.of(graph, cloned))


def gather_evidence(
    mdp: TabularMDP,
    choice: TabularPolicy,
    learned: Learned,
    held_out: HeldOut,
    config: Config,
    *,
    seed: int,
    first_states: Int[np.ndarray, "n"] | None = None,
    progress: Progress = no_progress,
) -> Evidence:
    """What bounds rest on, the metric of the policy's value included, on its way from the first states or the starts.

    `DataError` where there is too little to learn that from.
    """
    steps = Transitions.of(
        mdp,
        choice,
        from_states=mdp.starts if first_states is None else first_states,
        dead_end_value=config.stitch.dead_end_value,
    )
    metric = learn_bisimulation(steps, config.bisimulation, gamma=mdp.gamma, seed=seed, progress=progress)
    metric = calibrated(metric, steps, steps.values(), share=SHARE, seed=seed)
    planner, tolerance = config.stitch.planner, config.stitch.tolerance
    return Evidence.of(learned, held_out, metric, quantile=planner.quantile, tolerance=tolerance)


def nothing_known(mdp: TabularMDP, choice: TabularPolicy, config: CertificateConfig) -> tuple[Bounds, Bounds]:
    """Bounds that trust no stitch, and none for the clone but what rewards allow."""
    length = np.bincount(mdp.stitch[mdp.stitch != NO_STITCH], minlength=mdp.stitch_count)
    any_reward = np.full((mdp.stitch_count, int(length.max(initial=1)), 2), [-np.inf, np.inf])
    doubts = Doubts(np.full(mdp.stitch_count, np.inf), any_reward, reward_range=config.reward_range)
    graph = sandwich(mdp, doubts, policy=choice)
    lower, upper = np.full((2, mdp.state_count), [[graph.floor], [graph.ceiling]])
    return graph, replace(graph, lower=lower, upper=upper)


def _too_few(windows: int, confidence: float) -> str:
    return (
        f"Only {windows:,} stretches of held-out rows could be held against the model, too few to be right with "
        f"{confidence:.0%} all along an episode."
    )
