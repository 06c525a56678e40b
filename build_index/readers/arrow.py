"""Arrow files and streams (IPC), a document a row: data sets of `datasets`, Feather of pandas.

A record batch is held at once, of all columns if the file is a stream: `datasets` writes batches of
at most 1,000 rows.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np

from build_index.documents import Document
from build_index.readers.files import open_file
from build_index.readers.parquet import HeldAtOnceError, pyarrow_errors
from build_index.readers.record_reader import KNOWN_FIELDS, RecordReader
from build_index.readers.tables import TableReader, columns_text, document_columns, rows_at_once
from rest_store.errors import CorpusFormatError, describe

_FILE_MAGIC = b"ARROW1"
_STREAM_MARK = b"\xff\xff\xff\xff"
_MAX_SCHEMA_BYTES = 1 << 24
_KIND = "Arrow file"


def is_arrow(head: bytes) -> bool:
    """Return whether a file begins as a file or a stream of Arrow does."""
    if head.startswith(_FILE_MAGIC):
        return True
    if not head.startswith(_STREAM_MARK) or len(head) < 8:
        return False
    # The length of the message with the schema is a multiple of eight bytes.
    (length,) = struct.unpack_from("<i", head, 4)
    return bool(0 < length < _MAX_SCHEMA_BYTES and length % 8 == 0)


def arrow_columns(file: BinaryIO, where: str, field: str | None) -> tuple[list[str], str]:
    """Return the columns of an Arrow file that may hold documents, and all columns as a text.

    Raises:
        CorpusFormatError: not an intact Arrow file.
    """
    with _opened(file, where) as (reader, _):
        return document_columns(reader.schema, field), columns_text(reader.schema)


def read_arrow(
    file: BinaryIO, where: str, records: RecordReader, max_bytes: int, row_files: Sequence[str] = ()
) -> Iterator[Document]:
    """Yield the documents of an Arrow file or stream.

    Rows that are not UTF-8 are skipped and counted.

    Args:
        file: its bytes.
        where: its name in messages.
        records: extracts the document of each row.
        max_bytes: bound on the bytes that pyarrow reads at once: a record batch.
        row_files: Arrow files with the numbers of the rows to read, in any order; none: all rows.

    Yields:
        Documents, with the file and the row as `origin`.

    Raises:
        CorpusFormatError: not an intact Arrow file, or the needed column is absent.
        CorpusError: not readable; or see `RecordReader.too_large`.
        HeldAtOnceError: a record batch is larger than `max_bytes`.
    """
    with _opened(file, where) as (table, _):
        columns = document_columns(table.schema, records.field)
        if not columns:
            expected = KNOWN_FIELDS if records.field is None else f"'{records.field}'"
            raise CorpusFormatError(
                describe(where, "the list of columns", "without a known one", expected)
            )
        places = [table.schema.get_field_index(name) for name in columns]
        reader = TableReader(table.schema, columns, records, where)
    chosen = _row_numbers(row_files) if row_files else None
    first = 0  # row of the batch
    with _opened(file, where, places, max_bytes) as (_, batches):
        for unchecked in batches:
            batch = _checked(unchecked, columns)
            numbers = np.arange(first, first + batch.num_rows)
            first += batch.num_rows
            if chosen is not None:
                is_chosen = np.isin(numbers, chosen, assume_unique=True)
                batch = batch.filter(_mask(is_chosen))
                numbers = numbers[is_chosen]
            size = rows_at_once(batch.nbytes, batch.num_rows)
            for start in range(0, batch.num_rows, size):
                yield from reader.documents(
                    batch.slice(start, size), numbers[start : start + size].tolist()
                )


@contextmanager
def _opened(
    file: BinaryIO, where: str, columns: list[int] | None = None, max_bytes: int | None = None
) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Yield the reader of pyarrow, which has the schema, and the record batches.

    Args:
        file: its bytes.
        where: its name in messages.
        columns: places of the columns to read; None: all.
        max_bytes: bound on the bytes read at once; None: no bound.
    """
    with pyarrow_errors(where, _KIND) as pyarrow:
        file.seek(0)
        is_stream = not file.read(len(_FILE_MAGIC)).startswith(_FILE_MAGIC)
        file.seek(0)
        bounded = _Bounded(file, where, max_bytes)
        source = pyarrow.PythonFile(bounded, "r")
        options = pyarrow.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
        try:
            if is_stream:
                stream = pyarrow.ipc.open_stream(source, options=options)
                yield stream, iter(stream)
            else:
                whole = pyarrow.ipc.open_file(source, options=options)
                yield whole, (whole.get_batch(number) for number in range(whole.num_record_batches))
        except OSError:
            if bounded.error is None:
                raise
            raise bounded.error from None  # instead of pyarrow's error around it


def _checked(batch: Any, columns: Sequence[str]) -> Any:
    """Return the columns of a record batch, after a check of all offsets.

    pyarrow would follow an offset to any address. Texts become bytes, so that each row is checked
    for UTF-8 later.
    """
    import pyarrow
    import pyarrow.types as types

    arrays = []
    for name in columns:
        array = batch.column(name)
        if types.is_string(array.type) or types.is_large_string(array.type):
            array = array.view(
                pyarrow.binary() if types.is_string(array.type) else pyarrow.large_binary()
            )
        array.validate(full=True)
        arrays.append(array)
    return pyarrow.RecordBatch.from_arrays(arrays, names=list(columns))


class _Bounded:
    """A file that pyarrow cannot close, with a bound on the bytes that it reads at once.

    Attributes:
        error: the error raised to pyarrow; None: no read exceeded the bound.
    """

    closed = False
    error: HeldAtOnceError | None = None

    def __init__(self, file: BinaryIO, where: str, max_bytes: int | None) -> None:
        self.seek = file.seek
        self.tell = file.tell
        self._file = file
        self._where = where
        self._max_bytes = max_bytes
        self._size = file.seek(0, io.SEEK_END)
        file.seek(0)

    def read(self, size: int = -1) -> bytes:
        if size > self._size - self._file.tell():
            return b""  # so that pyarrow says that the file is too short
        if self._max_bytes is not None and size > self._max_bytes:
            again = "smaller batches (writer_batch_size of datasets, max_chunksize of pyarrow)"
            self.error = HeldAtOnceError.for_size(
                self._where, "a record batch", size, self._max_bytes, again
            )
            raise self.error
        return self._file.read(size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing: nothing is written."""

    def close(self) -> None:
        self.closed = True


def _row_numbers(paths: Sequence[str]) -> Any:
    """Return the sorted numbers of the rows that belong to a data set: int64[n]."""
    arrays = [np.empty(0, np.int64)]
    for path in paths:
        with open_file(path) as file, _opened(file, path) as (_, batches):
            for batch in batches:
                column = batch.column(0).to_numpy(zero_copy_only=False)
                arrays.append(column.astype(np.int64))
    return np.unique(np.concatenate(arrays))


def _mask(is_chosen: Any) -> Any:
    import pyarrow

    return pyarrow.array(is_chosen)
