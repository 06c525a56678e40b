"""Waits of the followers of a live datastore."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rest_store.service.bearer_tokens import ALL_ALLOWED
from rest_store.service.server import feeds
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.executor import Executor
from rest_store.service.server.feeds import Feeds
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.live import new_live
from tests.shared.services import PATIENCE


def test_a_slow_follower_does_not_wait_for_what_others_have_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow follower still reads a message when another one has all changes and waits."""
    monkeypatch.setattr(feeds, "_QUIET_SECONDS", 10 * PATIENCE)
    new_live(tmp_path / "chat").close()

    async def follow_twice() -> None:
        catalog = Catalog([], [("chat", tmp_path / "chat")])
        executor = Executor()
        served = Feeds(catalog, executor)
        live = catalog.one("chat", live=True).store
        slow, other = (served.follow(b"", ALL_ALLOWED) for _ in range(2))
        try:
            await anext(slow)
            live.add([[1, 2]])
            await anext(other)
            waiting = asyncio.create_task(anext(other))
            while not served._feeds["chat"]._waiting:
                await asyncio.sleep(0.01)
            message = pb.FollowResponse.FromString(await asyncio.wait_for(anext(slow), PATIENCE))
            assert pb.Changes.FromString(message.changes).last == 1
        finally:
            waiting.cancel()
            served.drain()
            catalog.close()
            served.close()
            executor.close()

    asyncio.run(follow_twice())
