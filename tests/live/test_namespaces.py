"""Namespaces, groups and epochs: what is read, counted, kept and deleted for each alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import rest_store
from rest_store.errors import ArgumentError, DatastoreClosedError, DocumentError
from rest_store.live.documents import Documents
from rest_store.live.export import export
from rest_store.live.live_check import check_live
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.live import SECRET, SECRET_BYTES, file_bytes, new_live
from tests.shared.strategies import refused


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveDatastore]:
    with new_live(tmp_path / "live") as opened:
        yield opened


def test_no_query_reads_the_documents_of_two_namespaces(live: LiveDatastore) -> None:
    one = live.namespace("one")
    other = live.namespace("other")
    live.add([[1, 2]], ["a"])
    one.add([[1, 3]], ["a"])
    assert other.add([[1, 4], [1, 4]], ["a", "b"]).added == ["a", "b"]
    for _ in range(2):
        assert [store.count([1]) for store in (live, one, other)] == [1, 1, 2]
        assert one.draft([1]).tokens.tolist() == [3]
        assert live.info().document_count == 4
        live.compact()
    assert live.namespace("one").delete(["a", "b"]) == 1
    assert [store.count([1]) for store in (live, one, other)] == [1, 0, 2]
    with LiveDatastore.open(live.path, read_only=True) as reader:
        assert [reader.namespace(name).count([1]) for name in ("", "one", "other", "none")] == [
            1,
            0,
            2,
            0,
        ]


def test_a_session_reads_the_namespaces_that_it_is_given(live: LiveDatastore) -> None:
    one = live.namespace("one")
    live.namespace("other").add([[1, 2, 9]] * 3)
    with rest_store.DraftSession([one], prompt=[1, 2]) as session:
        assert session.draft(4).tokens.size == 0
        one.add([[1, 2, 3, 4]] * 3)
        assert session.draft(4).tokens.tolist()[:2] == [3, 4]
        live.close()
        assert session.draft(4).tokens.size == 0
    refused(DatastoreClosedError, lambda: one.count([1]))


def test_groups_and_epochs_are_kept(live: LiveDatastore) -> None:
    one = live.namespace("one")
    one.add([[1, 2], [1, 3]], group="first", epoch=1)
    one.add([[1, 4]], group="second", epoch=2)
    live.add([[1, 5]], group="first")
    kept = [
        (document.tokens.tolist(), document.group, document.epoch)
        for document in live.namespace("one").documents()
    ]
    assert kept == [([1, 2], "first", 1), ([1, 3], "first", 1), ([1, 4], "second", 2)]
    assert [
        document.tokens.tolist() for document in live.namespace("one").documents(group="first")
    ] == [[1, 2], [1, 3]]
    assert [document.tokens.tolist() for document in live.documents(group="first")] == [[1, 5]]
    for latest, tokens in ((1, [[1, 3]]), (2, [[1, 2], [1, 3]]), (9, [[1, 2], [1, 3]])):
        assert [
            document.tokens.tolist() for document in one.documents(group="first", latest=latest)
        ] == tokens
    assert [document.tokens.tolist() for document in one.documents(latest=2)] == [[1, 3], [1, 4]]
    refused(ArgumentError, lambda: list(one.documents(latest=0)), "latest is 0")


def test_documents_of_a_group_are_found_without_reading_others(live: LiveDatastore) -> None:
    live.add([[1, 2]], group="first")
    statements: list[str] = []
    with closing(Documents(live.path, read_only=True)) as stored:
        stored._database.set_trace_callback(statements.append)
        assert stored.latest_numbers(1, namespace="", group="first") == [1]
        assert stored.latest_numbers(None, namespace="", group="first") == [1]
        stored._database.set_trace_callback(None)
        for statement in statements:
            [(*_, plan)] = stored._database.execute(f"EXPLAIN QUERY PLAN {statement}")
            assert "in_group (namespace=? AND group=?" in plan
    assert len(statements) == 2


def test_documents_are_read_while_others_come_and_go(live: LiveDatastore) -> None:
    """Reading holds no state of the file, since a deletion could not empty the log then."""
    ids = live.add([[1, number] for number in range(2, 300)])
    read = 0
    for document in live.documents():
        read += 1
        if document.tokens[1] == 2:
            live.delete(ids[:10])
            live.add([[1, 299]])
    assert read == len(ids) - 9
    assert live.count([1]) == len(ids) - 9


def test_no_file_holds_what_was_deleted_of_a_namespace(live: LiveDatastore) -> None:
    secret = live.namespace("secret name")
    ids = secret.add([SECRET, [1, 2]], group="secret group", epoch=1)
    assert live.namespace("secret name").delete(ids) == 2
    stored = file_bytes(live.path)
    assert SECRET_BYTES not in stored
    assert b"secret group" not in stored
    assert b"secret name" not in stored
    secret.add([[1, 2]])
    assert secret.count([1, 2]) == 1


def test_damaged_segments_of_namespaces_are_sorted_anew(live: LiveDatastore) -> None:
    live.add([[1, 2]] * 3)
    live.namespace("one").add([[1, 3]] * 5)
    live.compact()
    assert check_live(live.path) == (2, 16)
    live.close()
    for path in live.path.glob("segment-*.tokens"):
        path.write_bytes(b"damaged")
    with LiveDatastore.open(live.path) as again:
        assert (again.count([1, 2]), again.namespace("one").count([1, 3])) == (3, 5)
        assert export(again, live.path.parent / "frozen").count([1]) == 3
        assert export(again.namespace("one"), live.path.parent / "frozen").count([1]) == 5


@pytest.mark.parametrize("label", [5, None, "a" * 257, "a\0b", "\ud800"])
def test_what_is_no_label_is_refused(live: LiveDatastore, label: Any) -> None:
    refused(DocumentError, lambda: live.namespace(label), "a namespace is")
    refused(DocumentError, lambda: live.add([[1]], group=label), "a group is")
    if label is not None:
        refused(DocumentError, lambda: list(live.documents(group=label)), "a group is")
    assert live.info().document_count == 0


@pytest.mark.parametrize("epoch", [-1, 1.5, "1", 2**70])
def test_what_is_no_epoch_is_refused(live: LiveDatastore, epoch: Any) -> None:
    refused(ArgumentError, lambda: live.add([[1]], epoch=epoch), "epoch is")
