"""Estimates of the model's error along a plan, from its members' disagreement and from rows that it never saw.

An estimate adds up two parts: how far most members end from where the plan should end, and how wrong the model usually
is on held-out rows near the plan, summed over its steps. It is made in the metric that stitches are accepted by, in
units of value (by a bisimulation metric), and for the rewards. Estimates times calibration factors
(`error_calibration`) are taken as bounds on the error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import cKDTree

from bats.arrays import Metric, Progress, no_progress
from bats.config import CertificateConfig, Config
from bats.graph.solve import Solution
from bats.metric.bisimulation import learn_bisimulation
from bats.metric.calibration import calibrate
from bats.metric.policy_steps import PolicySteps
from bats.model.held_out import HeldOut, LocalErrors, prediction_errors
from bats.planning.context import PlanningContext
from bats.planning.planner import end_error

SHARE = 0.95
"""share of held-out pairs of states whose value difference the metric must bound"""
RESOLUTION = 1e-3
"""smallest estimate, as a share of the range of rewards"""


@dataclass(frozen=True, eq=False)
class ErrorEstimates:
    """The estimated errors of plans."""

    end: Float[np.ndarray, "C"]
    """end error in the metric that stitches are accepted by"""
    value: Float[np.ndarray, "C"]
    """value difference at the end"""
    reward: Float[np.ndarray, "C K"]
    """reward error of each step; 0 beyond a plan's length"""


@dataclass(frozen=True, eq=False)
class ErrorEstimator:
    """What estimates are made from, and the rows that calibrate them."""

    context: PlanningContext
    value_metric: Metric
    """bounds value differences"""
    local: LocalErrors
    """one KD-tree of held-out rows with three errors each: end error, value difference, reward error"""
    calibration_rows: HeldOut
    """rows that nothing else uses, but for the choice of a penalty"""
    tolerance: float
    """largest end error of a plan that is relied on"""
    resolution: float
    """smallest estimate of a value difference or a reward error"""
    settings: CertificateConfig
    seed: int

    @classmethod
    def of(
        cls,
        solution: Solution,
        context: PlanningContext,
        config: Config,
        *,
        seed: int,
        first_states: Int[np.ndarray, "n"] | None = None,
        progress: Progress = no_progress,
    ) -> ErrorEstimator:
        """With a metric of the policy's value, learned on its rollouts from the first states, by default the starts.

        `DataError` where there is too little to learn it from. The graph's own penalties play no part.
        """
        mdp, first = replace(solution.mdp, penalty=0.0), solution.mdp.starts if first_states is None else first_states
        dead_end_value = config.stitch.dead_end_value
        steps = PolicySteps.of(mdp, solution.policy, from_states=first, dead_end_value=dead_end_value)
        metric = learn_bisimulation(steps, config.bisimulation, seed=seed, progress=progress)
        metric = calibrate(metric, steps, share=SHARE, seed=seed)
        return cls.with_metric(context, metric, config, seed=seed)

    @classmethod
    def with_metric(cls, context: PlanningContext, metric: Metric, config: Config, *, seed: int) -> ErrorEstimator:
        """One half of the held-out rows makes the estimates, as it does for stitches, the other calibrates them."""
        rows, calibration_rows = context.held_out.halves()
        value, reward = prediction_errors(rows, metric), np.abs(rows.predicted_reward - rows.rewards)
        if context.local_errors is None:
            tree, end = cKDTree(np.asarray(context.metric.embed(rows.observations))), np.zeros(len(value))
        else:
            tree, end = context.local_errors.tree, context.local_errors.errors[:, 0]
        local = LocalErrors(tree, np.stack([end, value, reward], axis=1))
        settings = config.certificate or CertificateConfig()
        # where all logged rewards are equal, nothing else would cover what the reward network rounds
        rewards = np.append(context.held_out.rewards, settings.reward_range or ())
        resolution = RESOLUTION * (float(np.ptp(rewards)) or 1.0)
        return cls(context, metric, local, calibration_rows, config.stitch.tolerance, resolution, settings, seed)

    def estimate(
        self,
        visited: Float[np.ndarray, "M C K D"],
        reward_disagreement: Float[np.ndarray, "C K"],
        source: Float[np.ndarray, "C D"],
        target: Float[np.ndarray, "C D"],
        length: Int[np.ndarray, "C"],
    ) -> ErrorEstimates:
        """The errors of plans from `source` to `target` that lead the members through `visited`.

        `reward_disagreement` is how far a member's reward lies from the one that the plan counts on.
        """
        acting = np.arange(visited.shape[2]) < length[:, None]
        mean = visited.mean(axis=0)
        acted_in = np.concatenate([source[:, None], mean[:, :-1]], axis=1)
        local = self.local.along(np.asarray(self.context.metric.embed(acted_in)), length)
        ends = visited[:, :, -1]  # beyond a plan's length states stay where it ends
        end = disagreement(ends, target, self.context.metric) + local[..., 0].sum(axis=1)
        value = disagreement(ends, target, self.value_metric) + local[..., 1].sum(axis=1)
        reward = np.where(acting, np.maximum(reward_disagreement + local[..., 2], self.resolution), 0.0)
        return ErrorEstimates(end, np.maximum(value, self.resolution), reward)


def disagreement(
    ends: Float[np.ndarray, "M C D"], target: Float[np.ndarray, "C D"], metric: Metric
) -> Float[np.ndarray, "C"]:
    """The distance from the target that most members stay within."""
    difference = np.asarray(metric.embed(ends)) - np.asarray(metric.embed(target.astype(ends.dtype)))
    return end_error(np.linalg.norm(difference, axis=2).T.astype(np.float64))
