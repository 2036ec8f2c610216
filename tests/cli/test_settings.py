"""Every setting is a flag, a settings file gives the same configuration again, and anything unknown is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bats.cli.main import command_parser, main
from bats.cli.settings import change_settings, read_settings
from bats.config import CertificateConfig, ChoiceConfig, Config
from bats.errors import BatsError, DataError, SettingError
from bats.presets import preset
from bats.storage.json_records import flatten, to_plain, write_record
from tests.cli.printed import error_text
from tests.small_runs import SMALL

ALL = dict(flatten(to_plain(Config())))


def settings(*arguments: str) -> Config:
    return read_settings(command_parser("fit").parse_args(["log.hdf5", *arguments]))


def as_flags(config: Config) -> list[str]:
    """The flags that turn the default into this configuration."""
    flags = []
    for name, value in flatten(to_plain(config)):
        if value != ALL[name]:
            text = ",".join(map(str, value)) if isinstance(value, list) else json.dumps(value).strip('"')
            flags += [f"--{name.replace('_', '-')}", "none" if value is None else text]
    return flags


def write_json(name: str, content: Any) -> str:
    Path(name).write_text(json.dumps(content))
    return name


def shown_flags(capsys: pytest.CaptureFixture[str], flag: str) -> set[str]:
    """The flags that a help text of `fit` describes."""
    with pytest.raises(SystemExit) as ended:
        main(["fit", flag])
    assert ended.value.code == 0
    return set(re.findall(r"^ +(?:-h, )?--([\w.-]+)", capsys.readouterr().out, re.MULTILINE))


def test_without_flags_the_preset_is_taken() -> None:
    assert settings() == Config()
    assert settings("--preset", "demo") == preset("demo")


def test_flags_override_the_preset() -> None:
    assert settings(*as_flags(SMALL)) == SMALL
    paper = preset("paper-large")
    assert settings("--preset", "paper-large", "--penalty", "5") == replace(paper, penalty=5.0)


@pytest.mark.parametrize("name", ["demo", "paper-umaze", "paper-hopper", "paper-mountain-car"])
def test_every_setting_can_be_written_as_a_flag(name: str) -> None:
    assert settings(*as_flags(preset(name))) == preset(name)


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (("--gamma", "0.5"), {"gamma": 0.5}),
        (("--penalty", "none"), {"penalty": None}),
        (("--penalty", "2"), {"penalty": 2.0}),
        (("--penalize-rounds", "false"), {"penalize_rounds": False}),
        (("--final-tolerance", "inf"), {"final_tolerance": float("inf")}),
        (("--certificate.reward-range", "0,1"), {"certificate": CertificateConfig(reward_range=(0.0, 1.0))}),
        (("--certificate.reward-range=-1,1"), {"certificate": CertificateConfig(reward_range=(-1.0, 1.0))}),
        (("--choice.penalties", "30"), {"choice": ChoiceConfig(penalties=(30.0,))}),
        (("--choice.penalties", "1,30"), {"choice": ChoiceConfig(penalties=(1.0, 30.0))}),
        (("--choice.penalties", "none"), {"choice": ChoiceConfig()}),
        (("--metric", "bisimulation"), {"metric": "bisimulation"}),
    ],
)
def test_numbers_lists_switches_and_words_are_read(arguments: tuple[str, ...] | str, changes: dict[str, Any]) -> None:
    given = (arguments,) if isinstance(arguments, str) else arguments
    assert settings(*given) == replace(Config(), **changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--stitch.rounds", "two"), "field 'stitch.rounds': expected an integer, found 'two'"),
        (("--stitch.rounds", "2.5"), "field 'stitch.rounds': expected an integer, found 2.5"),
        (("--stitch.rounds", "none"), "field 'stitch.rounds': expected an integer, found None"),
        (("--stitch.rounds", "0"), "field 'stitch': `rounds` must be"),
        (("--model.linear", "yes"), "field 'model.linear': expected true or false, found 'yes'"),
        (("--model.hidden", "8,x"), r"field 'model.hidden\[1\]': expected an integer, found 'x'"),
        (("--metric", "miles"), "field 'metric': expected one of steps, raw, std, bisimulation, found 'miles'"),
        (("--gamma", "2"), "`gamma` must be strictly between 0 and 1; got 2.0"),
        (("--certificate.reward-range", "1,0"), "`reward_range` must be two finite numbers, smaller one first"),
    ],
)
def test_a_flag_that_makes_no_sense_is_refused_with_its_name(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(BatsError, match=message):
        settings(*arguments)


def test_the_settings_file_of_a_run_gives_an_equal_configuration(finished_run: Path) -> None:
    assert settings("--config", str(finished_run / "settings.json")) == SMALL
    assert settings("--config", str(finished_run)) == SMALL  # the folder is enough
    assert settings("--preset", "paper-large", "--config", str(finished_run)) == SMALL


@pytest.mark.parametrize("name", ["bisimulation", "paper-walker2d"])
def test_a_written_preset_gives_an_equal_configuration(name: str, tmp_path: Path) -> None:
    write_record(tmp_path / "settings.json", preset(name))
    assert settings("--config", str(tmp_path / "settings.json")) == preset(name)


def test_a_partial_file_is_merged_over_the_preset_and_flags_over_the_file() -> None:
    file = write_json("mine.json", {"gamma": 0.9, "stitch": {"rounds": 3, "neighbours": {"count": 5}}})
    demo = preset("demo")
    stitch = replace(demo.stitch, rounds=3, neighbours=replace(demo.stitch.neighbours, count=5))
    assert settings("--preset", "demo", "--config", file) == replace(demo, gamma=0.9, stitch=stitch)
    expected = replace(demo, gamma=0.9, stitch=replace(stitch, rounds=4))
    assert settings("--preset", "demo", "--config", file, "--stitch.rounds", "4") == expected


def test_a_file_can_switch_the_certificate_off_and_a_flag_switches_it_on_again() -> None:
    file = write_json("mine.json", {"certificate": None})
    assert settings("--config", file).certificate is None
    again = settings("--config", file, "--certificate.confidence", "0.5")
    assert again.certificate == CertificateConfig(confidence=0.5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"speed": 1}, r"mine\.json: field 'speed': expected one of gamma, .*, found 'speed'"),
        ({"stitch": {"speed": 1}}, r"mine\.json: field 'stitch.speed': expected one of rounds, .*, found 'speed'"),
        ({"stitch": 3}, r"mine\.json: field 'stitch': expected an object, found 3"),
        ({"gamma": "high"}, r"mine\.json: field 'gamma': expected a number, found 'high'"),
        ({"stitch": {"rounds": 0}}, r"mine\.json: field 'stitch': `rounds`"),
        ([1, 2], r"mine\.json: expected an object, found \[1, 2\]"),
    ],
)
def test_an_unknown_or_wrong_entry_of_a_file_is_refused_with_the_file_and_the_field(content: Any, message: str) -> None:
    with pytest.raises(BatsError, match=message):
        settings("--config", write_json("mine.json", content))


def test_a_settings_file_that_cannot_be_read_and_an_unknown_preset_are_refused() -> None:
    with pytest.raises(DataError, match=r"absent\.json: expected a readable text file"):
        settings("--config", "absent.json")
    Path("broken.json").write_text("{")
    with pytest.raises(DataError, match=r"broken\.json: expected valid JSON"):
        settings("--config", "broken.json")
    with pytest.raises(SettingError, match="no preset called 'best'"):
        settings("--preset", "best")


def test_the_long_help_shows_a_flag_for_every_setting_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    own = {action.option_strings[0][2:] for action in command_parser("fit")._actions if action.option_strings}
    long = shown_flags(capsys, "--help-all")
    expected = {name.replace("_", "-") for name in ALL}
    assert long >= expected
    not_settings = long - expected
    assert not_settings == {
        *("help", "out", "seed", "reuse", "columns", "actions", "timeouts", "max-memory", "quiet"),
        *("reward", "goal", "radius"),
        *("preset", "config", "help-all"),
    }
    assert not_settings - {"help"} <= own


def test_the_short_help_shows_at_most_20_flags_each_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    short = shown_flags(capsys, "--help")
    assert len(short) <= 20
    assert {"preset", "config", "help-all", "gamma", "stitch.rounds", "cloning.hidden"} <= short
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "discount per step (default: 0.99)" in text
    assert "(default: 256,256,256)" in text


def test_the_help_of_clone_does_not_show_the_defaults_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["clone", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--cloning.hidden VALUE units of the hidden layers --cloning.updates" in text
    assert "(default: 256,256,256)" not in text


def test_clone_changes_the_settings_of_the_run_that_flags_are_given_for() -> None:
    arguments = command_parser("clone").parse_args(["run", "--name", "wide", "--cloning.hidden", "64"])
    assert change_settings(SMALL, arguments) == replace(SMALL, cloning=replace(SMALL.cloning, hidden=(64,)))


def test_a_wrong_setting_is_reported_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "log.hdf5", "--config", write_json("mine.json", {"speed": 1})]) == 2
    assert "mine.json: field 'speed': expected one of gamma" in error_text(capsys)
