"""Requests are weighed before anything is made of them, and what they took is given back."""

from __future__ import annotations

import asyncio
import gc
import io
import tracemalloc
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from rest_store.service.server.handlers import Handlers, StreamState
from rest_store.service.server.logs import EventLog
from rest_store.service.server.session_handlers import SessionHandlers, SessionState
from rest_store.service.server.shared_stream import SharedStream

from rest_store.datastore.datastore import Datastore
from rest_store.errors import LimitError, MessageOrderError, MessageSizeError
from rest_store.service.address import Address
from rest_store.service.server import handlers as handlers_module
from rest_store.service.server import session_handlers, shared_stream
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.executor import Executor
from rest_store.service.server.limits import Limits
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.rights import Rights
from rest_store.service.server.server import Options, Server
from rest_store.service.server.sessions import Sessions
from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc
from tests.shared.services import PATIENCE
from tests.shared.strategies import Corpus, refused, write_datastore

LIMITS = Limits()
EVIDENCE = pb.EvidenceLimits(max_rows=1)
FIRST_STEP = pb.DraftSessionRequest(open=pb.SessionOpening(tokens=[1]), draft=pb.TreeRequest())


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    corpus = Corpus(300, [[[1, 2, 3, 4], [1, 2, 3, 5]]])
    directory = write_datastore(tmp_path_factory.mktemp("served"), corpus)
    return Catalog([("one", directory), ("two", directory)])


class AllHandlers(NamedTuple):
    """The handlers of calls that ask, and of sessions."""

    asking: Handlers
    sessions: SessionHandlers
    limits: Limits


def handlers_with(catalog: Catalog, limits: Limits) -> AllHandlers:
    parts = (catalog, limits, Metrics([], "1", "native"), Executor(ThreadPoolExecutor(1)), Sessions(limits))
    return AllHandlers(Handlers(*parts), SessionHandlers(*parts), limits)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what was read of datastores: none, where a request is refused before."""
    read: list[str] = []
    for owner, name in [
        (Datastore, "draft_batch"),
        (Datastore, "longest_suffix_match"),
        (Datastore, "count"),
        (handlers_module, "collect_evidence"),
    ]:
        monkeypatch.setattr(owner, name, lambda *_, _name=name, **__: read.append(_name))
    return read


def answer(handlers: AllHandlers, method: str, data: bytes) -> bytes:
    asking = handlers.asking
    handle: dict[str, Callable[[bytes], Coroutine[Any, Any, bytes | None]]] = {
        "Draft": lambda data: asking.draft(data, Rights()),
        "DraftStream": lambda data: asking.draft_step(StreamState(Rights()), data),
        "LongestSuffixMatch": lambda data: asking.longest_suffix_match(data, Rights()),
        "Count": lambda data: asking.count(data, Rights()),
        "DraftSession": lambda data: handlers.sessions.step(SessionState(Rights()), data),
        "DraftSessions": lambda data: shared_answer(handlers, data),
    }
    answered = asyncio.run(handle[method](data))
    assert answered is not None
    return answered


async def shared_answer(handlers: AllHandlers, data: bytes) -> bytes:
    """The answer to the first message of a stream that sessions share."""
    written: list[bytes] = []

    async def write(message: bytes) -> None:
        written.append(message)

    def raised(error: Exception) -> Any:
        raise error

    stream = SharedStream(handlers.sessions, Rights(), handlers.limits, write, raised, lambda: None)
    await stream.take(data)
    [message] = written
    return message


def proposed(number: int, contexts: int = 1) -> pb.DraftRequest:
    tree = pb.Proposals(tokens=[1] * number, parents=[-1] * number)
    return pb.DraftRequest(evidence=EVIDENCE, contexts=[pb.Context(tokens=[1], proposals=tree)] * contexts)


NAMES = pb.Selection(datastores=["one"] * 100_000)
MANY_TOKENS = [299] * 200_000
OPENING = pb.DraftSessionRequest(open=pb.SessionOpening(tokens=[1])).SerializeToString()
HEAVY: dict[str, tuple[str, bytes, str, str]] = {
    "empty contexts": ("Draft", b"\x1a\x00" * 280_000, "number of contexts, times datastores", "560000"),
    "empty contexts for evidence": (
        "Draft",
        b"\x1a\x00" * 280_000 + pb.DraftRequest(evidence=EVIDENCE).SerializeToString(),
        "number of contexts, times datastores",
        "560000",
    ),
    "large trees": (
        "Draft",
        pb.DraftRequest(
            limits=pb.DraftLimits(max_nodes=65536), contexts=[pb.Context(tokens=[1])] * 10
        ).SerializeToString(),
        "each 1024 nodes",
        "1280",
    ),
    "parts": (
        "Draft",
        pb.DraftRequest(selection=pb.Selection(parts=[pb.PartDescription()] * 100_000)).SerializeToString(),
        "number of datastores named",
        "100000",
    ),
    "proposals of many contexts": (
        "Draft",
        proposed(80, 500).SerializeToString(),
        "number of all proposals",
        "40000",
    ),
    "proposals": ("Draft", proposed(100_000).SerializeToString(), "number of all proposals", "100000"),
    "proposals of a stream": (
        "DraftStream",
        pb.DraftStreamRequest(tokens=[1], evidence=EVIDENCE, proposals=proposed(100_000).contexts[0].proposals)
        .SerializeToString(),
        "number of all proposals",
        "100000",
    ),
    "names": ("Draft", pb.DraftRequest(selection=NAMES).SerializeToString(), "number of datastores named", "100000"),
    "names of a stream": (
        "DraftStream",
        pb.DraftStreamRequest(selection=NAMES, tokens=[1]).SerializeToString(),
        "number of datastores named",
        "100000",
    ),
    "names for a match": (
        "LongestSuffixMatch",
        pb.LongestSuffixMatchRequest(selection=NAMES, tokens=[1]).SerializeToString(),
        "number of datastores named",
        "100000",
    ),
    "names for counts": (
        "Count",
        pb.CountRequest(selection=NAMES, sequences=[pb.TokenSequence(tokens=[1])]).SerializeToString(),
        "number of datastores named",
        "100000",
    ),
    "names of a session": (
        "DraftSession",
        pb.DraftSessionRequest(open=pb.SessionOpening(selection=NAMES)).SerializeToString(),
        "number of datastores named",
        "100000",
    ),
    "a long text": (
        "DraftSession",
        pb.DraftSessionRequest(open=pb.SessionOpening(tokens=[1] * 300_000)).SerializeToString(),
        "session: number of tokens",
        "300000",
    ),
    "empty accepted": ("DraftSession", OPENING + b"\x12\x00" * 280_000, "number of accepted", "280000"),
    "costs": (
        "DraftSession",
        OPENING + pb.DraftSessionRequest(draft=pb.TreeRequest(costs=pb.StepCosts(of_step=[1.0] * 70_000)))
        .SerializeToString(),
        "number of costs",
        "70000",
    ),
    "empty sequences": ("Count", b"\x12\x00" * 280_000, "number of contexts, times datastores", "560000"),
    "a long sequence": (
        "Count",
        pb.CountRequest(sequences=[pb.TokenSequence(tokens=MANY_TOKENS)]).SerializeToString(),
        "length of sequence 0",
        "200000",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HEAVY)
def test_a_heavy_request_is_refused_by_its_numbers_alone(catalog: Catalog, unread: list[str], case: str) -> None:
    method, data, what, amount = HEAVY[case]
    assert len(data) <= LIMITS.max_request_bytes
    handlers = handlers_with(catalog, LIMITS)
    tracemalloc.start()
    try:
        message = refused(LimitError, lambda: answer(handlers, method, data), what, amount)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert unread == []
    assert len(message) < 200
    assert peak < 1 << 20  # and no object was made for each part


@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("Draft", pb.DraftRequest(contexts=[pb.Context(tokens=MANY_TOKENS)]).SerializeToString()),
        (
            "Draft",
            pb.DraftRequest(contexts=[pb.Context(tokens=MANY_TOKENS)], evidence=EVIDENCE).SerializeToString(),
        ),
        ("DraftStream", pb.DraftStreamRequest(tokens=MANY_TOKENS).SerializeToString()),
        ("DraftStream", pb.DraftStreamRequest(tokens=MANY_TOKENS, evidence=EVIDENCE).SerializeToString()),
        ("LongestSuffixMatch", pb.LongestSuffixMatchRequest(tokens=MANY_TOKENS).SerializeToString()),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_of_a_long_context_only_the_end_is_read(catalog: Catalog, method: str, data: bytes) -> None:
    handlers = handlers_with(catalog, LIMITS)
    tracemalloc.start()
    try:
        assert answer(handlers, method, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_all_proposals_that_a_tree_may_have_are_taken(catalog: Catalog) -> None:
    assert answer(handlers_with(catalog, LIMITS), "Draft", proposed(1024).SerializeToString())
    assert answer(handlers_with(catalog, LIMITS), "Draft", proposed(2, contexts=512).SerializeToString())
    larger = Limits(max_contexts=4096)
    assert answer(handlers_with(catalog, larger), "Draft", proposed(2, contexts=2048).SerializeToString())


def test_a_datastore_named_twice_answers_twice(catalog: Catalog) -> None:
    request = proposed(1)
    request.selection.datastores.extend(["one", "two", "one"])
    data = answer(handlers_with(catalog, LIMITS), "Draft", request.SerializeToString())
    response = pb.DraftResponse.FromString(data)
    assert list(response.datastores) == ["one", "two", "one"]
    assert len(response.evidence) == 3


def test_the_largest_request_that_is_allowed_is_not_too_large() -> None:
    for limits in (LIMITS, Limits(max_contexts=1), Limits(max_contexts=100_000, max_message_bytes=64 << 20)):
        most = limits.max_contexts
        contexts = [pb.Context(tokens=[(1 << 32) - 1] * 64)] * most
        assert pb.DraftRequest(contexts=contexts).ByteSize() < limits.max_request_bytes
        each = limits.max_proposals // most
        tree = pb.Proposals(tokens=[(1 << 31) - 1] * each, parents=[-each] * each, scores=[0.5] * each)
        contexts = [pb.Context(tokens=[(1 << 32) - 1] * 64, proposals=tree)] * most
        assert pb.DraftRequest(evidence=EVIDENCE, contexts=contexts).ByteSize() < limits.max_request_bytes
    assert Limits(max_message_bytes=5000).max_request_bytes == 5000


def test_an_answer_that_is_too_large_is_given_up_on_the_way(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    drafted = 0
    continuations = Datastore.continuations

    def counted(self: Datastore, contexts: Any, *limits: int) -> Any:
        nonlocal drafted
        drafted += len(contexts)
        return continuations(self, contexts, *limits)

    monkeypatch.setattr(Datastore, "continuations", counted)
    contexts = [pb.Context(tokens=[1])] * 500
    request = pb.DraftRequest(limits=pb.DraftLimits(max_nodes=1024), contexts=contexts).SerializeToString()
    assert answer(handlers_with(catalog, LIMITS), "Draft", request)
    assert drafted == 1000
    drafted = 0
    handlers = handlers_with(catalog, Limits(max_message_bytes=1024))
    refused(MessageSizeError, lambda: answer(handlers, "Draft", request), "response: size is more than", "at most 1024")
    assert drafted < 50


class Watched:
    """A message that a weak reference can watch."""

    def __init__(self, message: Any) -> None:
        self.message = message

    def __getattr__(self, name: str) -> Any:
        return getattr(self.message, name)


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Watched]]:
    """References to all messages that are parsed."""
    parsed: list[weakref.ref[Watched]] = []
    parse = handlers_module.parse
    modules = (handlers_module, session_handlers, shared_stream)

    def watched(kind: Any, data: bytes) -> Any:
        message = Watched(parse(kind, data))
        parsed.append(weakref.ref(message))
        return message

    for module in modules:
        monkeypatch.setattr(module, "parse", watched)
    return parsed


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Draft", pb.DraftRequest(contexts=[pb.Context(tokens=[1])])),
        ("Draft", proposed(3)),
        ("DraftStream", pb.DraftStreamRequest(selection=pb.Selection(datastores=["one"]), tokens=[1])),
        ("DraftStream", pb.DraftStreamRequest(tokens=[1], evidence=EVIDENCE)),
        ("LongestSuffixMatch", pb.LongestSuffixMatchRequest(tokens=[1])),
        ("Count", pb.CountRequest(sequences=[pb.TokenSequence(tokens=[1])])),
        ("DraftSession", FIRST_STEP),
        (
            "DraftSessions",
            pb.DraftSessionsRequest(steps=[pb.SessionStep(session=1, request=FIRST_STEP.SerializeToString())]),
        ),
    ],
)
def test_no_message_is_held_while_its_work_waits(
    catalog: Catalog, messages: list[weakref.ref[Watched]], monkeypatch: pytest.MonkeyPatch, method: str, request_: Any
) -> None:
    held = []
    run = Executor.run

    async def looking(self: Executor, tasks: Any, *, small: bool) -> Any:
        held.extend(message() for message in messages)
        return await run(self, tasks, small=small)

    monkeypatch.setattr(Executor, "run", looking)
    assert answer(handlers_with(catalog, LIMITS), method, request_.SerializeToString())
    assert held
    assert set(held) == {None}


def test_a_refused_message_is_given_back_at_once(
    tmp_path: Path, messages: list[weakref.ref[Watched]]
) -> None:  # not by the garbage collector, some time later
    directory = write_datastore(tmp_path, Corpus(300, [[[1, 2, 3]]]))

    async def run() -> None:
        options = Options([("served", directory)], [Address.parse("127.0.0.1:0")])
        server = Server(options, "1", EventLog(file=io.StringIO()))
        (target,) = await server.start()
        async with grpc.aio.insecure_channel(target) as channel:
            stub: Any = datastore_pb2_grpc.DatastoreServiceStub(channel)
            gc.disable()
            try:
                with pytest.raises(grpc.RpcError):
                    await stub.Draft(pb.DraftRequest(contexts=[pb.Context()]), timeout=PATIENCE)
                call = stub.DraftStream(timeout=PATIENCE)
                await call.write(pb.DraftStreamRequest())
                with pytest.raises(grpc.RpcError):
                    await call.read()
                assert [message() for message in messages] == [None, None]
            finally:
                gc.enable()
        await server.drain()

    asyncio.run(run())


def test_a_session_begins_with_its_opening_and_has_one(catalog: Catalog) -> None:
    handlers = handlers_with(catalog, Limits()).sessions
    selection = pb.Selection(datastores=["one"])
    opening = pb.DraftSessionRequest(open=pb.SessionOpening(selection=selection)).SerializeToString()
    state = SessionState(Rights())
    refused(MessageOrderError, lambda: asyncio.run(handlers.step(state, b"")), "opening is absent")
    assert asyncio.run(handlers.step(state, opening)) is None
    refused(MessageOrderError, lambda: asyncio.run(handlers.step(state, opening)), "opening is second")
