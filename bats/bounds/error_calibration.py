"""Calibrating error estimates on held-out rows that nothing else has used.

Windows of consecutive held-out rows serve as plans: the model unrolls their actions and its error is estimated as for a
stitch. What truly happened is known, so the ratio of true to estimated error is too. Windows whose estimated end error
exceeds the tolerance are left out, since no stitch would have been made of them.

A rollout of the policy takes many stitches, and its bounds rest on the sum of their discounted errors. So each stitch
of a rollout is given a random ratio, and the factor is what covers the resulting sum for the stated share of rollouts.
Covering every single stitch would take far more: one window in a hundred that hits a wall would set the factor for all.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import rankdata

from bats.arrays import Indices
from bats.bounds.certificate import CalibrationFactors
from bats.bounds.error_estimates import ErrorEstimator
from bats.errors import SettingError
from bats.model.ensemble import unroll_batches
from bats.model.held_out import HeldOut
from bats.streams import Stream, generator

MIN_FACTOR = 2.5
"""smallest factor for value differences. Plans are selected by the model, held-out rows are not, and errors accumulate
from plan to plan, so ratios measured on held-out rows are too optimistic"""
MAX_WINDOWS = 4_000
DRAWS = 5_000
"""random rollouts, each with a ratio for each of its plans"""

DiscountedErrors = Float[np.ndarray, "2 rollouts plans"]
"""the estimated errors of value and of reward of the plans of some rollouts, discounted; 0 beyond a rollout's plans"""
ErrorRatios = Float[np.ndarray, "2 windows"]
"""true over estimated errors of value and of reward, window by window"""


def calibration_factors(estimator: ErrorEstimator, lengths: Indices, errors: DiscountedErrors) -> CalibrationFactors:
    """The factors for plans of such lengths whose errors add up so: at least `MIN_FACTOR` for values, 1 for rewards."""
    ratios, confidence = measure_ratios(estimator, lengths), estimator.settings.confidence
    factors = covering_factors(ratios, errors, confidence, seed=estimator.seed)
    return replace(factors, value=max(factors.value, MIN_FACTOR), reward=max(factors.reward, 1.0))


def discounted_errors(
    rollout: Int[np.ndarray, "m"],
    plan: Int[np.ndarray, "m"],
    value: Float[np.ndarray, "m"],
    reward: Float[np.ndarray, "m"],
    *,
    rollouts: int,
) -> DiscountedErrors:
    """From the errors of each time that a rollout takes a plan. A plan taken again is wrong in the same way."""
    pairs, which = np.unique(np.stack([rollout, plan]), axis=1, return_inverse=True)
    column = np.arange(pairs.shape[1]) - np.searchsorted(pairs[0], pairs[0])
    errors = np.zeros((2, rollouts, int(column.max(initial=-1)) + 1))
    for table, part in zip(errors, (value, reward), strict=True):
        table[pairs[0], column] = np.bincount(which.ravel(), weights=part, minlength=pairs.shape[1])
    return errors


def covering_factors(
    ratios: ErrorRatios, errors: DiscountedErrors, confidence: float, *, seed: int
) -> CalibrationFactors:
    """The factors with which the estimates cover the summed error of the stated share of rollouts.

    Both are the same quantile of their ratios, the smallest for which enough rollouts keep within both. Conformal
    correction: one extra window with an infinite error is added, so with too few windows the factors are infinite.
    """
    if not 0 < confidence < 1:
        raise SettingError(f"`confidence` must be strictly between 0 and 1; got {confidence}.")
    count, rng = ratios.shape[1], generator(seed, Stream.ERROR_FACTORS)
    if count == 0:
        return CalibrationFactors(math.inf, math.inf, count)
    # the share is one of the rollouts that take a plan, which is stricter than one of all rollouts
    with_errors = np.flatnonzero(errors.any(axis=(0, 2)))
    if len(with_errors) == 0:  # the rollouts take no plan, so nothing needs covering
        return CalibrationFactors(0.0, 0.0, count)
    drawn = errors[:, rng.choice(with_errors, DRAWS)]
    window = rng.integers(count + 1, size=drawn.shape[1:])
    ratio = np.append(ratios, [[np.inf], [np.inf]], axis=1)[:, window]
    # the factors that cover each rollout's error, if every estimate is wrong by its ratio
    true = np.multiply(drawn, ratio, out=np.zeros_like(drawn), where=drawn > 0).sum(axis=2)
    factors = _ratio(true, drawn.sum(axis=2))
    rank = rankdata(factors, "min", axis=1).max(axis=0)
    within = int(np.sort(rank)[math.ceil(confidence * DRAWS) - 1]) - 1
    value, reward = np.sort(factors, axis=1)[:, within].tolist()
    return CalibrationFactors(value, reward, count)


def measure_ratios(estimator: ErrorEstimator, lengths: Int[np.ndarray, "C"]) -> ErrorRatios:
    """Unrolls held-out windows of the given lengths and compares what happened with the estimates."""
    rows, embed = estimator.calibration_rows, estimator.value_metric.embed
    first, length = held_out_windows(rows, lengths, generator(estimator.seed, Stream.HELD_OUT_WINDOWS))
    if len(first) == 0:
        return np.zeros((2, 0))
    acting = np.arange(int(length.max())) < length[:, None]
    row = first[:, None] + np.minimum(np.arange(acting.shape[1]), length[:, None] - 1)
    source = rows.observations[first]
    visited, rewards = unroll_batches(estimator.context.dynamics, source, rows.actions[row], length)
    reward, end = rewards.mean(axis=0), visited[:, :, -1].mean(axis=0)
    estimates = estimator.estimate(visited, np.abs(rewards - reward).max(axis=0), source, end, length)
    true_end = rows.next_observations[row[:, -1]].astype(np.float32)
    value_error = np.linalg.norm((np.asarray(embed(end)) - np.asarray(embed(true_end))).astype(np.float64), axis=1)
    reward_error = np.abs(np.where(acting, rows.rewards[row] - reward, 0.0).sum(axis=1))
    usable = np.isfinite(estimates.end) & (estimates.end < estimator.tolerance)
    estimated = np.stack([estimates.value, estimates.reward.sum(axis=1)])
    return _ratio(np.stack([value_error, reward_error])[:, usable], estimated[:, usable])


def held_out_windows(
    rows: HeldOut, lengths: Int[np.ndarray, "C"], rng: np.random.Generator
) -> tuple[Int[np.ndarray, "W"], Int[np.ndarray, "W"]]:
    """First rows and lengths of windows within segments.

    Lengths are drawn from the given ones; those longer than every segment become the longest that fits.
    """
    count = len(rows.rewards)
    if count == 0 or len(lengths) == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    left = np.searchsorted(rows.segment, rows.segment, side="right") - np.arange(count)
    first = np.tile(np.arange(count), MAX_WINDOWS // count + 1)
    length = np.minimum(rng.choice(lengths, len(first)), left.max()).astype(np.int64)
    windows = np.unique(np.column_stack([first, length])[length <= left[first]], axis=0)
    windows = windows if len(windows) <= MAX_WINDOWS else rng.choice(windows, MAX_WINDOWS, replace=False)
    return windows[:, 0], windows[:, 1]


def _ratio(true: Float[np.ndarray, "2 n"], estimated: Float[np.ndarray, "2 n"]) -> Float[np.ndarray, "2 n"]:
    """0 where nothing was wrong, even if nothing was estimated."""
    with np.errstate(divide="ignore"):
        return np.divide(true, estimated, out=np.zeros(true.shape), where=true > 0)
