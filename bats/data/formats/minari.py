"""Minari data sets, read from their files without Minari itself, and written through Minari's own storage.

    folder/data/metadata.json      spaces, and how the data are stored
    folder/data/main_data.hdf5     a group `episode_N` for each episode

An episode of T rows stores T + 1 observations, so every next state is known exactly. Observations in a dictionary or
a tuple are concatenated in the sorted order of their names.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from h5py import h5d, h5g

from bats.arrays import Arrays, Progress, no_progress
from bats.config import READ_LOG, Function, checked
from bats.data.dataset import Dataset, naming, require
from bats.data.episodes import Note, plural
from bats.data.formats import hdf5
from bats.data.formats.fields import EXTRA_TEXTS, EXTRAS, EXTRAS_VERSION, RawLog, closest, extras, listed, number_names
from bats.data.formats.untrusted import MemoryBudget, SizeGuard, check_file, guarded, library_call, one_line
from bats.errors import BatsError, DataError, OutputError
from bats.storage.json_records import read_json, shown

DATA_FILE, METADATA_FILE = "main_data.hdf5", "metadata.json"
SINGLE_FIELDS = ("rewards", "terminations", "truncations")
FIELDS = (*SINGLE_FIELDS, "actions", "observations")
"""rewards come first, because they decide the number of rows"""
PARSED_SIZE = 40
"""times that parsed JSON is larger than its text: an empty object takes three letters"""
MAX_ID_DEPTH, MAX_IDS = 6, 1000
"""levels of folders that are searched for data sets, and data sets that are found, for hints"""

ID_FORM = r"(?:[-_\w]{2,}/|[-_\w]+(?:/[-_\w]+)+/)?[-_\w]+-v[0-9]{1,9}"
"""Minari's own rule, with a version; Minari cannot parse a namespace of a single letter"""
PIP_NAMES = {"PIL": "pillow"}
"""packages whose name differs from that of their module"""
EPISODE_BYTES = 40_000
"""upper bound on what Minari's file takes per episode beside the numbers; 22,000 were measured"""

Layout = list[tuple[str, int]]
"""name and width of each part of a field; a field that is a plain array is one part without a name"""


def minari_root() -> Path:
    """The folder in which Minari keeps its data sets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def find_minari(dataset_id: str) -> Path:
    """The folder of a data set in Minari's own folder; an error lists the data sets that are there."""
    root = minari_root()
    with library_call("a Minari data set"):
        if dataset_id and (root / dataset_id).is_dir():
            return root / dataset_id
        exists = root.is_dir()
        patterns = ("*/" * depth + f"data/{METADATA_FILE}" for depth in range(1, MAX_ID_DEPTH + 1))
        files = islice((path for pattern in patterns for path in root.glob(pattern)), MAX_IDS)
        ids = [path.parent.parent.relative_to(root).as_posix() for path in files]
    known = [name for name in ids if not name.startswith(".")]  # a hidden folder is still being written
    hint = closest(dataset_id, known) or f"`minari download {dataset_id}` downloads a public data set."
    found = f"only {listed(known)}" if exists else "no such folder"
    raise DataError(f"a data set '{dataset_id}' in {root}", found, hint=hint)


def read_minari(folder: Path, budget: MemoryBudget, progress: Progress) -> RawLog:
    """Reads all episodes of a data set stored as HDF5, given its folder or the folder `data` in it."""
    expected = f"a Minari data set with data/{METADATA_FILE} and data/{DATA_FILE}"
    candidates = (folder / "data", folder)
    with library_call(expected):
        folders = [path for path in candidates if (path / DATA_FILE).exists() or (path / METADATA_FILE).exists()]
        exists = folder.exists()
    require(folders, expected, "a folder without these files" if exists else "no such folder")
    data = folders[0]
    with naming(data / METADATA_FILE):
        size = check_file(data / METADATA_FILE, "Minari's metadata")
        budget.require("metadata", size, PARSED_SIZE * size)
        metadata = read_json(data / METADATA_FILE)
        require(isinstance(metadata, dict), "a JSON object", f"a {type(metadata).__name__}")
        entries = _read_extras(metadata)
        action_count, first_action = _discrete_actions(metadata)
    storage, hint = metadata.get("data_format", "hdf5"), "Write the data set again with data_format='hdf5'."
    with naming(data):
        require(storage == "hdf5", "data stored as hdf5", shown(storage), field="data_format", hint=hint)
    with naming(data / DATA_FILE):
        log = _read_episodes(data / DATA_FILE, budget, progress, f"reading {folder.name}")
    if first_action:
        text = f"Discrete actions are numbered from {first_action} in the file; here they are numbered from 0."
        # a 64-bit number, so that small and unsigned types do not wrap around
        actions = np.asarray(log.fields["actions"]) - np.int64(first_action)
        log = replace(log, fields={**log.fields, "actions": actions}, notes=(*log.notes, Note("decision", text)))
    log = replace(log, action_count=action_count)
    return log if entries is None else log.with_extras(entries)


def _read_extras(metadata: dict[str, Any]) -> dict[str, Any] | None:
    """The entries that `write_minari` adds; None if the data set was not written by it."""
    stored = metadata.get(EXTRAS)
    if not isinstance(stored, dict) or stored.get("version") != EXTRAS_VERSION:
        return None
    rows = stored.get("unknown_next")
    # `type` and not `isinstance`: true and false are integers in Python
    are_rows = isinstance(rows, list) and all(type(row) is int and 0 <= row < 2**62 for row in rows)
    require(are_rows, "row numbers", "something else", field=f"{EXTRAS}/unknown_next")
    entries: dict[str, Any] = {"unknown_next": np.array(rows, dtype=np.int64)}
    for name in EXTRA_TEXTS:
        if (texts := stored.get(name)) is not None:
            are_texts = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
            require(are_texts, "a list of texts", "something else", field=f"{EXTRAS}/{name}")
            entries[name] = tuple(texts)
    return entries


def _discrete_actions(metadata: dict[str, Any]) -> tuple[int | None, int]:
    """The number of discrete actions and the number of the first; None for any other action space."""
    text = metadata.get("action_space")
    space = None if text is None else guarded("a space in JSON", json.loads, text, field="action_space")
    if not isinstance(space, dict) or space.get("type") != "Discrete":
        return None, 0
    count, first = space.get("n"), space.get("start", 0)
    valid = type(count) is type(first) is int and count > 0 and abs(first) < 2**31
    require(valid, "integers n and start", f"{shown(count)} and {shown(first)}", field="action_space")
    return count, first


def _read_episodes(path: Path, budget: MemoryBudget, progress: Progress, stage: str) -> RawLog:
    """All episodes of the file, one after the other, without what the metadata say about them."""
    arrays: dict[str, list[np.ndarray]] = {name: [] for name in FIELDS}
    layouts: dict[str, Layout] = {}
    rows, last_rows = 0, []
    with hdf5.open_hdf5(path, budget) as (root, guard):
        names = hdf5.member_names(root)
        episodes = sorted((name for name in names if re.fullmatch("episode_[0-9]{1,15}", name)), key=_number)
        require(episodes, "groups 'episode_0', 'episode_1', …", f"only {listed(names)}")
        unused = set(names) - set(episodes)
        for count, episode in enumerate(episodes, 1):
            group = hdf5.member(root, episode)
            require(isinstance(group, h5g.GroupID), "a group", "something else", field=episode)
            if not (values := _read_episode(group, episode, guard, layouts)):
                continue
            if not rows:
                unused |= {name for name, _ in islice(hdf5.members_below(group, skip=FIELDS), hdf5.MAX_NAMES)}
            for name in FIELDS:
                arrays[name].append(values[name])
            rows += len(values["rewards"])
            last_rows.append(rows - 1)
            progress(stage, rows, rows * len(episodes) // count)
    require(rows, "at least 2 rows", "0", field="observations")

    states = arrays.pop("observations")
    fields = {"observations": np.concatenate([values[:-1] for values in states])}
    fields["next_observations"] = np.concatenate([values[1:] for values in states])
    del states  # frees the largest arrays before the others are copied
    for name in [*arrays]:
        fields[name] = guarded("episodes with arrays of the same type", np.concatenate, arrays.pop(name), field=name)
    notes = []
    for name, layout in layouts.items():
        if len(layout) > 1:
            text = f"{name} consist of several parts, in this order: {_layout_text(name, layout)}."
            notes.append(Note("decision", text))
    # an episode's last row ends it, with or without a flag; values other than 0 and 1 are refused later
    unflagged = np.isin(np.arange(rows), last_rows) & (fields["terminations"] == 0) & (fields["truncations"] == 0)
    if unflagged.any():
        fields["truncations"] = np.where(unflagged, True, fields["truncations"])
        text = f"{plural(int(np.count_nonzero(unflagged)), 'episode')} had no flag at the end; a timeout was assumed."
        notes.append(Note("decision", text))
    # a plain array has no names
    named = {name: number_names(layout) for name, layout in layouts.items() if layout[0][0]}
    of_states, of_actions = named.get("observations"), named.get("actions")
    return RawLog(fields, tuple(sorted(unused)), tuple(notes), observation_names=of_states, action_names=of_actions)


def _read_episode(group: h5g.GroupID, episode: str, guard: SizeGuard, layouts: dict[str, Layout]) -> Arrays:
    """The fields of an episode, checked; the parts of a field that is a group are side by side. Nothing if it is empty.

    `layouts` has the layout of every field in earlier episodes; another one is refused.
    """
    fields: Arrays = {}
    length = 0
    for name in FIELDS:
        node = hdf5.member(group, name)
        if node is None:
            raise DataError(f"a field '{name}'", f"only {listed(hdf5.member_names(group))}", field=episode)
        nodes = sorted(hdf5.members_below(node), key=_part_order) if isinstance(node, h5g.GroupID) else [("", node)]
        require(nodes, "an array", "an empty group", field=f"{episode}/{name}")
        arrays: list[np.ndarray] = []
        for part, array in nodes:
            field = f"{episode}/{name}/{part}".removesuffix("/")
            require(isinstance(array, h5d.DatasetID), "an array", "a link, and links are not followed", field=field)
            values = hdf5.admit(array, field, guard, kind=name).read()
            require(values.ndim > 0, "one entry per row", "a single number", field=field)
            length = len(values) if name == "rewards" else length
            rows = length + (name == "observations")
            require(len(values) == rows, f"{rows} rows for {length} rewards", f"{len(values)}", field=field)
            fits = name not in SINGLE_FIELDS or (len(nodes) == 1 and values.size == length)
            require(fits, "one number per row", f"shape {values.shape}", field=field)
            arrays.append(values)
        # an empty episode has no rows, and the types of its arrays may be arbitrary
        if length == 0:
            continue
        tables = [values.reshape(len(values), -1) for values in arrays]
        layout = [(part, table.shape[1]) for (part, _), table in zip(nodes, tables, strict=True)]
        first = layouts.setdefault(name, layout)
        expected, found = f"{_layout_text(name, first)}, as in earlier episodes", _layout_text(name, layout)
        require(layout == first, expected, found, field=f"{episode}/{name}")
        # the rank of actions decides whether they are discrete, so it is kept
        single = name in SINGLE_FIELDS or (name == "actions" and len(arrays) == 1 and arrays[0].ndim == 1)
        joined = tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)
        fields[name] = joined[:, 0] if single else joined
    return fields


def _layout_text(name: str, layout: Layout) -> str:
    return ", ".join(f"{part or name} ({width})" for part, width in layout)


def _number(name: str) -> int:
    return int(name.rpartition("_")[2])


def _part_order(item: tuple[str, object]) -> list[tuple[int, str]]:
    """Minari names the parts of a tuple _index_0, _index_1, …; as texts, 10 would come before 2."""
    names = item[0].split("/")
    return [(_number(name), "") if re.fullmatch("_index_[0-9]{1,9}", name) else (0, name) for name in names]


def write_minari(
    dataset: Dataset, dataset_id: str, *, description: str = "", author: str = "", progress: Progress = no_progress
) -> Path:
    """Writes a log to the folder from which `minari.load_dataset(dataset_id)` reads; returns that folder.

    An episode of T rows is stored with T + 1 observations. Where the state after the last row was never logged (only
    at terminations), the last state is repeated and the row is listed in the metadata. Start states other than the
    first rows of episodes are not kept. An existing data set is never overwritten, and a failure leaves nothing.
    """
    dataset, progress = checked("dataset", Dataset, dataset, READ_LOG), checked("progress", Function, progress)
    for name, text in (("dataset_id", dataset_id), ("description", description), ("author", author)):
        checked(name, str, text)
    if not re.fullmatch(ID_FORM, dataset_id):
        raise OutputError(f"'{dataset_id}' is not a valid Minari name; a valid name looks like 'group/name-v0'.")
    target = minari_root() / dataset_id
    if target.exists():
        raise OutputError(f"{target} exists already; choose another name or version.")
    # built under a hidden name, which Minari does not list, and renamed when it is complete
    hidden = minari_root() / f".{secrets.token_hex(8)}"
    try:
        import minari
        from minari.dataset.minari_storage import MinariStorage
        from minari.namespace import create_namespace, list_local_namespaces

        entries = extras(dataset)
        entries["unknown_next"] = entries["unknown_next"].tolist()
        metadata = {"dataset_id": dataset_id, "minari_version": minari.__version__, EXTRAS: entries}
        optional = {"description": description, "author": {author} if author else ""}
        metadata |= {name: text for name, text in optional.items() if text}
        hidden.mkdir(parents=True)
        # refused before it is begun: running out of space crashes the library that Minari writes with
        arrays = (dataset.observations, dataset.actions, dataset.rewards, dataset.terminations, dataset.episode_ends)
        needed = 2 * sum(values.nbytes for values in arrays) + EPISODE_BYTES * dataset.episode_count
        free = shutil.disk_usage(hidden).free
        if free < needed:
            raise OutputError(f"{target} may need {needed:,} bytes, but the disk has only {free:,} free bytes.")
        states, actions = _space(dataset.observations, None), _space(dataset.actions, dataset.action_count)
        storage = MinariStorage.new(hidden / "data", observation_space=states, action_space=actions, data_format="hdf5")
        storage.update_metadata(metadata)
        storage.update_episodes(_episode_buffers(dataset, progress, f"writing {dataset_id}"))
        # a name with slashes lies in a namespace, which Minari marks with a file of its own
        namespace = dataset_id.rpartition("/")[0]
        if namespace and namespace not in list_local_namespaces():
            create_namespace(namespace)
        hidden.rename(target)
    except ImportError as error:  # Minari imports what its storage needs only when one is made
        module = (error.name or "minari").split(".")[0]
        extra = "" if module == "minari" else f" {PIP_NAMES.get(module, module)}"
        needs = f"Writing Minari data sets needs {module} ({one_line(error)})"
        raise BatsError(f"{needs}: pip install 'bats-rl[minari]'{extra}") from error
    except (OSError, ValueError, RuntimeError) as error:
        raise OutputError(f"{target} could not be written: {one_line(error)}.") from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return target


def _space(rows: np.ndarray, count: int | None) -> Any:
    """Gymnasium's space of discrete actions, or one without bounds: a log does not say which values are possible."""
    from gymnasium.spaces import Box, Discrete

    return Box(-np.inf, np.inf, rows.shape[1:], rows.dtype.type) if count is None else Discrete(count)


def _episode_buffers(dataset: Dataset, progress: Progress, stage: str) -> Iterator[Any]:
    """Minari's `EpisodeBuffer` of each episode."""
    from minari.data_collector import EpisodeBuffer

    actions = dataset.actions if dataset.action_count is None else dataset.actions.astype(np.int64)
    ends = dataset.episode_ends.copy()
    ends[-1] = True
    # T + 1 states can only express consecutive transitions; a row that does not continue starts a new episode
    ends[:-1] |= np.any(dataset.next_observations[:-1] != dataset.observations[1:], axis=1)
    arrays = {"actions": actions, "rewards": dataset.rewards, "terminations": dataset.terminations}
    arrays["truncations"] = ends & ~dataset.terminations
    first = 0
    for number, last in enumerate(np.flatnonzero(ends).tolist()):
        rows = slice(first, last + 1)
        progress(stage, first, len(dataset))
        states = np.concatenate([dataset.observations[rows], dataset.next_observations[last : last + 1]])
        values = {name: array[rows] for name, array in arrays.items()}
        # without `infos`, Minari cannot print the episode
        yield EpisodeBuffer(id=number, observations=states, infos={}, **values)
        first = last + 1
    progress(stage, len(dataset), len(dataset))
