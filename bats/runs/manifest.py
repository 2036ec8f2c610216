"""The files of a run with their checksums, `files.json`: what is damaged, missing or taken from another run is named.

A file is listed when its stage or round is done. What a killed process wrote and did not list is removed and made
again. This guards against mix-ups and damage; somebody who also changes the checksums is not noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bats.errors import DataError
from bats.runs.records import COMPARED
from bats.storage.atomic import opened
from bats.storage.json_records import read_record, write_record
from bats.storage.tensors import read_facts

NAME = "files.json"
STARTED = ("run.json",)
"""written when a run begins, before any result"""
RESULTS = (
    "log.json",
    "model.safetensors",
    "model.json",
    "mdp/base.safetensors",
    "mdp/round-*.safetensors",
    "attempts/round-*.safetensors",
    "records.jsonl",
    "metric-*.safetensors",
    "errors.safetensors",
    "options.jsonl",
    "policy.safetensors",
    "policy.json",
    "rollouts.safetensors",
    "certificate.json",
    "bounds.safetensors",
    *(f"policies/{name}.{kind}" for name in COMPARED for kind in ("safetensors", "json")),
    *(f"certificates/{name}/{file}" for name in COMPARED for file in ("certificate.json", "bounds.safetensors")),
    "finished.json",
)
"""files that stages leave; any other file is somebody's own"""
REWRITTEN = ("records.jsonl", "errors.safetensors")
"""files that are written again after they were listed: by every round, or by a run that continues after all rounds"""


@dataclass(frozen=True)
class Manifest:
    """Which files a run has written, and with which settings."""

    files: dict[str, str]
    """checksum of each file, by its path within the folder"""
    settings: dict[str, str]
    """checksum of the settings of each stage that has begun"""


def read_manifest(folder: Path) -> Manifest:
    """The list of a folder; an empty one where nothing has been made yet."""
    path = folder / NAME
    if path.exists():
        return read_record(Manifest, path)
    found = sorted(result_files(folder))
    if found:
        raise DataError("the list of this run's files", f"none, although {found[0]} exists", file=str(path))
    return Manifest({}, {})


def current_files(folder: Path) -> dict[str, str]:
    """The checksums of all files that the folder has now; most that were listed before are not looked at again."""
    before = read_record(Manifest, folder / NAME).files if (folder / NAME).exists() else {}
    known = {name: checksum for name, checksum in before.items() if name not in REWRITTEN}
    own = files_of(folder, (*STARTED, *RESULTS))
    return {name: known.get(name) or file_checksum(path) for name, path in sorted(own.items())}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the list of a folder, if it has changed."""
    path = folder / NAME
    if not path.exists() or read_record(Manifest, path) != manifest:
        write_record(path, manifest)


def check_manifest(
    folder: Path, manifest: Manifest, settings: Mapping[str, str], patterns: tuple[str, ...] = (*STARTED, *RESULTS)
) -> None:
    """Refuses a folder in which a file is missing or is not the one that was listed, and names the file."""
    hint = "Restore it, or make the run again in another folder."
    own = files_of(folder, patterns)
    for name, checksum in manifest.files.items():
        file = str(folder / name)
        if name not in own:  # nor is anything read that is no file of a run: a name can lead anywhere
            raise DataError("a file that this run has written", "no such file", file=file, hint=hint)
        if file_checksum(own[name]) != checksum:
            found = "other content; it was changed, or it comes from another run"
            raise DataError("the content that this run has written", found, file=file, hint=hint)
    for name in sorted(own.keys() - manifest.files.keys() - {*STARTED}):
        raise DataError("only files that this run has written", "a file of another run", file=str(folder / name))
    for stage, checksum in manifest.settings.items():
        if settings.get(stage) != checksum:
            expected = f"the settings that the stage '{stage}' was made with"
            raise DataError(expected, "other settings", file=str(folder / "settings.json"), hint=hint)


def discard_manifest(folder: Path) -> None:
    """Forgets a run that has finished no stage. The list goes last: without it, results would be refused."""
    remove_unlisted(folder, Manifest({}, {}))
    (folder / NAME).unlink(missing_ok=True)


def remove_unlisted(folder: Path, manifest: Manifest) -> None:
    """Removes the results that a killed process has not listed."""
    for name, path in result_files(folder).items():
        if name not in manifest.files:
            path.unlink()


def result_files(folder: Path) -> dict[str, Path]:
    """The files that stages have left, by their paths within the folder."""
    return files_of(folder, RESULTS)


def files_of(folder: Path, patterns: tuple[str, ...]) -> dict[str, Path]:
    """The files that match a pattern, by their paths within the folder."""
    return {path.relative_to(folder).as_posix(): path for pattern in patterns for path in folder.glob(pattern)}


def file_checksum(path: Path) -> str:
    """Of a tensor file the one that it carries, which is compared with its content when it is read."""
    if path.suffix == ".safetensors":
        return str(read_facts(path)["checksum"])
    with opened(path, "a readable file") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
