"""Settings and records as JSON: frozen dataclasses of plain values, written exactly and read strictly.

Supported types are numbers, strings, booleans, None, `Literal`, tuples, dataclasses, unions of these, and dictionaries
with string keys; settings may also have functions, which are not written. Anything unknown, missing or of another type
is refused with the file and the field. Reading gives back what was written; infinities and NaN, which JSON lacks, are
written as strings. Values that Python code gives, settings and arguments, are checked by the same rules.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from bats.errors import DataError, SettingError
from bats.storage.atomic import read_text, write_text

Record = TypeVar("Record")
SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
NAMES: dict[Any, str] = {bool: "true or false", int: "an integer", float: "a number", str: "a string", NoneType: "null"}
NAMES |= {tuple: "a list", dict: "an object", Callable: "a function", Path: "a path"}
MAX_LETTERS = 10_000_000
"""length of the longest JSON file that is read; settings and records have a few thousand letters"""
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def write_record(path: Path, record: object, *, overwrite: bool = True) -> None:
    """Writes a dataclass or a dictionary as an indented JSON file."""
    write_text(path, json.dumps(to_plain(record), indent=2, allow_nan=False) + "\n", overwrite=overwrite)


def read_record(kind: type[Record], path: Path) -> Record:
    """The dataclass that a JSON file holds."""
    return from_plain(kind, read_json(path), file=str(path))


def write_lines(path: Path, records: tuple[object, ...]) -> None:
    """Writes dataclasses or dictionaries as JSON, one per line."""
    write_text(path, "".join(json.dumps(to_plain(record), allow_nan=False) + "\n" for record in records))


def read_lines(kind: type[Record], path: Path) -> tuple[Record, ...]:
    """The dataclasses of a file with one per line; none where there is no file."""
    lines = read_text(path).splitlines() if path.exists() else []
    named = ((line, f"{path}, line {number}") for number, line in enumerate(lines, 1))
    return tuple(from_plain(kind, parse_json(line, file=file), file=file) for line, file in named)


def read_json(path: Path) -> Any:
    """The content of a JSON file as Python's own types."""
    return parse_json(read_text(path, max_letters=MAX_LETTERS), file=str(path))


def parse_json(text: str, *, file: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError("valid JSON", str(error), file=file) from error
    except RecursionError:
        raise DataError("valid JSON", "objects or lists that are nested too deeply", file=file) from None


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dictionaries with their dotted names."""
    if not isinstance(value, dict):
        yield name, value
        return
    for key, entry in value.items():
        yield from flatten(entry, _join(name, key))


def to_plain(value: object) -> Any:
    """A dataclass as what JSON has: objects, lists, numbers and strings."""
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {name: to_plain(entry) for name, entry in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return value


def from_plain(kind: type[Record], value: object, *, file: str) -> Record:
    """The dataclass that a JSON object describes.

    `DataError` for anything else, and `SettingError` for a setting that breaks its rule; both name file and field.
    """
    return cast(Record, read_value(kind, value, file, ""))


def read_value(kind: Any, value: object, file: str | None, field: str) -> Any:
    """What a value stands for where this type is expected; `DataError` with file and field if nothing.

    A file has what JSON has. Without a file the value is one that Python code gives: it may be one of NumPy's numbers,
    a tuple, a path or a dataclass, but a dictionary is no dataclass, and a string is no number.
    """
    choices = _choices(kind)
    given = value.item() if isinstance(value, np.generic) else value
    for choice in choices:
        origin, arguments = get_origin(choice), get_args(choice)
        if is_dataclass(choice) and isinstance(given, dict) and file is not None:
            return _read_dataclass(choice, given, file, field)
        if origin is dict and isinstance(given, dict):
            return {name: read_value(arguments[1], entry, file, _join(field, name)) for name, entry in given.items()}
        if origin is tuple and isinstance(given, list | tuple):
            return _read_tuple(arguments, given, file, field)
        if origin is Literal and isinstance(given, str) and given in arguments:
            return given
        if choice is float and isinstance(given, int | float) and not isinstance(given, bool):
            with suppress(OverflowError):  # an integer beyond every float
                return float(given)
        if choice is float and isinstance(given, str) and given in SPECIAL and file is not None:
            return SPECIAL[given]
        if choice is Path and isinstance(given, str):
            return Path(given)
        if origin is Callable and callable(given):
            return given
        if isinstance(choice, type) and isinstance(given, choice) and (choice is bool or not isinstance(given, bool)):
            return given
    expected = " or ".join(_describe(choice, in_file=file is not None) for choice in choices)
    raise DataError(expected, shown(value), file=file, field=field or None)


def shown(value: object) -> str:
    """A value for a message: on one line, and cut where it is long."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    try:
        return " ".join(_SHORT.repr(value).split())
    except ValueError:  # Python writes out no integer of thousands of digits
        return "a number with too many digits to show"


def _read_dataclass(kind: Any, entries: dict[str, Any], file: str, field: str) -> Any:
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)]
    for name in [*entries, *names]:
        if name not in names:
            raise DataError(f"one of {', '.join(names)}", f"'{name}'", file=file, field=_join(field, name))
        if name not in entries:
            raise DataError("an entry", "no entry", file=file, field=_join(field, name))
    values = {name: read_value(hints[name], entries[name], file, _join(field, name)) for name in names}
    try:
        return kind(**values)
    except SettingError as error:
        raise SettingError(f"{file}: {error}") from error


def _read_tuple(
    kinds: tuple[Any, ...], values: list[Any] | tuple[Any, ...], file: str | None, field: str
) -> tuple[Any, ...]:
    """A tuple of any length, or of one entry per kind."""
    if kinds[1:] == (Ellipsis,):
        kinds = kinds[:1] * len(values)
    if len(kinds) != len(values):
        raise DataError(f"a list of {len(kinds)} entries", shown(values), file=file, field=field)
    pairs = zip(kinds, values, strict=True)
    return tuple(read_value(kind, entry, file, f"{field}[{index}]") for index, (kind, entry) in enumerate(pairs))


def _join(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


def _choices(kind: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type, without their rules."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(get_args(one)[0] if get_origin(one) is Annotated else one for one in kinds)


def _describe(kind: Any, *, in_file: bool) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if is_dataclass(kind) and in_file:
        return "an object"
    if kind is NoneType and not in_file:
        return "None"
    return NAMES.get(get_origin(kind) or kind) or f"a {kind.__name__}"
