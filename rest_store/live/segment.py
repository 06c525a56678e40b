"""One segment of a live datastore: documents that follow one
another, sorted, in memory or in the files of a shard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np

from rest_store.datastore.header import (
    TAIL_SIZE,
    TokensHeader,
    entry_bits,
    separator_id,
    token_width,
)
from rest_store.datastore.shard import Shard, ShardView, write_file, write_suffixes
from rest_store.datastore.suffix_array import sorted_suffixes
from rest_store.errors import DatastoreFormatError, StorageError, describe
from rest_store.live.documents import SegmentRecord
from rest_store.live.upstream import DocumentRecord


@dataclass(frozen=True, eq=False)
class Segment:
    """Sorted documents; never changes.

    Attributes:
        first: the numbers of its documents are `first .. last`; some of these may have been
            deleted.
        oldest: when the first of them was added, in seconds since 1970; `newest`: the last.
        view: the shard as kernels read it.
        record: of its files; None: it is in memory, the memtable of its namespace.
        namespace: of its documents.
    """

    first: int
    last: int
    oldest: float
    newest: float
    view: ShardView
    record: SegmentRecord | None = None
    namespace: str = ""

    @property
    def position_count(self) -> int:
        """Tokens and separators."""
        return self.view.position_count

    @property
    def token_count(self) -> int:
        """Tokens of its documents."""
        return self.view.entry_count

    @property
    def document_count(self) -> int:
        """Documents, each of which has a separator."""
        return self.view.position_count - self.view.entry_count


def sorted_segment(
    documents: Sequence[DocumentRecord], vocabulary_size: int, memtable: Segment | None = None
) -> Segment:
    """Sort documents that follow one another in memory.

    Args:
        documents: at least one, of one namespace.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        memtable: a segment in memory whose documents come before these.

    Raises:
        MemoryError: there is not enough to sort them, about 12 to 18 bytes a token.

    Releases the GIL for all that takes time in proportion to the size.
    """
    width = token_width(vocabulary_size)
    separator = separator_id(vocabulary_size).to_bytes(width, "big")
    payload = separator.join([*(document.symbols for document in documents), bytes(TAIL_SIZE)])
    first, oldest, count = documents[0].number, documents[0].added, len(documents)
    if memtable is not None:
        payload = memtable.view.symbols[:-TAIL_SIZE].tobytes() + payload
        first, oldest, count = memtable.first, memtable.oldest, memtable.document_count + count
    symbols = np.frombuffer(payload, np.uint8)
    positions = (symbols.size - TAIL_SIZE) // width
    entries = positions - count
    with _one_thread():
        keys, packed = sorted_suffixes(symbols, width, entries)
    view = ShardView(
        symbols,
        keys.view(np.uint8),
        packed,
        positions,
        entries,
        keys.size,
        width,
        entry_bits(positions),
    )
    return Segment(
        first,
        documents[-1].number,
        oldest,
        documents[-1].added,
        view,
        namespace=documents[0].namespace,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let the calling thread sort without others: they would be
    taken from queries, and small sorts wait for them.
    """
    from pydivsufsort.dll import libdivsufsort

    if not hasattr(libdivsufsort, "omp_set_num_threads"):  # built without OpenMP
        yield
        return
    before = libdivsufsort.omp_get_max_threads()
    libdivsufsort.omp_set_num_threads(1)
    try:
        yield
    finally:
        libdivsufsort.omp_set_num_threads(before)


def write_segment(segment: Segment, directory: Path, vocabulary_size: int) -> Segment:
    """Write a segment to files of a new name, and return it as it is mapped from there.

    The files are not flushed to disk: after a loss of power, their checksums say whether they are
    whole.

    Raises:
        StorageError: the files cannot be written; what was written of them is removed.
    """
    name = f"segment-{uuid4().hex}"
    sha256 = write_shard(segment.view, directory, name, vocabulary_size)
    record = SegmentRecord(
        name, segment.namespace, segment.first, segment.last, segment.oldest, segment.newest, sha256
    )
    return open_segment(directory, record, vocabulary_size)


def write_shard(
    view: ShardView, directory: Path, name: str, vocabulary_size: int, *, durable: bool = False
) -> bytes:
    """Write an ordinary shard, flushed to disk if it is to be `durable`; raises as `write_segment`.

    Returns:
        The SHA-256 of its tokens.
    """
    sha256 = hashlib.sha256(view.symbols[:-TAIL_SIZE].data).digest()
    tokens = TokensHeader(
        vocabulary_size, view.position_count, view.position_count - view.entry_count, sha256
    )
    try:
        write_file(directory / f"{name}.tokens", tokens.pack(), view.symbols, durable=durable)
        write_suffixes(
            directory / f"{name}.suffixes",
            tokens,
            view.keys.view("<u8"),
            view.entries,
            durable=durable,
        )
    except OSError as error:
        remove_files(directory, name)
        raise StorageError(
            f"{directory / name}: a segment cannot be written ({error.strerror or error})"
        ) from error
    return sha256


def open_segment(
    directory: Path, record: SegmentRecord, vocabulary_size: int, *, verify: bool = False
) -> Segment:
    """Map the files of a segment.

    Args:
        directory: where they are.
        record: what is known of them.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        verify: whether to read all of them and compare their checksums.

    Raises:
        DatastoreError: the subclass that names what is wrong with them.
    """
    shard = Shard.open(directory, record.name)
    shard.require_vocabulary(vocabulary_size)
    if (found := shard.tokens.header.sha256) != record.sha256:
        raise DatastoreFormatError(
            "checksum",
            describe(shard.tokens.path, "SHA-256 of the payload", found.hex(), record.sha256.hex()),
        )
    if verify:
        shard.require_checksums()
    span = record.first, record.last, record.oldest, record.newest
    return Segment(*span, shard.view, record, record.namespace)


def remove_files(directory: Path, name: str) -> None:
    """Remove the files of a segment, as far as they are there; raises OSError."""
    for kind in ("tokens", "suffixes"):
        (directory / f"{name}.{kind}").unlink(missing_ok=True)
