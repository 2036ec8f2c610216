"""Files are written whole or not at all, and a failure says whether reading or writing failed."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bats.errors import DataError, OutputError
from bats.storage.atomic import is_temporary, read_text, refuse_existing, write_atomic, write_text
from tests.users import ordinary_user


def test_a_file_appears_whole_in_a_folder_that_did_not_exist(tmp_path: Path) -> None:
    target = tmp_path / "new folder" / "file"
    write_atomic(target, b"whole")
    assert target.read_bytes() == b"whole"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_the_content_is_complete_before_the_file_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file"
    move = Path.replace

    def checked_move(source: Path, destination: Path) -> Path:
        assert source.read_bytes() == b"whole"
        assert is_temporary(source.name)
        assert not target.exists()
        return move(source, destination)

    monkeypatch.setattr(Path, "replace", checked_move)
    write_atomic(target, b"whole")
    assert target.exists()


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if function == "fsync" else (Path, "replace")), fail)
    with pytest.raises(OutputError, match="file could not be written: No space left on device"):
        write_atomic(target, b"new", overwrite=True)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_existing_file_is_kept_unless_overwriting_is_allowed(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(OutputError, match="file exists already; choose another name"):
        write_atomic(target, b"new")
    assert target.read_text() == "old"
    write_atomic(target, b"new", overwrite=True)
    assert target.read_text() == "new"


def test_existing_files_are_refused_before_any_work_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "second").write_text("old")
    paths = (tmp_path / "first", tmp_path / "second")
    with pytest.raises(OutputError, match="second exists already; choose another name or use --overwrite"):
        refuse_existing(*paths, hint=" or use --overwrite")
    refuse_existing(*paths, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["second"]


def test_a_path_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="below could not be written"):
        write_atomic(tmp_path / "file" / "below", b"content")


def test_text_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "größer\n")
    assert read_text(tmp_path / "file") == "größer\n"


def test_the_name_of_a_file_that_is_no_text_is_written_in_ascii(tmp_path: Path) -> None:
    write_text(tmp_path / "text", f"log {os.fsdecode(bytes([255]))}")
    assert (tmp_path / "text").read_bytes() == rb"log \udcff"


@pytest.mark.skipif(os.name == "nt", reason="other users are made in another way")
def test_a_file_that_may_not_be_made_is_refused_before_any_work() -> None:
    with TemporaryDirectory() as name:  # the folders of pytest may be entered by their owner alone
        Path(name).chmod(0o555)
        with ordinary_user():
            for path in ("file", "new/file"):
                with pytest.raises(OutputError, match=f"{path} could not be written: Permission denied"):
                    refuse_existing(Path(name, path))


def test_a_failure_to_read_is_never_reported_as_a_failure_to_write(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfa")
    for name in ("missing", "binary", "."):
        with pytest.raises(DataError, match="a readable text file"):
            write_text(tmp_path / "copy", read_text(tmp_path / name))
    assert not (tmp_path / "copy").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs the pipes of Unix")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="expected a readable text file, found something that is not a regular file"):
        read_text(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (".model.json.0123abcd.tmp", True),
        ("model.json", False),
        (".hidden", False),
        (".model.json.tmp", False),
    ],
)
def test_what_a_killed_process_left_is_recognised_by_its_name(name: str, expected: bool) -> None:
    assert is_temporary(name) is expected
