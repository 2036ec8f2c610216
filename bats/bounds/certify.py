"""The stage of a run that bounds its policies and decides whether to deploy the clone.

A bisimulation metric is learned from the rollouts of the graph's policy and calibrated. With it and the held-out rows
the graph's policy and its clone are bounded, and the verdict follows from the clone's bounds. Where a log is too small
for that, the bounds are all that rewards allow, and the certificate says why.
"""

from __future__ import annotations

import math

import numpy as np

from bats.arrays import Progress, no_progress
from bats.bounds.certificate import CalibrationFactors, Certificate, StartBounds, reasons_to_hold
from bats.bounds.cloned_policy import bound_clone
from bats.bounds.error_estimates import ErrorEstimator
from bats.bounds.graph_policy import bound_graph, unknown_errors
from bats.bounds.sandwich import ErrorBounds, ValueBounds, sandwich
from bats.config import CertificateConfig, Config
from bats.errors import DataError
from bats.graph.solve import Solution
from bats.planning.context import PlanningContext
from bats.policy.files import policy_checksum
from bats.policy.policy import Policy


def certify(
    solution: Solution,
    clone: Policy,
    context: PlanningContext,
    config: Config,
    *,
    logged_value: float,
    seed: int,
    progress: Progress = no_progress,
) -> Certificate:
    """Bounds the graph's policy and its clone; plans are relied on within the tolerance of stitches.

    Deploy if the clone's lower bound exceeds the logged value and the starts lie within the log's support. Why nothing
    could be bounded, where that is so, is the first reason to hold.
    """
    mdp, settings = solution.mdp, config.certificate or CertificateConfig()
    unknown: tuple[str, ...] = ()
    try:
        estimator = ErrorEstimator.of(solution, context, config, seed=seed, progress=progress)
        progress("computing bounds", 0, 2)
        graph, graph_factors = bound_graph(solution, estimator)
        progress("computing bounds", 1, 2)
        cloned, clone_factors = bound_clone(solution, clone, estimator, floor=graph.floor, ceiling=graph.ceiling)
        progress("computing bounds", 2, 2)
        if not clone_factors.known:
            few = f"Only {clone_factors.windows:,} windows of held-out rows could be compared with the model"
            unknown = (f"{few}. These are too few for {settings.confidence:.0%} confidence; use a larger log.",)
    except DataError as error:
        # no stitch is trusted, and of the clone only what rewards allow is known
        graph = sandwich(mdp, ErrorBounds(*unknown_errors(mdp), settings.reward_range), solution.policy)
        lower, upper = (np.full(mdp.state_count, value) for value in (graph.floor, graph.ceiling))
        cloned = ValueBounds(lower, upper, graph.floor, graph.ceiling, mdp.starts, mdp.start_weights)
        graph_factors = clone_factors = CalibrationFactors(math.inf, math.inf, 0)
        unknown = (f"Bounds cannot be computed: expected {error.expected}, found {error.found}.",)
    at = mdp.starts
    coverage = float(mdp.start_weights @ (clone.support_distance(mdp.states[at]) <= 1))
    ends = (values[at] for values in (graph.lower, graph.upper, cloned.lower, cloned.upper))
    return Certificate(
        reasons=(*unknown, *reasons_to_hold(cloned, logged_value=logged_value, coverage=coverage)),
        clone=cloned.start,
        graph=graph.start,
        logged_value=logged_value,
        coverage=min(coverage, 1.0),
        share_on_stitches=graph.share_on_stitches,
        floor=graph.floor,
        ceiling=graph.ceiling,
        confidence=settings.confidence,
        graph_factors=graph_factors,
        clone_factors=clone_factors,
        policy=policy_checksum(clone),
        at_starts=StartBounds(at, mdp.start_weights, *ends),
    )
