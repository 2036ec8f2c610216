"""The sizes that the pages of a Parquet file declare, read before Arrow reads the pages.

The footer of a file declares sizes too, but Arrow does not hold the pages to them: it unpacks a page to the size in the
page's own header, and reads a list to its end, and a page of a few bytes may hold billions of equal values. Footer and
page headers are structs in Thrift's compact form: numbered fields, most of them numbers with seven bits in each byte.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from bats.data.dataset import require
from bats.data.formats.untrusted import library_call
from bats.errors import DataError

INTACT = "an intact Parquet file"
MAX_HEADER = 2**24
"""bytes; Arrow reads no more of a page header either"""
MAX_DEPTH = 16
"""values inside each other; footers have about eight"""

FLAGS, (BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT) = (1, 2), range(3, 13)
"""Thrift's types; true and false are two of them, and have a byte only in a list"""
BITS = {I16: 16, I32: 32, I64: 64}
Form: TypeAlias = int | list[Any] | dict[int, Any]
"""what is kept of a value: a number or bytes; of a list what is kept of each entry; of a struct some fields"""

NAME, CHILDREN, VALUES, DATA_START, DICTIONARY_START = 4, 5, 5, 9, 11
FOOTER: dict[int, Form] = {
    2: [{NAME: BINARY, CHILDREN: I32}],  # the columns and their parts, each before its own parts
    4: [{1: [{3: {VALUES: I64, DATA_START: I64, DICTIONARY_START: I64}}]}],  # groups of rows, and their columns
}
KIND, UNPACKED, STORED, COUNT = 1, 2, 3, 1
PAGE: dict[int, Form] = {KIND: I32, UNPACKED: I32, STORED: I32, 5: {COUNT: I32, 2: I32}, 8: {COUNT: I32, 4: I32}}
DATA_PAGES = {0: (5, 2), 3: (8, 4)}
"""for each kind of data page, the field that describes it, and in there the field of its encoding"""
PREFIXES = 7
"""the encoding that stores a text as the part it shares with the text before"""


@dataclass(frozen=True)
class PageSizes:
    """What the pages of a column declare in all."""

    values: int = 0
    unpacked: int = 0
    """bytes"""
    prefixes: bool = False
    """whether texts are stored by what they share, so that few bytes may stand for any number of long texts"""

    def __add__(self, other: PageSizes) -> PageSizes:
        values, unpacked = self.values + other.values, self.unpacked + other.unpacked
        return PageSizes(values, unpacked, self.prefixes or other.prefixes)


def column_sizes(path: Path, file_bytes: int, names: Collection[str]) -> dict[str, PageSizes]:
    """What the pages of some columns of a file declare.

    A column of lists is stored under its name, a dot, and names of parts; so may other columns be, and Arrow reads them
    along with it.
    """
    sizes = dict.fromkeys(names, PageSizes())
    with library_call(INTACT), path.open("rb") as stream:
        stream.seek(file_bytes - 8)
        footer_bytes = int.from_bytes(stream.read(4), "little")
        stream.seek(file_bytes - 8 - footer_bytes)
        content = stream.read(footer_bytes)
    try:
        footer = _CompactReader(content).struct(FOOTER)
    except (IndexError, ValueError) as error:
        raise DataError(INTACT, "a damaged footer") from error
    with path.open("rb") as stream:
        lengths = {len(name) for name in names}
        parts = [_prefixes(part, lengths) & sizes.keys() for part in _leaf_names(footer.get(2, []))]
        for group in footer.get(4, []):
            columns = group.get(1, [])
            require(len(columns) == len(parts), f"{len(parts)} columns in every group of rows", f"{len(columns)}")
            for used, column in zip(parts, columns, strict=True):
                size = _page_sizes(stream, column.get(3, {})) if used else PageSizes()
                for name in used:
                    sizes[name] += size
    return sizes


def _prefixes(name: str, lengths: set[int]) -> set[str]:
    """The parts of a name up to a dot that have one of these lengths, and perhaps the whole name."""
    return {name[:length] for length in lengths if name[length : length + 1] in (".", "") and length <= len(name)}


def _leaf_names(elements: list[dict[int, Any]]) -> Iterator[str]:
    """The full names of the columns that have pages, from the tree of all columns."""
    path: list[tuple[str, int]] = []
    """the elements above the current one, each with the number of its parts that are still to come"""
    for number, element in enumerate(elements):
        name, parts = element.get(NAME, b"").decode(errors="replace"), element.get(CHILDREN, 0)
        while path and path[-1][1] == 0:
            path.pop()
        if path:
            path[-1] = (path[-1][0], path[-1][1] - 1)
        if parts > 0:
            path.append((name if number else "", parts))  # the first is the table itself
            require(len(path) <= MAX_DEPTH, "columns", "columns of lists of lists, and so on")
        else:
            yield ".".join([*(above for above, _ in path[1:]), name])


def _page_sizes(stream: BinaryIO, column: dict[int, int]) -> PageSizes:
    """Follows the pages of a column until all of its values have been seen, as Arrow does."""
    values, offset, dictionary = column.get(VALUES, -1), column.get(DATA_START, -1), column.get(DICTIONARY_START, 0)
    require(
        min(values, offset) >= 0,
        "the number of values and the position of each column in the footer",
        f"{values} and {offset}",
    )
    sizes, offset = PageSizes(), min(offset, dictionary) if dictionary > 0 else offset
    while sizes.values < values:
        header, header_bytes = _read_header(stream, offset)
        count, encoding = 0, None
        if header.get(KIND) in DATA_PAGES:
            description, encoding_field = DATA_PAGES[header[KIND]]
            details = header.get(description, {})
            count, encoding = details.get(COUNT, -1), details.get(encoding_field)
        stored, unpacked = header.get(STORED, -1), header.get(UNPACKED, -1)
        require(min(count, stored, unpacked) >= 0, "pages with their sizes", f"a page of {stored} bytes at {offset}")
        sizes += PageSizes(count, unpacked, encoding == PREFIXES)
        offset += header_bytes + stored
    return sizes


def _read_header(stream: BinaryIO, offset: int) -> tuple[dict[int, Any], int]:
    """What is needed of a page header, and its length."""
    size = 2**10  # nearly always enough
    while True:
        with library_call(INTACT):
            stream.seek(offset)
            content = stream.read(size)
        reader = _CompactReader(content)
        try:
            return reader.struct(PAGE), reader.position
        except (IndexError, ValueError) as error:
            if isinstance(error, ValueError) or len(content) < size or size >= MAX_HEADER:
                raise DataError(INTACT, f"a damaged page header at byte {offset}") from error
        size *= 2**7


class _CompactReader:
    """Reads Thrift's compact form; ValueError if it is malformed, IndexError if it ends too early.

    Strict wherever Arrow might understand something else: Arrow drops the upper bits of a number that is too large.
    """

    def __init__(self, content: bytes) -> None:
        self.content, self.position = content, 0

    def struct(self, form: Form | None, depth: int = 0) -> dict[int, Any]:
        """The fields that `form` asks for. As in Thrift, a field of another type counts as missing."""
        wanted = form if isinstance(form, dict) else {}
        fields: dict[int, Any] = {}
        field = 0
        while head := self.byte():
            kind, step = head & 15, head >> 4
            field = field + step if step else self.number(I16)
            inner = wanted.get(field)
            inner = inner if inner is not None and _type(inner) == kind else None
            if field in fields and inner is not None:
                raise ValueError(f"field {field} twice")
            value = None if kind in FLAGS else self.value(kind, inner, depth)
            if inner is not None:
                fields[field] = value
        return fields

    def value(self, kind: int, form: Form | None, depth: int) -> Any:
        """A value of a type, with what `form` asks for."""
        if depth > MAX_DEPTH:
            raise ValueError("values nested too deeply")
        if kind in BITS:
            return self.number(kind)
        if kind == BINARY:
            return self.bytes(self.size())
        if kind == STRUCT:
            return self.struct(form, depth + 1)
        if kind in (LIST, SET):
            head = self.byte()
            count, entry = self.size() if head >> 4 == 15 else head >> 4, head & 15
            inner = form[0] if isinstance(form, list) else None
            if inner is not None and _type(inner) != entry:
                raise ValueError(f"a list of type {entry}")
            entries = []
            for _ in range(count):
                value = self.value(entry, inner, depth + 1)
                if inner is not None:
                    entries.append(value)
            return entries
        if kind == MAP:
            count = self.size()
            kinds = self.byte() if count else 0
            for _ in range(count):
                self.value(kinds >> 4, None, depth + 1)
                self.value(kinds & 15, None, depth + 1)
            return None
        if kind in (*FLAGS, BYTE, DOUBLE):
            return self.bytes(8 if kind == DOUBLE else 1)
        raise ValueError(f"type {kind}")

    def number(self, kind: int) -> int:
        code = self.varint()
        if code >= 1 << BITS[kind]:
            raise ValueError("a number that is too large for its type")
        return code >> 1 ^ -(code & 1)

    def size(self) -> int:
        count = self.varint()
        if count >= 2**31:
            raise ValueError("a size that is too large")
        return count

    def varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ValueError("a number of more than 64 bits")

    def byte(self) -> int:
        self.position += 1
        return self.content[self.position - 1]

    def bytes(self, count: int) -> bytes:
        self.position += count
        if self.position > len(self.content):
            raise IndexError
        return self.content[self.position - count : self.position]


def _type(form: Form) -> int:
    return form if isinstance(form, int) else LIST if isinstance(form, list) else STRUCT
