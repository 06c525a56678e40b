"""The operation of a service: start, logs, metrics, health, reload, draining, memory."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import rest_store
from rest_store.datastore.datastore import Datastore
from rest_store.service.server.queries import Queries
from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc
from tests.shared.live import until
from tests.shared.pages import ROOT
from tests.shared.served import serving_here
from tests.shared.services import (
    PATIENCE,
    Service,
    health_of,
    metrics_of,
    reason_of,
    reload,
    running,
)
from tests.shared.sessions import SessionTalk, opening, step
from tests.shared.strategies import Corpus, edit_file, write_datastore

FIRST = Corpus(300, [[[1, 2, 3, 4], [1, 2, 3, 5]]])
REBUILT = Corpus(300, [[[1, 2, 9, 9]]])
ASKED = pb.DraftRequest(contexts=[pb.Context(tokens=[1, 2])])
OPENING = opening(1, 2, selection=pb.Selection(datastores=["served"]))


def replace(old: Path, new: Path) -> None:
    """Put the datastore `new` in the place of `old`, as the builder does."""
    old.rename(old.with_name(old.name + ".old"))
    new.rename(old)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_datastore(tmp_path / "served", FIRST)


@pytest.fixture
def service(directory: Path) -> Iterator[Service]:
    with running(
        directory, options=["--metrics", "127.0.0.1:0", "--drain-seconds", "60"]
    ) as service:
        yield service


def test_the_log_begins_before_anything_is_opened(service: Service, directory: Path) -> None:
    service.stop()  # the log is complete once the service has ended
    assert service.log[0].endswith(f" INFO opening {directory}\n")
    assert " INFO serving served at 127.0.0.1:" in service.log[1]


def test_health_and_reflection_tell_the_services_and_no_torch_is_loaded(service: Service) -> None:
    assert {
        health_of(service, name) for name in ("", "rest_store.v1.DatastoreService", "served")
    } == {"SERVING"}
    with pytest.raises(grpc.RpcError) as caught:
        health_of(service, "nothing")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    with service.channel() as channel:
        ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(
                file_containing_symbol="rest_store.v1.DatastoreService"
            ),
        ]
        listed, file = ask(iter(requests), timeout=PATIENCE)
    names = {one.name for one in listed.list_services_response.service}
    assert {"rest_store.v1.DatastoreService", "grpc.health.v1.Health"} <= names
    assert pb.DESCRIPTOR.serialized_pb in file.file_descriptor_response.file_descriptor_proto
    maps = Path(f"/proc/{service.process.pid}/maps").read_text(encoding="utf-8")
    assert "_kernel" in maps
    assert "cygrpc" in maps
    assert not any(
        name in maps for name in ("site-packages/torch", "tokenizers", "divsufsort", "pyarrow")
    )


def test_metrics_count_what_happened(service: Service) -> None:
    with service.stub() as stub:
        answers = [stub.Draft(ASKED) for _ in range(3)]
        with pytest.raises(grpc.RpcError):
            stub.Draft(pb.DraftRequest(contexts=[pb.Context()]))
        talk = SessionTalk(stub)
        talk.ask(OPENING)
        talk.ask(step(3, 4))
        actual = metrics_of(service)
        assert actual["rest_store_streams",] == 1
        talk.close()
    assert actual["rest_store_requests_total", "OK", "Draft"] == 3
    assert actual["rest_store_requests_total", "INVALID_ARGUMENT", "Draft"] == 1
    assert actual["rest_store_requests_total", "OK", "DraftSession"] == 2
    assert actual["rest_store_request_seconds_bucket", "+Inf", "Draft"] == 3
    assert actual["rest_store_trees_total", "Draft"] == 3
    assert actual["rest_store_trees_total", "DraftSession"] == 2
    assert actual["rest_store_nodes_total", "Draft"] == sum(
        len(answer.trees[0].nodes) // 20 for answer in answers
    )
    assert (
        actual["rest_store_session_steps_total",],
        actual["rest_store_session_tokens_total",],
    ) == (1, 2)
    assert actual["rest_store_in_flight",] == 0
    assert actual["rest_store_datastore_tokens", "served"] == 8
    assert actual["rest_store_datastore_readable", "served"] == 1
    assert actual["rest_store_build_info", rest_store.__version__] == 1
    assert "process_resident_memory_bytes" in {name for name, *_ in actual}


def test_a_rebuilt_datastore_is_taken_without_one_failed_request(
    service: Service, directory: Path
) -> None:
    seen: list[bytes] = []
    failures: list[grpc.RpcError] = []
    stopped = threading.Event()

    def ask() -> None:
        with service.stub() as stub:
            while not stopped.is_set():
                try:
                    seen.append(stub.Draft(ASKED, timeout=PATIENCE).trees[0].nodes)
                except grpc.RpcError as error:
                    failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    with service.stub() as stub:
        talk = SessionTalk(stub)
        before = talk.ask(OPENING).tree.nodes
        for thread in threads:
            thread.start()
        for turn in range(4):
            replace(
                directory,
                write_datastore(directory.parent / f"new-{turn}", (REBUILT, FIRST)[turn % 2]),
            )
            shutil.rmtree(directory.parent / "served.old")
            (line,) = reload(service)
            assert "reloaded served" in line
            assert (
                stub.Draft(ASKED).trees[0].nodes == Datastore.open(directory).draft([1, 2]).packed
            )
        assert talk.ask(step()).tree.nodes == before, (
            "a session keeps the datastore that it began with"
        )
        stopped.set()
        for thread in threads:
            thread.join()
        talk.close()
    assert not failures
    assert len(set(seen)) == 2


@pytest.mark.parametrize(
    "bad", ["absent", "damaged header", "too short", "no manifest", "other tokenizer"]
)
def test_a_bad_new_datastore_is_refused_and_the_old_one_stays(
    service: Service, directory: Path, bad: str
) -> None:
    with service.stub() as stub:
        before = stub.Draft(ASKED).trees[0]
        vocabulary_size = 301 if bad == "other tokenizer" else 300
        new = write_datastore(directory.parent / "new", Corpus(vocabulary_size, REBUILT.shards))
        if bad == "absent":
            (new / "shard-00000.tokens").unlink()
        elif bad == "damaged header":
            edit_file(new / "shard-00000.suffixes", lambda data: data.__setitem__(20, data[20] ^ 1))
        elif bad == "too short":
            edit_file(new / "shard-00000.tokens", lambda data: data.pop())
        elif bad == "no manifest":
            (new / "manifest.json").unlink()
        replace(directory, new)
        (line,) = reload(service)
        assert "reload of served refused: " in line
        assert ", expected " in line
        assert stub.Draft(ASKED).trees[0] == before
        assert health_of(service, "served") == "SERVING"
        assert metrics_of(service)["rest_store_reloads_total", "refused"] == 1


def test_a_reload_that_is_asked_for_during_another_reads_what_is_newer(
    service: Service, directory: Path
) -> None:
    new = write_datastore(directory.parent / "new", REBUILT)
    service.signal(signal.SIGHUP)
    replace(directory, new)
    service.signal(signal.SIGHUP)
    expected = Datastore.open(directory).draft([1, 2]).packed
    with service.stub() as stub:
        until(lambda: stub.Draft(ASKED, timeout=PATIENCE).trees[0].nodes == expected)
    assert service.stop() == 0
    assert not any("Traceback" in line for line in service.log)


def test_the_systemd_unit_starts_and_reloads_a_service(directory: Path, tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "rest-store.service").read_text(encoding="utf-8")
    lines = text.replace("\\\n", "").splitlines()
    settings = dict(
        line.split("=", 1) for line in lines if "=" in line and not line.startswith("#")
    )
    here = {
        "/var/lib/rest-store/code.ds": str(directory),
        "unix:/run/rest-store/rest-store.sock": f"unix:{tmp_path}/socket",
        "127.0.0.1:50051": "127.0.0.1:0",
        "127.0.0.1:9464": "127.0.0.1:0",
    }
    program, *arguments = (here.get(word, word) for word in settings["ExecStart"].split())
    assert program == "/opt/rest-store/bin/rest-store"
    assert settings["ExecReload"] == "/bin/kill -HUP $MAINPID"
    service = Service(arguments[1:], {"REST_STORE_TOKEN": "secret"})
    try:
        assert len(service.targets) == 2
        assert service.metrics is not None
        assert any("reloaded served" in line for line in reload(service))
    finally:
        assert service.stop() == 0


def test_sigterm_ends_streams_between_two_steps_and_refuses_what_comes(service: Service) -> None:
    """The service waits for no next step, which may never come.

    A step on the way is answered, or its client is told.
    """
    with service.channel() as channel, service.stub() as stub:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=PATIENCE
        )
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        talks = [SessionTalk(stub) for _ in range(2)]
        for talk in talks:
            talk.ask(OPENING)
        service.pause()
        talks[1].tell(step(3))
        service.signal(signal.SIGTERM)
        service.resume()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        for most, talk in enumerate(talks):
            answers: list[pb.DraftSessionResponse] = []
            with pytest.raises(grpc.RpcError) as caught:
                answers.extend(talk.call)
            assert reason_of(caught.value) == "DRAINING"
            assert len(answers) <= most
            talk.leave()
        assert service.process.wait(PATIENCE) == 0
        with pytest.raises(grpc.RpcError) as caught:
            stub.Draft(ASKED, timeout=PATIENCE)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_work_whose_client_has_gone_is_dropped(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running work is finished, and work that waits for a thread is not begun."""
    begun: list[int] = []
    go_on = threading.Event()
    draft_batch = Datastore.draft_batch

    def held(store: Datastore, contexts: list[list[int]], **limits: int) -> object:
        begun.append(len(contexts))
        assert go_on.wait(PATIENCE)
        return draft_batch(store, contexts, **limits)

    monkeypatch.setattr(Datastore, "draft_batch", held)
    heavy = pb.DraftRequest(
        limits=pb.TreeLimits(max_nodes=1024), contexts=[pb.Context(tokens=[1, 2])] * 64
    )

    async def run() -> None:
        async with (
            serving_here(directory) as (server, target),
            grpc.aio.insecure_channel(target) as channel,
        ):
            threads = server._executor.workers._max_workers
            in_flight = server._admission.requests
            stub = datastore_pb2_grpc.DatastoreServiceStub(channel)
            calls = [stub.Draft(heavy, timeout=PATIENCE) for _ in range(threads + 3)]
            while in_flight.used < len(calls) or len(begun) < threads:
                await asyncio.sleep(0.01)
            for call in calls:
                call.cancel()
            while in_flight.used:
                await asyncio.sleep(0.01)
            go_on.set()
            assert len((await stub.Draft(heavy, timeout=PATIENCE)).trees) == 64
            assert begun == [64] * (threads + 1)
            count = partial(server.metrics.registry.get_sample_value, "rest_store_requests_total")
            assert count({"method": "Draft", "code": "CANCELLED"}) == len(calls)
            assert count({"method": "Draft", "code": "OK"}) == 1

    asyncio.run(run())


def test_memory_does_not_grow_with_requests(service: Service) -> None:
    """REST_STORE_REQUESTS=1000000 sends as many requests; the default sends a small part."""
    number = int(os.environ.get("REST_STORE_REQUESTS", "3000"))
    requests = [
        pb.DraftRequest(contexts=[pb.Context(tokens=[1 + number % 5, 2])]) for number in range(100)
    ]

    def ask(number: int) -> None:
        with service.stub() as stub:
            for _ in range(0, number, 100):
                calls = [stub.Draft.future(request) for request in requests]
                assert all(len(call.result().trees) == 1 for call in calls)

    ask(max(number // 3, 3000))  # allocators keep some for later
    before, descriptors = service.resident_bytes(), service.open_descriptors()
    ask(number)
    assert service.resident_bytes() - before < 2 << 20
    assert service.open_descriptors() <= descriptors + 1


def test_a_defect_is_reported_as_such_and_logged(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Queries, "draft", lambda self, data, grant: 1 // 0)

    async def run() -> None:
        async with (
            serving_here(directory) as (_, target),
            grpc.aio.insecure_channel(target) as channel,
        ):
            stub = datastore_pb2_grpc.DatastoreServiceStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                await stub.Draft(ASKED, timeout=PATIENCE)
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "ZeroDivisionError" in caught.value.details()
            assert await stub.Describe(pb.DescribeRequest(), timeout=PATIENCE)

    asyncio.run(run())
    assert "1 // 0" in caplog.text


def test_http_tells_life_from_readiness_and_says_nothing_of_broken_connections(
    directory: Path,
) -> None:
    def status_for(url: str) -> int:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    with (
        running(directory, options=["--metrics", "127.0.0.1:0"]) as service,
        service.stub() as stub,
    ):
        assert service.metrics is not None
        alive, ready = (
            service.metrics.replace("/metrics", path) for path in ("/healthz", "/readyz")
        )
        assert [status_for(url) for url in (alive, ready, ready + "?verbose", alive + "z")] == [
            200,
            200,
            200,
            404,
        ]
        host, port = service.metrics.split("/")[2].split(":")
        for _ in range(20):
            with socket.create_connection((host, int(port))) as broken:
                # Ends with a reset.
                broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                broken.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        for file in directory.glob("shard-*"):
            os.truncate(file, 0)
        with pytest.raises(grpc.RpcError):
            stub.Draft(pb.DraftRequest(contexts=[pb.Context(tokens=[1, 2, 3])]))
        until(lambda: status_for(ready) == 503)
        assert health_of(service, "served") == health_of(service) == "NOT_SERVING"
        assert status_for(alive) == 200
        service.stop()
        assert "Traceback" not in "".join(service.log)


def test_a_service_starts_with_the_greatest_limits(directory: Path) -> None:
    """gRPC takes no option beyond 2^31 - 1."""
    names = ("contexts", "streams", "in-flight", "session-tokens")
    with (
        running(directory, options=[f"--max-{name}={1 << 30}" for name in names]) as service,
        service.stub() as stub,
    ):
        assert stub.Describe(pb.DescribeRequest()).limits.max_session_tokens == 1 << 30
