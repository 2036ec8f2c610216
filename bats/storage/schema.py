"""What the entries of a file must be, by the annotations of the dataclass that they are read into.

    states: Float[np.ndarray, "S D"]        floats of two axes; S and D have the same sizes wherever they appear
    first_edge: Int[np.ndarray, "S+1"]      integers, one more than S
    action_count: int | None                a plain value

A checksum shows that a file is whole, not that its maker meant well. Floats must be finite, except in fields that are
marked with `MAY_BE_NOT_FINITE`. Annotations are read as text, because jaxtyping need not be installed to read a file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import Field, fields
from types import NoneType
from typing import Any, TypeVar

import numpy as np

from bats.errors import DataError, SettingError

Struct = TypeVar("Struct")
MAY_BE_NOT_FINITE = {"finite": False}
"""metadata of a field"""
_ARRAY = re.compile(r"""(Float|Int|Bool)\[[\w.]*ndarray, ["']([^"']*)["']\]""")
_AXIS = re.compile(r"^(\w+?)([+-]\d+)?$")
_NAMES = {"Float": "floats", "Int": "integers", "Bool": "flags"}
_DTYPES = {"Float": ("float32", "float64"), "Int": ("int8", "int16", "int32", "int64"), "Bool": ("bool",)}
_PLAIN = {"bool": bool, "str": str, "None": NoneType}


def build(struct: type[Struct], entries: Mapping[str, Any], *, file: str) -> Struct:
    """The dataclass with these entries; `DataError` for one that is missing or not as annotated."""
    own: tuple[Field[Any], ...] = fields(struct)  # type: ignore[arg-type]
    missing = [field.name for field in own if field.name not in entries]
    if missing:
        names = ", ".join(field.name for field in own)
        raise DataError(f"entries for {names}", f"no entry for {', '.join(missing)}", file=file)
    sizes: dict[str, int] = {}
    values = {field.name: _checked(struct, field, entries[field.name], sizes, file) for field in own}
    try:
        return struct(**values)
    except SettingError as error:
        raise DataError(f"valid {struct.__name__}", f"other values ({error})", file=file) from error


def _checked(struct: type, field: Field[Any], value: Any, sizes: dict[str, int], file: str) -> Any:
    """The value of a field, if it is what the field's annotation says; `sizes` are those of the axes seen so far."""
    annotation = str(field.type)
    annotation = str(vars(sys.modules[struct.__module__]).get(annotation, annotation))  # aliases of `bats.arrays`
    forms = [(kind, axes.split()) for kind, axes in _ARRAY.findall(annotation)]
    kinds = [] if forms else annotation.split(" | ")
    is_array = isinstance(value, np.ndarray)
    if is_array and any(value.dtype.name in _DTYPES[kind] and _fits(value.shape, axes, sizes) for kind, axes in forms):
        _check_numbers(field, value, file)
        return value
    if not is_array and any(_is_plain(kind, value) for kind in kinds):
        _check_numbers(field, np.asarray(value), file)
        return float(value) if kinds == ["float"] else value
    expected = [f"{_NAMES[kind]} of shape ({', '.join(axes)})" for kind, axes in forms] or kinds
    known = f" where {', '.join(f'{name} = {size}' for name, size in sizes.items())}" if sizes and forms else ""
    found = f"{value.dtype} of shape {value.shape}{known}" if is_array else f"{value!r:.100}"
    raise DataError(" or ".join(expected), found, file=file, field=field.name)


def _check_numbers(field: Field[Any], value: np.ndarray, file: str) -> None:
    """Refuses numbers that are not finite, and flags that are neither true nor false, which NumPy takes for granted."""
    if value.dtype.kind == "f" and field.metadata.get("finite", True) and not np.isfinite(value).all():
        raise DataError("finite numbers", "NaN or infinity", file=file, field=field.name)
    if value.dtype == bool and np.any(value.view(np.uint8) > 1):
        raise DataError("flags of 0 or 1", "other bytes", file=file, field=field.name)


def _fits(shape: tuple[int, ...], axes: list[str], sizes: dict[str, int]) -> bool:
    """Whether an array has these axes; their sizes are then known."""
    if len(shape) != len(axes):
        return False
    found = dict(sizes)
    for length, axis in zip(shape, axes, strict=True):
        [(name, shift)] = _AXIS.findall(axis)
        size = length - int(shift or 0)
        if found.setdefault(name, size) != size:
            return False
    sizes.update(found)
    return True


def _is_plain(kind: str, value: Any) -> bool:
    whole = type(value) is int and abs(value) < 2**64
    return whole or type(value) is float if kind == "float" else whole if kind == "int" else type(value) is _PLAIN[kind]
