"""The short way through the service, without protobuf, gives what the long way gives: bytes, errors and counts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from rest_store.datastore.kernel import native_messages
from rest_store.errors import DatastoreUnavailableError, RestStoreError
from rest_store.service.server import handlers
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.executor import Work
from rest_store.service.server.handlers import Replies
from rest_store.service.server.limits import Limits
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.stream_state import Generation
from rest_store.v1 import datastore_pb2 as pb
from tests.service.test_service_fuzz import damaged, some_message
from tests.shared.strategies import Corpus, write_datastore

pytestmark = pytest.mark.skipif(native_messages() is None, reason="the native kernel was not built")

VOCABULARY = 300
CHANCE = random.Random(3)
SHARD = [[CHANCE.randrange(8) for _ in range(CHANCE.randrange(1, 60))] for _ in range(20)]


class Both:
    """A service asked in both ways."""

    def __init__(self, directory: Path, workers: ThreadPoolExecutor) -> None:
        self.short, self.long = (
            Replies(Catalog([("one", directory)]), Limits(), Metrics([], "1", "native"), Work(workers))
            for _ in range(2)
        )
        self.shortly = 0

    def same(self, ask: Callable[[Replies], Any], monkeypatch: pytest.MonkeyPatch) -> None:
        """Assert that `ask` meets the same in both."""
        found = self._met(lambda: ask(self.short))
        with monkeypatch.context() as patch:
            patch.setattr(handlers, "_messages", None)
            expected = self._met(lambda: ask(self.long))
        assert found == expected
        for what in ("match_lengths", "nodes", "trees"):
            assert getattr(self.short._metrics, what) == getattr(self.long._metrics, what)

    @staticmethod
    def _met(ask: Callable[[], Any]) -> tuple[object, ...]:
        try:
            reply = ask()
            if isinstance(reply, bytes):
                return ("bytes", reply)
            return ("bytes", asyncio.run(_awaited(reply)))
        except RestStoreError as error:
            return (type(error), str(error))


async def _awaited(reply: Any) -> Any:
    return await reply


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    directory = write_datastore(tmp_path, Corpus(VOCABULARY, [SHARD, SHARD[::2]]))
    with ThreadPoolExecutor(1) as workers:
        asked = Both(directory, workers)
        shortly = Replies._shortly

        def counted(self: Replies, *arguments: Any) -> bytes:
            asked.shortly += self is asked.short
            assert self is not asked.long
            return shortly(self, *arguments)

        monkeypatch.setattr(Replies, "_shortly", counted)
        yield asked


def some_request(kind: type[Message], usual: Message) -> bytes:
    """A message of `kind`, mostly like `usual`, with one context of the corpus."""
    dice = CHANCE.random()
    if dice < 0.2:
        return some_message(CHANCE, kind).SerializeToString()
    data = usual.SerializeToString()
    return damaged(CHANCE, data) if dice < 0.4 else data


def some_tokens() -> list[int]:
    size = CHANCE.choice([0, 1, 2, 5, 80])
    return [
        CHANCE.randrange(8) if CHANCE.random() < 0.98 else CHANCE.choice([299, 300, 2**32 - 1]) for _ in range(size)
    ]


def test_draft_requests(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(1_500):
        usual = pb.DraftRequest(contexts=[pb.Context(tokens=some_tokens())])
        if CHANCE.random() < 0.5:
            usual.selection.datastores.append("one")
        if CHANCE.random() < 0.5:
            usual.limits.max_nodes = CHANCE.choice([0, 1, 7, 64, 600])
        data = some_request(pb.DraftRequest, usual)
        both.same(lambda service: service.draft(data), monkeypatch)  # noqa: B023
    assert both.shortly > 500
    assert 0 < len(both.short._heads) <= handlers._MOST_HEADS
    assert max(map(len, both.short._heads)) <= handlers._LONGEST_HEAD


def test_streams(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(300):
        generations = {both.short: Generation(), both.long: Generation()}
        for step in range(8):
            usual = pb.DraftStreamRequest(tokens=some_tokens(), sequence=CHANCE.choice([step, 0, 2**64 - 1]))
            data = some_request(pb.DraftStreamRequest, usual)
            both.same(lambda service: service.continued(generations[service], data), monkeypatch)  # noqa: B023
            assert generations[both.short].tail == generations[both.long].tail
    assert both.shortly > 500


def test_requests_of_one_kind_after_another_forget_the_oldest(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    for nodes in range(1, handlers._MOST_HEADS + 10):
        request = pb.DraftRequest(contexts=[pb.Context(tokens=[1])], limits=pb.DraftLimits(max_nodes=nodes))
        both.same(lambda service: service.draft(request.SerializeToString()), monkeypatch)  # noqa: B023
    assert 0 < len(both.short._heads) <= handlers._MOST_HEADS


def test_a_reload_ends_the_short_way_to_the_old_datastore(
    both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = pb.DraftRequest(contexts=[pb.Context(tokens=[1])]).SerializeToString()
    step = pb.DraftStreamRequest(tokens=[1]).SerializeToString()
    generations = {both.short: Generation(), both.long: Generation()}

    def ask() -> None:
        both.same(lambda service: service.draft(data), monkeypatch)
        both.same(lambda service: service.continued(generations[service], step), monkeypatch)

    ask()
    ask()
    assert both.shortly == 2
    old = both.short._catalog.served[0]
    for service in (both.short, both.long):
        service._catalog.swap(service._catalog.reopen())
    old._changed = "not to be asked any more"  # the old one would say so
    ask()
    assert both.shortly == 2
    ask()
    assert both.shortly == 4
    both.short._catalog.served[0]._changed = both.long._catalog.served[0]._changed = "changed in place"
    ask()
    with pytest.raises(DatastoreUnavailableError):
        both.short.draft(data)
