"""Settings and records come back from their JSON exactly as they were, or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bats.config import LARGEST, CandidateConfig, CertificateConfig, Config, ModelConfig, NeighbourConfig, StitchConfig
from bats.errors import BatsError, DataError
from bats.presets import PRESETS
from bats.storage.json_records import (
    flatten,
    from_plain,
    parse_json,
    read_json,
    read_lines,
    read_record,
    to_plain,
    write_lines,
    write_record,
)

POSITIVE = st.floats(min_value=0, exclude_min=True, allow_nan=False)
COUNTS = st.integers(1, 10**9)


def drawn_config(data: st.DataObject) -> Config:
    """Every kind of field, drawn over all that it may hold. Not a strategy, as shape checks draw random numbers too."""
    draw = data.draw
    members = draw(st.integers(1, 1000))
    return Config(
        gamma=draw(st.floats(0, 0.9999, exclude_min=True)),
        metric=draw(st.sampled_from(["steps", "raw", "std"])),
        penalty_steps=draw(st.floats(0, LARGEST)),
        penalty=draw(st.none() | st.floats(0, LARGEST)),
        penalize_rounds=draw(st.booleans()),
        final_tolerance=draw(st.none() | POSITIVE),
        model=ModelConfig(
            members=members,
            elites=draw(st.integers(1, members)),
            hidden=tuple(draw(st.lists(st.integers(1, 100_000), max_size=5))),
            linear=draw(st.booleans()),
            evaluate_every=draw(st.none() | COUNTS),
            learning_rate=draw(st.floats(0, 1, exclude_min=True)),
        ),
        stitch=StitchConfig(
            rounds=draw(st.integers(1, 9_000)),
            tolerance=draw(st.floats(0, LARGEST, exclude_min=True)),
            every_length=draw(st.booleans()),
            planner=draw(st.sampled_from(["gauss-newton", "cross-entropy"])),
            candidates=CandidateConfig(branching=draw(st.none() | COUNTS), lengths=draw(st.sampled_from(["all"]))),
            neighbours=NeighbourConfig(
                radius=draw(st.none() | POSITIVE),
                scales=tuple(draw(st.lists(st.floats(0, 1, exclude_min=True), min_size=1))),
            ),
        ),
        certificate=draw(
            st.none()
            | st.builds(CertificateConfig, reward_range=st.none() | st.tuples(st.floats(-9, 0), st.floats(0, 9)))
        ),
    )


def as_text(record: object) -> str:
    return json.dumps(to_plain(record), allow_nan=False)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_configuration_comes_back_as_it_was(data: st.DataObject) -> None:
    config = drawn_config(data)
    assert from_plain(Config, json.loads(as_text(config)), file="settings.json") == config


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    write_record(tmp_path / "settings.json", PRESETS[name])
    assert read_record(Config, tmp_path / "settings.json") == PRESETS[name]


def test_an_integer_that_is_too_large_for_a_number_is_refused() -> None:
    plain = to_plain(Config())
    with pytest.raises(DataError, match="field 'gamma': expected a number, found 1000"):
        from_plain(Config, plain | {"gamma": 10**400}, file="settings.json")


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_numbers_that_json_lacks_are_written_as_strings(value: float) -> None:
    written = to_plain(Measurement({}, None, value))
    assert isinstance(written["number"], str)
    number = from_plain(Measurement, written, file="records").number
    assert number == value or (number != number and value != value)  # NaN is the number that differs from itself
    config = replace(Config(), final_tolerance=float("inf"))
    assert from_plain(Config, json.loads(as_text(config)), file="settings.json") == config


def changed_default(name: str, value: Any) -> Any:
    """The default settings as JSON has them, with one entry changed; `...` removes it."""
    plain = to_plain(Config())
    *groups, leaf = name.split(".")
    table = plain
    for group in groups:
        table = table[group]
    if value is ...:
        del table[leaf]
    else:
        table[leaf] = value
    return plain


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gamma", "0.9", "field 'gamma': expected a number, found '0.9'"),
        ("gamma", True, "field 'gamma': expected a number, found True"),
        ("gamma", 1.5, "`gamma` must be strictly between 0 and 1; got 1.5"),
        ("metric", "miles", "field 'metric': expected one of steps, raw, std, bisimulation, found 'miles'"),
        ("final_tolerance", [], r"field 'final_tolerance': expected a number or null, found \[\]"),
        ("penalize_rounds", 1, "field 'penalize_rounds': expected true or false, found 1"),
        ("stitch.rounds", ..., "field 'stitch.rounds': expected an entry, found no entry"),
        ("stitch.rounds", 2.5, "field 'stitch.rounds': expected an integer, found 2.5"),
        ("stitch.rounds", 0, "`stitch.rounds` must be between 1 and 1,000,000,000; got 0"),
        ("stitch.speed", 9, "field 'stitch.speed': expected one of rounds, .*, found 'speed'"),
        ("stitch.candidates.speed", 9, "field 'stitch.candidates.speed': expected one of branching, .*, found 'speed'"),
        ("model.hidden", 200, "field 'model.hidden': expected a list, found 200"),
        ("model.hidden", [200, "9"], r"field 'model.hidden\[1\]': expected an integer, found '9'"),
        ("model.members", 0, "`model.members` must be"),
        ("model.hidden", [200, 0], r"`model.hidden\[1\]` must be"),
        ("gamma", 10**400, "field 'gamma': expected a number, found 1000"),
        ("model", 7, "field 'model': expected an object, found 7"),
        ("certificate", 7, "field 'certificate': expected an object or null, found 7"),
        ("certificate.confidence", 1, "`certificate.confidence` must be"),
        ("certificate.reward_range", 1, "field 'certificate.reward_range': expected a list or null, found 1"),
        (
            "certificate.reward_range",
            [1],
            r"field 'certificate.reward_range': expected a list of 2 entries, found \[1\]",
        ),
    ],
)
def test_anything_else_is_refused_with_the_file_and_the_field(name: str, value: Any, message: str) -> None:
    with pytest.raises(BatsError, match=f"^a/settings.json: .*{message}"):
        from_plain(Config, changed_default(name, value), file="a/settings.json")


@dataclass(frozen=True)
class Measurement:
    """Kinds of fields that records have and settings lack."""

    counts: dict[str, int]
    kind: Literal["a", "b"] | None
    number: float = 0.0


def test_dictionaries_and_literals_come_back() -> None:
    record = Measurement({"too_far": 3, "terminates": 0}, None)
    assert from_plain(Measurement, json.loads(as_text(record)), file="records") == record
    wrong = {"counts": {"too_far": 1.5}, "kind": "a", "number": 0}
    with pytest.raises(DataError, match=r"field 'counts.too_far': expected an integer, found 1.5"):
        from_plain(Measurement, wrong, file="records")
    with pytest.raises(DataError, match="field 'kind': expected one of a, b or null, found 'c'"):
        from_plain(Measurement, {"counts": {}, "kind": "c", "number": 0}, file="records")


def test_a_text_that_is_no_json_object_is_refused() -> None:
    for text in ("", "{", "[]", "[" * 100_000, '{"counts":' * 100_000, "1" * 5000):
        with pytest.raises(DataError, match=r"records: expected (valid JSON|an object)"):
            from_plain(Measurement, parse_json(text, file="records"), file="records")


def test_a_file_is_not_read_to_its_end_if_it_is_too_long(tmp_path: Path) -> None:
    with (tmp_path / "long.json").open("wb") as stream:
        stream.truncate(10**10)  # takes no room on the disk
    with pytest.raises(DataError, match=r"long\.json: expected a text file of at most 10,000,000 letters, found a lo"):
        read_json(tmp_path / "long.json")


@pytest.mark.parametrize("depth", [20_000, *range(900, 1000, 5)])
def test_a_text_nested_too_deeply_is_refused(depth: int) -> None:
    with pytest.raises(DataError, match=r"^records: ") as caught:
        from_plain(Measurement, parse_json("[" * depth + "]" * depth, file="records"), file="records")
    assert len(str(caught.value)) < 300


def test_a_value_too_large_for_its_type_or_for_a_message_is_refused() -> None:
    for number in ("1" * 400, "1" * 5000, f'"{"x" * 10**6}"', "[1, " * 20 + "2" + "]" * 20, f"[{'7,' * 10**5}7]"):
        text = '{"counts": {}, "kind": null, "number": ' + number + "}"
        with pytest.raises(DataError, match=r"^records: ") as caught:
            from_plain(Measurement, parse_json(text, file="records"), file="records")
        assert len(str(caught.value)) < 1000


def test_lines_come_back_in_order_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    assert read_lines(Measurement, path) == ()
    records = (Measurement({"a": 1}, "a"), Measurement({}, None, float("inf")))
    write_lines(path, records)
    assert read_lines(Measurement, path) == records
    path.write_text(path.read_text().splitlines()[0] + "\nnonsense\n")
    with pytest.raises(DataError, match=r"records\.jsonl, line 2: expected valid JSON"):
        read_lines(Measurement, path)


def test_nested_settings_are_flattened_to_dotted_names() -> None:
    assert dict(flatten({"a": 1, "b": {"c": [2], "d": {"e": None}}})) == {"a": 1, "b.c": [2], "b.d.e": None}
