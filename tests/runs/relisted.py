"""Folders of runs that tests have changed, with a list of files that fits: as if the run had written them so."""

from __future__ import annotations

from pathlib import Path

from bats.runs.folder import RunFolder
from bats.runs.manifest import NAME


def relisted(folder: Path) -> Path:
    """The folder, with its files listed as they are now; records of rounds that are gone are gone too."""
    rounds, records = len(list(folder.glob("mdp/round-*"))), folder / "records.jsonl"
    if records.exists():
        records.write_text("".join(records.read_text().splitlines(keepends=True)[:rounds]))
    (folder / NAME).unlink(missing_ok=True)
    RunFolder(folder)._list_files()
    return folder
