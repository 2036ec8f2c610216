"""Configurations by name: ours, a quick one, one that learns its metric, and the paper's own (appendix D.1).

The paper's presets are settings only, there is no second code path. Where the paper is silent they take its authors'
values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bats.config import Config, checked
from bats.errors import SettingError


def changed(config: Any, **settings: Any) -> Any:
    """A configuration with some settings changed; settings of a group are given as a dictionary."""
    values = {
        name: changed(getattr(config, name), **value) if isinstance(value, dict) else value
        for name, value in settings.items()
    }
    return replace(config, **values)


NEAREST = {"count": 25, "scales": (1.0,)}
PAPER: Config = changed(
    Config(),
    penalize_rounds=False,
    improvement={"turns": 0},
    # training ends by early stopping alone
    model={
        "linear": False,
        "learning_rate": 1e-3,
        "variance_weight": 0.0,
        "updates": 10_000_000,
        "passes": 0.0,
        "schedule": "constant",
        "weight_decay": 5e-5,
        "evaluate_every": None,
        "patience": 25,
        "validation_measure": "squared",
    },
    stitch={
        "recovery_rounds": 0,
        "max_length": 1,
        "half_length_every": None,
        "local_error": False,
        "neighbour_share": 0.0,
        "dead_end_value": 0.0,
        "planner": "cross-entropy",
        "every_length": True,
        "candidates": {"branching": None, "lengths": "all", "impact": "value", "skip": 0},
    },
    rollouts={"recovery_share": 0.0, "uniform_share": 0.0},
    cloning={"hidden": (256, 256), "updates": 10_000, "batch_size": 256, "censored": False},
)


def _maze(radius: float, penalty: float, rounds: int, steps: int, min_return: float, **cloning: Any) -> Config:
    neighbours = {"count": None, "radius": radius, "scales": (1.0,)}
    stitch = {"samples": 50_000, "attempts": 50_000, "rounds": rounds, "tolerance": 0.425, "neighbours": neighbours}
    rollouts = {"steps": steps, "min_return": min_return}
    return changed(PAPER, metric="raw", penalty=penalty, stitch=stitch, rollouts=rollouts, cloning=cloning)


def _walker(penalty: float, final_tolerance: float, min_return: float, max_length: int = 1) -> Config:
    stitch = {"samples": 5_000, "attempts": 5_000, "tolerance": 10.0, "max_length": max_length, "neighbours": NEAREST}
    rollouts, errors = {"min_return": min_return}, {"penalty": penalty, "final_tolerance": final_tolerance}
    return changed(PAPER, metric="std", **errors, stitch=stitch, rollouts=rollouts)


PRESETS: dict[str, Config] = {
    "default": Config(),
    "demo": changed(
        Config(),
        model={"updates": 4_000, "members": 5, "elites": 3},
        stitch={"rounds": 10, "recovery_rounds": 2, "samples": 3000, "attempts": 3000},
        cloning={"hidden": (256, 256), "updates": 5_000},
        improvement={"turns": 0},
        bisimulation={"updates": 1_500, "batch_size": 64},
    ),
    "bisimulation": changed(Config(), metric="bisimulation", penalty_steps=1.0, stitch={"tolerance": 5.0}),
    "paper-umaze": _maze(0.225, 20.0, 10, steps=300, min_return=100.0, hidden=(64, 64)),
    "paper-medium": _maze(0.225, 20.0, 10, steps=600, min_return=200.0, updates=20_000),
    "paper-large": _maze(0.15, 10.0, 20, steps=800, min_return=300.0, hidden=(256, 256, 256), updates=20_000),
    "paper-hopper": _walker(10.0, 2.25, min_return=1_000.0),
    "paper-walker2d": _walker(50.0, 0.5, min_return=1_000.0),
    "paper-halfcheetah": _walker(50.0, 2.0, min_return=4_000.0, max_length=5),
    "paper-mountain-car": changed(
        PAPER,
        metric="raw",
        penalty=1.0,
        model={"hidden": (64, 64, 64)},
        stitch={"samples": 100, "attempts": 100, "rounds": 20, "tolerance": 0.1, "max_length": 5, "temperature": 0.1}
        | {"neighbours": NEAREST},
        rollouts={"min_return": 0.0},
    ),
}


def preset(name: str) -> Config:
    """The configuration of this name."""
    if checked("name", str, name) not in PRESETS:
        raise SettingError(f"There is no preset called '{name}'; the presets are {', '.join(PRESETS)}.")
    return PRESETS[name]
