"""Evidence: what datastores know along the paths that a draft tree may take, read in one go for a session elsewhere."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import Kernel, native_kernel
from rest_store.datastore.store import Store
from rest_store.drafting.calibration import Calibration

if TYPE_CHECKING:
    from rest_store._kernel import NativeEvidenceReader, SuffixCache

MAX_EVIDENCE_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of one datastore, or of a part of it, after the context and after each of the most probable paths.

    Attributes:
        datastore: its name, by which a session tells the datastores of one source apart. Several of one name in an
            answer are of the parts of that datastore, and a session adds them up.
        rows: one row for each path: the suffixes that occur, how often, and what follows them. The message Evidence in
            `proto/rest_store/v1/datastore.proto` defines the layout.
        live: whether the datastore is a live one.
        lacks: why a part of a datastore is missing from the answer that this belongs to; empty: none is.
    """

    datastore: str
    rows: bytes
    live: bool = False
    lacks: str = ""

    @property
    def row_count(self) -> int:
        """Number of paths, including the context itself."""
        return int.from_bytes(self.rows[:4], "little")


def rows_for(max_nodes: int) -> int:
    """Return how many rows to ask for, for a tree of `max_nodes`, 1..1024: its leaves need none."""
    return min(max(1, max_nodes - max_nodes // 8), MAX_EVIDENCE_ROWS)


def collect_evidence(
    stores: Mapping[str, Store],
    context: npt.NDArray[np.int32],
    tokens: npt.NDArray[np.int32],
    parents: npt.NDArray[np.int32],
    scores: npt.NDArray[np.float32],
    *,
    max_nodes: int,
    max_suffix: int,
    max_rows: int,
) -> list[Evidence]:
    """Read what a session that drafts from `stores` and from other sources would read of `stores`.

    The paths of the session's tree are not known here. The default calibration ranks the paths of the tree that the
    other sources would draft and the continuations in the datastores. Read, best first, are the paths that a session
    would expand to build a tree of `max_rows` nodes from these alone. Each row is exactly what the session would have
    read. The result is a function of the arguments alone.

    Args:
        stores: by name, all of one vocabulary; more than a session can hold are read in groups of as many.
        context: the end of the text, oldest first; only the last `max_suffix` are read; may be empty.
        tokens: int32[P], nodes of the tree that the other sources would draft, all in the vocabulary.
        parents: int32[P], the parent of each node, which comes before it; -1: child of the context.
        scores: float32[P], the probability that each node is accepted.
        max_nodes: of the session's tree, 1 or more; paths as long as that are not read.
        max_suffix: longest suffix of `context` to look for, in tokens, 1..64.
        max_rows: most paths, 1..1024.

    Raises:
        ValueError: the arrays do not form a tree.
        DatastoreClosedError, DatastoreUnavailableError: a store is closed, or a page of it could not be read.
        NativeKernelError: the kernel was not compiled.

    Thread-safe; releases the GIL.
    """
    kernel = native_kernel()
    readers = [reader_of(store) for store in stores.values()]
    most = int(kernel.MAX_STORES)
    packed: list[bytes] = []
    for first in range(0, len(readers), most):
        packed += kernel.collect_evidence(
            readers[first : first + most],
            _calibration().native,
            context,
            tokens,
            parents,
            scores,
            max_nodes=max_nodes,
            max_rows=max_rows,
            max_suffix=max_suffix,
        )
    for store in stores.values():
        store.require_readable()
    return [Evidence(name, rows, store.is_live) for (name, store), rows in zip(stores.items(), packed, strict=True)]


# By kernel: a datastore that is closed drops its kernel, and so its reader. All readers of a datastore share a cache.
_readers: weakref.WeakKeyDictionary[Kernel, NativeEvidenceReader] = weakref.WeakKeyDictionary()
_caches: weakref.WeakKeyDictionary[Store, SuffixCache] = weakref.WeakKeyDictionary()


def reader_of(store: Store) -> NativeEvidenceReader:
    """Return the native reader of the shards of `store`, which caches the evidence of short suffixes.

    All sessions share it; a live datastore whose shards change has another one.

    Raises:
        DatastoreClosedError: `store` is closed.

    Thread-safe.
    """
    snapshot = store.snapshot
    snapshot.kernel.require_readable()
    if (reader := _readers.get(snapshot.kernel)) is None:
        native = native_kernel()
        if (cache := _caches.get(store)) is None:
            cache = _caches.setdefault(store, native.SuffixCache(len(snapshot.views), store.is_live))
        made = native.NativeEvidenceReader(snapshot.views, store.vocabulary_size, store.is_live, cache)
        reader = _readers.setdefault(snapshot.kernel, made)
    return reader


@functools.cache
def _calibration() -> Calibration:
    return Calibration.default()
