"""How far the claimed errors of plans can be trusted, measured on rows that nothing else has seen.

Stretches of held-out rows are taken for plans: the model follows their actions and claims an error, as it does for a
stitch, in where they end and in what they earn. What truly happened is known, so the ratio of true to claimed error is
too. Windows that no stitch would have been made of, as their claimed error exceeds the tolerance, are left out.

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
from bats.evidence import RESOLUTION, Evidence, Factors
from bats.model import HeldOut

WINDOWS = 10_000
"""most windows that are followed"""


@dataclass(frozen=True, eq=False)
class Reliability:
    """True errors of plans over the claimed ones, plan by plan."""

    landing: Float[np.ndarray, "W"]
    """of where each ends"""
    reward: Float[np.ndarray, "W"]
    """of what it earns"""

    def factors(self, confidence: float, plans: float) -> Factors:
        """What both kinds of claims must be multiplied by so that those of so many plans are true at once.

        Both are the same quantile of their ratios, the least for which enough windows keep within both. Infinite where
        there are too few windows to say: another one exceeds the largest of W ratios with probability 1 / (W + 1).
        """
        if not (0 < confidence < 1 and plans >= 0):
            raise SettingError(f"A confidence lies strictly between 0 and 1; got {confidence} for {plans} plans.")
        count = len(self.landing)
        needed = math.ceil(confidence ** (1 / max(plans, 1.0)) * (count + 1))
        if needed > count:
            return Factors(math.inf, math.inf, count)
        place = np.maximum(rankdata(self.landing, "max"), rankdata(self.reward, "max"))
        within = int(np.sort(place)[needed - 1]) - 1
        return Factors(float(np.sort(self.landing)[within]), float(np.sort(self.reward)[within]), count)


def measure_reliability(evidence: Evidence, lengths: Int[np.ndarray, "C"], *, seed: int) -> Reliability:
    """Follows windows of unseen rows, as long as the plans in question, and compares what happened with the claims."""
    rows, learned = evidence.unseen, evidence.learned
    first, length = _windows(rows, lengths, np.random.default_rng([seed, 8]))
    if len(first) == 0:
        return Reliability(*np.zeros((2, 0)))
    acting = np.arange(int(length.max())) < length[:, None]
    row = first[:, None] + np.minimum(np.arange(acting.shape[1]), length[:, None] - 1)
    source, actions = (jnp.asarray(part, jnp.float32) for part in (rows.observations[first], rows.actions[row]))
    visited, paid = map(np.asarray, unroll(learned.dynamics, source, actions, jnp.asarray(length)))
    expected = visited.mean(axis=0)
    before = np.concatenate([rows.observations[first][:, None], expected[:, :-1]], axis=1)
    acted_in = np.asarray(learned.metric.embed(before))
    local, claimed_reward = np.zeros((2, *acting.shape))
    local[acting] = evidence.local(acted_in[acting])
    claimed = evidence.disagreement(visited[:, :, -1]) + local.sum(axis=1)
    dispute = np.abs(paid - paid.mean(axis=0)).max(axis=0)
    claimed_reward[acting] = evidence.claimed_reward(dispute[acting], acted_in[acting])
    missed = learned.metric.embed(expected[:, -1]) - learned.metric.embed(rows.next_observations[row[:, -1]])
    earned = np.where(acting, rows.rewards[row] - paid.mean(axis=0), 0.0)
    like = np.isfinite(claimed) & (claimed < evidence.tolerance)
    return Reliability(
        _ratios(np.linalg.norm(np.asarray(missed), axis=1)[like], np.maximum(claimed, RESOLUTION)[like]),
        _ratios(np.abs(earned.sum(axis=1))[like], claimed_reward.sum(axis=1)[like]),
    )


def _ratios(true: Float[np.ndarray, "W"], claimed: Float[np.ndarray, "W"]) -> Float[np.ndarray, "W"]:
    """0 where nothing was wrong, even if nothing was claimed."""
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
