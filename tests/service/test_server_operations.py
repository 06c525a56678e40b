"""What an operator of a service relies on: its start, logs, metrics, health, reload, draining, and bounded memory."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import rest_store
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import HEADER_SIZE
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.services import PATIENCE, Service, Talk, metrics_of, reason_of, running
from tests.shared.strategies import Corpus, edit_file, write_datastore

FIRST = Corpus(300, [[[1, 2, 3, 4], [1, 2, 3, 5]]])
REBUILT = Corpus(300, [[[1, 2, 9, 9]]])
ASKED = pb.DraftRequest(contexts=[pb.Context(tokens=[1, 2])])
STEP = pb.DraftStreamRequest(tokens=[1, 2])


def datastore(parent: Path, name: str, corpus: Corpus) -> Path:
    (parent / name).mkdir()
    return write_datastore(parent / name, corpus)


def replace(old: Path, new: Path) -> None:
    """Put the datastore `new` in the place of `old`, as the builder does."""
    old.rename(old.with_name(old.name + ".old"))
    new.rename(old)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return datastore(tmp_path, "served", FIRST)


@pytest.fixture
def service(directory: Path) -> Iterator[Service]:
    with running(directory, options=["--metrics", "127.0.0.1:0", "--log-json", "--drain-seconds", "60"]) as service:
        yield service


def reload(service: Service, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rest_store", "reload", service.target, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)


def health_of(service: Service, name: str = "") -> str:
    with service.channel() as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        status = check(health_pb2.HealthCheckRequest(service=name), timeout=PATIENCE).status
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))


def waited_for(condition: str, service: Service) -> str:
    """The first line of the service's log that holds `condition`."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = next((line for line in list(service.log) if condition in line), None)
        if found is not None:
            return found
        service.log_grew.wait(0.1)
        service.log_grew.clear()
    raise AssertionError(f"no {condition} in:\n" + "".join(service.log))


def test_it_loads_no_torch(service: Service) -> None:
    maps = Path(f"/proc/{service.process.pid}/maps").read_text(encoding="utf-8")
    assert "_kernel" in maps
    assert "cygrpc" in maps
    assert not any(name in maps for name in ("site-packages/torch", "tokenizers", "divsufsort", "pyarrow"))


def test_health_names_the_service_and_each_datastore(service: Service) -> None:
    assert {health_of(service, name) for name in ("", "rest_store.v1.DatastoreService", "served")} == {"SERVING"}
    with pytest.raises(grpc.RpcError) as caught:
        health_of(service, "nothing")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_reflection_tells_the_services(service: Service) -> None:
    with service.channel() as channel:
        ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="rest_store.v1.DatastoreService"),
        ]
        listed, file = ask(iter(requests), timeout=PATIENCE)
    names = {one.name for one in listed.list_services_response.service}
    assert {"rest_store.v1.DatastoreService", "grpc.health.v1.Health"} <= names
    assert pb.DESCRIPTOR.serialized_pb in file.file_descriptor_response.file_descriptor_proto


def test_metrics_count_what_happened(service: Service) -> None:
    with service.stub() as stub:
        answers = [stub.Draft(ASKED) for _ in range(3)]
        with pytest.raises(grpc.RpcError):
            stub.Draft(pb.DraftRequest(contexts=[pb.Context()]))
        talk = Talk(stub)
        talk.ask(STEP)
        talk.ask(STEP)
        found = metrics_of(service)
        assert found["rest_store_streams",] == 1
        talk.close()
    assert found["rest_store_requests_total", "OK", "Draft"] == 3
    assert found["rest_store_requests_total", "INVALID_ARGUMENT", "Draft"] == 1
    assert found["rest_store_requests_total", "OK", "DraftStream"] == 2
    assert found["rest_store_received_bytes_total", "Draft"] == 3 * ASKED.ByteSize()
    assert found["rest_store_sent_bytes_total", "Draft"] == sum(answer.ByteSize() for answer in answers)
    assert found["rest_store_request_seconds_count", "Draft"] == 3
    assert found["rest_store_request_seconds_bucket", "+Inf", "Draft"] == 3
    assert found["rest_store_trees_total",] == 5
    assert found["rest_store_nodes_total",] == sum(len(answer.trees[0].nodes) // 20 for answer in answers) / 3 * 5
    assert found["rest_store_match_length_tokens_bucket", "2"] == 5
    assert found["rest_store_match_length_tokens_bucket", "1"] == 0
    assert found["rest_store_match_length_tokens_sum",] == 10
    assert found["rest_store_in_flight",] == 0
    assert found["rest_store_datastore_tokens", "served"] == 8
    assert found["rest_store_datastore_generation", "served"] == 1
    assert found["rest_store_datastore_readable", "served"] == 1
    assert found["rest_store_build_info", "native", platform.python_version(), rest_store.__version__] == 1
    assert "process_resident_memory_bytes" in {name for name, *_ in found}


def datastore_of(service: Service) -> Path:
    return Path(service.process.args[4])  # type: ignore[index]


def test_the_log_is_one_json_object_a_line(directory: Path) -> None:
    with running(directory, options=["--log-json", "--log-requests"]) as service:
        with service.stub() as stub:
            stub.Draft(ASKED)
            with pytest.raises(grpc.RpcError):
                stub.Draft(pb.DraftRequest(contexts=[pb.Context()]))
            talk = Talk(stub)
            talk.ask(STEP)
            talk.close()
        assert service.stop() == 0
        events = [json.loads(line) for line in service.log]
    assert [event["event"] for event in events] == ["start", "request", "refused", "stream", "drain", "stop"]
    assert all("time" in event for event in events)
    assert events[0]["datastores"] == ["served"]
    assert events[1]["method"] == "Draft"
    assert events[2]["reason"] == "EMPTY_CONTEXT"
    assert events[3]["answers"] == 1


def test_a_rebuilt_datastore_is_taken_without_one_failed_request(service: Service, directory: Path) -> None:
    seen: list[bytes] = []
    failed: list[grpc.RpcError] = []
    stopped = threading.Event()

    def ask() -> None:
        with service.stub() as stub:
            while not stopped.is_set():
                try:
                    seen.append(stub.Draft(ASKED, timeout=PATIENCE).trees[0].nodes)
                except grpc.RpcError as error:
                    failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    with service.stub() as stub:
        talk = Talk(stub)
        before = talk.ask(STEP)
        for thread in threads:
            thread.start()
        for turn in range(6):
            corpus = (REBUILT, FIRST)[turn % 2]
            replace(directory, datastore(directory.parent, f"new-{turn}", corpus))
            shutil.rmtree(directory.parent / "served.old")
            done = reload(service, "--json")
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["outcomes"] == [{"name": "served", "generation": turn + 2, "refused": None}]
            expected = Datastore.open(directory).draft([1, 2]).packed
            assert stub.Draft(ASKED).trees[0].nodes == expected
            assert talk.ask(STEP).trees[0].nodes == expected
        assert before.trees[0].nodes == expected  # the last one is the first again
        stopped.set()
        for thread in threads:
            thread.join()
        talk.close()
    assert not failed
    assert len(set(seen)) == 2


@pytest.mark.parametrize("bad", ["absent", "damaged header", "too short", "no manifest", "other tokenizer"])
def test_a_bad_new_datastore_is_refused_and_the_old_one_stays(service: Service, directory: Path, bad: str) -> None:
    with service.stub() as stub:
        before = stub.Draft(ASKED).trees[0]
        new = datastore(directory.parent, "new", Corpus(301, REBUILT.shards) if bad == "other tokenizer" else REBUILT)
        if bad == "absent":
            (new / "shard-00000.tokens").unlink()
        elif bad == "damaged header":
            edit_file(new / "shard-00000.suffixes", lambda data: data.__setitem__(20, data[20] ^ 1))
        elif bad == "too short":
            edit_file(new / "shard-00000.tokens", lambda data: data.pop())
        elif bad == "no manifest":
            (new / "manifest.json").unlink()
        replace(directory, new)
        done = reload(service)
        assert done.returncode == 1
        assert "refused, the old one stays in use" in done.stdout
        assert ", expected " in done.stdout
        assert stub.Draft(ASKED).trees[0] == before
        assert stub.Describe(pb.DescribeRequest()).datastores[0].generation == 1
        assert health_of(service, "served") == "SERVING"
        assert metrics_of(service)["rest_store_reloads_total", "refused"] == 1


UNIT = Path(rest_store.__file__).parents[1] / "deploy/rest-store.service"


@pytest.mark.skipif(not UNIT.exists(), reason="an installed package without its deployment")
def test_the_reload_of_the_systemd_unit_passes_its_token(directory: Path, tmp_path: Path) -> None:
    lines = UNIT.read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert settings["EnvironmentFile"].startswith("-/")  # read for both commands; it need not exist
    here = {
        "/var/lib/rest-store/code.ds": str(directory),
        "unix:/run/rest-store/rest-store.sock": f"unix:{tmp_path}/socket",
        "127.0.0.1:50051": "127.0.0.1:0",
        "127.0.0.1:9464": "127.0.0.1:0",
    }
    program = "/opt/rest-store/bin/rest-store"
    started, reloaded = (
        [here.get(word, word) for word in settings[key].split()] for key in ("ExecStart", "ExecReload")
    )
    assert started[:2] == [program, "serve"]
    assert reloaded[:2] == [program, "reload"]
    token = {"REST_STORE_TOKEN": "secret"}
    service = Service(started[2:], token)
    try:
        command = [sys.executable, "-m", "rest_store", *reloaded[1:]]
        done = subprocess.run(
            command, env={**os.environ, **token}, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert (done.returncode, done.stdout) == (0, "served: generation 2: reloaded\n")
    finally:
        assert service.stop() == 0


def test_the_content_of_a_datastore_is_left_to_check(service: Service, directory: Path) -> None:
    """As the documentation says: a reload does not read it."""
    new = datastore(directory.parent, "new", REBUILT)
    edit_file(new / "shard-00000.tokens", lambda data: data.__setitem__(HEADER_SIZE, data[HEADER_SIZE] ^ 1))
    replace(directory, new)
    assert reload(service).returncode == 0
    command = [sys.executable, "-m", "rest_store", "check", str(directory)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (checked.returncode, "shard-00000.tokens" in checked.stderr) == (1, True)


EARLY = """
import os, signal, sys
from rest_store.cli import main
from rest_store.service.server import command, server

def hang_up_first(call):
    def hanging_up(*arguments):
        os.kill(os.getpid(), signal.SIGHUP)
        return call(*arguments)
    return hanging_up

command.Address.parse = hang_up_first(command.Address.parse)
server.Catalog = hang_up_first(server.Catalog)
main(["serve", sys.argv[1], "--listen", "127.0.0.1:0"])
"""


def test_sighup_before_a_service_is_ready_is_a_reload_once_it_is(directory: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", EARLY, str(directory)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        events = iter(process.stderr.readline, "")
        assert any(" reload datastore=served generation=2" in line for line in events)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert "ready" in process.stdout.read()


def test_sighup_reloads(service: Service, directory: Path) -> None:
    replace(directory, datastore(directory.parent, "new", REBUILT))
    service.signal(signal.SIGHUP)
    event = json.loads(waited_for('"reload"', service))
    assert (event["datastore"], event["generation"], event["refused"]) == ("served", 2, None)
    with service.stub() as stub:
        assert stub.Draft(ASKED).trees[0].nodes == Datastore.open(directory).draft([1, 2]).packed


def test_reloading_where_no_service_listens_says_so(unused_tcp_port: int) -> None:
    command = [sys.executable, "-m", "rest_store", "reload", f"127.0.0.1:{unused_tcp_port}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 1
    assert "service is unreachable" in done.stderr


@pytest.fixture
def unused_tcp_port() -> int:
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def test_sigterm_ends_streams_between_two_steps_and_refuses_what_comes(service: Service) -> None:
    """Nobody waits for a next step, which may never come."""
    with service.channel() as channel, service.stub() as stub:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        talk = Talk(stub)
        talk.ask(STEP)
        service.signal(signal.SIGTERM)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(grpc.RpcError) as caught:
            next(talk.call)
        assert reason_of(caught.value) == "DRAINING"
        talk.leave()
        assert service.process.wait(PATIENCE) == 0
        watch.cancel()


def test_work_whose_client_has_gone_is_dropped(tmp_path: Path) -> None:
    documents = [[place % 7, *range(place % 11, 200)] for place in range(40)]
    directory = datastore(tmp_path, "wide", Corpus(300, [documents]))
    contexts = [pb.Context(tokens=[place % 200]) for place in range(1000)]
    heavy = pb.DraftRequest(limits=pb.DraftLimits(max_nodes=1024, max_depth=32), contexts=contexts)
    options = ["--metrics", "127.0.0.1:0", "--max-message-bytes", str(64 << 20)]
    with running(directory, options=options) as service, service.stub() as stub:
        with pytest.raises(grpc.RpcError) as caught:
            stub.Draft(heavy, timeout=0.01)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        stub.Draft(ASKED, timeout=PATIENCE)
        end = time.monotonic() + PATIENCE
        while (found := metrics_of(service))["rest_store_in_flight",] > 0:
            assert time.monotonic() < end
        assert found.get(("rest_store_requests_total", "OK", "Draft")) == 1
        assert found["rest_store_nodes_total",] < 1000


def test_memory_does_not_grow_with_requests(service: Service) -> None:
    """A small part of what REST_STORE_REQUESTS=1000000 asks."""
    number = int(os.environ.get("REST_STORE_REQUESTS", "12000"))
    contexts = [pb.DraftRequest(contexts=[pb.Context(tokens=[1 + place % 5, 2])]) for place in range(100)]

    def ask(number: int) -> None:
        with service.stub() as stub:
            for start in range(0, number, 100):
                calls = [stub.Draft.future(request) for request in contexts]
                assert all(call.result().datastores == ["served"] for call in calls), start

    ask(max(number // 3, 12_000))  # allocators keep some for later
    before, descriptors = service.resident_bytes(), service.open_descriptors()
    ask(number)
    assert service.resident_bytes() - before < 2 << 20
    assert service.open_descriptors() <= descriptors + 1


def test_a_service_starts_with_the_greatest_limits(directory: Path, tmp_path: Path) -> None:
    """Though gRPC takes no option beyond 2^31 - 1."""
    names = ("message-bytes", "contexts", "streams", "in-flight", "waiting", "session-tokens")
    with running(directory, options=[f"--max-{name}={1 << 30}" for name in names]) as service, service.stub() as stub:
        assert stub.Describe(pb.DescribeRequest()).limits.max_session_tokens == 1 << 30
