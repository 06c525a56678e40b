"""The header of a parquet page: what pyarrow believes of the page before it takes memory for it.

Written in the compact protocol of Thrift. Where the protocol leaves room (fields twice, of another type, numbers that
overflow), this is read as by Thrift's C++ library, so that no header tells us less than it tells pyarrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
_DETAILS = {DATA_PAGE: 5, DICTIONARY_PAGE: 7, DATA_PAGE_V2: 8}  # the field with the rest of the header
_VALUES_ENCODING = {DATA_PAGE: 2, DATA_PAGE_V2: 4}
PLACES_IN_DICTIONARY, DELTAS, SHARED_PREFIXES = (2, 8), (5, 6, 7), 7  # encodings of values
_RLE = 3
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DEEPEST = 16  # a page header needs 3


@dataclass(frozen=True, slots=True)
class PageHeader:
    """What a page declares; sizes in bytes.

    Attributes:
        kind: `DATA_PAGE`, `DICTIONARY_PAGE`, `DATA_PAGE_V2`, or a kind that is skipped.
        length: of the header itself.
        compressed: of the page in the file, without the header.
        uncompressed: of the page in memory.
        values: levels of a data page, or entries of a dictionary.
        encoding: of the values of a data page; -1: unknown.
        repetition: of the repetition levels, which stand first in the page: in a page of version 2 always as they are;
            in one of version 1 -1, since the page begins with their length. None: they are absent or of a kind that is
            no longer written.
    """

    kind: int
    length: int
    compressed: int
    uncompressed: int
    values: int
    encoding: int
    repetition: int | None

    @classmethod
    def parse(cls, data: bytes) -> PageHeader:
        """Parse the header at the beginning of `data`.

        Raises:
            IndexError: `data` ends within the header.
            ValueError: it is not a page header.
        """
        fields, length = _struct(data, 0, 0)
        kind, uncompressed, compressed = (_number(fields, number) for number in (1, 2, 3))
        details = fields.get(_DETAILS.get(kind, 0))
        details = details if isinstance(details, dict) else {}
        values = _number(details, 1, 0)
        repetition = None
        if kind == DATA_PAGE_V2:
            repetition = _number(details, 6, 0)
        elif kind == DATA_PAGE and details.get(4) == _RLE:
            repetition = -1
        if min(uncompressed, compressed, values) < 0:
            raise ValueError("a page header with a negative size")
        encoding = _number(details, _VALUES_ENCODING.get(kind, 0), -1)
        return cls(kind, length, compressed, uncompressed, values, encoding, repetition)


def _number(fields: dict[int, Any], number: int, default: int | None = None) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError(f"a page header without field {number}")
    return value


def varint(data: bytes, place: int) -> tuple[int, int]:
    """Return an unsigned number of seven bits a byte, and the place after it.

    Raises:
        IndexError: `data` ends within it.
        ValueError: it has more than ten bytes.
    """
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number of more than ten bytes")


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (value >> (bits - 1) << bits)


def _integer(data: bytes, place: int) -> tuple[int, int]:
    """Return a number of 32 bits (zigzag), and the place after it."""
    value, place = varint(data, place)
    value &= 0xFFFF_FFFF
    return _signed(value >> 1 ^ -(value & 1), 32), place


def _struct(data: bytes, place: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return the 32-bit integers and structures of a structure by field, and the place after it."""
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[place]
        place += 1
        kind = head & 0x0F
        if kind == 0:
            return fields, place
        if head >> 4:
            number = _signed(number + (head >> 4), 16)
        else:
            number, place = _integer(data, place)
            number = _signed(number, 16)
        if kind == _I32:
            fields[number], place = _integer(data, place)
        elif kind == _STRUCT:
            _require_shallow(depth)
            fields[number], place = _struct(data, place, depth + 1)
        elif kind not in (_TRUE, _FALSE):  # these stand in the head
            place = _after(data, place, kind, depth)


def _after(data: bytes, place: int, kind: int, depth: int) -> int:
    """Return the place after a value that is not needed."""
    _require_shallow(depth)
    if kind in (_TRUE, _FALSE, _BYTE):
        return place + 1
    if kind in (_I16, _I32, _I64):
        return varint(data, place)[1]
    if kind == _DOUBLE:
        return place + 8
    if kind == _BINARY:
        size, place = varint(data, place)
        return place + (size & 0xFFFF_FFFF)
    if kind == _STRUCT:
        return _struct(data, place, depth + 1)[1]
    if kind in (_LIST, _SET):
        size, kinds = data[place] >> 4, [data[place] & 0x0F]
        place += 1
        if size == 15:
            size, place = varint(data, place)
    elif kind == _MAP:
        size, place = varint(data, place)
        kinds = [data[place] >> 4, data[place] & 0x0F] if size else []
        place += bool(size)
    else:
        raise ValueError(f"a value of the unknown kind {kind}")
    if size > len(data):
        raise IndexError
    for _ in range(size):
        for element in kinds:
            place = _after(data, place, element, depth + 1)
    return place


def _require_shallow(depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError("a page header nested too deeply")
