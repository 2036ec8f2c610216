"""Calibrating a learned metric: scale it until |V(s) - V(t)| <= d(s, t) for a stated share of held-out pairs.

Pairs are of states that the metric was not fitted to, and of two kinds:

    random      any two of them
    near        a state and its nearest others, by standardised numbers

A stitch ends beside its target, so bounds on its error rest on near pairs. The stated share holds for each kind by
itself on the states that calibrate, and about so on others; the states that test show how well.

One factor scales all distances and nothing is added, so equal states stay at distance 0. The ratio |V(s) - V(t)| / d(s,
t) is used even where both are tiny; value differences below rounding count as none. States that the metric cannot tell
apart though their values differ are never bounded, and too many of them are an error rather than an infinite factor.
"""

from __future__ import annotations

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import cKDTree

from bats.errors import DataError, SettingError
from bats.metric.bisimulation import BisimulationMetric
from bats.metric.policy_steps import Part, PolicySteps
from bats.streams import Stream, generator

MAX_PAIRS = 100_000
"""of each kind"""
NEIGHBOURS = 4
"""nearest others that a state is paired with"""
ROUNDING = 1e-9
"""a value difference below this, relative to the largest value, counts as none"""

SINGLE_PRECISION = 1e-5
"""relative rounding of a distance between nearby embeddings"""

StatePairs = Int[np.ndarray, "pairs 2"]


def calibrate(metric: BisimulationMetric, steps: PolicySteps, *, share: float = 0.99, seed: int) -> BisimulationMetric:
    """The metric scaled by the smallest factor, which may be below 1, that bounds `share` of the pairs of each kind."""
    if not 0 < share < 1:
        raise SettingError(f"`share` must be between 0 and 1; got {share}.")
    factors, values = [], steps.values()
    for kind, pairs in held_out_pairs(metric, steps, "calibrate", seed=seed).items():
        distance, difference = pair_distances(metric, steps, pairs), value_differences(values, pairs)
        unbounded = np.where(difference > 0, np.inf, 0.0)
        ratio = np.divide(difference, distance, out=unbounded, where=distance > 0)
        factors.append(float(np.quantile(ratio, share, method="higher")))
        if not np.isfinite(factors[-1]):
            expected = f"a metric that separates states of different value in {share:.1%} of the {kind} held-out pairs"
            raise DataError(expected, f"distance 0 in {np.mean(np.isinf(ratio)):.1%} of these pairs")
    if max(factors) == 0:  # all values are equal, so any distance bounds them
        return metric
    # embeddings are in single precision: the pair that decides must not fall short by rounding
    margin = np.asarray(metric.margin * max(factors) * (1 + SINGLE_PRECISION), dtype=np.float32)
    return eqx.tree_at(lambda whole: whole.margin, metric, margin)


def held_out_pairs(metric: BisimulationMetric, steps: PolicySteps, part: Part, *, seed: int) -> dict[str, StatePairs]:
    """Pairs of rows from one part of the metric's own split, by kind."""
    rows = metric.split.rows(steps.states, part)
    count = len(rows)
    if count <= NEIGHBOURS:
        expected = f"more than {NEIGHBOURS} held-out states to {part} the metric"
        hint = f"The log is too small to {part} a metric; use more data."
        raise DataError(expected, f"{count} of {len(steps)} states", hint=hint)
    rng = generator(seed, Stream.METRIC_CALIBRATION)
    anchors = rng.permutation(count)[: MAX_PAIRS // NEIGHBOURS]
    standardised = (steps.states[rows] - metric.mean) / metric.std
    nearest = cKDTree(standardised).query(standardised[anchors], k=NEIGHBOURS + 1)[1]
    near = np.stack([np.repeat(anchors, NEIGHBOURS + 1), nearest.ravel()], axis=1)
    if count * (count - 1) // 2 <= MAX_PAIRS:
        random = np.stack(np.triu_indices(count, 1), axis=1)
    else:
        first = rng.integers(0, count, MAX_PAIRS)
        random = np.stack([first, (first + rng.integers(1, count, MAX_PAIRS)) % count], axis=1)
    return {"random": rows[random], "near": rows[near[near[:, 0] != near[:, 1]]]}


def pair_distances(metric: BisimulationMetric, steps: PolicySteps, pairs: StatePairs) -> Float[np.ndarray, "pairs"]:
    """The learned distance of each pair."""
    rows, index = np.unique(pairs, return_inverse=True)
    first, second = np.moveaxis(metric.embed(steps.states[rows])[index.reshape(pairs.shape)], 1, 0)
    return np.linalg.norm(first.astype(np.float64) - second, axis=1)


def value_differences(values: Float[np.ndarray, "n"], pairs: StatePairs) -> Float[np.ndarray, "pairs"]:
    """The absolute value difference of each pair, 0 where it is rounding."""
    difference = np.abs(values[pairs[:, 0]] - values[pairs[:, 1]])
    return np.where(difference > ROUNDING * np.abs(values).max(initial=0.0), difference, 0.0)
