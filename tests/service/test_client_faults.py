"""Whatever happens to the service, the caller gets a right answer or a named error, within its deadline."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.errors import (
    CircuitOpenError,
    DeadlineError,
    RestStoreError,
    ServiceUnavailableError,
)
from rest_store.service.client.client import DatastoreClient
from tests.service.test_client import SHARD, VOCABULARY
from tests.shared.clients import KINDS, LATE, SLACK, Waiting, connected
from tests.shared.services import PATIENCE, Service, failed, running
from tests.shared.sessions import Relay
from tests.shared.strategies import Corpus, write_datastore


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


def answered(call: Any, attempts: int = 200) -> Any:
    """What `call` returns once the service is back; each failure before must be a named one."""
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
            failed(DeadlineError, call, "did not answer before the deadline")
            assert LATE * 0.9 < time.monotonic() - began < LATE + SLACK
        service.resume()
        assert answered(lambda: stream.draft([])) == store.draft([1, 2, 3, 4])
        assert stepped(stream, [5]) == store.draft([1, 2, 3, 4, 5])
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
            failed(DeadlineError, lambda: stream.draft([token % 6]))  # noqa: B023
        service.resume()
        assert answered(lambda: stream.draft([])) == store.draft([1, 0, 1, 2, 3, 4, 5, 0, 1])
        assert client.statistics.streams_opened >= 2
        stream.close()


@KINDS
def test_a_stream_that_something_between_has_ended_is_replaced(
    kind: type[Any], service: Service, store: Datastore
) -> None:
    """A proxy may say that a deadline has passed; no answer comes after that."""
    with Relay(service.target) as relay, connected(kind, relay.target, retries=0) as client:
        stream = client.stream()
        assert stream.draft([1]) == store.draft([1])
        relay.aborts = grpc.StatusCode.DEADLINE_EXCEEDED
        failed(ServiceUnavailableError, lambda: stream.draft([2]), "by something between")
        relay.aborts = None
        assert stream.draft([3]) == store.draft([1, 2, 3])
        assert client.statistics.streams_opened == 2
        stream.close()


@KINDS
def test_a_paused_endpoint_leaves_time_for_another(kind: type[Any], directory: Path, store: Datastore) -> None:
    with (
        running(directory) as first,
        running(directory) as second,
        connected(kind, [first.target, second.target], timeout=10.0) as client,
    ):
        stream = client.stream(timeout=5.0)
        assert stream.draft([1]) == client.draft([1])
        first.pause()
        assert stream.draft([2]) == store.draft([1, 2])
        assert client.draft([3], timeout=5.0) == store.draft([3])
        assert client.statistics.deadlines == 0
        stream.close()


@KINDS
def test_a_dead_service_is_left_alone_and_found_again(kind: type[Any], directory: Path, store: Datastore) -> None:
    with running(directory) as service, connected(kind, service.target, pause=PATIENCE, retries=0) as client:
        client.draft([1])
        stream = client.stream()
        service.kill()
        for _ in range(5):
            with pytest.raises(ServiceUnavailableError):
                client.draft([1])
        failed(CircuitOpenError, lambda: client.draft([1]), "was not called")
        failed(CircuitOpenError, lambda: stream.draft([1]), "was not called")
        assert client.statistics.circuits_opened == 1
        assert client.statistics.not_asked == 2
        service.restart()
        (member,) = (client.inner if kind is Waiting else client)._endpoints.members
        member.circuit._until, member.circuit._pause = 0.0, LATE  # the pause has passed, and the next ones are short
        assert answered(lambda: client.draft([1]), attempts=10_000_000) == store.draft([1])
        assert stream.draft([2]) == store.draft([1, 2])  # the token of the step not asked came along
        stream.close()


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
def test_a_deadline_that_has_passed_before_the_call_is_no_failure_of_the_endpoint(
    kind: type[Any], service: Service, store: Datastore
) -> None:
    with connected(kind, service.target, failure_threshold=1, pause=100.0) as client:
        client.connect()
        stream = client.stream(timeout=1e-9)
        for ask in (lambda: client.draft([1], timeout=1e-9), lambda: stream.draft([1])):
            failed(DeadlineError, ask, "the deadline passed")
        assert client.draft([1]) == store.draft([1])  # the circuit is still closed
        counts = client.statistics
        assert (counts.deadlines, counts.circuits_opened) == (2, 0)
        stream.close()
