"""Parquet files, such as those of The Stack: a document a row; only the needed columns are read, a few rows at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from build_index.documents import Document
from build_index.readers.records import CONVERSATION_FIELDS, KNOWN_FIELDS, TEXT_FIELDS, RecordReader
from build_index.size import size_text
from rest_store.errors import CorpusFormatError, MemoryBudgetError, RestStoreError, describe, first_line

PARQUET_MAGIC = b"PAR1"
_ROWS = 64  # held at once
_BUFFER_BYTES = 1 << 20  # read ahead in each column; without it pyarrow holds a whole row group


def read_parquet(file: BinaryIO, where: str, records: RecordReader, most_bytes: int) -> Iterator[Document]:
    """Yield the documents of a parquet file; rows that are not UTF-8 are skipped and counted.

    Args:
        file: its bytes.
        where: its name in messages.
        records: extracts the document of each row.
        most_bytes: most uncompressed bytes of the document's column in a row group, as the file's metadata say: pyarrow
            holds a part of it that depends on how its writer cut it into pages.

    Yields:
        Documents, with the file and the row as `origin`.

    Raises:
        CorpusFormatError: not an intact parquet file, or the needed column is absent.
        CorpusError: not readable.
        DocumentSizeError: see `RecordReader.too_large`.
        MemoryBudgetError: the column is larger than `most_bytes` in a row group.
    """
    row = 0
    with _pyarrow(where) as pyarrow:
        table = pyarrow.parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        column = document_column(table.schema_arrow.names, records.field)
        if column is None:
            expected = KNOWN_FIELDS if records.field is None else f"'{records.field}'"
            raise CorpusFormatError(describe(where, "the list of columns", "without a known one", expected))
        for number in range(table.num_row_groups):
            group, fields = table.metadata.row_group(number), f"{column}."
            chunks = map(group.column, range(group.num_columns))
            size = sum(one.total_uncompressed_size for one in chunks if f"{one.path_in_schema}.".startswith(fields))
            if size > most_bytes:
                name = f"the size of '{column}' in row group {number}"
                expected = f"at most {size_text(most_bytes)}, as --memory and --workers allow"
                raise MemoryBudgetError(describe(where, name, size_text(size), expected))
            for batch in table.iter_batches(_ROWS, [number], [column], use_threads=False):
                for value in _values(batch.column(0)):
                    if isinstance(value, bytes):
                        records.counts.skip("not UTF-8")
                    else:
                        yield from records.documents({column: value}, f"{where}:row {row}")
                    row += 1


def column_names(file: BinaryIO, where: str) -> list[str]:
    """Return the names of a parquet file's columns, in order.

    Raises:
        CorpusFormatError: not an intact parquet file.
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


def _values(column: Any) -> Iterator[Any]:
    """Yield the values of a column; bytes for a text that is not UTF-8, whatever the column says it is."""
    import pyarrow

    if column.type in (pyarrow.string(), pyarrow.large_string()):
        column = column.cast(pyarrow.binary() if column.type == pyarrow.string() else pyarrow.large_binary())
    for value in column.to_pylist():
        try:
            yield value.decode("utf-8") if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            yield value
