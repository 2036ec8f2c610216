"""Settings come back from their JSON exactly as they were, or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.bounds.graph_policy import CertificateConfig
from bats.config import PRESETS, Config
from bats.errors import DataError, SettingError
from bats.metric.neighbours import NeighbourConfig
from bats.model.ensemble import DynamicsConfig
from bats.planning.planner import PlannerConfig
from bats.stitching.candidates import CandidateConfig
from bats.stitching.loop import StitchConfig
from bats.storage.json_records import as_json, from_json

POSITIVE = st.floats(min_value=0, exclude_min=True, allow_nan=False)
COUNTS = st.integers(1, 10**9)


def drawn(data: st.DataObject) -> Config:
    """Every kind of field, drawn over all that it may hold. No strategy: shape checks use chance of their own."""
    draw = data.draw
    members = draw(COUNTS)
    return Config(
        gamma=draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
        metric=draw(st.sampled_from(["steps", "raw", "deviations"])),
        penalty=draw(st.floats(min_value=0, allow_nan=False, allow_infinity=False)),
        penalty_unit=draw(st.sampled_from(["step", "reward"])),
        charge=draw(st.sampled_from(["during", "afterwards"])),
        final_tolerance=draw(st.none() | POSITIVE),
        dynamics=DynamicsConfig(
            members=members,
            elites=draw(st.integers(1, members)),
            hidden=tuple(draw(st.lists(COUNTS, max_size=5))),
            linear_part=draw(st.booleans()),
            evaluate_every=draw(st.none() | COUNTS),
            learning_rate=draw(POSITIVE),
        ),
        stitch=StitchConfig(
            rounds=draw(COUNTS),
            tolerance=draw(POSITIVE),
            shortest=draw(st.booleans()),
            candidates=CandidateConfig(branches=draw(st.none() | COUNTS), lengths=draw(st.sampled_from(["all"]))),
            neighbours=NeighbourConfig(
                radius=draw(st.none() | POSITIVE),
                scales=tuple(draw(st.lists(st.floats(0, 1, exclude_min=True), min_size=1))),
            ),
            planner=PlannerConfig(method=draw(st.sampled_from(["gauss-newton", "cross-entropy"]))),
        ),
        certificate=draw(
            st.none()
            | st.builds(CertificateConfig, reward_range=st.none() | st.tuples(st.floats(-9, 0), st.floats(0, 9)))
        ),
    )


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_what_was_written_is_what_is_read(data: st.DataObject) -> None:
    config = drawn(data)
    assert from_json(Config, as_json(config), file="run.json") == config


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_comes_back(name: str) -> None:
    text = as_json(PRESETS[name])
    assert from_json(Config, text, file="run.json") == PRESETS[name]
    assert json.dumps(json.loads(text)) == text  # nothing that only Python's JSON knows


@pytest.mark.parametrize("penalty", [-1.0, float("inf"), float("nan")])
def test_a_penalty_that_no_value_survives_is_refused(penalty: float) -> None:
    with pytest.raises(SettingError, match="finite and not negative"):
        replace(PRESETS["default"], penalty=penalty)


def test_numbers_without_end_are_words() -> None:
    config = replace(PRESETS["default"], final_tolerance=float("inf"))
    assert json.loads(as_json(config))["final_tolerance"] == "inf"
    assert from_json(Config, as_json(config), file="run.json") == config


def changed(place: str, value: Any) -> str:
    """The default as JSON, with one entry another; `...` takes it away."""
    held = json.loads(as_json(Config()))
    *way, last = place.split(".")
    inner = held
    for name in way:
        inner = inner[name]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(held)


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        ("gamma", "0.9", "field 'gamma': expected a number, found '0.9'"),
        ("gamma", True, "field 'gamma': expected a number, found True"),
        ("gamma", 1.5, "expected settings that make sense, found `gamma` must lie strictly between 0 and 1; got 1.5"),
        ("metric", "miles", "field 'metric': expected steps, raw, deviations, bisimulation, found 'miles'"),
        ("final_tolerance", [], r"field 'final_tolerance': expected a number or null, found \[\]"),
        ("stitch.rounds", ..., "field 'stitch.rounds': expected an entry, found none"),
        ("stitch.rounds", 2.5, "field 'stitch.rounds': expected a whole number, found 2.5"),
        ("stitch.rounds", 0, "field 'stitch': expected settings that make sense, found `rounds` must be at least 1"),
        ("stitch.planner.speed", 9, "field 'stitch.planner.speed': expected only method, .*, found 'speed'"),
        ("dynamics.hidden", 200, "field 'dynamics.hidden': expected a list, found 200"),
        ("dynamics.hidden", [200, "9"], r"field 'dynamics.hidden\[1\]': expected a whole number, found '9'"),
        ("dynamics.members", 0, "field 'dynamics': expected settings that make sense, found `members`"),
        ("dynamics", 7, "field 'dynamics': expected an object, found 7"),
        ("certificate", 7, "field 'certificate': expected an object or null, found 7"),
        ("certificate.confidence", 1, "field 'certificate': expected settings that make sense, found `confidence`"),
        ("certificate.reward_range", 1, "field 'certificate.reward_range': expected a list or null, found 1"),
        ("certificate.reward_range", [1], r"field 'certificate.reward_range': expected a list of 2, found \[1\]"),
    ],
)
def test_anything_else_is_refused_with_the_file_and_the_field(place: str, value: Any, told: str) -> None:
    with pytest.raises(DataError, match=f"^a/run.json: .*{told}"):
        from_json(Config, changed(place, value), file="a/run.json")


@dataclass(frozen=True)
class Told:
    """Kinds of fields that records have and settings have not."""

    counts: dict[str, int]
    kind: Literal["a", "b"] | None


def test_tables_and_words_come_back() -> None:
    told = Told({"missed": 3, "ended": 0}, None)
    assert from_json(Told, as_json(told), file="records") == told
    with pytest.raises(DataError, match=r"field 'counts.missed': expected a whole number, found 1.5"):
        from_json(Told, '{"counts": {"missed": 1.5}, "kind": "a"}', file="records")
    for text in ("", "{", "[]"):
        with pytest.raises(DataError, match=r"records: expected (a JSON text|an object)"):
            from_json(Told, text, file="records")
