"""HDF5 files with D4RL's names: one array per field, all of the same length.

    observations, actions, rewards, terminals (or terminations), timeouts, next_observations

Ours always carry `next_observations`, and beside D4RL's names a group `bats` with what those cannot say: which next
states were never logged, how many actions there are, the start states, and what the numbers are called.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
from h5py import h5g

from bats.arrays import Progress, no_progress
from bats.data.dataset import Dataset
from bats.data.episodes import Note
from bats.data.formats.fields import RawLog
from bats.data.formats.hdf5_access import admit, member, member_names, open_hdf5, other_names, read_array, read_names
from bats.data.formats.names import KNOWN, missing_field
from bats.data.formats.untrusted import SizeGuard
from bats.errors import DataError
from bats.storage.atomic import atomic_path

OWN_GROUP = "bats"
OWN_NAMES = ("observation_names", "action_names")
SMALL_ROWS = 100
"""shorter arrays are not worth compressing"""
OWN_VERSION = 1
"""raised when the meaning of what stands in `bats` changes"""


def read_hdf5(path: Path, progress: Progress) -> RawLog:
    """Reads every field that has a known name, and notes all others."""
    with open_hdf5(path) as (root, guard):
        present = member_names(root, file=guard.file)
        nodes, notes = {}, []
        for name in present:
            if name not in KNOWN:
                continue
            entry = member(root, name, file=guard.file)
            if entry is not None and entry.kind == "data":
                nodes[name] = entry.node
            else:
                what = "a link, which is not followed" if entry and entry.kind == "link" else "not an array"
                notes.append(Note("problem", f"'{name}' is {what}: it was left out."))
        if not nodes:
            raise missing_field("observations", present, file=guard.file).hinted(_minari_hint(path, present))
        fields = _read_fields(nodes, guard, progress, path.name)
        own = member(root, OWN_GROUP, file=guard.file)
        extras = _read_own(own.node, guard) if own is not None and own.kind == "group" else {}
        names = _read_own_names(own.node, guard) if own is not None and extras else {}
        skip = (*KNOWN, OWN_GROUP) if extras else KNOWN
        unused = other_names(root, skip=skip, file=guard.file)
    count = extras.get("action_count")
    return RawLog(
        fields=fields,
        unused=tuple(unused),
        present=tuple(present),
        notes=tuple(notes),
        action_count=None if count is None else int(count),
        exact_ends=bool(extras),
        unknown_next=extras.get("unknown_next"),
        starts=extras.get("starts"),
        start_weights=extras.get("start_weights"),
        observation_names=names.get("observation_names"),
        action_names=names.get("action_names"),
    )


def _minari_hint(path: Path, present: list[str]) -> str:
    if "episode_0" not in present:
        return ""
    folder = path.parent.parent if path.parent.name == "data" else path.parent
    return f"It is a file of a Minari data set: give the data set's folder, {folder}."


def _read_fields(
    nodes: dict[str, h5py.h5d.DatasetID], guard: SizeGuard, progress: Progress, name: str
) -> dict[str, np.ndarray]:
    """Reads the arrays, telling progress in rows of the log: each row counts as read when its bytes are."""
    sizes = SizeGuard(guard.file, guard.file_bytes)
    shapes = {field: admit(node, field, sizes).shape for field, node in nodes.items()}
    rows = max((shape[0] for shape in shapes.values() if shape), default=0)
    total_bytes, read_bytes = sizes.claimed, 0

    def done(count: int) -> None:
        nonlocal read_bytes
        read_bytes += count
        progress(f"reading {name}", rows * read_bytes // max(total_bytes, 1), rows)

    return {field: read_array(node, field, guard, done) for field, node in nodes.items()}


def _read_own(group: h5g.GroupID, guard: SizeGuard) -> dict[str, np.ndarray]:
    """What our own writer added; nothing where the group is someone else's of the same name."""
    found = {}
    for name in ("version", "action_count", "unknown_next", "starts", "start_weights"):
        entry = member(group, name, file=guard.file)
        if entry is not None and entry.kind == "data":
            found[name] = read_array(entry.node, f"{OWN_GROUP}/{name}", guard, lambda _: None)
    for name in ("version", "action_count"):
        if name in found and (found[name].shape != () or found[name].dtype.kind not in "iu"):
            raise DataError("a whole number", f"{found[name].dtype}", file=guard.file, field=f"{OWN_GROUP}/{name}")
    if "version" not in found:
        return {}
    if "action_count" in found and not 0 < int(found["action_count"]) < 2**31:
        told = f"{int(found['action_count'])}"
        raise DataError("a count of actions", told, file=guard.file, field=f"{OWN_GROUP}/action_count")
    if int(found["version"]) != OWN_VERSION:
        expected, newer = f"version {OWN_VERSION} of our own layout", f"version {int(found['version'])}"
        hint = "The file was written by another version of this package."
        raise DataError(expected, newer, file=guard.file, field=f"{OWN_GROUP}/version", hint=hint)
    return found


def _read_own_names(group: h5g.GroupID, guard: SizeGuard) -> dict[str, tuple[str, ...]]:
    found = {}
    for name in OWN_NAMES:
        entry = member(group, name, file=guard.file)
        if entry is not None and entry.kind == "data":
            found[name] = read_names(entry.node, f"{OWN_GROUP}/{name}", guard)
    return found


def write_hdf5(
    dataset: Dataset, path: Path | str, *, overwrite: bool = False, progress: Progress = no_progress
) -> None:
    """Writes a log with D4RL's names; `load_dataset` gives back the same log.

    A terminal row whose next state was never logged repeats its own state in `next_observations`, and is listed in
    `bats/unknown_next`. Raises `OutputError` rather than overwrite a file.
    """
    fields = {
        "observations": dataset.observations,
        "actions": dataset.actions,
        "rewards": dataset.rewards,
        "next_observations": dataset.next_observations,
        "terminals": dataset.terminations,
        "timeouts": dataset.episode_ends & ~dataset.terminations,
    }
    own: dict[str, np.ndarray | int] = {
        "version": OWN_VERSION,
        "unknown_next": np.flatnonzero(~dataset.next_known),
        "starts": dataset.starts,
        "start_weights": dataset.start_weights,
    }
    if dataset.action_count is not None:
        own["action_count"] = dataset.action_count
    for name in OWN_NAMES:
        if getattr(dataset, name) is not None:
            own[name] = np.array([one.encode(errors="replace") for one in getattr(dataset, name)])
    fields |= {f"{OWN_GROUP}/{name}": np.asarray(value) for name, value in own.items()}
    write_fields(fields, Path(path), overwrite=overwrite, progress=progress)


def write_fields(
    fields: Mapping[str, np.ndarray], path: Path, *, overwrite: bool = False, progress: Progress = no_progress
) -> None:
    """Writes arrays under their names, a slash making a group; whole or not at all."""
    rows = len(fields["rewards"])
    # packed in memory first: when a disk runs full under it, the HDF5 library crashes instead of raising an error
    packed = BytesIO()
    with atomic_path(path, overwrite=overwrite) as temporary:
        with h5py.File(packed, "w") as file:
            for count, (name, values) in enumerate(fields.items()):
                progress(f"writing {path.name}", rows * count // len(fields), rows)
                small = values.ndim == 0 or len(values) < SMALL_ROWS
                packing = {} if small else {"compression": "gzip", "compression_opts": 4, "shuffle": True}
                file.create_dataset(name, data=values, **packing)
        temporary.write_bytes(packed.getbuffer())
    progress(f"writing {path.name}", rows, rows)
