"""Which reader a file needs, by its content."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import BinaryIO

from build_index.errors import build_packages
from build_index.readers.files import compression_of, content_of
from build_index.readers.json_records import TOO_LARGE, JsonValues
from build_index.readers.parquet import PARQUET_MAGIC, column_names, document_column
from build_index.readers.records import has_field
from rest_store.errors import CorpusError, CorpusFormatError, describe

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


def detect(file: BinaryIO, where: str, field: str | None = None) -> Detection:
    """Look at the beginning of a file.

    Parquet, gzip and zstd are recognized by their magic bytes, JSON by its first record, binary files by a NUL byte.
    Of a compressed file, the content counts. A file named `.jsonl` or `.ndjson` is never read as text.

    Args:
        file: the file; left anywhere in it.
        where: its name, also in messages.
        field: the field that holds the document; None: any known layout.

    Raises:
        CorpusFormatError: it is parquet, and damaged; or named `.jsonl`, and not JSONL.
        Exception: see `files.read_errors`.
    """
    file.seek(0)
    head = file.read(HEAD_BYTES)
    if head.startswith(PARQUET_MAGIC):
        return Detection("parquet", document_column(column_names(file, where), field) is not None)
    compression, named_jsonl = compression_of(head), is_named_jsonl(where)
    if compression and not _is_compressed(head, where):
        return Detection("binary")
    if not (compression or named_jsonl or _is_json_like(head)):
        return Detection("binary" if b"\0" in head else "text")
    with content_of(file, where) as stream:
        head = stream.peek(HEAD_BYTES)
        if b"\0" in head or head.startswith(PARQUET_MAGIC):
            return Detection("binary")
        values = JsonValues(stream, where)
        try:
            first, line = next(iter(values), (None, 0)) if _is_json_like(head) else (None, 0)
        except CorpusFormatError:
            first = None
    if not (first is TOO_LARGE or isinstance(first, dict)):
        if named_jsonl and head.strip():
            raise CorpusFormatError(describe(f"{where}:1", "line", "not a JSON object", "one JSON object a line"))
        return Detection("text")
    is_jsonl = not values.in_list and (named_jsonl or values.line == line)
    has_documents = first is TOO_LARGE or has_field(first, field)
    return Detection("jsonl" if is_jsonl else "json", has_documents, values.in_list)


def is_named_jsonl(name: str) -> bool:
    """Whether a file is named as JSONL, compressed or not."""
    return name.lower().removesuffix(".gz").removesuffix(".zst").endswith((".jsonl", ".ndjson"))


def _is_compressed(head: bytes, where: str) -> bool:
    """Whether a file that begins so is compressed, and does not only begin with the same bytes."""
    try:
        if compression_of(head) == "gzip":
            zlib.decompressobj(wbits=31).decompress(head, 1)
        else:
            with build_packages(where, CorpusError):
                import pyarrow
            pyarrow.CompressedInputStream(pyarrow.BufferReader(head), "zstd").read(1)
    except zlib.error:
        return False
    except OSError as error:  # of pyarrow; what begins well is cut here
        return str(error).startswith("Truncated")
    return True


def _is_json_like(head: bytes) -> bool:
    return head.removeprefix(_UTF8_MARK).lstrip()[:1] in (b"{", b"[")
