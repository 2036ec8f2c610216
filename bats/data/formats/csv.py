"""CSV tables: a header line with the columns' names, then one line per row of the log, separated by commas."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from bats.arrays import Progress
from bats.data.dataset import require
from bats.data.episodes import Note
from bats.data.formats.fields import ColumnMap, RawLog
from bats.data.formats.untrusted import ID_BYTES, MemoryBudget, check_file, guarded, library_call, one_line
from bats.errors import DataError

BLOCK_CHARACTERS = 2**22
"""parsed at a time, and finished to the end of a line"""
CELL_BYTES = 40
"""memory for each letter that is parsed at a time: cells and lines may be very short"""
LONGEST_ID = 16
"""letters of an episode id that is kept as it is"""
FLAGS = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0}
DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
"""in use instead of commas elsewhere; recognised to give a hint"""
TEXT = "a text file in UTF-8"


def read_csv(path: Path, columns: ColumnMap | None, budget: MemoryBudget, progress: Progress) -> RawLog:
    """Reads the mapped columns as doubles. Flags may be 0 and 1 or true and false; an episode id may be any text."""
    file_bytes = check_file(path, "a CSV file")
    # read twice: counting lines is cheap, and growing arrays would take twice their memory
    max_lines, longest = _measure_lines(path)
    max_rows = max_lines - 1
    block = max(longest, min(file_bytes, BLOCK_CHARACTERS))
    budget.require("lines", block, CELL_BYTES * block)
    with guarded(TEXT, path.open, encoding="utf-8-sig") as text:
        header = _cells(guarded(TEXT, text.readline))
        columns = _checked_columns(header, columns, path)
        parser = _RowParser(header, columns)
        for field, names in columns.by_field():
            ids = ID_BYTES * max_rows if field == "episode" else 0
            budget.admit(field, (max_rows, len(names)), np.dtype(np.float64), working=ids)
        fields = {field: np.empty((max_rows, len(names))) for field, names in columns.by_field()}
        positions = {name: position for position, name in enumerate(parser.used)}
        while lines := guarded(TEXT, text.readlines, BLOCK_CHARACTERS):
            first_row, table = parser.row, parser.parse(lines)
            for field, names in columns.by_field():
                fields[field][first_row : parser.row] = table[:, [positions[name] for name in names]]
            progress(f"reading {path.name}", parser.row, max_rows)
    require(parser.row, "rows below the header line", "none")
    progress(f"reading {path.name}", parser.row, parser.row)
    fields = {field: values[: parser.row] for field, values in fields.items()}
    fields["actions"], actions_note = _guess_actions(fields["actions"], parser)
    return replace(columns.raw_log(header, fields), actions_note=actions_note, line_of=parser.line_of)


def _measure_lines(path: Path) -> tuple[int, int]:
    """An upper bound on the number of lines, so that memory can be allocated once, and the bytes of the longest."""
    newlines = returns = longest = begun = 0
    with library_call(TEXT), path.open("rb") as stream:
        while block := stream.read(2**20):
            newlines += block.count(b"\n")
            returns += block.count(b"\r")
            letters = np.frombuffer(block, np.uint8)
            ends = np.flatnonzero((letters == ord("\n")) | (letters == ord("\r")))
            # `begun` is the length of a line that began in an earlier block
            lengths = np.diff(ends, prepend=-1 - begun, append=len(block))
            longest, begun = max(longest, int(lengths.max())), int(lengths[-1]) - 1
    # a lone return ends a line too; where both occur and are not pairs, each may end a line
    return 1 + (newlines if returns in (0, newlines) else newlines + returns), longest


def _checked_columns(header: list[str], columns: ColumnMap | None, path: Path) -> ColumnMap:
    """The given or recognised map, checked against the header line."""
    numbers = sum(_is_number(cell) for cell in header)
    if not any(cell.strip() for cell in header) or numbers == len(header):
        found, hint = "only numbers" if numbers else "a blank line", "Add a first line such as x,y,u,r."
        raise DataError("a header line with the columns' names", found, hint=hint)
    for mark, word in DELIMITERS.items():
        # a log has at least three columns, so two other marks and hardly a comma are no accident
        if len(header) < 3 and ",".join(header).count(mark) >= 2:
            hint = f"Convert it: pandas.read_csv({str(path)!r}, sep={mark!r}).to_csv('log.csv', index=False)."
            raise DataError("cells separated by commas", f"a header line separated by {word}", hint=hint)
    try:
        return (columns or ColumnMap.recognise(header)).checked(header)
    except DataError as error:
        no_header = 2 * numbers >= len(header)
        raise error.hinted("The first line has numbers; is the header line missing?" if no_header else "") from None


class _RowParser:
    """Turns lines into tables of doubles, one column per name in `used`."""

    def __init__(self, header: Sequence[str], columns: ColumnMap) -> None:
        self.row = 0
        """rows parsed so far"""
        self.used = columns.used()
        self.first_action = ""
        """as it is written, if an action is a single number"""
        places = {name: place for place, name in enumerate(header)}
        self._width, self._index = len(header), {name: places[name] for name in self.used}
        self._action = columns.actions[0] if len(columns.actions) == 1 else None
        self._blank_before: list[int] = []
        """for each blank line, the row that follows it"""
        codes: dict[str | bytes, float] = {}  # episode ids may be any text: they are numbered as they come
        number_id: Callable[[str], float] = partial(_number_id, codes)
        special = {columns.terminations: _parse_flag, columns.timeouts: _parse_flag, columns.episode: number_id}
        self._parse: dict[str, Callable[[str], float]] = {name: special.get(name, float) for name in self.used}
        # NumPy parses numbers itself, which is faster than calling `float`
        converters = {self._index[name]: parse for name, parse in self._parse.items() if parse is not float}
        self._form: dict[str, Any] = {"delimiter": ",", "quotechar": '"', "comments": None, "ndmin": 2}
        self._form |= {"usecols": [*self._index.values()], "converters": converters}

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
            self.first_action = _cells(lines[0])[self._index[self._action]].strip()
        try:
            table = np.loadtxt(lines, **self._form)
        except ValueError as error:
            self._check_cells(lines, values=True)
            raise DataError("numbers", one_line(error)) from error
        found = f"a quoted cell with a line break, after line {self.line_of(self.row) - 1}"
        require(len(table) == len(lines), "each row on one line", found)
        self.row += len(table)
        return table

    def _check_cells(self, lines: list[str], *, values: bool) -> None:
        """Raises an error for the first line of another width or, if `values`, the first cell that cannot be parsed."""
        for row, line in enumerate(lines, self.row):
            cells, hint = _cells(line), f"This row is in line {self.line_of(row)}."
            width = len(cells)
            require(width == self._width, f"{self._width} columns, as in the header", f"{width}", row=row, hint=hint)
            for name in self.used if values else ():
                text, parse = cells[self._index[name]], self._parse[name]
                if not _is_number(text, parse):
                    expected = "true or false (1 or 0)" if parse is _parse_flag else "a number"
                    found = repr(text[:40]) if text.strip() else "an empty cell"
                    raise DataError(expected, found, field=name, row=row, hint=hint)


def _cells(line: str) -> list[str]:
    return guarded("cells separated by commas", next, csv.reader([line.rstrip("\r\n")]), [])


def _number_id(codes: dict[str | bytes, float], text: str) -> float:
    name = text.strip()
    # long ids are known by their hashes: an id must not take more memory than is counted for it
    known_by = name if len(name) <= LONGEST_ID else sha256(name.encode()).digest()
    return codes.setdefault(known_by, float(len(codes)))


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
    """Actions written as integers become indices, and a note says so."""
    written_as_integer = bool(parser.first_action) and parser.first_action.isdecimal()
    if not written_as_integer or np.any((values < 0) | (values >= 2**31) | (values != np.floor(values))):
        return values, None
    text = "Actions are integers, so they are read as discrete action indices. "
    text += "Use --actions continuous (discrete=False) to read them as continuous."
    return values.astype(np.int64), Note("decision", text)
