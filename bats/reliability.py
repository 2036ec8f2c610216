"""How far the claimed errors of plans can be trusted, measured on rows that nothing else has seen.

Stretches of held-out rows are taken for plans: the model follows their actions and claims an error, as it does for a
stitch, in what the value is where they end and in what they earn. What truly happened is known, so the ratio of true to
claimed error is too. Windows that no stitch would have been made of, as they claim to end farther off than the
tolerance, are left out.

A walk of the policy takes many stitches, and all of their claims must be true at once: with n of them each true with
probability q, all are with q^n. So a walk that is to be right with 90% needs the quantile 0.9^(1/n) of the ratios.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.stats import rankdata

from bats.dynamics import unroll
from bats.errors import SettingError
from bats.evidence import Evidence, Factors
from bats.model import HeldOut

WINDOWS = 10_000
"""most windows that are followed"""


@dataclass(frozen=True, eq=False)
class Reliability:
    """True errors of plans over the claimed ones, plan by plan."""

    value: Float[np.ndarray, "W"]
    """of the value where each ends"""
    reward: Float[np.ndarray, "W"]
    """of what it earns"""

    def factors(self, confidence: float, plans: float) -> Factors:
        """What both kinds of claims must be multiplied by so that those of so many plans are true at once.

        Both are the same quantile of their ratios, the least for which enough windows keep within both. Infinite where
        there are too few windows to say: another one exceeds the largest of W ratios with probability 1 / (W + 1).
        """
        if not (0 < confidence < 1 and plans >= 0):
            raise SettingError(f"A confidence lies strictly between 0 and 1; got {confidence} for {plans} plans.")
        count = len(self.value)
        needed = math.ceil(confidence ** (1 / max(plans, 1.0)) * (count + 1))
        if needed > count:
            return Factors(math.inf, math.inf, count)
        place = np.maximum(rankdata(self.value, "max"), rankdata(self.reward, "max"))
        within = int(np.sort(place)[needed - 1]) - 1
        return Factors(float(np.sort(self.value)[within]), float(np.sort(self.reward)[within]), count)


def measure_reliability(evidence: Evidence, lengths: Int[np.ndarray, "C"], *, seed: int) -> Reliability:
    """Follows windows of unseen rows, as long as the plans in question, and compares what happened with the claims."""
    rows, fares = evidence.unseen, evidence.value_metric.embed
    first, length = _windows(rows, lengths, np.random.default_rng([seed, 8]))
    if len(first) == 0:
        return Reliability(*np.zeros((2, 0)))
    acting = np.arange(int(length.max())) < length[:, None]
    row = first[:, None] + np.minimum(np.arange(acting.shape[1]), length[:, None] - 1)
    source, actions = (jnp.asarray(part, jnp.float32) for part in (rows.observations[first], rows.actions[row]))
    visited, paid = map(np.asarray, unroll(evidence.learned.dynamics, source, actions, jnp.asarray(length)))
    mean, aim = paid.mean(axis=0), visited[:, :, -1].mean(axis=0)
    dispute = np.abs(paid - mean).max(axis=0)
    claims = evidence.claims(visited, dispute, rows.observations[first], aim, length)
    missed = np.asarray(fares(aim)) - np.asarray(fares(rows.next_observations[row[:, -1]].astype(np.float32)))
    earned = np.where(acting, rows.rewards[row] - mean, 0.0).sum(axis=1)
    like = np.isfinite(claims.landing) & (claims.landing < evidence.tolerance)
    return Reliability(
        _ratios(np.linalg.norm(missed.astype(np.float64), axis=1)[like], claims.value[like]),
        _ratios(np.abs(earned)[like], claims.reward.sum(axis=1)[like]),
    )


def _ratios(true: Float[np.ndarray, "W"], claimed: Float[np.ndarray, "W"]) -> Float[np.ndarray, "W"]:
    """0 where nothing was wrong, even if nothing was claimed."""
    with np.errstate(divide="ignore"):
        return np.divide(true, claimed, out=np.zeros(len(true)), where=true > 0)


def _windows(
    rows: HeldOut, lengths: Int[np.ndarray, "C"], rng: np.random.Generator
) -> tuple[Int[np.ndarray, "W"], Int[np.ndarray, "W"]]:
    """First rows and lengths of windows within stretches.

    Lengths are drawn from the given ones; in place of those that are longer than every stretch stands the longest that
    fits.
    """
    count = len(rows.rewards)
    if count == 0 or len(lengths) == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    left = np.searchsorted(rows.stretch, rows.stretch, side="right") - np.arange(count)
    first = np.tile(np.arange(count), WINDOWS // count + 1)
    wanted = np.minimum(rng.choice(lengths, len(first)), left.max()).astype(np.int64)
    fits = np.unique(np.column_stack([first, wanted])[wanted <= left[first]], axis=0)
    fits = fits if len(fits) <= WINDOWS else rng.choice(fits, WINDOWS, replace=False)
    return fits[:, 0], fits[:, 1]
