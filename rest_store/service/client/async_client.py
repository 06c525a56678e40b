"""`DatastoreClient` for asyncio: the same client, whose calls wait in threads."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import Contexts, IntSequence
from rest_store.drafting.session import DraftSession
from rest_store.service.client.client import DatastoreClient
from rest_store.service.client.descriptions import ServiceInfo
from rest_store.service.client.targets import Targets

P = ParamSpec("P")
T = TypeVar("T")

_MOST_THREADS = 64  # calls that wait at once; others begin when one of these has ended


async def _run(threads: ThreadPoolExecutor, call: Callable[P, T], /, *arguments: P.args, **options: P.kwargs) -> T:
    """Return what `call` returns, in a thread."""
    return await asyncio.get_running_loop().run_in_executor(threads, functools.partial(call, *arguments, **options))


class AsyncDatastoreClient:
    """`DatastoreClient` for asyncio: the same arguments, methods, answers and errors; each method is awaited.

    A task that is cancelled stops waiting; its call ends at its deadline. Thread-safe, and for any event loop.
    """

    def __init__(self, targets: Targets, **options: Any) -> None:
        self._client = DatastoreClient(targets, **options)
        self._threads = ThreadPoolExecutor(_MOST_THREADS, "rest-store client")  # they end with this object

    async def connect(self, timeout: float = 10.0) -> ServiceInfo:
        """See `DatastoreClient.connect`."""
        return await _run(self._threads, self._client.connect, timeout)

    async def info(self, *, timeout: float | None = None) -> ServiceInfo:
        """See `DatastoreClient.info`."""
        return await _run(self._threads, self._client.info, timeout=timeout)

    async def longest_suffix_match(
        self, context: IntSequence, *, max_suffix: int = 16, timeout: float | None = None
    ) -> SuffixMatch:
        """See `DatastoreClient.longest_suffix_match`."""
        return await _run(
            self._threads, self._client.longest_suffix_match, context, max_suffix=max_suffix, timeout=timeout
        )

    async def count(self, tokens: IntSequence, *, timeout: float | None = None) -> int:
        """See `DatastoreClient.count`."""
        return await _run(self._threads, self._client.count, tokens, timeout=timeout)

    async def draft(self, context: IntSequence, **options: Any) -> TokenTree:
        """See `DatastoreClient.draft`."""
        return await _run(self._threads, self._client.draft, context, **options)

    async def draft_batch(self, contexts: Contexts, **options: Any) -> list[TokenTree]:
        """See `DatastoreClient.draft_batch`."""
        return await _run(self._threads, self._client.draft_batch, contexts, **options)

    async def add(
        self, documents: Sequence[IntSequence], ids: Sequence[str] | None = None, **options: Any
    ) -> list[str]:
        """See `DatastoreClient.add`."""
        return await _run(self._threads, self._client.add, documents, ids, **options)

    async def delete(self, ids: Sequence[str], **options: Any) -> int:
        """See `DatastoreClient.delete`."""
        return await _run(self._threads, self._client.delete, ids, **options)

    async def draft_session(self, sources: Sequence[object], prompt: IntSequence, **options: Any) -> AsyncDraftSession:
        """Open a draft session, whose arguments are those of `DraftSession`.

        Args:
            sources: as there; this client, and others of its class, may be among them.
            prompt: as there.
            options: the other arguments.

        Raises:
            RestStoreError: as `DraftSession`.
        """
        blocking = [source._client if isinstance(source, AsyncDatastoreClient) else source for source in sources]
        session = await _run(self._threads, DraftSession, blocking, prompt, **options)
        return AsyncDraftSession(session, self._threads)

    async def close(self) -> None:
        """See `DatastoreClient.close`."""
        await _run(self._threads, self._client.close)

    async def __aenter__(self) -> AsyncDatastoreClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self._client!r}"


class AsyncDraftSession:
    """A `DraftSession` for asyncio. One task at a time. Made by `AsyncDatastoreClient.draft_session`.

    Args:
        session: the session.
        threads: run its calls.

    Attributes:
        session: the session, for its statistics.
    """

    def __init__(self, session: DraftSession, threads: ThreadPoolExecutor) -> None:
        self.session = session
        self._threads = threads

    async def draft(self, *arguments: Any, **options: Any) -> TokenTree:
        """See `DraftSession.draft`."""
        return await _run(self._threads, self.session.draft, *arguments, **options)

    async def accept(self, tokens: IntSequence, *arguments: Any, **options: Any) -> None:
        """See `DraftSession.accept`."""
        await _run(self._threads, self.session.accept, tokens, *arguments, **options)

    async def close(self) -> None:
        """See `DraftSession.close`."""
        await _run(self._threads, self.session.close)

    async def __aenter__(self) -> AsyncDraftSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
