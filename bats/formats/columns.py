"""Which columns of a table make up which field of a log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from bats.errors import DataError
from bats.formats.fields import OTHER_NAMES, REQUIRED, listed

VECTOR_FIELDS = ("observations", "actions", "next_observations")
SINGLE_FIELDS = ("rewards", "terminations", "timeouts", "episode")
FORM = "observations=x,y actions=u rewards=r [next_observations=…] [terminations=…] [timeouts=…] [episode=…]"


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
        """Reads a map from one line, as given on a command line: `observations=x,y actions=u rewards=r episode=ep`."""
        found: dict[str, tuple[str, ...]] = {}
        for part in text.split():
            field, equals, names = part.partition("=")
            columns = tuple(names.split(","))
            if not equals or not all(columns):
                raise DataError(f"a column map like '{FORM}'", f"'{part}'", field="columns")
            if field not in VECTOR_FIELDS + SINGLE_FIELDS:
                expected = f"one of {', '.join(VECTOR_FIELDS + SINGLE_FIELDS)}"
                raise DataError(expected, f"'{field}'", field="columns", hint=closest(field, VECTOR_FIELDS))
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
        hint = "Say which columns are which with a column map."
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


def closest(name: str, known: Sequence[str]) -> str:
    """A hint with the name that was probably meant, or nothing."""
    near = get_close_matches(name, known, n=1)
    return f"Did you mean '{near[0]}'?" if near else ""
