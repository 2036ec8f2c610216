"""The sizes that the pages of a Parquet file declare, read before Arrow reads the pages.

The footer of a file declares sizes too, but Arrow does not hold the pages to them: it unpacks a page to the size in the
page's own header, and reads a list to its end, and a page of a few bytes may hold billions of equal values. A page
header is a struct in Thrift's compact form: numbered fields, most of them numbers with seven bits in each byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

from bats.data.dataset import require
from bats.data.formats.untrusted import library_call
from bats.errors import DataError

INTACT = "an intact Parquet file"
MAX_HEADER = 2**24
"""bytes; Arrow reads no more of a page header either"""
MAX_DEPTH = 4
"""structs inside each other; page headers have three"""
TYPE, UNPACKED, STORED, COUNT = 1, 2, 3, 1
"""fields of a page header: kind of page, size unpacked and as stored; and in its description, the number of values"""
DESCRIPTIONS = {0: (5, 2), 3: (8, 4)}
"""for each kind of data page, the field that describes it and in there the field of its encoding"""
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


def read_page_sizes(stream: BinaryIO, start: int, length: int, values: int) -> PageSizes:
    """Follows the pages of a column chunk as Arrow does: until `values` have been seen, or the chunk ends."""
    sizes, offset = PageSizes(), start
    while sizes.values < values and offset < start + length:
        header, header_bytes = _read_header(stream, offset)
        count, encoding = 0, None
        if header.get(TYPE) in DESCRIPTIONS:
            description, encoding_field = DESCRIPTIONS[header[TYPE]]
            details = header.get(description, {})
            count, encoding = details.get(COUNT, -1), details.get(encoding_field)
        stored, unpacked = header.get(STORED, -1), header.get(UNPACKED, -1)
        require(min(count, stored, unpacked) >= 0, "pages with their sizes", f"a page of {stored} bytes at {offset}")
        sizes += PageSizes(count, unpacked, encoding == PREFIXES)
        offset += header_bytes + stored
    return sizes


def _read_header(stream: BinaryIO, offset: int) -> tuple[dict[int, Any], int]:
    """The fields of a page header, and its length."""
    size = 2**10  # nearly always enough
    while True:
        with library_call(INTACT):
            stream.seek(offset)
            content = stream.read(size)
        reader = _CompactReader(content)
        try:
            return reader.struct(), reader.position
        except (IndexError, ValueError) as error:
            if isinstance(error, ValueError) or len(content) < size or size >= MAX_HEADER:
                raise DataError(INTACT, f"a damaged page header at byte {offset}") from error
        size *= 2**7


class _CompactReader:
    """Reads a struct from bytes in Thrift's compact form; IndexError where they end too early."""

    def __init__(self, content: bytes) -> None:
        self.content, self.position = content, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        field = 0
        while head := self.byte():
            field = field + (head >> 4) if head >> 4 else self.number()
            fields[field] = self.value(head & 15, depth)
        return fields

    def value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):  # true and false are types of their own
            return kind == 1
        if kind in (4, 5, 6):
            return self.number()
        if kind == 12 and depth < MAX_DEPTH:
            return self.struct(depth + 1)
        if kind == 8:  # text or bytes, of which nothing is needed
            return self.skip(self.varint())
        if kind in (3, 7):
            return self.skip(1 if kind == 3 else 8)
        raise ValueError(f"type {kind}")  # page headers have no lists

    def number(self) -> int:
        code = self.varint()
        return code >> 1 ^ -(code & 1)

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

    def skip(self, count: int) -> None:
        self.position += count
        if self.position > len(self.content):
            raise IndexError
