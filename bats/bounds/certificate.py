"""What a run's certificate came to, as it is kept in the run's folder: a verdict, and bounds at the starts.

    certificate.json        the verdict and all numbers about the starts as a whole; it is written last
    bounds.safetensors      the bounds of both policies at every start

Two policies are bounded. The clone is what is deployed, and the verdict is about it. Doing as the graph says is what
it was cloned from: where that is bounded tightly and the clone is not, cloning is what holds a run back.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from bats.bounds.sandwich import ROUNDING, Bounds
from bats.bounds.verdict import Verdict
from bats.errors import DataError
from bats.storage.atomic import atomic_path
from bats.storage.json_records import from_json, plain
from bats.storage.tensors import read_arrays, write_arrays

NAME, ARRAYS = "certificate.json", "bounds.safetensors"
_KIND = "bats-bounds"


@dataclass(frozen=True)
class Worth:
    """What a policy is worth at the starts, by their weights."""

    lower: float
    upper: float
    width: float
    """distance of the two as a share of the range of all values"""

    @classmethod
    def of(cls, bounds: Bounds) -> Worth:
        return cls(bounds.start_lower, bounds.start_upper, bounds.width)


@dataclass(frozen=True)
class Trust:
    """What the model's claims about its own errors were multiplied by; infinite where too little was held out."""

    value: float
    """claims about the value of where actions lead"""
    reward: float
    """and about what they pay"""
    windows: int
    """held-out stretches that this was found with"""

    @property
    def known(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.reward)


@dataclass(frozen=True)
class CertificateCard:
    """All that is said about the starts as a whole."""

    verdict: Verdict
    """of the cloned policy"""
    graph: Worth
    clone: Worth
    floor: float
    """no state can be worth less"""
    ceiling: float
    confidence: float
    """share of the walks whose claims are meant to be true in sum"""
    factors: Trust
    """in claims about stitches"""
    clone_factors: Trust
    """and in those about stretches of the clone's actions"""


@dataclass(frozen=True, eq=False)
class StartBounds:
    """Bounds at every start."""

    starts: Int[np.ndarray, "W"]
    weights: Float[np.ndarray, "W"]
    graph_lower: Float[np.ndarray, "W"]
    graph_upper: Float[np.ndarray, "W"]
    clone_lower: Float[np.ndarray, "W"]
    clone_upper: Float[np.ndarray, "W"]

    @classmethod
    def of(cls, graph: Bounds, clone: Bounds) -> StartBounds:
        at = graph.starts
        return cls(at, graph.start_weights, graph.lower[at], graph.upper[at], clone.lower[at], clone.upper[at])


@dataclass(frozen=True, eq=False)
class Certified:
    """The certificate of a run."""

    card: CertificateCard
    at_starts: StartBounds

    @property
    def verdict(self) -> Verdict:
        return self.card.verdict

    def gain_over(self, other: Certified) -> float | None:
        """By how much this run's clone is sure to be better at the starts than the other's, below 0 if it is not.

        None where the starts are others: then the two have nothing in common.
        """
        mine, theirs = self.at_starts, other.at_starts
        if not (np.array_equal(mine.starts, theirs.starts) and np.array_equal(mine.weights, theirs.weights)):
            return None
        return self.card.clone.lower - other.card.clone.upper

    def certainly_above(self, other: Certified) -> bool:
        """Whether it is, by more than rounding."""
        gain = self.gain_over(other)
        ends = (abs(end) for each in (self.card, other.card) for end in (each.floor, each.ceiling))
        return gain is not None and gain > ROUNDING * max(1.0, *ends)


def save_certified(certified: Certified, folder: Path) -> None:
    """Writes both files into the folder of a run, over what a killed process may have left."""
    arrays = {each.name: getattr(certified.at_starts, each.name) for each in fields(StartBounds)}
    write_arrays(folder / ARRAYS, _KIND, arrays, {}, overwrite=True)
    with atomic_path(folder / NAME, overwrite=True) as temporary:
        temporary.write_text(json.dumps(plain(certified.card), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def load_certified(folder: Path) -> Certified | None:
    """What a folder holds; None where no certificate was asked for."""
    path = folder / NAME
    if not path.exists():
        return None
    try:
        card = from_json(CertificateCard, path.read_text(encoding="utf-8"), file=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError("a text that can be read", str(error), file=str(path)) from error
    arrays, _ = read_arrays(folder / ARRAYS, _KIND)
    names = [each.name for each in fields(StartBounds)]
    shapes = {array.shape for array in arrays.values()}
    if sorted(arrays) != sorted(names) or len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise DataError(f"the arrays {', '.join(names)}, of one length", ", ".join(arrays), file=str(folder / ARRAYS))
    return Certified(card, StartBounds(**arrays))
