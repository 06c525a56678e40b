"""A request costs at most its size: it is weighed before anything is built from it, and not held while work waits."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.errors import LimitError, MessageSizeError
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.executor import Executor
from rest_store.service.server.limits import Limits
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.queries import Queries
from rest_store.service.server.servicer import METHODS
from rest_store.service.tokens import ALL_ALLOWED
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.strategies import Corpus, refused, write_datastore

LIMITS = Limits()


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    corpus = Corpus(300, [[[1, 2, 3, 4], [1, 2, 3, 5]]])
    directory = write_datastore(tmp_path_factory.mktemp("served"), corpus)
    return Catalog([("one", directory), ("two", directory)])


def answer(catalog: Catalog, method: str, data: bytes, limits: Limits = LIMITS) -> bytes:
    asked = Queries(catalog, limits, Metrics(METHODS, "1"), Executor(), "1")
    handle: Callable[..., Any] = {"Draft": asked.draft, "Count": asked.count}[method]
    return bytes(asyncio.run(handle(data, ALL_ALLOWED)))


NAMES = pb.Selection(datastores=["one"] * 100_000)
MANY_TOKENS = [299] * 190_000
HEAVY: dict[str, tuple[str, bytes, str, str]] = {
    "empty contexts": ("Draft", b"\x1a\x00" * 280_000, "number of contexts, times datastores", "560000"),
    "names": ("Draft", pb.DraftRequest(selection=NAMES).SerializeToString(), "number of datastores named", "100000"),
    "names for counts": ("Count", pb.CountRequest(selection=NAMES).SerializeToString(), "datastores named", "100000"),
    "empty sequences": ("Count", b"\x12\x00" * 280_000, "number of contexts, times datastores", "560000"),
    "a long sequence": (
        "Count",
        pb.CountRequest(sequences=[pb.TokenSequence(tokens=MANY_TOKENS)]).SerializeToString(),
        "length of sequence 0",
        "190000",
    ),
}


@pytest.mark.parametrize(("method", "data", "what", "amount"), HEAVY.values(), ids=HEAVY)
def test_a_heavy_request_is_refused_by_its_numbers_alone(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, method: str, data: bytes, what: str, amount: str
) -> None:
    assert len(data) <= LIMITS.max_request_bytes
    read: list[str] = []
    for name in ("draft_batch", "count"):
        monkeypatch.setattr(Datastore, name, lambda *_, _name=name, **__: read.append(_name))
    tracemalloc.start()
    try:
        message = refused(LimitError, lambda: answer(catalog, method, data), what, amount)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read == []
    assert len(message) < 200
    assert peak < 1 << 20, "an object was made for each part"


def test_of_a_long_context_only_the_end_is_read(catalog: Catalog) -> None:
    data = pb.DraftRequest(contexts=[pb.Context(tokens=MANY_TOKENS)]).SerializeToString()
    tracemalloc.start()
    try:
        assert answer(catalog, "Draft", data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_the_largest_request_that_is_allowed_is_not_too_large() -> None:
    for limits in (LIMITS, Limits(max_contexts=1), Limits(max_contexts=100_000, max_message_bytes=64 << 20)):
        contexts = [pb.Context(tokens=[(1 << 32) - 1] * 64)] * limits.max_contexts
        assert pb.DraftRequest(contexts=contexts).ByteSize() < limits.max_request_bytes


def test_an_answer_that_is_too_large_is_given_up_on_the_way(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    drafted = 0
    draft_batch = Datastore.draft_batch

    def counted(self: Datastore, contexts: Any, **limits: int) -> Any:
        nonlocal drafted
        drafted += len(contexts)
        return draft_batch(self, contexts, **limits)

    monkeypatch.setattr(Datastore, "draft_batch", counted)
    request = pb.DraftRequest(limits=pb.DraftLimits(max_nodes=1024), contexts=[pb.Context(tokens=[1])] * 500)
    data = request.SerializeToString()
    assert answer(catalog, "Draft", data)
    assert drafted == 1000
    drafted = 0
    limits = Limits(max_message_bytes=len(data))
    refused(MessageSizeError, lambda: answer(catalog, "Draft", data, limits), "response: size is more than", "at most")
    assert drafted < 1000
