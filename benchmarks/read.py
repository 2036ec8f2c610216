"""Seconds to read and validate a log of a million rows, in every format that is a single file.

    python -m benchmarks.read
    python -m benchmarks.read --quick        a hundredth of the rows, to see that it runs

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
from bats.data.formats.hdf5 import write_hdf5
from bats.data.formats.load import load_dataset
from benchmarks.common import print_figures, script_parser
from benchmarks.corridor import corridor_log


def main() -> None:
    quick = script_parser(__doc__, quick="a hundredth of the rows").parse_args().quick
    validate(corridor_log(1_000))  # compiles
    log = corridor_log(10_000 if quick else 1_000_000)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for file in write_all(log, Path(folder)):
            began = time.perf_counter()
            dataset = load_dataset(file)
            reading = time.perf_counter() - began
            validate(dataset)
            both = time.perf_counter() - began
            size = file.stat().st_size / 1e6
            print(f"{file.name}: {size:.0f} MB, read in {reading:.2f} s, validated in {both - reading:.2f} s")
            figures.append((file.name.replace(".", "_"), both, "s"))
    print_figures(figures, prefix="read_and_validate_1m_")


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
    # tables have one column for each number
    columns = {"rewards": log.rewards, "terminations": log.terminations}
    for field in ("observations", "actions", "next_observations"):
        columns |= {f"{field}_{number}": values for number, values in enumerate(fields[field].T)}
    parquet.write_table(pa.table(columns), files[3])
    table = np.column_stack([values.astype(np.float64) for values in columns.values()])
    np.savetxt(files[4], table, delimiter=",", header=",".join(columns), comments="", fmt="%.9g")
    return files


if __name__ == "__main__":
    main()
