"""Every script in `examples/` runs, on a small log and with a small configuration in place of the preset `demo`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from bats.presets import PRESETS
from bats.storage.json_records import read_json
from tests.conftest import CopyRun
from tests.small_runs import SMALL, small_log

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PRESETS, "demo", SMALL)


def run(name: str, *arguments: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def test_there_are_five_and_each_is_short() -> None:
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert [script.stem for script in scripts] == [
        "compare_runs",
        "numpy_only",
        "onnx_runtime",
        "own_csv",
        "own_reward",
    ]
    assert all(len(script.read_text().splitlines()) <= 40 for script in scripts)


@pytest.mark.slow
def test_an_own_csv_ends_with_a_verdict_and_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = small_log()
    episode = np.cumsum(np.concatenate([[0], log.episode_ends[:-1]]))
    table = np.column_stack([episode, log.observations, log.actions, log.rewards])
    np.savetxt("log.csv", table, delimiter=",", header="run,x,y,push_x,push_y,reward", comments="")
    run("own_csv", "log.csv", monkeypatch=monkeypatch)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(("deploy", "hold"))
    assert Path("run/report.html").exists()


def test_an_own_reward_is_cloned_beside_the_first_policy(
    copy_run: CopyRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_run("run")
    run("own_reward", folder, monkeypatch=monkeypatch)
    assert "rollouts were cloned" in capsys.readouterr().out
    card = read_json(folder / "policies" / "middle.json")
    assert card["solved_under"] == {"reward": "near_the_middle"}


def test_the_policy_with_numpy_alone_answers_within_its_bounds(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("numpy_only", finished_run / "policy.safetensors", monkeypatch=monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert sum("support distance" in line for line in lines) == 5
    assert lines[-1] == "all at once: (5, 2)"


def test_onnxruntime_answers_as_the_policy_does(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    run("onnx_runtime", finished_run, monkeypatch=monkeypatch)
    assert "action (" in capsys.readouterr().out
    assert Path("policy.onnx").exists()


def test_two_equal_runs_are_not_certified_to_differ(
    copy_run: CopyRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("compare_runs", copy_run("first"), copy_run("second"), monkeypatch=monkeypatch)
    assert "neither is certified to be better" in capsys.readouterr().out
    assert Path("comparison.html").exists()
