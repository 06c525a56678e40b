"""The log of a service: one line for each event, and few lines of what strangers can make it write."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import socket
from collections.abc import Iterable
from pathlib import Path

import grpc
import pytest

from rest_store.service.server.logs import LIMIT, EventLog
from rest_store.service.server.servicer import METHODS, SERVICE
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.services import PATIENCE, Certificates, Service, reason_of, running
from tests.shared.strategies import Corpus, write_datastore

ASKED = pb.DraftRequest(contexts=[pb.Context(tokens=[1, 2])])
MALFORMED = b"\xff\xff\xff"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_datastore(tmp_path, Corpus(300, [[[1, 2, 3]]]))


def test_events_are_lines_of_text_or_json() -> None:
    text, as_json = io.StringIO(), io.StringIO()
    for file, flag in ((text, False), (as_json, True)):
        EventLog(flag, file)("start", name="a b", number=3, nothing=None)
    assert text.getvalue().split(" ", 1)[1] == 'start name="a b" number=3 nothing=None\n'
    assert json.loads(as_json.getvalue()).items() >= {"event": "start", "name": "a b", "number": 3}.items()


@pytest.fixture
def taken_over(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What an event log that has taken over the log of libraries writes."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    written = io.StringIO()
    EventLog(True, written).take_over()
    return written


def test_what_others_log_becomes_events(taken_over: io.StringIO) -> None:
    logging.getLogger("asyncio").error("a task of %s", "nobody", exc_info=ValueError("x"))
    logging.getLogger("asyncio").info("not this")
    (line,) = taken_over.getvalue().splitlines()
    event = json.loads(line)
    assert (event["event"], event["logger"], event["message"]) == ("error", "asyncio", "a task of nobody")
    assert "ValueError: x" in event["traceback"]


def test_a_log_that_nobody_reads_stops_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    EventLog(file=Gone())("start")


@pytest.mark.parametrize("text", ["a\nb", "\x1b[2J", "a\u2028b", "a\u009bb", 'say "x"', "\u00a0", ""])
def test_no_field_forges_a_line_or_commands_a_terminal(text: str) -> None:
    written = io.StringIO()
    EventLog(file=written)("refused", message=text)
    (line,) = written.getvalue().split("\n")[:-1]
    assert line.isprintable()
    assert json.loads(line.partition("message=")[2]) == text


def events_of(lines: Iterable[str]) -> list[tuple[object, ...]]:
    """Each event's name, and what it says of those left out."""
    events = [json.loads(line) for line in lines]
    return [tuple(event[key] for key in ("event", "of", "kind", "count") if key in event) for event in events]


def test_a_kind_has_ten_lines_a_minute_and_one_for_the_rest() -> None:
    now, written = 0.0, io.StringIO()
    log = EventLog(True, written, lambda: now)
    for turn in range(500):
        log.limited("refused", "LIMIT", turn=turn)
        if turn % 100 == 0:
            log.limited("defect", "Draft")
    assert events_of(written.getvalue().splitlines()) == [
        ("refused",),
        ("defect",),
        *[("refused",)] * 9,
        *[("defect",)] * 4,
    ]
    written.truncate(0)
    now = 59.9
    log.summarize()
    assert written.getvalue() == ""
    now = 60.0
    log.summarize()
    log.summarize()
    assert events_of(written.getvalue().strip("\0").splitlines()) == [("left_out", "refused", "LIMIT", 490)]
    written.truncate(0)
    for _ in range(LIMIT + 2):
        log.limited("refused", "LIMIT")
    log.summarize(now=True)
    after = events_of(written.getvalue().strip("\0").splitlines())
    assert after == [*[("refused",)] * LIMIT, ("left_out", "refused", "LIMIT", 2)]


def test_what_others_log_is_limited_by_its_place(taken_over: io.StringIO) -> None:
    for number in range(50):
        logging.getLogger("grpc").warning(f"a stranger called {number}")
    assert len(taken_over.getvalue().splitlines()) == LIMIT


def provoked(service: Service, call: grpc.MultiCallable) -> tuple[str | None, str]:
    """The reason and status with which a call of malformed bytes ends."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call(iter([MALFORMED]), timeout=PATIENCE))
    return reason_of(caught.value), caught.value.code().name


def test_malformed_messages_are_refused_by_name_on_every_method_without_a_line(directory: Path) -> None:
    methods = [f"/{SERVICE}/{name}" for name in METHODS]
    methods += [f"/grpc.health.v1.Health/{name}" for name in ("Check", "Watch")]
    methods += ["/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]
    with running(directory, options=["--log-json"]) as service, service.channel() as channel:
        for method in methods:
            for _ in range(3):
                assert provoked(service, channel.stream_stream(method)) == ("CONTEXT_TYPE", "INVALID_ARGUMENT"), method
        assert provoked(service, channel.stream_stream("/nobody/knows")) == (None, "UNIMPLEMENTED")
        assert service.stop() == 0
    assert events_of(service.log) == [("start",), ("drain",), ("stop",)]


def test_refusals_are_logged_up_to_a_limit_of_each_reason(directory: Path) -> None:
    options, secret = ["--log-json", "--log-requests"], {"REST_STORE_TOKEN": "secret"}
    with running(directory, options=options, environment=secret) as service:
        with service.channel() as channel:
            for turn in range(50):
                path = f"/{SERVICE}/{'x' * 500}{turn}"
                assert provoked(service, channel.stream_stream(path)) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
        with service.stub() as stub:
            assert stub.Draft(ASKED, metadata=[("authorization", "Bearer secret")], timeout=PATIENCE).trees
        assert service.stop() == 0
    refusals = [("refused",)] * LIMIT
    rest = [("request",), ("drain",), ("left_out", "refused", "UNAUTHENTICATED", 40), ("stop",)]
    assert events_of(service.log) == [("start",), *refusals, *rest]
    assert max(map(len, service.log)) < 500


def test_garbage_on_a_port_with_tls_writes_no_line(directory: Path, tmp_path: Path) -> None:
    certificates = Certificates.make(tmp_path / "certificates")
    with running(directory, options=certificates.server) as service:
        host, _, port = service.target.rpartition(":")
        for _ in range(20):
            with socket.create_connection((host, int(port)), PATIENCE) as raw, contextlib.suppress(ConnectionError):
                raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
                while raw.recv(4096):
                    pass
        assert service.stop() == 0
    assert [line.split()[1] for line in service.log] == ["start", "drain", "stop"]
