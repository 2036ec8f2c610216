"""Settings and records as JSON: frozen dataclasses of plain values, written exactly and read strictly.

Understood are numbers, words, yes and no, None, `Literal`, tuples, dataclasses, unions of these, and tables by word.
Whatever is unknown, missing or of another type is refused, with the file and the field. What was read is equal to what
was written; numbers that JSON has no sign for are written as words.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from bats.errors import DataError

Record = TypeVar("Record")
WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", NoneType: "null"}


def as_json(record: object) -> str:
    """A dataclass as the text of a JSON object, on one line."""
    return json.dumps(plain(record), allow_nan=False)


def from_json(kind: type[Record], text: str, *, file: str) -> Record:
    """The dataclass that a JSON text holds; `DataError` with the file and the field if it is anything else."""
    return from_plain(kind, parsed(text, file=file), file=file)


def parsed(text: str, *, file: str) -> Any:
    """A JSON text as what `json` makes of it."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError("a JSON text", str(error), file=file) from error


def plain(value: object) -> Any:
    """The value as what JSON knows: objects, lists, numbers and words."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return value


def from_plain(kind: type[Record], value: object, *, file: str) -> Record:
    """The dataclass that a JSON object describes."""
    return cast(Record, _read_object(kind, value, file, ""))


def _read_object(kind: Any, value: object, file: str, field: str) -> Any:
    entries = _table(value, file, field)
    hints = get_type_hints(kind)
    names = [each.name for each in fields(kind)]
    for name in [*entries, *names]:
        if name not in names:
            raise DataError(f"only {', '.join(names)}", f"'{name}'", file=file, field=_within(field, name))
        if name not in entries:
            raise DataError("an entry", "none", file=file, field=_within(field, name))
    read = {name: _read(hints[name], entries[name], file, _within(field, name)) for name in names}
    try:
        return kind(**read)
    except ValueError as error:  # the settings' own checks
        raise DataError("settings that make sense", str(error), file=file, field=field or None) from error


def _read(kind: Any, value: object, file: str, field: str) -> Any:
    arguments = get_args(kind)
    if is_dataclass(kind):
        return _read_object(kind, value, file, field)
    if get_origin(kind) is tuple:
        return _read_list(arguments, value, file, field)
    if get_origin(kind) is dict:
        entries = _table(value, file, field)
        return {name: _read(arguments[1], entry, file, _within(field, name)) for name, entry in entries.items()}
    choices = arguments if get_origin(kind) in (Union, UnionType) else (kind,)
    for choice in choices:
        if is_dataclass(choice) and isinstance(value, dict):
            return _read_object(choice, value, file, field)
        if get_origin(choice) is tuple and isinstance(value, list):
            return _read_list(get_args(choice), value, file, field)
        if get_origin(choice) is Literal and isinstance(value, str) and value in get_args(choice):
            return value
        if choice is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if choice is float and isinstance(value, str) and value in WORDS:
            return WORDS[value]
        if type(value) is choice:
            return value
    raise DataError(" or ".join(map(_described, choices)), repr(value), file=file, field=field)


def _read_list(kinds: tuple[Any, ...], value: object, file: str, field: str) -> tuple[Any, ...]:
    """A tuple of any length, or of as many entries as there are kinds."""
    if not isinstance(value, list):
        raise DataError("a list", repr(value), file=file, field=field)
    if kinds[1:] == (Ellipsis,):
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise DataError(f"a list of {len(kinds)}", repr(value), file=file, field=field)
    return tuple(
        _read(kind, entry, file, f"{field}[{place}]")
        for place, (kind, entry) in enumerate(zip(kinds, value, strict=True))
    )


def _table(value: object, file: str, field: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError("an object", repr(value), file=file, field=field or None)
    return value


def _within(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return "a list"
    if is_dataclass(kind):
        return "an object"
    return NAMES.get(kind, str(kind))
