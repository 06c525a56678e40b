"""A request costs at most its size: it is weighed before anything is built from it."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.errors import ArgumentError
from rest_store.service.bearer_tokens import ALL_ALLOWED
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.executor import Executor
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.queries import Queries
from rest_store.service.server.service_limits import ServiceLimits
from rest_store.service.server.servicer import METHODS
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.strategies import Corpus, refused, write_datastore

LIMITS = ServiceLimits()


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    corpus = Corpus(300, [[[1, 2, 3, 4], [1, 2, 3, 5]]])
    directory = write_datastore(tmp_path_factory.mktemp("served"), corpus)
    return Catalog([("one", directory), ("two", directory)])


def answer(
    catalog: Catalog, method: str, request: pb.DraftRequest | pb.CountRequest
) -> tuple[bytes, int]:
    """Answer a request; return the most bytes that this took, too."""
    data = request.SerializeToString()
    assert len(data) <= LIMITS.max_request_bytes
    handler = Queries(catalog, LIMITS, Metrics(METHODS, "1"), Executor(), "1")
    handle: Callable[..., Any] = {"Draft": handler.draft, "Count": handler.count}[method]
    tracemalloc.start()
    try:
        return bytes(asyncio.run(handle(data, ALL_ALLOWED))), tracemalloc.get_traced_memory()[1]
    finally:
        assert tracemalloc.get_traced_memory()[1] < 1 << 20, "an object was made for each part"
        tracemalloc.stop()


NAMES = pb.Selection(datastores=["one"] * 100_000)
MANY_TOKENS = [299] * 190_000
LARGE = pb.TreeLimits(max_nodes=1024)
MANY_TREES = pb.DraftRequest(limits=LARGE, contexts=[pb.Context(tokens=[1])] * 103)
HEAVY: dict[str, tuple[str, pb.DraftRequest | pb.CountRequest, str]] = {
    "empty contexts": (
        "Draft",
        pb.DraftRequest(contexts=[pb.Context()] * 280_000),
        "times datastores, is 560000",
    ),
    "names": (
        "Draft",
        pb.DraftRequest(selection=NAMES),
        "datastores named is 100000, expected at most 2",
    ),
    "names for counts": ("Count", pb.CountRequest(selection=NAMES), "datastores named is 100000"),
    "a long sequence": (
        "Count",
        pb.CountRequest(tokens=MANY_TOKENS),
        "number of tokens is 190000, expected at most",
    ),
    "large trees": ("Draft", MANY_TREES, "nodes of all trees is 210944, expected at most 209715"),
}


@pytest.mark.parametrize(("method", "request_", "what"), HEAVY.values(), ids=HEAVY)
def test_a_heavy_request_is_refused_by_its_numbers_alone(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, method: str, request_: Any, what: str
) -> None:
    read: list[str] = []
    for name in ("draft_batch", "count"):
        monkeypatch.setattr(Datastore, name, lambda *_, _name=name, **__: read.append(_name))
    assert len(refused(ArgumentError, lambda: answer(catalog, method, request_), what)) < 200
    assert read == []


def test_of_a_long_context_only_the_end_is_read(catalog: Catalog) -> None:
    assert answer(catalog, "Draft", pb.DraftRequest(contexts=[pb.Context(tokens=MANY_TOKENS)]))


def test_the_largest_requests_that_are_allowed_are_answered(catalog: Catalog) -> None:
    large = ServiceLimits(max_contexts=100_000, max_message_bytes=64 << 20)
    for limits in (LIMITS, ServiceLimits(max_contexts=1), large):
        contexts = [pb.Context(tokens=[(1 << 32) - 1] * 64)] * limits.max_contexts
        assert pb.DraftRequest(contexts=contexts).ByteSize() < limits.max_request_bytes
    assert answer(
        catalog, "Draft", pb.DraftRequest(limits=LARGE, contexts=[pb.Context(tokens=[1])] * 102)
    )
