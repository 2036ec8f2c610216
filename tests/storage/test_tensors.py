"""Arrays and facts in one file come back exactly, and anything else in its place is refused."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from jaxtyping import Bool, Float, Int
from safetensors.numpy import save_file

from bats.errors import DataError, OutputError, SettingError
from bats.storage.schema import MAY_BE_NOT_FINITE
from bats.storage.tensors import read_facts, read_struct, read_tensors, write_struct, write_tensors

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


def write_raw(path: Path, entries: dict[str, tuple[str, list[int], bytes]], facts: str) -> None:
    """A safetensors file of any types and shapes, with facts as they are."""
    offset, header = 0, {"__metadata__": {"bats": facts}}
    for name, (dtype, shape, content) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(content)]}
        offset += len(content)
    text = json.dumps(header).encode()
    content = b"".join(content for _, _, content in entries.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [("F8_E5M2", [2], 2), ("F8_E4M3", [2], 2), ("F4", [2], 1), ("F32", [1] * 100, 4), ("F32", [0, 2**62], 0)],
)
def test_types_and_shapes_that_numpy_does_not_have_are_refused(
    tmp_path: Path, dtype: str, shape: list[int], size: int
) -> None:
    facts = json.dumps({"format": "test-kind", "version": 1, "checksum": ""})
    write_raw(tmp_path / "odd.safetensors", {"numbers": (dtype, shape, bytes(size))}, facts)
    with pytest.raises(DataError, match=r"odd\.safetensors: expected a complete safetensors file of NumPy's types"):
        read_tensors(tmp_path / "odd.safetensors", "test-kind")


@pytest.mark.parametrize(("dtype", "size"), [("BF16", 2), ("C64", 8)])
def test_numbers_of_other_kinds_are_refused(tmp_path: Path, dtype: str, size: int) -> None:
    pytest.importorskip("ml_dtypes")  # with which NumPy has BF16
    facts = json.dumps({"format": "test-kind", "version": 1, "checksum": ""})
    write_raw(tmp_path / "odd.safetensors", {"numbers": (dtype, [1], bytes(size))}, facts)
    with pytest.raises(DataError, match="field 'numbers': expected integers, floats or flags, found"):
        read_tensors(tmp_path / "odd.safetensors", "test-kind")


@pytest.mark.parametrize("levels", [60, 900, 100_000])
def test_facts_that_are_nested_too_deeply_are_refused(tmp_path: Path, levels: int) -> None:
    facts = '{"checksum": "", "card": ' + "[" * levels + "]" * levels + "}"
    write_raw(tmp_path / "deep.safetensors", {}, facts)
    with pytest.raises(DataError, match=r"levels|recursion"):
        read_facts(tmp_path / "deep.safetensors")


def test_what_is_not_a_regular_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(DataError, match="found something that is not a regular file"):
            read_facts(path)
    with pytest.raises(DataError, match="found one that cannot be read: File name too long"):
        read_facts(tmp_path / ("a" * 1000))
    with pytest.raises(DataError, match=r"found one that cannot be read: .*null"):
        read_facts(tmp_path / "a\0b")


NOBODY = """
import os, sys
from pathlib import Path
from bats.errors import DataError
from bats.storage.tensors import read_tensors
if os.getuid() == 0:
    os.setuid(65534)
try:
    read_tensors(Path(sys.argv[1]), "test-kind")
except DataError as error:
    print(error)
"""
"""reads a file as a user without rights; the superuser may read everything"""


def test_a_file_that_may_not_be_read_is_not_called_missing(file: Path) -> None:
    with TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        Path(folder).chmod(0o755)
        closed = Path(shutil.copy(file, folder))
        closed.chmod(0o000)
        command = [sys.executable, "-c", NOBODY, str(closed)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "expected a file saved by this package, found one that cannot be read: Permission denied" in said


@dataclass(frozen=True, eq=False)
class Table:
    numbers: Float[np.ndarray, "n D"]
    choice: Float[np.ndarray, "n D"] | Int[np.ndarray, "n"]
    gaps: Float[np.ndarray, "n-1"] = field(metadata=MAY_BE_NOT_FINITE)
    flags: Bool[np.ndarray, "n"]
    limit: float
    count: int | None

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise SettingError("`limit` must not be negative.")


TABLE = {
    "numbers": np.zeros((3, 2)),
    "choice": np.array([0, 1, 2]),
    "gaps": np.array([np.nan, np.inf]),
    "flags": np.zeros(3, dtype=bool),
    "limit": 1.0,
    "count": 3,
}


def written(path: Path, **change: object) -> Path:
    """A file of a table with some other entries."""
    entries = TABLE | change
    arrays = {name: entry for name, entry in entries.items() if isinstance(entry, np.ndarray)}
    write_tensors(path, "table", arrays, {name: entry for name, entry in entries.items() if name not in arrays})
    return path


@pytest.mark.parametrize(
    "change", [{}, {"choice": np.ones((3, 2))}, {"limit": 1}, {"count": None}, {"numbers": np.zeros((3, 2), "float32")}]
)
def test_a_dataclass_is_read_as_its_annotations_say(tmp_path: Path, change: dict[str, object]) -> None:
    table, facts = read_struct(Table, written(tmp_path / "table", **change), "table")
    for name, entry in (TABLE | change).items():
        np.testing.assert_array_equal(getattr(table, name), entry)
    assert isinstance(table.limit, float)
    assert facts["count"] == table.count
    write_struct(tmp_path / "again", "table", table)
    assert read_facts(tmp_path / "again")["count"] == table.count


WRONG: list[tuple[dict[str, object], str]] = [
    ({"numbers": np.zeros((3, 2), dtype=int)}, r"'numbers': expected floats of shape \(n, D\), found int64"),
    ({"numbers": np.zeros(3)}, r"'numbers': expected floats of shape \(n, D\), found float64 of shape \(3,\)"),
    ({"numbers": np.full((3, 2), -np.inf)}, "'numbers': expected finite numbers, found NaN or infinity"),
    ({"choice": np.zeros(4, dtype=int)}, r"or integers of shape \(n\), found int64 of shape \(4,\) where n = 3, D = 2"),
    ({"choice": np.zeros((3, 3))}, r"found float64 of shape \(3, 3\) where n = 3, D = 2"),
    ({"gaps": np.zeros(3)}, r"'gaps': expected floats of shape \(n-1\)"),
    ({"flags": np.array([0, 1, 2], dtype=np.uint8)}, "expected flags of shape"),
    ({"flags": np.array([0, 1, 2], dtype=np.uint8).view(bool)}, "expected flags of 0 or 1"),
    ({"limit": np.inf}, "'limit': expected finite numbers"),
    ({"limit": [1.0]}, r"'limit': expected float, found \[1.0\]"),
    ({"limit": -1.0}, "expected valid Table, found other values .`limit` must not be negative"),
    ({"count": 2**64}, "'count': expected int or None, found 18446744073709551616"),
    ({"count": "3"}, "'count': expected int or None, found '3'"),
    ({"count": {"a": 1}}, "'count': expected int or None, found {'a': 1}"),
]


@pytest.mark.parametrize(
    ("change", "message"), WRONG, ids=[f"{next(iter(change))}-{i}" for i, (change, _) in enumerate(WRONG)]
)
def test_an_entry_that_is_not_as_annotated_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_struct(Table, written(tmp_path / "table", **change), "table")


def test_a_missing_entry_is_refused(tmp_path: Path) -> None:
    arrays = {name: entry for name, entry in TABLE.items() if isinstance(entry, np.ndarray)}
    write_tensors(tmp_path / "few", "table", arrays, {"limit": 1.0})
    with pytest.raises(DataError, match="found no entry for count"):
        read_struct(Table, tmp_path / "few", "table")
