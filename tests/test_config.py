"""Settings that make no sense are refused when they are made, and presets are known by their names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from bats.runs.result import Changes
from bats.storage.json_records import from_plain, to_plain

pytestmark = pytest.mark.usefixtures("without_shape_checks")

NAN, INFINITE = math.nan, math.inf
IMPOSSIBLE: dict[type, dict[str, tuple[Any, ...]]] = {
    Config: {
        "gamma": (0.0, 1.0, -0.5, 2.0, NAN, 0.99991, 1 - 1e-12),
        "metric": ("miles", "deviations"),
        "penalty_steps": (-1.0, INFINITE, NAN),
        "penalty": (-1.0, INFINITE, NAN),
        "final_tolerance": (0.0, -1.0, NAN),
    },
    ModelConfig: {
        "members": (0, -1, 1001),
        "elites": (0, 8),
        "hidden": ((0,), (200, -1), (100_001,)),
        "batch_size": (0, 1_000_001),
        "updates": (0,),
        "passes": (-1.0, INFINITE, NAN, 1000.1),
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
        "steps": (0, 100_001),
        "min_share": (-0.1, 1.1, NAN),
        "min_return": (NAN, INFINITE, -INFINITE),
        "recovery_share": (-0.1, 1.1, NAN),
        "uniform_share": (-0.1, 1.1, NAN),
    },
    CloningConfig: {"hidden": ((0,), (-8, 8), (100_001,)), "updates": (0,), "batch_size": (0, 1_000_001)},
    BisimulationConfig: {
        "hidden": ((0,), (-8, 8), (100_001,)),
        "horizon": (0, 10_001),
        "caution": (0.5, INFINITE, NAN),
        "updates": (0,),
        "batch_size": (0, 1, 10_001),
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
    named = (
        r"`stitch\.neighbours\.count` or a finite `stitch"
        if value is None
        else rf"`{re.escape(dotted(kind, name))}[\[`]"
    )
    with pytest.raises(SettingError, match=named):
        kind(**{name: value})


@pytest.mark.parametrize("radius", [None, INFINITE])
def test_all_pairs_of_states_are_no_neighbours(radius: float | None) -> None:
    with pytest.raises(SettingError, match=r"`stitch\.neighbours\.count` or a finite `stitch\.neighbours\.radius`"):
        NeighbourConfig(count=None, radius=radius)


def test_every_setting_has_an_impossible_value_above() -> None:
    for kind, names in IMPOSSIBLE.items():
        settings = {field.name for field in fields(kind) if not is_dataclass(getattr(kind(), field.name))}
        assert settings == {*names, *(name for name in ANY_VALUE if name in settings)}


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        (Config, "gamma", "0.9", "`gamma` must be a number; got '0.9'."),
        (Config, "stitch", None, "`stitch` must be a StitchConfig; got None."),
        (Config, "stitch", {"rounds": 3}, "`stitch` must be a StitchConfig; got {'rounds': 3}."),
        (Config, "certificate", 0.9, "`certificate` must be a CertificateConfig or None; got 0.9."),
        (Config, "gamma", 10**400, "`gamma` must be a number; got 100000000000000000...0000000000000000000."),
        (Config, "penalty", np.float32(-1), "`penalty` must be between 0 and 1e+15; got -1.0."),
        (StitchConfig, "rounds", 2.5, "`stitch.rounds` must be an integer; got 2.5."),
        (StitchConfig, "rounds", True, "`stitch.rounds` must be an integer; got True."),
        (StitchConfig, "rounds", 10**30, f"`stitch.rounds` must be between 1 and 1,000,000,000; got {10**30}."),
        (StitchConfig, "local_error", "no", "`stitch.local_error` must be true or false; got 'no'."),
        (StitchConfig, "candidates", None, "`stitch.candidates` must be a CandidateConfig; got None."),
        (
            ModelConfig,
            "members",
            np.zeros((2, 1)),
            "`model.members` must be an integer; got an array of float64 with shape (2, 1).",
        ),
        (CloningConfig, "hidden", 64, "`cloning.hidden` must be a list; got 64."),
        (CloningConfig, "hidden", (64, "64"), "`cloning.hidden[1]` must be an integer; got '64'."),
        (CloningConfig, "hidden", (64, 0), "`cloning.hidden[1]` must be between 1 and 100,000; got 0."),
        (CertificateConfig, "confidence", -0.5, "`certificate.confidence` must be strictly between 0 and 1; got -0.5."),
        (CertificateConfig, "reward_range", (1,), "`certificate.reward_range` must be a list of 2 entries; got (1,)."),
        (Changes, "reward", 3, "`reward` must be a function or None; got 3."),
        (Changes, "gamma", 1, "`gamma` must be strictly between 0 and 1; got 1.0."),
    ],
)
def test_a_refusal_says_what_a_setting_must_be_and_what_was_given(
    kind: type, name: str, value: Any, message: str
) -> None:
    assert refusal(kind, name, value) == message


def test_a_number_of_thousands_of_digits_is_refused_too() -> None:
    assert refusal(Config, "gamma", 10**5000) == "`gamma` must be a number; got a number with too many digits to show."


def refusal(kind: type, name: str, value: Any) -> str | None:
    """Why a setting cannot have a value; None if it can."""
    try:
        kind(**{name: value})
    except SettingError as error:
        return str(error)
    return None


def settings_classes(config: Any, prefix: str = "") -> Iterator[tuple[type, str]]:
    """The classes of a configuration and its groups, with what comes before the names of their settings."""
    yield type(config), prefix
    for field in fields(config):
        if is_dataclass(group := getattr(config, field.name)):
            yield from settings_classes(group, f"{prefix}{field.name}.")


PREFIXES: dict[type, str] = {**dict(settings_classes(Config())), Changes: ""}
FIELDS = [
    (kind, field.name)
    for kind in PREFIXES
    for field in fields(kind)
    if not is_dataclass(getattr(kind(), field.name)) and field.name != "reward"
]
SIGNED = {"stitch.dead_end_value", "dead_end_value", "rollouts.min_return", "certificate.reward_range"}
"""settings that may be negative"""
UNLIMITED = {"stitch.temperature", "stitch.neighbours.radius", "final_tolerance", "tolerance", "choice.tolerances"}
"""settings that may be as large as anything, infinity included"""
NEVER: tuple[Any, ...] = (
    *("", "1", "nan", "inf", "true", "\x1b[31m\n", b"1", {}, {"a": 1}, {1}, object(), len, int, 1j, Fraction(1, 2)),
    *(
        ((1,),),
        [[1]],
        [[]],
        (None,),
        ("1",),
        ("inf",),
        (True,),
        range(3),
        np.array(1),
        np.array([1, 2]),
        np.zeros((2, 2)),
    ),
    *(np.datetime64("2020"), np.complex64(1), 10**5000, (10**5000,)),
)
"""values that no setting can have, whatever its type"""


def dotted(kind: type, name: str) -> str:
    return PREFIXES[kind] + name


def base_types(kind: type, name: str) -> list[Any]:
    """The types that a setting may have, without their rules."""
    hint = get_type_hints(kind)[name]
    return list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]


def nonsense(kind: type, name: str) -> list[Any]:
    """Values that a setting of its type must refuse. Only those that are named above may take what others refuse."""
    types = base_types(kind, name)
    wrong = [value for value in NEVER if not (types[0] is bool and value is True)]
    numbers: list[Any] = [math.nan, -math.inf, np.float64("nan")]
    numbers += [] if dotted(kind, name) in UNLIMITED else [math.inf, 10**30, 1e300, np.float32("inf")]
    numbers += [] if dotted(kind, name) in SIGNED else [-1, -1.0, np.int64(-1), -1e-300]
    if get_origin(types[0]) is tuple:
        entry, *more = (one for one in get_args(types[0]) if one is not Ellipsis)
        wrong += [(value, *(1 for _ in more)) for value in numbers]
        wrong += [1, 1.0, True, "1,2"] + ([(1.0,), (1.0, 2.0, 3.0), ()] if more else [])
        wrong += [(1.5,), (1.0,)] if entry is int else []
    elif types[0] in (int, float):
        wrong += [*numbers, True, np.True_, (), (1,), [1]] + ([0.5, 1.0, 1.5, np.float64(1)] if types[0] is int else [])
    elif types[0] is bool:
        wrong += [0, 1, 1.0, np.int64(1), (), (True,)]
    elif get_origin(types[0]) is Literal:
        wrong += [*numbers, 0, 1, 1.0, True, (), get_args(types[0])[0].upper(), (get_args(types[0])[0],)]
    else:
        pytest.fail(f"{dotted(kind, name)} has a type without a rule here")
    return wrong if NoneType in types else [*wrong, None]


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[dotted(*field) for field in FIELDS])
def test_every_setting_refuses_nonsense_on_one_line_with_its_dotted_name(kind: type, name: str) -> None:
    for value in nonsense(kind, name):
        message = refusal(kind, name, value)
        assert message is not None, f"{dotted(kind, name)} accepts {value!r}"
        assert re.fullmatch(rf"`{re.escape(dotted(kind, name))}(\[\d\])?` must be .+; got .+\.", message)
        assert len(message) < 250


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[dotted(*field) for field in FIELDS])
def test_every_setting_accepts_the_numbers_of_numpy_and_stores_those_of_python(kind: type, name: str) -> None:
    usual = {float: 0.5, int: 3}
    default, types = getattr(kind(), name), base_types(kind, name)
    if default is None and get_origin(types[0]) is tuple:
        default = (0.0, 1.0)
    value = usual[types[0]] if default is None else default
    scalars = {bool: (np.bool_,), int: (np.int64, np.int32, np.uint16), float: (np.float64, np.float32, np.float16)}
    for index in range(3):

        def from_numpy(entry: Any, index: int = index) -> Any:
            kinds = scalars.get(type(entry), (np.str_,))
            return kinds[min(index, len(kinds) - 1)](entry)

        entries = [from_numpy(entry) for entry in value] if isinstance(value, tuple) else from_numpy(value)
        stored = getattr(kind(**{name: entries}), name)
        expected = tuple(entry.item() for entry in entries) if isinstance(value, tuple) else entries.item()
        assert stored == expected
        assert type(stored) is type(value)
        assert not isinstance(stored, tuple) or {type(entry) for entry in stored} <= {int, float}


SCALARS = st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(), st.sampled_from([0.5, 1, 2]))
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.lists(SCALARS, max_size=3).map(tuple),
    st.floats(width=32).map(np.float32),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.sampled_from(NEVER),
)


@settings(deadline=None)
@given(st.sampled_from(FIELDS), VALUES)
def test_any_value_is_refused_by_name_or_can_be_written_and_read_back(setting: tuple[type, str], value: Any) -> None:
    kind, name = setting
    message = refusal(kind, name, value)
    if message is not None:
        assert "\n" not in message
        assert dotted(kind, name) in message
        return
    made = kind(**{name: value})
    assert hash(made) == hash(kind(**{name: getattr(made, name)}))
    if kind is not Changes:
        assert from_plain(kind, to_plain(made), file="settings.json") == made


def test_lists_become_tuples_and_whole_numbers_become_floats() -> None:
    assert CloningConfig(hidden=[64, 64]) == CloningConfig(hidden=(64, 64))  # type: ignore[arg-type]
    assert hash(CloningConfig(hidden=[64, 64])) == hash(CloningConfig(hidden=(64, 64)))  # type: ignore[arg-type]
    assert [type(penalty) for penalty in ChoiceConfig(penalties=(1, 2.5)).penalties] == [float, float]


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(SettingError, match=r"`model.elites` must not be larger than `model.members` \(3\); got 4"):
        ModelConfig(members=3, elites=4)
    with pytest.raises(SettingError, match=r"Give either `rollouts\.min_share` or `rollouts\.min_return`, not both"):
        RolloutConfig(min_share=0.5, min_return=1.0)
    StitchConfig(rounds=9_000, recovery_rounds=999)
    many = r"`stitch\.rounds` and `stitch\.recovery_rounds` must be at most 9,999 together; got 9,000 and 1,000"
    with pytest.raises(SettingError, match=many):
        StitchConfig(rounds=9_000, recovery_rounds=1_000)
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
