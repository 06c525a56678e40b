"""Which reader a file needs, by its content."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, BinaryIO

from build_index.readers.files import compression_of, content_of
from build_index.readers.json_records import TOO_LARGE, JsonValues
from build_index.readers.parquet import PARQUET_MAGIC, column_names, document_column
from build_index.readers.records import fields_text, has_field
from rest_store.errors import CorpusFormatError, describe

HEAD_BYTES = 1 << 16
_UTF8_MARK = b"\xef\xbb\xbf"


class NoDocumentsError(Exception):
    """A file holds no documents that are wanted.

    Args:
        what: it is instead, in a few words.
        fields: those of its records, as a text.
    """

    def __init__(self, what: str, fields: str = "") -> None:
        super().__init__(what)
        self.fields = fields


def reader_of(file: BinaryIO, where: str, field: str | None, *, is_named: bool) -> str:
    """Look at the beginning of a file.

    Parquet, gzip and zstd are recognized by their magic bytes, JSON by its first record, binary files by a NUL byte.
    Of a compressed file, the content counts. A file named `.jsonl` or `.ndjson` is never read as text.

    Args:
        file: the file; left anywhere in it.
        where: its name, also in messages.
        field: the field that holds the document; None: any known layout.
        is_named: whether the user named the file. In a directory, JSON that is neither JSONL nor a list is text: mostly
            configuration and test data.

    Returns:
        `"parquet"`, `"jsonl"`, `"json"` or `"text"`.

    Raises:
        NoDocumentsError: there is no reader for it, or records lack the field.
        CorpusFormatError: it is parquet, and damaged; or named `.jsonl`, and not JSONL.
        Exception: see `files.read_errors`.
    """
    file.seek(0)
    head = file.read(HEAD_BYTES)
    if head.startswith(PARQUET_MAGIC):
        names = column_names(file, where)
        if document_column(names, field) is None:
            raise NoDocumentsError("table without a known column", fields_text(names))
        return "parquet"
    compression = compression_of(head)
    is_named_jsonl = where.lower().removesuffix(".gz").removesuffix(".zst").endswith((".jsonl", ".ndjson"))
    with content_of(file, where) as stream:
        if compression:
            head = stream.peek(HEAD_BYTES)
        if b"\0" in head or head.startswith(PARQUET_MAGIC):
            raise NoDocumentsError("binary")
        values = JsonValues(stream, where)
        first, line = _first_record(values, head)
    if first is None:
        if is_named_jsonl and head.strip():
            raise CorpusFormatError(describe(f"{where}:1", "line", "not a JSON object", "one JSON object a line"))
        if field is not None:
            raise NoDocumentsError("text" if is_named else "no records")
        return "text"
    is_lines = not values.in_list and (is_named_jsonl or values.line == line)
    fields = "" if first is TOO_LARGE else fields_text(first)
    if (not fields or has_field(first, field)) and (is_lines or values.in_list or is_named):
        return "jsonl" if is_lines else "json"
    if field is not None:
        raise NoDocumentsError("records without this field" if is_named else "no records", fields)
    if is_named_jsonl or is_named:
        raise NoDocumentsError("JSONL without a known field" if is_lines else "JSON without a known field", fields)
    return "text"


def _first_record(values: JsonValues, head: bytes) -> tuple[Any, int]:
    """Return the first value and its line, if it is an object or TOO_LARGE; None: the file holds no records."""
    if head.removeprefix(_UTF8_MARK).lstrip()[:1] in (b"{", b"["):
        with suppress(CorpusFormatError):
            first, line = next(iter(values), (None, 0))
            return (first, line) if first is TOO_LARGE or isinstance(first, dict) else (None, 0)
    return None, 0
