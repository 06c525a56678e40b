"""One segment of a live datastore: documents that follow one another, sorted, in memory or in the files of a shard."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from build_index.suffix_array import byte_sorter
from rest_store.datastore.header import (
    HEADER_SIZE,
    KEY_STRIDE,
    TAIL_SIZE,
    SuffixesHeader,
    TokensHeader,
    entry_bits,
    separator_id,
    token_width,
)
from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.shard import Shard, seal
from rest_store.datastore.shard_view import ShardView
from rest_store.errors import ChecksumError, StorageError, describe
from rest_store.live.documents import Document, SegmentRecord

_OWN_PAGES = 1 << 17  # bytes from which on an array has pages of its own

Payload = npt.NDArray[
    np.uint8
]  # the symbols of whole documents, each with its separator, in the bytes of a tokens file


@dataclass(frozen=True)
class Span:
    """Which documents a segment holds.

    Attributes:
        first: their numbers are `first .. last`; some of these may have been deleted.
        document_count: how many there are.
        oldest: when the first of them was added, in seconds since 1970; `newest`: the last.
    """

    first: int
    last: int
    document_count: int
    oldest: float
    newest: float

    def joined(self, later: Span) -> Span:
        """Return the span of these documents and those of `later`, which follow."""
        count = self.document_count + later.document_count
        return Span(self.first, later.last, count, self.oldest, later.newest)


@dataclass(frozen=True, eq=False)
class Segment:
    """Sorted documents; never changes.

    Attributes:
        span: which documents these are.
        view: the shard as kernels read it.
        record: of its files; None: it is in memory.
    """

    span: Span
    view: ShardView
    record: SegmentRecord | None = None

    @property
    def position_count(self) -> int:
        """Tokens and separators."""
        return self.view.position_count

    @property
    def token_count(self) -> int:
        """Tokens of its documents."""
        return self.view.entry_count

    @property
    def payload(self) -> Payload:
        """The symbols of all its documents."""
        return self.view.symbols[:-TAIL_SIZE]

    @property
    def size(self) -> int:
        """Bytes that it takes in memory or in its files."""
        headers = 2 * (HEADER_SIZE + TAIL_SIZE) if self.record else 0
        return headers + self.view.symbols.nbytes + self.view.keys.nbytes + self.view.entries.nbytes


def sorted_segment(payloads: list[Payload], span: Span, vocabulary_size: int) -> Segment:
    """Sort documents in memory.

    Args:
        payloads: their symbols, in the order of their numbers; at least one document.
        span: which documents these are.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.

    Raises:
        MemoryError: there is not enough to sort them, about 12 to 18 bytes a token.

    Releases the GIL for all that takes time in proportion to the size.
    """
    symbols = _joined([*payloads, np.zeros(TAIL_SIZE, np.uint8)])
    width = token_width(vocabulary_size)
    positions = (symbols.size - TAIL_SIZE) // width
    entries = positions - span.document_count
    bits = entry_bits(positions)
    keys = np.empty(-(-entries // KEY_STRIDE), np.uint64)
    packed = _room(8 * -(-entries * bits // 64) + TAIL_SIZE)
    native = native_kernel()
    with _one_thread():
        if native.sort_suffixes(byte_sorter(), symbols, width, bits, keys, packed):
            raise MemoryError(f"libdivsufsort cannot sort {symbols.size - TAIL_SIZE} bytes of text")
    view = ShardView(symbols, keys.view(np.uint8), packed, positions, entries, keys.size, width, bits)
    return Segment(span, view)


def joined_segment(run: Sequence[Segment], vocabulary_size: int) -> Segment:
    """Return segments that follow one another as one in memory; raises and costs what `sorted_segment` does."""
    span = functools.reduce(Span.joined, (segment.span for segment in run))
    return sorted_segment([segment.payload for segment in run], span, vocabulary_size)


def segment_of(documents: Sequence[Document], vocabulary_size: int, young: Segment | None = None) -> Segment:
    """Return documents that follow one another, after those of `young`, as a segment in memory.

    Raises and costs what `sorted_segment` does.
    """
    separator = separator_id(vocabulary_size).to_bytes(token_width(vocabulary_size), "big")
    payload = np.frombuffer(separator.join([*(document.symbols for document in documents), b""]), np.uint8)
    first, last = documents[0], documents[-1]
    span = Span(first.number, last.number, len(documents), first.added, last.added)
    if young is None:
        return sorted_segment([payload], span, vocabulary_size)
    return sorted_segment([young.payload, payload], young.span.joined(span), vocabulary_size)


def _joined(parts: Sequence[Payload]) -> Payload:
    """Return `parts` as one array; numpy would pass the GIL on for each of them, however small."""
    size = sum(part.size for part in parts)
    if size < _OWN_PAGES:
        return np.frombuffer(b"".join(part.data for part in parts), np.uint8)
    return np.concatenate(parts, out=_room(size))


def _room(size: int) -> npt.NDArray[np.uint8]:
    """Return uint8[size] of any content.

    A large array goes back to the system with its last reference; the heap would keep some.
    """
    if size < _OWN_PAGES:
        return np.empty(size, np.uint8)
    try:
        return np.frombuffer(mmap.mmap(-1, size), np.uint8)
    except OSError as error:
        raise MemoryError(f"{size} bytes for sorting") from error


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let the calling thread sort without others: they would be taken from queries, and small sorts wait for them."""
    openmp = _openmp()
    if openmp is None:
        yield
        return
    thread_count, set_thread_count = openmp
    before = thread_count()
    set_thread_count(1)
    try:
        yield
    finally:
        set_thread_count(before)


@functools.cache
def _openmp() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return what reads and sets how many threads sort, without passing the GIL on; None: built without OpenMP."""
    from pydivsufsort.dll import libdivsufsort

    if not hasattr(libdivsufsort, "omp_set_num_threads"):
        return None
    thread_count = ctypes.PYFUNCTYPE(ctypes.c_int)(("omp_get_max_threads", libdivsufsort))
    set_thread_count = ctypes.PYFUNCTYPE(None, ctypes.c_int)(("omp_set_num_threads", libdivsufsort))
    return thread_count, set_thread_count


def write_segment(segment: Segment, directory: Path, name: str, vocabulary_size: int) -> Segment:
    """Write a segment to files as an ordinary shard, flush them to disk, and return it as it is mapped from there.

    Raises:
        StorageError: the files cannot be written; what was written of them is removed.
    """
    view, span = segment.view, segment.span
    try:
        tokens = TokensHeader(vocabulary_size, view.position_count, span.document_count, _sha256(segment.payload))
        _write(directory / f"{name}.tokens", tokens.pack(), [view.symbols])
        payload = [view.keys, view.entries[:-TAIL_SIZE]]
        suffixes = SuffixesHeader(view.bits, view.entry_count, _sha256(*payload), tokens.sha256)
        _write(directory / f"{name}.suffixes", suffixes.pack(), [*payload, view.entries[-TAIL_SIZE:]])
    except OSError as error:
        remove_files(directory, name)
        raise StorageError(f"{directory / name}: a segment cannot be written ({error.strerror or error})") from error
    record = SegmentRecord(name, span.first, span.last, span.oldest, span.newest, tokens.sha256, suffixes.sha256)
    return open_segment(directory, record, vocabulary_size)


def open_segment(directory: Path, record: SegmentRecord, vocabulary_size: int, *, verify: bool = False) -> Segment:
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
    for file, expected in ((shard.tokens, record.tokens_sha256), (shard.suffixes, record.suffixes_sha256)):
        found = _sha256(file.payload) if verify else file.header.sha256
        if found != expected:
            raise ChecksumError(describe(file.path, "SHA-256 of the payload", found.hex(), expected.hex()))
    count = shard.tokens.header.document_count
    return Segment(Span(record.first, record.last, count, record.oldest, record.newest), shard.view, record)


def is_intact(segment: Segment) -> bool:
    """Return whether the tokens of a segment in files still have their checksum."""
    return segment.record is None or _sha256(segment.payload) == segment.record.tokens_sha256


def remove_files(directory: Path, name: str) -> None:
    """Remove the files of a segment, as far as they are there; raises OSError."""
    for kind in ("tokens", "suffixes"):
        (directory / f"{name}.{kind}").unlink(missing_ok=True)


def _write(path: Path, header: bytes, parts: list[npt.NDArray[Any]]) -> None:
    with path.open("wb") as file:
        file.write(bytes(HEADER_SIZE))
        for part in parts:
            file.write(part.data)
        seal(file, header)


def _sha256(*parts: npt.NDArray[Any]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.data)
    return digest.digest()
