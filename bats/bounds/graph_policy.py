"""Bounds on the graph's own policy: the errors of the stitches it takes, estimated, calibrated, and put in the
sandwich.

    end value      the estimated value difference at a stitch's end, times the calibration factor
    rewards        a stitched step's reward, plus or minus its estimated error times the factor

`docs/bounds.md` says what is assumed beyond the theorem.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from bats.arrays import Indices, TabularPolicy
from bats.bounds.certificate import CalibrationFactors
from bats.bounds.error_calibration import DiscountedErrors, calibration_factors, discounted_errors
from bats.bounds.error_estimates import ErrorEstimates, ErrorEstimator
from bats.bounds.sandwich import ErrorBounds, GraphBounds, sandwich, stitch_edges
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import NO_STITCH, TabularMDP
from bats.graph.rollouts import MAX_STEPS, Rollouts, reachable, roll_out
from bats.graph.solve import Solution
from bats.model.ensemble import one_hot, unroll_batches
from bats.streams import Stream, generator

NEGLIGIBLE = 0.05
"""share of all value that lies beyond the steps whose errors count"""
ROLLOUTS = 1000
"""rollouts from the starts that show which errors add up"""


def bound_graph(
    solution: Solution,
    estimator: ErrorEstimator,
    *,
    first_states: Int[np.ndarray, "n"] | None = None,
    factors: CalibrationFactors | None = None,
) -> tuple[GraphBounds, CalibrationFactors]:
    """Bounds on the graph's policy on its rollouts from the first states, by default the starts.

    Given `factors` make the bounds of several policies comparable.
    """
    mdp = solution.mdp
    used = used_stitches(mdp, solution.policy, mdp.starts if first_states is None else first_states)
    estimates = estimate_stitches(mdp, used, estimator)
    if factors is None:
        factors = graph_factors(solution, used, estimates, estimator, first_states)
    errors = replace(error_bounds(mdp, used, estimates, factors), reward_range=estimator.settings.reward_range)
    return sandwich(mdp, errors, solution.policy), factors


def graph_factors(
    solution: Solution,
    used: Int[np.ndarray, "U"],
    estimates: ErrorEstimates,
    estimator: ErrorEstimator,
    first_states: Int[np.ndarray, "n"] | None = None,
) -> CalibrationFactors:
    """The calibration factors of the used stitches on rollouts from the first states, or from the starts."""
    mdp, rng = solution.mdp, generator(estimator.seed, Stream.GRAPH_ROLLOUTS)
    states, weights = (mdp.starts, mdp.start_weights) if first_states is None else (first_states, None)
    rollouts = roll_out(mdp, solution.policy, rng.choice(states, ROLLOUTS, p=weights), relevant_steps(mdp.gamma))
    errors = rollout_errors(mdp, rollouts, used, estimates)
    return calibration_factors(estimator, mdp.stitch_length[used], errors)


def used_stitches(mdp: TabularMDP, policy: TabularPolicy, first_states: Int[np.ndarray, "n"]) -> Int[np.ndarray, "U"]:
    """The stitches that the policy takes on its rollouts from some states, in order."""
    edge = policy[reachable(mdp, policy, first_states)]
    stitch = mdp.stitch[edge[edge != NO_EDGE]]
    return np.unique(stitch[stitch != NO_STITCH])


def estimate_stitches(mdp: TabularMDP, used: Int[np.ndarray, "U"], estimator: ErrorEstimator) -> ErrorEstimates:
    """The estimated errors of some stitches."""
    if len(used) == 0:
        return ErrorEstimates(np.zeros(0), np.zeros(0), np.zeros((0, 1)))
    edge, length = stitch_edges(mdp, used), mdp.stitch_length[used]
    source, target = mdp.states[mdp.source[edge[:, 0]]], mdp.states[mdp.target[mdp.last_edge[used]]]
    actions = one_hot(mdp.action[edge], mdp.action_count)
    visited, rewards = unroll_batches(estimator.context.dynamics, source, actions, length)
    return estimator.estimate(visited, np.abs(rewards - mdp.reward[edge]).max(axis=0), source, target, length)


def rollout_errors(mdp: TabularMDP, rollouts: Rollouts, used: Indices, estimates: ErrorEstimates) -> DiscountedErrors:
    """The errors of the stitches that some rollouts take, discounted to where the rollouts begin."""
    edge = rollouts.edge
    stitch = np.append(mdp.stitch, NO_STITCH)[edge]  # NO_EDGE, which is -1, picks the last
    from_real = np.append(mdp.source, mdp.state_count)[edge] < mdp.real_count
    rollout, step = np.nonzero((stitch != NO_STITCH) & from_real)  # the first steps of stitches
    begun = stitch[rollout, step]
    row = np.searchsorted(used, begun)
    value = mdp.gamma ** (step + mdp.stitch_length[begun]) * estimates.value[row]
    reward = mdp.gamma**step * estimates.reward[row].sum(axis=1)
    return discounted_errors(rollout, begun, value, reward, rollouts=len(edge))


def unknown_errors(mdp: TabularMDP) -> tuple[Float[np.ndarray, "C"], Float[np.ndarray, "C K 2"]]:
    """The errors at the ends and the rewards of stitches of which nothing is known."""
    longest = int(mdp.stitch_length.max(initial=1))
    return np.full(mdp.stitch_count, np.inf), np.full((mdp.stitch_count, longest, 2), [-np.inf, np.inf])


def error_bounds(mdp: TabularMDP, used: Indices, estimates: ErrorEstimates, factors: CalibrationFactors) -> ErrorBounds:
    """The estimates times the factors for some stitches; nothing is known of the others."""
    end_value, rewards = unknown_errors(mdp)
    if factors.known and len(used):
        edge = stitch_edges(mdp, used)
        end_value[used] = factors.value * estimates.value
        error = factors.reward * estimates.reward
        rewards[used, : edge.shape[1]] = mdp.reward[edge][:, :, None] + np.stack([-error, error], axis=-1)
    return ErrorBounds(end_value, rewards)


def relevant_steps(gamma: float) -> int:
    """Steps after which a negligible share of all value is left."""
    return min(math.ceil(math.log(NEGLIGIBLE) / math.log(gamma)), MAX_STEPS)
