"""The files of a run belong together: what is changed, missing or taken from another run is refused by its name."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bats.bounds.certificate import load_certificate
from bats.cli.main import main
from bats.config import CertificateConfig
from bats.errors import DataError
from bats.report.page import write_report
from bats.runs.manifest import NAME, current_files, file_checksum
from bats.runs.pipeline import fit
from bats.runs.result import load_result
from bats.runs.variants import certify_again, clone_again
from tests.cli.printed import error_text
from tests.conftest import CopyRun
from tests.runs.relisted import relisted
from tests.small_runs import SMALL, small_log

FILES = (
    "attempts/round-0002.safetensors",
    "bounds.safetensors",
    "certificate.json",
    "finished.json",
    "mdp/base.safetensors",
    "mdp/round-0001.safetensors",
    "model.json",
    "model.safetensors",
    "policy.json",
    "policy.safetensors",
    "records.jsonl",
    "rollouts.safetensors",
)
COMMANDS = (
    "report run",
    "export run policy.onnx",
    "evaluate run",
    "solve run",
    "certify run --confidence 0.5",
    "clone run --name again",
)


@pytest.fixture(scope="module")
def other_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of another log, with the same settings."""
    folder = tmp_path_factory.mktemp("other") / "run"
    fit(small_log(seed=1), SMALL, folder=folder)
    return folder


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_every_file_of_a_run_is_listed_but_those_that_differ_between_equal_runs(finished_run: Path) -> None:
    files = {path.relative_to(finished_run).as_posix() for path in finished_run.rglob("*") if path.is_file()}
    listed = json.loads((finished_run / NAME).read_text())["files"].keys()
    assert files - listed == {NAME, "lock", "settings.json", "timings.jsonl"}
    assert listed <= files
    assert set(FILES) <= listed


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_run_is_refused_by_every_command(
    name: str,
    run_copy: Path,
    other_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copy(other_run / name, run_copy / name)
    monkeypatch.chdir(run_copy.parent)
    for command in COMMANDS:
        assert main(command.split()) == 2
        assert f"run/{name}: expected the content that this run has written" in error_text(capsys)
    for read in (load_result, certify_again_with_defaults, clone_again, fit_again):
        with pytest.raises(DataError, match=name):
            read(run_copy)


def certify_again_with_defaults(folder: Path) -> object:
    return certify_again(folder, CertificateConfig())


def fit_again(folder: Path) -> object:
    return fit(small_log(), SMALL, folder=folder)


@pytest.mark.parametrize("name", ["certificate.json", "policy.safetensors", "mdp/round-0001.safetensors"])
def test_a_file_that_is_missing_is_named(name: str, run_copy: Path) -> None:
    (run_copy / name).unlink()
    for read in (load_result, write_report, fit_again):
        with pytest.raises(DataError, match=f"{name}: expected a file that this run has written, found no such file"):
            read(run_copy)


@pytest.mark.parametrize("name", ["../outside.txt", "/dev/null", "mdp/../model.json", "lock", "settings.json"])
def test_a_list_with_names_that_no_file_of_a_run_has_is_refused(name: str, run_copy: Path) -> None:
    (run_copy.parent / "outside.txt").write_text("of somebody else")
    checksum = hashlib.sha256((run_copy / name).read_bytes()).hexdigest()
    edit(run_copy / NAME, files=json.loads((run_copy / NAME).read_text())["files"] | {name: checksum})
    for read in (load_result, fit_again):
        with pytest.raises(DataError, match=f"{name}: expected a file that this run has written, found no such file"):
            read(run_copy)


@pytest.mark.skipif(sys.platform == "win32", reason="needs the devices of Unix")
def test_devices_in_the_place_of_files_are_refused_unread(run_copy: Path) -> None:
    for name in ("model.json", NAME):
        (run_copy / name).unlink()
        (run_copy / name).symlink_to("/dev/zero")
        with pytest.raises(DataError, match=rf"{name}: .*found something that is not a regular file"):
            load_result(run_copy)


def test_a_file_that_the_run_never_wrote_is_named(run_copy: Path) -> None:
    shutil.copy(run_copy / "mdp/round-0003.safetensors", run_copy / "mdp/round-0004.safetensors")
    with pytest.raises(DataError, match=r"round-0004\.safetensors: expected only files that this run has written"):
        load_result(run_copy)


def test_files_that_somebody_added_to_a_run_are_left_alone(run_copy: Path) -> None:
    added = [run_copy / name for name in ("policy.onnx", "model.png", "mdp/.DS_Store", "attempts/notes.txt")]
    for path in added:
        path.write_text("mine")
    load_result(run_copy)
    unfinished = (run_copy / "finished.json", run_copy / "certificate.json", run_copy / "bounds.safetensors")
    for path in unfinished:
        path.unlink()
    relisted(run_copy)
    fit_again(run_copy)
    assert all(path.exists() for path in (*added, *unfinished))


def test_a_verdict_that_was_edited_is_not_believed(run_copy: Path) -> None:
    edit(run_copy / "certificate.json", reasons=[])
    for read in (load_result, write_report, fit_again):
        with pytest.raises(DataError, match=r"certificate\.json: expected the content that this run has written"):
            read(run_copy)
    # nor is it where somebody lists the files anew
    with pytest.raises(DataError, match=r"certificate\.json: expected the certificate that bounds\.safetensors"):
        load_result(relisted(run_copy))


def test_settings_that_were_edited_after_their_stage_are_refused(run_copy: Path) -> None:
    model = json.loads((run_copy / "settings.json").read_text())["model"]
    edit(run_copy / "settings.json", model=model | {"updates": 61})
    with pytest.raises(DataError, match=r"settings\.json: expected the settings that the stage 'model' was made with"):
        load_result(run_copy)


def test_a_run_without_its_list_is_refused_and_nothing_is_removed(run_copy: Path) -> None:
    (run_copy / NAME).unlink()
    before = sorted(run_copy.rglob("*"))
    for read in (load_result, fit_again):
        with pytest.raises(
            DataError, match=r"files\.json: expected the list of this run's files, found none, although"
        ):
            read(run_copy)
    assert sorted(run_copy.rglob("*")) == before


def test_a_file_of_another_run_in_an_unfinished_one_is_refused(run_copy: Path, other_run: Path) -> None:
    for name in ("finished.json", "certificate.json", "bounds.safetensors"):
        (run_copy / name).unlink()
    relisted(run_copy)
    shutil.copy(other_run / "policy.safetensors", run_copy / "policy.safetensors")
    with pytest.raises(DataError, match=r"policy\.safetensors: expected the content that this run has written"):
        fit_again(run_copy)


def test_a_certificate_has_the_checksum_of_its_policy(finished_run: Path) -> None:
    certificate = load_certificate(finished_run)
    assert certificate is not None
    assert certificate.policy == file_checksum(finished_run / "policy.safetensors")


def test_an_evaluation_of_another_policy_is_refused(copy_run: CopyRun, other_run: Path) -> None:
    run = copy_run("evaluated")
    checksum = file_checksum(other_run / "policy.safetensors")
    (run / "evaluation.json").write_text(json.dumps({"policy": checksum, "cloned": {"mean_return": 1.0}}))
    with pytest.raises(DataError, match=r"evaluation\.json: expected an evaluation of this run's policy"):
        write_report(run)


def test_arrays_that_are_changed_in_place_are_found_when_they_are_read(run_copy: Path) -> None:
    # the checksum in the file's head stays, so the list alone does not show it
    content = bytearray((run_copy / "policy.safetensors").read_bytes())
    content[-3] ^= 1
    (run_copy / "policy.safetensors").write_bytes(content)
    assert current_files(run_copy) == json.loads((run_copy / NAME).read_text())["files"]
    with pytest.raises(DataError, match=r"policy\.safetensors: expected content that matches its checksum"):
        load_result(run_copy)


def test_two_runs_of_the_same_log_list_the_same_checksums(finished_run: Path, tmp_path: Path) -> None:
    again = fit(small_log(), SMALL, folder=tmp_path / "again")
    assert np.array_equal(again.policy.weights[0], load_result(finished_run).policy.weights[0])
    assert (tmp_path / "again" / NAME).read_text() == (finished_run / NAME).read_text()
