"""`bats-rl baseline`: trains a method on a log; evaluate, report and export take its run."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from bats.baselines.config import CONFIGS
from bats.cli.main import main
from bats.cli.studies import setting_texts
from bats.data.dataset import Dataset
from bats.data.formats.hdf5 import write_hdf5
from bats.errors import SettingError
from bats.policy.files import load_policy
from tests.cli.printed import error_text
from tests.logs import small_log as raw_log
from tests.logs import write_arrays
from tests.report.pages import facts_of
from tests.small_runs import small_log

SMALL = ["--updates", "20", "--snapshots", "2", "--hidden", "4", "--batch-size", "8", "--quiet"]


@pytest.fixture
def log(empty_folder: Path) -> str:
    write_hdf5(small_log(), empty_folder / "log.hdf5")
    return "log.hdf5"


def test_a_baseline_is_trained_and_its_run_can_be_used_like_any_other(
    log: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["baseline", "bc", log, "--out", "run", *SMALL]) == 0
    assert "bats-rl evaluate run" in capsys.readouterr().out
    assert main(["export", "run", "alone.safetensors"]) == 0
    policy = load_policy("alone.safetensors")
    assert policy.card["method"] == "bc"
    assert np.all(np.abs(policy.predict(small_log().observations)) <= 0.1)
    assert main(["report", "run"]) == 0
    page = Path("run/report.html").read_text()
    assert "log.hdf5: bc" in page
    assert "A baseline without bounds or verdict" in page
    capsys.readouterr()
    assert main(["baseline", "bc", log, "--out", "run", *SMALL]) == 0
    assert "already finished; nothing was done" in capsys.readouterr().out


def test_the_names_of_the_log_are_kept_by_the_policy_and_shown_in_the_report(empty_folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{x},{y},{u},{u}" for x, y, u in rng.random((200, 3))]
    Path("log.csv").write_text("\n".join(["pole_angle,speed,push,gain", *rows]))
    columns = "observations=pole_angle,speed actions=push rewards=gain"
    assert main(["baseline", "bc", "log.csv", "--columns", columns, "--out", "run", *SMALL]) == 0
    with pytest.raises(SettingError, match="speed is nan"):
        load_policy("run/policy.safetensors").predict([0.0, np.nan])
    assert main(["report", "run"]) == 0
    assert facts_of(Path("run/report.html"))["components of the state"] == "pole_angle, speed"


def test_logs_from_which_little_can_be_learned_are_trained_on_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    same = small_log(1, 40)  # a single episode
    write_hdf5(same.with_rewards(np.ones(len(same))), Path("same.hdf5"))
    assert main(["baseline", "bc", "same.hdf5", "--out", "same", *SMALL]) == 0
    problem = "problem: Every reward is 1 and no episode terminates, so no behaviour is better than another."
    assert problem in capsys.readouterr().out
    assert main(["report", "same"]) == 0
    assert problem.removeprefix("problem: ") in Path("same/report.html").read_text()
    actions = np.where(np.arange(len(same)) == 7, 4, np.arange(len(same)) % 3)
    np.savez("once.npz", **raw_fields(same), actions=actions)
    assert main(["baseline", "bc", "once.npz", "--out", "once", *SMALL]) == 0
    assert load_policy("once/policy.safetensors").action_count == 5
    np.savez("fraction.npz", **raw_fields(same), actions=np.where(actions == 4, 1.5, actions))
    assert main(["baseline", "bc", "fraction.npz", "--actions", "discrete", "--out", "fraction", *SMALL]) == 2
    assert "row 7: expected a non-negative integer, found 1.5" in error_text(capsys)


def raw_fields(log: Dataset) -> dict[str, np.ndarray]:
    return {name: getattr(log, name) for name in ("observations", "rewards", "next_observations", "terminations")}


def test_the_returns_of_a_baseline_are_shown_under_its_name(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_arrays(Path("car.hdf5"), raw_log())  # two observations and one action, as the car has them
    assert main(["baseline", "bc", "car.hdf5", "--out", "run", *SMALL]) == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "--environment", "MountainCarContinuous-v0", "--episodes", "1", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "bc: mean return of the policy of bc in the environment" in printed
    assert "cloned" not in printed


def test_commands_that_need_a_graph_refuse_a_baseline(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "bc", log, "--out", "run", *SMALL]) == 0
    for command in (["certify", "run"], ["clone", "run", "--name", "other"], ["solve", "run"]):
        assert main(command) == 2
        assert "expected a run of BATS, found a run of bc" in error_text(capsys)


def test_a_setting_of_another_method_is_refused(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "bc", log, "--expectile", "0.9"]) == 2
    assert "--expectile is not a setting of this method" in error_text(capsys)


def test_bad_logs_are_refused_before_any_work(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = raw_log()
    discrete = write_arrays(Path("discrete.hdf5"), {**arrays, "actions": np.arange(24) % 3})
    assert main(["baseline", "td3-bc", str(discrete), "--out", "run"]) == 2
    assert "expected continuous actions, which td3-bc needs, found 3 discrete actions" in error_text(capsys)
    constant = write_arrays(Path("constant.hdf5"), {**arrays, "rewards": np.zeros(24)})
    assert main(["baseline", "td3-bc", str(constant), "--out", "run"]) == 2
    assert "a reward of 0 in every row" in error_text(capsys)
    assert not Path("run").exists()


def test_every_setting_has_a_text_with_its_defaults() -> None:
    texts = setting_texts()
    assert texts.keys() == {field.name for kind in CONFIGS.values() for field in fields(kind)}
    assert all(len(text) > 20 for text in texts.values())
    assert texts["updates"] == "training updates (default: 1000000, bear: 300000, combo: 300000)"
