"""Documents that clients add to a service are there for all, also after a kill."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import numpy as np
import pytest

from build_index.tokenization import load_tokenizer
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.session import DraftSession
from rest_store.errors import MessageSizeError, ProtocolError, StorageError, WriterError
from rest_store.live.live_datastore import LiveDatastore
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.builds import build_quick, write_tokenizer
from tests.shared.clients import KINDS, connected
from tests.shared.services import PATIENCE, Service, failed, metrics_of, reason_of, reload, running
from tests.shared.sessions import Relay
from tests.shared.strategies import identity, refused

VOCABULARY = 300
METRICS = "--metrics=127.0.0.1:0"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the live datastore "chat"."""
    return tmp_path_factory.mktemp("live") / "chat"


@pytest.fixture(scope="module")
def service(directory: Path, place: Path) -> Iterator[Service]:
    """A service with a frozen datastore "a" and a live one "chat", which it has begun."""
    with running(f"a={directory}", options=["--live", f"chat={place}", METRICS]) as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[DatastoreClient]:
    with DatastoreClient(service.target, datastore="chat", timeout=PATIENCE) as client:
        yield client


def phrase(length: int = 8) -> list[int]:
    """Tokens that occur nowhere else."""
    return [10 + byte for byte in uuid4().bytes[:length]]


@KINDS
def test_what_is_added_is_there_for_everyone_when_add_returns(kind: Any, service: Service) -> None:
    first, second = phrase(), phrase()
    with (
        connected(kind, service.target) as one,
        connected(kind, service.target, datastore="chat") as other,
    ):
        # The only live one of those that it asks.
        ids = one.add([first, np.array(second, np.uint16)])
        assert len(set(ids)) == 2
        assert [other.count(tokens) for tokens in (first, second)] == [1, 1]
        assert other.draft(first[:3]).longest_path(first[3:]).tolist() == list(range(5))
        assert (ids.added, ids.duplicates) == (ids, [])
        again = one.add([first, [1], [2]], [ids[0], "new", "new"])  # as LiveDatastore.add says it
        assert (again, again.added, again.duplicates) == (
            [ids[0], "new", "new"],
            ["new"],
            [ids[0], "new"],
        )
        one.delete(["new"])
        assert other.count(first) == 1
        assert one.delete([ids[0], "never there"], datastore="chat") == 1
        assert one.delete([ids[0]], datastore="chat") == 0
        assert [other.count(tokens) for tokens in (first, second)] == [0, 1]
        assert one.add([]) == []
        assert one.delete([]) == 0


def test_a_session_drafts_at_its_next_step_what_another_client_has_added(service: Service) -> None:
    text = phrase(12)
    with (
        DatastoreClient(service.target, timeout=PATIENCE) as writer,
        DatastoreClient(service.target, timeout=PATIENCE) as reader,
        DraftSession([reader], prompt=text[:4]) as session,
    ):
        assert session.draft(8).longest_path(text[4:]).size < 2  # single tokens may occur elsewhere
        writer.add([text])
        session.accept(text[4:5])
        tree = session.draft(8)
        assert tree.longest_path(text[5:]).tolist() == list(range(7))
        assert tree.origins is not None
        [id] = writer.add([text])
        writer.delete([id])
        session.accept(text[5:6])
        assert session.draft(8).longest_path(text[6:]).size  # the first one is there still


def test_more_than_a_message_may_have_is_refused_by_name(client: DatastoreClient) -> None:
    for tokens in (1_100_000, 20_000_000):
        with pytest.raises(MessageSizeError):
            client.add([np.zeros(tokens, np.int32)])
    before = client.info().datastores[0].token_count
    assert client.add([np.arange(1_000_000) % 300], ["large"]) == ["large"]
    assert client.info().datastores[0].token_count == before + 1_000_000
    client.delete(["large"])


class Forgetful(Relay):
    """A relay that loses the first answer of each method."""

    lost: set[str]

    def _pass_on(self, name: str, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        answers = super()._pass_on(name, requests, context)
        if name not in self.lost:
            self.lost.add(name)
            list(answers)
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost on the way")
        yield from answers


@KINDS
def test_a_retry_adds_nothing_twice(kind: Any, service: Service) -> None:
    text = phrase()
    with Forgetful(service.target) as relay:
        relay.lost = {"Describe", "Count"}
        with connected(kind, relay.target, datastore="chat") as client:
            ids = client.add([text])
            assert [name for name, _ in relay.received].count("Add") == 2
            assert client.count(text) == 1
            client.delete(ids)
            assert [name for name, _ in relay.received].count("Delete") == 2
            assert client.count(text) == 0


def test_answers_of_a_faulty_service_are_refused(service: Service) -> None:
    changed = {
        "Add": pb.AddResponse(added=["other"]).SerializeToString(),
        "Delete": pb.DeleteResponse(deleted=2).SerializeToString(),
    }
    relay = Relay(service.target, lambda name, data: changed.get(name, data))
    with relay, DatastoreClient(relay.target, datastore="chat", timeout=PATIENCE) as client:
        refused(ProtocolError, lambda: client.add([[1, 2]]), "documents that were not sent")
        refused(ProtocolError, lambda: client.delete(["x"]), "is 2, expected at most 1")


def test_a_kill_loses_nothing_that_was_acknowledged(directory: Path, tmp_path: Path) -> None:
    texts = [phrase() for _ in range(20)]
    with (
        running(f"a={directory}", options=["--live", f"chat={tmp_path / 'chat'}"]) as service,
        DatastoreClient(service.target, datastore="chat", timeout=PATIENCE) as client,
    ):
        for place, text in enumerate(texts):
            client.add([text], [str(place)])
        client.delete(["3", "7"])
        service.kill()
        service.restart()
        left = [int(place not in (3, 7)) for place in range(20)]
        assert [client.count(text) for text in texts] == left
        assert client.info().datastores[0].document_count == 18
        assert client.add(texts[:2], ["0", "1"]) == ["0", "1"]
        assert [client.count(text) for text in texts] == left


def test_it_is_open_through_reloads_until_the_service_ends(directory: Path, tmp_path: Path) -> None:
    live, text = tmp_path / "chat", phrase()
    with (
        running(f"a={directory}", options=["--live", str(live)]) as service,
        DatastoreClient(service.target, datastore="chat", timeout=PATIENCE) as client,
    ):
        client.add([text], ["x"])
        refused(WriterError, lambda: LiveDatastore.open(live), "taken")
        with LiveDatastore.open(live, read_only=True) as reader:
            assert reader.count(text) == 1
        reload(service)
        assert client.count(text) == 1
        client.add([text])
        assert service.stop() == 0
    with LiveDatastore.open(live) as store:
        assert store.add([text], ["x"]) == ["x"]
        assert store.count(text) == 2


def test_a_new_one_has_the_tokenizer_of_the_built_ones(tmp_path: Path) -> None:
    """It also has the tokenizer's file, so that texts can be added to it later."""
    (tmp_path / "corpus.txt").write_text("some text")
    tokenizer, directory = write_tokenizer(tmp_path / "tokenizer.json"), tmp_path / "code.ds"
    build_quick(tmp_path / "corpus.txt", tokenizer, directory)
    with running(directory, options=["--live", str(tmp_path / "live")]) as service:
        for one in (tokenizer, str(tokenizer), directory):  # a path is a tokenizer
            with DatastoreClient(service.target, tokenizer=one, timeout=PATIENCE) as client:
                assert client.tokenizer == Datastore.open(directory).tokenizer
        service.stop()
    with LiveDatastore.open(tmp_path / "live") as store:
        assert store.tokenizer == Datastore.open(directory).tokenizer
        assert len(store.add(["text"])) == 1


def test_a_new_one_has_the_tokenizer_that_is_named(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    with (
        running(
            options=["--live", str(tmp_path / "live"), "--live-tokenizer", str(tokenizer)]
        ) as service,
        DatastoreClient(service.target, timeout=PATIENCE) as client,
    ):
        client.add([[5, 6]])
        assert client.tokenizer == load_tokenizer(tokenizer).identity
        assert service.stop() == 0
    with LiveDatastore.open(tmp_path / "live") as store:
        assert store.add(["text"])
        assert store.info().document_count == 2


def test_figures(service: Service, client: DatastoreClient) -> None:
    client.add([phrase()])
    (served,) = client.info().datastores
    actual = metrics_of(service)
    assert actual["rest_store_datastore_tokens", "chat"] == served.token_count
    assert actual["rest_store_datastore_documents", "chat"] == served.document_count
    assert actual["rest_store_datastore_shards", "chat"] == served.shard_count
    assert actual["rest_store_datastore_size_bytes", "chat"] == served.size
    assert actual["rest_store_datastore_size_bytes", "a"] > 0
    assert actual["rest_store_datastore_failing", "chat"] == 0
    assert ("rest_store_datastore_failing", "a") not in actual


def test_a_full_disk_is_a_named_error_and_asking_goes_on(directory: Path, tmp_path: Path) -> None:
    remaining, lost = phrase(), phrase() * 2000
    with (
        running(
            f"a={directory}", options=["--live", f"chat={tmp_path / 'chat'}", METRICS]
        ) as service,
        DatastoreClient(service.target, datastore="chat", timeout=PATIENCE) as client,
    ):
        client.add([remaining])
        largest = max(file.stat().st_size for file in (tmp_path / "chat").iterdir())
        unlimited = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (largest, unlimited[1]))
        message = failed(
            StorageError, lambda: client.add([lost], ["x"]), "datastore 'chat'", "cannot be written"
        )
        assert str(tmp_path) not in message
        failed(StorageError, lambda: client.add([lost, remaining], ["x", "y"]))
        assert client.count(remaining) == 1
        assert client.count(lost[:8]) == 0
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, unlimited)
        client.add([lost], ["x"])
        assert client.count(lost[:8]) == 2000
        service.stop()
        assert sum("WARNING datastore chat: " in line for line in service.log) == 2


def test_a_truncated_segment_is_a_named_error_until_a_restart(
    directory: Path, tmp_path: Path
) -> None:
    texts = [phrase(16) for _ in range(2000)]
    with LiveDatastore.open(tmp_path / "chat", tokenizer=identity(VOCABULARY)) as store:
        store.add(texts)
        store.compact()
    with (
        running(f"a={directory}", options=["--live", str(tmp_path / "chat"), METRICS]) as service,
        DatastoreClient(service.target, timeout=PATIENCE) as client,
    ):
        assert client.count(texts[1000]) == 1
        for file in (tmp_path / "chat").glob("segment-*"):
            os.truncate(file, 0)
        count = pb.CountRequest(tokens=texts[-1])
        with service.stub() as stub, pytest.raises(grpc.RpcError) as caught:
            stub.Count(count, timeout=PATIENCE)
        assert reason_of(caught.value) == "DATASTORE_UNAVAILABLE"
        assert "datastore 'chat' is unavailable: " in caught.value.details()
        assert "restart the service" in caught.value.details()
        assert metrics_of(service)["rest_store_datastore_readable", "chat"] == 0
        service.stop()
        service.restart()
        assert client.count(texts[-1]) == client.count(texts[1000]) == 1


BAD_DIRECTORIES = {
    "frozen": (lambda path, frozen: frozen, "datastore is a frozen one"),
    "something else": (lambda path, frozen: path, "this is not a live datastore"),
    "new, without a tokenizer": (lambda path, frozen: path / "new", "give a tokenizer"),
    "written by another": (lambda path, frozen: path / "taken", "the writer's lock is taken"),
}


@pytest.mark.parametrize(("place", "actual"), BAD_DIRECTORIES.values(), ids=BAD_DIRECTORIES)
def test_what_cannot_be_opened_ends_the_start_with_one_line(
    place: Any, actual: str, directory: Path, tmp_path: Path
) -> None:
    with (
        LiveDatastore.open(tmp_path / "taken", tokenizer=identity(VOCABULARY)),
        pytest.raises(
            RuntimeError, match=rf"status 1:\n.+ INFO opening .+ \(live\)\nError: .*{actual}.*\n$"
        ),
        running(options=["--live", str(place(tmp_path, directory))]),
    ):
        pass


def test_bad_options(tmp_path: Path) -> None:
    for arguments, actual in (
        ([], "Missing argument"),
        (["--live", str(tmp_path / "x"), "--live-tokenizer", str(tmp_path / "none")], "tokenizer"),
    ):
        with pytest.raises(RuntimeError, match=actual), running(options=arguments):
            pass
    assert not (tmp_path / "x").exists()
