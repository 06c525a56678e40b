"""One segment of a live datastore: consecutive documents, sorted, in memory or in files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from rest_store.datastore.header import (
    TAIL_SIZE,
    TokensHeader,
    entry_bits,
    separator_id,
    token_width,
)
from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.shard import (
    Shard,
    ShardView,
    decode_symbols,
    write_file,
    write_suffixes,
)
from rest_store.datastore.suffix_array import remaining_suffixes, sorted_suffixes
from rest_store.errors import DatastoreError, DatastoreFormatError, StorageError, describe
from rest_store.live.records import DocumentRecord, SegmentRecord
from rest_store.live.sharing import group_keys

if TYPE_CHECKING:
    from rest_store._kernel import ShardGroups


@dataclass(frozen=True, eq=False)
class Segment:
    """Sorted documents of one namespace. It never changes.

    Attributes:
        first: the number of its first document.
        last: the number of its last document. Documents in between may have been deleted.
        oldest: the time when its first document was added, in seconds since 1970.
        newest: the time when its last document was added.
        view: the shard as kernels read it.
        record: the record of its files; None: it is in memory, the memtable of its namespace.
        namespace: the namespace of its documents.
        group_keys: the key of the group of each document, in their order; None: they were not read.
    """

    first: int
    last: int
    oldest: float
    newest: float
    view: ShardView
    record: SegmentRecord | None = None
    namespace: str = ""
    group_keys: npt.NDArray[np.uint64] | None = None

    @cached_property
    def groups(self) -> ShardGroups:
        """The groups that wrote its occurrences. Made in time in proportion to its size."""
        assert self.group_keys is not None
        groups: ShardGroups = native_kernel().ShardGroups(self.view, self.group_keys)
        return groups

    @property
    def position_count(self) -> int:
        """The count of its tokens and separators."""
        return self.view.position_count

    @property
    def token_count(self) -> int:
        """The count of its tokens."""
        return self.view.entry_count

    @property
    def document_count(self) -> int:
        """The count of its documents. Each has a separator."""
        return self.view.position_count - self.view.entry_count


def sorted_segment(
    documents: Sequence[DocumentRecord], vocabulary_size: int, memtable: Segment | None = None
) -> Segment:
    """Sort consecutive documents in memory.

    Args:
        documents: at least one document, all of one namespace.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        memtable: a segment in memory with the documents before these.

    Raises:
        MemoryError: there is not enough memory, about 12 to 18 bytes a token.

    Releases the GIL for all that takes time in proportion to the size.
    """
    width = token_width(vocabulary_size)
    separator = separator_id(vocabulary_size).to_bytes(width, "big")
    payload = separator.join([*(document.symbols for document in documents), bytes(TAIL_SIZE)])
    first = documents[0].number
    oldest = documents[0].added
    document_count = len(documents)
    keys_of_groups = group_keys(document.group for document in documents)
    if memtable is not None:
        assert memtable.group_keys is not None
        keys_of_groups = np.concatenate([memtable.group_keys, keys_of_groups])
        payload = memtable.view.symbols[:-TAIL_SIZE].tobytes() + payload
        first = memtable.first
        oldest = memtable.oldest
        document_count += memtable.document_count
    symbols = np.frombuffer(payload, np.uint8)
    positions = (symbols.size - TAIL_SIZE) // width
    tokens = positions - document_count
    with _one_thread():
        keys, entries = sorted_suffixes(symbols, width, tokens)
    return Segment(
        first=first,
        last=documents[-1].number,
        oldest=oldest,
        newest=documents[-1].added,
        view=_view_in_memory(symbols, keys, entries, tokens, width),
        namespace=documents[0].namespace,
        group_keys=keys_of_groups,
    )


def shortened_segment(
    segment: Segment, is_removed: npt.NDArray[np.bool_], vocabulary_size: int
) -> Segment | None:
    """Return a segment in memory without some documents of another one. Nothing is sorted.

    Args:
        segment: with all documents.
        is_removed: bool[D], for each of its documents, in their order; one stays at least.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.

    Returns:
        The segment, with the numbers and times of the other one; None: the other one is damaged.

    Raises:
        MemoryError: there is not enough memory, about 6 bytes a token.

    Takes one pass over the segment. Releases the GIL for nearly all of it.
    """
    view = segment.view
    try:
        for file in view.files:
            file.require_tail()
            file.require_checksum()
            file.require_readable()
    except DatastoreError:
        return None
    width = view.width
    payload = view.symbols[:-TAIL_SIZE]
    is_end = decode_symbols(payload, width) == separator_id(vocabulary_size)
    ends = np.flatnonzero(is_end).astype(np.uint64) + np.uint64(1)
    if ends.size != is_removed.size:
        return None
    begins = np.concatenate([np.zeros(1, np.uint64), ends[:-1]])[is_removed]
    ends = ends[is_removed]
    pieces = []
    start = 0
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        pieces.append(payload[width * start : width * begin])
        start = end
    symbols = np.concatenate([*pieces, view.symbols[width * start :]])
    positions = (symbols.size - TAIL_SIZE) // width
    tokens = positions - int(np.count_nonzero(~is_removed))
    with_suffixes = remaining_suffixes(view, begins, ends, symbols, tokens)
    if with_suffixes is None:
        return None
    keys, entries = with_suffixes
    groups = segment.group_keys
    return replace(
        segment,
        view=_view_in_memory(symbols, keys, entries, tokens, width),
        record=None,
        group_keys=None if groups is None else groups[~is_removed],
    )


def _view_in_memory(
    symbols: npt.NDArray[np.uint8],
    keys: npt.NDArray[np.uint64],
    entries: npt.NDArray[np.uint8],
    tokens: int,
    width: int,
) -> ShardView:
    positions = (symbols.size - TAIL_SIZE) // width
    return ShardView(
        symbols=symbols,
        keys=keys.view(np.uint8),
        entries=entries,
        position_count=positions,
        entry_count=tokens,
        key_count=keys.size,
        width=width,
        bits=entry_bits(positions),
    )


def sorted_view(view: ShardView) -> ShardView:
    """Return a shard in memory with the same symbols, and its suffixes sorted (FORMAT.md).

    Raises:
        MemoryError: there is not enough memory, about 12 to 18 bytes a token.
    """
    symbols = view.symbols.copy()  # a mapping may change while it is sorted
    with _one_thread():
        keys, entries = sorted_suffixes(symbols, view.width, view.entry_count)
    return _view_in_memory(symbols, keys, entries, view.entry_count, view.width)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Within the block, sort on the calling thread alone.

    Further threads would take cores from queries, and small sorts would wait for them.
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
    """Write a segment to files of a new name, and return it as mapped from them.

    The files are not flushed to disk. After a loss of power, their checksums say whether they are
    whole.

    Raises:
        StorageError: the files cannot be written. They are removed.
    """
    name = f"segment-{uuid4().hex}"
    sha256 = write_shard(segment.view, directory, name, vocabulary_size)
    record = SegmentRecord(
        name=name,
        namespace=segment.namespace,
        first=segment.first,
        last=segment.last,
        oldest=segment.oldest,
        newest=segment.newest,
        sha256=sha256,
    )
    opened = open_segment(directory, record, vocabulary_size)
    return replace(opened, group_keys=segment.group_keys)


def write_shard(
    view: ShardView, directory: Path, name: str, vocabulary_size: int, *, durable: bool = False
) -> bytes:
    """Write the two files of a shard.

    Args:
        view: the shard.
        directory: the directory of the files.
        name: their name without an extension.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        durable: whether to flush the files to disk.

    Returns:
        The SHA-256 of its tokens.

    Raises:
        StorageError: the files cannot be written. They are removed.
    """
    sha256 = hashlib.sha256(view.symbols[:-TAIL_SIZE].data).digest()
    document_count = view.position_count - view.entry_count
    header = TokensHeader(vocabulary_size, view.position_count, document_count, sha256)
    keys = view.keys.view("<u8")
    try:
        write_file(directory / f"{name}.tokens", header.pack(), view.symbols, durable=durable)
        write_suffixes(directory / f"{name}.suffixes", header, keys, view.entries, durable=durable)
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
        directory: the directory of the files.
        record: the record of the segment.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        verify: whether to read all of both files and compare their checksums.

    Raises:
        DatastoreError: the subclass that names the fault of the files.
    """
    shard = Shard.open(directory, record.name)
    shard.require_vocabulary(vocabulary_size)
    sha256 = shard.tokens.header.sha256
    if sha256 != record.sha256:
        raise DatastoreFormatError(
            "checksum",
            describe(
                shard.tokens.path, "SHA-256 of the payload", sha256.hex(), record.sha256.hex()
            ),
        )
    if verify:
        shard.require_checksums()
    return Segment(
        first=record.first,
        last=record.last,
        oldest=record.oldest,
        newest=record.newest,
        view=shard.view,
        record=record,
        namespace=record.namespace,
    )


def remove_files(directory: Path, name: str) -> None:
    """Remove those files of a segment that exist. Raises OSError."""
    for kind in ("tokens", "suffixes"):
        (directory / f"{name}.{kind}").unlink(missing_ok=True)
