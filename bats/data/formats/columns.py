"""`ColumnMap`: which columns of a table belong to which field of a log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bats.data.dataset import require
from bats.data.formats.raw_log import OTHER_NAMES, REQUIRED, closest, listed
from bats.errors import DataError

VECTOR_FIELDS = ("observations", "actions", "next_observations")
SINGLE_FIELDS = ("rewards", "terminations", "timeouts", "episode")
FIELDS = (*VECTOR_FIELDS, *SINGLE_FIELDS, *OTHER_NAMES)
EXAMPLE = "observations=x,y actions=u rewards=r"
FORM = f"{EXAMPLE} [next_observations=…] [terminations=…] [timeouts=…] [episode=…]"

_NAME = r"""(?:'[^']*'|"[^"]*"|[^\s,'"][^\s,]*)"""
_PART = re.compile(rf"\s*([^\s=,]+)=({_NAME}(?:,{_NAME})*)(?=\s|$)")
"""one field and its columns; a name with spaces or commas is quoted"""


@dataclass(frozen=True)
class ColumnMap:
    """The columns of a CSV or Parquet table, by the field they belong to.

    Without a map, columns are recognised by name: `observations_0`, `observations_1`, … (or one column
    `observations`), likewise `actions` and `next_observations`; `rewards`, `terminations` (or `terminals`), `timeouts`
    (or `truncations`) and `episode`.
    """

    observations: tuple[str, ...]
    actions: tuple[str, ...]
    rewards: str
    next_observations: tuple[str, ...] = ()
    terminations: str | None = None
    timeouts: str | None = None
    episode: str | None = None
    """ids of any kind; an episode ends where the id changes, whatever `timeouts` say"""

    @classmethod
    def parse(cls, text: str) -> ColumnMap:
        """Reads a map from one line of text: `observations=x,y actions=u rewards=r episode=ep`.

        Names with spaces are quoted: `observations='Pos X','Pos Y'`.
        """
        parts: list[tuple[str, tuple[str, ...]]] = []
        start, text = 0, text.rstrip()
        while start < len(text):
            part = _PART.match(text, start)
            if part is None:
                hint = "Names with spaces must be in quotes, as in observations='Pos X','Pos Y'."
                rest = repr(text[start:].split()[0])
                raise DataError(f"a column map like '{FORM}'", rest, field="columns", hint=hint)
            names = re.findall(_NAME, part[2])
            parts.append((part[1], tuple(name[1:-1] if name[0] in "'\"" else name for name in names)))
            start = part.end()
        return cls._from_parts(parts)

    @classmethod
    def from_any(cls, columns: object) -> ColumnMap | None:
        """A map as it is, or made from one line of text or from a dictionary of column names; None stays None."""
        if columns is None or isinstance(columns, ColumnMap):
            return columns
        if isinstance(columns, str):
            return cls.parse(columns)
        if not isinstance(columns, Mapping):
            expected = "a ColumnMap, a text or a dictionary of column names"
            raise DataError(expected, f"{type(columns).__name__} {columns!r}"[:80], field="columns")
        parts = []
        for field, given in columns.items():
            # a text is a sequence too, but of letters
            names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Sequence) else ()
            if not names or not all(isinstance(name, str) for name in names):
                raise DataError(f"one or several column names for {field!r}", f"{given!r}"[:80], field="columns")
            parts.append((str(field), names))
        return cls._from_parts(parts)

    @classmethod
    def _from_parts(cls, parts: Sequence[tuple[str, tuple[str, ...]]]) -> ColumnMap:
        columns: dict[str, tuple[str, ...]] = {}
        for given, names in parts:
            field = OTHER_NAMES.get(given, given)
            if given not in FIELDS:
                hint = closest(given, FIELDS)
                raise DataError(f"one of {', '.join(FIELDS)}", f"'{given}'", field="columns", hint=hint)
            require(field not in columns, f"'{field}' once", "it twice", field="columns")
            allowed = field in VECTOR_FIELDS or len(names) == 1
            require(allowed, f"one column for '{field}'", f"{len(names)}", field="columns")
            columns[field] = names
        return cls._from_fields(columns, present=[*columns], hint=f"Write it like '{FORM}'.")

    @classmethod
    def recognise(cls, header: Sequence[str]) -> ColumnMap:
        """Finds the columns of each field by the names described above."""
        columns: dict[str, tuple[str, ...]] = {}
        for field in VECTOR_FIELDS:
            numbered = [name for name in header if re.fullmatch(rf"{field}_[0-9]{{1,9}}", name)]
            # by number: as texts, 10 would come before 2
            in_order = tuple(sorted(numbered, key=lambda name: int(name.rpartition("_")[2])))
            columns[field] = in_order or ((field,) if field in header else ())
        for field in SINGLE_FIELDS:
            candidates = (field, *(other for other, same in OTHER_NAMES.items() if same == field))
            columns[field] = tuple(name for name in candidates if name in header)
            if len(columns[field]) > 1:
                raise DataError(f"one of {' and '.join(map(repr, columns[field]))}", "both")
        hint = f'Say which columns belong to which field, as in --columns "{EXAMPLE}" (in Python: columns="…").'
        return cls._from_fields(columns, present=header, hint=hint)

    @classmethod
    def _from_fields(cls, columns: dict[str, tuple[str, ...]], *, present: Sequence[str], hint: str) -> ColumnMap:
        for field in REQUIRED:
            if not columns.get(field):
                expected = f"columns for '{field}'" if field in VECTOR_FIELDS else f"a column for '{field}'"
                raise DataError(expected, f"only {listed(present)}", hint=hint)
        # fields that are absent keep the defaults of the class
        vectors = {field: columns.get(field, ()) for field in VECTOR_FIELDS}
        singles = {field: columns[field][0] for field in SINGLE_FIELDS if columns.get(field)}
        return cls(**vectors, **singles)  # type: ignore[arg-type]  # the keys decide between tuple and text

    def by_field(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Each field that the map names, with its columns."""
        for field in (*VECTOR_FIELDS, *SINGLE_FIELDS):
            columns = getattr(self, field)
            if columns is not None and columns != ():
                yield field, (columns,) if isinstance(columns, str) else columns

    def used(self) -> list[str]:
        """Every column that the map names, once."""
        return list(dict.fromkeys(name for _, names in self.by_field() for name in names))

    def hints(self) -> dict[str, str]:
        """For each field the columns it is made of, to be added to an error about the field."""
        return {field: f"({field}: {', '.join(names)}.)" for field, names in self.by_field()}

    def check_against(self, header: Sequence[str]) -> None:
        """Refuses a column that the table does not have, or has twice."""
        for field, names in self.by_field():
            for name in names:
                if name not in header:
                    hint = closest(name, header)
                    raise DataError(f"a column '{name}'", f"only {listed(header)}", field=field, hint=hint)
                require(header.count(name) == 1, f"one column '{name}'", "several of that name", field=field)
