"""Minari data sets, read from their files without Minari itself.

    folder/data/metadata.json      spaces, and how the data are stored
    folder/data/main_data.hdf5     a group `episode_N` for each episode

An episode of T rows stores T + 1 observations, so every next state is known exactly. Observations in a dictionary or
a tuple are laid side by side, in the sorted order of their names.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from h5py import h5d, h5g

from bats.arrays import Progress
from bats.data.episodes import Note, counted
from bats.data.formats.fields import RawLog
from bats.data.formats.hdf5_access import member, member_names, open_hdf5, other_names, read_array
from bats.data.formats.names import closest, listed, numbered_names
from bats.data.formats.untrusted import SizeGuard, check_file, library_call
from bats.errors import DataError

DATA_FILE = "main_data.hdf5"
METADATA_FILE = "metadata.json"
OWN_KEY = "bats"
"""in the metadata of data sets that we wrote ourselves"""
OWN_NAMES = ("observation_names", "action_names")
OWN_VERSION = 1
ROW_FIELDS = ("actions", "rewards", "terminations", "truncations")
SINGLE_FIELDS = ("rewards", "terminations", "truncations")
LARGEST_METADATA = 2**26
DEEPEST_ID = 6
"""parts of a name that are looked into when listing what is there"""
MOST_IDS = 1000


def minari_root() -> Path:
    """Where Minari keeps its data sets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def find_minari(dataset_id: str) -> Path:
    """The folder of a data set in Minari's own place; a complaint tells where it was looked for, and what is there."""
    root = minari_root()
    folder = root / dataset_id
    with library_call(str(folder), "a Minari data set"):
        there = bool(dataset_id) and folder.is_dir()
        known = [] if there else local_ids(root)
    if there:
        return folder
    hint = closest(dataset_id, known) or f"`minari download {dataset_id}` fetches a public one."
    found = f"only {listed(known)}" if root.is_dir() else "no such folder"
    raise DataError(f"a data set '{dataset_id}' in {root}", found, file=f"minari:{dataset_id}", hint=hint)


def local_ids(root: Path) -> list[str]:
    """The names of the data sets in a folder of Minari's."""
    found: list[str] = []
    for place, folders, _ in os.walk(root):
        here = Path(place).relative_to(root)
        if (Path(place) / "data" / METADATA_FILE).exists():
            found.append(here.as_posix())
            folders.clear()
        if len(found) >= MOST_IDS or len(here.parts) >= DEEPEST_ID:
            folders.clear()
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found)


def data_folder(folder: Path) -> Path:
    """The folder with the data set's files, given that or the folder above it."""
    expected = f"a Minari data set with data/{METADATA_FILE} and data/{DATA_FILE}"
    with library_call(str(folder), expected):
        for place in (folder / "data", folder):
            if (place / DATA_FILE).exists() or (place / METADATA_FILE).exists():
                return place
        found = "no such folder" if not folder.exists() else "a folder without them"
    raise DataError(expected, found, file=str(folder))


def read_minari(folder: Path, progress: Progress) -> RawLog:
    """Reads all episodes of a data set stored as HDF5."""
    place = data_folder(folder)
    metadata = _read_metadata(place / METADATA_FILE)
    stored_as = metadata.get("data_format", "hdf5")
    if stored_as != "hdf5":
        hint = "Write it again with data_format='hdf5'."
        raise DataError("data stored as hdf5", f"{stored_as!r}", file=str(place), field="data_format", hint=hint)
    log = _Episodes()
    with open_hdf5(place / DATA_FILE) as (root, guard):
        names = member_names(root, file=guard.file)
        episodes = sorted((name for name in names if re.fullmatch("episode_[0-9]{1,15}", name)), key=_number)
        if not episodes:
            raise DataError("groups 'episode_0', 'episode_1', …", f"only {listed(names)}", file=guard.file)
        for count, name in enumerate(episodes, 1):
            entry = member(root, name, file=guard.file)
            if entry is None or entry.kind != "group":
                raise DataError("a group", "something else", file=guard.file, field=name)
            log.add(entry.node, name, guard)
            progress(f"reading {folder.name}", log.rows, log.rows * len(episodes) // count)
    log.unused |= set(names) - set(episodes)
    return _raw_log(log, metadata, file=str(place / METADATA_FILE))


@dataclass
class _Episodes:
    """The episodes read so far, field by field."""

    rows: int = 0
    lengths: list[int] = field(default_factory=list)
    states: list[np.ndarray] = field(default_factory=list)
    by_field: dict[str, list[np.ndarray]] = field(default_factory=lambda: {name: [] for name in ROW_FIELDS})
    layout: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    """names and widths of the parts that `observations` and `actions` are made of"""
    unused: set[str] = field(default_factory=set)

    def add(self, group: h5g.GroupID, episode: str, guard: SizeGuard) -> None:
        parts = {}
        for name in ("observations", *ROW_FIELDS):
            entry = member(group, name, file=guard.file)
            if entry is None or entry.kind == "link":
                present = listed(member_names(group, file=guard.file))
                raise DataError(f"a field '{name}'", f"only {present}", file=guard.file, field=episode)
            parts[name] = _read_parts(entry.node, f"{episode}/{name}", guard)
        length = len(parts["rewards"][0][1])
        for name, arrays in parts.items():
            wanted = length + (name == "observations")
            for part, values in arrays:
                if len(values) != wanted:
                    expected = f"{wanted} rows for {length} rewards"
                    raise DataError(expected, f"{len(values)}", file=guard.file, field=part)
            if name in SINGLE_FIELDS and (len(arrays) > 1 or arrays[0][1].size != length):
                raise DataError("one number a row", f"shape {arrays[0][1].shape}", file=guard.file, field=arrays[0][0])
        if length == 0:
            return
        if not self.lengths:
            self.unused |= set(other_names(group, skip=(*parts,), file=guard.file))
        self.states.append(self._side_by_side("observations", parts["observations"], guard.file))
        self.by_field["actions"].append(self._side_by_side("actions", parts["actions"], guard.file))
        for name in SINGLE_FIELDS:
            self.by_field[name].append(parts[name][0][1].reshape(length))
        self.lengths.append(length)
        self.rows += length

    def _side_by_side(self, name: str, parts: list[tuple[str, np.ndarray]], file: str) -> np.ndarray:
        flat = [values.reshape(len(values), -1) for _, values in parts]
        layout = [(part.partition("/")[2], values.shape[1]) for (part, _), values in zip(parts, flat, strict=True)]
        first = self.layout.setdefault(name, layout)
        if layout != first:
            expected, found = _told(first), _told(layout)
            raise DataError(f"{expected}, as in the episodes before", found, file=file, field=parts[0][0])
        if len(parts) == 1:
            values = parts[0][1]
            return values if name == "actions" and values.ndim == 1 else flat[0]
        return np.concatenate(flat, axis=1)

    def number_names(self, name: str) -> tuple[str, ...] | None:
        """What the numbers of a field are called, where it is made of parts that have names."""
        parts = [(part.partition("/")[2], width) for part, width in self.layout[name]]
        return numbered_names(parts) if all(part for part, _ in parts) else None

    def order_notes(self) -> list[Note]:
        return [
            Note("decision", f"{name} are made of several parts, in this order: {_told(parts)}.")
            for name, parts in self.layout.items()
            if len(parts) > 1
        ]


def _read_parts(node: h5d.DatasetID | h5g.GroupID, name: str, guard: SizeGuard) -> list[tuple[str, np.ndarray]]:
    """An array, or the arrays of a group in the sorted order of their names (of a tuple: in its own order)."""
    if isinstance(node, h5d.DatasetID):
        values = read_array(node, name, guard, lambda _: None)
        if values.ndim == 0:
            raise DataError("one entry a row", "a single number", file=guard.file, field=name)
        return [(name, values)]
    parts: list[tuple[str, np.ndarray]] = []
    for inner in sorted(member_names(node, file=guard.file), key=_tuple_place):
        entry = member(node, inner, file=guard.file)
        if entry is None or entry.kind == "link":
            raise DataError("an array or a group", "a link to somewhere else", file=guard.file, field=f"{name}/{inner}")
        if name.count("/") > 8:
            raise DataError("parts nested at most 8 deep", "more", file=guard.file, field=name)
        parts += _read_parts(entry.node, f"{name}/{inner}", guard)
    if not parts:
        raise DataError("an array", "an empty group", file=guard.file, field=name)
    return parts


def _raw_log(log: _Episodes, metadata: dict[str, Any], *, file: str) -> RawLog:
    if not log.rows:
        raise DataError("at least 2 rows", "0", file=file, field="observations")
    notes = log.order_notes()
    ends = np.zeros(log.rows, dtype=bool)
    ends[np.cumsum(log.lengths) - 1] = True
    states, log.states = log.states, []
    fields = {"observations": np.concatenate([one[:-1] for one in states])}
    fields["next_observations"] = np.concatenate([one[1:] for one in states])
    del states
    for name in ROW_FIELDS:
        with library_call(file, "episodes of one kind", field=name):
            fields[name] = np.concatenate(log.by_field.pop(name))
    # an episode's last row ends it, whether or not it carries a flag; other values than 0 and 1 are refused later
    unflagged = ends & (fields["terminations"] == 0) & (fields["truncations"] == 0)
    fields["truncations"] = np.where(unflagged, True, fields["truncations"])
    if unflagged.any():
        text = f"{counted(int(np.count_nonzero(unflagged)), 'episode')} without a flag at the end: taken as a timeout."
        notes.append(Note("decision", text))
    count, first = _discrete_actions(metadata, file)
    if count is not None and first:
        fields["actions"] = fields["actions"] - first
        notes.append(Note("decision", f"Discrete actions are numbered from {first} in the file, from 0 here."))
    own = _own_metadata(metadata, file)
    return RawLog(
        fields,
        unused=tuple(sorted(log.unused)),
        notes=tuple(notes),
        action_count=count,
        exact_ends=own is not None,
        unknown_next=None if own is None else own.unknown_next,
        observation_names=own.observation_names if own else log.number_names("observations"),
        action_names=own.action_names if own else log.number_names("actions"),
    )


def _read_metadata(path: Path) -> dict[str, Any]:
    size = check_file(path, "Minari's metadata")
    if size > LARGEST_METADATA:
        raise DataError(f"metadata of at most {LARGEST_METADATA:,} bytes", f"{size:,}", file=str(path))
    with library_call(str(path), "metadata in JSON"):
        metadata = json.loads(path.read_bytes())
    if not isinstance(metadata, dict):
        raise DataError("metadata in JSON, by name", f"a {type(metadata).__name__}", file=str(path))
    return metadata


def _discrete_actions(metadata: dict[str, Any], file: str) -> tuple[int | None, int]:
    """How many discrete actions the action space has and the number of the first; None for any other space."""
    told = metadata.get("action_space")
    if told is None:
        return None, 0
    with library_call(file, "a space in JSON", field="action_space"):
        space = json.loads(told)
    if not isinstance(space, dict) or space.get("type") != "Discrete":
        return None, 0
    count, first = space.get("n"), space.get("start", 0)
    if not isinstance(count, int) or not isinstance(first, int) or not 0 < count < 2**31 or abs(first) >= 2**31:
        raise DataError("a count of actions", f"{count!r} from {first!r}", file=file, field="action_space")
    return count, first


@dataclass(frozen=True)
class _Own:
    """What our own writer adds to the metadata."""

    unknown_next: np.ndarray
    """rows without a known next state"""
    observation_names: tuple[str, ...] | None
    action_names: tuple[str, ...] | None


def _own_metadata(metadata: dict[str, Any], file: str) -> _Own | None:
    """What our own writer added; None where the data set is not ours."""
    own = metadata.get(OWN_KEY)
    if not isinstance(own, dict) or own.get("version") != OWN_VERSION:
        return None
    rows = own.get("unknown_next")
    if not isinstance(rows, list) or not all(type(row) is int and 0 <= row < 2**62 for row in rows):
        raise DataError("row numbers", "something else", file=file, field=f"{OWN_KEY}/unknown_next")
    names = {name: _own_names(own.get(name), f"{OWN_KEY}/{name}", file) for name in OWN_NAMES}
    return _Own(np.array(rows, dtype=np.int64), names["observation_names"], names["action_names"])


def _own_names(names: object, field: str, file: str) -> tuple[str, ...] | None:
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError("a list of names", "something else", file=file, field=field)
    return tuple(names)


def _number(episode: str) -> int:
    return int(episode.rpartition("_")[2])


def _tuple_place(name: str) -> tuple[int, str]:
    """Minari names the parts of a tuple _index_0, _index_1, …; by name alone, 10 would come before 2."""
    return (_number(name), "") if re.fullmatch("_index_[0-9]{1,9}", name) else (0, name)


def _told(parts: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name.partition('/')[2] or name} ({width})" for name, width in parts)
