"""One live datastore of a service. The service is the process that writes it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from rest_store.drafting.output_document import LEAST_TOKENS, OutputDocument
from rest_store.errors import StorageError, WriterError
from rest_store.live.opening import is_live
from rest_store.service.server.hosted_datastore import HostedDatastore, timestamp
from rest_store.service.server.logs import EventLog
from rest_store.service.server.rights import Rights
from rest_store.v1 import datastore_pb2 as pb

if TYPE_CHECKING:
    from rest_store.live.live_info import LiveInfo

_ADDING_THREADS = 4  # callers that share a commit
_MOST_REMEMBERED = 1 << 22  # tokens that wait to be added
_OF_DOCUMENT = 1 << 10  # tokens that a document counts for beside its own

T = TypeVar("T")
Tokens = npt.NDArray[np.int32]


class HostedLiveDatastore(HostedDatastore):
    """A live datastore under its name, opened for writing. Thread-safe.

    It writes in threads of its own, so neither drafts nor other datastores wait for its disk.

    Args:
        name: under which clients select it.
        path: its directory; the datastore is created if it is absent or empty.
        tokenizer: for a datastore that is created, as `LiveDatastore.open` takes it; None: it has to exist.
        log: receives failures.

    Attributes:
        failures: additions and deletions that could not be written.
        remembered: documents of sessions that were added.
        dropped: documents of sessions that were not added: too many waited, or they could not be written.

    Raises:
        DatastoreError, TokenizerMismatchError: as `LiveDatastore.open`.
    """

    remedy: ClassVar[str] = "restart the service, which sorts it anew from its documents"

    def __init__(self, name: str, path: Path, tokenizer: object, log: EventLog) -> None:
        from rest_store.live.live_datastore import LiveDatastore  # needs more packages than a frozen one

        path = path.absolute()  # `_named` replaces it in messages; a short relative path may be part of other words
        self._live = LiveDatastore.open(path, tokenizer=None if is_live(path) else tokenizer)
        super().__init__(name, self._live, 1)
        self._log = log
        self._adding = ThreadPoolExecutor(_ADDING_THREADS, f"add {name}")
        self._deleting = ThreadPoolExecutor(1, f"delete {name}")
        self._remembering = ThreadPoolExecutor(1, f"remember {name}")  # so that additions do not wait behind outputs
        self._lock = threading.Lock()
        self._waiting = 0  # size of what is to be remembered
        self.failures = self.remembered = self.dropped = 0

    def info(self) -> LiveInfo:
        """Return its description."""
        return self._live.info()

    def describe(self, rights: Rights) -> pb.DatastoreDescription:
        """Return its description for a call of Describe with `rights`."""
        info, description = self.info(), super().describe(rights)
        description.live.CopyFrom(
            pb.LiveDescription(
                memory_token_count=info.memory_token_count,
                memory_size=info.memory_size,
                oldest=timestamp(info.oldest),
                max_tokens=info.max_tokens or 0,
                max_age=info.max_age or 0.0,
                failure=self._named(info.failure or ""),
                writable=rights.may_write,
            )
        )
        return description

    def add(self, documents: Sequence[Tokens], ids: Sequence[str] | None) -> Future[list[str]]:
        """Add documents, as `LiveDatastore.add` does."""
        return self._adding.submit(self._written, lambda: self._live.add(documents, ids))

    def delete(self, ids: Sequence[str]) -> Future[int]:
        """Delete documents, as `LiveDatastore.delete` does."""
        return self._deleting.submit(self._written, lambda: self._live.delete(ids))

    def remember(self, before: Sequence[int], output: Tokens, *, id: str = "", replaced: str = "") -> None:
        """Queue an output to be added, or count it as dropped. Never waits.

        Args:
            before: the end of the text before the output.
            output: what a model wrote; ignored if it is too short to be of use.
            id: of the document; empty: as `OutputDocument` makes it from the tokens.
            replaced: id of a document that this one replaces, if it exists; empty: none.
        """
        if len(output) < LEAST_TOKENS:
            return
        size = len(output) + _OF_DOCUMENT
        with self._lock:
            if self._waiting + size > _MOST_REMEMBERED:
                self.dropped += 1
                return
            self._waiting += size

        def count(added: Future[list[str]]) -> None:
            with self._lock:
                self._waiting -= size
                if added.exception() is None:
                    self.remembered += 1
                else:
                    self.dropped += 1

        def delete() -> None:
            if replaced:
                with suppress(StorageError, WriterError):  # one too many is better than none
                    self._written(lambda: self._live.delete([replaced]))

        def add() -> list[str]:
            document = OutputDocument.of(before, output.tolist())
            assert document is not None  # it is long enough
            if replaced == id:
                delete()
            ids = self._written(lambda: self._live.add([document.tokens], [id or document.id]))
            if replaced != id:  # not before: it may be that nothing can be added
                delete()
            return ids

        self._remembering.submit(add).add_done_callback(count)

    def close(self) -> None:
        """Close it after the writes in progress and all outputs in the queue. Called when no calls are left.

        Additions and deletions that have not begun are left out: nobody waits for their result.
        """
        for threads in (self._adding, self._deleting):
            threads.shutdown(cancel_futures=True)
        self._remembering.shutdown()
        self._live.close()

    def _written(self, write: Callable[[], T]) -> T:
        """Return what `write` returns; if it fails, log the error and raise one that names the datastore."""
        try:
            return write()
        except (StorageError, WriterError) as error:
            with self._lock:
                self.failures += 1
            self._log.limited("failure", self.name, datastore=self.name, error=str(error))
            raise StorageError(self._named(str(error))) from None

    def _named(self, text: str) -> str:
        """Return `text` with the datastore's name in place of its directory, which clients are not told."""
        return text.replace(str(self._live.path), f"datastore {self.name!r}")
