"""From its first call to its end, a client survives forks, pickling and closing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rest_store.errors import ServiceUnavailableError
from rest_store.service.client.async_client import AsyncDatastoreClient
from rest_store.service.client.client import DatastoreClient
from rest_store.service.client.stream_call import StreamCall
from tests.shared.clients import Impostor
from tests.shared.services import PATIENCE, Service, running


@pytest.fixture(scope="module")
def service(directory: Path) -> Iterator[Service]:
    with running(directory) as service:
        yield service


FORKED = """
import os, sys
import numpy as np
from rest_store import DatastoreClient
from rest_store.drafting.draft_options import DraftOptions
from rest_store.drafting.members import MemberSettings
from rest_store.errors import ServiceUnavailableError
used = DatastoreClient(sys.argv[1], timeout=60)
used.draft([1])
[member] = used.members(MemberSettings(True, None), lambda: np.array([1], np.int32))
def step():
    member.send(DraftOptions(8))
    return member.receive(None)
step()
if os.fork() == 0:
    forked = []
    def send():
        return used.members(member._settings, member._text)[0].send(DraftOptions(8))

    for call in (lambda: used.draft([1]), send):
        try:
            call()
        except ServiceUnavailableError as error:
            forked.append("fork" in str(error))
    member.close()
    used.close()
    os._exit(7 if forked == [True] * 2 else 8)
print(os.waitstatus_to_exitcode(os.wait()[1]), len(used.draft([1])) > 0, len(step()) > 0)
"""


def test_a_forked_process_is_told_to_make_its_own_client(service: Service) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, service.target],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert done.stdout.split() == ["7", "True", "True"]


@pytest.fixture
def held() -> Iterator[tuple[str, threading.Event]]:
    """A service that answers no draft, and the event that it has been asked for one."""
    request_seen, go_on = threading.Event(), threading.Event()

    def answer() -> bytes:
        request_seen.set()
        go_on.wait(PATIENCE)
        return b""

    impostor = Impostor(answer)
    yield impostor.target, request_seen
    go_on.set()
    impostor.server.stop(None).wait(PATIENCE)


def test_closing_a_client_ends_the_calls_of_other_threads(
    held: tuple[str, threading.Event],
) -> None:
    target, request_seen = held
    with DatastoreClient(target, timeout=PATIENCE) as client, ThreadPoolExecutor(1) as pool:
        client.info()
        calling = pool.submit(client.draft, [1])
        assert request_seen.wait(PATIENCE)
        client.close()
        assert isinstance(calling.exception(PATIENCE), ServiceUnavailableError)


def test_a_task_that_is_cancelled_stops_waiting(held: tuple[str, threading.Event]) -> None:
    target, request_seen = held

    async def converse() -> None:
        async with AsyncDatastoreClient(target, timeout=PATIENCE) as client:
            await client.info()
            calling = asyncio.ensure_future(client.draft([1]))
            assert await asyncio.to_thread(request_seen.wait, PATIENCE)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling

    asyncio.run(converse())


def test_what_is_to_be_written_first_is_called_once_before_the_end(service: Service) -> None:
    calls: list[object] = []
    client = DatastoreClient(service.target, timeout=PATIENCE)
    for _ in range(2):
        client.before_close(calls.append)
    client.close()
    assert calls == [client]


class Flood:
    """A call that answers without being asked, until it is cancelled or one is not taken."""

    def __init__(self, deserialize: Callable[[bytes], bytes | None]) -> None:
        self.deserialize = deserialize
        self.sent = 0
        self.is_cancelled = False

    def __iter__(self) -> Flood:
        return self

    def __next__(self) -> bytes:
        if self.is_cancelled or self.sent > 10_000:
            raise StopIteration
        self.sent += 1
        answer = self.deserialize(b"x")
        if answer is None:  # gRPC ends the call
            raise StopIteration
        return answer

    def cancel(self) -> None:
        self.is_cancelled = True


def test_a_service_that_sends_without_being_asked_fills_no_memory_of_the_client() -> None:
    floods: list[Flood] = []

    class Channel:
        def stream_stream(self, _: str, __: None, deserialize: Any) -> Any:
            floods.append(Flood(deserialize))
            return lambda *_, **__: floods[0]

    channel: Any = Channel()
    call = StreamCall(channel, "DraftSession", (), "peer")
    answers: list[bytes] = []

    def read() -> None:
        while (answer := call.receive(time.monotonic() + PATIENCE)) is not None:
            answers.append(answer)

    with pytest.raises(ServiceUnavailableError, match="peer: service ended the stream"):
        read()
    assert 0 < len(answers) < 1000
    assert floods[0].sent <= len(answers) + 1
    call.close()
