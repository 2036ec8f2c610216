"""A run folder belongs to one run and one process at a time, and loses nothing whatever happens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from bats.config import (
    BisimulationConfig,
    CertificateConfig,
    ChoiceConfig,
    CloningConfig,
    Config,
    ModelConfig,
    RolloutConfig,
    StitchConfig,
)
from bats.data.dataset import Dataset
from bats.errors import DataError, OutputError
from bats.runs.folder import RunFolder
from bats.runs.records import VERSION, Header, LogCard, Timing
from bats.runs.stages import STAGES, stage_settings
from bats.storage.json_records import to_plain
from bats.storage.tensors import read_tensors, write_tensors
from tests.conftest import CopyRun
from tests.logs import folder_bytes, small_log
from tests.runs.hand_made import CHAIN, CONFIG, HEADER, add_round, record, summary
from tests.runs.relisted import relisted
from tests.users import ordinary_user

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """An unfinished run with two rounds."""
    run = RunFolder(tmp_path / "run")
    with run.claimed(HEADER, CONFIG):
        run.save_base(CHAIN)
        add_round(run, 1)
        add_round(run, 2)
        run.add_timing(Timing("stitching", 2, 0.5))
    return run


def make(run: RunFolder, *names: str) -> None:
    """Writes and lists files of stages that this run has not made yet."""
    for name in names:
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".safetensors"):
            write_tensors(run.path / name, "bats-made", {}, {})
        else:
            (run.path / name).write_text("made")
    relisted(run.path)


def claim(run: RunFolder, header: Header = HEADER, config: Config = CONFIG) -> None:
    with run.claimed(header, config):
        pass


def test_what_was_saved_is_read_again(run: RunFolder) -> None:
    again = RunFolder(run.path)
    with again.claimed(HEADER, CONFIG):
        assert again.rounds_done == 2
        assert [attempts.error.tolist() for attempts in again.attempts()] == [[0.1], [0.2]]
        assert [len(stitches) for stitches in again.stitches()] == [1, 1]
        assert again.records() == (record(1), record(2))
        assert again.timings() == (Timing("stitching", 2, 0.5),)
        assert again.load_graph().stitch_count == 2
        again.finish(summary(2))
    assert again.summary() == summary(2)
    assert again.header() == HEADER
    assert again.settings() == CONFIG


def test_the_name_of_the_log_its_notes_and_its_columns_are_kept(run: RunFolder) -> None:
    dataset = replace(Dataset.from_arrays(**small_log()), observation_names=("x", "y"), action_names=("u",))
    run.describe_log(dataset)
    card = run.log_card()
    assert card == LogCard.of(dataset)
    assert (card.rows, card.episodes) == (24, 3)
    assert (card.observation_names, card.action_names) == (("x", "y"), ("u",))
    assert card.names() == {"observation_names": ["x", "y"], "action_names": ["u"]}
    assert Header.of(dataset, 0) == Header.of(Dataset.from_arrays(**small_log()), 0)  # names are no part of a log
    assert [note.text for note in card.notes] == [note.text for note in dataset.notes]


@pytest.mark.parametrize(
    ("header", "config", "message"),
    [
        (replace(HEADER, seed=7), CONFIG, "its seed is 0, not 7"),
        (HEADER, replace(CONFIG, gamma=0.5), "its gamma is 0.9, not 0.5"),
        (HEADER, replace(CONFIG, stitch=StitchConfig(rounds=5)), "its stitch.rounds is 40, not 5"),
        (
            replace(HEADER, log="new.csv", transitions="x"),
            CONFIG,
            "it was started with other transitions (its log: log.hdf5; the log given now: new.csv)",
        ),
        (replace(HEADER, seed=7), replace(CONFIG, gamma=0.5), "its seed is 0, not 7; its gamma is 0.9, not 0.5"),
    ],
)
def test_another_run_is_refused_with_the_differences_and_nothing_is_touched(
    run: RunFolder, header: Header, config: Config, message: str
) -> None:
    before = folder_bytes(run.path)
    with pytest.raises(OutputError, match=f"contains another run: {re.escape(message)}. Choose another"):
        claim(run, header, config)
    assert folder_bytes(run.path) == before


def test_every_setting_belongs_to_a_stage() -> None:
    of_stages = [name for stage in STAGES for name in stage_settings(Config(), stage)]
    assert sorted(of_stages) == sorted(to_plain(Config()))
    learned = stage_settings(Config(metric="bisimulation"), "stitching")
    assert "bisimulation" in learned  # the metric is learned before stitching
    choosing = stage_settings(Config(choice=ChoiceConfig(penalties=(1.0,))), "final graph")
    assert "certificate" in choosing  # options are ranked by bounds


def test_settings_of_stages_that_are_not_made_yet_may_change(run: RunFolder) -> None:
    # of this run the rounds are made, but no policy or certificate
    assert run.stages_made() == ["model", "stitching"]
    other = replace(CONFIG, cloning=CloningConfig(updates=5), certificate=CertificateConfig(confidence=0.5))
    claim(run, config=other)
    assert run.settings() == other
    claim(run, config=replace(other, certificate=None))
    assert run.settings().certificate is None


@pytest.mark.parametrize(
    ("made", "config", "message"),
    [
        (
            ("certificates/bats/certificate.json",),
            replace(CONFIG, certificate=CertificateConfig(confidence=0.5)),
            "its certificate.confidence is 0.95, not 0.5. First .*then `bats-rl certify .*run` adds",
        ),
        (
            ("certificates/bats/certificate.json",),
            replace(CONFIG, certificate=None),
            "its certificate.confidence is 0.95, not None.*`bats-rl certify",
        ),
        (
            ("policies/bats.safetensors",),
            replace(CONFIG, cloning=CloningConfig(hidden=(8,))),
            r"its cloning.hidden is \[256, 256, 256\], not \[8\]. First .*then `bats-rl clone .*run` adds",
        ),
        (
            ("policies/bats.safetensors", "certificates/bats/certificate.json"),
            replace(CONFIG, rollouts=RolloutConfig(steps=7), certificate=CertificateConfig(confidence=0.5)),
            "its rollouts.steps is 1000, not 7; its certificate.confidence is 0.95, not 0.5. First .*`bats-rl clone",
        ),
        (
            ("model.safetensors",),
            replace(CONFIG, model=ModelConfig(updates=5)),
            "its model.updates is 11000, not 5. Choose another folder",
        ),
        (
            ("certificates/bats/certificate.json",),
            replace(CONFIG, rollouts=RolloutConfig(steps=7), model=ModelConfig(updates=5)),
            "its model.updates is 11000, not 5; its rollouts.steps is 1000, not 7. Choose another folder",
        ),
        (
            ("training.safetensors",),
            replace(CONFIG, model=ModelConfig(updates=5)),
            "its model.updates is 11000, not 5. Choose another folder",
        ),
        (
            ("options.jsonl",),
            replace(CONFIG, final_tolerance=0.1),
            "its final_tolerance is None, not 0.1. First .*then `bats-rl clone",
        ),
        (
            ("policies/bats.safetensors", "certificates/bats/certificate.json"),
            replace(CONFIG, choice=ChoiceConfig(penalties=(1.0,))),
            r"another run: its choice.penalties is \[\], not \[1.0\]. First .*then `bats-rl clone",
        ),
        (
            ("policies/bats.safetensors", "certificates/bats/certificate.json"),
            replace(CONFIG, bisimulation=BisimulationConfig(updates=7)),
            "its bisimulation.updates is 4000, not 7. Choose another folder",
        ),
        (
            ("policies/bats.safetensors", "certificates/bats/certificate.json"),
            replace(CONFIG, gamma=0.5, certificate=CertificateConfig(confidence=0.5)),
            "its gamma is 0.9, not 0.5; its certificate.confidence is 0.95, not 0.5. Choose another folder",
        ),
    ],
)
def test_settings_of_stages_that_are_made_may_not_change_and_the_error_says_what_to_do(
    run: RunFolder, made: tuple[str, ...], config: Config, message: str
) -> None:
    make(run, *made)
    before = folder_bytes(run.path)
    with pytest.raises(OutputError, match=message):
        claim(run, config=config)
    assert folder_bytes(run.path) == before


def test_an_unfinished_run_is_to_be_finished_before_anything_is_added_to_it(run: RunFolder) -> None:
    make(run, "policies/bats.safetensors")
    other = replace(CONFIG, cloning=CloningConfig(hidden=(8,)))
    finish = f"First finish this run with its own settings, `bats-rl fit … --config {run.path}/settings.json`; "
    finish += "then `bats-rl clone"
    with pytest.raises(OutputError, match=finish):
        claim(run, config=other)
    run.finish(summary(2))
    with pytest.raises(OutputError, match=r"not \[8\]\. `bats-rl clone"):
        claim(run, config=other)


def test_a_log_under_another_name_is_the_same_log(run: RunFolder) -> None:
    with run.claimed(replace(HEADER, log="elsewhere/log.hdf5"), CONFIG):
        assert run.rounds_done == 2


def test_a_folder_with_other_files_is_refused_untouched_and_an_empty_one_is_taken(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "letter.txt").write_text("…")
    before = folder_bytes(tmp_path)
    with pytest.raises(OutputError, match="not empty and is not the folder of a run"):
        claim(RunFolder(tmp_path / "letters"))
    with pytest.raises(OutputError, match=r"letter.txt could not be read: Not a directory"):
        claim(RunFolder(tmp_path / "letters" / "letter.txt"))
    assert folder_bytes(tmp_path) == before
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".run.json.0123abcd.tmp").write_text("{")  # killed before anything was whole
    with RunFolder(tmp_path / "empty").claimed(HEADER, CONFIG):
        assert sorted(os.listdir(tmp_path / "empty")) == ["files.json", "lock", "run.json", "settings.json"]  # noqa: PTH208


def test_a_process_killed_after_writing_the_settings_alone_leaves_a_folder_that_continues(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    claim(run)
    for name in ("files.json", "run.json"):
        (run.path / name).unlink()
    claim(run, config=replace(CONFIG, gamma=0.5))  # the settings of a run that never began do not matter
    assert run.settings().gamma == 0.5


@pytest.mark.parametrize(
    "left", [("log.json",), ("log.json", "model.json"), ("log.json", "model.json", "model.safetensors")]
)
def test_results_that_were_not_listed_when_a_process_was_killed_do_not_stop_the_next_one(
    tmp_path: Path, left: tuple[str, ...]
) -> None:
    run = RunFolder(tmp_path / "run")
    claim(run)
    begun = folder_bytes(run.path)
    for name in left:
        (run.path / name).write_text("made")
    claim(run)
    assert folder_bytes(run.path) == begun


def test_what_cannot_be_removed_is_an_error_of_writing(run: RunFolder, tmp_path: Path) -> None:
    new = RunFolder(tmp_path / "new")
    claim(new)
    for one, name in ((run, "mdp/round-0003.safetensors"), (new, "model.json")):
        (one.path / name).mkdir()
        with pytest.raises(OutputError, match=rf"{one.path} could not be cleaned up: Is a directory"):
            claim(one)


def test_a_damaged_header_or_damaged_settings_are_reported_with_the_field(run: RunFolder) -> None:
    path = run.path / "run.json"
    header = json.loads(path.read_text())
    for changed, message in (
        ({**header, "version": 99}, f"expected a run folder of version {VERSION}, found version 99"),
        ({**header, "seed": "0"}, "field 'seed': expected an integer"),
        ({**header, "extra": 1}, "field 'extra': expected one of version"),
        ([], "expected an object"),
    ):
        path.write_text(json.dumps(changed))
        with pytest.raises(DataError, match=rf"run\.json: .*{message}"):
            claim(run)
    path.write_text(json.dumps(header))
    settings = run.path / "settings.json"
    settings.write_text(json.dumps({"gamma": 0.9}))
    with pytest.raises(DataError, match=r"settings\.json: field 'metric': expected an entry, found no entry"):
        claim(run)
    settings.unlink()
    with pytest.raises(DataError, match=r"settings\.json: expected a readable text file"):
        claim(run)


def test_what_belongs_to_no_finished_round_is_removed_and_so_are_temporary_files(run: RunFolder) -> None:
    before = folder_bytes(run.path)
    with run.claimed(HEADER, CONFIG):
        add_round(run, 3)  # as if killed just before its files were listed
    for name in ("mdp/.round-0003.safetensors.0123abcd.tmp", ".model.json.4567cdef.tmp"):
        (run.path / name).write_text("half")
    (run.path / "mine.txt").write_text("whole")
    with run.claimed(HEADER, CONFIG):
        assert run.records() == (record(1), record(2))
        assert folder_bytes(run.path) == before | {"mine.txt": b"whole"}


def test_a_second_process_is_refused_and_the_first_one_is_not_disturbed(run: RunFolder) -> None:
    program = "from tests.runs.test_folder import *; claim(RunFolder(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(run.path)]
    with run.claimed(HEADER, CONFIG):
        before = folder_bytes(run.path)
        second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert f"OutputError: Another process is working in {run.path}; wait until it ends" in second.stderr
        assert folder_bytes(run.path) == before
    claim(run)  # the lock is released


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users as Unix has them")
def test_a_folder_without_write_permission_is_refused_and_a_finished_run_in_it_can_be_read() -> None:
    with TemporaryDirectory() as place:  # the folder of tmp_path is closed to others
        path = Path(place) / "run"
        run = RunFolder(path)
        claim(run)
        (path / "lock").unlink()
        for folder in (Path(place), path):
            folder.chmod(0o555)
        with ordinary_user():
            with pytest.raises(OutputError, match=r"run/lock could not be written: Permission denied"):
                claim(run)
            with pytest.raises(OutputError, match=r"new could not be written|new/lock could not be written"):
                claim(RunFolder(Path(place) / "new"))
        path.chmod(0o755)
        with run.claimed(HEADER, CONFIG):
            run.finish(summary(0))
        path.chmod(0o555)
        with ordinary_user(), run.claimed(HEADER, CONFIG):
            assert run.summary() == summary(0)
        Path(place).chmod(0o755)
        path.chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_a_full_disk_is_reported_and_with_room_the_run_continues(run: RunFolder) -> None:
    """In a process of its own, which keeps the limit on the size of files."""
    before = folder_bytes(run.path)
    program = """
from tests.runs.test_folder import *
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for limit in (10, 700):  # nothing of a round fits, or all but its last file
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        with RunFolder(sys.argv[1]).claimed(HEADER, CONFIG):
            add_round(RunFolder(sys.argv[1]), 3)
    except OutputError as error:
        print(error)
"""
    command = [sys.executable, "-c", program, str(run.path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    first, second = ended.stdout.splitlines()
    assert f"{run.path}/attempts/round-0003.safetensors could not be written: File too large" in first
    assert f"{run.path}/mdp/round-0003.safetensors could not be written: File too large" in second
    with run.claimed(HEADER, CONFIG):
        assert folder_bytes(run.path) == before
        add_round(run, 3)
        assert run.rounds_done == 3
        assert run.records()[-1] == record(3)


def test_errors_that_are_measured_again_are_listed_again(run: RunFolder) -> None:
    for errors in ([0.1, 0.2], [0.3, 0.4]):
        with run.claimed(HEADER, CONFIG):
            run.save_errors(np.array(errors))
            run.add_timing(Timing("solving", None, 0.5))
    claim(run)
    assert run.load_graph().stitch_count == 2


def test_a_record_that_is_missing_or_damaged_is_reported(run: RunFolder) -> None:
    path = run.path / "records.jsonl"
    first, second = path.read_text().splitlines(keepends=True)
    path.write_text(second)
    with pytest.raises(DataError, match="expected 2 lines, one for each round, found 1"):
        run.records()
    path.write_text(first + '{"round": 2}\n')
    with pytest.raises(DataError, match=r"records.jsonl, line 2: field 'sources': expected an entry"):
        run.records()


def test_checksums_depend_on_the_content_of_a_log_and_not_on_its_name() -> None:
    dataset = Dataset.from_arrays(**small_log())
    header = Header.of(dataset, 0)
    assert replace(Header.of(replace(dataset, name="another", notes=()), 0), log=header.log) == header
    for field, part in {
        "observations": "transitions",
        "actions": "transitions",
        "next_observations": "transitions",
        "rewards": "rewards",
        "start_weights": "starts",
    }.items():
        array = getattr(dataset, field).copy()
        array.flat[-1] += 1e-6
        other = Header.of(replace(dataset, **{field: array}), 0)
        differ = [
            name for name in ("transitions", "rewards", "starts") if getattr(other, name) != getattr(header, name)
        ]
        assert differ == [part], field


def test_the_selection_of_rollouts_is_read_as_it_was_saved(finished_run: Path) -> None:
    selection = RunFolder(finished_run).selection()
    assert len(selection.kept) == len(selection.start) == len(selection.returns)
    assert np.all(selection.share[selection.kept] >= selection.threshold)
    assert selection.measure == "share of the best return from nearby starts"
    assert selection.steps == 1000


def test_a_selection_with_the_earlier_name_of_the_threshold_is_read(copy_run: CopyRun) -> None:
    run = RunFolder(copy_run("run"))
    path = run.path / "rollouts.safetensors"
    arrays, facts = read_tensors(path, "bats-rollouts")
    named = {"cut": facts["threshold"], "by_return": facts["by_return"], "steps": facts["steps"]}
    write_tensors(path, "bats-rollouts", arrays, named, overwrite=True)
    assert run.selection().threshold == facts["threshold"]


def test_a_log_that_was_refused_leaves_a_folder_for_the_mended_one(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")

    def refuse() -> None:
        with run.claimed(HEADER, CONFIG):
            run.describe_log(Dataset.from_arrays(**small_log()))
            raise DataError("a better log", "this one")

    with pytest.raises(DataError, match="a better log"):
        refuse()
    mended = replace(HEADER, transitions="others")
    claim(run, header=mended, config=replace(CONFIG, gamma=0.5))
    assert run.header() == mended
    assert run.settings().gamma == 0.5


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match=r"run/lock could not be written"):
        claim(RunFolder(tmp_path / "run"))
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs another user")
def test_a_folder_that_may_not_be_looked_into_is_named() -> None:
    with TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        path = Path(place) / "run"
        run = RunFolder(path)
        claim(run)
        path.chmod(0o000)
        with ordinary_user():
            for ask in (run.header, run.summary, lambda: run.is_finished, run.stages_made):
                with pytest.raises(DataError, match=r"run: expected the folder of a run, found Permission denied"):
                    ask()
            with pytest.raises(OutputError, match=r"run could not be read: Permission denied"):
                claim(run)
        path.chmod(0o755)
