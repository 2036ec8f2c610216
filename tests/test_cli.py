"""The command as people call it: what it prints, what it writes, how it ends."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bats.cli.main import main
from bats.cli.progress import PATIENCE, shown_progress
from bats.data.formats.load import load_dataset
from bats.graph.files import load_mdp


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A small log of the grid world, collected by the command itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["data", "collect", "grid", "--rows", "3000", "--seed", "1"]) == 0
    assert "wrote Dataset(grid: 3,000 rows" in capsys.readouterr().out
    return tmp_path / "grid-1.hdf5"


def test_validate_prints_the_table_and_the_notes(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(grid)]) == 0
    shown = capsys.readouterr().out
    assert "3,000" in shown
    assert "discrete: 4 actions" in shown
    assert "every one led to the same state each time" in shown


def test_solve_finds_more_than_the_log_earned_and_saves_the_mdp(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["solve", str(grid), "--gamma", "0.9", "--save", "mdp"]) == 0
    shown = {
        cells[0].strip(): cells[1].strip()
        for cells in (line.strip("│ ").split("│") for line in capsys.readouterr().out.splitlines())
        if len(cells) == 2
    }
    assert float(shown["best value at the starts"].split()[0]) > float(shown["what the log earned from them"])
    assert load_mdp(Path("mdp")).gamma == 0.9


def test_convert_writes_an_equal_log(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "convert", str(grid), "copy.h5"]) == 0
    first, second = load_dataset(grid), load_dataset("copy.h5")
    for field in ("observations", "actions", "rewards", "next_observations", "terminations", "episode_ends", "starts"):
        assert np.array_equal(getattr(first, field), getattr(second, field)), field
    assert first.action_count == second.action_count


def test_the_published_layout_of_a_maze_can_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "collect", "maze2d-umaze", "--rows", "2000", "--published"]) == 0
    assert "wrote 2,000 rows in the published layout to maze2d-umaze-0.hdf5" in capsys.readouterr().out
    assert main(["validate", "maze2d-umaze-0.hdf5"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "joined because the states go on" in shown
    assert "'infos/goal'" in shown


def test_nothing_is_overwritten_and_a_wrong_suffix_is_told(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = grid.read_bytes()
    assert main(["data", "collect", "grid", "--rows", "100", "--seed", "1"]) == 2
    assert "grid-1.hdf5 exists already" in capsys.readouterr().err
    assert main(["data", "convert", str(grid), "copy.txt"]) == 2
    assert "a log is written as .hdf5 or to minari:ID" in capsys.readouterr().err
    assert grid.read_bytes() == before
    assert [path.name for path in grid.parent.iterdir()] == ["grid-1.hdf5"]


def test_errors_go_to_stderr_with_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    assert main(["validate", str(tmp_path / "absent.hdf5")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "absent.hdf5" in told.err
    assert main(["data", "collect", "no-such-task"]) == 2
    assert "known are maze2d-umaze" in capsys.readouterr().err


def test_names_with_markup_are_shown_and_not_obeyed(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = grid.rename(grid.with_name("[bold]log[red].hdf5"))
    assert main(["validate", str(odd)]) == 0
    assert "[bold]log[red].hdf5" in capsys.readouterr().out


def test_the_installed_command_teaches() -> None:
    command = Path(sys.executable).with_name("bats-rl")
    for verb in (
        (),
        ("validate",),
        ("solve",),
        ("evaluate",),
        ("export",),
        ("data",),
        ("data", "collect"),
        ("data", "convert"),
    ):
        told = subprocess.run([command, *verb, "--help"], check=True, capture_output=True, text=True)
        assert "usage: bats-rl" in told.stdout
    wrong = subprocess.run([command, "no-such-verb"], capture_output=True, check=False)
    assert wrong.returncode == 2


def test_slow_stages_get_a_bar_on_a_terminal_and_quick_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0, 100, PATIENCE * 0.8))
    monkeypatch.setattr("bats.cli.progress.time.monotonic", lambda: float(next(clock)))
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with shown_progress(console) as report:
        report("quick", 1, 1)
        for done in range(4):
            report("slow", done, 4)
    assert "slow" in screen.getvalue()
    assert "quick" not in screen.getvalue()


def test_without_a_terminal_there_is_a_line_now_and_then_with_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 6.0, 7.0])
    monkeypatch.setattr("bats.cli.progress.time.monotonic", lambda: next(clock))
    screen = io.StringIO()
    with shown_progress(Console(file=screen, width=100)) as report:
        for done in (0, 1, 3, 4):
            report("reading", done, 9)
    assert screen.getvalue() == "reading: 3 of 9, about 12 s left\n"  # 6 s for 3, so 12 s for the other 6


def test_problems_are_told_by_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    places = np.concatenate([np.arange(500), np.arange(500)])
    np.savez("log.npz", observations=places[:, None] * 1.0, actions=np.zeros((1000, 1)), rewards=places == 7)
    for command in (["validate", "log.npz"], ["solve", "log.npz"], ["data", "convert", "log.npz", "log.h5"]):
        assert main(command) == 0
        assert "problem: The log has neither next states nor timeouts" in capsys.readouterr().out, command
    assert main(["validate", "log.npz", "--strict"]) == 1


def test_settings_that_make_no_sense_are_told(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for setting in (["--gamma", "1"], ["--gamma", "0"], ["--dead-end-value", "nan"]):
        assert main(["solve", str(grid), *setting]) == 2
        assert "must" in capsys.readouterr().err
    (grid.parent / "taken").mkdir()
    assert main(["solve", str(grid), "--save", "taken"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["data", "collect", "maze2d-umaze", "--published", "--out", "minari:a/b-v0"]) == 2
    assert "HDF5" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="sends a signal")
def test_an_interrupt_in_a_kernel_is_raised_and_does_not_bring_the_process_down() -> None:
    program = """
import os, signal, threading, numpy as np
from bats.data.distinct import number_rows
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts in the background
words = np.random.default_rng(0).integers(0, 2**31, size=(4_000_000, 4)).astype(np.int32)
number_rows(words[:10])
for _ in range(6):
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        number_rows(words)
        threading.Event().wait(5)
    except KeyboardInterrupt:
        print("interrupted")
"""
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    assert told.stdout.split() == ["interrupted"] * 6


def test_quiet_says_nothing() -> None:
    screen = io.StringIO()
    with shown_progress(Console(file=screen, force_terminal=True), quiet=True) as report:
        report("reading", 1, 9)
    assert screen.getvalue() == ""


def test_an_interrupted_command_ends_with_130(grid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bats.cli.main.load_dataset", interrupt)
    assert main(["validate", str(grid)]) == 130
    assert os.listdir(grid.parent) == ["grid-1.hdf5"]  # noqa: PTH208


@pytest.mark.parametrize("bad", ["cut.hdf5", "nan.npz", "columns.csv", "absent.parquet"])
def test_a_bad_log_leaves_nothing_behind_whatever_was_asked(
    bad: str, grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = grid.parent
    (folder / "cut.hdf5").write_bytes(grid.read_bytes()[:5000])
    states = np.zeros((20, 2))
    states[17, 1] = np.nan
    np.savez(folder / "nan.npz", observations=states, actions=np.zeros((20, 1)), rewards=np.zeros(20))
    (folder / "columns.csv").write_text("x,y\n1,2\n3,4\n")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for command in (["validate", bad], ["solve", bad, "--save", "mdp"], ["data", "convert", bad, "out.hdf5"]):
        assert main(command) == 2
        assert bad in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
