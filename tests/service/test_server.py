"""A real service answers as its datastores do, and refuses other requests by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from rest_store.service.statuses import STATUSES
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.services import PATIENCE, Service, reason_of, running
from tests.shared.sessions import SessionTalk, opening, step
from tests.shared.strategies import Corpus, write_datastore

Stub = Any  # generated code has no types
LIMITS = ["--max-contexts", "100", "--max-streams", "3"]


@pytest.fixture(scope="module")
def service(pages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    other = write_datastore(tmp_path_factory.mktemp("other"), Corpus(301, [[[1, 2, 3]]]))
    with running(f"one={pages}", f"two={pages}", f"other={other}", options=LIMITS) as service:
        yield service


@pytest.fixture(scope="module")
def stub(service: Service) -> Iterator[Stub]:
    with service.stub() as stub:
        yield stub


BOTH = pb.Selection(datastores=["one", "two"])


def contexts_of(*tokens: list[int]) -> list[pb.Context]:
    return [pb.Context(tokens=each) for each in tokens]


ONE = pb.Selection(datastores=["one"])


def draft(*tokens: list[int], selection: pb.Selection = ONE, **limits: int) -> pb.DraftRequest:
    return pb.DraftRequest(
        selection=selection, contexts=contexts_of(*tokens), limits=pb.TreeLimits(**limits)
    )


def count(*tokens: int) -> pb.CountRequest:
    return pb.CountRequest(selection=ONE, tokens=tokens)


def ask(stub: Stub, request: Message) -> object:
    """Send a request to the method that takes it."""
    return getattr(stub, request.DESCRIPTOR.name.removesuffix("Request"))(request, timeout=PATIENCE)


def chosen(*names: str, tokenizer: str = "") -> pb.DraftRequest:
    return pb.DraftRequest(
        selection=pb.Selection(datastores=names, tokenizer_fingerprint=tokenizer)
    )


REFUSED: list[tuple[str, str, Message]] = [
    ("QUERY", "context 1", draft([1], [])),
    ("QUERY", "tokens", count()),
    ("QUERY", "context 1", draft([1], [300])),
    ("QUERY", "context 70", draft(*[[1]] * 70, [2**32 - 1])),
    ("QUERY", "token id in tokens is 300", count(1, 300)),
    ("ARGUMENT", "max_nodes", draft(max_nodes=1025)),
    ("ARGUMENT", "max_suffix", draft(max_suffix=65)),
    ("ARGUMENT", "max_depth", draft(max_depth=33)),
    ("ARGUMENT", "102", draft(*[[1]] * 51, selection=BOTH)),
    ("TOKENIZER_MISMATCH", "several", chosen()),
    ("TOKENIZER_MISMATCH", "several", chosen("one", "other")),
    ("TOKENIZER_MISMATCH", "sha256:00", chosen(tokenizer="sha256:00")),
    ("TOKENIZER_MISMATCH", "'one'", chosen("one", tokenizer="sha256:00")),
    ("UNKNOWN_DATASTORE", "'three'", chosen("one", "three")),
    ("UNKNOWN_DATASTORE", "name", chosen("x" * 50_000)),
    ("MESSAGE_SIZE", "request", draft([70_000] * 400_000)),
]


@pytest.mark.parametrize(("reason", "fragment", "request_"), REFUSED)
def test_a_bad_request_is_refused_by_name(
    stub: Stub, reason: str, fragment: str, request_: Message
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        ask(stub, request_)
    assert reason_of(caught.value) == reason
    assert caught.value.code().name == next(
        status.code for status in STATUSES if status.reason == reason
    )
    assert ", expected " in caught.value.details()
    assert fragment in caught.value.details()


def test_a_message_that_grpc_itself_refuses_leaves_the_connection_usable(stub: Stub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Draft(draft([2**32 - 1] * 2_500_000))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(stub.Draft(draft([1])).trees) == 1


def test_a_malformed_message_is_an_error_of_ours(service: Service) -> None:
    with service.channel() as channel:
        for method in ("Draft", "Count", "Describe", "Add", "Delete"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(f"/rest_store.v1.DatastoreService/{method}")(b"\x0a\xff")
            assert reason_of(caught.value) == "CONTEXT_TYPE"


def test_streams_beyond_the_limit_are_refused_at_once(service: Service) -> None:
    first = opening(1, selection=ONE)
    with service.stub() as stub:
        talks = [SessionTalk(stub) for _ in range(3)]
        for talk in talks:
            talk.ask(first)
        with pytest.raises(grpc.RpcError) as caught:
            SessionTalk(stub).ask(first)
        assert reason_of(caught.value) == "OVERLOADED"
        for talk in talks:
            assert talk.ask(step(1)).tree.nodes
            talk.close()


def test_work_beyond_the_limit_is_refused_at_once(pages: Path) -> None:
    request = pb.DraftRequest(
        limits=pb.TreeLimits(max_nodes=1024), contexts=contexts_of(*[[1]] * 200)
    )
    with running(pages, options=["--max-in-flight", "2"]) as service, service.stub() as stub:
        calls = [stub.Draft.future(request, timeout=PATIENCE) for _ in range(60)]
        reasons = [
            None if call.exception() is None else reason_of(call.exception()) for call in calls
        ]
        assert set(reasons) == {None, "OVERLOADED"}
        assert len(stub.Draft(request).trees) == 200  # what was in flight has left
