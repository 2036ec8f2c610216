"""Settings and records as JSON: frozen dataclasses of plain values, written exactly and read strictly.

Supported types are numbers, strings, booleans, None, `Literal`, tuples, dataclasses, unions of these, and dictionaries
with string keys; settings may also have functions, which are not written. Anything unknown, missing or of another type
is refused with the file and the field. Reading gives back what was written; infinities and NaN, which JSON lacks, are
written as strings.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from reprlib import Repr
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from bats.arrays import field_values
from bats.errors import DataError, SettingError
from bats.storage.atomic import read_text, write_text

Record = TypeVar("Record")
SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
NAMES: dict[Any, str] = {bool: "true or false", int: "an integer", float: "a number", str: "a string", NoneType: "null"}
NAMES |= {tuple: "a list", dict: "an object", Callable: "a function"}
SHORT = Repr()
"""shows values in messages, however long or deeply nested they are"""
SHORT.maxstring = SHORT.maxother = 100


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
    return parse_json(read_text(path), file=str(path))


def parse_json(text: str, *, file: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        found = str(error) if isinstance(error, ValueError) else "values nested too deeply"
        raise DataError("valid JSON", found, file=file) from error


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
        value = field_values(value)
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


def read_value(kind: Any, value: object, file: str, field: str) -> Any:
    """What a JSON value stands for where this type is expected; `DataError` with file and field if nothing."""
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    for choice in choices:
        origin, arguments = get_origin(choice), get_args(choice)
        if is_dataclass(choice) and isinstance(value, dict):
            return _read_dataclass(choice, value, file, field)
        if origin is dict and isinstance(value, dict):
            return {name: read_value(arguments[1], entry, file, _join(field, name)) for name, entry in value.items()}
        if origin is tuple and isinstance(value, list):
            return _read_tuple(arguments, value, file, field)
        if origin is Literal and isinstance(value, str) and value in arguments:
            return value
        if choice is float and (isinstance(value, float) or (type(value) is int and abs(value) <= sys.float_info.max)):
            return float(value)
        if choice is float and isinstance(value, str) and value in SPECIAL:
            return SPECIAL[value]
        if type(value) is choice or (origin is Callable and callable(value)):
            return value
    raise DataError(" or ".join(map(_describe, choices)), SHORT.repr(value), file=file, field=field or None)


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
        group = f"field '{field}': " if field else ""
        raise SettingError(f"{file}: {group}{error}") from error


def _read_tuple(kinds: tuple[Any, ...], values: list[Any], file: str, field: str) -> tuple[Any, ...]:
    """A tuple of any length, or of one entry per kind."""
    if kinds[1:] == (Ellipsis,):
        kinds = kinds[:1] * len(values)
    if len(kinds) != len(values):
        raise DataError(f"a list of {len(kinds)} entries", SHORT.repr(values), file=file, field=field)
    pairs = zip(kinds, values, strict=True)
    return tuple(read_value(kind, entry, file, f"{field}[{index}]") for index, (kind, entry) in enumerate(pairs))


def _join(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    return "an object" if is_dataclass(kind) else NAMES.get(get_origin(kind) or kind, str(kind))
