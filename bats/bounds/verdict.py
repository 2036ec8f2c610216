"""Deploy or hold: what the bounds say about putting a policy to use, in one struct and in words."""

from __future__ import annotations

from dataclasses import dataclass

from bats.bounds.sandwich import ROUNDING, Bounds
from bats.errors import SettingError

LEAST_COVERAGE = 0.9
"""share of the start weight that must lie within the data"""


@dataclass(frozen=True)
class Verdict:
    """Whether to deploy a policy, on what grounds, and if not, why not."""

    lower: float
    """mean lower bound at the starts"""
    upper: float
    width: float
    """distance of the two as a share of the range of all values"""
    logged_value: float
    """what the logged behaviour earned from the starts, discounted"""
    share_on_stitches: float
    """share of the lower bound, counted from the floor, that rests on stitched edges"""
    coverage: float
    """share of the start weight that lies within the data"""
    reasons: tuple[str, ...]
    """why it is better to hold; none if there is nothing against it"""

    @property
    def deploy(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        return "deploy" if self.deploy else " ".join(("hold:", *self.reasons))


def verdict(
    bounds: Bounds,
    *,
    logged_value: float,
    coverage: float,
    share_on_stitches: float | None = None,
    unknown: tuple[str, ...] = (),
) -> Verdict:
    """Deploy if the lower bound at the starts exceeds the logged value and the starts lie within the data; else hold.

    `coverage` is the caller's to measure: only they know where episodes will start. A clone takes no stitches itself;
    `share_on_stitches` is then that of the graph's policy, and where it is None the bounds' own. `unknown` says in
    words why nothing could be known, where that is so: one more reason to hold, and the first.
    """
    if not 0 <= coverage <= 1 + ROUNDING:
        raise SettingError(f"`coverage` must be a share from 0 to 1; got {coverage}.")
    lower, upper = bounds.start_lower, bounds.start_upper
    more = logged_value + ROUNDING * max(1.0, abs(logged_value))
    reasons = list(unknown)
    if not lower > more:
        at_best = (
            f"It may earn up to {upper:.4g}, but that is not certain."
            if upper > more
            else f"Even its upper bound, {upper:.4g}, is no more."
        )
        reasons.append(
            f"The policy's lower bound at the starts, {lower:.4g}, does not exceed what the log earned, "
            f"{logged_value:.4g}. {at_best}"
        )
    if coverage < LEAST_COVERAGE:
        reasons.append(
            f"Only {coverage:.1%} of the start weight lies within the data; {LEAST_COVERAGE:.0%} is asked for."
        )
    share = bounds.share_on_stitches if share_on_stitches is None else share_on_stitches
    return Verdict(lower, upper, bounds.width, logged_value, share, min(coverage, 1.0), tuple(reasons))
