"""A run folder of version 0.1 is refused by every command with advice, and its policy still loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bats.cli.main import main
from bats.data.formats.hdf5 import write_hdf5
from bats.errors import DataError
from bats.runs.folder import RunFolder
from bats.runs.result import load_result
from tests.cli.printed import error_text
from tests.logs import folder_bytes
from tests.policy import old_policy
from tests.small_runs import small_log

HEADER = {
    "version": 5,
    "package": "0.1.0",
    "log": "log.hdf5",
    "fingerprint": "0" * 64,
    "seed": 0,
    "config": {"gamma": 0.99, "metric": "deviations", "penalty": 3.0, "penalty_unit": "step", "charge": "during"},
}
"""as version 0.1 wrote run.json, with a few of its settings"""
SUMMARY = {"rounds": 2, "gamma": 0.99, "penalty": 3.0, "penalty_unit": "step", "price": 0.1}


@pytest.fixture
def old() -> Path:
    folder = Path("old")
    (folder / "mdp").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(HEADER, indent=2))
    (folder / "finished.json").write_text(json.dumps(SUMMARY, indent=2))
    (folder / "policy.safetensors").write_bytes(old_policy.CONTENT)
    write_hdf5(small_log(), Path("log.hdf5"))
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "log.hdf5", "--out", "old"],
        ["evaluate", "old"],
        ["report", "old"],
        ["export", "old", "policy.onnx"],
        ["export", "old", "policy.safetensors"],
        ["solve", "old"],
        ["clone", "old", "--name", "other"],
        ["certify", "old", "--confidence", "0.9"],
    ],
    ids=" ".join,
)
def test_an_old_folder_is_refused_with_advice(
    old: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_bytes(Path())
    assert main(arguments) == 2
    message = error_text(capsys)
    assert "old/run.json: expected a run folder of version 9, found version 5." in message
    assert (
        "It was written by bats-rl 0.1.0. Fit the log again. The file policy.safetensors can still be loaded."
        in message
    )
    assert folder_bytes(Path()) == before


def test_the_policy_of_an_old_folder_can_still_be_exported(old: Path) -> None:
    assert main(["export", "old/policy.safetensors", "mine.safetensors"]) == 0
    assert Path("mine.json").exists()


def test_an_old_folder_is_refused_from_python_too(old: Path) -> None:
    for read in (load_result, lambda folder: RunFolder(folder).settings()):
        with pytest.raises(DataError, match=r"a run folder of version 9, found version 5\. .*Fit the log again"):
            read(old)
