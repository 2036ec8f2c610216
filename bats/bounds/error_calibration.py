"""How far the claimed errors of plans can be trusted, measured on rows that nothing else has seen.

Stretches of held-out rows are taken for plans: the model follows their actions and claims an error, as it does for a
stitch, in what the value is where they end and in what they earn. What truly happened is known, so the ratio of true to
claimed error is too. Windows that no stitch would have been made of, as they claim to end farther off than the
tolerance, are left out.

A walk of the policy takes many stitches, and what its bounds rest on is the sum of their discounted errors. So a walk's
claims are drawn a ratio each, and the factor is what covers the drawn sum for the asked share of walks. That every
claim be true by itself would ask for far more: one stretch in a hundred that meets a wall would set the factor of all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.stats import rankdata

from bats.bounds.error_estimates import Evidence, Factors
from bats.errors import SettingError
from bats.model.ensemble import unroll
from bats.model.fit import HeldOut

WINDOWS = 10_000
"""most windows that are followed"""
DRAWS = 5_000
"""times that a walk is drawn, with a ratio for each of its plans"""


@dataclass(frozen=True, eq=False)
class Stakes:
    """What rests on the claims of the plans of some walks: each claim, discounted, or 0 beyond a walk's plans."""

    value: Float[np.ndarray, "n J"]
    reward: Float[np.ndarray, "n J"]

    @classmethod
    def of_plans(
        cls,
        walker: Int[np.ndarray, "m"],
        plan: Int[np.ndarray, "m"],
        value: Float[np.ndarray, "m"],
        reward: Float[np.ndarray, "m"],
        *,
        walks: int,
    ) -> Stakes:
        """From what rests on each time that a walker makes a plan. A plan made again is as wrong as it was before."""
        pairs, which = np.unique(np.stack([walker, plan]), axis=1, return_inverse=True)
        column = np.arange(pairs.shape[1]) - np.searchsorted(pairs[0], pairs[0])
        stakes = np.zeros((2, walks, int(column.max(initial=-1)) + 1))
        for part, each in zip(stakes, (value, reward), strict=True):
            part[pairs[0], column] = np.bincount(which.ravel(), weights=each, minlength=pairs.shape[1])
        return cls(*stakes)


@dataclass(frozen=True, eq=False)
class Reliability:
    """True errors of plans over the claimed ones, plan by plan."""

    value: Float[np.ndarray, "W"]
    """of the value where each ends"""
    reward: Float[np.ndarray, "W"]
    """of what it earns"""

    def factors(self, confidence: float, stakes: Stakes, *, seed: int) -> Factors:
        """What both kinds of claims must be multiplied by so that they cover what is wrong all along a walk.

        Both are the same quantile of their walks' ratios, the least for which enough walks keep within both. One more
        window than were seen is taken to be wrong without bound, so factors are infinite where windows are too few.
        """
        if not 0 < confidence < 1:
            raise SettingError(f"A confidence lies strictly between 0 and 1; got {confidence}.")
        count, rng = len(self.value), np.random.default_rng([seed, 10])
        at_stake = np.flatnonzero((stakes.value + stakes.reward).any(axis=1))
        if count == 0:
            return Factors(math.inf, math.inf, count)
        if len(at_stake) == 0:  # nothing is claimed, so nothing needs covering
            return Factors(0.0, 0.0, count)
        walk = rng.choice(at_stake, DRAWS)
        window = rng.integers(count + 1, size=(DRAWS, stakes.value.shape[1]))
        value = _covering(stakes.value[walk], np.append(self.value, np.inf)[window])
        reward = _covering(stakes.reward[walk], np.append(self.reward, np.inf)[window])
        place = np.maximum(rankdata(value, "min"), rankdata(reward, "min"))
        within = int(np.sort(place)[math.ceil(confidence * DRAWS) - 1]) - 1
        return Factors(float(np.sort(value)[within]), float(np.sort(reward)[within]), count)


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


def _covering(stake: Float[np.ndarray, "n J"], ratio: Float[np.ndarray, "n J"]) -> Float[np.ndarray, "n"]:
    """What each walk's claims would have to be multiplied by, if every one were wrong by its ratio."""
    wrong = np.multiply(stake, ratio, out=np.zeros_like(stake), where=stake > 0).sum(axis=1)
    return _ratios(wrong, stake.sum(axis=1))


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
