"""CSV tables: a header line with the columns' names, then one line per row of the log, separated by commas."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bats.arrays import Progress
from bats.data.episodes import Note, plural
from bats.data.formats.columns import ColumnMap
from bats.data.formats.raw_log import RawLog
from bats.data.formats.untrusted import check_file, check_fits, library_call, one_line
from bats.errors import DataError

CHUNK_LINES = 50_000
FLAG_FIELDS = ("terminations", "timeouts")
FLAGS = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0}
DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
"""in use instead of commas elsewhere; recognised to give a hint"""
TEXT = "a text file in UTF-8"


def read_csv(path: Path, columns: ColumnMap | None, progress: Progress) -> RawLog:
    """Reads the mapped columns as doubles. Flags may be 0 and 1 or true and false; an episode id may be any text."""
    check_file(path, "a CSV file")
    # read twice: counting lines is cheap, and growing arrays would take twice their memory
    max_rows = _max_lines(path) - 1
    with library_call(TEXT):
        text = path.open(encoding="utf-8-sig")
    with text:
        with library_call(TEXT):
            first_line = text.readline()
        header = _cells(first_line)
        columns = _checked_columns(header, columns, path)
        parser = _RowParser(header, columns)
        check_fits("observations", max_rows * len(parser.used) * 8)
        fields = {field: np.empty((max_rows, len(names))) for field, names in columns.by_field()}
        while True:
            with library_call(TEXT):
                lines = list(islice(text, CHUNK_LINES))
            if not lines:
                break
            first_row, table = parser.row, parser.parse(lines)
            for field, names in columns.by_field():
                fields[field][first_row : parser.row] = table[:, [parser.used.index(name) for name in names]]
            progress(f"reading {path.name}", parser.row, max_rows)
    if not parser.row:
        raise DataError("rows below the header line", "none")
    progress(f"reading {path.name}", parser.row, parser.row)
    fields = {field: values[: parser.row] for field, values in fields.items()}
    fields["actions"], actions_note = _guess_actions(fields["actions"], parser)
    return RawLog(
        fields,
        unused=tuple(name for name in header if name not in parser.used),
        actions_note=actions_note,
        observation_names=columns.observations,
        action_names=columns.actions,
        field_hints=columns.hints(),
        line_of=parser.line_of,
    )


def _max_lines(path: Path) -> int:
    """An upper bound on the number of lines, so that memory can be allocated once."""
    newlines = returns = 0
    with library_call(TEXT), path.open("rb") as stream:
        while block := stream.read(2**20):
            newlines += block.count(b"\n")
            returns += block.count(b"\r")
    # a lone return ends a line too; where both occur and are not pairs, each may end a line
    return 1 + (newlines if returns in (0, newlines) else newlines + returns)


def _checked_columns(header: list[str], columns: ColumnMap | None, path: Path) -> ColumnMap:
    """The given or recognised map, checked against the header line."""
    numbers = sum(_is_number(cell) for cell in header)
    if not any(cell.strip() for cell in header) or numbers == len(header):
        found = "numbers only" if numbers else "a blank line"
        hint = "Add a first line such as x,y,u,r."
        raise DataError("a header line with the columns' names", found, hint=hint)
    for mark, word in DELIMITERS.items():
        # a log has at least three columns, so two other marks and hardly a comma are no accident
        if len(header) < 3 and ",".join(header).count(mark) >= 2:
            hint = f"pandas.read_csv({str(path)!r}, sep={mark!r}).to_csv('log.csv', index=False) writes it with commas."
            raise DataError("cells separated by commas", f"a header line with {word}", hint=hint)
    try:
        columns = ColumnMap.recognise(header) if columns is None else columns
        columns.check_against(header)
    except DataError as error:
        no_header = 2 * numbers >= len(header)
        raise error.hinted("The first line holds numbers: is the header line missing?" if no_header else "") from None
    return columns


class _RowParser:
    """Turns lines into tables of doubles, one column per name in `used`."""

    def __init__(self, header: Sequence[str], columns: ColumnMap) -> None:
        self.row = 0
        """rows parsed so far"""
        self.used = columns.used()
        self.first_actions: list[str] = []
        """the first two actions as they are written, if an action is a single number"""
        self._width = len(header)
        self._index = {name: header.index(name) for name in self.used}
        self._action = columns.actions[0] if len(columns.actions) == 1 else None
        self._blank_before: list[int] = []
        """for each blank line, the row that follows it"""
        self._episode_codes: dict[str, float] = {}
        self._parse: dict[str, Callable[[str], float]] = dict.fromkeys(self.used, float)
        for field, names in columns.by_field():
            if field in FLAG_FIELDS:
                self._parse |= dict.fromkeys(names, _parse_flag)
            elif field == "episode":
                self._parse |= dict.fromkeys(names, self._episode_code)

    def line_of(self, row: int) -> int:
        """The line that holds a row; the header is line 1."""
        return 2 + row + bisect_right(self._blank_before, row)

    def parse(self, lines: list[str]) -> np.ndarray:
        """The rows in the next lines of the file; blank lines are skipped."""
        blank = [index for index, line in enumerate(lines) if line.isspace()]
        self._blank_before += [self.row + index - earlier for earlier, index in enumerate(blank)]
        lines = [line for line in lines if not line.isspace()]
        if not lines:
            return np.empty((0, len(self.used)))
        # NumPy looks at the used columns only, so a line with too many cells has to be noticed here; to count commas
        # is enough, unless a cell is quoted
        if any(line.count(",") != self._width - 1 or '"' in line for line in lines):
            self._check_cells(lines, values=False)
        if self.row == 0 and self._action is not None:
            self.first_actions = [_cells(line)[self._index[self._action]].strip() for line in lines[:2]]
        form: dict[str, Any] = {"delimiter": ",", "quotechar": '"', "comments": None, "ndmin": 2}
        form["usecols"] = [*self._index.values()]
        # NumPy parses numbers itself, which is faster than calling `float`
        form["converters"] = {self._index[name]: parse for name, parse in self._parse.items() if parse is not float}
        try:
            table = np.loadtxt(lines, **form)
        except ValueError as error:
            self._check_cells(lines, values=True)
            raise DataError("numbers", one_line(error)) from error
        if len(table) != len(lines):
            found = f"a quoted cell that runs over several, after line {self.line_of(self.row) - 1}"
            raise DataError("every row on a line of its own", found)
        self.row += len(table)
        return table

    def _episode_code(self, text: str) -> float:
        return self._episode_codes.setdefault(text.strip(), float(len(self._episode_codes)))

    def _check_cells(self, lines: list[str], *, values: bool) -> None:
        """Raises an error for the first line of another width or, if `values`, the first cell that cannot be parsed."""
        for row, line in enumerate(lines, self.row):
            cells, hint = _cells(line), f"It is in line {self.line_of(row)}."
            if len(cells) != self._width:
                raise DataError(f"{self._width} columns, as in the header", f"{len(cells)}", row=row, hint=hint)
            for name in self.used if values else ():
                text, parse = cells[self._index[name]], self._parse[name]
                if not _is_number(text, parse):
                    expected = "true or false (1 or 0)" if parse is _parse_flag else "a number"
                    found = repr(text[:40]) if text.strip() else "an empty cell"
                    raise DataError(expected, found, field=name, row=row, hint=hint)


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r\n")]), [])
    except csv.Error as error:
        raise DataError("cells separated by commas", one_line(error)) from error


def _parse_flag(text: str) -> float:
    if text in FLAGS:  # nearly always, so it is worth a line
        return FLAGS[text]
    word = text.strip().lower()
    return FLAGS[word] if word in FLAGS else float(word)


def _is_number(text: str, parse: Callable[[str], float] = float) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _guess_actions(values: np.ndarray, parser: _RowParser) -> tuple[np.ndarray, Note | None]:
    """Actions written as whole numbers become indices; a note says so, or which few of many are not whole."""
    # two rows are looked at, so that a single odd one at the top does not hide that all others are indices
    if not any(text.isdecimal() for text in parser.first_actions):
        return values, None
    wrong = np.flatnonzero((values < 0) | (values >= 2**31) | (values != np.floor(values)))
    if not wrong.size and parser.first_actions[0].isdecimal():
        text = "Actions are whole numbers: read as one of several; --actions continuous (discrete=False) reads numbers."
        return values.astype(np.int64), Note("decision", text)
    if not 0 < wrong.size < len(values) / 2:
        return values, None
    row = int(wrong[0])
    first = f"first row {row} with {values[row, 0]:g} (line {parser.line_of(row)})"
    text = f"Actions are whole numbers from 0 but for {plural(wrong.size, 'row')}, {first}: read as numbers. "
    text += "With --actions discrete (discrete=True) they are one of several, and such a row is refused."
    return values, Note("decision", text)
