"""A run's certificate: bounds on two policies at the starts, and the verdict, deploy or hold.

    certificate.json        the verdict and all numbers about the starts as a whole; it is written last
    bounds.safetensors      the bounds of both policies at every start

The cloned policy is the one to deploy, and the verdict is about it. Where it was cloned from the graph's own policy,
and that is bounded tightly and the clone is not, cloning is what holds a run back. Nothing here needs JAX.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from bats.arrays import short_repr
from bats.bounds.sandwich import StartValue, ValueBounds
from bats.errors import DataError, SettingError, check_rules
from bats.graph.mdp import LARGEST_VALUE, WEIGHT_ROUNDING
from bats.storage.json_records import read_record, to_plain, write_record
from bats.storage.tensors import checksum, read_struct, write_struct

NAME, ARRAYS = "certificate.json", "bounds.safetensors"
MIN_COVERAGE = 0.9
"""share of the start weight that must lie within the log's support"""
ROUNDING = 1e-9
"""a gain below this, relative to the largest possible value or 1, may be rounding error"""
_KIND = "bats-bounds"


@dataclass(frozen=True)
class CalibrationFactors:
    """Factors that error estimates are multiplied by; infinite if too few rows were held out."""

    value: float
    """for the value where plans end"""
    reward: float
    """for the rewards on the way"""
    windows: int
    """held-out windows that they were measured with"""

    @property
    def known(self) -> bool:
        return math.isfinite(self.value) and math.isfinite(self.reward)

    @classmethod
    def largest(cls, factors: Iterable[CalibrationFactors]) -> CalibrationFactors:
        """Factors that are large enough for all of several policies, so that their bounds can be compared."""
        several = list(factors)
        return cls(*(max(getattr(one, field.name) for one in several) for field in fields(cls)))


@dataclass(frozen=True)
class ModelReturn:
    """What a policy's rollouts in the model come to. No bound: the model may be wrong about all of it."""

    value: float
    """mean discounted return in as many steps as count most: 5% of what could follow is left"""
    disagreement: float
    """mean discounted sum of the members' largest disagreements about a reward"""
    leaves_support: float
    """share of the rollouts that come to states far from all logged ones"""

    @property
    def pessimistic(self) -> float:
        return self.value - self.disagreement


@dataclass(frozen=True, eq=False)
class StartBounds:
    """Bounds at every start."""

    starts: Int[np.ndarray, "W"]
    weights: Float[np.ndarray, "W"]
    graph_lower: Float[np.ndarray, "W"]
    graph_upper: Float[np.ndarray, "W"]
    clone_lower: Float[np.ndarray, "W"]
    clone_upper: Float[np.ndarray, "W"]

    __repr__ = short_repr

    def __post_init__(self) -> None:
        bounds = (self.graph_lower, self.graph_upper, self.clone_lower, self.clone_upper)
        check_rules(
            {
                "there must be at least one start": len(self.starts) > 0,
                "state indices must not be negative": np.all(self.starts >= 0),
                "weights must not be negative and must sum to 1": np.all(self.weights >= 0)
                and abs(float(self.weights.sum(dtype=np.float64)) - 1) <= WEIGHT_ROUNDING,
                f"bounds must not exceed {LARGEST_VALUE:g}": max(
                    float(np.abs(bound).max(initial=0.0)) for bound in bounds
                )
                <= LARGEST_VALUE,
            }
        )


@dataclass(frozen=True)
class Summary:
    """All numbers about the starts as a whole, as `certificate.json` holds them."""

    reasons: tuple[str, ...]
    """why to hold; none if there is nothing against deploying"""
    clone: StartValue
    graph: StartValue
    logged_value: float
    """discounted return of the logged behaviour from the starts"""
    coverage: float
    """share of the start weight within the log's support"""
    share_on_stitches: float
    """share of the graph policy's lower bound, counted from the floor, that is due to stitches"""
    floor: float
    """no value can be below this"""
    ceiling: float
    confidence: float
    """share of rollouts whose summed errors the bounds cover"""
    graph_factors: CalibrationFactors
    clone_factors: CalibrationFactors
    in_model: ModelReturn
    """of the clone, from the starts"""
    comparable_lower: float
    """the clone's lower bound with factors that it shares with the policies it was compared with; it only compares"""
    policy: str
    """checksum of the clone, as its file has it"""


@dataclass(frozen=True, eq=False)
class Certificate(Summary):
    """Bounds and verdict of a run."""

    at_starts: StartBounds

    @property
    def deploy(self) -> bool:
        return not self.reasons

    @property
    def verdict(self) -> str:
        """Deploy or hold, and why."""
        if self.deploy:
            better = "the cloned policy's value is higher than the value of the logged behaviour"
            return f"deploy: at {self.confidence:.0%} confidence, {better}"
        return " ".join(("hold:", *self.reasons))

    def facts(self) -> dict[str, str]:
        """The numbers that the verdict is based on, as text."""
        possible = f"{self.floor:.6g} to {self.ceiling:.6g}"
        return {
            "lower bound": f"{self.clone.lower:.6g}",
            "upper bound": f"{self.clone.upper:.6g}",
            "value in the model": f"{self.in_model.value:.6g} (not a bound; until the discount has fallen to 5%)",
            "value of the log": f"{self.logged_value:.6g} (after a truncation, the smallest possible value is assumed)",
            "bounds of the graph's policy": f"{self.graph.lower:.6g} to {self.graph.upper:.6g}",
            "due to stitches": f"{self.share_on_stitches:.1%} of the lower bound of the graph's policy",
            "starts within support": f"{self.coverage:.1%} of the start weight",
            "width of the bounds": f"{self.clone.width:.1%} of the range of possible values, {possible}",
            "confidence": f"{self.confidence:.0%}",
        }

    def gain_over(self, other: Certificate) -> float | None:
        """By how much this clone is at least better at the starts than the other's; negative if that is not certified.

        None where the starts differ: then the two cannot be compared.
        """
        mine, theirs = self.at_starts, other.at_starts
        if not (np.array_equal(mine.starts, theirs.starts) and np.array_equal(mine.weights, theirs.weights)):
            return None
        return self.clone.lower - other.clone.upper

    def is_better_than(self, other: Certificate) -> bool:
        """Whether this clone is certified to be better, by more than rounding."""
        gain = self.gain_over(other)
        ends = (abs(end) for one in (self, other) for end in (one.floor, one.ceiling))
        return gain is not None and gain > ROUNDING * max(1.0, *ends)


@dataclass(frozen=True)
class Option:
    """A penalty and a tolerance that the finished graph can be solved with, and its policy's lower bound."""

    penalty: float
    """in the unit of the run's own: steps, or reward"""
    tolerance: float | None
    stitches: int = 0
    """within the tolerance"""
    lower: float = -math.inf
    """bound on the value at the starts, with the same error estimates for all options"""


def reasons_to_hold(clone: ValueBounds, *, logged_value: float, coverage: float) -> tuple[str, ...]:
    """What speaks against deploying; `coverage` is the share of the start weight within the log's support."""
    if not 0 <= coverage <= 1 + ROUNDING:
        raise SettingError(f"`coverage` must be between 0 and 1; got {coverage}.")
    lower, upper, reasons = clone.start.lower, clone.start.upper, []
    threshold = logged_value + ROUNDING * max(1.0, abs(logged_value))
    if not lower > threshold:
        log = f"the value of the log, {logged_value:.4g}"
        reasons.append(f"The policy's lower bound at the starts, {lower:.4g}, does not exceed {log}.")
        possible = f"The policy's value may be as high as {upper:.4g}, but this is not certified."
        impossible = f"The policy's upper bound, {upper:.4g}, does not exceed the value of the log either."
        reasons.append(possible if upper > threshold else impossible)
    if coverage < MIN_COVERAGE:
        share = f"{coverage:.1%} of the start weight"
        reasons.append(f"Only {share} lies within the log's support; at least {MIN_COVERAGE:.0%} is required.")
    return tuple(reasons)


def save_certificate(certificate: Certificate, folder: Path) -> None:
    """Writes both files into a folder, over what a killed process may have left."""
    summary = Summary(**{name: value for name, value in vars(certificate).items() if name != "at_starts"})
    write_struct(folder / ARRAYS, _KIND, certificate.at_starts, overwrite=True, summary=_checksum(summary))
    write_record(folder / NAME, summary)


def load_certificate(folder: Path) -> Certificate | None:
    """The certificate of a folder; None where none was made."""
    path = folder / NAME
    if not path.exists():
        return None
    at_starts, facts = read_struct(StartBounds, folder / ARRAYS, _KIND)
    summary = read_record(Summary, path)
    if facts.get("summary") != _checksum(summary):
        raise DataError(f"the certificate that {ARRAYS} belongs to", "another or a changed one", file=str(path))
    return Certificate(**vars(summary), at_starts=at_starts)


def _checksum(summary: Summary) -> str:
    return checksum({}, json.dumps(to_plain(summary), sort_keys=True))
