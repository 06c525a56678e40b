"""Which reader a file takes, told by its content."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from build_index.readers.compression import compression_of, open_file, open_stream
from build_index.readers.json_values import first_value
from build_index.readers.parquet import PARQUET_MAGIC, column_names, document_column
from build_index.readers.records import has_field
from rest_store.errors import CorpusFormatError, describe

_HEAD_BYTES = 1 << 16
_LARGEST_RECORD_BYTES = 64 << 20  # a first record longer than this is taken for text
_UTF8_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Detection:
    """What the content of a file is.

    Attributes:
        reader: `"parquet"`, `"jsonl"`, `"json"`, `"text"` or `"binary"` (no reader).
        has_documents: whether records hold the field asked for, or have a layout that is known; true for text.
        in_list: whether the records of a JSON file stand in a list.
    """

    reader: str
    has_documents: bool = True
    in_list: bool = False


def detect(path: Path, where: str, field: str | None = None) -> Detection:
    """Look at the beginning of a file.

    Parquet is told by its magic bytes, gzip and zstd likewise (then the content counts), JSON by its first record,
    binary by a NUL byte. A file named `.jsonl` or `.ndjson` is not taken for text.

    Args:
        path: the file.
        where: what messages call it.
        field: the field asked for, or None.

    Returns:
        What it is.

    Raises:
        CorpusNotFoundError: the file is absent.
        CorpusError: it cannot be read.
        CorpusFormatError: it is compressed or parquet, and damaged; or named `.jsonl` without being so.
    """
    with open_file(path, where) as file:
        head = file.read(_HEAD_BYTES)
    if compression_of(head) is not None:
        with open_stream(path, where) as stream:
            return _detect_content(stream, path, where, field, compressed=True)
    if _is_json_like(head) or is_named_jsonl(path) or head.startswith(PARQUET_MAGIC):
        with open_stream(path, where) as stream:
            return _detect_content(stream, path, where, field, compressed=False)
    return Detection("binary" if b"\0" in head else "text")


def _detect_content(
    stream: io.BufferedReader, path: Path, where: str, field: str | None, *, compressed: bool
) -> Detection:
    head = stream.peek(_HEAD_BYTES)
    if head.startswith(PARQUET_MAGIC):
        # The columns of a compressed file stand at its end: leave them to the reader.
        names = None if compressed else column_names(path, where)
        return Detection("parquet", has_documents=names is None or document_column(names, field) is not None)
    if b"\0" in head:
        return Detection("binary")
    named_jsonl = is_named_jsonl(path)
    if not _is_json_like(head):
        if named_jsonl and head.strip():
            raise CorpusFormatError(describe(f"{where}:1", "line", "not a JSON object", "one JSON object a line"))
        return Detection("text")
    first = first_value(stream, where, _LARGEST_RECORD_BYTES)
    if first is None or not isinstance(first.value, dict):
        if named_jsonl:
            raise CorpusFormatError(describe(f"{where}:1", "line", "not a JSON object", "one JSON object a line"))
        return Detection("text")
    lines = not first.in_list and (named_jsonl or first.on_one_line)
    return Detection("jsonl" if lines else "json", has_field(first.value, field), first.in_list)


def _is_json_like(head: bytes) -> bool:
    return head.removeprefix(_UTF8_MARK).lstrip()[:1] in (b"{", b"[")


def is_named_jsonl(path: Path) -> bool:
    """Whether a file's name says that it is JSONL, compressed or not."""
    name = path.name.lower()
    return name.removesuffix(".gz").removesuffix(".zst").endswith((".jsonl", ".ndjson"))
