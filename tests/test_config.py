"""Settings that make no sense are refused when they are made, and presets are known by their names."""

from __future__ import annotations

import math
import re
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest

from bats.config import (
    BisimulationConfig,
    CandidateConfig,
    CertificateConfig,
    ChoiceConfig,
    CloningConfig,
    Config,
    ModelConfig,
    NeighbourConfig,
    RolloutConfig,
    StitchConfig,
)
from bats.errors import SettingError
from bats.presets import PRESETS, preset

NAN, INFINITE = math.nan, math.inf
IMPOSSIBLE: dict[type, dict[str, tuple[Any, ...]]] = {
    Config: {
        "gamma": (0.0, 1.0, -0.5, 2.0, NAN),
        "metric": ("miles", "deviations"),
        "penalty_steps": (-1.0, INFINITE, NAN),
        "penalty": (-1.0, INFINITE, NAN),
        "final_tolerance": (0.0, -1.0, NAN),
    },
    ModelConfig: {
        "members": (0, -1),
        "elites": (0, 8),
        "hidden": ((0,), (200, -1)),
        "batch_size": (0,),
        "updates": (0,),
        "passes": (-1.0, INFINITE, NAN),
        "learning_rate": (0.0, -1e-3, INFINITE, NAN),
        "schedule": ("linear",),
        "variance_weight": (-0.5, INFINITE, NAN),
        "weight_decay": (-1.0, INFINITE, NAN),
        "evaluate_every": (0,),
        "patience": (0,),
        "validation_measure": ("relative",),
    },
    StitchConfig: {
        "rounds": (0, -1),
        "recovery_rounds": (-1,),
        "samples": (0,),
        "attempts": (0,),
        "max_length": (0,),
        "half_length_every": (0,),
        "tolerance": (0.0, -1.0, INFINITE, NAN),
        "temperature": (0.0, -1.0, NAN),
        "neighbour_share": (-0.1, 1.1, NAN),
        "dead_end_value": (INFINITE, -INFINITE, NAN),
        "planner": ("random",),
    },
    CandidateConfig: {
        "branching": (0,),
        "lengths": ("shortest",),
        "impact": ("reward",),
        "skip": (-1,),
        "per_source": (0,),
    },
    NeighbourConfig: {
        "count": (0, -1, None),
        "radius": (0.0, -1.0, NAN),
        "scales": ((), (0.0,), (1.5,), (1.0, NAN)),
    },
    RolloutConfig: {
        "steps": (0,),
        "min_share": (-0.1, 1.1, NAN),
        "min_return": (NAN, INFINITE, -INFINITE),
        "recovery_share": (-0.1, 1.1, NAN),
        "uniform_share": (-0.1, 1.1, NAN),
    },
    CloningConfig: {"hidden": ((0,), (-8, 8)), "updates": (0,), "batch_size": (0,)},
    BisimulationConfig: {
        "hidden": ((0,), (-8, 8)),
        "horizon": (0,),
        "caution": (0.5, INFINITE, NAN),
        "updates": (0,),
        "batch_size": (0, 1),
        "refresh_rounds": (0,),
        "refresh_updates": (0,),
    },
    CertificateConfig: {
        "confidence": (0.0, 1.0, -1.0, NAN),
        "reward_range": ((1.0, 0.0), (0.0, INFINITE), (NAN, 1.0)),
    },
    ChoiceConfig: {"penalties": ((-1.0,), (INFINITE,), (1.0, NAN)), "tolerances": ((0.0,), (1.0, -1.0), (NAN,))},
}
"""values of every setting, by its class, that cannot be meant"""
CASES = [
    (kind, name, value) for kind, names in IMPOSSIBLE.items() for name, values in names.items() for value in values
]
ANY_VALUE = ("linear", "local_error", "every_length", "censored", "penalize_rounds")
"""switches, of which every value makes sense"""


@pytest.mark.parametrize(("kind", "name", "value"), CASES, ids=[f"{k.__name__}.{n}={v}" for k, n, v in CASES])
def test_an_impossible_value_is_refused_at_once_by_its_name(kind: type, name: str, value: Any) -> None:
    named = r"`count` or `radius`" if value is None else f"`{name}`"
    with pytest.raises(SettingError, match=named):
        kind(**{name: value})


def test_every_setting_has_an_impossible_value_above() -> None:
    for kind, names in IMPOSSIBLE.items():
        settings = {field.name for field in fields(kind) if not is_dataclass(getattr(kind(), field.name))}
        assert settings == {*names, *(name for name in ANY_VALUE if name in settings)}


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        (Config, "gamma", "0.9", "`gamma` must be a number; got '0.9'."),
        (Config, "stitch", None, "`stitch` must be an object; got None."),
        (Config, "certificate", 0.9, "`certificate` must be an object or null; got 0.9."),
        (StitchConfig, "rounds", 2.5, "`rounds` must be an integer; got 2.5."),
        (StitchConfig, "rounds", True, "`rounds` must be an integer; got True."),
        (StitchConfig, "local_error", "no", "`local_error` must be true or false; got 'no'."),
        (StitchConfig, "candidates", None, "`candidates` must be an object; got None."),
        (CloningConfig, "hidden", 64, "`hidden` must be a list; got 64."),
        (CloningConfig, "hidden", (64, "64"), "`hidden[1]` must be an integer; got '64'."),
        (CertificateConfig, "reward_range", (1.0,), "`reward_range` must be a list of 2 entries; got [1.0]."),
    ],
)
def test_a_value_of_another_type_is_refused_at_once_by_its_name(
    kind: type, name: str, value: Any, message: str
) -> None:
    with pytest.raises(SettingError, match=f"^{re.escape(message)}$"):
        kind(**{name: value})


def test_lists_become_tuples_and_whole_numbers_become_floats() -> None:
    assert CloningConfig(hidden=[64, 64]) == CloningConfig(hidden=(64, 64))  # type: ignore[arg-type]
    assert hash(CloningConfig(hidden=[64, 64])) == hash(CloningConfig(hidden=(64, 64)))  # type: ignore[arg-type]
    assert [type(penalty) for penalty in ChoiceConfig(penalties=(1, 2.5)).penalties] == [float, float]


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(SettingError, match=r"must not be larger than `members` \(3\); got 4"):
        ModelConfig(members=3, elites=4)
    with pytest.raises(SettingError, match="Give either `min_share` or `min_return`, not both"):
        RolloutConfig(min_share=0.5, min_return=1.0)
    with pytest.raises(SettingError, match="cannot be used with metric bisimulation"):
        Config(metric="bisimulation", choice=ChoiceConfig(penalties=(1.0,)))
    with pytest.raises(SettingError, match="cannot be used with metric bisimulation"):
        Config(metric="bisimulation", choice=ChoiceConfig(tolerances=(1.0,)))


def test_the_learned_metric_applies_the_tolerance_of_stitching_to_the_finished_graph() -> None:
    learned = Config(metric="bisimulation", stitch=StitchConfig(tolerance=5.0))
    assert learned.kept_tolerance == 5.0
    assert replace(learned, final_tolerance=2.0).kept_tolerance == 2.0
    assert replace(learned, metric="steps").kept_tolerance is None


def test_presets_are_known_by_their_names() -> None:
    assert preset("default") == Config()
    assert {"default", "demo", "bisimulation", "paper-umaze", "paper-hopper", "paper-mountain-car"} <= set(PRESETS)
    with pytest.raises(SettingError, match="There is no preset called 'fast'; the presets are default, demo"):
        preset("fast")


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("paper-")])
def test_the_papers_presets_plan_as_the_paper_does(name: str) -> None:
    config = preset(name)
    assert config.stitch.planner == "cross-entropy"
    assert config.stitch.every_length
    assert not config.penalize_rounds
    assert config.penalty is not None
    assert config.stitch.candidates == CandidateConfig(branching=None, lengths="all", impact="value", skip=0)
    assert config.rollouts.min_return is not None
