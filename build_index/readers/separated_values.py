"""Tables as text: CSV (RFC 4180) and TSV, whose first row names the columns; a document a row."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator

from build_index.documents import MAX_DOCUMENT_BYTES, Document
from build_index.readers.record_reader import CONVERSATION_FIELDS, TEXT_FIELDS, RecordReader
from build_index.readers.table_rows import malformed, record_documents
from build_index.size import size_text
from rest_store.errors import CorpusFormatError, describe

ENDINGS = (".csv", ".tsv")
_DELIMITERS = (",", ";", "\t", "|")
_NAMES = (*CONVERSATION_FIELDS, *TEXT_FIELDS)


def header_columns(line: str, field: str | None) -> tuple[str, list[str]] | None:
    """Return the delimiter and the columns in the first line of a table; None: no known column.

    Args:
        line: the line, without its end.
        field: the column that holds the document; None: a known one.
    """
    for delimiter in _DELIMITERS:
        try:
            columns = next(csv.reader([line], delimiter=delimiter, strict=True), [])
        except csv.Error:
            continue
        wanted = _NAMES if field is None else (field,)
        if any(name in columns for name in wanted):
            return delimiter, columns
    return None


def read_separated_values(
    stream: io.BufferedReader, where: str, records: RecordReader
) -> Iterator[Document]:
    """Yield the documents of a table, with the file and the line on which the row ends as `origin`.

    Args:
        stream: its content.
        where: the file, for messages.
        records: extracts the document of each row.

    Raises:
        CorpusFormatError: a row is larger than a document may be, has another number of columns, or
            is not UTF-8.
        CorpusError: see `RecordReader.too_large`.
    """
    lines = _Lines(stream, where)
    header = header_columns(next(lines, "").rstrip("\r\n"), records.field)
    if header is None:
        raise CorpusFormatError(
            describe(where, "the first row", "without a known column", "the names of the columns")
        )
    delimiter, columns = header
    csv.field_size_limit(MAX_DOCUMENT_BYTES + 1)
    reader = csv.reader(lines, delimiter=delimiter)
    while True:
        lines.held = 0
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise CorpusFormatError(
                f"{where}:{lines.number}: the row cannot be read as CSV ({error})"
            ) from error
        if row is None:
            return
        if not row:
            continue  # an empty line
        origin = f"{where}:{lines.number}"
        if len(row) != len(columns):
            expected = f"{len(columns)}, as in the first row"
            problem = describe(origin, "the number of values", len(row), expected)
            malformed(records, CorpusFormatError(problem))
            continue
        yield from record_documents(records, dict(zip(columns, row, strict=True)), origin)


class _Lines:
    """The lines of a file with their ends, for `csv.reader`.

    The reader returns a row once it has read the row's last line.

    Attributes:
        held: characters of the current row; the consumer sets it to 0 before each row.
        number: number of the latest line.
    """

    def __init__(self, stream: io.BufferedReader, where: str) -> None:
        self.held = 0
        self.number = 0
        self._where = where
        self._stream = stream

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        data = self._stream.readline(MAX_DOCUMENT_BYTES + 1)
        if not data:
            raise StopIteration
        self.number += 1
        self.held += len(data)
        where = f"{self._where}:{self.number}"
        if self.held > MAX_DOCUMENT_BYTES:
            limit = size_text(MAX_DOCUMENT_BYTES)
            expected = f"at most {limit}, and quotes that end"
            raise CorpusFormatError(
                describe(where, "the size of the row", f"above {limit}", expected)
            )
        try:
            line = data.decode("utf-8")
        except UnicodeDecodeError:
            raise CorpusFormatError(
                describe(where, "line", "not UTF-8", "UTF-8 (iconv converts files)")
            ) from None
        return line.removeprefix("\ufeff") if self.number == 1 else line


def first_line(head: bytes) -> str:
    """Return the first line of a file by its first bytes, as far as it is UTF-8."""
    line = head.removeprefix(codecs.BOM_UTF8).split(b"\n", 1)[0]
    return line.decode("utf-8", "replace").rstrip("\r")
