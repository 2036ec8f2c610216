"""What reading a log takes in memory is counted before it is read, and small files that ask for much are refused."""

# ruff: noqa: E501 (a message is easier to check on one line)

from __future__ import annotations

import math
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from bats.data.formats.load import load_dataset
from bats.errors import DataError, SettingError
from tests.bombs import BOMBS, csv_of_long_ids, npz_of_zeros, parquet_of_long_ids
from tests.logs import as_columns, small_log, write_parquet
from tests.memory_worker import validate_all
from tests.test_bad_input import error_message

MEMORY = "expected a log that takes at most 300.0 MB of memory to read, found one that takes"


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux reports it")
class TestMemory:
    """`validate` with a limit of 0.3 GB, in processes of their own: files of at most 2 MB that ask for much more."""

    @pytest.mark.slow
    def test_small_files_that_ask_for_much_memory(self, tmp_path: Path) -> None:
        calls = validate_all([bomb(tmp_path) for bomb in BOMBS], "--max-memory", "0.3")
        for message, call in zip(BOMBS.values(), calls, strict=True):
            assert call.code == 2
            assert message.format(memory=MEMORY) in call.printed
            assert call.megabytes < 100, call

    def test_without_the_option_the_limit_is_half_of_what_the_process_may_use(self, tmp_path: Path) -> None:
        (call,) = validate_all([npz_of_zeros(tmp_path)])
        assert "expected a log that takes at most 1.5 GB of memory to read" in call.printed
        assert (call.code, call.megabytes < 100) == (2, True)

    def test_a_long_id_in_every_row_is_in_memory_once(self, tmp_path: Path) -> None:
        (call,) = validate_all([parquet_of_long_ids(tmp_path)], "--max-memory", "0.3")
        assert (call.code, call.megabytes < 100) == (0, True)

    def test_long_ids_of_a_csv_file_are_not_kept(self, tmp_path: Path) -> None:
        columns = "--columns", "observations=x actions=u rewards=r episode=episode"
        (call,) = validate_all([csv_of_long_ids(tmp_path)], "--max-memory", "0.3", *columns)
        assert (call.code, call.megabytes < 100) == (0, True), call
        assert "1,200 episodes" in call.printed

    def test_the_index_of_many_chunks_is_counted(self, tmp_path: Path) -> None:
        with h5py.File(tmp_path / "log.hdf5", "w") as file:
            file.create_dataset(
                "observations", data=np.arange(10**5).reshape(1000, 100) % 100, dtype="i1", chunks=(1, 1)
            )
            file["actions"], file["rewards"] = np.zeros((1000, 1)), np.zeros(1000)
        message = error_message(tmp_path / "log.hdf5", tmp_path, max_memory=0.06)
        assert message.startswith("log.hdf5: field 'observations': expected a log that takes at most 60.0 MB of memory")
        load_dataset(tmp_path / "log.hdf5", max_memory=0.08)

    def test_the_message_names_what_is_declared_the_limit_and_the_option(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "log.npz", **small_log() | {"observations": np.zeros((24, 10**6), np.int8)})
        assert error_message(tmp_path / "log.npz", tmp_path, max_memory=0.3) == (
            "log.npz: field 'observations': expected a log that takes at most 300.0 MB of memory to read, found one that "
            "takes 2.2 GB, and this field alone declares 24.0 MB. If you trust the file, raise the limit: "
            "--max-memory GIGABYTES (in Python: max_memory=…)."
        )
        for limit in (0.0, -1.0, math.nan):
            with pytest.raises(SettingError, match="`max_memory` must be positive"):
                load_dataset(tmp_path / "log.npz", max_memory=limit)

    @pytest.mark.slow
    def test_no_log_takes_more_than_is_counted_for_it(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        rows = 550_000  # a little more than a power of two, which is the worst for tables of hashes
        wide, narrow = rng.normal(size=(rows // 5, 41)), rng.normal(size=(rows, 2))
        logs: dict[str, dict[str, np.ndarray]] = {
            "single": {"observations": wide[:, :40].astype(np.float32), "actions": wide[:, 40:]},
            "next": {"observations": wide[:-1, :40], "next_observations": wide[1:, :40], "actions": wide[1:, 40:]},
            "bytes": {"observations": rng.integers(-9, 9, (rows // 5, 40), np.int8), "actions": wide[:, 40:]},
            "narrow": {"observations": narrow[:, :1].astype(np.float32), "actions": rng.integers(0, 3, rows)},
            "actions": {"observations": narrow[: rows // 5], "actions": wide},
        }
        files = []
        for name, log in logs.items():
            log["rewards"] = rng.random(len(log["actions"]))
            np.savez(tmp_path / f"{name}.npz", **log)
            with h5py.File(tmp_path / f"{name}.hdf5", "w") as file:
                for field, values in log.items():
                    file.create_dataset(field, data=values, compression="gzip", compression_opts=1)
            write_parquet(tmp_path / f"{name}.parquet", as_columns(log))
            files += [tmp_path / f"{name}.{suffix}" for suffix in ("npz", "hdf5", "parquet")]
        header = ",".join(as_columns({name: logs["single"][name][:1] for name in logs["single"]}))
        table = np.column_stack([logs["single"][name] for name in logs["single"]])
        np.savetxt(tmp_path / "log.csv", table, delimiter=",", fmt="%.6g", comments="", header=header)
        files.append(tmp_path / "log.csv")
        for file, call in zip(files, validate_all(files, "--max-memory", "2"), strict=True):
            assert call.code == 0
            with pytest.raises(DataError, match="expected a log that takes at most"):
                load_dataset(file, max_memory=call.megabytes / 1000)
            load_dataset(file, max_memory=call.megabytes / 300)  # nor is much more counted than it takes
