"""The detection of the reader that a file needs, by its content."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any, BinaryIO

from build_index.readers.aider import is_aider
from build_index.readers.arrow import arrow_columns, is_arrow
from build_index.readers.containers import ZIP_MAGICS, is_tar
from build_index.readers.conversations import fields_text
from build_index.readers.files import COMPRESSED_ENDINGS, detect_compression, open_content
from build_index.readers.json_documents import json_document_kind
from build_index.readers.json_records import TOO_LARGE, JsonValues
from build_index.readers.parquet import PARQUET_MAGIC, parquet_columns
from build_index.readers.record_reader import has_field, record_text
from build_index.readers.separated_values import ENDINGS as TABLE_ENDINGS
from build_index.readers.separated_values import first_line, header_columns
from build_index.readers.sqlite import NO_TABLE, SQLITE_MAGIC
from build_index.readers.table_rows import with_conversation
from build_index.readers.transcripts import AIDER, transcript_kind
from build_index.readers.unreadable_files import (
    BINARY,
    LFS_POINTER,
    ROW_NUMBERS,
    SQLITE,
    TAR,
    ZIP,
    is_lfs_pointer,
    unreadable_kind,
)
from rest_store.errors import CorpusFormatError, describe

HEAD_BYTES = 1 << 16
CONTAINERS = {"tar": TAR, "zip": ZIP, "sqlite": SQLITE}
"""Readers of files that hold files or tables, and the names of such files in messages."""
NO_RECORDS = "no records"  # with --field: nobody expects records in a text
_UTF8_MARK = b"\xef\xbb\xbf"


class NoDocumentsError(Exception):
    """A file holds no documents that are wanted.

    Args:
        kind: the kind of its content, in a few words.
        fields: the fields of its records, as a text.
    """

    def __init__(self, kind: str, fields: str = "") -> None:
        super().__init__(kind)
        self.fields = fields


def detect_reader(file: BinaryIO, where: str, field: str | None, *, is_named: bool) -> str:
    """Look at the beginning of a file.

    Parquet, Arrow, archives, databases and compressed files are recognized by their magic bytes,
    JSON by its first record, other binary files by a NUL byte. Of a compressed file, the content
    counts. The names of files count where the content says too little: a `.jsonl` or `.ndjson` file
    is never read as text, and `.csv` and `.tsv` files are tables.

    Args:
        file: the file; its position changes.
        where: its name, also in messages.
        field: the field that holds the document; None: any known layout.
        is_named: whether the user named the file. In a directory, JSON that is neither JSONL nor a
            list is text unless a field is named: mostly configuration and test data.

    Returns:
        `"parquet"`, `"arrow"`, `"jsonl"`, `"json"`, `"notebook"`, `"trajectory"`, `"table"` (CSV
        and TSV), `"text"`, one of `transcripts.KINDS`, or one of `CONTAINERS`.

    Raises:
        NoDocumentsError: there is no reader for it, or records lack the field.
        CorpusFormatError: it is damaged parquet or Arrow, or a `.jsonl` file that is not JSONL.
        Exception: see `files.read_errors`.
    """
    file.seek(0)
    head = file.read(HEAD_BYTES)
    if head.startswith(PARQUET_MAGIC):
        return _table_reader("parquet", *parquet_columns(file, where, field))
    if is_arrow(head):
        return _table_reader("arrow", *arrow_columns(file, where, field))
    if head.startswith(ZIP_MAGICS):
        return "zip"
    if head.startswith(SQLITE_MAGIC):
        return "sqlite"
    if is_lfs_pointer(head):
        raise NoDocumentsError(LFS_POINTER)
    compression = detect_compression(file)
    if compression:
        with open_content(file, where) as stream:
            head = stream.read(HEAD_BYTES)
    if is_tar(head):
        return "tar"
    name = where.lower()
    for ending in COMPRESSED_ENDINGS:
        name = name.removesuffix(ending)
    # Their readers have to seek, which a compressed file does not allow.
    is_table = head.startswith((PARQUET_MAGIC, *ZIP_MAGICS)) or is_arrow(head)
    kind = BINARY if is_table else unreadable_kind(head, name)
    if kind is not None:
        raise NoDocumentsError(kind)
    if name.endswith(TABLE_ENDINGS):
        line = first_line(head)
        if header_columns(line, field) is None:
            raise NoDocumentsError(NO_TABLE, fields_text(line[:200].split(",")))
        return "table"
    if is_aider(head) and field is None:
        return AIDER
    with open_content(file, where) as stream:
        return _json_or_text(JsonValues(stream, where), head, where, name, field, is_named=is_named)


def has_magic(head: bytes) -> bool:
    """Return whether the first bytes of a file name its reader or its compression."""
    is_table = (
        head.startswith((PARQUET_MAGIC, SQLITE_MAGIC, *ZIP_MAGICS))
        or is_arrow(head)
        or is_tar(head)
    )
    return is_table or detect_compression(io.BytesIO(head)) is not None


def _table_reader(reader: str, columns: list[str], names: str) -> str:
    if columns:
        return reader
    raise NoDocumentsError(ROW_NUMBERS if names == "fields 'indices'" else NO_TABLE, names)


def _json_or_text(
    values: JsonValues, head: bytes, where: str, name: str, field: str | None, *, is_named: bool
) -> str:
    """Return the reader of JSON or text, by the first record, if there is one."""
    is_named_jsonl = name.endswith((".jsonl", ".ndjson"))
    first, line = _first_record(values, head)
    if first is None:
        if is_named_jsonl and head.strip():
            raise CorpusFormatError(
                describe(f"{where}:1", "line", "not a JSON object", "one JSON object a line")
            )
        if field is not None:
            raise NoDocumentsError("text" if is_named else NO_RECORDS)
        return "text"
    is_lines = not values.in_list and (is_named_jsonl or values.line == line)
    is_object = first is not TOO_LARGE
    if is_object and field is None and (kind := transcript_kind(first)) is not None:
        return kind
    if (
        is_object
        and not values.in_list
        and field is None
        and (kind := json_document_kind(first)) is not None
    ):
        return kind
    fields = record_text(first) if is_object else ""
    is_wanted = is_lines or values.in_list or is_named or field is not None
    if (not is_object or has_field(with_conversation(first, field), field)) and is_wanted:
        return "jsonl" if is_lines else "json"
    if field is not None:
        raise NoDocumentsError("records without this field" if is_named else NO_RECORDS, fields)
    if is_named_jsonl or is_named:
        raise NoDocumentsError(
            "JSONL without a known field" if is_lines else "JSON without a known field", fields
        )
    return "text"


def _first_record(values: JsonValues, head: bytes) -> tuple[Any, int]:
    """Return the first value and its line, if it is an object or TOO_LARGE.

    None: the file holds no records.
    """
    if head.removeprefix(_UTF8_MARK).lstrip()[:1] in (b"{", b"["):
        with suppress(CorpusFormatError):
            first, line = next(iter(values), (None, 0))
            return (first, line) if first is TOO_LARGE or isinstance(first, dict) else (None, 0)
    return None, 0
