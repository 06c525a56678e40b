"""`Fetch` and `Follow` serve copies and replicas, and clients survive faulty services."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import grpc
import numpy as np
import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.fetch import fetch
from rest_store.datastore.manifest import FILE_NAME, Manifest
from rest_store.errors import (
    ArgumentError,
    DatastoreFormatError,
    DeadlineError,
    FetchError,
    ProtocolError,
    RestStoreError,
    ServiceUnavailableError,
    TokenizerMismatchError,
    UnknownDatastoreError,
)
from rest_store.live.live_datastore import LiveDatastore
from rest_store.live.records import Changes
from rest_store.service.client import service_files, service_upstream
from rest_store.service.client.service_files import ServiceFiles, fetched
from rest_store.service.client.service_upstream import ServiceUpstream
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.builds import contents
from tests.shared.clients import LATE, Impostor
from tests.shared.live import until
from tests.shared.messages import PREFIX
from tests.shared.services import PATIENCE, Service, failed, reason_of, reload, running
from tests.shared.strategies import Corpus, identity, refused, write_datastore

DOCUMENTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]


@pytest.fixture(scope="module")
def service(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a frozen datastore "a" and a live one "chat"."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with running(f"a={directory}", options=["--live", str(folder / "chat")], unix=True) as service:
        yield service


def upstream_of(service: Service) -> ServiceUpstream:
    return ServiceUpstream(f"{service.target}/chat")


def caught_up(changes: Iterator[Changes]) -> list[Changes]:
    """Those up to the newest."""
    some = [next(changes)]
    while some[-1].last < some[-1].head:
        some.append(next(changes))
    return some


# --- Copies ---------------------------------------------------------------------------------------


def test_a_copy_is_the_datastore_and_opens_without_the_service(
    directory: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with running(f"a={directory}", unix=True) as service:
        for location in (f"{service.target}/a", service.target, f"{service.unix}#a"):
            with Datastore.open(location, cache=cache) as copy:
                assert copy.draft([1]).tokens.tolist() == [2, 3]
                path = copy.path
                assert contents(path) == contents(directory)
        service.kill()
        with Datastore.open(f"{service.target}/a", cache=cache) as copy:
            assert copy.path == path
    with pytest.raises(ServiceUnavailableError, match="connection refused"):
        fetched("127.0.0.1:9/a", cache)


def test_a_file_is_read_from_any_byte_on(directory: Path, service: Service) -> None:
    files = ServiceFiles(f"{service.target}/a")
    assert b"".join(files.read(FILE_NAME, 0)) == (directory / FILE_NAME).read_bytes()
    name = next(path.name for path in directory.glob("*.tokens"))
    content = (directory / name).read_bytes()
    for offset in (0, 5, len(content)):
        assert b"".join(files.read(name, offset)) == content[offset:]
    refused(FetchError, lambda: list(files.read(name, len(content) + 1)), "offset")
    for other in ("none", "../a", "/etc/passwd"):
        refused(
            FetchError,
            lambda other=other: list(files.read(other, 0)),
            "in its manifest",
        )
    files.close()


def test_a_copy_of_a_build_that_was_replaced_meanwhile_is_refused(tmp_path: Path) -> None:
    served = write_datastore(tmp_path / "served", Corpus(300, [[[1, 2, 3]]]))
    with running(f"a={served}") as service:
        files = ServiceFiles(f"{service.target}/a")
        files.build = Manifest.read(served).digest
        name = next(path.name for path in served.glob("*.tokens"))
        shutil.rmtree(served)
        write_datastore(served, Corpus(300, [[[4, 5, 6]]]))
        assert len(b"".join(files.read(name, 0))) > 0, "the service has opened the old one"
        reload(service)
        refused(FetchError, lambda: list(files.read(name, 0)), "build of datastore 'a'")


@pytest.mark.parametrize(
    ("location", "error", "fragment"),
    [
        ("{}/chat", DatastoreFormatError, "datastore 'chat' is live, expected a frozen one"),
        ("{}/none", UnknownDatastoreError, "name of a datastore is 'none'"),
        ("{},{}/a", ArgumentError, "target"),
    ],
)
def test_what_cannot_be_copied_is_named(
    location: str, error: type[RestStoreError], fragment: str, service: Service, tmp_path: Path
) -> None:
    target = location.replace("{}", service.target)
    refused(error, lambda: Datastore.open(target, cache=tmp_path), fragment)


# --- Changes --------------------------------------------------------------------------------------


def test_a_follower_gets_all_changes_and_then_new_ones(service: Service) -> None:
    upstream = upstream_of(service)
    assert upstream.tokenizer.vocabulary_size == 300
    ids, sequence = upstream.add(DOCUMENTS, None, namespace="", group="prompt", epoch=3)
    changes = upstream.changes(0, "")
    before = caught_up(changes)
    assert before[0].first == 1
    assert before[-1].last == sequence
    newest = [one for some in before for one in some.added][-len(DOCUMENTS) :]
    assert [len(one.symbols) // 2 for one in newest] == [3, 2, 4]
    assert {(one.group, one.epoch, one.namespace) for one in newest} == {("prompt", 3, "")}
    again, sequence = upstream.add([[9, 9]], ids[:1], namespace="", group="", epoch=0)
    assert again.duplicates == ids[:1]
    deleted, sequence = upstream.delete(ids[:2], namespace="")
    assert deleted == 2
    [new] = caught_up(changes)
    assert (new.first, new.last) == (before[-1].last + 1, sequence)
    assert not new.added
    assert {number for one in new.removed for number in range(one.first, one.last + 1)} == {
        one.number for one in newest[:2]
    }
    assert upstream.delete(ids[2:], namespace="")[0] == 1
    assert caught_up(changes)[-1].removed
    resumed = caught_up(upstream.changes(sequence, new.datastore_id))
    assert resumed[0].first == sequence + 1
    assert caught_up(upstream.changes(sequence, "another"))[0].first == 1
    assert next(upstream.changes(2**64 - 1, new.datastore_id)).first == 1, (
        "a number that there never was"
    )
    upstream.close()
    with pytest.raises(ServiceUnavailableError):
        list(changes)


def test_a_call_that_has_lasted_long_enough_is_followed_by_another(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_upstream, "STREAM_SECONDS", 0.5)
    upstream = upstream_of(service)
    changes = upstream.changes(0, "")
    some = caught_up(changes)
    time.sleep(0.6)
    _, sequence = upstream.add([[1]], None, namespace="", group="", epoch=0)
    while some[-1].last < sequence:
        some.append(next(changes))
    assert all(later.first == earlier.last + 1 for earlier, later in pairwise(some))
    upstream.close()


def test_without_changes_there_is_a_message_every_five_seconds(service: Service) -> None:
    upstream = upstream_of(service)
    changes = upstream.changes(0, "")
    last = caught_up(changes)[-1]
    quiet = next(changes)
    assert (quiet.first, quiet.last, quiet.head) == (last.last + 1, last.last, last.head)
    upstream.close()


def test_what_is_stored_is_sent_in_pieces(service: Service) -> None:
    upstream = upstream_of(service)
    for _ in range(3):
        upstream.add([[1] * 300_000], None, namespace="", group="", epoch=0)
    some = caught_up(upstream.changes(0, ""))
    assert len(some) > 2
    assert all(later.first == earlier.last + 1 for earlier, later in pairwise(some))
    upstream.close()


@pytest.mark.slow
def test_followers_that_do_not_read_cost_the_service_a_message_each(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    with LiveDatastore.open(tmp_path / "chat", tokenizer=identity(300)) as live:
        live.add([chance.integers(0, 300, 500) for _ in range(30_000)])  # 30 MB
        live.compact()
    with (
        running(options=["--live", str(tmp_path / "chat")]) as service,
        contextlib.ExitStack() as stack,
    ):
        before = service.resident_bytes()
        for _ in range(8):
            call = stack.enter_context(service.channel()).unary_stream(PREFIX + "Follow")(b"")
            stack.callback(call.cancel)
            next(call)
        time.sleep(1.0)  # in which more would be sent
        assert service.resident_bytes() - before < 8 * (5 << 20)


def test_a_service_that_ends_lets_followers_go(tmp_path: Path) -> None:
    LiveDatastore.open(tmp_path / "chat", tokenizer=identity(300)).close()
    with running(options=["--live", str(tmp_path / "chat")]) as service:
        changes = upstream_of(service).changes(0, "")
        next(changes)
        assert service.stop() == 0
        with pytest.raises(ServiceUnavailableError, match="shutting down"):
            list(changes)


@pytest.mark.parametrize(
    ("method", "request_", "reason"),
    [
        ("Follow", b"\xff", "CONTEXT_TYPE"),
        ("Follow", bytes(1 << 20), "MESSAGE_SIZE"),
        ("Follow", pb.FollowRequest(datastore="none"), "UNKNOWN_DATASTORE"),
        ("Follow", pb.FollowRequest(datastore="a"), "WRONG_KIND"),
        (
            "Follow",
            pb.FollowRequest(datastore="chat", tokenizer_fingerprint="sha256:1"),
            "TOKENIZER_MISMATCH",
        ),
        ("Fetch", b"\xff", "CONTEXT_TYPE"),
        ("Fetch", pb.FetchRequest(datastore="a", file="\0" * 9_000), "NO_SUCH_FILE"),
        ("Fetch", pb.FetchRequest(datastore="a", build="\n" * 9_000), "NO_SUCH_FILE"),
        ("Fetch", pb.FetchRequest(datastore="a", offset=2**64 - 1), "NO_SUCH_FILE"),
    ],
)
def test_each_bad_request_has_its_status(
    method: str, request_: bytes | pb.FollowRequest | pb.FetchRequest, reason: str, service: Service
) -> None:
    data = request_ if isinstance(request_, bytes) else request_.SerializeToString()
    with service.channel() as channel:
        call = channel.unary_stream(PREFIX + method)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(data, timeout=PATIENCE))
        assert reason_of(caught.value) == reason


# --- Services that lie ----------------------------------------------------------------------------


def message_of(changes: pb.Changes, checksum: int | None = None) -> bytes:
    data = changes.SerializeToString()
    return pb.FollowResponse(
        changes=data, checksum=checksum or zlib.crc32(data)
    ).SerializeToString()


def added(number: int, symbols: bytes = b"\0\1\0\2") -> pb.Changes:
    document = pb.AddedDocument(
        number=number, digest=number.to_bytes(16, "big"), added=1.0, symbols=symbols
    )
    return pb.Changes(datastore_id="x", first=number, last=number, head=number, added=[document])


NOT_CHANGES = pb.FollowResponse(changes=b"\xff", checksum=zlib.crc32(b"\xff")).SerializeToString()
LIES: dict[str, tuple[bytes, str]] = {
    "an end": (b"", "the service ended the stream"),
    "no message": (b"\xff", "FollowResponse is 1 malformed bytes"),
    "no changes": (NOT_CHANGES, "Changes is 1 malformed bytes"),
    "a message that is too large": (bytes(70 << 20), "message is too large"),
    "another checksum": (message_of(added(2), 1), "checksum"),
    "a gap": (message_of(added(4)), "changes 4..4 of 4 are not in order"),
    "tokens of another tokenizer": (message_of(added(2, b"\1\x2c")), "a token is 300"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_replica_of_a_service_that_lies_keeps_what_it_has_and_says_why(
    lie: str, tmp_path: Path
) -> None:
    sent, fragment = LIES[lie]
    liar = Impostor(Follow=[message_of(added(1)), *filter(None, [sent])])
    with LiveDatastore.open(f"{liar.target}/chat", cache=tmp_path) as replica:
        until(lambda: fragment in str(replica.info().failure))
        assert liar.target in str(replica.info().failure)
        assert replica.count([1, 2]) == 1
    liar.server.stop(None)


def test_pieces_that_cannot_be_are_named(tmp_path: Path) -> None:
    sound = pb.FetchResponse(data=b"abc", checksum=zlib.crc32(b"abc")).SerializeToString()
    broken = pb.FetchResponse(data=b"abd", checksum=zlib.crc32(b"abc")).SerializeToString()
    large = bytes(1 << 20)
    endless = pb.FetchResponse(data=large, checksum=zlib.crc32(large)).SerializeToString()
    for sent, error, fragment in (
        ([sound, broken], ProtocolError, "checksum"),
        ([b"\xff"], ProtocolError, "malformed"),
        ([endless] * 999, DatastoreFormatError, "size is more than"),
    ):
        liar = Impostor(Fetch=sent)
        files = ServiceFiles(f"{liar.target}/a")
        refused(error, lambda files=files: fetch(files, tmp_path), fragment)
        files.close()
        liar.server.stop(None)


def test_a_service_that_says_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (service_files, service_upstream):
        monkeypatch.setattr(module, "STREAM_SECONDS", LATE)
    ended = threading.Event()

    class Silence:
        def __iter__(self) -> Iterator[bytes]:
            ended.wait(PATIENCE)
            yield from ()

    silent = Impostor(Fetch=Silence(), Follow=Silence())
    failed(
        DeadlineError, lambda: Datastore.open(f"{silent.target}/a", cache=tmp_path), silent.target
    )
    with LiveDatastore.open(f"{silent.target}/chat", cache=tmp_path) as replica:
        until(lambda: "did not answer before the deadline" in str(replica.info().failure))
    ended.set()
    silent.server.stop(None)


def test_without_a_name_a_location_is_the_only_datastore_of_its_kind(tmp_path: Path) -> None:
    LiveDatastore.open(tmp_path / "other", tokenizer=identity(301)).close()
    frozen = write_datastore(tmp_path / "frozen", Corpus(302, [[[1, 2, 3]]]))
    with running(f"a={frozen}", options=["--live", str(tmp_path / "other")]) as service:
        with LiveDatastore.open(service.target, cache=tmp_path) as replica:
            assert replica.tokenizer.vocabulary_size == 301
        with Datastore.open(service.target, cache=tmp_path) as copy:
            assert copy.vocabulary_size == 302
    with running(f"a={frozen}", f"b={frozen}") as service:
        refused(
            "live", lambda: ServiceUpstream(service.target).tokenizer, "frozen, expected a live one"
        )


def test_a_frozen_datastore_or_another_tokenizer_is_not_followed(service: Service) -> None:
    upstream = ServiceUpstream(f"{service.target}/a")
    refused("live", lambda: upstream.tokenizer, "datastore 'a' is frozen, expected a live one")
    liar = Impostor(vocabulary_size=301)
    upstream = ServiceUpstream(f"{liar.target}/chat")
    assert upstream.tokenizer.vocabulary_size == 301
    # Another one answers at that address by now.
    upstream._partition.preferred = upstream_of(service)._partition.preferred
    refused(TokenizerMismatchError, lambda: next(upstream.changes(0, "")), "tokenizer")
    liar.server.stop(None)
