"""Writing files so that a reader sees the old one, the new one or none, never half of one; and opening them to read."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, TextIOWrapper
from pathlib import Path

from bats.errors import DataError, OutputError

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


def write_atomic(path: Path | str, content: bytes | memoryview, *, overwrite: bool = False) -> None:
    """Writes a file whole or not at all; a file that exists is refused unless `overwrite`.

    The content comes as bytes, so that whatever fails in here is about writing and nothing else.
    """
    path = Path(path)
    refuse_existing(path, overwrite=overwrite)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with output_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            _flush(temporary)
            temporary.replace(path)
            _flush(path.parent)
    finally:
        with suppress(OSError):  # after a success it has been moved away
            temporary.unlink()


def refuse_existing(*paths: Path, overwrite: bool = False, hint: str = "") -> None:
    """Refuses files that exist, or cannot be made. Callers with much work to do check before it, not after."""
    for path in paths:
        with output_errors(path):
            exists, is_folder = path.exists(), path.is_dir()
            folder = path.absolute().parent
            while not folder.exists():  # it will be made
                folder = folder.parent
            if not folder.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "its folder is a file")
            if not os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if is_folder or (exists and not overwrite):
            raise OutputError(f"{path} exists already; choose another name{hint}.")


@contextmanager
def output_errors(path: Path, action: str = "written") -> Iterator[None]:
    """Says of an error of the system which file or folder could not be written."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path} could not be {action}: {error.strerror or error}.") from error


def write_text(path: Path | str, text: str, *, overwrite: bool = True) -> None:
    """Writes a text file whole or not at all. What is no text, as in the name of a file may be, is written in ASCII."""
    write_atomic(path, text.encode(errors="backslashreplace"), overwrite=overwrite)


def read_text(path: Path | str, *, max_letters: int | None = None) -> str:
    """A text file's content; `DataError` if it cannot be read, or is longer than a file of its kind can be."""
    with opened(path, "a readable text file") as file, TextIOWrapper(file, encoding="utf-8") as stream:
        text = stream.read(-1 if max_letters is None else max_letters + 1)
    if max_letters is not None and len(text) > max_letters:
        raise DataError(f"a text file of at most {max_letters:,} letters", "a longer one", file=str(path))
    return text


@contextmanager
def opened(path: Path | str, expected: str) -> Iterator[BufferedReader]:
    """A regular file to read from; `DataError` for anything else: to read from a pipe or a device could take for ever.

    What fails while it is read is reported as an error of this file, too.
    """
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise DataError(expected, "something that is not a regular file", file=str(path))
        with Path(path).open("rb") as stream:
            yield stream
    except FileNotFoundError as error:
        raise DataError(expected, "no such file", file=str(path)) from error
    except (OSError, ValueError) as error:  # no permission; a name that no file can have; bytes that are no text
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(expected, f"one that cannot be read: {reason}", file=str(path)) from error


def is_temporary(name: str) -> bool:
    """Whether a file is what a killed process left of writing one."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_temporary(folder: Path) -> None:
    """Removes what killed processes have left in a folder and below."""
    for path in folder.rglob(".*"):
        if is_temporary(path.name):
            path.unlink()


def refuse_other_files(folder: Path, known: Container[str]) -> None:
    """`OutputError` if a folder that is to become a run's contains anything but these and temporary files."""
    with output_errors(folder, "read"):
        names = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    if any(name not in known and not is_temporary(name) for name in names):
        raise OutputError(f"{folder} is not empty and is not the folder of a run; choose another folder.")


def _flush(path: Path) -> None:
    """Puts a file, or a folder's list of names, on the disk before anything relies on it."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
