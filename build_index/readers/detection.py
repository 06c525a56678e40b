"""Which reader a file needs, by its content."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import BinaryIO

from build_index.errors import build_packages
from build_index.readers.files import compression_of, content_of
from build_index.readers.json_records import TOO_LARGE, first_record
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
    named_jsonl = is_named_jsonl(where)
    if not (compression_of(head) or named_jsonl or _is_json_like(head)):
        return Detection("binary" if b"\0" in head else "text")
    with content_of(file, where) as stream:
        head = stream.peek(HEAD_BYTES)
        if b"\0" in head or head.startswith(PARQUET_MAGIC):
            return Detection("binary")
        first = first_record(stream) if _is_json_like(head) else None
    if first is None or not (first.value is TOO_LARGE or isinstance(first.value, dict)):
        if named_jsonl and head.strip():
            raise CorpusFormatError(describe(f"{where}:1", "line", "not a JSON object", "one JSON object a line"))
        return Detection("text")
    lines = not first.in_list and (named_jsonl or first.on_one_line)
    has_documents = first.value is TOO_LARGE or has_field(first.value, field)
    return Detection("jsonl" if lines else "json", has_documents, first.in_list)


def is_compressed(head: bytes) -> bool:
    """Whether a file that begins so is compressed, and does not only begin with the same bytes."""
    kind = compression_of(head)
    try:
        if kind == "gzip":
            zlib.decompressobj(wbits=31).decompress(head)
        elif kind == "zstd":
            with build_packages("corpus", CorpusError):
                import pyarrow
            pyarrow.CompressedInputStream(pyarrow.BufferReader(head), "zstd").read(1)
    except zlib.error:
        return False
    except OSError as error:  # of pyarrow; what begins well is cut here
        return str(error).startswith("Truncated")
    return kind is not None


def _is_json_like(head: bytes) -> bool:
    return head.removeprefix(_UTF8_MARK).lstrip()[:1] in (b"{", b"[")


def is_named_jsonl(name: str) -> bool:
    """Whether a file is named as JSONL, compressed or not."""
    return name.lower().removesuffix(".gz").removesuffix(".zst").endswith((".jsonl", ".ndjson"))
