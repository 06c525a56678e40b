"""Parquet files, such as those of The Stack: a document a row, only the columns needed, a few rows at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from build_index.documents import Document
from build_index.packages import import_package
from build_index.readers.compression import compression_of, open_file, open_stream
from build_index.readers.records import (
    CONVERSATION_FIELDS,
    KNOWN_FIELDS,
    LANGUAGE_FIELDS,
    PATH_FIELDS,
    TEXT_FIELDS,
    RecordReader,
)
from rest_store.errors import CorpusError, CorpusFormatError, describe

PARQUET_MAGIC = b"PAR1"
_ROWS = 64  # held at once
_PAGE_BUFFER_BYTES = 1 << 20  # read ahead in each column; without it pyarrow holds a whole row group
_COPY_BYTES = 1 << 20


def read_parquet(path: Path, where: str, records: RecordReader, count: Callable[[int], None]) -> Iterator[Document]:
    """Yield the documents of a parquet file.

    Args:
        path: the file; a compressed one is first decompressed to a temporary file.
        where: what messages call it.
        records: takes the document out of each row.
        count: called with bytes read: the file's size, in shares of the rows.

    Yields:
        Documents, `origin` being the file, the row and the path column if there is one.

    Raises:
        CorpusFormatError: no intact parquet file, or without a column that is needed.
        CorpusError: not readable, or pyarrow is not installed.
    """
    parquet = import_package("pyarrow.parquet", where, CorpusError)
    with ExitStack() as stack:
        file = stack.enter_context(_seekable(path, where))
        size = path.stat().st_size
        counted = row = 0
        try:
            table = stack.enter_context(
                parquet.ParquetFile(file, buffer_size=_PAGE_BUFFER_BYTES, pre_buffer=False, memory_map=False)
            )
            columns, path_column = _columns(table.schema_arrow.names, where, records)
            for batch in table.iter_batches(batch_size=_ROWS, columns=columns, use_threads=False):
                for record in _rows(batch, records):
                    named = record.get(path_column) if path_column else None
                    origin = f"{where}:row {row}" + (f" ({named})" if named else "")
                    row += 1
                    yield from _row_documents(record, origin, records)
                share = size * row // max(table.metadata.num_rows, 1)
                count(share - counted)
                counted = share
        except (OSError, ValueError) as error:  # pyarrow.ArrowInvalid is a ValueError
            if isinstance(error, CorpusError):
                raise
            reason = (str(error) or type(error).__name__).splitlines()[0]
            found = f"damaged or truncated ({reason})"
            raise CorpusFormatError(describe(where, "parquet file", found, "an intact one")) from error


def column_names(path: Path, where: str) -> list[str]:
    """Return the names of a parquet file's columns.

    Args:
        path: the file, not compressed.
        where: what messages call it.

    Returns:
        The names, in the file's order.

    Raises:
        CorpusFormatError: no intact parquet file.
        CorpusError: not readable, or pyarrow is not installed.
    """
    parquet = import_package("pyarrow.parquet", where, CorpusError)
    with open_file(path, where) as file:
        try:
            return [str(name) for name in parquet.read_schema(file).names]
        except (OSError, ValueError) as error:
            found = f"damaged or truncated ({str(error).splitlines()[0]})"
            raise CorpusFormatError(describe(where, "parquet file", found, "an intact one")) from error


def document_column(names: list[str], field: str | None) -> str | None:
    """Return the column that holds the documents.

    Args:
        names: the columns of the file.
        field: the field asked for, a dotted path into a column perhaps, or None.

    Returns:
        One of the names, or None if there is no such column.
    """
    if field is not None:
        return next((name for name in (field, field.partition(".")[0]) if name in names), None)
    return next((name for name in (*CONVERSATION_FIELDS, *TEXT_FIELDS) if name in names), None)


def _columns(names: list[str], where: str, records: RecordReader) -> tuple[list[str], str | None]:
    """Return the columns to read, and that of the path if there is one."""
    listed = ", ".join(f"'{name}'" for name in names[:8]) + (", ..." if len(names) > 8 else "")
    document = document_column(names, records.field)
    if document is None:
        expected = f"one of {KNOWN_FIELDS}, or --field NAME" if records.field is None else f"'{records.field}'"
        raise CorpusFormatError(describe(where, "its columns", listed or "none", expected))
    columns = [document]
    if records.langs:
        language = next((name for name in LANGUAGE_FIELDS if name in names), None)
        if language is None:
            expected = "'lang' or 'language' among them (a language was asked for)"
            raise CorpusFormatError(describe(where, "its columns", listed, expected))
        columns.append(language)
    path_column = next((name for name in PATH_FIELDS if name in names and name not in columns), None)
    return [*columns, path_column] if path_column else columns, path_column


def _rows(batch: Any, records: RecordReader) -> list[dict[str, Any]]:
    """Return the rows of a batch as dictionaries, a text that is not UTF-8 as its bytes."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except UnicodeDecodeError:
        import pyarrow as pa

        columns = [
            column.cast(pa.binary())
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
            else column
            for column in batch.columns
        ]
        rows = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
    return rows


def _row_documents(record: dict[str, Any], origin: str, records: RecordReader) -> Iterator[Document]:
    """Decode binary columns, passing over rows that are not UTF-8, and take out the document."""
    try:
        decoded = {key: value.decode("utf-8") if isinstance(value, bytes) else value for key, value in record.items()}
    except UnicodeDecodeError:
        records.counts.skip("not UTF-8")
        return
    yield from records.documents(decoded, origin)


def _seekable(path: Path, where: str) -> BinaryIO:
    """Open a file; a compressed one as a temporary file of its content."""
    file = open_file(path, where)
    try:
        if compression_of(file.read(4)) is None:
            file.seek(0)
            return file
    except BaseException:
        file.close()
        raise
    file.close()
    temporary = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        with open_stream(path, where) as stream:
            while data := stream.read(_COPY_BYTES):
                temporary.write(data)
        temporary.seek(0)
    except BaseException:
        temporary.close()
        raise
    return temporary
