"""The errors that this package raises on purpose, all with one base class.

`BatsError` covers every problem with data, files and settings. Any other exception is a bug in this package.
"""

from __future__ import annotations

from collections.abc import Mapping

MAX_FIELD, MAX_TEXT = 200, 2000
"""letters of a field's name, and of what was expected or found, in the message of a `DataError`"""


def printable(text: str, limit: int | None = None) -> str:
    """One line that no terminal obeys: anything unprintable is escaped, as in `\\x1b`; it is cut at `limit` letters."""
    shown = text if limit is None else text[: limit + 1]
    if not shown.isprintable():
        shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown)
    return shown if limit is None or len(shown) <= limit else f"{shown[:limit]}…"


class BatsError(Exception):
    """Base of every error that the package raises on purpose."""

    def __str__(self) -> str:
        return printable(super().__str__())  # messages quote names and texts of files, which may hold anything


class DataError(BatsError):
    """A log or file that cannot be used; the message says what to correct.

    The message reads `file: field 'actions', row 17: expected …, found …. hint`, leaving out what does not apply.
    """

    def __init__(
        self,
        expected: str,
        found: str,
        *,
        file: str | None = None,
        field: str | None = None,
        row: int | None = None,
        hint: str = "",
    ) -> None:
        self.expected, self.found, self.hint = expected, found, hint
        self.file, self.field, self.row = file, field, row
        where = [] if field is None else [f"field '{printable(field, MAX_FIELD)}'"]
        where += [] if row is None else [f"row {row}"]
        place = ": ".join(filter(None, (file, ", ".join(where))))
        message = f"expected {printable(expected, MAX_TEXT)}, found {printable(found, MAX_TEXT)}."
        super().__init__(" ".join(filter(None, (f"{place}: {message}" if place else message, hint))))

    def within(self, file: str) -> DataError:
        """The same error, with the file it came from."""
        return DataError(**(vars(self) | {"file": file}))

    def hinted(self, hint: str) -> DataError:
        """The same error, with one more hint."""
        return DataError(**(vars(self) | {"hint": " ".join(filter(None, (self.hint, hint)))}))


class SettingError(BatsError, ValueError):
    """A setting or an argument that is not valid."""


class OutputError(BatsError):
    """A file that could not be written, or would have been overwritten."""


def check_rules(rules: Mapping[str, object]) -> None:
    """Raises a `SettingError` with the first rule that does not hold."""
    for rule, holds in rules.items():
        if not holds:
            raise SettingError(f"{rule}.")
