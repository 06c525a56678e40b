"""Answers to `Follow`: the changes of live datastores, for their replicas."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from rest_store.errors import DatastoreClosedError
from rest_store.service.bearer_tokens import Grant
from rest_store.service.server.admission import shutting_down
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.executor import Executor
from rest_store.service.server.request_checks import parse
from rest_store.v1 import datastore_pb2 as pb

if TYPE_CHECKING:
    from rest_store.live.live_datastore import LiveDatastore

_QUIET_SECONDS = 5.0  # without a change, after which an empty message is sent
# Pause after the latest change, so that the changes of a burst go into one message.
_PAUSE_SECONDS = 0.01


class _Progress(NamedTuple):
    """The position of a follower.

    Attributes:
        after: number of the newest change that it has.
        datastore_id: of that change.
        namespaces: that it may read; None: all.
    """

    after: int
    datastore_id: str
    namespaces: frozenset[str] | None


class Feeds:
    """Sends the changes of the live datastores of `catalog`. For use within one event loop.

    A follower that is behind gets the stored changes, message by message. A message is read when
    the one before has gone.
    """

    def __init__(self, catalog: Catalog, executor: Executor) -> None:
        self._catalog = catalog
        self._executor = executor
        self._feeds: dict[str, _Feed] = {}
        self._is_draining = False

    async def follow(self, data: bytes, grant: Grant) -> AsyncIterator[bytes]:
        """Answer a FollowRequest, without an end.

        Raises:
            RestStoreError: of the table in service/statuses.py.
        """
        grant.require_every_group("followed")
        request = parse(pb.FollowRequest, data)
        served = self._catalog.one(request.datastore, request.tokenizer_fingerprint, live=True)
        if served.name not in self._feeds:
            self._feeds[served.name] = _Feed(cast("LiveDatastore", served.store), self._executor)
        feed = self._feeds[served.name]
        progress = _Progress(request.after, request.datastore_id, grant.namespaces)
        while not self._is_draining:
            message, progress, is_all = await feed.read(progress)
            yield message
            if is_all:
                await asyncio.sleep(_PAUSE_SECONDS)
                if not self._is_draining:
                    await feed.changed(progress.after)
        raise shutting_down()

    def drain(self) -> None:
        """End all streams, each once its present message has gone."""
        self._is_draining = True
        for feed in self._feeds.values():
            feed.woken.set()

    def close(self) -> None:
        """End the threads that wait for changes; to be called once the datastores are closed."""
        for feed in self._feeds.values():
            feed.thread.shutdown()


class _Feed:
    """The changes of a live datastore, read once for all followers with the same progress.

    Attributes:
        thread: waits for changes.
        woken: set after each wait.
    """

    def __init__(self, live: LiveDatastore, executor: Executor) -> None:
        self.thread = ThreadPoolExecutor(1, "changes")
        self.woken = asyncio.Event()
        self._live = live
        self._executor = executor
        self._waiting: asyncio.Future[None] | None = None
        self._reading: dict[_Progress, asyncio.Future[tuple[bytes, _Progress, bool]]] = {}

    async def read(self, progress: _Progress) -> tuple[bytes, _Progress, bool]:
        """Return the next message to a follower.

        Returns:
            The message, the progress of the follower with it, and whether it has all changes then.
        """
        reading = self._reading.get(progress)
        if reading is None:
            work = self._executor.run(partial(_message, self._live, progress), small=False)
            self._reading[progress] = reading = asyncio.ensure_future(work)
            reading.add_done_callback(lambda _: self._reading.pop(progress))
        return await asyncio.shield(reading)

    async def changed(self, after: int) -> None:
        """Wait until there are changes after number `after`, or for some seconds."""
        if self._live.newest_change > after:
            return
        # No follower has newer changes, so a wait in progress is for the same ones.
        if self._waiting is None or self._waiting.done():
            self.woken.clear()
            self._waiting = asyncio.ensure_future(self._wait(after))
        await self.woken.wait()

    async def _wait(self, after: int) -> None:
        wait = partial(self._live.wait_for_change, after, _QUIET_SECONDS)
        with suppress(DatastoreClosedError):  # the next read raises it, too
            await asyncio.get_running_loop().run_in_executor(self.thread, wait)
        self.woken.set()


def _message(live: LiveDatastore, progress: _Progress) -> tuple[bytes, _Progress, bool]:
    """Return the next message to a follower, as `_Feed.read`."""
    # A token for some namespaces sees fewer changes, and so another id of the datastore.
    view = ""
    if progress.namespaces is not None:
        view = hashlib.sha256("\0".join(sorted(progress.namespaces)).encode()).hexdigest()[:16]
    datastore_id, _, seen = progress.datastore_id.partition(":")
    changes = live.changes(progress.after, datastore_id if seen == view else "")
    message = pb.Changes(
        datastore_id=f"{changes.datastore_id}:{view}",
        first=changes.first,
        last=changes.last,
        head=changes.head,
        added=[
            pb.AddedDocument(**document._asdict())
            for document in changes.added
            if progress.namespaces is None or document.namespace in progress.namespaces
        ],
        removed=[pb.Removal(**removal._asdict()) for removal in changes.removed],
        shared_after=changes.shared_after,
    )
    data = message.SerializeToString()
    response = pb.FollowResponse(changes=data, checksum=zlib.crc32(data)).SerializeToString()
    progress = progress._replace(after=changes.last, datastore_id=message.datastore_id)
    return response, progress, changes.last == changes.head
