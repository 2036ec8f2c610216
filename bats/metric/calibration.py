"""A learned metric, stretched until it bounds differences of value: |V(s) - V(t)| <= d(s, t) for most pairs.

Pairs are of states that the metric was not fitted to, and of two kinds:

    random      any two of them
    near        one and the nearest others of them, by their standardised numbers

A stitch lands beside its target, so it is near pairs that a bound on its error rests on. The stated share holds for
each kind by itself on the states that calibrate, and about so on others: those that test are there to tell.

One number stretches all distances and nothing is added to them, so equal states stay at distance 0. A pair of
different states with equal values is bounded by any distance. One whose values differ needs its own distance to
be there: where both differences are tiny the ratio of the two decides as it does elsewhere, and differences of value
below rounding count as none. States that the metric cannot tell apart though their values differ are never bounded;
should they make up more than what may fail, that is an error and not a margin of infinity.
"""

from __future__ import annotations

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int
from scipy.spatial import cKDTree

from bats.errors import DataError, SettingError
from bats.metric.bisimulation import BisimulationMetric
from bats.metric.policy_steps import Part, Transitions

PAIRS = 100_000
"""most pairs of a kind"""
NEIGHBOURS = 4
"""nearest others that a state is paired with"""
ROUNDING = 1e-9
"""a difference of values below this, relative to the greatest value, is none"""

Pairs = Int[np.ndarray, "pairs 2"]


def calibrated(
    metric: BisimulationMetric,
    transitions: Transitions,
    values: Float[np.ndarray, "n"],
    *,
    share: float = 0.99,
    seed: int,
) -> BisimulationMetric:
    """The metric with distances stretched by the least factor that bounds `share` of the pairs of each kind.

    `values` are those of the same policy in the states of `transitions`. The factor may be below 1: a metric whose
    distances are needlessly long shrinks.
    """
    if not 0 < share < 1:
        raise SettingError(f"`share` must lie between 0 and 1; got {share}.")
    if len(values) != len(transitions):
        raise SettingError(f"There must be {len(transitions)} values, one a state; got {len(values)}.")
    kinds = held_out_pairs(metric, transitions, "calibrate", seed=seed)
    needed = []
    for kind, pairs in kinds.items():
        distance, gap = pair_distances(metric, transitions, pairs), pair_gaps(values, pairs)
        unseen = np.where(gap > 0, np.inf, 0.0)  # what no factor can mend
        ratio = np.divide(gap, distance, out=unseen, where=distance > 0)
        least = float(np.quantile(ratio, share, method="higher"))
        if not np.isfinite(least):
            apart = f"{np.mean(np.isinf(ratio)):.1%} of the {kind} pairs at distance 0"
            raise DataError(f"a metric that tells states of different value apart in {share:.1%} of pairs", apart)
        needed.append(least)
    factor = max(needed)
    if factor == 0:  # all values are the same, and any distance will do
        return metric
    margin = np.asarray(metric.margin * factor, dtype=np.float32)
    return eqx.tree_at(lambda whole: whole.margin, metric, np.nextafter(margin, np.float32(np.inf)))


def held_out_pairs(metric: BisimulationMetric, transitions: Transitions, part: Part, *, seed: int) -> dict[str, Pairs]:
    """Pairs of rows of one part of the metric's own split, by kind."""
    rows = metric.split.rows(transitions.states, part)
    if len(rows) <= NEIGHBOURS:
        expected = f"more than {NEIGHBOURS} states in the part that is to {part}"
        raise DataError(expected, f"{len(rows)} of {len(transitions)}", hint="Hold out a larger share.")
    rng = np.random.default_rng([seed, 11])
    anchors = rng.permutation(len(rows))[: PAIRS // NEIGHBOURS]
    standardised = (transitions.states[rows] - metric.mean) / metric.deviation
    nearest = cKDTree(standardised).query(standardised[anchors], k=NEIGHBOURS + 1)[1]
    near = np.stack([np.repeat(anchors, NEIGHBOURS + 1), nearest.ravel()], axis=1)
    return {"random": rows[_drawn(len(rows), rng)], "near": rows[near[near[:, 0] != near[:, 1]]]}


def pair_distances(metric: BisimulationMetric, transitions: Transitions, pairs: Pairs) -> Float[np.ndarray, "pairs"]:
    """The learned distance of each pair."""
    rows, place = np.unique(pairs, return_inverse=True)
    first, second = np.moveaxis(metric.embed(transitions.states[rows])[place.reshape(pairs.shape)], 1, 0)
    return np.linalg.norm(first.astype(np.float64) - second, axis=1)


def pair_gaps(values: Float[np.ndarray, "n"], pairs: Pairs) -> Float[np.ndarray, "pairs"]:
    """The difference of values of each pair, 0 where it is rounding."""
    gap = np.abs(values[pairs[:, 0]] - values[pairs[:, 1]])
    return np.where(gap > ROUNDING * np.abs(values).max(initial=0.0), gap, 0.0)


def _drawn(count: int, rng: np.random.Generator) -> Pairs:
    """All pairs of so many, or as many as are wanted."""
    if count * (count - 1) // 2 <= PAIRS:
        return np.stack(np.triu_indices(count, 1), axis=1)
    first = rng.integers(0, count, PAIRS)
    return np.stack([first, (first + rng.integers(1, count, PAIRS)) % count], axis=1)
