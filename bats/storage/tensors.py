"""Named arrays and a few facts in one file: versioned, checksummed, written whole or not at all. Reading runs no code.

A file is a safetensors file whose metadata holds one JSON object, `bats`: the facts, the kind of file, its version and
a SHA-256 checksum over facts and arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bats.errors import DataError
from bats.storage.atomic import opened, write_atomic
from bats.storage.schema import build

Struct = TypeVar("Struct")
VERSION = 1
"""raised when the meaning of a file's content changes"""
MAX_NESTING = 50
"""levels of lists and objects within the facts: more could exhaust the stack of whoever handles them"""


def write_tensors(
    path: Path, kind: str, arrays: Mapping[str, np.ndarray], facts: Mapping[str, object], *, overwrite: bool = False
) -> None:
    """Writes arrays and facts; `kind` says what they are and is checked when they are read."""
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    metadata = {"bats": json.dumps(tensor_facts(kind, arrays, facts))}
    write_atomic(path, save(contiguous, metadata=metadata), overwrite=overwrite)


def tensor_facts(kind: str, arrays: Mapping[str, np.ndarray], facts: Mapping[str, object]) -> dict[str, object]:
    """The facts as a file holds them, with its kind, version and checksum."""
    header = {"format": kind, "version": VERSION, **facts}
    return {**header, "checksum": checksum(dict(sorted(arrays.items())), json.dumps(header, sort_keys=True))}


def read_tensors(path: Path, kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and facts of a file of that kind; `DataError` if it is another, damaged or missing."""
    facts = read_facts(path)
    if facts.get("format") != kind or facts.get("version") != VERSION:
        found = f"{facts.get('format')} version {facts.get('version')}"
        raise DataError(f"{kind} version {VERSION}", found, file=str(path))
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, OSError, ValueError, AttributeError, TypeError, MemoryError) as error:
        # also for types that NumPy does not have, too many dimensions, and more than fits into memory
        raise DataError("a complete safetensors file of NumPy's types", str(error), file=str(path)) from error
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise DataError("integers, floats or flags", f"{array.dtype}", file=str(path), field=name)
    if any(max(array.shape, default=0) > path.stat().st_size for array in arrays.values()):  # next to an axis of size 0
        raise DataError("arrays that fit into the file", "an array with a longer axis", file=str(path))
    unsigned = json.dumps({name: fact for name, fact in facts.items() if name != "checksum"}, sort_keys=True)
    if checksum(dict(sorted(arrays.items())), unsigned) != facts["checksum"]:
        raise DataError("content that matches its checksum", "different content (the file is damaged)", file=str(path))
    return arrays, facts


def write_struct(path: Path, kind: str, struct: object, *, overwrite: bool = False, **facts: object) -> None:
    """Writes a dataclass of arrays and plain values, and further facts."""
    # not by `bats.arrays`: a policy file is read where only NumPy and safetensors are installed
    values = {field.name: getattr(struct, field.name) for field in fields(struct)}  # type: ignore[arg-type]
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    plain = {name: value for name, value in values.items() if name not in arrays}
    write_tensors(path, kind, arrays, {**plain, **facts}, overwrite=overwrite)


def read_struct(
    struct: type[Struct], path: Path, kind: str, *, renamed: Mapping[str, str] = {}
) -> tuple[Struct, dict[str, Any]]:
    """The dataclass and the facts of a file.

    `renamed` has the present names of facts that earlier versions of the package wrote under other names.
    """
    arrays, facts = read_tensors(path, kind)
    facts = {renamed.get(name, name): fact for name, fact in facts.items()}
    return build(struct, {**facts, **arrays}, file=str(path)), facts


def read_facts(path: Path) -> dict[str, Any]:
    """What a file says of itself, before anything else in it is trusted."""
    with opened(path, "a file saved by this package"):
        pass  # safetensors would call a file missing that may not be read, and wait for a pipe
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {}).get("bats", "{}"))
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise DataError("a complete safetensors file", str(error), file=str(path)) from error
    if not isinstance(facts, dict) or "checksum" not in facts:
        raise DataError("a file saved by this package", "another safetensors file", file=str(path))
    level: list[Any] = [facts]
    for _ in range(MAX_NESTING):
        level = [entry for one in level for entry in (one.values() if isinstance(one, dict) else one)]
        level = [entry for entry in level if isinstance(entry, dict | list)]
    if level:
        raise DataError(f"facts of at most {MAX_NESTING} levels", "more levels", file=str(path))
    return facts


def checksum(arrays: Mapping[str, np.ndarray], text: str) -> str:
    """SHA-256 over a text and some arrays with their names, in the order given."""
    digest = hashlib.sha256(text.encode())
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data if array.size else b"")
    return digest.hexdigest()
