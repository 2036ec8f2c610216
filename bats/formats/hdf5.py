"""HDF5 files with D4RL's names: one array per field, all of the same length.

    observations, actions, rewards, terminals (or terminations), timeouts, next_observations

Ours always carry `next_observations`, and beside D4RL's names a group `bats` with what those cannot say: which next
states were never logged, how many actions there are, and the start states.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
from h5py import h5g

from bats.dataset import Dataset
from bats.episodes import Note
from bats.errors import DataError
from bats.files import atomic_path
from bats.formats.fields import KNOWN, RawLog, listed, unused_note
from bats.formats.guards import SizeGuard
from bats.formats.hdf5_access import admit, member, member_names, open_hdf5, other_names, read_array
from bats.types import Reporter, silent

OWN_GROUP = "bats"
OWN_VERSION = 1
"""raised when the meaning of what stands in `bats` changes"""


def read_hdf5(path: Path, report: Reporter) -> RawLog:
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
            raise DataError("a field 'observations'", f"only {listed(present)}", file=guard.file)
        fields = _read_fields(nodes, guard, report, path.name)
        own = member(root, OWN_GROUP, file=guard.file)
        extras = _read_own(own.node, guard) if own is not None and own.kind == "group" else {}
        skip = (*KNOWN, OWN_GROUP) if extras else KNOWN
        notes += unused_note(other_names(root, skip=skip, file=guard.file))
    count = extras.get("action_count")
    return RawLog(
        fields=fields,
        notes=tuple(notes),
        action_count=None if count is None else int(count),
        exact_ends=bool(extras),
        unknown_next=extras.get("unknown_next"),
        starts=extras.get("starts"),
        start_weights=extras.get("start_weights"),
    )


def _read_fields(
    nodes: dict[str, h5py.h5d.DatasetID], guard: SizeGuard, report: Reporter, name: str
) -> dict[str, np.ndarray]:
    """Reads the arrays, telling progress in rows of the log: each row counts as read when its bytes are."""
    sizes = SizeGuard(guard.file, guard.file_bytes)
    shapes = {field: admit(node, field, sizes).shape for field, node in nodes.items()}
    rows = max((shape[0] for shape in shapes.values() if shape), default=0)
    total_bytes, read_bytes = sizes.claimed, 0

    def done(count: int) -> None:
        nonlocal read_bytes
        read_bytes += count
        report(f"reading {name}", rows * read_bytes // max(total_bytes, 1), rows)

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


def write_hdf5(dataset: Dataset, path: Path | str, *, overwrite: bool = False, report: Reporter = silent) -> None:
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
    # packed in memory first: when a disk runs full under it, the HDF5 library crashes instead of raising an error
    packed = BytesIO()
    with atomic_path(Path(path), overwrite=overwrite) as temporary:
        with h5py.File(packed, "w") as file:
            for count, (name, values) in enumerate(fields.items()):
                report(f"writing {Path(path).name}", len(dataset) * count // len(fields), len(dataset))
                file.create_dataset(name, data=values, compression="gzip", compression_opts=4, shuffle=True)
            group = file.create_group(OWN_GROUP)
            for name, value in own.items():
                group.create_dataset(name, data=value)
        temporary.write_bytes(packed.getbuffer())
    report(f"writing {Path(path).name}", len(dataset), len(dataset))
