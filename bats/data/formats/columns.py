"""Which columns of a table make up which field of a log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bats.data.formats.names import OTHER_NAMES, REQUIRED, closest, listed
from bats.errors import DataError

VECTOR_FIELDS = ("observations", "actions", "next_observations")
SINGLE_FIELDS = ("rewards", "terminations", "timeouts", "episode")
FIELDS = (*VECTOR_FIELDS, *SINGLE_FIELDS, *OTHER_NAMES)
SHORT_FORM = "observations=x,y actions=u rewards=r"
FORM = f"{SHORT_FORM} [next_observations=…] [terminations=…] [timeouts=…] [episode=…]"

_NAME = r"""(?:'[^']*'|"[^"]*"|[^\s,'"][^\s,]*)"""
_PART = re.compile(rf"\s*([^\s=,]+)=({_NAME}(?:,{_NAME})*)(?=\s|$)")
"""one field and its columns; a name with spaces or commas in it stands in quotes"""


@dataclass(frozen=True)
class ColumnMap:
    """The columns of a CSV or Parquet table, by the field they belong to.

    Without one, columns are recognised by name: `observations_0`, `observations_1`, … (or one column `observations`),
    likewise `actions` and `next_observations`; `rewards`, `terminations` (or `terminals`), `timeouts` (or
    `truncations`) and `episode`.
    """

    observations: tuple[str, ...]
    actions: tuple[str, ...]
    rewards: str
    next_observations: tuple[str, ...] = ()
    terminations: str | None = None
    timeouts: str | None = None
    episode: str | None = None
    """ids of any kind; an episode ends where the id changes, which then counts for more than `timeouts`"""

    @classmethod
    def parse(cls, text: str) -> ColumnMap:
        """Reads a map from one line, as given on a command line: `observations=x,y actions=u rewards=r episode=ep`.

        Names with spaces stand in quotes: `observations='Pos X','Pos Y'`.
        """
        parts: list[tuple[str, tuple[str, ...]]] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            part = _PART.match(text, at)
            if part is None:
                hint = "Names with spaces stand in quotes, as in observations='Pos X','Pos Y'."
                found = repr(text[at:].split()[0])
                raise DataError(f"a column map like '{FORM}'", found, field="columns", hint=hint)
            parts.append((part[1], tuple(_unquoted(name) for name in re.findall(_NAME, part[2]))))
            at = part.end()
        return cls._from_parts(parts)

    @classmethod
    def from_any(cls, given: object) -> ColumnMap | None:
        """A map as it is, or made from one line of text or from a dictionary of column names; None stays None."""
        if given is None or isinstance(given, ColumnMap):
            return given
        if isinstance(given, str):
            return cls.parse(given)
        if not isinstance(given, Mapping):
            expected = "a ColumnMap, a text or a dictionary of column names"
            raise DataError(expected, f"{type(given).__name__} {given!r}"[:80], field="columns")
        parts = []
        for field, names in given.items():
            columns = (names,) if isinstance(names, str) else tuple(names) if isinstance(names, Sequence) else ()
            if not columns or not all(isinstance(name, str) for name in columns):
                raise DataError(f"a column's name or several for {field!r}", f"{names!r}"[:80], field="columns")
            parts.append((str(field), columns))
        return cls._from_parts(parts)

    @classmethod
    def _from_parts(cls, parts: Sequence[tuple[str, tuple[str, ...]]]) -> ColumnMap:
        found: dict[str, tuple[str, ...]] = {}
        for given, columns in parts:
            field = OTHER_NAMES.get(given, given)
            if given not in FIELDS:
                raise DataError(
                    f"one of {', '.join(FIELDS)}", f"'{given}'", field="columns", hint=closest(given, FIELDS)
                )
            if field in found:
                raise DataError(f"'{field}' once", "it twice", field="columns")
            if field in SINGLE_FIELDS and len(columns) > 1:
                raise DataError(f"one column for '{field}'", f"{len(columns)}", field="columns")
            found[field] = columns
        return cls._from_found(found, file=None, hint=f"Write it like '{FORM}'.", columns=[*found])

    @classmethod
    def recognise(cls, columns: Sequence[str], *, file: str) -> ColumnMap:
        """Finds the fields by the names described above."""
        found: dict[str, tuple[str, ...]] = {}
        for field in VECTOR_FIELDS:
            numbered = [name for name in columns if re.fullmatch(rf"{field}_[0-9]{{1,9}}", name)]
            in_order = tuple(sorted(numbered, key=lambda name: int(name.rpartition("_")[2])))
            found[field] = in_order or ((field,) if field in columns else ())
        for field in SINGLE_FIELDS:
            names = [field, *(other for other, same in OTHER_NAMES.items() if same == field)]
            here = [name for name in names if name in columns]
            if len(here) > 1:
                raise DataError(f"one of {' and '.join(map(repr, here))}", "both", file=file)
            found[field] = tuple(here)
        hint = f'Say which columns are which, as in --columns "{SHORT_FORM}" (in Python: columns="…").'
        return cls._from_found(found, file=file, hint=hint, columns=columns)

    @classmethod
    def _from_found(
        cls, found: dict[str, tuple[str, ...]], *, file: str | None, hint: str, columns: Sequence[str]
    ) -> ColumnMap:
        for field in REQUIRED:
            if not found.get(field):
                expected = f"columns for '{field}'" if field in VECTOR_FIELDS else f"a column for '{field}'"
                raise DataError(expected, f"only {listed([*columns])}", file=file, hint=hint)
        optional = {field: (found.get(field) or (None,))[0] for field in SINGLE_FIELDS[1:]}
        return cls(
            observations=found["observations"],
            actions=found["actions"],
            rewards=found["rewards"][0],
            next_observations=found.get("next_observations", ()),
            terminations=optional["terminations"],
            timeouts=optional["timeouts"],
            episode=optional["episode"],
        )

    def by_field(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Each field that the map names, with its columns."""
        for field in VECTOR_FIELDS:
            if getattr(self, field):
                yield field, getattr(self, field)
        for field in SINGLE_FIELDS:
            if getattr(self, field) is not None:
                yield field, (getattr(self, field),)

    def check_against(self, columns: Sequence[str], *, file: str) -> None:
        """Refuses a column that the table does not have, or has twice."""
        for field, names in self.by_field():
            for name in names:
                if name not in columns:
                    hint = closest(name, columns)
                    expected, found = f"a column '{name}'", f"only {listed([*columns])}"
                    raise DataError(expected, found, file=file, field=field, hint=hint)
                if list(columns).count(name) > 1:
                    raise DataError(f"one column '{name}'", "several of that name", file=file, field=field)


def _unquoted(name: str) -> str:
    return name[1:-1] if name[0] in "'\"" else name
