"""Files of this package with other content and a right checksum, as one would write them to do harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bats.storage.tensors import read_facts, read_tensors, write_tensors


def entries_of(path: Path) -> tuple[str, dict[str, np.ndarray], dict[str, Any]]:
    """The kind, the arrays and the facts that a file was written with."""
    kind = read_facts(path)["format"]
    arrays, facts = read_tensors(path, kind)
    return kind, arrays, {name: facts[name] for name in facts if name not in ("format", "version", "checksum")}


def rewrite(path: Path, change: dict[str, object]) -> None:
    """Replaces some arrays and facts of a file, or removes them where the change is None."""
    kind, arrays, facts = entries_of(path)
    entries = {**arrays, **facts, **change}
    kept = {name: entry for name, entry in entries.items() if isinstance(entry, np.ndarray)}
    plain = {name: entry for name, entry in entries.items() if name not in kept}
    removed = {name for name in change if change[name] is None and name in arrays}
    own_facts = {name: entry for name, entry in plain.items() if name not in removed}
    write_tensors(path, kind, kept, own_facts, overwrite=True)
