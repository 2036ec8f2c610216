"""Feeds damaged files to the readers, in a process of its own that may be killed, starved or crash.

    python fuzz_worker.py FOLDER KIND FIRST_SEED LAST_SEED

Prints each seed before it is tried, so that the caller knows which one brought the process down, and a line
`ESCAPED seed …` for everything but a `BatsError` that came out of a reader.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import sys
import traceback
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from bats.data.formats.load import load_dataset
from bats.errors import BatsError

MEMORY_BYTES = 3 * 2**30
KINDS = ("hdf5", "hdf5_latest", "own_hdf5", "npz", "npz_member", "csv", "parquet", "minari", "minari_metadata")
AWKWARD = (0, 1, 0x7F, 0x80, 0xFF)
AWKWARD_NUMBERS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 10**12)
ROWS = 60


def fields() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    states = rng.normal(size=(ROWS, 3)).cumsum(axis=0)
    return {
        "observations": states.astype(np.float32),
        "actions": rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32),
        "rewards": rng.random(ROWS),
        "terminals": np.arange(ROWS) % 30 == 29,
        "timeouts": np.arange(ROWS) % 20 == 19,
    }


def write_base(kind: str, folder: Path) -> tuple[Path, Path]:
    """A sound file of a kind: what to load, and which file to damage."""
    if kind.startswith("minari"):
        return write_minari_base(folder, metadata=kind == "minari_metadata")
    suffix = {"npz_member": "npz"}.get(kind, kind if "hdf5" not in kind else "hdf5")
    path = folder / f"log.{suffix}"
    if kind in ("hdf5", "hdf5_latest"):
        with h5py.File(path, "w", libver="latest" if kind == "hdf5_latest" else "earliest") as file:
            for name, values in fields().items():
                packed = {"compression": "gzip"} if name in ("observations", "timeouts") else {}
                file.create_dataset(name, data=values, **packed)
            file.create_dataset("infos/goal", data=np.zeros((ROWS, 2)))
    elif kind == "own_hdf5":
        from bats.data.formats.load import write_hdf5

        names = {"observation_names": ("x", "y", "size"), "action_names": ("push", "pull")}
        write_hdf5(replace(load_dataset(fields()), **names), path)
    elif kind.startswith("npz"):
        np.savez_compressed(path, **fields())
    elif kind == "csv":
        write_csv(path)
    elif kind == "parquet":
        write_parquet(path)
    return path, path


def write_csv(path: Path) -> None:
    log = fields()
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["observations_0", "observations_1", "actions", "rewards", "terminals", "episode", "more"])
        for row in range(ROWS):
            numbers = [float(value) for value in log["observations"][row, :2]]
            flags = [str(bool(log["terminals"][row])), f"run {row // 20}", "text"]
            writer.writerow([*numbers, float(log["actions"][row, 0]), log["rewards"][row], *flags])


def write_parquet(path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    log = fields()
    columns = {
        "observations": pyarrow.array(log["observations"].tolist(), pyarrow.list_(pyarrow.float32())),
        "actions": pyarrow.array(log["actions"].tolist(), pyarrow.list_(pyarrow.float32(), 2)),
        "rewards": log["rewards"],
        "terminals": log["terminals"],
        "episode": [f"run {row // 20}" for row in range(ROWS)],
        "more": [None] * ROWS,
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=25)


def write_minari_base(folder: Path, *, metadata: bool) -> tuple[Path, Path]:
    """Written by hand: Minari itself takes seconds to import."""
    data = folder / "set" / "data"
    data.mkdir(parents=True)
    log = fields()
    with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
        for number, start in enumerate(range(0, ROWS, 20)):
            rows = slice(start, start + 20)
            states = np.concatenate([log["observations"][rows], log["observations"][start : start + 1]])
            group = file.create_group(f"episode_{number}")
            for name, values in (("position", states), ("goal", states[:, :2])):
                growing = {"chunks": True, "maxshape": (None, values.shape[1])}
                group.create_dataset(f"observations/{name}", data=values, **growing)
            group.create_dataset("actions", data=np.arange(20) % 3)
            group.create_dataset("rewards", data=log["rewards"][rows])
            group.create_dataset("terminations", data=log["terminals"][rows])
            group.create_dataset("truncations", data=log["timeouts"][rows])
    space = json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": 3})
    names = [f"number {index}" for index in range(5)]
    own = {"version": 1, "unknown_next": [29], "observation_names": names, "notes": ["decision: 3 timeouts."]}
    (data / "metadata.json").write_text(json.dumps({"data_format": "hdf5", "action_space": space, "bats": own}))
    return folder / "set", data / ("metadata.json" if metadata else "main_data.hdf5")


def damage(sound: bytes, rng: random.Random) -> bytes:
    """One to a few faults: flipped bits, awkward bytes and numbers, cuts, moved and repeated pieces."""
    broken = bytearray(sound)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 12))):
        size = max(len(broken), 1)
        reach = min(size, 600) if rng.random() < 0.3 else size  # headers lie in front, and footers at the end
        offset = size - 1 - rng.randrange(reach) if rng.random() < 0.2 else rng.randrange(reach)
        fault = rng.randrange(7)
        if not broken:
            break
        if fault == 0:
            broken[offset] ^= 1 << rng.randrange(8)
        elif fault == 1:
            broken[offset] = rng.choice((*AWKWARD, rng.randrange(256)))
        elif fault == 2:
            width = rng.choice((2, 4, 8))
            number = rng.choice(AWKWARD_NUMBERS) % 256**width
            broken[offset : offset + width] = number.to_bytes(width, rng.choice(("little", "big")))
        elif fault == 3 and rng.random() < 0.4:
            del broken[offset:]
        elif fault == 4:
            del broken[offset : offset + rng.choice((1, 4, 16, 100))]
        elif fault == 5:
            start = rng.randrange(size)
            piece = broken[start : start + rng.choice((1, 8, 64, 512))]
            broken[offset : offset + rng.choice((0, len(piece)))] = piece
        else:
            digits = [index for index, byte in enumerate(broken) if 48 <= byte <= 57]
            if digits:
                broken[rng.choice(digits)] = rng.choice(b"0123456789-.eE,")
    return bytes(broken)


def damage_inside(sound: bytes, rng: random.Random) -> bytes:
    """Damage that keeps the file's length: HDF5 compares it with its header first, and would look no further."""
    return damage(sound, rng)[: len(sound)].ljust(len(sound), b"\0")


def damage_member(sound: bytes, rng: random.Random) -> bytes:
    """Damages an array inside the archive and packs it again, so that the archive's checksum does not give it away."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(sound)) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        victim = rng.choice(old.namelist())
        for name in old.namelist():
            content = old.read(name)
            head = content[:128]
            if name == victim:
                content = damage(head, rng) + content[128:] if rng.random() < 0.7 else damage(content, rng)
            new.writestr(name, content)
    return packed.getvalue()


def run(folder: Path, kind: str, seeds: range) -> None:
    source, victim = write_base(kind, folder)
    load_dataset(source)  # the sound one is fine, or the rest means nothing
    sound = victim.read_bytes()
    for seed in seeds:
        print(seed, flush=True)
        rng = random.Random(f"{kind} {seed}")
        inside = damage_inside if kind in ("hdf5", "hdf5_latest", "own_hdf5", "minari") else damage
        spoil = damage_member if kind == "npz_member" else rng.choice((damage, inside, inside, inside))
        victim.write_bytes(spoil(sound, rng))
        try:
            load_dataset(source, timeout_rule=rng.choice(("auto", "trust", "ignore")))
        except BatsError as error:
            str(error).encode()  # it must be possible to print the message
        except BaseException:
            print("ESCAPED", seed, json.dumps(traceback.format_exc()), flush=True)


def starve() -> None:
    """Whatever sets memory aside for a false claim fails here instead of taking the machine."""
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    warnings.simplefilter("error")
    starve()
    run(Path(sys.argv[1]), sys.argv[2], range(int(sys.argv[3]), int(sys.argv[4])))
