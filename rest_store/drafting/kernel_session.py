"""The kernel's side of a draft session, in this process and in a service."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.store import Snapshot, Store
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.draft_options import Accepted
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ContextTypeError, DatastoreClosedError, DatastoreUnavailableError

if TYPE_CHECKING:
    from rest_store._kernel import NativeEvidenceReader, NativeKernel, NativeSession, SuffixCache


@dataclass
class OpenStore:
    """A datastore in this process as a session reads it.

    Attributes:
        index: its index among the session's sources.
        store: the datastore.
        snapshot: the shards that the session reads.
    """

    index: int
    store: Store
    snapshot: Snapshot

    def fault(self) -> str:
        """Return why the datastore cannot be read any more; empty if it can."""
        try:
            self.store.require_readable()
        except (DatastoreClosedError, DatastoreUnavailableError) as error:
            return str(error)
        return ""


def kernel_session(
    calibration: Calibration, sources: Sequence[object], *, learn: bool
) -> tuple[NativeSession, dict[int, OpenStore]]:
    """Open the kernel's side of a session.

    Args:
        calibration: scores the candidates.
        sources: of the session; sources of other processes are passed over.
        learn: whether the calibration learns.

    Returns:
        The native session, and the datastores by their indices among `sources`.

    Raises:
        DatastoreClosedError, DatastoreUnavailableError: a datastore is closed, or a page of it
            could not be read.
        NativeKernelError: the kernel was not compiled.
    """
    native: NativeSession = native_kernel().NativeSession(calibration.native)
    native.learn_online(learn)
    datastores: dict[int, OpenStore] = {}
    for index, source in enumerate(sources):
        if isinstance(source, PromptLookup):
            native.use_prompt_lookup(index)
        elif isinstance(source, RecycledLogits):
            native.use_recycled_logits(index, source.native)
        elif isinstance(source, Store):
            # Take the snapshot before the reader: a change in between is picked up next step.
            datastores[index] = OpenStore(index, source, source.snapshot)
            native.add_store(index, reader_of(source))
    return native, datastores


def follow_changes(native: NativeSession, datastores: Iterable[OpenStore]) -> None:
    """Read the present shards of live datastores from now on."""
    for opened in datastores:
        if not opened.store.is_live:
            continue
        snapshot = opened.store.snapshot
        if snapshot is opened.snapshot:
            continue
        # A datastore that cannot be read is reported after the step.
        with suppress(DatastoreClosedError, DatastoreUnavailableError):
            native.set_reader(opened.index, reader_of(opened.store))
            opened.snapshot = snapshot


# By kernel: a datastore that is closed drops its kernel, and so its reader. All readers of a
# datastore share a cache, those of its namespaces too.
_readers: weakref.WeakKeyDictionary[NativeKernel, NativeEvidenceReader] = (
    weakref.WeakKeyDictionary()
)
_caches: weakref.WeakKeyDictionary[object, SuffixCache] = weakref.WeakKeyDictionary()


def reader_of(store: Store) -> NativeEvidenceReader:
    """Return the native reader of the shards of `store`, which caches evidence.

    The cache holds the evidence of short suffixes. All sessions share the reader. A live datastore
    whose shards change has another one.

    Raises:
        DatastoreClosedError: `store` is closed.

    Thread-safe.
    """
    snapshot = store.snapshot
    snapshot.kernel.require_readable()
    reader = _readers.get(snapshot.kernel)
    if reader is not None:
        return reader
    native = native_kernel()
    owner: object = getattr(store, "backend", store)
    cache = _caches.get(owner)
    if cache is None:
        cache = _caches.setdefault(owner, native.SuffixCache(len(snapshot.views), store.is_live))
    more = () if snapshot.sharing is None else (snapshot.sharing,)
    made = native.NativeEvidenceReader(
        snapshot.views, store.vocabulary_size, store.is_live, cache, *more
    )
    return _readers.setdefault(snapshot.kernel, made)


def append_all(where: str, natives: Sequence[NativeSession], accepted: Sequence[Accepted]) -> None:
    """Append to each of different sessions the output of the target model.

    One call of the kernel, without the GIL.

    Args:
        where: how messages begin.
        natives: the sessions.
        accepted: for each of them; `node_top_k` has the rows of the kernel's latest tree.

    Raises:
        ContextTypeError: a top-k has a wrong number of rows; nothing was appended.
    """
    tokens = [one.tokens for one in accepted]
    top_k = [one.top_k for one in accepted]
    node_top_k = [one.node_top_k for one in accepted]
    try:
        native_kernel().accept_all(natives, tokens, top_k, node_top_k)
    except ValueError as error:
        raise ContextTypeError(f"{where}: {error}") from None
