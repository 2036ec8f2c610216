"""Reading and validating a log of a million rows, in every format it can come in.

    python -m benchmarks.read

The log has 4 observation and 2 action numbers in single precision. HDF5 is written as the package writes it, and
compressed as D4RL's files are.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bats.data.checks import validate
from bats.data.dataset import Dataset
from bats.data.formats.load import load_dataset, write_hdf5
from benchmarks.corridor import corridor_log

ROWS = 1_000_000


def main() -> None:
    validate(corridor_log(1_000))  # compiles
    log = corridor_log(ROWS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in write_all(log, folder):
            size = file.stat().st_size / 1e6
            begun = time.perf_counter()
            dataset = load_dataset(file)
            read = time.perf_counter() - begun
            validate(dataset)
            both = time.perf_counter() - begun
            print(f"{file.name}: {size:.0f} MB, read in {read:.2f} s, validated in {both - read:.2f} s")
            print(f"figure read_and_validate_1m_{file.name.replace('.', '_')} {both:.2f} s")


def write_all(log: Dataset, folder: Path) -> list[Path]:
    """The log in every format that is a single file."""
    files = [folder / name for name in ("ours.hdf5", "d4rl.hdf5", "log.npz", "log.parquet", "log.csv")]
    fields = {
        "observations": log.observations,
        "actions": log.actions,
        "rewards": log.rewards,
        "next_observations": log.next_observations,
        "terminals": log.terminations,
    }
    write_hdf5(log, files[0])
    with h5py.File(files[1], "w") as file:
        for field, values in fields.items():
            file.create_dataset(field, data=values, compression="gzip")
    np.savez(files[2], **fields)  # type: ignore[arg-type]  # its flags are keywords too
    columns = {"rewards": log.rewards, "terminations": log.terminations}
    for field in ("observations", "actions", "next_observations"):
        columns |= {f"{field}_{number}": values for number, values in enumerate(fields[field].T)}
    parquet.write_table(pa.table(columns), files[3])
    text = np.column_stack([values.astype(np.float64) for values in columns.values()])
    np.savetxt(files[4], text, delimiter=",", header=",".join(columns), comments="", fmt="%.9g")
    return files


if __name__ == "__main__":
    main()
