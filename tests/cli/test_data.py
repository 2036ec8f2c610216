"""`bats-rl validate`, `data collect` and `data convert`: what they print and what they write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bats.cli.main import main
from bats.data.formats.load import load_dataset
from bats.tasks.catalogue import TASK_NAMES
from tests.cli.printed import error_text
from tests.logs import assert_same


@pytest.fixture
def grid(capsys: pytest.CaptureFixture[str]) -> Path:
    """A small log of the grid world, collected by the command itself."""
    assert main(["data", "collect", "grid", "--rows", "1000", "--seed", "1"]) == 0
    assert "wrote Dataset(grid: 1,000 rows" in capsys.readouterr().out
    return Path("grid-1.hdf5")


def test_validate_prints_the_facts_and_the_notes(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(grid)]) == 0
    printed = capsys.readouterr().out
    assert "1,000" in printed
    assert "discrete: 4 actions" in printed
    assert "each had the same outcome every time" in printed
    assert "no problems" in printed


def test_validate_shows_the_decisions_that_were_made_before_the_log_was_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    timeouts = np.arange(100) % 10 == 9
    np.savez(
        "log.npz",
        observations=np.arange(100.0)[:, None],
        actions=np.zeros((100, 1)),
        rewards=timeouts,
        timeouts=timeouts,
    )
    assert main(["data", "convert", "log.npz", "log.hdf5"]) == 0
    assert "made while reading the log; `bats-rl validate` shows them" in capsys.readouterr().out
    assert main(["validate", "log.hdf5"]) == 0
    assert "decision: In the original log: The log has no next states" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["log.hdf5", "minari:chain-v0"])
def test_validate_shows_the_decisions_that_collecting_announced(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert main(["data", "collect", "chain", "--rows", "500", "--out", target]) == 0
    assert "1 decision made while reading the log; `bats-rl validate` shows them" in capsys.readouterr().out
    assert main(["validate", target]) == 0
    printed = capsys.readouterr().out
    assert printed.count("decision: ") == 1
    assert "decision: In the original log: 2 timeouts: each ends an episode." in printed


def test_convert_writes_an_equal_log(grid: Path) -> None:
    assert main(["data", "convert", str(grid), "copy.h5"]) == 0
    assert_same(load_dataset(grid), load_dataset("copy.h5"))


def test_collect_lists_the_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "collect", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in TASK_NAMES)


def test_the_published_layout_of_a_maze_can_be_requested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "collect", "maze2d-umaze", "--rows", "2000", "--published"]) == 0
    assert "wrote 2,000 rows in the published layout to maze2d-umaze-0.hdf5" in capsys.readouterr().out
    assert main(["validate", "maze2d-umaze-0.hdf5"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "did not end an episode, because the states" in printed
    assert "'infos/goal'" in printed
    assert main(["data", "collect", "maze2d-umaze", "--published", "--out", "minari:a/b-v0"]) == 2
    assert "HDF5" in error_text(capsys)


def test_nothing_is_overwritten_and_an_unknown_format_is_refused(
    grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = grid.read_bytes()
    assert main(["data", "collect", "grid", "--rows", "100", "--seed", "1"]) == 2
    assert "grid-1.hdf5 exists already" in error_text(capsys)
    assert main(["data", "convert", str(grid), "copy.txt"]) == 2
    assert "a log can only be written to a .hdf5 file or to minari:ID" in error_text(capsys)
    assert grid.read_bytes() == before
    assert [path.name for path in Path().iterdir()] == ["grid-1.hdf5"]


def test_markup_in_names_is_shown_and_not_obeyed(grid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = grid.rename("[bold]log[red].hdf5")
    assert main(["validate", str(odd)]) == 0
    assert "[bold]log[red].hdf5" in capsys.readouterr().out


def test_problems_are_shown_by_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    positions = np.concatenate([np.arange(500), np.arange(500)])
    np.savez("log.npz", observations=positions[:, None] * 1.0, actions=np.zeros((1000, 1)), rewards=positions == 7)
    for command in (["validate", "log.npz"], ["solve", "log.npz"], ["data", "convert", "log.npz", "log.h5"]):
        assert main(command) == 0
        assert "problem: Without next states, timeouts or episode ids" in capsys.readouterr().out, command
    assert main(["validate", "log.npz", "--strict"]) == 1
    assert "problems: 1" in capsys.readouterr().out


def test_columns_and_the_kind_of_actions_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{step // 5},{step},{step % 2},1.0" for step in range(20)]
    Path("log.csv").write_text("\n".join(("run,x,u,r", *rows)) + "\n")
    columns = ["--columns", "observations=x actions=u rewards=r episode=run"]
    assert main(["validate", "log.csv", *columns]) == 0
    assert "discrete: 2 actions" in capsys.readouterr().out
    assert main(["validate", "log.csv", *columns, "--actions", "continuous"]) == 0
    assert "discrete" not in capsys.readouterr().out
