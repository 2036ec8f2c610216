"""Writing a maze log as D4RL published its own: HDF5 without next states, `timeouts` where a target was reached."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from bats.files import atomic_path


def write_published(arrays: dict[str, np.ndarray], path: Path | str, *, overwrite: bool = False) -> None:
    """Writes what `MazeLog.published` or `collect_published` returned. Raises `OutputError` rather than overwrite."""
    with atomic_path(Path(path), overwrite=overwrite) as temporary, h5py.File(temporary, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, compression="gzip", compression_opts=1)
