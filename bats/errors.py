"""The errors this package raises on purpose, all under one roof.

Anything else that escapes is a defect of ours: whoever catches `BatsError` has caught every complaint about
their data, their files and their settings.
"""

from __future__ import annotations

from typing import Any


class BatsError(Exception):
    """Base of every error the package raises on purpose."""


class DataError(BatsError):
    """A log that cannot be used, told so that it can be mended.

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
        super().__init__(self._message())

    def _message(self) -> str:
        where = [f"field '{self.field}'"] if self.field is not None else []
        where += [f"row {self.row}"] if self.row is not None else []
        place = ": ".join(part for part in (self.file, ", ".join(where)) if part)
        told = f"expected {self.expected}, found {self.found}."
        return " ".join(part for part in (f"{place}: {told}" if place else told, self.hint) if part)

    def within(self, file: str) -> DataError:
        """The same complaint, with the file it came from."""
        known: dict[str, Any] = {"field": self.field, "row": self.row, "hint": self.hint}
        return DataError(self.expected, self.found, file=file, **known)

    def hinted(self, hint: str) -> DataError:
        """The same complaint, with one more hint."""
        both = " ".join(part for part in (self.hint, hint) if part)
        return DataError(self.expected, self.found, file=self.file, field=self.field, row=self.row, hint=both)


class SettingError(BatsError, ValueError):
    """A setting or an argument that makes no sense."""


class OutputError(BatsError):
    """Something could not be written, or would have been overwritten."""


class NotConvergedError(BatsError):
    """An iteration ran out of sweeps before it could keep its promise."""
