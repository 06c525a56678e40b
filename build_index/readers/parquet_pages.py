"""The pages of a parquet file, each weighed before pyarrow takes memory for it.

pyarrow has no bound on memory. It holds whole pages, whose size their writer chose, and all that a few rows expand to;
dictionaries and repeated values make that far larger than the file. So it reads through a file that looks at the header
of each page first. What the footer declares is not believed, and must not contradict the pages.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from build_index.readers.page_header import (
    DATA_PAGE,
    DATA_PAGE_V2,
    DELTAS,
    DICTIONARY_PAGE,
    PLACES_IN_DICTIONARY,
    SHARED_PREFIXES,
    PageHeader,
    varint,
)
from build_index.size import size_text
from rest_store.errors import CorpusFormatError, MemoryBudgetError, describe

_HEADER_BYTES = 1 << 10  # looked at first; statistics can make a header larger
_LARGEST_HEADER_BYTES = 16 << 20  # the limit of pyarrow
_FOOTER_SHARE = 32  # a footer may have this share of the limit: pyarrow takes up to 60 times its size
_VALUE_BYTES = 16  # of a nested value: two levels, offset, validity, and what their buffers grow ahead


@dataclass(slots=True)
class _Chunk:
    """The column chunk of a row group, while it is read.

    Attributes:
        name: path of the column.
        codec: its compression, as pyarrow calls it.
        is_text: whether its values are byte arrays.
        nesting: lists around a value (its maximum repetition level).
        values: values not seen yet, of those that the footer declares.
        uncompressed: bytes not seen yet, of those that the footer declares.
        end: where it ends in the file.
        page_end: where the page being read ends.
        dictionary: header of its dictionary, and where that begins, until its values have been looked at.
        largest: size of the largest value of the dictionary, or a bound on it.
        batch: bound on what pyarrow makes of a batch of rows out of one page.
    """

    name: str
    codec: str
    is_text: bool
    nesting: int
    values: int
    uncompressed: int
    end: int
    page_end: int
    dictionary: tuple[PageHeader, int] | None = None
    largest: int = 0
    batch: int = 0


class PageFile(io.RawIOBase):
    """A parquet file for pyarrow that refuses the pages that do not fit into memory.

    A read ends where a page ends, so that pyarrow comes back for each page. For parquet files that are read with
    `pre_buffer=False` and a buffer, by one thread.

    Args:
        file: the file, unbuffered.
        where: its name in messages.
        limit: most bytes that pyarrow may hold, but for the slack of a growing buffer.

    Attributes:
        refusal: the error that a read has raised, which may not survive pyarrow; None so far.
        is_crowded: whether the refused page fits, but not beside the rows of a batch.
    """

    def __init__(self, file: BinaryIO, where: str, limit: int) -> None:
        import pyarrow

        self.refusal: Exception | None = None
        self.is_crowded = False
        self._file = file
        self._where = where
        self._limit = limit
        self._size = file_size(file)
        self._rows = 0
        self._baseline = pyarrow.total_allocated_bytes()
        self._group: Any = None
        self._leaves: list[tuple[int, int]] = []
        self._open: list[_Chunk] = []
        self._chunks: dict[int, _Chunk] | None = None  # by where their next read begins

    def weigh(self, table: Any, number: int, columns: Iterable[str], rows: int) -> None:
        """Weigh the pages from here on, which are those of a row group.

        Args:
            table: the `pyarrow.parquet.ParquetFile` that reads this file.
            number: the row group.
            columns: what is read of it.
            rows: rows of a batch.
        """
        schema = table.schema
        self.refusal = None
        self.is_crowded = False
        self._rows = rows
        self._group = table.metadata.row_group(number)
        self._leaves = [
            (index, schema.column(index).max_repetition_level)
            for index in range(len(schema.names))
            if any(f"{schema.column(index).path}.".startswith(f"{column}.") for column in columns)
        ]
        self._open = []
        self._chunks = {}

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place in the file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the place in the file."""
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes, and no further than the end of the page.

        Raises:
            MemoryBudgetError: the page, or the footer, does not fit.
            CorpusFormatError: its header is damaged, or contradicts the footer.
        """
        if self._chunks is None or size == 0:
            self._require_footer(size)
            return self._file.read(size)
        place = self._file.tell()
        try:
            chunk = self._chunk(place)
            if place == chunk.page_end:
                self._enter(chunk, place)
        except Exception as error:
            self.refusal = error
            raise
        data = self._file.read(min(size if size > 0 else self._size, chunk.page_end - place))
        place += len(data)
        if place < chunk.end:
            self._chunks[place] = chunk
        self._file.seek(place)
        return data

    def _require_footer(self, size: int) -> None:
        """Refuse a footer that is too large; pyarrow looks for it in the last 64 KiB, then reads it whole."""
        largest = max(self._limit // _FOOTER_SHARE, 1 << 16)
        if size > largest:
            expected = f"at most {size_text(largest)}, as --memory allows beside the shards (--memory, --shard-tokens)"
            self.refusal = MemoryBudgetError(
                describe(self._where, "the footer of the parquet file", size_text(size), expected)
            )
            raise self.refusal

    def _chunk(self, place: int) -> _Chunk:
        """Return the column chunk of which a read continues, or begins, here."""
        assert self._chunks is not None
        if self._group is not None:
            # Only now: `column()` of a damaged file ends the process, unless pyarrow itself has opened the column.
            self._open = [_column_chunk(self._group.column(index), nesting) for index, nesting in self._leaves]
            self._chunks = {chunk.page_end: chunk for chunk in self._open}
            self._group = None
        chunk = self._chunks.pop(place, None)
        if chunk is None:
            raise self._contradiction("a column chunk", f"read at byte {place}", "one place of its own in the footer")
        return chunk

    def _enter(self, chunk: _Chunk, place: int) -> None:
        """Weigh the page that begins here."""
        import pyarrow

        header = self._header(chunk, place)
        chunk.page_end = place + header.length + header.compressed
        if chunk.page_end > min(chunk.end, self._size):
            raise self._contradiction("the end of a page", f"byte {chunk.page_end}", f"at most {chunk.end}")
        chunk.uncompressed -= header.uncompressed
        chunk.values -= header.values if header.kind in (DATA_PAGE, DATA_PAGE_V2) else 0
        for what, left in (("size", chunk.uncompressed), ("number of values", chunk.values)):
            if left < 0:
                what = f"the {what} of the pages of '{chunk.name}'"
                raise self._contradiction(what, "more than the footer says", "no more")
        # The page as it is read, and either our copy of it or what is decompressed.
        decompressed = 0 if chunk.codec == "UNCOMPRESSED" else header.uncompressed
        page = header.compressed + max(header.compressed, decompressed)
        page += 8 * header.values if header.encoding in DELTAS else 0
        if page + header.uncompressed > self._limit:
            raise self._refused(chunk, page + header.uncompressed)
        chunk.batch = 0
        if header.kind == DICTIONARY_PAGE:
            chunk.dictionary = header, place
            chunk.largest = header.uncompressed
            page += header.uncompressed + _VALUE_BYTES * header.values
        page += pyarrow.total_allocated_bytes() - self._baseline + sum(other.batch for other in self._open)
        if header.kind in (DATA_PAGE, DATA_PAGE_V2):
            chunk.batch = self._batch(chunk, header, place, self._limit - page)
            self._file.seek(place)
        if page + chunk.batch > self._limit:
            self.is_crowded = True
            raise self._refused(chunk, page + chunk.batch)

    def _batch(self, chunk: _Chunk, header: PageHeader, place: int, limit: int) -> int:
        """Return a bound on what the rows of a batch take out of a page; exact where a simple one is above `limit`."""

        def bound(values: int) -> int:
            content = header.uncompressed  # also a bound on the shared prefix of values
            if header.encoding in PLACES_IN_DICTIONARY:
                content = values * chunk.largest
            elif header.encoding == SHARED_PREFIXES:
                content *= max(values, 1)
            return content + values * _VALUE_BYTES * (chunk.nesting > 0)

        values = header.values if chunk.nesting else min(self._rows, header.values)
        if bound(values) <= limit:
            return bound(values)
        if header.encoding in PLACES_IN_DICTIONARY and chunk.is_text and chunk.dictionary is not None:
            content = self._content(chunk, *chunk.dictionary)
            chunk.largest = chunk.largest if content is None else _largest_value(content)
            chunk.dictionary = None
        levels = self._levels(chunk, header, place) if chunk.nesting else None
        if levels is not None:
            values = min(values, self._rows * longest_row(levels, chunk.nesting.bit_length(), header.values))
        return bound(values)

    def _levels(self, chunk: _Chunk, header: PageHeader, place: int) -> bytes | None:
        """Return the repetition levels of a page; None: they cannot be had."""
        if header.repetition is None:
            return None
        if header.repetition >= 0:
            self._file.seek(place + header.length)
            return self._file.read(min(header.repetition, header.compressed))
        content = self._content(chunk, header, place)
        return None if content is None else content[4 : 4 + int.from_bytes(content[:4], "little")]

    def _content(self, chunk: _Chunk, header: PageHeader, place: int) -> bytes | None:
        """Return a page, decompressed; None: it cannot be."""
        import pyarrow

        self._file.seek(place + header.length)
        data = self._file.read(header.compressed)
        if chunk.codec == "UNCOMPRESSED":
            return data
        name = "lz4_raw" if chunk.codec == "LZ4" else chunk.codec.lower()
        try:
            content: bytes = pyarrow.Codec(name).decompress(data, header.uncompressed, asbytes=True)
        except (OSError, ValueError, pyarrow.ArrowException):
            return None
        return content

    def _header(self, chunk: _Chunk, place: int) -> PageHeader:
        size = _HEADER_BYTES
        while True:
            self._file.seek(place)
            data = self._file.read(min(size, chunk.end - place))
            self._file.seek(place)
            try:
                return PageHeader.parse(data)
            except (IndexError, ValueError) as error:
                if isinstance(error, IndexError) and len(data) == size and size < _LARGEST_HEADER_BYTES:
                    size *= 8
                    continue
                raise self._contradiction("the header of a page", "damaged", "intact") from error

    def _contradiction(self, what: str, found: str, expected: str) -> CorpusFormatError:
        return CorpusFormatError(describe(self._where, what, found, expected))

    def _refused(self, chunk: _Chunk, needed: int) -> MemoryBudgetError:
        expected = f"at most {size_text(self._limit)}, as --memory allows beside the shards (--memory, --shard-tokens)"
        what = f"the memory for a page of '{chunk.name}'"
        return MemoryBudgetError(describe(self._where, what, size_text(needed), expected))


def file_size(file: BinaryIO) -> int:
    """Return the size of a file in bytes, and leave its place at the beginning."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def longest_row(levels: bytes, width: int, values: int) -> int:
    """Return the most values of one row, of a page's repetition levels (0: a row begins).

    Args:
        levels: runs and bit-packed groups (parquet's RLE encoding).
        width: bits of a level.
        values: levels of the page; missing ones count to the last row.
    """
    longest = current = place = seen = 0
    while seen < values and place < len(levels):
        head, place = varint(levels, place)
        count = min((head >> 1) * (8 if head & 1 else 1), values - seen)
        if head & 1:
            packed = levels[place : place + (head >> 1) * width]
            place += (head >> 1) * width
            bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")[: count * width]
            starts = np.flatnonzero(~bits[: len(bits) // width * width].reshape(-1, width).any(axis=1))
            if len(starts):
                longest = max(longest, current + int(starts[0]), int(np.diff(starts).max(initial=0)))
                current = -int(starts[-1])
            current += count
        else:
            size = (width + 7) // 8
            is_start = not any(levels[place : place + size])
            place += size
            longest = max(longest, current if is_start and count else 0)
            current = min(count, 1) or current if is_start else current + count
        seen += count
    return max(longest, current + values - seen)


def _largest_value(dictionary: bytes) -> int:
    """Return the size of the largest value of a dictionary of byte arrays."""
    largest = place = 0
    while place < len(dictionary):
        size = int.from_bytes(dictionary[place : place + 4], "little")
        largest = max(largest, size)
        place += 4 + size
    return min(largest, len(dictionary))


def _column_chunk(meta: Any, nesting: int) -> _Chunk:
    """Return the column chunk of a `pyarrow.parquet.ColumnChunkMetaData`."""
    start = meta.data_page_offset
    if meta.has_dictionary_page and 0 < meta.dictionary_page_offset < start:
        start = meta.dictionary_page_offset
    return _Chunk(
        name=meta.path_in_schema,
        codec=meta.compression,
        is_text=meta.physical_type == "BYTE_ARRAY",
        nesting=nesting,
        values=meta.num_values,
        uncompressed=meta.total_uncompressed_size,
        end=start + meta.total_compressed_size,
        page_end=start,
    )
