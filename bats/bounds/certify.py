"""The stage of a run that bounds its policies and decides whether to deploy the clone.

A bisimulation metric is learned from the rollouts of the graph's policy and calibrated. With it and the held-out rows
the graph's policy and clones are bounded, and the verdict on a clone follows from its bounds. Where a log is too small
for that, the bounds are all that rewards allow, and the certificate says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from bats.arrays import Progress, no_progress
from bats.bounds.certificate import CalibrationFactors, Certificate, StartBounds, reasons_to_hold
from bats.bounds.cloned_policy import CloneRollouts, model_return
from bats.bounds.error_calibration import MIN_FACTOR
from bats.bounds.error_estimates import ErrorEstimator
from bats.bounds.graph_policy import bound_graph, unknown_errors
from bats.bounds.sandwich import ErrorBounds, GraphBounds, ValueBounds, sandwich
from bats.config import CertificateConfig, Config
from bats.errors import DataError
from bats.graph.mdp import TabularMDP
from bats.graph.solve import Solution, possible_rewards, smallest_and_largest
from bats.planning.context import PlanningContext
from bats.policy.files import policy_checksum
from bats.policy.policy import Policy
from bats.streams import Stream, generator

MODEL_ROLLOUTS = 256
"""rollouts in the model that show what a policy would earn if the model were right"""


@dataclass(frozen=True, eq=False)
class CloneBounds:
    """What is known of a clone."""

    bounds: ValueBounds
    factors: CalibrationFactors
    comparable_lower: float
    problem: str
    """why the bounds say nothing; empty if they say something"""


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
    try:
        estimator = ErrorEstimator.of(solution, context, config, seed=seed, progress=progress)
    except DataError as error:
        # no stitch is trusted, and of the clones only what rewards allow is known
        graph = sandwich(mdp, ErrorBounds(*unknown_errors(mdp), settings.reward_range), solution.policy)
        graph_factors = CalibrationFactors(math.inf, math.inf, 0)
        problem = f"Bounds cannot be computed: expected {error.expected}, found {error.found}."
        found = dict.fromkeys(clones, _nothing_known(mdp, graph, problem))
    else:
        progress("computing bounds", 0, 1 + len(clones))
        graph, graph_factors = bound_graph(solution, estimator)
        found = _bound_clones(solution, clones, estimator, graph, progress)
    at = mdp.starts
    drawn = generator(seed, Stream.MODEL_ROLLOUTS).choice(at, MODEL_ROLLOUTS, p=mdp.start_weights)
    in_model = partial(
        model_return,
        starts=mdp.states[drawn],
        dynamics=context.dynamics,
        metric=context.metric,
        gamma=mdp.gamma,
        reward_range=smallest_and_largest(*possible_rewards(mdp, settings.reward_range)),
    )
    certificates = {}
    for name, clone in clones.items():
        known, bounds = found[name], found[name].bounds
        coverage = float(mdp.start_weights @ (clone.support_distance(mdp.states[at]) <= 1))
        reasons = reasons_to_hold(bounds, logged_value=logged_value, coverage=coverage)
        ends = (values[at] for values in (graph.lower, graph.upper, bounds.lower, bounds.upper))
        certificates[name] = Certificate(
            reasons=(known.problem, *reasons) if known.problem else reasons,
            clone=bounds.start,
            graph=graph.start,
            logged_value=logged_value,
            coverage=min(coverage, 1.0),
            share_on_stitches=graph.share_on_stitches,
            floor=graph.floor,
            ceiling=graph.ceiling,
            confidence=settings.confidence,
            graph_factors=graph_factors,
            clone_factors=known.factors,
            in_model=in_model(clone),
            comparable_lower=known.comparable_lower,
            policy=policy_checksum(clone),
            at_starts=StartBounds(at, mdp.start_weights, *ends),
        )
    return certificates


def _nothing_known(mdp: TabularMDP, graph: GraphBounds, problem: str) -> CloneBounds:
    """Of a clone of which only the floor and the ceiling are known."""
    lower, upper = (np.full(mdp.state_count, value) for value in (graph.floor, graph.ceiling))
    bounds = ValueBounds(lower, upper, graph.floor, graph.ceiling, mdp.starts, mdp.start_weights)
    return CloneBounds(bounds, CalibrationFactors(math.inf, math.inf, 0), graph.floor, problem)


def _bound_clones(
    solution: Solution,
    clones: Mapping[str, Policy],
    estimator: ErrorEstimator,
    graph: GraphBounds,
    progress: Progress,
) -> dict[str, CloneBounds]:
    """Each clone with its own factors, and with factors that all of them share."""
    rollouts, limits = {}, {"floor": graph.floor, "ceiling": graph.ceiling}
    for number, (name, clone) in enumerate(clones.items(), 1):
        progress("computing bounds", number, 1 + len(clones))
        rollouts[name] = CloneRollouts.of(solution, clone, estimator)
    factors = {name: of_clone.factors() for name, of_clone in rollouts.items()}
    # where no factors are known, the smallest ones still compare
    known = [one for one in factors.values() if one.known] or [CalibrationFactors(MIN_FACTOR, 1.0, 0)]
    shared, found = CalibrationFactors.largest(known), {}
    for name, own in factors.items():
        bounds, comparable = (rollouts[name].bounds(by, **limits) for by in (own, shared))
        few = f"Only {own.windows:,} windows of held-out rows could be compared with the model. These are too few "
        few += f"for {estimator.settings.confidence:.0%} confidence; use a larger log."
        found[name] = CloneBounds(bounds, own, comparable.start.lower, "" if own.known else few)
    progress("computing bounds", 1 + len(clones), 1 + len(clones))
    return found
