"""CSV tables: a header line with the columns' names, then one line per row of the log, separated by commas."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from bats.arrays import Progress
from bats.data.episodes import Note, counted
from bats.data.formats.columns import ColumnMap
from bats.data.formats.fields import RawLog
from bats.data.formats.untrusted import check_file, check_fits, library_call, one_line
from bats.errors import DataError

CHUNK_LINES = 50_000
FLAG_FIELDS = ("terminations", "timeouts")
FLAG_WORDS = {"true": 1.0, "false": 0.0}
DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
"""what other tables put between cells"""
TEXT = "a text file in UTF-8"


def read_csv(path: Path, columns: ColumnMap | None, progress: Progress) -> RawLog:
    """Reads the mapped columns as doubles. Flags may be 0 and 1 or true and false; an episode id may be any text."""
    name = str(path)
    check_file(path, "a CSV file")
    most_rows = _count_lines(path) - 1
    with library_call(name, TEXT), path.open(encoding="utf-8-sig") as text:
        first = text.readline()
    header = _cells(first, name)
    _check_header(header, name)
    columns = _mapped(header, columns, name)
    rows = _RowParser(header, columns, name)
    check_fits(name, "observations", most_rows * len(rows.used) * 8)
    fields = {field: np.empty((most_rows, len(names))) for field, names in columns.by_field()}
    filled = 0
    for table in rows.tables(path):
        for field, names in columns.by_field():
            fields[field][filled : filled + len(table)] = table[:, [rows.used.index(one) for one in names]]
        filled += len(table)
        progress(f"reading {path.name}", filled, most_rows)
    if not filled:
        raise DataError("rows below the header line", "none", file=name)
    progress(f"reading {path.name}", filled, filled)
    found = {field: values[:filled] for field, values in fields.items()}
    found["actions"], note = _guessed_actions(found["actions"], rows)
    return RawLog(
        found,
        unused=tuple(column for column in header if column not in rows.used),
        actions_note=note,
        observation_names=columns.observations,
        action_names=columns.actions,
        field_hints=_hints(columns),
        line_of=rows.line_of,
    )


class _RowParser:
    """Turns lines into tables of doubles, one column per name in `used`."""

    def __init__(self, header: Sequence[str], columns: ColumnMap, file: str) -> None:
        self.header, self.file = header, file
        self.used = list(dict.fromkeys(name for _, names in columns.by_field() for name in names))
        self.flags = {name for field, names in columns.by_field() if field in FLAG_FIELDS for name in names}
        self.episode = columns.episode
        self.action = columns.actions[0] if len(columns.actions) == 1 else None
        self.episode_codes: dict[str, float] = {}
        self.flag_words = False
        """a flag was found in words; from then on every flag is read by us instead of NumPy, which is slower"""
        self.first_actions: list[str] = []
        """the first two actions as they are written, where one is a single number"""
        self.blank_before: list[int] = []
        """the row that comes after each blank line"""

    def tables(self, path: Path) -> Iterator[np.ndarray]:
        """The rows of the file, many at a time."""
        line, row = 2, 0
        with library_call(self.file, TEXT):
            text = path.open(encoding="utf-8-sig")
        with text:
            text.readline()
            while True:
                with library_call(self.file, TEXT):
                    lines = list(islice(text, CHUNK_LINES))
                if not lines:
                    return
                table = self._table(lines, row, line)
                self._remember_blanks(lines, row)
                line, row = line + len(lines), row + len(table)
                if len(table):
                    yield table

    def line_of(self, row: int) -> int:
        """The line in which a row stands; the header is line 1."""
        return 2 + row + bisect_right(self.blank_before, row)

    def _remember_blanks(self, lines: list[str], row: int) -> None:
        blank = [place for place, one in enumerate(lines) if one.isspace()]
        self.blank_before += [row + place - count for count, place in enumerate(blank)]

    def _table(self, lines: list[str], row: int, line: int) -> np.ndarray:
        filled = [one for one in lines if not one.isspace()]
        if not filled:
            return np.empty((0, len(self.used)))
        commas = len(self.header) - 1
        if any(one.count(",") != commas or '"' in one for one in filled):
            self._check_widths(lines, row, line)
        if row == 0 and self.action is not None:
            place = self.header.index(self.action)
            self.first_actions = [_cells(one, self.file)[place].strip() for one in filled[:2]]
        try:
            table = self._parse(filled)
        except ValueError as error:
            if not self.flag_words:
                self.flag_words = True
                return self._table(lines, row, line)
            self._blame_cell(lines, row, line)
            raise DataError("numbers", one_line(error), file=self.file) from error
        if len(table) != len(filled):
            found = f"a quoted cell that runs over several, after line {line - 1}"
            raise DataError("every row on a line of its own", found, file=self.file)
        return table

    def _parse(self, lines: list[str]) -> np.ndarray:
        where = {name: self.header.index(name) for name in self.used}
        special: dict[int | str, Callable[[str], float]] = {}
        if self.flag_words:
            special |= {where[name]: _flag for name in self.flags}
        if self.episode is not None:
            special[where[self.episode]] = self._episode_code
        return np.loadtxt(
            lines,
            delimiter=",",
            quotechar='"',
            comments=None,
            usecols=list(where.values()),
            converters=special or None,
            ndmin=2,
        )

    def _episode_code(self, text: str) -> float:
        return self.episode_codes.setdefault(text.strip(), float(len(self.episode_codes)))

    def _check_widths(self, lines: list[str], row: int, line: int) -> None:
        for at_row, at_line, cells in _numbered_rows(lines, row, line, self.file):
            if len(cells) != len(self.header):
                expected, hint = f"{len(self.header)} columns, as in the header", f"It stands in line {at_line}."
                raise DataError(expected, f"{len(cells)}", file=self.file, row=at_row, hint=hint)

    def _blame_cell(self, lines: list[str], row: int, line: int) -> None:
        """Names the first cell that is not what its column holds."""
        for at_row, at_line, cells in _numbered_rows(lines, row, line, self.file):
            for name in self.used:
                text = cells[self.header.index(name)]
                parse = _flag if name in self.flags else float
                try:
                    _ = 0.0 if name == self.episode else parse(text)
                except ValueError:
                    expected = "true or false (1 or 0)" if name in self.flags else "a number"
                    found = repr(text[:40]) if text.strip() else "an empty cell"
                    hint = f"It stands in line {at_line}."
                    raise DataError(expected, found, file=self.file, field=name, row=at_row, hint=hint) from None


def _numbered_rows(lines: list[str], row: int, line: int, file: str) -> Iterator[tuple[int, int, list[str]]]:
    """Row, line and cells of each line that is not blank."""
    for offset, text in enumerate(lines):
        if not text.isspace():
            yield row, line + offset, _cells(text, file)
            row += 1


def _cells(line: str, file: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n")]), [])
    except csv.Error as error:
        raise DataError("cells separated by commas", one_line(error), file=file) from error


def _flag(text: str) -> float:
    word = text.strip().lower()
    return FLAG_WORDS[word] if word in FLAG_WORDS else float(word)


def _count_lines(path: Path) -> int:
    """An upper bound on the number of lines, for progress and for setting memory aside."""
    newlines = returns = 0
    with library_call(str(path), TEXT), path.open("rb") as stream:
        while block := stream.read(2**20):
            newlines += block.count(b"\n")
            returns += block.count(b"\r")
    # a lone return ends a line too, so a file that mixes both has at most as many lines as it has of them together
    return 1 + (newlines if returns in (0, newlines) else newlines + returns)


def _check_header(header: list[str], file: str) -> None:
    expected, hint = "a header line with the columns' names", "Add a first line such as x,y,u,r."
    if not any(cell.strip() for cell in header):
        raise DataError(expected, "a blank line", file=file, hint=hint)
    if all(_is_number(cell) for cell in header):
        raise DataError(expected, "numbers only", file=file, hint=hint)
    for mark, word in DELIMITERS.items():
        if len(header) < 3 and ",".join(header).count(mark) >= 2:  # no log has fewer than three columns
            hint = f"pandas.read_csv({file!r}, sep={mark!r}).to_csv('log.csv', index=False) writes it with commas."
            raise DataError("cells separated by commas", f"a header line with {word}", file=file, hint=hint)


def _mapped(header: list[str], columns: ColumnMap | None, file: str) -> ColumnMap:
    """The map that was given or recognised, checked against the header."""
    try:
        columns = ColumnMap.recognise(header, file=file) if columns is None else columns
        columns.check_against(header, file=file)
    except DataError as error:
        numbers = sum(_is_number(cell) for cell in header)
        missing = 2 * numbers >= len(header)
        raise error.hinted("The first line holds numbers: is the header line missing?" if missing else "") from None
    return columns


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _guessed_actions(values: np.ndarray, rows: _RowParser) -> tuple[np.ndarray, Note | None]:
    """Actions written as whole numbers become indices; where a few of many are not, somebody should know."""
    if not any(text.isdecimal() for text in rows.first_actions):
        return values, None
    odd = np.flatnonzero((values < 0) | (values >= 2**31) | (values != np.floor(values)))
    if not odd.size and rows.first_actions[0].isdecimal():
        text = "Actions are whole numbers: read as one of several; --actions continuous (discrete=False) reads numbers."
        return values.astype(np.int64), Note("decision", text)
    if not 0 < odd.size < len(values) / 2:
        return values, None
    row = int(odd[0])
    text = f"Actions are whole numbers from 0 but for {counted(odd.size, 'row')}, first row {row} with "
    text += f"{values[row, 0]:g} (line {rows.line_of(row)}): read as numbers. With --actions discrete (discrete=True) "
    return values, Note("decision", text + "they are one of several, and such a row is refused.")


def _hints(columns: ColumnMap) -> dict[str, str]:
    """Which columns a field was made of, for a complaint that knows the field only."""
    return {field: f"({field}: {', '.join(names)}; row 0 follows the header.)" for field, names in columns.by_field()}
