"""The command as people call it: which commands there are, and how they end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bats.cli.main import COMMANDS, DATA, command_parser, main
from tests.cli.printed import error_text


def test_errors_go_to_stderr_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "absent.hdf5"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "error: absent.hdf5" in printed.err
    assert main(["data", "collect", "lunarlander"]) == 2
    assert "'lunarlander'; similar: lunar-lander" in error_text(capsys)


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["data"], ["data", "no-such-command"], ["collect"]])
def test_an_unknown_command_ends_with_exit_code_2_and_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "--help` lists the options" in capsys.readouterr().err


def test_an_unknown_or_abbreviated_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--no-such-flag", "--stric"):
        with pytest.raises(SystemExit) as ended:
            main(["validate", "log.hdf5", flag])
        assert ended.value.code == 2
        assert flag in capsys.readouterr().err


def test_help_lists_every_command_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for name, (_, summary) in COMMANDS.items():
        assert f"{'data ' if name in DATA else ''}{name} {summary}" in lines


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_each_of_its_arguments(name: str) -> None:
    parser = command_parser(name)
    text = " ".join(parser.format_help().split())
    assert text.startswith(f"usage: bats-rl {'data ' if name in DATA else ''}{name} ")
    summary = COMMANDS[name][1]
    assert f"{summary[0].upper()}{summary[1:]}." in text
    assert all(action.help for action in parser._actions)


def test_the_installed_command_runs() -> None:
    command = Path(sys.executable).with_name("bats-rl")
    printed = subprocess.run([command, "--version"], check=True, capture_output=True, text=True)
    assert printed.stdout.strip()


def test_an_interrupted_command_ends_with_130_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bats.cli.data.load_dataset", interrupt)
    assert main(["data", "convert", "log.csv", "log.hdf5"]) == 130
    assert "interrupted; no file is incomplete" in error_text(capsys)
    assert os.listdir() == []  # noqa: PTH208


@pytest.mark.skipif(os.name == "nt", reason="sends a signal")
def test_an_interrupt_in_compiled_code_is_raised_and_does_not_end_the_process() -> None:
    program = """
import os, signal, threading, numpy as np
from bats.data.distinct import number_rows
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts in the background
words = np.random.default_rng(0).integers(0, 2**31, size=(2_000_000, 4)).astype(np.int32)
number_rows(words[:10])
for _ in range(3):
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        number_rows(words)
        threading.Event().wait(60)
    except KeyboardInterrupt:
        print("interrupted")
"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ended.stdout.split() == ["interrupted"] * 3


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
@pytest.mark.parametrize("name", ["evil\x1b]0;title\x07\x9b31m\n", os.fsdecode(b"\xff\xfe"), "right \u202e left"])
def test_names_of_files_do_not_control_the_terminal(name: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for command in (
        ["data", "collect", "chain", "--rows", "50", "--out", f"{name}.hdf5"],
        ["validate", f"{name}.hdf5"],
        ["data", "convert", f"{name}.hdf5", f"{name}-2.hdf5"],
        ["solve", f"{name}.hdf5", "--save", f"{name}-mdp"],
    ):
        assert main(command) == 0
    assert main(["validate", f"{name}.csv"]) == 2
    assert main(["evaluate", name]) == 2
    assert main(["report", name]) == 2
    printed = capfdbinary.readouterr()
    for text in (printed.out.decode(), printed.err.decode()):  # valid UTF-8 too
        assert all(letter.isprintable() for line in text.split("\n") for letter in line)
        assert "\\" in text  # escaped


def test_output_into_a_closed_pipe_is_no_error() -> None:
    program = "import sys; from bats.cli.main import main; sys.exit(main(['data', 'collect', 'list']))"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


@pytest.mark.parametrize("bad", ["cut.hdf5", "nan.npz", "columns.csv", "absent.parquet"])
def test_a_bad_log_leaves_nothing_behind_whatever_the_command(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "collect", "grid", "--rows", "300", "--out", "grid.hdf5"]) == 0
    Path("cut.hdf5").write_bytes(Path("grid.hdf5").read_bytes()[:5000])
    states = np.zeros((20, 2))
    states[17, 1] = np.nan
    np.savez("nan.npz", observations=states, actions=np.zeros((20, 1)), rewards=np.zeros(20))
    Path("columns.csv").write_text("x,y\n1,2\n3,4\n")
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    for command in (
        ["validate", bad],
        ["solve", bad, "--save", "mdp"],
        ["data", "convert", bad, "out.hdf5"],
        ["fit", bad, "--out", "run"],
    ):
        assert main(command) == 2
        assert bad in error_text(capsys)
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
"""what a terminal may obey; the command itself prints nothing of it but line breaks"""


def test_control_characters_in_the_name_of_a_file_are_shown_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    name = "clear\x1b[2J\x07\nproblems: 0.csv"
    shown = r"clear\x1b[2J\x07\nproblems: 0"
    assert main(["validate", name]) == 2
    assert f"error: {shown}.csv: expected a CSV file, found no such file." in error_text(capsys)
    Path(name).write_text("observations,actions,rewards\n0,0.5,0\n1,0.5,1\n2,0.5,0\n")
    for arguments in (["validate", name], ["data", "convert", name, f"{name}.hdf5"]):
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        assert shown in printed
        assert CONTROL.search(printed) is None
    assert main(["data", "convert", name, f"{name}.hdf5"]) == 2  # it exists by now
    assert f"error: {shown}.csv.hdf5 exists already" in error_text(capsys)
    with pytest.raises(SystemExit):
        main(["validate", name, f"{name}.hdf5"])  # as a pattern of the shell may have it
    assert f"unknown argument {shown}.csv.hdf5" in error_text(capsys)


def test_a_name_that_is_not_unicode_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", os.fsdecode(b"caf\xe9.csv")]) == 2
    assert r"error: caf\udce9.csv: expected a CSV file" in error_text(capsys)


def test_control_characters_in_the_names_inside_a_file_are_shown_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    Path("log.csv").write_text("a\x1b[2J,b,c\x9b1m\n1,2,3\n2,3,4\n3,4,5\n")
    assert main(["validate", "log.csv", "--columns", "observations=a\x1b[2J actions=b rewards=x"]) == 2
    printed = capsys.readouterr().err
    assert r"found only 'a\x1b[2J', 'b', 'c\x9b1m'" in " ".join(printed.split())
    assert CONTROL.search(printed) is None
    assert main(["validate", "log.csv", "--columns", "observations=a\x1b[2J actions=b rewards=c\x9b1m"]) == 0
    printed = capsys.readouterr().out
    assert r"observation a\x1b[2J" in printed
    assert CONTROL.search(printed) is None
