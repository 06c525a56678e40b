"""Writes that a service refuses: each has a status of its own, and changes nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from rest_store.errors import (
    DatastoreFormatError,
    DocumentError,
    OverloadedError,
    QueryError,
    UnknownDatastoreError,
)
from rest_store.live.added_documents import AddedDocuments
from rest_store.live.live_datastore import LiveDatastore
from rest_store.service.bearer_tokens import ALL_ALLOWED
from rest_store.service.client.client import DatastoreClient
from rest_store.service.server import writes
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.service_limits import ServiceLimits
from rest_store.service.server.writes import Writes
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.clients import KINDS, connected
from tests.shared.services import PATIENCE, Service, reason_of, running
from tests.shared.strategies import identity, refused

VOCABULARY = 300
MAX_TOKENS = 4000


@pytest.fixture(scope="module")
def service(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a frozen datastore "a" and a live one "chat" with one document."""
    live = tmp_path_factory.mktemp("live") / "chat"
    with LiveDatastore.open(live, tokenizer=identity(VOCABULARY), max_tokens=MAX_TOKENS) as store:
        store.add([[1, 2, 3]], ["kept"])
    options = ["--live", str(live), "--max-contexts", "32"]
    with running(f"a={directory}", options=options) as service:
        yield service


def document(tokens: Sequence[int] = (1, 2), id: str = "x") -> pb.Document:
    return pb.Document(tokens=np.array(tokens, "<u4").tobytes(), id=id)


def addition(*documents: pb.Document, **fields: Any) -> pb.AddRequest:
    return pb.AddRequest(documents=documents, **{"datastore": "chat", **fields})


REFUSED = {
    "unknown": (
        addition(document(), datastore="no"),
        "UNKNOWN_DATASTORE",
        "name of a datastore is 'no'",
    ),
    "frozen": (
        addition(document(), datastore="a"),
        "WRONG_KIND",
        "datastore 'a' is frozen, expected a live one",
    ),
    "another tokenizer": (
        addition(document(), tokenizer_fingerprint="sha256:1"),
        "TOKENIZER_MISMATCH",
        "the client's tokenizer is 'sha256:1'",
    ),
    "outside the vocabulary": (
        addition(document(), document([1, VOCABULARY])),
        "QUERY",
        "token id in document 1 is 300, expected 0..299",
    ),
    "negative": (addition(document([2**32 - 1])), "QUERY", "token id in document 0 is -1"),
    "empty": (addition(document(), document([])), "DOCUMENT", "document 1 is empty"),
    "cut off": (
        addition(pb.Document(tokens=b"\1\0\0\0\1", id="x")),
        "DOCUMENT",
        "document 0 is 5 bytes, expected",
    ),
    "too large to keep": (
        addition(document([1] * (MAX_TOKENS + 1))),
        "DOCUMENT",
        "document 0 has 4001 tokens",
    ),
    "too large a message": (
        addition(document([1] * 1_100_000)),
        "MESSAGE_SIZE",
        "request: size is 440",
    ),
    "too many": (
        addition(*[document()] * 33),
        "ARGUMENT",
        "number of documents is 33, expected at most 32",
    ),
    "no id": (addition(document(id="")), "DOCUMENT", "add: an id is ''"),
    "long id": (addition(document(id="x" * 257)), "DOCUMENT", "an id is 'xxxx"),
    "id with NUL": (addition(document(id="x\0y")), "DOCUMENT", r"an id is 'x\x00y'"),
    "delete in a frozen one": (
        pb.DeleteRequest(datastore="a", ids=["kept"]),
        "WRONG_KIND",
        "datastore 'a' is frozen",
    ),
    "delete no id": (
        pb.DeleteRequest(datastore="chat", ids=[""]),
        "DOCUMENT",
        "delete: an id is ''",
    ),
    "delete a long id": (
        pb.DeleteRequest(datastore="chat", ids=["x" * 10_000]),
        "DOCUMENT",
        "an id is 'xxxx",
    ),
    "delete too many": (
        pb.DeleteRequest(datastore="chat", ids=["kept"] * 33),
        "ARGUMENT",
        "number of ids is 33",
    ),
}


@pytest.mark.parametrize(("request_", "reason", "actual"), REFUSED.values(), ids=REFUSED)
def test_each_bad_request_has_its_status(
    request_: Any, reason: str, actual: str, service: Service
) -> None:
    with service.stub() as stub:
        method = stub.Add if isinstance(request_, pb.AddRequest) else stub.Delete
        with pytest.raises(grpc.RpcError) as caught:
            method(request_, timeout=PATIENCE)
        assert reason_of(caught.value) == reason
        assert actual in caught.value.details()
        [_, chat] = stub.Describe(pb.DescribeRequest()).datastores
        assert (chat.token_count, chat.document_count) == (3, 1)


def test_ids_of_no_document_are_passed_over(service: Service) -> None:
    with service.stub() as stub:
        for id in ("x" * 256, "\u00fc\U0001f600"):
            assert (
                stub.Delete(pb.DeleteRequest(datastore="chat", ids=[id]), timeout=PATIENCE).deleted
                == 0
            )


BAD_DOCUMENTS: dict[str, tuple[Any, Any, str]] = {
    "no list": (5, DocumentError, "documents is a int"),
    "text": ("ab", DocumentError, "documents is a str"),
    "texts": (["ab"], DocumentError, "document 0 is 0-D <U2, expected 1-D integers"),
    "2-D": ([[[1]]], DocumentError, "document 0 is 2-D int64"),
    "ragged": ([[1, [2]]], DocumentError, "document 0 is list"),
    "empty": ([[1], []], DocumentError, "document 1 is empty"),
    "outside": ([[1], [2, VOCABULARY]], QueryError, "token id in document 1 is 300"),
    "negative": ([[-1]], QueryError, "token id in document 0 is -1"),
    "too large to keep": (
        [[1] * (MAX_TOKENS + 1)],
        DocumentError,
        "document 0 has 4001 tokens, expected at most 4000",
    ),
}
BAD_IDS: dict[str, tuple[Any, str]] = {
    "too few": ([], "number of ids is 0, expected 1"),
    "too many": (["x", "y"], "number of ids is 2, expected 1"),
    "text": ("x", "ids is a str"),
    "a set": ({"x"}, "ids is a set"),
    "number": ([5], "an id is 5"),
    "empty": ([""], "an id is ''"),
    "long": (["x" * 257], "an id is 'xxxxx"),
    "NUL": (["\0"], r"an id is '\x00'"),
    "surrogate": (["\ud800"], r"an id is '\ud800'"),
}


@KINDS
def test_what_clients_refuse(kind: Any, service: Service) -> None:
    with connected(kind, service.target) as client:
        for documents, error, actual in BAD_DOCUMENTS.values():
            refused(error, lambda documents=documents: client.add(documents), actual)
        for ids, actual in BAD_IDS.values():
            refused(DocumentError, lambda ids=ids: client.add([[1]], ids), actual)
            if len(ids) != 2 and ids != []:
                refused(DocumentError, lambda ids=ids: client.delete(ids), actual)
        for name, error, actual in (
            ("a", DatastoreFormatError, "datastore 'a' is frozen"),
            ("no", UnknownDatastoreError, "name of a datastore is 'no'"),
            ("", UnknownDatastoreError, "datastore to write to is ''"),
            (5, UnknownDatastoreError, "datastore to write to is 5"),
            ("\ud800", UnknownDatastoreError, r"datastore to write to is '\ud800'"),
        ):
            refused(error, lambda name=name: client.add([[1]], datastore=name), actual)
            refused(error, lambda name=name: client.delete(["x"], datastore=name), actual)
        assert [one.document_count for one in client.info().datastores] == [1, 1]


def test_a_client_of_frozen_datastores_has_to_name_a_live_one(service: Service) -> None:
    with DatastoreClient(service.target, datastore="a", timeout=PATIENCE) as client:
        refused("live", lambda: client.add([[1]]), "datastore 'a' is frozen, expected a live one")
        assert client.delete(client.add([[1]], datastore="chat"), datastore="chat") == 1


def test_of_several_live_datastores_one_is_named_to_write_to(tmp_path: Path) -> None:
    options = [part for name in "ab" for part in ("--live", f"{name}={tmp_path / name}")]
    for name in "ab":
        LiveDatastore.open(tmp_path / name, tokenizer=identity(300)).close()
    with (
        running(options=options) as service,
        DatastoreClient(service.target, timeout=PATIENCE) as client,
    ):
        expected = "not named, and 2 are live, expected the name of a live one"
        refused(UnknownDatastoreError, lambda: client.add([[1]]), expected)
        assert len(client.add([[1]], datastore="b")) == 1


def removal(*ids: str) -> pb.DeleteRequest:
    return pb.DeleteRequest(datastore="chat", ids=ids)


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (addition(document([1] * 5000)), 1),
        (addition(*[document([1])] * 9), 9),
        (removal(*"abcdefgh"), 8),
    ],
)
def test_what_waits_to_be_written_is_bounded(
    request_: Any, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog([], [("chat", tmp_path / "chat")], identity(VOCABULARY))
    [served] = catalog.served
    go_on = threading.Event()

    def slowly(result: Any) -> Any:
        assert go_on.wait(PATIENCE)
        return result

    monkeypatch.setattr(
        served.store, "add", lambda _, ids, **options: slowly(AddedDocuments(ids, set(ids)))
    )
    monkeypatch.setattr(served.store, "delete", lambda ids, **options: slowly(len(ids)))
    request = request_.SerializeToString()
    least = len(request) + (1 + parts) * writes._ITEM_BYTES
    monkeypatch.setattr(writes, "_MAX_BYTES", int(2.5 * least))
    handlers = Writes(catalog, ServiceLimits())
    handle = handlers.add if isinstance(request_, pb.AddRequest) else handlers.delete

    async def run() -> None:
        tasks = [asyncio.create_task(handle(request, ALL_ALLOWED)) for _ in range(3)]
        await asyncio.wait(tasks, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        refusals = [task.exception() for task in tasks if task.done()]
        assert [type(refusal) for refusal in refusals] == [OverloadedError]
        left = next(task for task in tasks if not task.done())
        left.cancel()
        await asyncio.wait([left])
        with pytest.raises(OverloadedError):
            await handle(request, ALL_ALLOWED)  # what a client has left goes on
        go_on.set()
        await asyncio.wait(tasks)
        while handlers._waiting.used:
            await asyncio.sleep(0)
        assert await handle(request, ALL_ALLOWED)

    asyncio.run(run())
    catalog.close()
