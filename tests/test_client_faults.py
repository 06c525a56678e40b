"""Whatever happens to the service, the caller sees a right answer or the named error, within its deadline."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from rest_store.client.client import DatastoreClient
from rest_store.datastore import Datastore
from rest_store.errors import (
    CircuitOpenError,
    DeadlineError,
    ProtocolError,
    RestStoreError,
    ServiceInternalError,
    ServiceUnavailableError,
)
from rest_store.tree import TokenTree
from rest_store.v1 import datastore_pb2 as pb
from tests.services import PATIENCE, Service, running
from tests.strategies import Corpus, refused, write_datastore
from tests.test_client import SHARD, VOCABULARY, Waiting

LATE = 0.3  # seconds of a deadline that is meant to pass
SLACK = 10.0  # seconds by which a busy machine may be late to notice


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_datastore(tmp_path_factory.mktemp("one"), Corpus(VOCABULARY, [SHARD]))


@pytest.fixture(scope="module")
def store(directory: Path) -> Datastore:
    return Datastore.open(directory)


@pytest.fixture
def service(directory: Path) -> Iterator[Service]:
    with running(directory) as service:
        yield service


@contextlib.contextmanager
def connected(kind: type[Any], *arguments: Any, **options: Any) -> Iterator[Any]:
    client = kind(*arguments, **{"timeout": PATIENCE, **options})
    try:
        yield client
    finally:
        client.close()
        if isinstance(client, Waiting):
            client.loop.close()


KINDS = pytest.mark.parametrize("kind", [DatastoreClient, Waiting], ids=["blocking", "asyncio"])


def answered(call: Any, attempts: int = 200) -> Any:
    """What `call` returns once the service is there again; each failure must be a named one."""
    for _ in range(attempts):
        with contextlib.suppress(ServiceUnavailableError, DeadlineError):
            return call()
    raise AssertionError("never answered")


def stepped(stream: Any, tokens: list[int]) -> TokenTree:
    """Take a step of `stream`; if it fails, its tokens are kept, and asking again without new ones is the same step."""
    with contextlib.suppress(ServiceUnavailableError, DeadlineError):
        return stream.draft(tokens)  # type: ignore[no-any-return]
    return answered(lambda: stream.draft([]))  # type: ignore[no-any-return]


@KINDS
def test_killed_and_restarted_within_generations(kind: type[Any], service: Service, store: Datastore) -> None:
    with connected(kind, service.target, pause=0.01, failure_threshold=1_000, timeout=5.0) as client:
        streams = [client.stream() for _ in range(20)]
        for place, stream in enumerate(streams):
            assert stream.draft([1, place % 6]) == store.draft([1, place % 6])
        service.kill()
        with pytest.raises(ServiceUnavailableError):
            streams[0].draft([2])
        service.restart()
        assert stepped(streams[0], [3]) == store.draft([1, 0, 2, 3])  # nothing was lost
        for place, stream in enumerate(streams[1:], 1):
            assert stepped(stream, [3]) == store.draft([1, place % 6, 3])
        assert client.draft([4, 5]) == store.draft([4, 5])
        assert client.statistics.streams_opened >= 40
        for stream in streams:
            stream.close()


@KINDS
def test_a_draining_service_hands_its_streams_over(kind: type[Any], directory: Path, store: Datastore) -> None:
    with (
        running(directory, options=["--drain-seconds", "0.2"]) as first,
        running(directory) as second,
        connected(kind, [first.target, second.target], timeout=10.0) as client,
    ):
        stream = client.stream()
        assert stream.draft([1, 2]) == store.draft([1, 2])
        assert first.stop() == 0
        assert stream.draft([3]) == store.draft([1, 2, 3])
        assert client.draft([4]) == store.draft([4])
        assert client.statistics.failovers >= 1
        assert client.statistics.unavailable == 0
        stream.close()


@KINDS
def test_a_paused_service_costs_a_deadline_and_late_answers_are_skipped(
    kind: type[Any], service: Service, store: Datastore
) -> None:
    with connected(kind, service.target, failure_threshold=1_000) as client:
        stream = client.stream(timeout=LATE)
        stepped(stream, [1, 2])
        before = client.statistics
        service.pause()
        for call in (lambda: stream.draft([3]), lambda: stream.draft([4]), lambda: client.draft([1], timeout=LATE)):
            began = time.monotonic()
            refused(DeadlineError, call, "late")
            assert LATE * 0.9 < time.monotonic() - began < LATE + SLACK
        service.resume()
        assert answered(lambda: stream.draft([])) == store.draft([1, 2, 3, 4])
        assert stream.draft([5]) == store.draft([1, 2, 3, 4, 5])
        after = client.statistics
        assert after.late_answers >= 2
        assert after.streams_opened == before.streams_opened  # the stream was not given up
        stream.close()


@KINDS
def test_a_stream_that_has_waited_too_often_is_replaced(kind: type[Any], service: Service, store: Datastore) -> None:
    with connected(kind, service.target, failure_threshold=1_000) as client:
        stream = client.stream(timeout=LATE)
        stepped(stream, [1])
        service.pause()
        for token in range(8):
            refused(DeadlineError, lambda: stream.draft([token % 6]))  # noqa: B023
        service.resume()
        assert answered(lambda: stream.draft([])) == store.draft([1, 0, 1, 2, 3, 4, 5, 0, 1])
        assert client.statistics.streams_opened >= 2
        stream.close()


@KINDS
def test_a_paused_endpoint_leaves_time_for_another(kind: type[Any], directory: Path, store: Datastore) -> None:
    with (
        running(directory) as first,
        running(directory) as second,
        connected(kind, [first.target, second.target], timeout=10.0) as client,
    ):
        stream = client.stream(timeout=2.0)
        assert stream.draft([1]) == client.draft([1])
        first.pause()
        assert stream.draft([2]) == store.draft([1, 2])
        assert client.draft([3], timeout=2.0) == store.draft([3])
        assert client.statistics.deadlines == 0
        stream.close()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@KINDS
def test_a_dead_service_is_left_alone_and_found_again(kind: type[Any], directory: Path, store: Datastore) -> None:
    with running(directory) as service, connected(kind, service.target, pause=LATE, retries=0) as client:
        client.draft([1])
        stream = client.stream()
        service.kill()
        for _ in range(5):
            with pytest.raises(ServiceUnavailableError):
                client.draft([1])
        refused(CircuitOpenError, lambda: client.draft([1]), "not asked")
        refused(CircuitOpenError, lambda: stream.draft([1]), "not asked")
        assert client.statistics.circuits_opened == 1
        assert client.statistics.not_asked == 2
        service.restart()
        assert answered(lambda: client.draft([1]), attempts=10_000_000) == store.draft([1])
        assert stream.draft([2]) == store.draft([1, 2])  # the token of the step not asked came along
        stream.close()


def test_a_source_never_raises_and_counts(service: Service, store: Datastore) -> None:
    empty = TokenTree([], [], [])
    with DatastoreClient(f"127.0.0.1:{free_port()}", failure_threshold=2, pause=100.0) as client:
        source = client.source()
        assert [source.draft([1]) for _ in range(3)] == [empty] * 3
        assert source.draft_batch([[1], [2]]) == [empty, empty]
        counts = client.statistics
        assert (counts.empty_answers, counts.calls, counts.answers) == (4, 4, 0)
        assert counts.not_asked >= 2
    with DatastoreClient(service.target, timeout=PATIENCE) as client:
        assert client.source().draft([1, 2]) == store.draft([1, 2])
        assert client.source().draft_batch([[1], [2]]) == store.draft_batch([[1], [2]])
        assert client.source().draft([VOCABULARY]) == empty
        assert client.statistics.empty_answers == 1


@contextlib.contextmanager
def saying(data: bytes | None) -> Iterator[str]:
    """A TCP server that says `data` to whoever connects, and then nothing; None: hangs up at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    kept.append(peer)
                    peer.sendall(data or b"")
                    if data is None:
                        peer.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE)
    for peer in kept:
        peer.close()


# HTTP/2: an empty SETTINGS frame, and the first bytes of a frame that says it is longer.
@pytest.mark.parametrize(
    "data", [None, b"", b"HTTP/1.1 400 no\r\n\r\n", bytes(9) + b"x" * 99, b"\0\0\0\4\0\0\0\0\0" + b"\0\1\0\0\1"]
)
@KINDS
def test_a_peer_that_speaks_otherwise_or_half(kind: type[Any], data: bytes | None) -> None:
    with saying(data) as target, connected(kind, target, timeout=LATE) as client:
        stream = client.stream()
        for call in (lambda: client.draft([1]), lambda: stream.draft([1]), client.info):
            began = time.monotonic()
            with pytest.raises((ServiceUnavailableError, DeadlineError, ServiceInternalError)):
                call()
            assert time.monotonic() - began < LATE + SLACK
        stream.close()


class Impostor:
    """A gRPC server that describes itself as ours and answers everything else with given bytes."""

    def __init__(self, answer: bytes) -> None:
        tokenizer = pb.TokenizerDescription(name="t", fingerprint="sha256:" + "0" * 64, vocabulary_size=9)
        described = pb.DescribeResponse(datastores=[pb.DatastoreDescription(name="a", tokenizer=tokenizer)])
        methods: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)
            for name in ("Draft", "LongestSuffixMatch", "Count")
        }
        methods["Describe"] = grpc.unary_unary_rpc_method_handler(lambda *_: described.SerializeToString())
        methods["DraftStream"] = grpc.stream_stream_rpc_method_handler(lambda requests, _: (answer for _ in requests))
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("rest_store.v1.DatastoreService", methods),)
        )
        self.target = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()


BROKEN = pb.Tree(nodes=bytes(20), match_length=1, match_count=1)  # a node with the context's own place as parent


EMPTY = pb.Tree()
MATCH = pb.LongestSuffixMatchResponse.Match
ASKING: dict[str, Any] = {
    "draft": lambda client: client.draft([1]),
    "stream": lambda client: client.stream().draft([1]),
    "match": lambda client: client.longest_suffix_match([1]),
    "count": lambda client: client.count([1]),
}


@pytest.mark.parametrize(
    ("asking", "answer"),
    [
        *((asking, b"\xff\xff") for asking in ASKING),
        ("draft", pb.DraftResponse()),
        ("draft", pb.DraftResponse(trees=[BROKEN], datastores=["a"])),
        ("draft", pb.DraftResponse(trees=[EMPTY] * 2, datastores=["a"])),
        ("draft", pb.DraftResponse(trees=[EMPTY] * 2, datastores=["b", "b"])),
        ("stream", pb.DraftStreamResponse()),
        ("stream", pb.DraftStreamResponse(trees=[BROKEN], datastores=["a"], sequence=1)),
        ("stream", pb.DraftStreamResponse(trees=[EMPTY] * 2, datastores=["a"], sequence=1)),
        ("stream", pb.DraftStreamResponse(trees=[EMPTY], sequence=1)),
        ("stream", pb.DraftStreamResponse(trees=[EMPTY], datastores=["a"], sequence=7)),
        ("match", pb.LongestSuffixMatchResponse()),
        ("match", pb.LongestSuffixMatchResponse(matches=[MATCH(datastore="a", length=17, count=1)])),
        ("match", pb.LongestSuffixMatchResponse(matches=[MATCH(datastore="a", length=1)])),
        ("count", pb.CountResponse()),
        ("count", pb.CountResponse(counts=[1, 2], datastores=["a"])),
    ],
)
@KINDS
def test_a_peer_with_wrong_answers(kind: type[Any], asking: str, answer: Any) -> None:
    impostor = Impostor(answer if isinstance(answer, bytes) else answer.SerializeToString())
    with connected(kind, impostor.target) as client:
        refused(ProtocolError, lambda: ASKING[asking](client), impostor.target)
        assert client.statistics.broken == 1
    impostor.server.stop(None).wait(PATIENCE)


def test_a_server_of_another_kind_is_none_of_ours() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with DatastoreClient(target, timeout=PATIENCE) as client:
        refused(ProtocolError, lambda: client.draft([1]), "UNIMPLEMENTED")
    server.stop(None).wait(PATIENCE)


def test_threads_share_a_client_through_restarts(service: Service, store: Datastore) -> None:
    contexts = [[a, b] for a in range(6) for b in range(6)]
    expected = {tuple(context): store.draft(context) for context in contexts}
    wrong: list[object] = []
    ready = threading.Barrier(9)

    def ask(client: DatastoreClient) -> None:
        ready.wait(PATIENCE)
        for context in contexts * 5:
            try:
                if client.draft(context) != expected[tuple(context)]:
                    wrong.append(context)
            except ServiceUnavailableError:
                pass
            except RestStoreError as error:
                wrong.append(error)

    with DatastoreClient(service.target, timeout=PATIENCE, failure_threshold=10**6, retries=0) as client:
        client.connect()
        threads = [threading.Thread(target=ask, args=(client,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        ready.wait(PATIENCE)
        service.kill()
        service.restart()
        for thread in threads:
            thread.join(PATIENCE)
        counts = client.statistics
    assert not wrong
    assert counts.calls == 8 * len(contexts) * 5 + 1
    assert counts.answers + counts.unavailable == counts.calls


@KINDS
def test_nothing_leaks(kind: type[Any], service: Service) -> None:
    def generations(number: int) -> None:
        with connected(kind, service.target) as client:
            for _ in range(number):
                stream = client.stream()
                stream.draft([1, 2])
                stream.close()

    def descriptors() -> int:
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    generations(3)
    before, threads = descriptors(), threading.active_count()
    generations(200)
    assert descriptors() < before + 20  # gRPC opens a few of its own when it likes, but none for each stream
    assert threading.active_count() < threads + 20


def test_cancelling_a_task_leaves_the_stream_usable(service: Service, store: Datastore) -> None:
    async def converse() -> TokenTree:
        client = Waiting(service.target, timeout=PATIENCE)
        client.loop.close()
        async with client.inner as inner, inner.stream() as stream:
            await stream.draft([1])
            service.pause()
            step = asyncio.ensure_future(stream.draft([2]))
            done, _ = await asyncio.wait((step,), timeout=LATE)
            assert not done
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            service.resume()
            tree: TokenTree = await stream.draft([3])
            return tree

    assert asyncio.run(converse()) == store.draft([1, 2, 3])


FORKED = """
import os, sys
from rest_store import DatastoreClient
from rest_store.errors import ServiceUnavailableError
used, fresh = (DatastoreClient(sys.argv[1], timeout=60) for _ in range(2))
used.draft([1])
if os.fork() == 0:
    try:
        used.draft([1])
    except ServiceUnavailableError as error:
        os._exit(7 if "fork" in str(error) else 8)
    os._exit(9)
print(os.waitstatus_to_exitcode(os.wait()[1]), len(used.draft([1])) > 0)
"""


def test_a_forked_process_is_told_to_make_its_own_client(service: Service) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, service.target], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.split() == ["7", "True"]
