"""Named arrays and a few facts in one file: versioned, checksummed, written whole or not at all, never running code.

It is a safetensors file whose metadata holds one JSON object, `bats`: the facts, what kind of file it is, its version
and a SHA-256 checksum over facts and arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bats.errors import DataError
from bats.storage.atomic import atomic_path

VERSION = 1
"""raised when the meaning of what a file holds changes"""


def write_arrays(
    path: Path, kind: str, arrays: Mapping[str, np.ndarray], facts: Mapping[str, object], *, overwrite: bool = False
) -> None:
    """Writes the arrays and facts; `kind` says what they are, and is asked for again when they are read."""
    held = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    described = {"format": kind, "version": VERSION, **facts}
    described["checksum"] = _checksum(held, described)
    with atomic_path(path, overwrite=overwrite) as temporary:
        # not safetensors' own writing: it has temporary files and access rights of its own, and errors for a full disk
        temporary.write_bytes(save(held, metadata={"bats": json.dumps(described)}))


def read_arrays(path: Path, kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and facts of a file of that kind; `DataError` if it is another, damaged or not there."""
    facts = read_facts(path)
    if facts.get("format") != kind or facts.get("version") != VERSION:
        found = f"{facts.get('format')} version {facts.get('version')}"
        raise DataError(f"{kind} version {VERSION}", found, file=str(path))
    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, OSError) as error:
        raise DataError("a whole safetensors file", str(error), file=str(path)) from error
    claimed = facts["checksum"]
    if _checksum(arrays, {name: fact for name, fact in facts.items() if name != "checksum"}) != claimed:
        raise DataError("contents that match their checksum", "others: the file is damaged", file=str(path))
    return arrays, facts


def read_facts(path: Path) -> dict[str, Any]:
    """What a file says of itself, before anything else in it is trusted."""
    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads((file.metadata() or {}).get("bats", "{}"))
    except FileNotFoundError as error:
        raise DataError("a file saved by this package", "no such file", file=str(path)) from error
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError("a whole safetensors file", str(error), file=str(path)) from error
    if not isinstance(facts, dict) or "checksum" not in facts:
        raise DataError("a file saved by this package", "another safetensors file", file=str(path))
    return facts


def _checksum(arrays: Mapping[str, np.ndarray], facts: Mapping[str, object]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape};".encode())
        digest.update(arrays[name].data if arrays[name].size else b"")
    return digest.hexdigest()
