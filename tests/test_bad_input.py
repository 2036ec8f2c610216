"""Errors about a log name the file, the field, the row, what was expected and what was found; nothing is written."""

# ruff: noqa: E501 (a message is easier to check on one line)

from __future__ import annotations

import importlib
import io
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import numpy as np
import pytest

from bats.data.dataset import Dataset
from bats.data.formats.load import ColumnMap, load_dataset, write_minari
from bats.errors import DataError
from tests.logs import as_columns, assert_same, folder_bytes, small_log, write_arrays, write_csv, write_parquet
from tests.users import ordinary_user


def error_message(source: Path | str, folder: Path, **settings: Any) -> str:
    """The message of the `DataError` that reading must raise, without the folder; the folder stays as it was."""
    before = folder_bytes(folder)
    with pytest.raises(DataError) as caught:
        load_dataset(source, **settings)
    assert folder_bytes(folder) == before
    return str(caught.value).replace(f"{folder}/", "")


def write_npz(path: Path, fields: dict[str, np.ndarray]) -> Path:
    np.savez_compressed(path, **fields)
    return path


ARRAY_WRITERS = {"log.hdf5": write_arrays, "log.npz": write_npz}
EVERY_WRITER: dict[str, Callable[[Path, dict[str, np.ndarray]], Path]] = {
    **ARRAY_WRITERS,
    "log.csv": lambda path, fields: write_csv(path, as_columns(fields)),
    "log.parquet": lambda path, fields: write_parquet(path, as_columns(fields)),
}


def changed(field: str, index: object, value: float) -> dict[str, np.ndarray]:
    log = small_log()
    log[field] = log[field].astype(np.float64)
    log[field][index] = value
    return log


SHORT = {name: values[:1] for name, values in small_log().items()}
WITHOUT = {name: {key: values for key, values in small_log().items() if key != name} for name in small_log()}
ALL_BUT_REWARDS = "'actions', 'next_observations', 'observations', 'terminations', 'timeouts'"
HINT = "Did you mean 'states'? Rename it to 'observations'."
FINITE = "finite numbers between -1e+30 and 1e+30"

IN_ANY_FORMAT = {
    "nan": (
        changed("observations", (17, 1), np.nan),
        f"field 'observations', row 17: expected {FINITE}, found nan in ",
    ),
    "infinity": (changed("rewards", 3, np.inf), f"field 'rewards', row 3: expected {FINITE}, found inf."),
    "filler": (
        changed("next_observations", (2, 0), -1e38),
        f"field 'next_observations', row 2: expected {FINITE}, found -",
    ),
    "odd flag": (
        changed("terminations", 5, 2),
        "field 'terminations', row 5: expected true or false (1 or 0), found 2.0.",
    ),
    "one row": (SHORT, "field 'observations': expected at least 2 rows, found 1."),
}


@pytest.mark.parametrize("name", EVERY_WRITER)
@pytest.mark.parametrize("fault", IN_ANY_FORMAT)
def test_faulty_values(name: str, fault: str, tmp_path: Path) -> None:
    log, message = IN_ANY_FORMAT[fault]
    source = EVERY_WRITER[name](tmp_path / name, log)
    assert error_message(source, tmp_path).startswith(f"{name}: {message}")


def test_an_error_about_a_table_names_the_columns(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "log.csv", as_columns(changed("observations", (17, 1), np.nan)))
    message = error_message(source, tmp_path)
    assert message.endswith(
        "found nan in 'observations_1'. This row is in line 19. Columns of observations: observations_0, observations_1."
    )
    lines = source.read_text().splitlines()
    source.write_text("\n".join([*lines[:4], "", *lines[4:9], "", "", *lines[9:18], lines[18], "", *lines[19:]]))
    assert "row 17: " in error_message(source, tmp_path)
    assert "This row is in line 22." in error_message(source, tmp_path)  # three blank lines come before it


def test_an_error_about_one_component_uses_its_name_where_the_log_has_names() -> None:
    names: dict[str, Any] = {"observation_names": ("angle", "speed"), "action_names": ["push", "pull"]}
    log: dict[str, Any] = small_log() | {"actions": np.zeros((24, 2))}
    for field, place, name in (
        ("observations", (17, 1), "'speed'"),
        ("next_observations", (3, 0), "'angle'"),
        ("actions", (2, 1), "'pull'"),
    ):
        faulty = log[field].copy()
        faulty[place] = np.nan
        message = f"field '{field}', row {place[0]}: expected {FINITE}, found nan in"
        for given, shown in ((names, name), ({}, f"column {place[1]}")):
            with pytest.raises(DataError) as caught:
                Dataset.from_arrays(**{**log, field: faulty}, **given)
            assert str(caught.value) == f"arrays: {message} {shown}."


IN_ARRAYS = {
    "missing": (WITHOUT["rewards"], f"expected a field 'rewards', found only {ALL_BUT_REWARDS}."),
    "rank": ({"observations": np.zeros((24, 2, 2))}, "field 'observations': expected a two-dimensional array (rows, components), found shape (24, 2, 2)."),
    "reward rank": ({"rewards": np.zeros((24, 2))}, "field 'rewards': expected one number per row, found shape (24, 2)."),
    "flag rank": ({"timeouts": np.zeros((24, 2), bool)}, "field 'timeouts': expected one flag per row, found shape (24, 2)."),
    "single number": ({"rewards": np.float64(1)}, "field 'rewards': expected an array with one entry per row, found a single number."),
    "length": ({"actions": np.zeros((23, 1))}, "field 'actions': expected 24 rows, as in observations, found 23."),
    "flag length": ({"terminations": np.zeros(3)}, "field 'terminations': expected 24 rows, as in observations, found 3."),
    "width": ({"next_observations": np.zeros((24, 3))}, "field 'next_observations': expected 2 numbers per row, as in observations, found 3."),
    "empty": ({name: values[:0] for name, values in small_log().items()}, "field 'observations': expected at least 2 rows, found 0."),
    "text": ({"rewards": np.full(24, b"abc")}, "field 'rewards': expected numbers, found an array of type |S3."),
    "complex": ({"rewards": np.zeros(24, complex)}, "field 'rewards': expected numbers, found an array of type complex128."),
    "twice": ({"terminals": np.zeros(24, bool)}, "expected only one of 'terminations' and 'terminals', found both."),
    "negative action": ({"actions": np.arange(24) - 1}, "field 'actions', row 0: expected a non-negative integer, found -1."),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAY_WRITERS)
@pytest.mark.parametrize("fault", IN_ARRAYS)
def test_faulty_arrays(name: str, fault: str, tmp_path: Path) -> None:
    change, message = IN_ARRAYS[fault]
    log = change if fault == "missing" else small_log() | change
    source = ARRAY_WRITERS[name](tmp_path / name, log)
    assert error_message(source, tmp_path) == f"{name}: {message}"
    with pytest.raises(DataError) as caught:
        load_dataset(log)
    assert str(caught.value) == f"arrays: {message}"


def test_faults_of_arrays_in_memory() -> None:
    log = small_log()
    cases = {
        "field 'rewards': expected numbers, found an array of type object": {"rewards": np.full(24, None)},
        "field 'actions': expected rows of equal length, found": {"actions": [[1.0], [2.0, 3.0]]},
        "field 'episode': expected one id per row, a number or a text, found int64 of shape (24, 2)": {
            "episode": np.zeros((24, 2), np.int64)
        },
        "field 'episode', row 2: expected an id in every row, found nan": {"episode": [0, 0, np.nan] * 8},
        "field 'episode': expected 24 rows, as in observations, found 3": {"episode": [0, 0, 1]},
        "field 'observations': expected at least 2 rows, found 0": {name: [] for name in (*log, "episode")},
    }
    for message, change in cases.items():
        with pytest.raises(DataError) as caught:
            load_dataset(log | change)
        assert str(caught.value).startswith(f"arrays: {message}")
    with pytest.raises(DataError, match="expected a field 'observations', found only nothing"):
        load_dataset({})
    with pytest.raises(DataError, match="field 'observations': expected a column 'x', found only 'actions', 'next_obs"):
        load_dataset(log, columns=ColumnMap.parse("observations=x actions=u rewards=r"))


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "gone.npz").symlink_to(tmp_path / "nothing.npz")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "folder.hdf5").mkdir()
    (tmp_path / "nothing here").mkdir()
    (tmp_path / "log.pkl").write_bytes(b"\x80\x04.")
    known = ".hdf5, .h5, .npz, .csv, .parquet, a Minari data set's folder or minari:ID"
    minari = "a Minari data set with data/metadata.json and data/main_data.hdf5"
    faults = {
        "missing.hdf5": "missing.hdf5: expected an HDF5 file, found no such file.",
        "gone.npz": "gone.npz: expected an npz file, found a link to a missing file.",
        "empty.csv": "empty.csv: expected a CSV file, found an empty file.",
        "folder.hdf5": "folder.hdf5: expected an HDF5 file, found a folder.",
        "log.pkl": f"log.pkl: expected {known}, found a file ending in '.pkl'.",
        "missing": f"missing: expected {known}, found no such file.",
        "nothing here": f"nothing here: expected {minari}, found a folder without these files.",
    }
    for name, message in faults.items():
        assert error_message(tmp_path / name, tmp_path) == message
    assert "found a path with a zero byte" in error_message("log\0.csv", tmp_path)
    for name in ("", "minari:"):
        assert error_message(name, tmp_path) == f"'{name}': expected {known}, found an empty name."
    for name in ("x" * 300 + ".csv", "x" * 300):
        assert "File name too long" in error_message(name, tmp_path)


def test_a_minari_name_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    name = "D4RL/pointmaze/umaze-v2"
    expected = f"minari:{name}: expected a data set '{name}' in {tmp_path}"
    message = error_message(f"minari:{name}", tmp_path)
    assert message == f"{expected}, found only nothing. `minari download {name}` downloads a public data set."
    for dataset_id in ("D4RL/pointmaze/umaze-v1", "mine-v0"):
        write_minari(load_dataset(small_log()), dataset_id)
    message = error_message(f"minari:{name}", tmp_path)
    assert (
        message
        == f"{expected}, found only 'D4RL/pointmaze/umaze-v1', 'mine-v0'. Did you mean 'D4RL/pointmaze/umaze-v1'?"
    )
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "nowhere"))
    assert "nowhere, found no such folder." in error_message(f"minari:{name}", tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("suffix", ["hdf5", "npz", "csv", "parquet"])
def test_a_pipe_is_not_waited_for(suffix: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"log.{suffix}")
    with pytest.raises(DataError, match="found something that is not a regular file"):
        load_dataset(tmp_path / f"log.{suffix}")


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="needs users as Unix has them")
@pytest.mark.parametrize("name", EVERY_WRITER)
@pytest.mark.parametrize("locked", ["file", "folder"])
def test_a_file_one_may_not_read(name: str, locked: str, tmp_path: Path) -> None:
    importlib.import_module("pyarrow.parquet")  # before giving up the right to read it
    with TemporaryDirectory() as name_of_folder:  # the folder of tmp_path is closed to others
        folder = Path(name_of_folder)
        EVERY_WRITER[name](folder / name, small_log()).chmod(0o644 if locked == "folder" else 0)
        folder.chmod(0 if locked == "folder" else 0o755)
        with ordinary_user(), pytest.raises(DataError, match="Permission denied"):
            load_dataset(folder / name)
        folder.chmod(0o755)


OTHERS = {
    "log.hdf5": ("an HDF5 file", "log.npz", "a zip archive, as npz files are"),
    "log.npz": ("an npz file", "log.hdf5", "an HDF5 file"),
    "log.parquet": ("a Parquet file", "log.csv", "a file that begins with b'observat'"),
    "log.csv": ("a text file in UTF-8", "log.hdf5", "'utf-8' codec can't decode byte 0x89 in position 0"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_format_behind_the_suffix(name: str, tmp_path: Path) -> None:
    expected, other, found = OTHERS[name]
    EVERY_WRITER[other](tmp_path / other, small_log())
    (tmp_path / other).rename(tmp_path / name)
    assert error_message(tmp_path / name, tmp_path).startswith(f"{name}: expected {expected}, found {found}")


@pytest.mark.parametrize("name", ["log.hdf5", "log.npz", "log.parquet"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_file_cut_short(name: str, share: float, tmp_path: Path) -> None:
    whole = EVERY_WRITER[name](tmp_path / name, small_log()).read_bytes()
    (tmp_path / name).write_bytes(whole[: int(share * len(whole))])
    message = error_message(tmp_path / name, tmp_path)
    if name == "log.npz":
        ended = "The list of arrays at the end of the file is missing."
        assert message == f"log.npz: expected an npz file, found a truncated or damaged one. {ended}"
        return
    kind = {"log.hdf5": "an intact HDF5 file", "log.parquet": "an intact Parquet file"}[name]
    assert message.startswith(f"{name}: expected {kind}, found ")
    assert message.endswith("It may be damaged or truncated.")


def test_damaged_contents(tmp_path: Path) -> None:
    log = small_log()
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        for name, values in log.items():
            file.create_dataset(name, data=values, compression="gzip", fletcher32=True)
        offset = file["rewards"].id.get_chunk_info(0).byte_offset
    spoiled = bytearray((tmp_path / "log.hdf5").read_bytes())
    spoiled[offset + 20] ^= 0xFF
    (tmp_path / "log.hdf5").write_bytes(spoiled)
    message = error_message(tmp_path / "log.hdf5", tmp_path)
    assert message == "log.hdf5: field 'rewards': expected chunks of 192 bytes, found a damaged one."

    np.savez(tmp_path / "log.npz", **log)
    spoiled = bytearray((tmp_path / "log.npz").read_bytes())
    spoiled[spoiled.index(log["rewards"].tobytes()) + 3] ^= 0xFF
    (tmp_path / "log.npz").write_bytes(spoiled)
    message = error_message(tmp_path / "log.npz", tmp_path)
    assert message == "log.npz: field 'rewards': expected an intact npz file, found Bad CRC-32 for file 'rewards.npy'."


CHUNKS: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "short gzip": ({"compression": "gzip"}, zlib.compress(bytes(10)), "one of 10"),
    "long gzip": ({"compression": "gzip"}, zlib.compress(bytes(2000)), "a longer one"),
    "no gzip": ({"compression": "gzip"}, b"nonsense", "a damaged one"),
    "short lzf": ({"compression": "lzf"}, bytes([9, *range(10), 0x20, 0, 0xE0, 1, 0]), "one of 23"),
    "long lzf": ({"compression": "lzf"}, bytes([9, *range(10), *[0xE0, 255, 0] * 3]), "a longer one"),
    "no lzf": ({"compression": "lzf"}, bytes([31, 0, 0]), "a damaged one"),
    "short shuffle": ({"shuffle": True}, bytes(10), "one of 10"),
    "short checksum": ({"fletcher32": True}, bytes(3), "a damaged one"),
}


class TestFalseClaims:
    """Headers that promise more than a file can hold are refused before memory is set aside."""

    def test_npz(self, tmp_path: Path) -> None:
        header = io.BytesIO()
        claim = {"descr": "<f8", "fortran_order": False, "shape": (10**12, 4)}
        np.lib.format.write_array_header_1_0(header, claim)
        with zipfile.ZipFile(tmp_path / "log.npz", "w") as archive:
            archive.writestr("observations.npy", header.getvalue() + bytes(64))
        message = error_message(tmp_path / "log.npz", tmp_path)
        assert message.startswith("log.npz: field 'observations': expected arrays that fit into a file of ")
        assert message.endswith("found a header that declares 32,000,000,000,000 bytes.")

    def test_npz_that_holds_less_or_more_than_its_header_says(self, tmp_path: Path) -> None:
        for rows, message in ((30, "expected 240 bytes of numbers, found 192."), (3, "found more bytes.")):
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (rows,)})
            with zipfile.ZipFile(tmp_path / "log.npz", "w") as archive:
                archive.writestr("rewards.npy", header.getvalue() + bytes(192))
            assert error_message(tmp_path / "log.npz", tmp_path).endswith(message)

    @pytest.mark.parametrize(
        "shape", ["(True, 60)", "(0, 10**24)", f"(0, {10**24})", f"({10**24}, 0)", f"({'1,' * 71})"]
    )
    def test_npz_with_an_impossible_shape(self, shape: str, tmp_path: Path) -> None:
        text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"
        header = b"\x93NUMPY\x01\x00" + (len(text) + 1).to_bytes(2, "little") + text.encode() + b"\n"
        with zipfile.ZipFile(tmp_path / "log.npz", "w") as archive:
            archive.writestr("observations.npy", header + bytes(480))
        assert error_message(tmp_path / "log.npz", tmp_path).startswith("log.npz: field 'observations': expected ")

    def test_npz_packed_in_an_unusual_way(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "log.npz", "w", zipfile.ZIP_BZIP2) as archive:
            archive.writestr("rewards.npy", bytes(10**6))
        message = error_message(tmp_path / "log.npz", tmp_path)
        assert (
            message
            == "log.npz: field 'rewards': expected an array that is stored or deflated, as NumPy writes it, found compression method 12."
        )

    def test_hdf5_that_was_never_filled(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "log.hdf5", "w") as file:
            file.create_dataset("observations", (10**11, 4), np.float32, chunks=(1000, 4))
        message = error_message(tmp_path / "log.hdf5", tmp_path)
        assert message.startswith("log.hdf5: field 'observations': expected arrays that fit into a file of ")
        assert message.endswith("found a header that declares 1,600,000,000,000 bytes.")

    @pytest.mark.parametrize(("packing", "packed", "found"), CHUNKS.values(), ids=CHUNKS)
    def test_hdf5_with_a_chunk_of_another_size(
        self, packing: dict[str, Any], packed: bytes, found: str, tmp_path: Path
    ) -> None:
        """HDF5 would read whatever lies in memory behind a chunk that is too short, or crash."""
        with h5py.File(write_arrays(tmp_path / "log.hdf5", WITHOUT["observations"]), "a") as file:
            node = file.create_dataset("observations", (24, 3), np.float64, chunks=(24, 3), **packing)
            node.id.write_direct_chunk((0, 0), packed)
        expected = "expected chunks of 576 bytes"
        assert (
            error_message(tmp_path / "log.hdf5", tmp_path)
            == f"log.hdf5: field 'observations': {expected}, found {found}."
        )

    def test_hdf5_with_an_index_that_says_a_chunk_is_shorter(self, tmp_path: Path) -> None:
        with h5py.File(write_arrays(tmp_path / "log.hdf5", WITHOUT["observations"]), "a") as file:
            file.create_dataset("observations", data=np.ones((24, 3)), chunks=(24, 3))
        content = bytearray((tmp_path / "log.hdf5").read_bytes())
        place = content.index((576).to_bytes(4, "little"), content.index(b"TREE\x01"))  # the node with the chunk's size
        content[place : place + 4] = (16).to_bytes(4, "little")
        (tmp_path / "log.hdf5").write_bytes(content)
        assert error_message(tmp_path / "log.hdf5", tmp_path).endswith("expected chunks of 576 bytes, found one of 16.")

    def test_flags_that_were_never_written_are_false(self, tmp_path: Path) -> None:
        with h5py.File(write_arrays(tmp_path / "log.hdf5", WITHOUT["terminations"]), "a") as file:
            file.create_dataset("terminals", (24,), bool)
        assert not load_dataset(tmp_path / "log.hdf5").terminations.any()


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    np.savez(tmp_path / "log.npz", **small_log() | {"rewards": np.array([Trap()] * 24)})
    message = error_message(tmp_path / "log.npz", tmp_path)
    assert (
        message
        == "log.npz: field 'rewards': expected numbers, found an array of type object. Python objects are not read, for safety."
    )
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        file.create_dataset("observations", data=["a", "b"], dtype=h5py.string_dtype())
    message = error_message(tmp_path / "log.hdf5", tmp_path)
    assert message == "log.hdf5: field 'observations': expected numbers, found an array of type object."


def test_arrays_under_unknown_names(tmp_path: Path) -> None:
    write_arrays(tmp_path / "log.hdf5", {"states": np.zeros(3), "moves/left": np.zeros(3)})
    message = error_message(tmp_path / "log.hdf5", tmp_path)
    assert message == f"log.hdf5: expected a field 'observations', found only 'moves', 'states'. {HINT}"
    np.savez(tmp_path / "log.npz", states=np.zeros(3))
    message = error_message(tmp_path / "log.npz", tmp_path)
    assert message == f"log.npz: expected a field 'observations', found only 'states'. {HINT}"


def test_every_name_of_a_source_is_listed_with_the_one_that_was_probably_meant(tmp_path: Path) -> None:
    log = small_log()
    fields = {"obs": log["observations"], "actions": log["actions"], "reward": log["rewards"], "goal": np.zeros(3)}
    present = "'actions', 'goal', 'obs', 'reward'"
    hint = "Did you mean 'obs'? Rename it to 'observations'."
    for name, write in ARRAY_WRITERS.items():
        message = error_message(write(tmp_path / name, fields), tmp_path)
        assert message == f"{name}: expected a field 'observations', found only {present}. {hint}"
    with pytest.raises(DataError) as caught:
        load_dataset(fields)
    assert str(caught.value) == f"arrays: expected a field 'observations', found only {present}. {hint}"
    renamed = {name: values for name, values in fields.items() if name != "obs"} | {"observations": fields["obs"]}
    with pytest.raises(DataError, match=r"'reward'\. Did you mean 'reward'\? Rename it to 'rewards'\."):
        load_dataset(renamed)
    nested = write_arrays(tmp_path / "log.hdf5", renamed | {"infos/goal": np.zeros(3), "infos/speed": np.zeros(3)})
    assert "found only 'actions', 'goal', 'infos', 'observations', 'reward'." in error_message(nested, tmp_path)


def test_a_file_that_disappears_while_it_is_read(tmp_path: Path) -> None:
    data = tmp_path / "log" / "data"
    data.mkdir(parents=True)
    (data / "metadata.json").write_text("{}")
    with h5py.File(data / "main_data.hdf5", "w") as file:
        for episode in ("episode_0", "episode_1"):
            fields = {"rewards": np.zeros(3), "observations": np.ones((4, 1)), "actions": np.ones((3, 1))}
            for name, values in (fields | dict.fromkeys(("terminations", "truncations"), np.zeros(3, bool))).items():
                file.create_dataset(f"{episode}/{name}", data=values, compression="gzip")

    def remove(stage: str, done: int, total: int) -> None:
        (data / "main_data.hdf5").unlink(missing_ok=True)

    with pytest.raises(DataError, match=r"episode_1/rewards': expected an intact HDF5 file, found .*No such file"):
        load_dataset(tmp_path / "log", progress=remove)


def test_a_minari_file_given_instead_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    folder = write_minari(load_dataset(small_log()), "some/log-v0")
    message = error_message(folder / "data" / "main_data.hdf5", tmp_path)
    assert message.endswith("The file belongs to a Minari data set; give the folder some/log-v0/data.")


def test_our_own_file_of_another_version(tmp_path: Path) -> None:
    write_arrays(tmp_path / "log.hdf5", small_log() | {"bats/version": np.int64(7)})
    message = error_message(tmp_path / "log.hdf5", tmp_path)
    assert message.startswith("log.hdf5: field 'bats/version': expected layout version 1, found version 7.")


def test_names_in_our_own_file_that_cannot_be(tmp_path: Path) -> None:
    faults = {
        "field 'bats/action_names': expected texts of a fixed length, found an array of type float64.": np.zeros(1),
        "field 'bats/action_names': expected a list of texts, found shape ().": np.bytes_(b"speed"),
        "field 'action_names': expected 1 names, one for each component, found ('x', 'y').": np.array([b"x", b"y"]),
    }
    for message, names in faults.items():
        own = {"bats/version": np.int64(1), "bats/action_names": names}
        source = write_arrays(tmp_path / "log.hdf5", small_log() | own)
        assert error_message(source, tmp_path) == f"log.hdf5: {message}"


def test_errors_about_episode_ends_of_our_own_file_use_the_name_in_the_file(tmp_path: Path) -> None:
    source = write_arrays(tmp_path / "log.hdf5", changed("timeouts", 5, 2) | {"bats/version": np.int64(1)})
    message = error_message(source, tmp_path)
    assert message == "log.hdf5: field 'timeouts', row 5: expected true or false (1 or 0), found 2.0."


NONSENSE = {
    "observations=x,y actions=u": "expected a column for 'rewards', found only 'actions', 'observations'",
    "": "expected columns for 'observations', found only nothing",
    "observations": "expected a column map like",
    "observations=x,,y actions=u rewards=r": "expected a column map like",
    "observation=x actions=u rewards=r": "found 'observation'. Did you mean 'observations'?",
    "observations=x observations=y": "expected 'observations' only once, found it twice",
    "observations=x actions=u rewards=a,b": "expected one column for 'rewards', found 2",
    "observations=x actions=u rewards=r terminals=d terminations=e": "expected 'terminations' only once, found it twice",
    "observations='Pos X actions=u rewards=r": "Names with spaces must be in quotes, as in observations='Pos X','Pos Y'.",
    "observations=Pos X actions=u rewards=r": "found 'X'. Names with spaces must be in quotes",
    "observations='Pos X'x actions=u": "expected a column map like",
}

MAP_HINT = 'Name the columns of each field, for example --columns "observations=x,y actions=u rewards=r" (in Python: columns="…").'
CSV_FAULTS = {
    "observations,actions,rewards\n1,2,3\n4,x5,6\n": "log.csv: field 'actions', row 1: expected a number, found 'x5'. This row is in line 3.",
    "observations,actions,rewards\n1,2,3\n\n4,5,\n": "log.csv: field 'rewards', row 1: expected a number, found an empty cell. This row is in line 4.",
    "observations,actions,rewards\n1,2,3\n4,5\n": "log.csv: row 1: expected 3 columns, as in the header, found 2. This row is in line 3.",
    "observations,actions,rewards\n1,2,3\n4,5,6,7\n": "log.csv: row 1: expected 3 columns, as in the header, found 4. This row is in line 3.",
    "observations,actions,rewards,timeouts\n1,2,3,yes\n": "log.csv: field 'timeouts', row 0: expected true or false (1 or 0), found 'yes'. This row is in line 2.",
    'observations,actions,rewards\n"1,2",3\n': "log.csv: row 0: expected 3 columns, as in the header, found 2. This row is in line 2.",
    'observations,actions,rewards,more\n1,2,3,"a\n4,5,6,b\n7,8,9,c\n': "log.csv: expected each row on one line, found a quoted cell with a line break, after line 1.",
    "observations," + "x" * 200_000 + "\n1,2\n": "log.csv: expected cells separated by commas, found field larger than field limit (131072).",
    "1,2,3\n4,5,6\n": "log.csv: expected a header line with the columns' names, found only numbers. Add a first line such as x,y,u,r.",
    "\n4,5,6\n": "log.csv: expected a header line with the columns' names, found a blank line. Add a first line such as x,y,u,r.",
    "observations,actions,rewards\n": "log.csv: expected rows below the header line, found none.",
    "observations,actions,rewards,episode\n\n\n": "log.csv: expected rows below the header line, found none.",
    "run 1,0.5,1,0\nrun 1,0.6,0,1\n": f"log.csv: expected columns for 'observations', found only '0', '0.5', '1', 'run 1'. {MAP_HINT} The first line has numbers; is the header line missing?",
    "observations,observations,actions,rewards\n1,2,3,4\n": "log.csv: field 'observations': expected one column 'observations', found several columns of that name.",
    "observations,actions,rewards,timeouts,truncations\n1,2,3,4,5\n": "log.csv: expected only one of 'timeouts' and 'truncations', found both.",
}  # fmt: skip


class TestTables:
    @pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
    def test_columns_that_are_not_there(self, name: str, tmp_path: Path) -> None:
        columns = {"pos_x": np.zeros(3), "pos_y": np.zeros(3), "u": np.zeros(3), "r": np.zeros(3)}
        source = (write_csv if name == "log.csv" else write_parquet)(tmp_path / name, columns)
        mapped = ColumnMap.parse("observations=pos_x,pos_z actions=u rewards=r")
        message = error_message(source, tmp_path, columns=mapped)
        present = "'pos_x', 'pos_y', 'r', 'u'"
        assert message == (
            f"{name}: field 'observations': expected a column 'pos_z', found only {present}. Did you mean 'pos_y'?"
        )
        message = error_message(source, tmp_path)
        assert message == f"{name}: expected columns for 'observations', found only {present}. {MAP_HINT}"

    @pytest.mark.parametrize("text", NONSENSE)
    def test_column_maps_that_say_nothing(self, text: str) -> None:
        with pytest.raises(DataError) as caught:
            ColumnMap.parse(text)
        assert NONSENSE[text] in str(caught.value)

    @pytest.mark.parametrize("text", CSV_FAULTS, ids=range(len(CSV_FAULTS)))
    def test_csv(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "log.csv").write_text(text)
        assert error_message(tmp_path / "log.csv", tmp_path) == CSV_FAULTS[text]

    @pytest.mark.parametrize(("mark", "word"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (" ", "spaces")])
    def test_csv_with_other_marks_between_cells(self, mark: str, word: str, tmp_path: Path) -> None:
        (tmp_path / "log.csv").write_text("observations,actions,rewards\n1,2,3\n4,5,6\n".replace(",", mark))
        message = error_message(tmp_path / "log.csv", tmp_path)
        assert message.startswith(
            f"log.csv: expected cells separated by commas, found a header line separated by {word}. Convert it: pandas."
        )
        assert f"sep={mark!r}" in message

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            (3, "field 'columns': expected a ColumnMap, a text or a dictionary of column names, found int 3."),
            (
                ["x", "u", "r"],
                "expected a ColumnMap, a text or a dictionary of column names, found list ['x', 'u', 'r'].",
            ),
            ({"observations": 1}, "field 'columns': expected one or several column names for 'observations', found 1."),
            ({"observations": []}, "expected one or several column names for 'observations', found []."),
            ({"observations": "x", "actions": "u"}, "expected a column for 'rewards', found only 'actions', 'observ"),
            ({"obs": "x"}, "expected one of observations, actions, next_observations, rewards,"),
        ],
    )
    def test_column_maps_of_another_kind(self, columns: object, message: str) -> None:
        with pytest.raises(DataError) as caught:
            ColumnMap.from_any(columns)
        assert message in str(caught.value)

    def test_parquet(self, tmp_path: Path) -> None:
        import pyarrow

        fine = {"observations": [[0.0, 1.0]] * 3, "actions": [0.0] * 3, "rewards": [1.0] * 3}
        faults = {
            "field 'rewards', row 1: expected a value in every cell, found an empty cell.": {"rewards": [1.0, None, 2.0]},
            "field 'observations', row 2: expected lists of 2 numbers, found a list of 1.": {
                "observations": [[0.0, 1.0], [0.0, 1.0], [0.0]]
            },
            "field 'observations', row 1: expected a value in every cell, found an empty cell.": {
                "observations": [[0.0, 1.0], [0.0, None], [0.0, 1.0]]
            },
            "field 'rewards': expected numbers, found a column of type string.": {"rewards": ["a", "b", "c"]},
            "field 'observations': expected numbers, found a column of type list<element: double>.": {
                "observations": [[[0.0]], [[1.0]], [[2.0]]]
            },
            "field 'episode', row 0: expected a value in every cell, found an empty cell.": {"episode": [None, 1, 1]},
            "field 'episode': expected ids that are numbers or texts, found a column of type date32[day].": {
                "episode": pyarrow.array([1, 2, 3], pyarrow.date32())
            },
            "expected at least 1 row, found none.": {name: values[:0] for name, values in fine.items()},
        }  # fmt: skip
        for message, change in faults.items():
            write_parquet(tmp_path / "log.parquet", fine | change)
            assert error_message(tmp_path / "log.parquet", tmp_path) == f"log.parquet: {message}"
        write_parquet(
            tmp_path / "log.parquet", fine | {"observations_1": [[0.0], [1.0], [2.0]], "observations_0": [1.0] * 3}
        )
        assert "expected one vector column or several columns of numbers" in error_message(
            tmp_path / "log.parquet", tmp_path
        )


METADATA_FAULTS = {
    "[1": "expected valid JSON, found Expecting ',' delimiter",
    "[1]": "expected a JSON object, found a list.",
    '{"action_space": 3}': "field 'action_space': expected a space in JSON, found the JSON object must be str",
    '{"action_space": "{\\"type\\": \\"Discrete\\", \\"n\\": -2}"}': "field 'action_space': expected integers n and start",
    '{"bats": {"version": 1, "unknown_next": [1.5]}}': "field 'bats/unknown_next': expected row numbers",
    '{"bats": {"version": 1, "unknown_next": [], "action_names": [1]}}': "field 'bats/action_names': expected a list of texts",
    "[" * 20_000 + "]" * 20_000: "expected valid JSON, found objects or lists that are nested too deeply",
    json.dumps(
        {"action_space": "[" * 20_000}
    ): "field 'action_space': expected a space in JSON, found maximum recursion",
}


class TestMinari:
    @pytest.fixture
    def data(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
        return write_minari(load_dataset(small_log()), "log-v0") / "data"

    def message(self, data: Path) -> str:
        return error_message("minari:log-v0", data.parent.parent)

    def test_data_in_another_format(self, data: Path) -> None:
        metadata = json.loads((data / "metadata.json").read_text())
        (data / "metadata.json").write_text('{"data_format": ' + "[" * 500 + "]" * 500 + "}")
        assert "field 'data_format': expected data stored as hdf5, found [[[[[[[...]]]]]]]." in self.message(data)
        (data / "metadata.json").write_text(json.dumps(metadata | {"data_format": "arrow"}))
        hint = "Write the data set again with data_format='hdf5'."
        assert (
            self.message(data)
            == f"log-v0/data: field 'data_format': expected data stored as hdf5, found 'arrow'. {hint}"
        )

    @pytest.mark.parametrize("text", METADATA_FAULTS, ids=range(len(METADATA_FAULTS)))
    def test_metadata(self, text: str, data: Path) -> None:
        (data / "metadata.json").write_text(text)
        assert self.message(data).startswith(f"log-v0/data/metadata.json: {METADATA_FAULTS[text]}")

    def test_rows_without_a_next_state_that_do_not_end_the_task(self, data: Path) -> None:
        (data / "metadata.json").write_text('{"bats": {"version": 1, "unknown_next": [7, 8]}}')
        message = self.message(data)
        assert (
            message
            == "minari:log-v0: field 'unknown_next', row 8: expected a termination in every row whose next state is unknown, found no termination."
        )
        (data / "metadata.json").write_text('{"bats": {"version": 1, "unknown_next": [24]}}')
        assert "field 'unknown_next': expected row numbers from 0 to 23" in self.message(data)

    def test_groups_that_contain_themselves_are_read_once(self, data: Path) -> None:
        expected = load_dataset("minari:log-v0")
        with h5py.File(data / "main_data.hdf5", "a") as file:
            for episode in range(3):
                group = file.create_group(f"episode_{episode}/parts")
                group["state"] = file[f"episode_{episode}/observations"]
                for index in range(100):  # followed to any depth, these would be 100 times 100 times 100 … groups
                    group[f"again_{index}"] = group
                file.move(f"episode_{episode}/observations", f"episode_{episode}/old")
                file.move(f"episode_{episode}/parts", f"episode_{episode}/observations")
        assert_same(load_dataset("minari:log-v0"), expected)

    def test_a_file_that_is_gone(self, data: Path) -> None:
        shutil.move(data / "main_data.hdf5", data.parent.parent / "aside")
        assert self.message(data) == "log-v0/data/main_data.hdf5: expected an HDF5 file, found no such file."

    def test_episodes(self, data: Path) -> None:
        def spoil(change: Callable[[h5py.File], None]) -> str:
            shutil.copy(data / "main_data.hdf5", data / "sound")
            with h5py.File(data / "main_data.hdf5", "a") as file:
                change(file)
            message = self.message(data)
            shutil.move(data / "sound", data / "main_data.hdf5")
            return message.removeprefix("log-v0/data/main_data.hdf5: ")

        def replaced(name: str, values: object) -> Callable[[h5py.File], None]:
            def change(file: h5py.File) -> None:
                del file[name]
                file[name] = values

            return change

        present = "'actions', 'infos', 'observations', 'terminations', 'truncations'"
        message = spoil(lambda file: file.pop("episode_1/rewards"))
        assert message == f"field 'episode_1': expected a field 'rewards', found only {present}."
        message = spoil(replaced("episode_1/observations", np.zeros((8, 2))))
        assert message == "field 'episode_1/observations': expected 9 rows for 8 rewards, found 8."
        message = spoil(replaced("episode_2/observations", np.zeros((9, 3))))
        assert message.startswith("field 'episode_2/observations': expected observations (2), as in earlier episodes")
        message = spoil(replaced("episode_2/terminations", np.zeros((8, 2))))
        assert message == "field 'episode_2/terminations': expected one number per row, found shape (8, 2)."
        message = spoil(replaced("episode_0/actions", h5py.SoftLink("/episode_1/actions")))
        assert message.startswith("field 'episode_0': expected a field 'actions', found only")
        message = spoil(replaced("episode_2", np.zeros(3)))
        assert message == "field 'episode_2': expected a group, found something else."
        message = spoil(replaced("episode_0/actions", 3.0))
        assert message == "field 'episode_0/actions': expected one entry per row, found a single number."
        message = spoil(lambda file: [file.pop(f"episode_{number}") for number in range(3)] and None)
        assert message == "expected groups 'episode_0', 'episode_1', …, found only nothing."
