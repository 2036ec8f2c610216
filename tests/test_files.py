"""A reader sees the old file, the new one or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from bats.errors import OutputError
from bats.storage.atomic import atomic_path


def test_a_file_appears_whole_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "new folder" / "file"
    with atomic_path(target) as temporary:
        temporary.write_text("whole")
        assert not target.exists()
    assert target.read_text() == "whole"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def write_half() -> None:
        with atomic_path(target, overwrite=True) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_existing_file_is_kept_unless_overwriting_is_allowed(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(OutputError, match="exists already"), atomic_path(target):
        pytest.fail("the block must not run")
    with atomic_path(target, overwrite=True) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "new"


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="could not be written"), atomic_path(tmp_path / "file" / "below"):
        pytest.fail("the block must not run")
