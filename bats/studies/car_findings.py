"""What the mountain-car study found, as numbers: every one of them has a name, and all of them go into one file.

Nothing is computed here but means, shares and quantiles of what was measured, and nothing is drawn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bats.storage.atomic import atomic_path
from bats.studies.car_tracks import Track
from bats.studies.car_values import ValueErrors

NAME = "mountain_car"


@dataclass(frozen=True)
class Figure:
    """A measured number."""

    name: str
    value: float
    unit: str

    def __str__(self) -> str:
        return f"figure {self.name} {self.value:.6g} {self.unit}"


@dataclass(frozen=True, eq=False)
class Distances:
    """How far replay and model are from the graph's walks: mean over the steps and at the end, a row a walk."""

    replay: Float[np.ndarray, "n 2"]
    model: Float[np.ndarray, "n 2"]


@dataclass(frozen=True, eq=False)
class VariantFindings:
    """What one configuration came to, in its first seed."""

    name: str
    label: str
    """in words, for pictures"""
    errors: ValueErrors
    walks: int
    """walks that set out from logged states of episodes which never reach the goal"""
    arrive: float
    """share of them that the graph says reach it"""
    replays_arrive: float
    """share of those whose actions do so in the true car, the last of them kept up if need be"""
    replays_on_time: float
    """and without that"""
    raw: Distances
    """of those that arrive in the graph, in the log's own numbers"""
    metric: Distances
    """and in the units of the metric that was stitched with"""


@dataclass(frozen=True, eq=False)
class LowerBound:
    """The least that the first configuration's policy is worth, by position and velocity."""

    corners: Float[np.ndarray, "n 2"]
    """lower left corners of the cells that hold logged states"""
    size: tuple[float, float]
    values: Float[np.ndarray, "n"]
    """mean of the bound over the states in each"""
    start_lower: float
    start_value: float
    start_upper: float
    holds: float
    """share of the states that were played from where the graph's actions earned no less"""
    factor: float
    """what the model's claims were multiplied by"""


@dataclass(frozen=True, eq=False)
class Findings:
    """All of it."""

    settings: dict[str, Any]
    returns: dict[str, Float[np.ndarray, "seeds episodes"]]
    """undiscounted, of expert, plain cloning and BATS"""
    variants: tuple[VariantFindings, ...]
    logged: Float[np.ndarray, "rows 2"]
    """some states of the log"""
    original: Float[np.ndarray, "steps 2"]
    """an episode of the log that never reaches the goal"""
    shown: Track
    """the graph's walk from where that one begins"""
    bound: LowerBound

    def figures(self) -> list[Figure]:
        """Every number that is told."""
        found = [*self._returns(), *self._bound()]
        for variant in self.variants:
            found += [*_value_figures(variant), *_track_figures(variant)]
        return [Figure(f"{NAME}_{name}", float(value), unit) for name, value, unit in found]

    def _returns(self) -> Iterator[tuple[str, float, str]]:
        for who, returns in self.returns.items():
            yield f"{who}_return", returns.mean(), "return"
            yield f"{who}_least_episode", returns.min(), "return"
            for seed, earned in enumerate(returns):
                yield f"{who}_return_seed_{seed}", earned.mean(), "return"
        yield "bats_behind_expert", self.returns["expert"].mean() - self.returns["bats"].mean(), "return"

    def _bound(self) -> Iterator[tuple[str, float, str]]:
        for name in ("start_lower", "start_value", "start_upper"):
            yield f"bound_{name}", getattr(self.bound, name), "value"
        yield "bound_holds", self.bound.holds, "share"
        if math.isfinite(self.bound.factor):  # JSON has no sign for what is not
            yield "bound_factor", self.bound.factor, "times"

    def save(self, path: Path) -> None:
        """Writes figures, settings and everything that is drawn, as JSON, whole or not at all."""
        told = {
            "settings": self.settings,
            "figures": [asdict(figure) for figure in self.figures()],
            "returns": {who: returns.tolist() for who, returns in self.returns.items()},
            "value_errors": {each.name: _plain(each.errors) for each in self.variants},
            "distances": {
                each.name: {"raw": _plain(each.raw), "metric": _plain(each.metric)} for each in self.variants
            },
            "shown": {"original": self.original.tolist(), **_plain(self.shown)},
            "bound": _plain(self.bound),
        }
        with atomic_path(path, overwrite=True) as temporary:
            temporary.write_text(json.dumps(told, allow_nan=False) + "\n", encoding="utf-8")


def _value_figures(variant: VariantFindings) -> Iterator[tuple[str, float, str]]:
    errors, name = variant.errors, f"{variant.name}_value_error"
    for what in ("actions", "clone", "cloning"):
        error = getattr(errors, f"of_{what}")
        yield f"{name}_{what}_mean", error.mean(), "value"
        yield f"{name}_{what}_mean_absolute", np.abs(error).mean(), "value"
        yield f"{name}_{what}_p95_absolute", np.quantile(np.abs(error), 0.95), "value"
    yield f"{name}_states", len(errors.graph), "states"
    yield f"{variant.name}_graph_value_mean", errors.graph.mean(), "value"
    yield f"{variant.name}_penalties_mean", (errors.graph - errors.charged).mean(), "value"
    yield f"{variant.name}_actions_arrive", errors.actions_arrive.mean(), "share"
    yield f"{variant.name}_actions_on_time", errors.on_time.mean(), "share"
    yield f"{variant.name}_clone_arrives", errors.clone_arrives.mean(), "share"


def _track_figures(variant: VariantFindings) -> Iterator[tuple[str, float, str]]:
    yield f"{variant.name}_walks", variant.walks, "walks"
    yield f"{variant.name}_walks_arrive", variant.arrive, "share"
    yield f"{variant.name}_replays_arrive", variant.replays_arrive, "share"
    yield f"{variant.name}_replays_on_time", variant.replays_on_time, "share"
    for unit, distances in (("raw", variant.raw), ("metric", variant.metric)):
        for path in ("replay", "model"):
            apart = getattr(distances, path)
            for column, when in enumerate(("mean", "end")):
                if len(apart):
                    name = f"{variant.name}_{path}_{when}_distance_{unit}"
                    yield name, apart[:, column].mean(), unit
                    yield f"{name}_median", np.median(apart[:, column]), unit


def _plain(held: object) -> dict[str, Any]:
    """A dataclass of arrays and numbers as JSON has them."""
    named = {part.name: getattr(held, part.name) for part in fields(held)}  # type: ignore[arg-type]
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in named.items()}
