"""`DatastoreClient` for asyncio: the same client, whose calls wait in threads."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

from rest_store.datastore.validation import IntSequence
from rest_store.drafting.session import DraftSession
from rest_store.service.client.client import DatastoreClient

B = TypeVar("B", DatastoreClient, DraftSession)
P = ParamSpec("P")
T = TypeVar("T")

_MAX_THREADS = 64  # calls at once; more calls wait until one of these has ended


def _awaited(
    method: Callable[Concatenate[B, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a coroutine function that calls `method` of the blocking object in a thread."""

    @functools.wraps(method)
    async def call(self: Any, /, *arguments: P.args, **options: P.kwargs) -> T:
        task = functools.partial(method, self._blocking, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, task)

    return call


def _taking(
    make: Callable[P, DatastoreClient],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Return a decorator that gives a constructor the signature of `make`."""
    return functools.wraps(make.__init__)


class AsyncDatastoreClient:
    """`DatastoreClient` for asyncio: the same arguments, methods, answers and errors.

    Each method is a coroutine. A task that is cancelled stops waiting, and its call ends at the
    deadline. Thread-safe, and usable in any event loop.
    """

    @_taking(DatastoreClient)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._blocking = DatastoreClient(*arguments, **options)
        # The threads end with this object.
        self._threads = ThreadPoolExecutor(_MAX_THREADS, "rest-store client")

    info = _awaited(DatastoreClient.info)
    longest_suffix_match = _awaited(DatastoreClient.longest_suffix_match)
    count = _awaited(DatastoreClient.count)
    draft = _awaited(DatastoreClient.draft)
    draft_batch = _awaited(DatastoreClient.draft_batch)
    add = _awaited(DatastoreClient.add)
    delete = _awaited(DatastoreClient.delete)
    close = _awaited(DatastoreClient.close)

    async def draft_session(
        self, sources: Sequence[object], prompt: IntSequence, **options: Any
    ) -> AsyncDraftSession:
        """Open a draft session, whose arguments are those of `DraftSession`.

        Args:
            sources: as there; this client, and others of its class, may be among them.
            prompt: as there.
            options: the other arguments.

        Raises:
            RestStoreError: as `DraftSession`.
        """
        blocking = [
            source._blocking if isinstance(source, AsyncDatastoreClient) else source
            for source in sources
        ]
        make = functools.partial(DraftSession, blocking, prompt, **options)
        session = await asyncio.get_running_loop().run_in_executor(self._threads, make)
        return AsyncDraftSession(session)

    async def __aenter__(self) -> AsyncDatastoreClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self._blocking!r}"


class AsyncDraftSession:
    """A `DraftSession` for asyncio, made by `AsyncDatastoreClient.draft_session`.

    Its calls run one after the other. A cancelled call goes on until it ends; the next one waits
    for that.

    Args:
        session: the session.

    Attributes:
        session: the session, for its statistics.
    """

    def __init__(self, session: DraftSession) -> None:
        self.session = self._blocking = session
        self._threads = ThreadPoolExecutor(1, "rest-store session")

    draft = _awaited(DraftSession.draft)
    accept = _awaited(DraftSession.accept)
    close = _awaited(DraftSession.close)

    async def __aenter__(self) -> AsyncDraftSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
