"""Parquet files, such as those of The Stack: a document a row; only the needed columns are read, a few rows at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from build_index.documents import Document
from build_index.errors import build_packages, first_line
from build_index.readers.records import (
    CONVERSATION_FIELDS,
    KNOWN_FIELDS,
    LANGUAGE_FIELDS,
    PATH_FIELDS,
    TEXT_FIELDS,
    RecordReader,
)
from build_index.size import size_text
from rest_store.errors import CorpusError, CorpusFormatError, MemoryBudgetError, RestStoreError, describe

PARQUET_MAGIC = b"PAR1"
_ROWS = 64  # held at once
_NAME_CHARACTERS = 200  # of the path of a row, for messages
_BUFFER_BYTES = 1 << 20  # read ahead in each column; without it pyarrow holds a whole row group


def read_parquet(file: BinaryIO, where: str, records: RecordReader, most_bytes: int) -> Iterator[Document]:
    """Yield the documents of a parquet file.

    Args:
        file: its bytes.
        where: its name in messages.
        records: extracts the document of each row.
        most_bytes: most uncompressed bytes of a row group, as the file's metadata say: pyarrow holds a part of it that
            depends on how its writer cut it into pages.

    Yields:
        Documents, with the file, the row and the path column (if there is one) as `origin`.

    Raises:
        CorpusFormatError: not an intact parquet file, or a needed column is absent.
        CorpusError: not readable, or pyarrow is not installed.
        DocumentSizeError: see `RecordReader.too_large`.
        MemoryBudgetError: a row group is larger than `most_bytes`.
    """
    row = 0
    with _pyarrow(where) as pyarrow:
        table = pyarrow.parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        columns, path_column = _columns(table.schema_arrow.names, where, records)
        for number in range(table.num_row_groups):
            size = table.metadata.row_group(number).total_byte_size
            if size > most_bytes:
                expected = f"at most {size_text(most_bytes)}, as --memory allows beside the shards"
                raise MemoryBudgetError(describe(where, f"the size of row group {number}", size_text(size), expected))
            for batch in table.iter_batches(_ROWS, [number], columns, use_threads=False):
                for record in _rows(batch):
                    name = record.get(path_column) if path_column else None
                    origin = f"{where}:row {row}" + (f" ({str(name)[:_NAME_CHARACTERS]})" if name else "")
                    row += 1
                    yield from _row_documents(record, origin, records)


def column_names(file: BinaryIO, where: str) -> list[str]:
    """Return the names of a parquet file's columns, in order.

    Raises:
        CorpusFormatError: not an intact parquet file.
        CorpusError: pyarrow is not installed.
    """
    with _pyarrow(where) as pyarrow:
        return [str(name) for name in pyarrow.parquet.read_schema(file).names]


def document_column(names: list[str], field: str | None) -> str | None:
    """Return the name of the column that holds the documents, or None.

    Args:
        names: the columns of the file.
        field: a column or a dotted path into one; None: the first known one.
    """
    if field is not None:
        return next((name for name in (field, field.partition(".")[0]) if name in names), None)
    return next((name for name in (*CONVERSATION_FIELDS, *TEXT_FIELDS) if name in names), None)


@contextmanager
def _pyarrow(where: str) -> Iterator[Any]:
    """Give pyarrow, and name the file in what it raises inside."""
    with build_packages(where, CorpusError):
        import pyarrow.parquet
    try:
        yield pyarrow
    except RestStoreError:
        raise
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        if getattr(error, "errno", None) is not None:  # of the file, not of what is in it
            raise
        problem = f"damaged or truncated ({first_line(error)})"
        raise CorpusFormatError(describe(where, "parquet file", problem, "intact")) from error


def _columns(names: list[str], where: str, records: RecordReader) -> tuple[list[str], str | None]:
    """Return the columns to read, and the path column if there is one."""
    listed = ", ".join(f"'{name}'" for name in names[:8]) + (", ..." if len(names) > 8 else "")
    document = document_column(names, records.field)
    if document is None:
        expected = f"one of {KNOWN_FIELDS}, or --field NAME" if records.field is None else f"'{records.field}'"
        raise CorpusFormatError(describe(where, "the list of columns", listed or "empty", expected))
    columns = [document]
    if records.langs:
        language = next((name for name in LANGUAGE_FIELDS if name in names), None)
        if language is None:
            expected = "one with 'lang' or 'language', as --lang needs"
            raise CorpusFormatError(describe(where, "the list of columns", listed, expected))
        columns.append(language)
    path_column = next((name for name in PATH_FIELDS if name in names and name not in columns), None)
    return [*columns, path_column] if path_column else columns, path_column


def _rows(batch: Any) -> list[dict[str, Any]]:
    """Return the rows of a batch as dictionaries; a text that is not UTF-8 stays bytes."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except UnicodeDecodeError:
        import pyarrow as pa

        texts = (pa.string(), pa.large_string())
        columns = [column.cast(pa.binary()) if column.type in texts else column for column in batch.columns]
        rows = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
    return rows


def _row_documents(record: dict[str, Any], origin: str, records: RecordReader) -> Iterator[Document]:
    """Decode binary columns, skipping rows that are not UTF-8, and extract the document."""
    try:
        decoded = {key: value.decode("utf-8") if isinstance(value, bytes) else value for key, value in record.items()}
    except UnicodeDecodeError:
        records.counts.skip("not UTF-8")
        return
    yield from records.documents(decoded, origin)
