"""What is fuzzed: readers, sound inputs for them, and what counts as a proper answer.

To fuzz another reader, add a `Target` to `TARGETS`.
"""

from __future__ import annotations

import csv
import io
import json
import operator
import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from rich.console import Console

from bats.cli.data import print_validation
from bats.data.checks import validate
from bats.data.dataset import Dataset
from bats.data.formats.load import load_dataset, write_hdf5
from bats.policy.files import load_policy
from bats.report.contents import Contents
from bats.storage.tensors import read_tensors
from tests.fuzz_faults import (
    Fault,
    damage,
    damage_inside,
    damage_parquet_headers,
    rebuild_csv,
    rebuild_hdf5,
    rebuild_json,
    rebuild_npz,
    rebuild_parquet,
)
from tests.logs import assert_same

ROWS = 60
RUN = "BATS_FUZZ_RUN"
"""variable that names the folder of a finished run, the small one of the tests"""
RUN_RECORDS = tuple(
    f"{name}.json" for name in ("run", "settings", "files", "log", "model", "policy", "finished", "certificate")
)
RUN_ARRAYS = tuple(
    f"{name}.safetensors"
    for name in (
        *("model", "policy", "rollouts", "bounds", "mdp/base"),
        *(f"{kind}/round-{number:04d}" for kind in ("mdp", "attempts") for number in (1, 2, 3)),
    )
)
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Base:
    """A sound input: what is read, and which file of it is damaged."""

    source: Path
    victim: Path


@dataclass(frozen=True)
class Target:
    """A reader."""

    layouts: tuple[str, ...]
    """names of its sound inputs"""
    make: Callable[[str, Path], Base]
    """writes the sound input of a layout into an empty folder"""
    read: Callable[[Path, random.Random | None], object]
    """reads an input, with settings drawn at random if there are any (None: the usual ones); raises `BatsError`, or
    AssertionError for a result that cannot be right"""
    faults: tuple[Fault, ...]
    same: Callable[[object, object], bool] | None = None
    """for formats with a checksum: whether two results are the same, because a damaged file must not be read as if it
    said something else"""


def fields(*, discrete: bool = False, with_next: bool = False) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    states = rng.normal(size=(ROWS + 1, 3)).cumsum(axis=0).astype(np.float32)
    log = {
        "observations": states[:-1],
        "actions": rng.integers(0, 4, ROWS) if discrete else rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "rewards": rng.random(ROWS),
        "terminals": np.arange(ROWS) % 30 == 29,
        "timeouts": np.arange(ROWS) % 20 == 19,
    }
    return log | ({"next_observations": states[1:]} if with_next else {})


def read_log(source: Path, rng: random.Random | None) -> Dataset:
    """Reads a log, and prints everything that `bats-rl validate` prints about it."""
    settings: dict[str, Any] = {}
    if rng is not None:
        settings["timeout_rule"] = rng.choice(("auto", "trust", "ignore"))
        settings["discrete"] = rng.choice((None,) * 6 + (True, False))
    dataset = load_dataset(source, **settings)
    check_log(dataset)
    noise = [np.full(size, 0xA5, dtype=np.uint8) for size in range(100, 3000, 10)]
    del noise  # a reader that returns memory it never wrote would return this the next time
    assert_same(load_dataset(source, **settings), dataset)
    printed = io.StringIO()
    print_validation(dataset, validate(dataset), Console(file=printed, width=200))
    assert CONTROL.search(printed.getvalue().replace(str(source), "")) is None, "control characters were printed"
    return dataset


def check_log(dataset: Dataset) -> None:
    """What holds for every log, whatever file it comes from."""
    rows = len(dataset)
    numbers = (dataset.observations, dataset.next_observations, dataset.rewards, dataset.actions)
    assert rows >= 2
    assert all(len(values) == rows and (np.abs(values) <= 1e30).all() for values in numbers)
    flags = (dataset.terminations, dataset.episode_ends, dataset.next_known)
    assert all(values.shape == (rows,) and values.dtype == bool for values in flags)
    assert {*np.unique(np.stack(flags).view(np.uint8)).tolist()} <= {0, 1}
    assert dataset.observations.shape == dataset.next_observations.shape
    assert 0 <= dataset.starts.min() <= dataset.starts.max() < rows
    assert abs(dataset.start_weights.sum() - 1) < 1e-9
    if dataset.action_count is not None:
        assert 0 <= dataset.actions.min() <= dataset.actions.max() < dataset.action_count <= 10_000


def make_hdf5(layout: str, folder: Path) -> Base:
    path = folder / "log.hdf5"
    if layout == "own":
        names = {"observation_names": ("x", "y", "size"), "action_names": ("push", "pull")}
        write_hdf5(replace(load_dataset(fields()), **names).with_starts([0, 7], [1, 3]), path)
        return Base(path, path)
    packing: dict[str, dict[str, Any]] = {
        "d4rl": {"observations": {"compression": "gzip"}, "timeouts": {"compression": "gzip"}},
        "packed": {"observations": {"compression": "gzip", "shuffle": True, "fletcher32": True, "chunks": (7, 2)}},
        "lzf": {"actions": {"compression": "lzf", "chunks": (30,)}},
    }
    log = fields(discrete=layout in ("lzf", "packed"), with_next=layout == "packed")
    with h5py.File(path, "w", libver="latest" if layout == "latest" else "earliest") as file:
        for name, values in log.items():
            file.create_dataset(name, data=values, **packing.get(layout, {}).get(name, {}))
        file.create_dataset("infos/goal", data=np.zeros((ROWS, 2)))
    return Base(path, path)


def make_npz(layout: str, folder: Path) -> Base:
    path = folder / "log.npz"
    if layout == "stored":
        ids = {"episode": np.array([f"run {row // 20}" for row in range(ROWS)])}
        np.savez(path, **{name: np.asfortranarray(values) for name, values in fields(discrete=True).items()}, **ids)
    else:
        np.savez_compressed(path, **fields(with_next=True))
    return Base(path, path)


def make_csv(layout: str, folder: Path) -> Base:
    path, log = folder / "log.csv", fields()
    with path.open("w", newline="") as stream:
        quoting = csv.QUOTE_NONNUMERIC if layout == "quoted" else csv.QUOTE_MINIMAL
        writer = csv.writer(stream, quoting=quoting, lineterminator="\r\n" if layout == "quoted" else "\n")
        writer.writerow(["observations_0", "observations_1", "actions", "rewards", "terminals", "episode", "more"])
        for row in range(ROWS):
            numbers = [float(value) for value in log["observations"][row, :2]]
            action = row % 3 if layout == "quoted" else float(log["actions"][row, 0])
            writer.writerow([*numbers, action, log["rewards"][row], log["terminals"][row], f"run {row // 20}", "text"])
    return Base(path, path)


def make_parquet(layout: str, folder: Path) -> Base:
    import pyarrow
    import pyarrow.parquet

    path, log = folder / "log.parquet", fields(discrete=layout == "dictionaries")
    columns: dict[str, Any] = {"rewards": log["rewards"], "terminals": log["terminals"], "more": [None] * ROWS}
    columns["episode"] = [f"run {row // 20}" for row in range(ROWS)]
    if layout == "lists":
        columns["observations"] = pyarrow.array(log["observations"].tolist(), pyarrow.list_(pyarrow.float32()))
        columns["actions"] = pyarrow.array(log["actions"].tolist(), pyarrow.list_(pyarrow.float32(), 2))
        options: dict[str, Any] = {"row_group_size": 25}
    else:
        columns |= {f"observations_{index}": log["observations"][:, index] for index in range(3)}
        columns["actions"] = log["actions"] if layout == "dictionaries" else log["actions"][:, 0]
        options = {"compression": "zstd", "use_dictionary": False, "data_page_version": "2.0", "data_page_size": 64}
        if layout == "dictionaries":
            columns["episode"] = pyarrow.array(columns["episode"]).dictionary_encode()
            columns["actions"] = pyarrow.array(log["actions"]).dictionary_encode()
            options = {"compression": "gzip", "use_dictionary": True}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return Base(path, path)


def make_minari(layout: str, folder: Path, *, metadata: bool = False) -> Base:
    """Written by hand: Minari itself takes seconds to import."""
    data = folder / "set" / "data"
    data.mkdir(parents=True)
    log = fields(discrete=layout == "parts")
    with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
        for number, start in enumerate(range(0, ROWS, 20)):
            rows = slice(start, start + 20)
            states = np.concatenate([log["observations"][rows], log["observations"][start : start + 1]])
            group = file.create_group(f"episode_{number}")
            parts = {"observations": states}
            if layout == "parts":
                parts = {"observations/position": states, "observations/goal": states[:, :2]}
            for name, values in parts.items():
                group.create_dataset(name, data=values, chunks=True, maxshape=(None, values.shape[1]))
            for name, field in (("actions", "actions"), ("rewards", "rewards"), ("terminations", "terminals")):
                group.create_dataset(name, data=log[field][rows])
            group.create_dataset("truncations", data=log["timeouts"][rows])
    spaces = {"parts": {"type": "Discrete", "dtype": "int64", "start": 0, "n": 4}, "plain": {"type": "Box"}}
    width = 5 if layout == "parts" else 3
    own = {"version": 1, "unknown_next": [29], "observation_names": [f"number {index}" for index in range(width)]}
    own["notes"] = ["decision: 3 timeouts."]
    content = {"data_format": "hdf5", "action_space": json.dumps(spaces[layout]), "bats": own}
    (data / "metadata.json").write_text(json.dumps(content))
    return Base(folder / "set", data / ("metadata.json" if metadata else "main_data.hdf5"))


def make_minari_metadata(layout: str, folder: Path) -> Base:
    return make_minari(layout, folder, metadata=True)


def make_run(layout: str, folder: Path) -> Base:
    """A copy of a finished run, one of whose files is damaged."""
    shutil.copytree(os.environ[RUN], folder / "run")
    return Base(folder / "run", folder / "run" / layout)


def read_run(source: Path, rng: random.Random | None) -> tuple[object, ...]:
    """Everything that commands show of a run, and what its policy answers."""
    contents, policy = Contents(source), load_policy(source / "policy.safetensors")
    read_tensors(source / "model.safetensors", "bats-dynamics")  # building it needs more memory than there is here
    certificate = contents.certificate
    assert certificate is not None
    shown = contents.header, contents.config, contents.summary, contents.log_card, contents.records
    arrays = contents.value, contents.rollouts.edge, contents.selection.returns, policy.predict(contents.mdp.states)
    return *shown, certificate.verdict, certificate.facts(), *(array.tobytes() for array in arrays)


IN_HDF5: tuple[Fault, ...] = (damage, damage_inside, damage_inside, damage_inside, rebuild_hdf5)
TARGETS: dict[str, Target] = {
    "hdf5": Target(("d4rl", "latest", "own", "packed", "lzf"), make_hdf5, read_log, IN_HDF5),
    "npz": Target(("stored", "deflated"), make_npz, read_log, (damage, rebuild_npz, rebuild_npz)),
    "csv": Target(("plain", "quoted"), make_csv, read_log, (damage, rebuild_csv)),
    "parquet": Target(
        ("lists", "flat", "dictionaries"),
        make_parquet,
        read_log,
        (damage, damage_inside, damage_parquet_headers, damage_parquet_headers, rebuild_parquet),
    ),
    "minari": Target(("parts", "plain"), make_minari, read_log, IN_HDF5),
    "minari_metadata": Target(("parts", "plain"), make_minari_metadata, read_log, (damage, rebuild_json)),
    "run_json": Target(RUN_RECORDS, make_run, read_run, (damage, rebuild_json), same=operator.eq),
    "run_arrays": Target((*RUN_ARRAYS, "records.jsonl"), make_run, read_run, (damage, damage_inside), same=operator.eq),
}
