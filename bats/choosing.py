"""Which penalty and tolerance the finished graph is solved with: those whose policy is sure to be worth most.

How dear a stitch's error should be, and how much of it is too much, depends on the task, and nobody may play to find
out. On the finished graph another answer costs one solve. So some are solved, each one's policy is bounded from below
by one yardstick, the same claims, factors and metric of value for all (`certificate`), and the best is taken.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np

from bats.attempts import Learned
from bats.certificate import CertificateConfig, bound_graph
from bats.certifying import gather_evidence
from bats.config import Config
from bats.errors import DataError
from bats.mdp import TabularMDP
from bats.model import HeldOut
from bats.pricing import finished_graph
from bats.records import Option
from bats.relabel import stitch_errors
from bats.solve import policy_iteration
from bats.types import Reporter, silent


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
    report: Reporter = silent,
) -> tuple[Option, ...]:
    """All options with the lower bounds of their policies at the starts, the best first.

    `step_price` is what a penalty of 1 is in rewards. The claims of all are calibrated for the walks of the first
    option, which also has the say where nothing is known.
    """
    asked = CertificateConfig() if config.certificate is None else config.certificate
    worth, found = config.stitch.dead_end_value, []
    evidence = factors = None
    wanted = options(config)
    for number, (penalty, tolerance) in enumerate(wanted):
        mdp = finished_graph(stitched, penalty=penalty * step_price, tolerance=tolerance)
        policy = policy_iteration(mdp, dead_end_value=worth).policy
        uncharged = replace(mdp, penalty=0.0)
        if evidence is None:
            try:
                evidence = gather_evidence(uncharged, policy, learned, held_out, config, seed=seed, report=report)
            except DataError:  # a log too small to bound anything by: nothing speaks against what was asked for
                return (Option(penalty, tolerance, _stitches(mdp), -math.inf),)
        bounds, factors = bound_graph(uncharged, policy, evidence, asked, seed=seed, factors=factors)
        found.append(Option(penalty, tolerance, _stitches(mdp), bounds.start_lower))
        report("choosing a penalty and a tolerance", number + 1, len(wanted))
    return tuple(sorted(found, key=lambda option: -option.lower))  # of equals the first stays first


def _stitches(mdp: TabularMDP) -> int:
    return int(np.isfinite(stitch_errors(mdp)).sum())
