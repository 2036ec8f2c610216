"""Arrays and facts in one file come back exactly, and anything else in its place is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bats.errors import DataError, OutputError
from bats.storage.tensors import read_facts, read_tensors, write_tensors

ARRAYS = {
    "numbers": np.arange(6.0).reshape(2, 3),
    "flags": np.array([True, False]),
    "empty": np.zeros((0, 4), dtype=np.float32),
    "transposed": np.arange(6, dtype=np.int32).reshape(2, 3).T,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.safetensors"
    write_tensors(path, "test-kind", ARRAYS, {"count": 3, "name": "größer"})
    return path


def test_arrays_and_facts_come_back_exactly(file: Path) -> None:
    arrays, facts = read_tensors(file, "test-kind")
    assert sorted(arrays) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)
    assert (facts["count"], facts["name"]) == (3, "größer")
    assert read_facts(file) == facts


def test_equal_content_gives_equal_bytes(file: Path, tmp_path: Path) -> None:
    write_tensors(tmp_path / "again.safetensors", "test-kind", ARRAYS, {"count": 3, "name": "größer"})
    assert (tmp_path / "again.safetensors").read_bytes() == file.read_bytes()


def test_a_changed_byte_is_found_by_the_checksum(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match="content that matches its checksum"):
        read_tensors(file, "test-kind")


def test_another_kind_a_truncated_file_a_foreign_file_and_a_missing_one_are_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected other-kind version 1, found test-kind version 1"):
        read_tensors(file, "other-kind")
    (tmp_path / "short.safetensors").write_bytes(file.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"short\.safetensors: expected a complete safetensors file"):
        read_tensors(tmp_path / "short.safetensors", "test-kind")
    save_file({"numbers": np.zeros(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(DataError, match="found another safetensors file"):
        read_tensors(tmp_path / "foreign.safetensors", "test-kind")
    with pytest.raises(DataError, match="found no such file"):
        read_tensors(tmp_path / "missing.safetensors", "test-kind")


def test_an_existing_file_is_not_overwritten_unless_asked(file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(OutputError, match="exists already"):
        write_tensors(file, "test-kind", {}, {})
    assert file.read_bytes() == before
    write_tensors(file, "test-kind", {}, {}, overwrite=True)
    assert read_tensors(file, "test-kind")[0] == {}
