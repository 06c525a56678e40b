"""A replica has each document of its service, whatever happens to either."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rest_store.errors import (
    ArgumentError,
    DeadlineError,
    DocumentError,
    QueryError,
    ServiceUnavailableError,
    StorageError,
    TokenizerMismatchError,
    WriterError,
)
from rest_store.live import database
from rest_store.live import replica as replicas
from rest_store.live.documents import Documents
from rest_store.live.live_datastore import LiveDatastore
from rest_store.live.records import Changes, Removal
from rest_store.live.replica import replica_directory
from tests.shared.live import (
    SECRET,
    SECRET_BYTES,
    file_bytes,
    new_live,
    small_segments,
    some_document,
    until,
)
from tests.shared.strategies import identity, refused
from tests.shared.upstream import LOCATION, Service, serve


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveDatastore]:
    with new_live(tmp_path / "live") as opened:
        yield opened


@pytest.fixture
def service(live: LiveDatastore, monkeypatch: pytest.MonkeyPatch) -> Service:
    return serve(monkeypatch, live)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def opened(cache: Path, **options: Any) -> LiveDatastore:
    return LiveDatastore.open(LOCATION, cache=cache, **options)


def content(live: LiveDatastore) -> list[object]:
    changes = live.changes(0, "", max_bytes=1 << 40)
    return [changes.datastore_id, changes.last, *changes.added]


def until_equal(replica: LiveDatastore, live: LiveDatastore) -> None:
    until(lambda: replica.newest_change == live.newest_change and replica.info().failure is None)
    assert content(replica) == content(live)
    for namespace in {
        document.namespace for document in live.changes(0, "", max_bytes=1 << 40).added
    }:
        stored = list(live.namespace(namespace).documents())
        for document in stored[:5]:
            text = document.tokens[:64].tolist()
            assert replica.namespace(namespace).count(text) == live.namespace(namespace).count(text)
    assert replica.info().token_count == live.info().token_count


def test_a_replica_has_what_the_service_has(
    live: LiveDatastore, service: Service, cache: Path
) -> None:
    live.add([[1, 2], [1, 3]], ["a", "b"], group="first", epoch=3)
    with opened(cache) as replica, opened(cache) as other:
        until_equal(replica, live)
        live.namespace("one").add([[4, 5]])
        live.delete(["a"])
        for some in (replica, other):
            until_equal(some, live)
            assert (some.count([1]), some.namespace("one").count([4, 5])) == (1, 1)
            assert [document.group for document in some.documents()] == ["first"]
            assert some.longest_suffix_match([1, 3]) == live.longest_suffix_match([1, 3])
        info = replica.info()
        assert (info.location, info.behind, info.path) == (
            LOCATION,
            0,
            replica_directory(LOCATION, cache),
        )
        assert other.info().behind is None
    with LiveDatastore.open(info.path, read_only=True) as reader:
        assert reader.count([1]) == 1


def test_what_is_changed_here_is_changed_at_the_service_and_visible_when_it_returns(
    live: LiveDatastore, service: Service, cache: Path
) -> None:
    with opened(cache) as keeper, opened(cache) as reader:
        for replica in (keeper, reader):
            ids = replica.namespace("one").add(
                [[1, 2], [1, 3], [1, 2]], ["a", "b", "a"], group="first", epoch=1
            )
            assert (ids.added, ids.duplicates) == (["a", "b"], ["a"])
            assert [store.namespace("one").count([1]) for store in (replica, live)] == [2, 2]
            assert [document.group for document in replica.namespace("one").documents()] == [
                "first"
            ] * 2
            assert replica.namespace("one").delete(["a"]) == 1
            assert [store.namespace("one").count([1, 2]) for store in (replica, live)] == [0, 0]
            assert replica.namespace("one").delete(["b"]) == 1
            assert live.namespace("one").count([1]) == 0
            assert len(replica.add([[1, 9]])) == 1
            assert replica.add([]) == []
        assert keeper.count([1, 9]) == 2
        refused(
            WriterError,
            lambda: keeper.namespace("one").set_retention(max_tokens=5),
            "retention cannot be set on a replica",
        )
        keeper.compact()
    with opened(cache, read_only=True) as replica:
        refused(WriterError, lambda: replica.add([[1]]), "opened for reading")


def test_documents_of_several_groups_are_added_as_one_addition_would(
    live: LiveDatastore, service: Service, cache: Path, tmp_path: Path
) -> None:
    documents = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [11, 12]]
    ids = ["a", "b", "c", "b", "known", "d"]
    labels: dict[str, Any] = {
        "group": ["ann", "bob", "ann", "ann", "bob", "ann"],
        "epoch": [1, 1, 1, 1, 2, 2],
    }
    kept = []
    with opened(cache) as replica, new_live(tmp_path / "direct") as direct:
        for store in (replica, direct):
            store.add([[20, 21]], ["known"], group="dan", epoch=9)
            added = store.add(documents, ids, **labels)
            assert list(added) == ids
            assert (added.added, added.duplicates) == (["a", "b", "c", "d"], ["b", "known"])
            assert (store.count([3, 4]), store.count([7, 8]), store.count([9, 10])) == (1, 0, 0)
            kept.append(
                {
                    (tuple(document.tokens.tolist()), document.group, document.epoch)
                    for document in store.documents()
                }
            )
        assert kept[0] == kept[1]
        assert ((3, 4), "bob", 1) in kept[0]
        until_equal(replica, live)
        for bad, wrong in (
            ({"documents": [[1], [300]]}, QueryError),
            ({"documents": [[1], []]}, DocumentError),
            ({"group": ["ann", "x" * 257]}, DocumentError),
            ({"group": ["ann"]}, DocumentError),
            ({"epoch": [1, -1]}, ArgumentError),
        ):
            arguments: dict[str, Any] = {
                "documents": [[1], [2]],
                "ids": ["e", "f"],
                "group": ["ann", "bob"],
                **bad,
            }
            refused(wrong, lambda some=arguments: replica.add(**some))  # type: ignore[misc]
            assert live.info().document_count == 5, "nothing was added, of any group"


def test_what_never_becomes_visible_here_is_said(
    live: LiveDatastore, service: Service, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "_PATIENCE_SECONDS", 0.01)
    with opened(cache) as replica:
        service.change = lambda changes: changes._replace(
            added=[], removed=[], last=changes.first - 1
        )
        with pytest.raises(
            DeadlineError,
            match=r"chat: the change was made there, but it is not visible here within 0\.01 s",
        ):
            replica.add([[1, 2]])
    assert live.count([1, 2]) == 1


def test_it_opens_and_answers_while_the_service_is_away(
    live: LiveDatastore, service: Service, cache: Path
) -> None:
    live.add([[1, 2]])
    with opened(cache) as replica:
        until_equal(replica, live)
        service.live = None
        until(lambda: replica.info().failure)
        assert replica.count([1, 2]) == 1
        with pytest.raises(ServiceUnavailableError):
            replica.add([[1]])
    with opened(cache) as replica:
        assert replica.count([1, 2]) == 1
        until(lambda: "cannot be reached" in (replica.info().failure or ""))
        live.add([[1, 3]])
        service.live = live
        until(lambda: replica.count([1, 3]) == 1)
        assert replica.info().failure is None
    service.live = None
    with pytest.raises(ServiceUnavailableError):
        opened(cache / "new")
    assert not (cache / "new").exists()


def test_another_process_takes_over(live: LiveDatastore, service: Service, cache: Path) -> None:
    keeper = opened(cache)
    with opened(cache) as other, opened(cache) as third:
        live.add([[1, 2]])
        until_equal(other, live)
        keeper.close()
        live.add([[1, 3]])
        for some in (other, third):
            until(lambda some=some: some.count([1, 3]) == 1)
            until_equal(some, live)
        assert sorted([other.info().behind is None, third.info().behind is None]) == [False, True]


def test_one_that_is_dropped_lets_others_take_over(
    live: LiveDatastore, service: Service, cache: Path
) -> None:
    dropped = opened(cache)
    with opened(cache) as other:
        assert (dropped.info().behind, other.info().behind) == (0, None)
        del dropped
        until(lambda: other.info().behind == 0)


@pytest.mark.parametrize("copied", ["nothing", "documents.sqlite", "*"])
def test_what_is_from_another_datastore_is_replaced(
    live: LiveDatastore, service: Service, cache: Path, tmp_path: Path, copied: str
) -> None:
    """A restored backup replaces it, too, whose changes of the same numbers differ."""
    live.add([[1, 2]])
    live.close()
    (tmp_path / "copy").mkdir()
    for path in (tmp_path / "live").glob(copied):
        shutil.copy(path, tmp_path / "copy")
    with new_live(tmp_path / "live") as live, new_live(tmp_path / "copy") as other:
        service.live = live
        with opened(cache) as replica:
            for _ in range(20):
                live.namespace("secret name").add([SECRET])
            until_equal(replica, live)
            other.add([[1, 5]] * 40)
            service.live = other
            until(lambda: replica.count([1, 5]) == 40)
            until_equal(replica, other)
            assert replica.namespace("secret name").count(SECRET) == 0
            assert SECRET_BYTES not in file_bytes(cache)
            assert b"secret name" not in file_bytes(cache)


def test_readers_notice_another_datastore_with_the_same_numbers(
    live: LiveDatastore, service: Service, cache: Path, tmp_path: Path
) -> None:
    live.add([[1, 2]])
    with opened(cache), opened(cache) as reader, new_live(tmp_path / "other") as other:
        until(lambda: reader.count([1, 2]) == 1)
        other.add([[1, 3]])
        service.live = other
        until(lambda: reader.count([1, 3]) == 1)
        assert reader.count([1, 2]) == 0


def test_no_file_holds_what_was_deleted(live: LiveDatastore, service: Service, cache: Path) -> None:
    live.namespace("secret name").add(
        [SECRET * 20, [1, 2]] * 50, [str(number) for number in range(100)]
    )
    with opened(cache) as replica:
        until_equal(replica, live)
        replica.compact()
        assert SECRET_BYTES in file_bytes(cache)
        live.namespace("secret name").delete([str(number) for number in range(100)])
        until(
            lambda: (
                SECRET_BYTES not in file_bytes(cache) and b"secret name" not in file_bytes(cache)
            )
        )


def test_what_a_reader_has_kept_from_being_removed_is_removed_later(
    live: LiveDatastore, service: Service, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_PATIENCE_MS", 10)
    live.add([SECRET], ["a"])
    with opened(cache) as replica:
        until_equal(replica, live)
        reader = sqlite3.connect(replica.path / "documents.sqlite", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM documents").fetchall()
        live.delete(["a"])
        until(lambda: "still in the log" in (replica.info().failure or ""))
        assert replica.count(SECRET) == 0
        reader.close()
        until_equal(replica, live)
        assert SECRET_BYTES not in file_bytes(cache)


def test_where_the_service_evicts_replicas_do(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eviction sorts no more than a part of the replica anew."""
    small_segments(monkeypatch, largest=4000)
    with new_live(tmp_path / "live", 65_535, max_tokens=2400) as live:
        service = serve(monkeypatch, live)
        service.max_bytes = 2000
        with opened(cache) as replica:
            for token in range(2000):
                live.namespace(("", "one")[token % 2]).add([[1000 + token, 1, 2]])
            until_equal(replica, live)
            assert replica.info().shard_count > 6


def test_random_changes_arrive_document_by_document(
    live: LiveDatastore, service: Service, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections break, and the replica is opened again, during additions and deletions."""
    small_segments(monkeypatch)
    service.max_bytes = 300
    chance = random.Random(0)
    replica = opened(cache)
    ids = []
    for _ in range(60):
        namespace = chance.choice(["", "one"])
        documents = [some_document(chance, 300) for _ in range(chance.choice([1, 5, 30]))]
        ids += [(id, namespace) for id in live.namespace(namespace).add(documents)]
        if chance.random() < 0.5:
            chance.shuffle(ids)
            gone = ids[:5]
            ids = ids[5:]
            for id, namespace in gone:
                live.namespace(namespace).delete([id])
        if chance.random() < 0.2:
            service.live = None
            service.live = live
        if chance.random() < 0.2:
            replica.compact()
        if chance.random() < 0.2:
            replica.close()
            replica = opened(cache)
    until(lambda: replica.info().failure is None)
    until_equal(replica, live)
    replica.close()


# --- What goes wrong ------------------------------------------------------------------------------


def lying(**fields: Any) -> Callable[[Changes], Changes]:
    """Replace fields of changes that hold documents."""
    return lambda changes: changes._replace(**fields) if changes.added else changes


def lying_document(**fields: Any) -> Callable[[Changes], Changes]:
    return lambda changes: changes._replace(
        added=[some._replace(**fields) for some in changes.added]
    )


LIES: dict[str, tuple[Callable[[Changes], Changes], str]] = {
    "a gap": (
        lying(first=3),
        "changes 3..2 of 2 are not in order, expected ascending numbers from 2 or 1 on",
    ),
    "a number twice": (lying_document(number=1), "changes 2..2 of 2 are not in order"),
    "more than there is": (lying(last=9), "changes 2..9 of 2 are not in order"),
    "a removal to come": (
        lying(removed=[Removal(2, 1, 5, deleted=False)]),
        "changes 2..2 of 2 are not in order",
    ),
    "a token": (lying_document(symbols=b"\1\54"), "a token is 300, expected 0..299"),
    "half a token": (lying_document(symbols=b"\1"), "document 2 is malformed"),
    "no token": (lying_document(symbols=b""), "document 2 is malformed"),
    "no number": (
        lying(last=2**63, head=2**63),
        f"changes 2..{2**63} of {2**63} are not in order",
    ),
    "no time": (lying_document(added=float("nan")), "document 2 is malformed"),
    "a time without a date": (lying_document(added=1e300), "document 2 is malformed"),
    "an id": (lying_document(digest=b"short"), "document 2 is malformed"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_service_that_lies(
    live: LiveDatastore, service: Service, cache: Path, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is named, and the documents of before stay.

    Once the service says the truth, the replica takes it over.
    """
    live.add([[1, 2]])
    with opened(cache) as replica:
        until_equal(replica, live)
        change, message = LIES[lie]
        honest = service.change
        service.change = change
        live.add([[1, 3]])
        until(lambda: message in (replica.info().failure or ""))
        assert "ProtocolError" in str(replica.info().failure)
        assert LOCATION in str(replica.info().failure)
        assert (replica.count([1, 2]), replica.count([1])) == (1, 1)
        service.change = honest
        until(lambda: replica.info().failure is None)
        until_equal(replica, live)


def test_an_upstream_with_another_tokenizer(
    live: LiveDatastore, service: Service, cache: Path
) -> None:
    live.add([[1, 2]])
    with pytest.raises(TokenizerMismatchError):
        opened(cache, tokenizer=identity(301))
    opened(cache, tokenizer=identity(300)).close()
    service.tokenizer = identity(301)
    with opened(cache) as replica:
        until(lambda: "TokenizerMismatchError" in (replica.info().failure or ""))
        service.tokenizer = None
        until_equal(replica, live)


@pytest.mark.parametrize("stored", [False, True])
def test_a_full_disk(
    live: LiveDatastore,
    service: Service,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    stored: bool,
) -> None:
    """The failure comes before changes are stored, or after that."""
    live.add([[1, 2]])
    commit = Documents.commit
    with opened(cache) as replica:
        until_equal(replica, live)

        def full(documents: Documents, *arguments: Any, **options: Any) -> None:
            is_replica = cache in documents.path.parents
            if stored or not is_replica:
                commit(documents, *arguments, **options)
            if is_replica:
                raise StorageError("full")

        with monkeypatch.context() as patch:
            patch.setattr(Documents, "commit", full)
            live.add([[1, 3]])
            until(lambda: replica.info().failure == "rest_store.errors.StorageError: full")
            assert replica.count([1]) == 1
        until_equal(replica, live)


def test_a_cache_of_another_service(live: LiveDatastore, service: Service, cache: Path) -> None:
    opened(cache).close()
    place = replica_directory(LOCATION, cache)
    place.rename(replica_directory("other:1/chat", cache))
    for location in ("other:1/chat", "other:1/chat"):
        message = refused(
            "live", lambda location=location: LiveDatastore.open(location, cache=cache)
        )
        assert message.endswith(f"is a replica of {LOCATION}, expected a replica of other:1/chat")
    moved = replica_directory("other:1/chat", cache)
    refused(
        "live",
        lambda: LiveDatastore.open(moved),
        f"a replica of {LOCATION}, expected one that is no",
    )
    own = replica_directory(LOCATION, cache)
    new_live(own).close()
    refused("live", lambda: opened(cache), "one that is no replica")
    refused(
        ArgumentError, lambda: opened(cache, max_tokens=5), "retention cannot be set for a replica"
    )
