"""Choosing the penalty and the tolerance of the finished graph by the lower bound of its policy.

How much a stitch's error should cost, and how much of it is too much, depends on the task, and nothing may be played to
find out. On the finished graph another answer costs one solve. So several are solved, every policy is bounded from
below with the same error estimates, factors and metric, and the best is taken. These bounds only compare: the chosen
policy is certified afterwards with a metric of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bats.arrays import Progress, no_progress
from bats.bounds.certificate import CalibrationFactors, Option
from bats.bounds.error_estimates import ErrorEstimator
from bats.bounds.graph_policy import bound_graph, estimate_stitches, graph_factors, used_stitches
from bats.config import Config
from bats.errors import DataError
from bats.graph.mdp import TabularMDP
from bats.graph.relabel import final_graph
from bats.graph.solve import policy_iteration
from bats.planning.context import PlanningContext


def rank_options(
    stitched: TabularMDP,
    options: Sequence[Option],
    context: PlanningContext,
    config: Config,
    *,
    penalty_unit: float,
    seed: int,
    progress: Progress = no_progress,
) -> tuple[Option, ...]:
    """The options with their lower bounds, best first. Their penalties are in `penalty_unit` of reward.

    The metric is that of the first option's policy, and the factors are the largest that any option needs. Where the
    log is too small for a metric, the first option is taken.
    """
    solved = []
    for option in options:
        mdp = final_graph(stitched, penalty=option.penalty * penalty_unit, tolerance=option.tolerance)
        solution = policy_iteration(mdp, dead_end_value=config.stitch.dead_end_value)
        solved.append((replace(option, stitches=mdp.kept_stitches), solution))
    first_option, first_solution = solved[0]
    try:
        estimator = ErrorEstimator.of(first_solution, context, config, seed=seed, progress=progress)
    except DataError:
        return (first_option,)
    needed = [CalibrationFactors(0.0, 0.0, 0)]
    for _, solution in solved:
        used = used_stitches(solution.mdp, solution.policy, solution.mdp.starts)
        if len(used):  # a policy that keeps to the log needs none
            estimates = estimate_stitches(solution.mdp, used, estimator)
            needed.append(graph_factors(solution, used, estimates, estimator))
    factors = CalibrationFactors.largest(needed)
    ranked = []
    for option, solution in solved:
        bounds, _ = bound_graph(solution, estimator, factors=factors)
        ranked.append(replace(option, lower=bounds.start.lower))
        progress("comparing penalties and tolerances", len(ranked), len(options))
    return tuple(sorted(ranked, key=lambda option: -option.lower))  # of equals the first stays first
