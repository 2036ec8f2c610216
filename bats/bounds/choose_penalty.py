"""Which penalty and tolerance the finished graph is solved with: those whose policy is sure to be worth most.

How dear a stitch's error should be, and how much of it is too much, depends on the task, and nobody may play to find
out. On the finished graph another answer costs one solve. So some are solved, each one's policy is bounded from below
by one yardstick, the same claims, factors and metric of value for all (`certificate`), and the best is taken. The
yardstick compares: what the chosen policy is worth at least is certified afterwards, with a metric of its own.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from bats.arrays import Progress, TabularPolicy, no_progress
from bats.bounds.certify import gather_evidence
from bats.bounds.error_estimates import Factors
from bats.bounds.graph_policy import CertificateConfig, bound_graph, graph_factors, stitch_claims, used_stitches
from bats.config import Config
from bats.errors import DataError
from bats.graph.mdp import TabularMDP
from bats.graph.pricing import finished_graph
from bats.graph.relabel import stitch_errors
from bats.graph.solve import policy_iteration
from bats.model.fit import HeldOut
from bats.stitching.acceptance import Learned
from bats.stitching.records import Option


def options(config: Config) -> list[tuple[float, float | None]]:
    """The penalties and tolerances to choose between, none twice, those of the run itself first."""
    penalties = dict.fromkeys((config.penalty, *config.choice.penalties))
    tolerances = dict.fromkeys((config.kept_within, *config.choice.tolerances))
    return list(product(penalties, tolerances))


def judged_options(
    stitched: TabularMDP,
    step_price: float,
    learned: Learned,
    held_out: HeldOut,
    config: Config,
    *,
    seed: int,
    progress: Progress = no_progress,
) -> tuple[Option, ...]:
    """All options with the lower bounds of their policies at the starts, the best first.

    `step_price` is what a penalty of 1 is in rewards. The metric of value is that of the first option's policy, and the
    factors are the largest that any option needs. Where a log is too small for a metric, the first option stands.
    """
    asked = CertificateConfig() if config.certificate is None else config.certificate
    wanted = options(config)
    solved = partial(_solved, stitched, step_price, dead_end_value=config.stitch.dead_end_value)
    first, policy = solved(*wanted[0])
    try:
        evidence = gather_evidence(first, policy, learned, held_out, config, seed=seed, progress=progress)
    except DataError:
        return (Option(*wanted[0], _stitches(first), -math.inf),)
    needed = []
    for each in wanted:
        mdp, policy = solved(*each)
        used = used_stitches(mdp, policy, mdp.starts)
        if len(used):  # whoever keeps to the log needs none
            claims = stitch_claims(mdp, used, evidence)
            needed.append(graph_factors(mdp, policy, used, claims, evidence, asked, seed=seed))
    factors = Factors(
        *(max((getattr(one, kind) for one in needed), default=0) for kind in ("value", "reward", "windows"))
    )
    found = []
    for each in wanted:
        mdp, policy = solved(*each)
        bounds, _ = bound_graph(mdp, policy, evidence, asked, seed=seed, factors=factors)
        found.append(Option(*each, _stitches(mdp), bounds.start_lower))
        progress("choosing a penalty and a tolerance", len(found), len(wanted))
    return tuple(sorted(found, key=lambda option: -option.lower))  # of equals the first stays first


def _solved(
    stitched: TabularMDP, step_price: float, penalty: float, tolerance: float | None, *, dead_end_value: float
) -> tuple[TabularMDP, TabularPolicy]:
    """The graph without penalties, and the policy that is best with them."""
    mdp = finished_graph(stitched, penalty=penalty * step_price, tolerance=tolerance)
    return replace(mdp, penalty=0.0), policy_iteration(mdp, dead_end_value=dead_end_value).policy


def _stitches(mdp: TabularMDP) -> int:
    return int(np.isfinite(stitch_errors(mdp)).sum())
