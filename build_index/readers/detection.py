"""Which reader a file needs, by its content."""

from __future__ import annotations

import io
from dataclasses import dataclass

from build_index.readers.compression import compression_of, open_file, open_stream
from build_index.readers.json_values import TOO_LARGE, first_value
from build_index.readers.parquet import PARQUET_MAGIC, column_names, document_column
from build_index.readers.records import has_field
from build_index.readers.remote_file import FilePath
from rest_store.errors import CorpusFormatError, describe

HEAD_BYTES = 1 << 16
_UTF8_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Detection:
    """What the content of a file is.

    Attributes:
        reader: `"parquet"`, `"jsonl"`, `"json"`, `"text"` or `"binary"` (no reader).
        has_documents: whether records have the field, or, without a field, a known layout; true for text.
        in_list: whether the records of a JSON file stand in a list.
    """

    reader: str
    has_documents: bool = True
    in_list: bool = False


def detect(path: FilePath, where: str, field: str | None = None) -> Detection:
    """Look at the beginning of a file.

    Parquet, gzip and zstd are recognized by their magic bytes, JSON by its first record, binary files by a NUL byte.
    Of a compressed file, the content counts. A file named `.jsonl` or `.ndjson` is never read as text.

    Args:
        path: the file.
        where: its name in messages.
        field: the field that holds the document; None: any known layout.

    Raises:
        CorpusNotFoundError: the file does not exist.
        CorpusError: it cannot be read.
        CorpusFormatError: it is compressed or parquet, and damaged; or named `.jsonl`, and not JSONL.
    """
    with open_file(path, where) as file:
        head = file.read(HEAD_BYTES)
    if compression_of(head) is not None:
        with open_stream(path, where) as stream:
            return _detect_content(stream, path, where, field, is_compressed=True)
    if _is_json_like(head) or is_named_jsonl(path) or head.startswith(PARQUET_MAGIC):
        with open_stream(path, where) as stream:
            return _detect_content(stream, path, where, field, is_compressed=False)
    return Detection("binary" if b"\0" in head else "text")


def _detect_content(
    stream: io.BufferedReader, path: FilePath, where: str, field: str | None, *, is_compressed: bool
) -> Detection:
    head = stream.peek(HEAD_BYTES)
    if head.startswith(PARQUET_MAGIC):
        # The columns of a parquet file stand at its end: in a compressed file, or a large footer, they are left to the
        # reader.
        names = None if is_compressed else column_names(path, where)
        return Detection("parquet", has_documents=names is None or document_column(names, field) is not None)
    if b"\0" in head:
        return Detection("binary")
    named_jsonl = is_named_jsonl(path)
    first = first_value(stream, where) if _is_json_like(head) else None
    if first is not None and first.value is TOO_LARGE:
        return Detection("jsonl" if named_jsonl and not first.in_list else "json", in_list=first.in_list)
    if first is None or not isinstance(first.value, dict):
        if named_jsonl and head.strip():
            raise CorpusFormatError(describe(f"{where}:1", "line", "not a JSON object", "one JSON object a line"))
        return Detection("text")
    lines = not first.in_list and (named_jsonl or first.on_one_line)
    return Detection("jsonl" if lines else "json", has_field(first.value, field), first.in_list)


def _is_json_like(head: bytes) -> bool:
    return head.removeprefix(_UTF8_MARK).lstrip()[:1] in (b"{", b"[")


def is_named_jsonl(path: FilePath) -> bool:
    """Whether a file is named as JSONL, compressed or not."""
    name = path.name.lower()
    return name.removesuffix(".gz").removesuffix(".zst").endswith((".jsonl", ".ndjson"))
