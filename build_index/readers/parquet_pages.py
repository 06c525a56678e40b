"""The sizes of the pages in a parquet file, which decide how much of it pyarrow holds at once.

pyarrow holds a page of each column, packed and unpacked, and a dictionary twice, but says nothing
of pages. They stand one after another, each behind a header in Thrift's compact protocol
(https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift, `PageHeader`).
"""

from __future__ import annotations

from typing import Any, BinaryIO

_HEADER_BYTES = 1 << 13  # read at once; statistics may make a header longer
_MAX_HEADER_BYTES = 1 << 24
_DICTIONARY_PAGE = 2
# Types of fields in the compact protocol.
_STOP = 0
_TRUE = 1
_FALSE = 2
_BYTE = 3
_INTEGERS = (4, 5, 6)  # of 16, 32 and 64 bits: all of variable length
_DOUBLE = 7
_BINARY = 8
_LIST = 9
_SET = 10
_STRUCT = 12


def largest_pages(file: BinaryIO, chunk: Any) -> int:
    """Return the uncompressed bytes of the largest page and the dictionary of a column's chunk.

    Only the headers of the pages are read. Where they cannot be read, the result is the size of the
    whole chunk.

    Args:
        file: the parquet file.
        chunk: a `pyarrow.parquet.ColumnChunkMetaData`.
    """
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, chunk.dictionary_page_offset)
    end = start + chunk.total_compressed_size
    largest = {False: 0, True: 0}  # by whether it is a dictionary
    try:
        while start < end:
            header, size = _page_header(file, start)
            is_dictionary = header[1] == _DICTIONARY_PAGE
            largest[is_dictionary] = max(largest[is_dictionary], header[2])
            if header[3] < 0:
                raise ValueError("a page of a negative size")
            start += size + header[3]
    except (IndexError, KeyError, ValueError, RecursionError):
        return int(chunk.total_uncompressed_size)
    return largest[False] + largest[True]


def _page_header(file: BinaryIO, start: int) -> tuple[dict[int, int], int]:
    """Return the integers of a page header by their ids, and its length in bytes.

    Id 1 is the type; 2 and 3 are the uncompressed and the compressed size.
    """
    size = _HEADER_BYTES
    while True:
        file.seek(start)
        data = file.read(size)
        try:
            return _struct(data, 0)
        except IndexError:
            if len(data) < size or size >= _MAX_HEADER_BYTES:
                raise
        size *= 8


def _struct(data: bytes, place: int) -> tuple[dict[int, int], int]:
    """Return the integers of a struct by the ids of their fields, and where it ends."""
    numbers: dict[int, int] = {}
    name = 0
    while (head := data[place]) != _STOP:
        place += 1
        kind = head & 15
        if head >> 4:
            name += head >> 4
        else:
            name, place = _integer(data, place)
        if kind in _INTEGERS:
            numbers[name], place = _integer(data, place)
        else:
            place = _behind(data, place, kind)
    return numbers, place + 1


def _behind(data: bytes, place: int, kind: int) -> int:
    """Return where a field's value ends."""
    if kind in (_TRUE, _FALSE):
        return place
    if kind == _BYTE:
        return place + 1
    if kind in _INTEGERS:
        return _integer(data, place)[1]
    if kind == _DOUBLE:
        return place + 8
    if kind == _BINARY:
        length, place = _length(data, place)
        if place + length > len(data):
            raise IndexError("the header is longer")
        return place + length
    if kind in (_LIST, _SET):
        number = data[place] >> 4
        item_kind = data[place] & 15
        place += 1
        if number == 15:
            number, place = _length(data, place)
        for _ in range(number):
            place = place + 1 if item_kind in (_TRUE, _FALSE) else _behind(data, place, item_kind)
        return place
    if kind == _STRUCT:
        return _struct(data, place)[1]
    raise ValueError(f"no field of a page header has the type {kind}")


def _length(data: bytes, place: int) -> tuple[int, int]:
    """Return a number without a sign, and where it ends."""
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 127) << shift
        place += 1
        shift += 7
        if byte < 128:
            return number, place
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _integer(data: bytes, place: int) -> tuple[int, int]:
    """Return a number with a sign (zigzag), and where it ends."""
    number, place = _length(data, place)
    return (number >> 1) ^ -(number & 1), place
