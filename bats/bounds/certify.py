"""The stage of a run that bounds its policies and decides whether to deploy the clone.

A bisimulation metric is learned from the rollouts of the graph's policy and calibrated. With it and the held-out rows
the graph's policy and clones are bounded, and the verdict on a clone follows from its bounds. Where a log is too small
for that, the bounds are all that rewards allow, and the certificate says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from bats.arrays import Progress, no_progress
from bats.bounds.certificate import CalibrationFactors, Certificate, StartBounds, reasons_to_hold
from bats.bounds.cloned_policy import CloneRollouts, model_return
from bats.bounds.error_calibration import MIN_FACTOR
from bats.bounds.error_estimates import ErrorEstimator
from bats.bounds.graph_policy import bound_graph, unknown_errors
from bats.bounds.sandwich import ErrorBounds, ValueBounds, sandwich
from bats.config import CertificateConfig, Config
from bats.errors import DataError
from bats.graph.solve import Solution, possible_rewards, smallest_and_largest
from bats.planning.context import PlanningContext
from bats.policy.files import policy_checksum
from bats.policy.policy import Policy
from bats.streams import Stream, generator

MODEL_ROLLOUTS = 256
"""rollouts in the model that show what a policy would earn if the model were right"""


def certify(
    solution: Solution,
    clones: Mapping[str, Policy],
    context: PlanningContext,
    config: Config,
    *,
    logged_value: float,
    seed: int,
    progress: Progress = no_progress,
) -> dict[str, Certificate]:
    """Bounds the graph's policy and cloned policies, given by name; plans are relied on within stitches' tolerance.

    Deploy if a clone's lower bound exceeds the logged value and the starts lie within the log's support. Why nothing
    could be bounded, where that is so, is the first reason to hold.
    """
    mdp, settings = solution.mdp, config.certificate or CertificateConfig()
    total, estimator, unknown = 1 + len(clones), None, ""
    try:
        estimator = ErrorEstimator.of(solution, context, config, seed=seed, progress=progress)
        progress("computing bounds", 0, total)
        graph, graph_factors = bound_graph(solution, estimator)
    except DataError as error:
        # no stitch is trusted, and of the clones only what rewards allow is known
        graph = sandwich(mdp, ErrorBounds(*unknown_errors(mdp), settings.reward_range), solution.policy)
        graph_factors = CalibrationFactors(math.inf, math.inf, 0)
        unknown = f"Bounds cannot be computed: expected {error.expected}, found {error.found}."
    floor, ceiling, at = graph.floor, graph.ceiling, mdp.starts
    rollouts = {}
    for number, (name, clone) in enumerate(clones.items(), 1):
        progress("computing bounds", number, total)
        if estimator is not None:
            rollouts[name] = CloneRollouts.of(solution, clone, estimator)
    factors = {name: of_clone.factors() for name, of_clone in rollouts.items()}
    # where no factors are known, the smallest ones still compare
    known = [one for one in factors.values() if one.known] or [CalibrationFactors(MIN_FACTOR, 1.0, 0)]
    shared = CalibrationFactors.largest(known)
    drawn = generator(seed, Stream.MODEL_ROLLOUTS).choice(at, MODEL_ROLLOUTS, p=mdp.start_weights)
    simulate = partial(
        model_return,
        starts=mdp.states[drawn],
        dynamics=context.dynamics,
        metric=context.metric,
        gamma=mdp.gamma,
        reward_range=smallest_and_largest(*possible_rewards(mdp, settings.reward_range)),
    )
    certificates = {}
    for name, clone in clones.items():
        if estimator is None:
            lower, upper = (np.full(mdp.state_count, value) for value in (floor, ceiling))
            comparable = cloned = ValueBounds(lower, upper, floor, ceiling, at, mdp.start_weights)
            own = graph_factors
        else:
            own = factors[name]
            cloned, comparable = (rollouts[name].bounds(by, floor=floor, ceiling=ceiling) for by in (own, shared))
            few = f"Only {own.windows:,} windows of held-out rows could be compared with the model. These are too few "
            few += f"for {settings.confidence:.0%} confidence; use a larger log."
            unknown = "" if own.known else few
        coverage = float(mdp.start_weights @ (clone.support_distance(mdp.states[at]) <= 1))
        reasons = reasons_to_hold(cloned, logged_value=logged_value, coverage=coverage)
        ends = (values[at] for values in (graph.lower, graph.upper, cloned.lower, cloned.upper))
        certificates[name] = Certificate(
            reasons=(unknown, *reasons) if unknown else reasons,
            clone=cloned.start,
            graph=graph.start,
            logged_value=logged_value,
            coverage=min(coverage, 1.0),
            share_on_stitches=graph.share_on_stitches,
            floor=floor,
            ceiling=ceiling,
            confidence=settings.confidence,
            graph_factors=graph_factors,
            clone_factors=own,
            in_model=simulate(clone),
            comparable_lower=comparable.start.lower,
            policy=policy_checksum(clone),
            at_starts=StartBounds(at, mdp.start_weights, *ends),
        )
    progress("computing bounds", total, total)
    return certificates
