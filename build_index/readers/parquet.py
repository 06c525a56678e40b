"""Parquet files, such as those of The Stack: a document a row.

Only the needed columns are read, a few rows at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from build_index.documents import Document
from build_index.readers.parquet_pages import largest_pages
from build_index.readers.record_reader import KNOWN_FIELDS, RecordReader
from build_index.readers.tables import TableReader, columns_text, document_columns, rows_at_once
from build_index.size import size_text
from rest_store.errors import (
    CorpusFormatError,
    MemoryBudgetError,
    RestStoreError,
    describe,
    first_line,
)

PARQUET_MAGIC = b"PAR1"
_BUFFER_BYTES = 1 << 20  # read ahead in each column; without it pyarrow holds a whole row group


class HeldAtOnceError(MemoryBudgetError):
    """A file makes pyarrow hold more at once than the memory of the build has room for.

    Args:
        message: names the piece of the file, its size and the bound.
        needed: its bytes.
        again: a way to write the file again so that less is held.
    """

    def __init__(self, message: str, needed: int, again: str) -> None:
        super().__init__(message, needed, again)  # all, so that it can be pickled
        self.message = message
        self.needed = needed
        self.again = again

    @classmethod
    def for_size(
        cls, where: str, piece: str, needed: int, max_bytes: int, again: str
    ) -> HeldAtOnceError:
        """Return the error about a piece of a file, of which `max_bytes` may be held."""
        expected = f"at most {size_text(max_bytes)}, as --memory and --workers allow"
        message = describe(where, f"the size of {piece}", size_text(needed), expected)
        return cls(message, needed, again)

    def __str__(self) -> str:
        return f"{self.message}; or write the file again with {self.again}"


def read_parquet(
    file: BinaryIO, where: str, records: RecordReader, max_bytes: int
) -> Iterator[Document]:
    """Yield the documents of a parquet file; rows that are not UTF-8 are skipped and counted.

    Args:
        file: its bytes.
        where: its name in messages.
        records: extracts the document of each row.
        max_bytes: bound on the uncompressed bytes that pyarrow holds at once: a page of each needed
            column.

    Yields:
        Documents, with the file and the row as `origin`.

    Raises:
        CorpusFormatError: not an intact parquet file, or the needed column is absent.
        CorpusError: not readable; or see `RecordReader.too_large`.
        HeldAtOnceError: pages are larger than `max_bytes`.
    """
    with pyarrow_errors(where, "parquet file") as pyarrow:
        table = pyarrow.parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        columns = document_columns(table.schema_arrow, records.field)
        if not columns:
            expected = KNOWN_FIELDS if records.field is None else f"'{records.field}'"
            raise CorpusFormatError(
                describe(where, "the list of columns", "without a known one", expected)
            )
        reader = TableReader(table.schema_arrow, columns, records, where)
        row = 0
        for number in range(table.num_row_groups):
            group = table.metadata.row_group(number)
            chunks = _chunks(group, columns)
            size = sum(chunk.total_uncompressed_size for chunk in chunks)
            if size > max_bytes:
                held = sum(largest_pages(file, chunk) for chunk in chunks)
                if held > max_bytes:
                    piece = f"the largest page of {_quoted(columns)} in row group {number}"
                    again = "smaller pages (data_page_size and write_batch_size of pyarrow)"
                    raise HeldAtOnceError.for_size(where, piece, held, max_bytes, again)
            batch_rows = rows_at_once(size, group.num_rows)
            for batch in table.iter_batches(batch_rows, [number], columns, use_threads=False):
                yield from reader.documents(batch, range(row, row + batch.num_rows))
                row += batch.num_rows


def parquet_columns(file: BinaryIO, where: str, field: str | None) -> tuple[list[str], str]:
    """Return the columns of a parquet file that may hold documents, and all columns as a text.

    Raises:
        CorpusFormatError: not an intact parquet file.
    """
    with pyarrow_errors(where, "parquet file") as pyarrow:
        schema = pyarrow.parquet.read_schema(file)
        return document_columns(schema, field), columns_text(schema)


@contextmanager
def pyarrow_errors(where: str, kind: str) -> Iterator[Any]:
    """Yield pyarrow, and name the file in the errors that it raises inside."""
    import pyarrow.parquet

    try:
        yield pyarrow
    except RestStoreError:
        raise
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        if getattr(error, "errno", None) is not None:  # of the file, not of its content
            raise
        problem = f"damaged or truncated ({first_line(error)})"
        raise CorpusFormatError(describe(where, kind, problem, "intact")) from error


def _quoted(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _chunks(group: Any, columns: list[str]) -> list[Any]:
    """Return the metadata of the chunks of some columns in a row group."""
    chunks = map(group.column, range(group.num_columns))
    prefixes = tuple(f"{name}." for name in columns)
    return [chunk for chunk in chunks if f"{chunk.path_in_schema}.".startswith(prefixes)]
