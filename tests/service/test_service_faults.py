"""A service stays up whatever happens, and callers get a right answer or a named error."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from rest_store.errors import OverloadedError
from rest_store.service.statuses import call_error
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.live import until
from tests.shared.services import PATIENCE, Service, health_of, metrics_of, reason_of, running
from tests.shared.sessions import SessionTalk, opening, step

ONLY_SERVED = pb.Selection(datastores=["served"])
ASKED = pb.DraftRequest(contexts=[pb.Context(tokens=[1, 2])])
OTHER = pb.DraftRequest(
    contexts=[pb.Context(tokens=[1, 2])], selection=pb.Selection(datastores=["other"])
)


@pytest.fixture
def directory(pages: Path, tmp_path: Path) -> Path:
    shutil.copytree(pages, tmp_path / "served")
    return tmp_path / "served"


@pytest.fixture
def service(directory: Path, pages: Path) -> Iterator[Service]:
    with running(directory, f"other={pages}", options=["--metrics=127.0.0.1:0"]) as service:
        yield service


def eventually_answers(service: Service) -> None:
    """Connect anew until the service answers; grpc waits for the connection itself."""
    with service.stub() as stub:
        assert len(stub.Draft(ASKED, timeout=PATIENCE, wait_for_ready=True).trees) == 2


def eventually_descriptors(service: Service, number: int) -> None:
    """Wait until the service holds at most `number` descriptors."""
    until(lambda: (eventually_answers(service), service.open_descriptors() <= number)[1])


def test_a_crowd_that_gathered_while_the_service_was_paused_is_answered_or_refused_by_name(
    service: Service,
) -> None:
    with service.stub() as stub:
        stub.Draft(ASKED)
        service.pause()
        calls = [stub.Draft.future(ASKED, timeout=PATIENCE) for _ in range(1250)]
        service.resume()
        errors = [error for call in calls if (error := call.exception()) is not None]
        for error in errors:
            assert reason_of(error) == "OVERLOADED" or error.code() is grpc.StatusCode.CANCELLED
            assert isinstance(call_error("served", error), OverloadedError)
        assert len(errors) < len(calls)
        assert len(stub.Draft(ASKED, timeout=PATIENCE).trees) == 2


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize(
    "written",
    [
        b"",
        PREFACE[:10],
        PREFACE,
        PREFACE + bytes(9),  # empty SETTINGS
        PREFACE
        + bytes.fromhex("000000040000000000" + "00003f010400000001")
        + b"half of its headers",
        PREFACE + b"\xff" * 200,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the start of a TLS hello
        random.Random(1).randbytes(5000),
    ],
    ids=range(9),
)
def test_half_written_and_garbage_bytes_harm_nobody(service: Service, written: bytes) -> None:
    eventually_answers(service)
    before = service.open_descriptors()
    host, _, port = service.target.rpartition(":")
    with service.stub() as stub, contextlib.ExitStack() as stack:
        for _ in range(10):
            raw = stack.enter_context(socket.create_connection((host, int(port))))
            with contextlib.suppress(ConnectionError):
                raw.sendall(written)
        assert len(stub.Draft(ASKED, timeout=PATIENCE).trees) == 2
    eventually_descriptors(service, before)


def test_clients_that_vanish_in_the_middle_leave_nothing_behind(service: Service) -> None:
    eventually_answers(service)
    before = service.open_descriptors()
    for _ in range(5):
        with service.stub() as stub:
            talks = [SessionTalk(stub) for _ in range(20)]
            for talk in talks:
                talk.ask(opening(1, 2, selection=ONLY_SERVED))
        for talk in talks:
            talk.leave()
    until(
        lambda: (
            [metrics_of(service)[name,] for name in ("rest_store_streams", "rest_store_in_flight")]
            == [0, 0]
        )
    )
    eventually_descriptors(service, before)


def truncate(directory: Path) -> None:
    for file in [*directory.glob("*.tokens"), *directory.glob("*.suffixes")]:
        os.truncate(file, 4096)


def test_a_datastore_truncated_underneath_is_unavailable_until_it_is_restored(
    service: Service, directory: Path, pages: Path
) -> None:
    contexts = [pb.Context(tokens=[first, second]) for first in range(30) for second in range(30)]
    every = pb.DraftRequest(selection=ONLY_SERVED, contexts=contexts)
    with service.stub() as stub:
        expected = stub.Draft(every).trees
        talk = SessionTalk(stub)
        talk.ask(opening(1, 2, selection=ONLY_SERVED))
        truncate(directory)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Draft(every, timeout=PATIENCE)
        assert reason_of(caught.value) == "DATASTORE_UNAVAILABLE"
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "'served'" in caught.value.details()
        assert str(directory) not in caught.value.details()
        with pytest.raises(grpc.RpcError) as caught:
            talk.ask(step(1))
        assert reason_of(caught.value) == "DATASTORE_UNAVAILABLE"
        talk.leave()
        counting = pb.CountRequest(selection=ONLY_SERVED, tokens=[1, 2])
        with pytest.raises(grpc.RpcError) as caught:
            stub.Count(counting)
        assert reason_of(caught.value) == "DATASTORE_UNAVAILABLE"
        assert len(stub.Draft(OTHER).trees) == 1
        until(lambda: health_of(service, "served") == "NOT_SERVING")
        assert metrics_of(service)["rest_store_datastore_readable", "served"] == 0
        assert (health_of(service, "other"), health_of(service)) == ("SERVING", "SERVING")
        shutil.rmtree(directory)
        shutil.copytree(pages, directory)
        service.signal(signal.SIGHUP)
        until(lambda: health_of(service, "served") == "SERVING")
        assert stub.Draft(every).trees == expected


@pytest.mark.slow
def test_a_service_out_of_descriptors_answers_those_it_has_and_recovers(service: Service) -> None:
    eventually_answers(service)
    before = service.open_descriptors()
    limits = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
    host, _, port = service.target.rpartition(":")
    with service.stub() as stub:
        stub.Draft(ASKED)
        resource.prlimit(
            service.process.pid,
            resource.RLIMIT_NOFILE,
            (service.open_descriptors() + 10, limits[1]),
        )
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(socket.create_connection((host, int(port))))
            for _ in range(50):
                assert len(stub.Draft(ASKED, timeout=PATIENCE).trees) == 2
        eventually_answers(service)
    eventually_descriptors(service, before)
