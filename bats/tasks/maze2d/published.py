"""Writing a maze log as D4RL published its own: HDF5 without next states, `timeouts` where a target was reached."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bats.data.formats.hdf5 import write_fields


def write_published(arrays: dict[str, np.ndarray], path: Path | str, *, overwrite: bool = False) -> None:
    """Writes what `MazeLog.published` or `collect_published` returned. Raises `OutputError` rather than overwrite."""
    write_fields(arrays, Path(path), overwrite=overwrite)
