"""Recycled logits as a file: one line of JSON, then their rows, compressed.

A row is 21 numbers, little-endian int32: the last four tokens of a context, the last one first; the eight most
likely next tokens, the likeliest first; their weights; and the number of forward passes that they are from, at most
255. -1 where there are fewer tokens.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.drafting.whole_file import decompressed, write_whole
from rest_store.errors import RecycledLogitsError, describe

_MAGIC = b"rest-store recycled logits\n"
_VERSION = 2
_LARGEST = 64 << 20  # bytes of rows


def write_rows(path: Path, rows: bytes, tokenizer: TokenizerIdentity) -> None:
    """Write rows of int32 of this machine; `path` holds the old file or the whole new one.

    Raises:
        RecycledLogitsError: the file cannot be written.
    """
    packed = zlib.compress(np.frombuffer(rows, np.int32).astype("<i4").tobytes(), 6)
    head = {"version": _VERSION, "tokenizer": tokenizer.to_manifest(), "sha256": hashlib.sha256(packed).hexdigest()}
    try:
        write_whole(path, _MAGIC + json.dumps(head, sort_keys=True).encode() + b"\n" + packed)
    except OSError as error:
        raise RecycledLogitsError(describe(path, "recycled logits", error.strerror, "a writable place")) from error


def read_rows(path: Path, tokenizer: TokenizerIdentity) -> npt.NDArray[np.int32]:
    """Return the rows that `write_rows` wrote, one after another.

    Raises:
        RecycledLogitsError: the file cannot be read, is damaged, or was written by another release.
        TokenizerMismatchError: its tokens are of another tokenizer.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecycledLogitsError(describe(path, "recycled logits", error.strerror, "a readable file")) from error
    if not content.startswith(_MAGIC):
        raise RecycledLogitsError(describe(path, "content", "something else", "recycled logits"))
    head, _, packed = content[len(_MAGIC) :].partition(b"\n")
    try:
        fields = json.loads(head)
        version, digest = fields["version"], fields["sha256"]
        own = TokenizerIdentity.from_manifest(fields["tokenizer"], path)
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # ManifestError is a ValueError
        raise RecycledLogitsError(describe(path, "header", "damaged", "one line of JSON")) from error
    if version != _VERSION:
        raise RecycledLogitsError(describe(path, "version", version, _VERSION))
    if hashlib.sha256(packed).hexdigest() != digest:
        raise RecycledLogitsError(describe(path, "checksum of the rows", "wrong", digest))
    own.require_same(tokenizer, path)
    try:
        rows = decompressed(packed, _LARGEST)
    except zlib.error as error:
        raise RecycledLogitsError(describe(path, "rows", f"damaged ({error})", "compressed by zlib")) from error
    if len(rows) % 4:
        raise RecycledLogitsError(describe(path, "rows", f"{len(rows)} bytes", "int32"))
    return np.frombuffer(rows, "<i4").astype(np.int32)
