"""Small logs and the files they are stored in, for the tests of readers and writers."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import h5py
import numpy as np

from bats.data.dataset import Dataset

ARRAYS = (
    *("observations", "actions", "rewards", "next_observations", "terminations"),
    *("episode_ends", "next_known", "starts", "start_weights"),
)


def small_log(rows: int = 24, *, dtype: type = np.float64, seed: int = 0) -> dict[str, np.ndarray]:
    """Episodes of 8 rows: the first ends the task, the others run out of time; next states are stored."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(rows // 8, 9, 2)).astype(dtype)
    last = np.arange(rows) % 8 == 7
    return {
        "observations": states[:, :-1].reshape(rows, 2),
        "actions": rng.uniform(-1, 1, (rows, 1)).astype(dtype),
        "rewards": rng.random(rows).astype(dtype),
        "next_observations": states[:, 1:].reshape(rows, 2),
        "terminations": last & (np.arange(rows) < 8),
        "timeouts": last & (np.arange(rows) >= 8),
    }


def assert_same(left: Dataset, right: Dataset) -> None:
    """Equal in every array, type and count; names and notes say where a log came from and may differ."""
    for name in ARRAYS:
        one, other = getattr(left, name), getattr(right, name)
        assert one.dtype == other.dtype, name
        np.testing.assert_array_equal(one, other, err_msg=name)
    assert left.action_count == right.action_count


def write_arrays(path: Path, fields: Mapping[str, np.ndarray]) -> Path:
    """An HDF5 file with these arrays, as other people write it."""
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            file.create_dataset(name, data=values)
    return path


def as_columns(log: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One column per number, named as the readers recognise them."""
    columns = {}
    for name, values in log.items():
        if values.ndim == 1:
            columns[name] = values
        else:
            columns |= {f"{name}_{index}": values[:, index] for index in range(values.shape[1])}
    return columns


def write_csv(path: Path, columns: Mapping[str, np.ndarray]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    return path


def write_parquet(path: Path, columns: Mapping[str, object]) -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), path)
    return path


def folder_bytes(folder: Path) -> dict[str, bytes | None]:
    """Every name below a folder and the bytes of every plain file, to show that nothing was touched."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
