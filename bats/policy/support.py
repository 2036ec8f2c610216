"""Support: how far an observation lies from the log. Needs NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bats.errors import SettingError
from bats.networks.inference import LARGEST, single_floats

if TYPE_CHECKING:
    from jaxtyping import Float

SAMPLE = 10_000
"""logged states kept as a sample, and as many more to measure how far logged states usually lie from it"""
WITHIN = 0.99
"""share of the logged states that are within support"""
BLOCK = 64
"""observations compared with the sample at once, so that the distances stay in the cache"""
FARTHEST = 1e150
"""observations count as no farther than this, so that squares do not overflow"""


@dataclass(frozen=True, eq=False)
class Support:
    """A sample of the logged states, and how far from it other logged states usually lie."""

    sample: Float[np.ndarray, "K m"]
    """embedded by the metric"""
    weight: Float[np.ndarray, "m"]
    """of each component of a state in the metric"""
    limit: float
    """distance to the sample that 99% of other logged states keep"""

    def __post_init__(self) -> None:
        for name, rank in (("sample", 2), ("weight", 1)):
            object.__setattr__(self, name, single_floats(f"support.{name}", getattr(self, name), rank))
        if not (len(self.sample) and self.sample.shape[1] == len(self.weight) and np.all(self.weight >= 0)):
            shapes = f"{self.sample.shape} and {self.weight.shape}"
            raise SettingError(f"A support needs states, and a weight of at least 0 for each number; got {shapes}.")
        if type(self.limit) not in (int, float) or not 1 / LARGEST <= self.limit <= LARGEST:
            sizes = f"a number from {1 / LARGEST:g} to {LARGEST:g}"
            raise SettingError(f"The limit of a support must be {sizes}; got {self.limit!r:.100}.")

    def __repr__(self) -> str:
        return f"Support({len(self.sample):,} states of {len(self.weight)} numbers, limit {self.limit:g})"

    @classmethod
    def of(cls, states: Float[np.ndarray, "S m"], weight: Float[np.ndarray, "m"], rng: np.random.Generator) -> Support:
        """Draws the sample from logged states and measures with others of them how far from it the log extends."""
        if len(states) < 2:
            raise SettingError(f"The support can only be measured with at least 2 logged states; got {len(states)}.")
        kept, measured = np.array_split(rng.permutation(len(states))[: 2 * SAMPLE], 2)
        sample = (states[kept] * weight).astype(np.float32)
        limit = float(np.quantile(cls(sample, weight, 1.0).distance(states[measured]), WITHIN))
        if limit > 10 * float(np.finfo(np.float32).eps * np.abs(sample).max()):
            return cls(sample, weight, limit)
        # every state occurs many times, as in small discrete worlds: take the smallest distance between two of them
        distinct = np.unique(np.concatenate([sample, (states[measured] * weight).astype(np.float32)]), axis=0)
        gap = float(_nearest(distinct, distinct, distinct=True).min()) if len(distinct) > 1 else 1.0
        return cls(sample, weight, gap)

    def distance(self, observations: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "n"]:
        """The distance of each observation to the nearest state of the sample, in units of the metric."""
        with np.errstate(over="ignore"):
            points = np.clip(observations * self.weight.astype(np.float64), -FARTHEST, FARTHEST)
        return _nearest(points, self.sample)


def _nearest(
    points: Float[np.ndarray, "n m"], sample: Float[np.ndarray, "K m"], *, distinct: bool = False
) -> Float[np.ndarray, "n"]:
    """The distance of each point to the nearest of a sample; with `distinct`, of each sample point to another one."""
    centre = sample.mean(axis=0, dtype=np.float64)  # small numbers lose fewer digits below
    points, sample = points - centre, sample - centre
    squares = np.einsum("nd,nd->n", sample, sample)
    distance = np.empty(len(points))
    for first in range(0, len(points), BLOCK):
        block = points[first : first + BLOCK]
        # |x - s|² = |x|² + |s|² - 2 x·s, of which |x|² is the same for the whole sample
        relative = squares - 2 * block @ sample.T
        if distinct:
            relative[np.arange(len(block)), first + np.arange(len(block))] = np.inf
        nearest = relative.min(axis=1) + np.einsum("nd,nd->n", block, block)
        distance[first : first + BLOCK] = np.sqrt(np.maximum(nearest, 0.0))
    return distance
