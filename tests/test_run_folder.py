"""One process at a time, one run a folder, and nothing lost whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from bats.data.dataset import Dataset
from bats.errors import DataError, OutputError
from bats.runs.folder import Finished, Identity, RunFolder, Timing, fingerprint
from tests.logs import folder_bytes, small_log
from tests.test_resolve import CHAIN, shortcuts
from tests.users import ordinary_user

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Inner:
    rounds: int = 3


@dataclass(frozen=True)
class Settings:
    gamma: float = 0.9
    stitch: Inner = Inner()


@dataclass(frozen=True)
class Did:
    round: int
    value: float


@dataclass(frozen=True, eq=False)
class Tried:
    error: np.ndarray


MINE = Identity("log.hdf5", "abc", 0, Settings())
ENDED = Finished(2, 0.9, 0.5, "step", 0.1, None, 0.0, 1.0, 1.0, 1.0, (1.0,))


def add_round(run: RunFolder, number: int) -> None:
    records = tuple(Did(each, each / 10) for each in range(1, number + 1))
    run.add_round(number, shortcuts([number / 10]), {"error": np.array([number / 10])}, records)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with two rounds that is not finished."""
    run = RunFolder(tmp_path / "run")
    with run.claimed(MINE):
        run.save_mdp(CHAIN)
        add_round(run, 1)
        add_round(run, 2)
        run.add_timing(Timing("stitching", 2, 0.5))
    return run


def test_what_was_kept_is_there_again(run: RunFolder) -> None:
    again = RunFolder(run.path)
    with again.claimed(MINE):
        assert again.rounds_done == 2
        assert [tried.error.tolist() for tried in again.attempts(Tried)] == [[0.1], [0.2]]
        assert again.records(Did) == (Did(1, 0.1), Did(2, 0.2))
        assert again.timings() == (Timing("stitching", 2, 0.5),)
        assert again.load_mdp().stitch_count == 2
        again.finish(ENDED)
    assert again.finished() == ENDED


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (replace(MINE, seed=7), "its seed is 0, not 7"),
        (replace(MINE, config=Settings(gamma=0.5)), "its gamma is 0.9, not 0.5"),
        (replace(MINE, config=Settings(stitch=Inner(5))), "its stitch.rounds is 3, not 5"),
        (replace(MINE, log="new.csv", fingerprint="x"), "its log is log.hdf5, with other contents than new.csv"),
        (replace(MINE, seed=7, config=Settings(gamma=0.5)), "its seed is 0, not 7; its gamma is 0.9, not 0.5"),
    ],
)
def test_another_run_is_refused_with_what_differs_and_nothing_is_touched(
    run: RunFolder, other: Identity, told: str
) -> None:
    before = folder_bytes(run.path)
    with pytest.raises(OutputError, match=f"{run.path} is the folder of another run: {told}"), run.claimed(other):
        pytest.fail("the block must not run")
    assert folder_bytes(run.path) == before


def test_a_log_that_was_moved_is_the_same_log(run: RunFolder) -> None:
    with run.claimed(replace(MINE, log="elsewhere/log.hdf5")):
        assert run.rounds_done == 2


def test_a_folder_that_is_no_run_is_refused_untouched_and_an_empty_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("…")
    before = folder_bytes(tmp_path)
    with pytest.raises(OutputError, match="not empty and not the folder of a run"):
        RunFolder(tmp_path / "letters").claimed(MINE).__enter__()
    with pytest.raises(OutputError, match=r"dear.txt could not be read: Not a directory"):
        RunFolder(tmp_path / "letters" / "dear.txt").claimed(MINE).__enter__()
    assert folder_bytes(tmp_path) == before
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".run.json.0123abcd.tmp").write_text("{")  # killed before anything was whole
    with RunFolder(tmp_path / "empty").claimed(MINE):
        assert sorted(os.listdir(tmp_path / "empty")) == ["lock", "run.json"]  # noqa: PTH208


def test_a_damaged_identity_is_told_with_its_field(run: RunFolder) -> None:
    path = run.path / "run.json"
    whole = json.loads(path.read_text())
    for changed, told in (
        ({**whole, "version": 99}, "expected a run folder of version 5, found version 99"),
        ({**whole, "seed": "0"}, "field 'seed': expected a whole number"),
        ({**whole, "config": {"gamma": 0.9}}, "field 'stitch': expected an entry, found none"),
        ([], "expected an object"),
    ):
        path.write_text(json.dumps(changed))
        with pytest.raises(DataError, match=rf"run\.json: .*{told}"), run.claimed(MINE):
            pytest.fail("the block must not run")


def test_what_belongs_to_no_finished_round_is_dropped_and_what_was_half_written_too(run: RunFolder) -> None:
    before = folder_bytes(run.path)
    with run.claimed(MINE):
        add_round(run, 3)
    (run.path / "mdp" / "round-0003.safetensors").unlink()  # as if killed just before it was written
    for name in ("mdp/.round-0003.safetensors.0123abcd.tmp", ".model.json.4567cdef.tmp"):
        (run.path / name).write_text("half")
    (run.path / "mine.txt").write_text("whole")
    assert run.records(Did) == (Did(1, 0.1), Did(2, 0.2))
    with run.claimed(MINE):
        assert folder_bytes(run.path) == before | {"mine.txt": b"whole"}


def test_a_second_process_is_told_and_the_first_one_is_not_disturbed(run: RunFolder) -> None:
    program = "from tests.test_run_folder import *; RunFolder(sys.argv[1]).claimed(MINE).__enter__()"
    command = [sys.executable, "-c", program, str(run.path)]
    with run.claimed(MINE):
        before = folder_bytes(run.path)
        second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert f"OutputError: Another process is at work in {run.path}" in second.stderr
        assert folder_bytes(run.path) == before
    subprocess.run(command, cwd=ROOT, check=True)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users as Unix has them")
def test_a_folder_one_may_not_write_to_is_told_and_a_finished_run_in_it_can_be_read() -> None:
    with TemporaryDirectory() as place:  # the folder of tmp_path is closed to others
        path = Path(place) / "run"
        run = RunFolder(path)
        with run.claimed(MINE):
            pass
        (path / "lock").unlink()
        for folder in (Path(place), path):
            folder.chmod(0o555)
        with ordinary_user():
            with pytest.raises(OutputError, match=r"run/lock could not be written: Permission denied"):
                run.claimed(MINE).__enter__()
            with pytest.raises(OutputError, match=r"new could not be written|new/lock could not be written"):
                RunFolder(Path(place) / "new").claimed(MINE).__enter__()
        path.chmod(0o755)
        with run.claimed(MINE):
            run.finish(ENDED)
        path.chmod(0o555)
        with ordinary_user(), run.claimed(MINE):
            assert run.finished() == ENDED
        Path(place).chmod(0o755)
        path.chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize("most", [10, 600])  # nothing of a round has room, or all but its last file
def test_a_full_disk_is_told_and_with_room_the_run_goes_on(most: int, run: RunFolder) -> None:
    """In a process of its own, which keeps the limit."""
    before = folder_bytes(run.path)
    program = f"""
from tests.test_run_folder import *
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, resource.RLIM_INFINITY))
run = RunFolder(sys.argv[1])
try:
    with run.claimed(MINE):
        add_round(run, 3)
except OutputError as error:
    print(error)
"""
    command = [sys.executable, "-c", program, str(run.path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert str(run.path) in ended.stdout
    assert "File too large" in ended.stdout
    with run.claimed(MINE):
        assert folder_bytes(run.path) == before
        add_round(run, 3)
        assert run.rounds_done == 3
        assert run.records(Did)[-1] == Did(3, 0.3)


def test_a_record_that_is_missing_or_damaged_is_told(run: RunFolder) -> None:
    path = run.path / "records.jsonl"
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(second)
    with pytest.raises(DataError, match="expected a line for each of 2 rounds, found 1"):
        run.records(Did)
    path.write_text(first + '{"round": 2}\n')
    with pytest.raises(DataError, match=r"records.jsonl, line 2: field 'value': expected an entry"):
        run.records(Did)


def test_a_fingerprint_tells_contents_and_not_names_apart() -> None:
    log = small_log()
    dataset = Dataset.from_arrays(**log)
    assert fingerprint(dataset) == fingerprint(replace(dataset, name="another", notes=()))
    for field in ("observations", "actions", "rewards", "next_observations", "start_weights"):
        array = getattr(dataset, field).copy()
        array.flat[-1] += 1e-6
        assert fingerprint(replace(dataset, **{field: array})) != fingerprint(dataset), field
