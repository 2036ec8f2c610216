"""What the mountain-car study measured, and its figures: means, shares and quantiles, each with a name and a unit."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bats.storage.atomic import write_text
from bats.storage.json_records import to_plain
from bats.studies.car_rollouts import CarRollout, RolloutErrors
from bats.studies.car_values import LowerBound, ValueErrors


@dataclass(frozen=True, eq=False)
class VariantFindings:
    """The measurements of one configuration, fitted with seed 0."""

    name: str
    label: str
    """for legends"""
    values: ValueErrors
    rollouts: RolloutErrors


@dataclass(frozen=True, eq=False)
class Findings:
    """All measurements of a study."""

    settings: dict[str, Any]
    returns: dict[str, Float[np.ndarray, "seeds episodes"]]
    """undiscounted, of the expert, of a plain clone of the log, and of BATS"""
    variants: tuple[VariantFindings, ...]
    log_states: Float[np.ndarray, "rows 2"]
    """some states of the log"""
    failed_episode: Float[np.ndarray, "steps 2"]
    """the states of a logged episode that never reaches the goal"""
    rollout: CarRollout
    """the graph's rollout from the first state of that episode"""
    bound: LowerBound
    """of the first configuration"""

    def figures(self) -> dict[str, tuple[float, str]]:
        """Every number of the study with its unit, by name."""
        figures: dict[str, tuple[float, str]] = {}
        for policy, returns in self.returns.items():
            figures[f"{policy}_return"] = returns.mean(), "return"
            figures[f"{policy}_worst_return"] = returns.min(), "return"
            for seed, of_seed in enumerate(returns):
                figures[f"{policy}_return_seed_{seed}"] = of_seed.mean(), "return"
        figures["bats_behind_expert"] = self.returns["expert"].mean() - self.returns["bats"].mean(), "return"
        for name in ("start_lower", "start_value", "start_upper"):
            figures[f"bound_{name}"] = getattr(self.bound, name), "value"
        figures["bound_holds"] = self.bound.holds, "share"
        if math.isfinite(self.bound.factor):
            figures["bound_factor"] = self.bound.factor, "times"
        for variant in self.variants:
            of_variant = _value_figures(variant.values) | _rollout_figures(variant.rollouts)
            figures |= {f"{variant.name}_{name}": figure for name, figure in of_variant.items()}
        return {f"mountain_car_{name}": (float(value), unit) for name, (value, unit) in figures.items()}

    def save(self, path: Path) -> None:
        """Writes the figures and all measurements as JSON, whole or not at all."""
        content = {"figures": self.figures(), **to_plain(self)}
        # `default` is called for arrays, which JSON does not know. Nor does it know NaN: such entries become null.
        null = np.array(None)
        text = json.dumps(content, allow_nan=False, default=lambda a: np.where(np.isfinite(a), a, null).tolist())
        write_text(path, text + "\n")


def _value_figures(values: ValueErrors) -> dict[str, tuple[float, str]]:
    figures: dict[str, tuple[float, str]] = {}
    for kind, error in values.errors().items():
        figures[f"value_error_{kind}_mean"] = error.mean(), "value"
        figures[f"value_error_{kind}_mean_absolute"] = np.abs(error).mean(), "value"
        figures[f"value_error_{kind}_p95_absolute"] = np.quantile(np.abs(error), 0.95), "value"
    figures["value_error_states"] = float(len(values.graph)), "states"
    figures["graph_value_mean"] = values.graph.mean(), "value"
    # how much lower values are because stitches are penalized
    figures["penalties_mean"] = (values.graph - values.penalized).mean(), "value"
    for name in ("actions_arrive", "actions_on_time", "clone_arrives"):
        figures[name] = getattr(values, name).mean(), "share"
    return figures


def _rollout_figures(rollouts: RolloutErrors) -> dict[str, tuple[float, str]]:
    figures: dict[str, tuple[float, str]] = {"rollouts": (float(rollouts.count), "rollouts")}
    for name in ("rollouts_arrive", "replays_arrive", "replays_on_time"):
        figures[name] = getattr(rollouts, name), "share"
    for unit, paths in rollouts.distances.items():
        for path, distances in paths.items():
            # there is nothing to average where no rollout arrives
            for when, distance in zip(("mean", "end"), distances.T if len(distances) else (), strict=False):
                figures[f"{path}_{when}_distance_{unit}"] = distance.mean(), unit
                figures[f"{path}_{when}_distance_{unit}_median"] = np.median(distance), unit
    return figures
