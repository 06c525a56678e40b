"""Adds outputs to live datastores beside generation: a queue and a daemon thread for each target.

Remembering is an optimisation, as drafting is. Outputs are left out, and counted, if a target
raises an error or is too slow. A thread lives as long as its bounded queue holds something.
"""

from __future__ import annotations

import atexit
import inspect
import multiprocessing
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.util import Finalize
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rest_store.datastore.store import Store
from rest_store.drafting.draft_options import parse_references
from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.sources import kind_of
from rest_store.errors import DraftingWarning, SourceError, describe, error_text

_MAX_TOKENS = 1 << 20  # tokens that wait for one target: 4 MB
_MAX_EARLIER = 32  # documents of a group that are read
_GRACE_SECONDS = 2.0  # for queued outputs when the interpreter exits, or a target is closed
_MAX_REASON_LENGTH = 200


class RememberTarget(Protocol):
    """A target for outputs: a `LiveDatastore` for writing, a `DatastoreClient`, or your own.

    One thread calls it. If it has a method `before_close`, this is called with a function that
    takes the target and writes its queued outputs; `close` should call that function first.
    """

    def add(self, documents: Sequence[Any], ids: Sequence[str] | None = None) -> object:
        """Add documents, int32[n] each, one id for each; the same id stands for the same document.

        Documents of a group or an epoch come with `group` and `epoch`, as `LiveDatastore.add` takes
        them.

        The result may have an attribute `duplicates`: the ids that were there already.
        """


@dataclass
class RememberCounts:
    """Counts of the outputs of one generation; they go on changing after its end.

    Attributes:
        ids: of the documents, one for each row that is long enough; `delete` of the target takes
            them.
        added: documents added so far.
        duplicates: ids of documents that were there already, from an output that was the same.
        dropped: documents left out, because the queue was full or the target failed.
        error: the reason why documents were left out; empty if none were.
    """

    ids: list[str] = field(default_factory=list)
    added: int = 0
    duplicates: list[str] = field(default_factory=list)
    dropped: int = 0
    error: str = ""

    @property
    def is_decided(self) -> bool:
        """Whether all of them are added, known to be duplicates, or left out."""
        return self.added + len(self.duplicates) + self.dropped >= len(self.ids)

    def drop(self, reason: str) -> None:
        """Count all documents as left out; warn. Raises nothing, on any thread."""
        self.dropped = len(self.ids)
        self.error = reason[:_MAX_REASON_LENGTH]
        # Warnings may be errors, and `warnings.showwarning` is anybody's code.
        with suppress(Exception):
            warnings.warn(
                f"rest-store: an output was not remembered: {self.error}",
                DraftingWarning,
                stacklevel=2,
            )


class _Queue(threading.Thread):
    """The outputs that wait for one datastore, and the thread that adds them.

    All methods but `run` are called under `_lock`.
    """

    def __init__(self, owner: object) -> None:
        super().__init__(name="rest-store remember", daemon=True)
        self.owner = owner
        self.batches: deque[tuple[RememberTarget, list[OutputDocument], RememberCounts]] = deque()
        self.tokens = 0

    def put(
        self, target: RememberTarget, documents: list[OutputDocument], counts: RememberCounts
    ) -> bool:
        """Queue the documents of one generation; return whether there was room."""
        size = _size(documents)
        if self.tokens + size > _MAX_TOKENS:
            return False
        self.tokens += size
        self.batches.append((target, documents, counts))
        return True

    def run(self) -> None:
        while True:
            with _lock:
                if not self.batches:
                    _queues.pop(id(self.owner), None)
                    return
                target, documents, counts = self.batches[0]  # it counts until it is written
            try:
                counts.duplicates = add_to(target, documents)
                counts.added = len(documents) - len(counts.duplicates)
            except BaseException as error:  # a target is anybody's code
                counts.drop(error_text(error))
            with _lock:
                self.batches.popleft()
                self.tokens -= _size(documents)


_queues: dict[int, _Queue] = {}  # by the id of the owner, which the queue keeps alive
# A generation may be collected, and remembered, in the middle of any block.
_lock = threading.RLock()
_flushes_in = 0  # the process of `multiprocessing` that flushes when it ends


def require_target(target: object) -> None:
    """Raise SourceError unless `target` is None or has a method `add` that may write."""
    if target is None:
        return
    add = getattr(target, "add", None)
    fault = ""
    if isinstance(target, type) or not callable(add) or inspect.isbuiltin(add):  # as that of a set
        fault = kind_of(target)
    elif inspect.iscoroutinefunction(add):
        fault = f"{kind_of(target)}, whose add is a coroutine"
    elif getattr(target, "read_only", False) is True:
        fault = f"{kind_of(target)} opened for reading"
    if fault:
        expected = (
            "a LiveDatastore for writing, a DatastoreClient, or another object with add(documents,"
            " ids=None)"
        )
        raise SourceError(describe("generate", "remember", fault, expected))


def add_to(target: Any, documents: Sequence[OutputDocument]) -> list[str]:
    """Add documents to `target` with their groups and epochs.

    Return the ids of those that were there already.
    """
    duplicates: list[str] = []
    for (group, epoch), some in groupby(
        documents, key=lambda document: (document.group, document.epoch)
    ):
        alike = list(some)
        labels = {"group": group, "epoch": epoch} if group or epoch else {}
        added = target.add(
            [document.tokens for document in alike],
            ids=[document.id for document in alike],
            **labels,
        )
        duplicates += getattr(added, "duplicates", ())
    return duplicates


def earlier(
    target: object, group: str, report: Callable[[Exception], object]
) -> list[npt.NDArray[np.int32]]:
    """Return the latest documents of a group as references of a session, the last one last.

    There are none if `target` cannot list its documents. If it raises an error, `report` is called
    with it.
    """
    documents = getattr(target, "documents", None)
    if not group or not callable(documents):
        return []
    try:
        return parse_references(
            [document.tokens for document in documents(group=group, latest=_MAX_EARLIER)]
        )
    except Exception as error:
        report(error)
        return []


def are_groups_apart(target: object) -> bool:
    """Return whether `target` is a live datastore that was opened with `shared_after`."""
    try:
        return bool(getattr(target, "shared_after", 1) > 1)
    except Exception:  # it is closed, or anybody's code
        return True


def remember(
    target: RememberTarget, documents: list[OutputDocument], counts: RememberCounts
) -> None:
    """Queue the documents of one generation for `target`; returns at once and raises nothing.

    Args:
        target: gets the documents.
        documents: the documents, perhaps none.
        counts: of these documents.
    """
    if not documents:
        return
    counts.ids = [document.id for document in documents]
    owner = _owner(target)
    with _lock:
        queue = _queues.get(id(owner))
        is_new = queue is None
        queue = _Queue(owner) if queue is None else queue
        reason = "" if queue.put(target, documents, counts) else "too much is waiting already"
        if is_new and not reason:
            try:
                if callable(hook := getattr(owner, "before_close", None)):
                    hook(flush)
                queue.start()
                _queues[id(owner)] = queue  # its thread waits for the lock
                _flush_at_the_end_of_a_worker()
            except Exception as error:  # no more threads, or the interpreter is exiting
                reason = error_text(error)
    if reason:
        counts.drop(reason)


def flush(target: object, seconds: float | None = _GRACE_SECONDS) -> bool:
    """Wait until the queued outputs of `target` are written.

    Args:
        target: the target; None: all targets.
        seconds: the longest wait; None: as long as it takes.

    Returns:
        Whether nothing is left.
    """
    end = None if seconds is None else time.monotonic() + seconds
    with _lock:
        queues = [
            queue for queue in _queues.values() if target is None or queue.owner is _owner(target)
        ]
    for queue in queues:
        if queue is not threading.current_thread():
            queue.join(None if end is None else max(0.0, end - time.monotonic()))
    return not any(queue.is_alive() for queue in queues)


def _owner(target: object) -> object:
    """Return the object that `target` writes to.

    The namespaces of a live datastore write to one back end, and only that is told of its end.
    """
    return getattr(target, "backend", target) if isinstance(target, Store) else target


def _size(documents: Sequence[OutputDocument]) -> int:
    return sum(document.tokens.size for document in documents)


def _flush_at_the_end_of_a_worker() -> None:
    """Write outputs before a process of `multiprocessing` ends: a forked one skips `atexit`."""
    global _flushes_in
    if multiprocessing.parent_process() is not None and _flushes_in != os.getpid():
        _flushes_in = os.getpid()
        Finalize(None, flush, args=(None,), exitpriority=0)


def _forget_all() -> None:
    """Begin anew in a forked process: its parent writes the queued outputs."""
    global _lock
    _lock = threading.RLock()
    _queues.clear()


atexit.register(flush, None)
os.register_at_fork(after_in_child=_forget_all)
