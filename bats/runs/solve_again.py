"""A finished run solved again under another penalty, tolerance, discount or reward: in seconds, without planning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bats.graph.mdp import TabularMDP
from bats.graph.pricing import finished_graph, penalty_in_rewards
from bats.graph.relabel import RewardFunction, discounted, prune, rewarded, stitch_errors
from bats.graph.solve import Solution, policy_iteration
from bats.runs.folder import RunFolder


@dataclass(frozen=True)
class Changes:
    """What is to be otherwise than in the run; None: nothing."""

    gamma: float | None = None
    penalty: float | None = None
    """in the unit of the run's own"""
    tolerance: float | None = None
    """stitches with a larger error are dropped"""
    dead_end_value: float | None = None
    reward: RewardFunction | None = None


@dataclass(frozen=True, eq=False)
class Resolved:
    """The graph under other settings, and its solution."""

    mdp: TabularMDP
    solution: Solution
    kept: int
    """stitches within the tolerance"""


def resolve(run: RunFolder, changes: Changes) -> Resolved:
    """Solves a finished run under other settings. A penalty in steps is priced anew by the new rewards and discount."""
    facts = run.finished()
    mdp = run.charged_mdp()
    if changes.gamma is not None:
        mdp = discounted(mdp, changes.gamma)
    if changes.reward is not None:
        mdp = rewarded(mdp, changes.reward)
    dead_end_value = facts.dead_end_value if changes.dead_end_value is None else changes.dead_end_value
    penalty = facts.penalty if changes.penalty is None else changes.penalty
    log = prune(mdp, np.zeros(mdp.stitch_count, dtype=bool))
    price = penalty_in_rewards(log, penalty, facts.penalty_unit, dead_end_value=dead_end_value)
    mdp = finished_graph(
        mdp, penalty=price, tolerance=facts.tolerance if changes.tolerance is None else changes.tolerance
    )
    solution = policy_iteration(mdp, dead_end_value=dead_end_value)
    return Resolved(mdp, solution, int(np.isfinite(stitch_errors(mdp)).sum()))
