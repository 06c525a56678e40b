"""Parquet files, such as those of The Stack: a document a row; only the needed columns are read, a few rows at once.

Memory is bounded: pages are weighed before pyarrow reads them (`parquet_pages`), and rows before they become Python
objects.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO

from build_index.documents import LARGEST_DOCUMENT_BYTES, Document
from build_index.errors import build_packages, first_line
from build_index.readers.compression import compression_of, open_file, open_stream
from build_index.readers.parquet_pages import PageFile, file_size
from build_index.readers.records import (
    CONVERSATION_FIELDS,
    KNOWN_FIELDS,
    LANGUAGE_FIELDS,
    PATH_FIELDS,
    TEXT_FIELDS,
    RecordReader,
)
from build_index.readers.remote_file import FilePath
from rest_store.errors import CorpusError, CorpusFormatError, MemoryBudgetError, RestStoreError, describe

PARQUET_MAGIC = b"PAR1"
_ROWS = 64  # held at once, fewer if they are large
_FEWER = 8  # times fewer rows, where these do not fit
_VALUE_BYTES = 32  # of a value in a row, beside its text
_DETECTION_BYTES = 128 << 20  # for the names of the columns, before the memory is known
_NAME_CHARACTERS = 200  # of the path of a row, for messages
_PAGE_BUFFER_BYTES = 1 << 20  # read ahead in each column; without it pyarrow holds a whole row group


def read_parquet(
    path: FilePath, where: str, records: RecordReader, count: Callable[[int], None], decoder_bytes: int
) -> Iterator[Document]:
    """Yield the documents of a parquet file.

    Args:
        path: the file; a compressed file is first decompressed to a temporary one.
        where: its name in messages.
        records: extracts the document of each row.
        count: called with bytes read: the file's size, in proportion to the rows.
        decoder_bytes: most memory for pages, and for the window of a compressed file (`open_stream`).

    Yields:
        Documents, with the file, the row and the path column (if there is one) as `origin`.

    Raises:
        CorpusFormatError: not an intact parquet file, its parts contradict each other, or a needed column is absent.
        CorpusError: not readable, or pyarrow is not installed.
        DocumentSizeError: see `RecordReader.too_large`.
        MemoryBudgetError: a page, or a row that several pages hold, does not fit into `decoder_bytes`.
    """
    with build_packages(where, CorpusError):
        import pyarrow
        import pyarrow.parquet as parquet
    with ExitStack() as stack:
        file = stack.enter_context(_seekable(path, where, decoder_bytes))
        size = file_size(file)
        pages = stack.enter_context(PageFile(file, where, decoder_bytes))
        counted = row = 0
        try:
            table = stack.enter_context(
                parquet.ParquetFile(pages, buffer_size=_PAGE_BUFFER_BYTES, pre_buffer=False, memory_map=False)
            )
            columns, path_column = _columns(table.schema_arrow.names, where, records)
            for batch in _batches(table, columns, pages, where):
                for piece in _pieces(batch):
                    if _is_too_large(piece):
                        records.too_large(f"{where}:row {row}")
                        row += 1
                        continue
                    for record in _rows(piece):
                        name = record.get(path_column) if path_column else None
                        origin = f"{where}:row {row}" + (f" ({str(name)[:_NAME_CHARACTERS]})" if name else "")
                        row += 1
                        yield from _row_documents(record, origin, records)
                share = size * row // max(table.metadata.num_rows, 1)
                count(share - counted)
                counted = share
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            if isinstance(error, RestStoreError):
                raise
            raise _damaged(where, error) from error


def column_names(path: FilePath, where: str) -> list[str] | None:
    """Return the names of a parquet file's columns, in order; None: its footer is too large to be looked at.

    The file is not compressed.

    Raises:
        CorpusFormatError: not an intact parquet file.
        CorpusError: not readable, or pyarrow is not installed.
    """
    with build_packages(where, CorpusError):
        import pyarrow
        import pyarrow.parquet as parquet
    with open_file(path, where) as file, PageFile(file, where, _DETECTION_BYTES) as pages:
        try:
            return [str(name) for name in parquet.read_schema(pages).names]
        except MemoryBudgetError:
            return None
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            if isinstance(error, RestStoreError):
                raise
            raise _damaged(where, error) from error


def document_column(names: list[str], field: str | None) -> str | None:
    """Return the name of the column that holds the documents, or None.

    Args:
        names: the columns of the file.
        field: a column or a dotted path into one; None: the first known one.
    """
    if field is not None:
        return next((name for name in (field, field.partition(".")[0]) if name in names), None)
    return next((name for name in (*CONVERSATION_FIELDS, *TEXT_FIELDS) if name in names), None)


def _damaged(where: str, error: Exception) -> CorpusFormatError:
    return CorpusFormatError(describe(where, "parquet file", f"damaged or truncated ({first_line(error)})", "intact"))


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


def _batches(table: Any, columns: list[str], pages: PageFile, where: str) -> Iterator[Any]:
    """Yield the record batches of a `pyarrow.parquet.ParquetFile`, each of about LARGEST_DOCUMENT_BYTES at most."""
    for number in range(table.num_row_groups):
        group = table.metadata.row_group(number)
        # The size of all columns, not only of those that are read: `column()` of a damaged file ends the process.
        rows = max(1, min(_ROWS, LARGEST_DOCUMENT_BYTES * group.num_rows // max(group.total_byte_size, 1)))
        done = 0
        while done < group.num_rows:
            pages.weigh(table, number, columns, rows)
            try:
                end = 0
                for batch in table.iter_batches(rows, [number], columns, use_threads=False):
                    start, end = end, end + batch.num_rows
                    if end > done:
                        yield batch.slice(max(done - start, 0))
                        done = end
            except Exception as error:
                if pages.refusal is None:
                    raise
                if not pages.is_crowded or rows == 1:
                    raise pages.refusal from error
                rows = max(1, rows // _FEWER)
                continue
            if done != group.num_rows:
                found = f"{done} rows long"
                raise CorpusFormatError(describe(where, f"row group {number}", found, f"{group.num_rows} rows"))


def _pieces(batch: Any) -> list[Any]:
    """Cut a batch into rows if it is large."""
    import pyarrow.compute as compute

    if _size(batch, compute.binary_length) <= LARGEST_DOCUMENT_BYTES:
        return [batch]
    return [batch.slice(row, 1) for row in range(batch.num_rows)]


def _is_too_large(piece: Any) -> bool:
    """Whether a row takes more memory than the largest document and what stands beside it."""
    import pyarrow.compute as compute

    return piece.num_rows == 1 and _size(piece, compute.utf8_length) > 2 * LARGEST_DOCUMENT_BYTES


def _size(batch: Any, length: Callable[[Any], Any]) -> int:
    """Return about the size of a batch as Python objects, without making them.

    Args:
        batch: a `pyarrow.RecordBatch`.
        length: `binary_length` or `utf8_length` of `pyarrow.compute`: what counts of a text.
    """
    import pyarrow as pa
    import pyarrow.compute as compute

    size = 0
    arrays = list(batch.columns)
    while arrays:
        array = arrays.pop()
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        size += _VALUE_BYTES * len(array)
        kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
        if pa.types.is_struct(kind):
            arrays += array.flatten()
        elif pa.types.is_nested(kind):
            arrays.append(array.flatten())
        elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
            is_dictionary = kind is not array.type
            lengths = length(array.dictionary).take(array.indices) if is_dictionary else length(array)
            size += compute.sum(lengths).as_py() or 0
        else:
            size += array.nbytes
    return size


def _rows(batch: Any) -> list[dict[str, Any]]:
    """Return the rows of a batch as dictionaries; a text that is not UTF-8 stays bytes."""
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
    """Decode binary columns, skipping rows that are not UTF-8, and extract the document."""
    try:
        decoded = {key: value.decode("utf-8") if isinstance(value, bytes) else value for key, value in record.items()}
    except UnicodeDecodeError:
        records.counts.skip("not UTF-8")
        return
    yield from records.documents(decoded, origin)


def _seekable(path: FilePath, where: str, decoder_bytes: int) -> BinaryIO:
    """Open a file; if it is compressed, a temporary file with its content."""
    file = open_file(path, where)
    with ExitStack() as stack:
        stack.enter_context(file)
        if compression_of(file.read(4)) is None:
            file.seek(0)
            stack.pop_all()
            return file
    with ExitStack() as stack:
        stream = stack.enter_context(open_stream(path, where, largest_window=decoder_bytes))
        try:
            temporary = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(stream, temporary)
            temporary.seek(0)
        except OSError as error:
            if isinstance(error, CorpusError):
                raise
            problem = f"the corpus cannot be decompressed to a temporary file ({error.strerror or error})"
            raise CorpusError(f"{where}: {problem}") from error
        stream.close()
        stack.pop_all()
    return temporary
