"""The errors this package raises on purpose, all under one roof.

Anything else that escapes is a defect of ours: whoever catches `BatsError` has caught every complaint about
their data, their files and their settings.
"""

from __future__ import annotations


class BatsError(Exception):
    """Base of every error the package raises on purpose."""


class DataError(BatsError):
    """A log that cannot be used, with what is needed to mend it.

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
        where = [] if field is None else [f"field '{field}'"]
        where += [] if row is None else [f"row {row}"]
        place = ": ".join(filter(None, (file, ", ".join(where))))
        message = f"expected {expected}, found {found}."
        super().__init__(" ".join(filter(None, (f"{place}: {message}" if place else message, hint))))

    def within(self, file: str) -> DataError:
        """The same complaint, with the file it came from."""
        return DataError(**(vars(self) | {"file": file}))

    def hinted(self, hint: str) -> DataError:
        """The same complaint, with one more hint."""
        return DataError(**(vars(self) | {"hint": " ".join(filter(None, (self.hint, hint)))}))


class SettingError(BatsError, ValueError):
    """A setting or an argument that makes no sense."""


class OutputError(BatsError):
    """Something could not be written, or would have been overwritten."""
