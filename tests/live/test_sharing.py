"""Live datastores that are shared: what the queries and the sessions of a group tell of others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rest_store import _kernel  # type: ignore[attr-defined]
from rest_store.drafting.session import DraftSession
from rest_store.errors import ArgumentError, DocumentError, StorageError
from rest_store.live.documents import Documents
from rest_store.live.live_datastore import LiveDatastore
from rest_store.live.sharing import MAX_SHARED_AFTER
from tests.shared.live import new_live, refresh, small_segments, some_document
from tests.shared.sharing import GROUPS, Walk, drafted, paths
from tests.shared.strategies import identity, refused


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveDatastore]:
    with new_live(tmp_path / "live", shared_after=2) as opened:
        yield opened


@pytest.mark.parametrize("seed", range(4))
def test_every_answer_to_a_group_is_that_of_a_brute_force_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    small_segments(monkeypatch)
    chance = random.Random(seed)
    with closing(Walk(tmp_path / "live", chance, 1 + seed % 4)) as walk:
        for _ in range(40):
            walk.step()
        assert walk.live.info().failure is None


def test_what_a_group_wrote_is_drafted_for_it_at_once_and_for_others_after_another(
    live: LiveDatastore,
) -> None:
    text = [1, 2, 3, 4, 5, 6]
    live.add([text], group="ann")
    for group, expected in (("ann", [4, 5, 6]), ("bob", []), ("", [])):
        assert drafted(live, [1, 2, 3], group).tokens.tolist() == expected
        assert live.read_as(group).draft([1, 2, 3]).tokens.tolist() == expected
        assert live.read_as(group).count([3, 4]) == (1 if expected else 0)
    live.add([text, text], group="ann")
    assert drafted(live, [1, 2, 3], "bob").tokens.tolist() == []
    [id] = live.add([[2, 3, 4, 9]], group="bob")
    assert drafted(live, [1, 2, 3], "cleo").tokens.tolist() == [4]
    assert paths(drafted(live, [1, 2, 3], "bob")) == {(4,), (4, 9)}
    live.delete([id])
    for _ in range(2):
        assert drafted(live, [1, 2, 3], "cleo").tokens.tolist() == []
        live.compact()


def test_documents_without_a_group_are_those_of_one_group_that_nobody_is_in(
    live: LiveDatastore,
) -> None:
    live.add([[1, 2, 3], [1, 2, 3]])
    for group in ("", "ann"):
        assert drafted(live, [1, 2], group).tokens.size == 0
    live.add([[1, 2, 3]], group="bob")
    for group in ("", "ann"):
        assert drafted(live, [1, 2], group).tokens.tolist() == [3]


def test_namespaces_are_shared_each_for_itself(live: LiveDatastore) -> None:
    live.add([[1, 2, 3]], group="ann")
    live.namespace("other").add([[1, 2, 3]], group="bob")
    assert [live.read_as("cleo").count([1, 2]), live.read_as("ann").count([1, 2])] == [0, 1]
    assert live.namespace("other").read_as("bob").count([1, 2]) == 1
    assert live.namespace("other").read_as("ann").count([1, 2]) == 0


@pytest.mark.parametrize("seed", range(6))
def test_a_draft_does_not_depend_on_what_too_few_others_wrote(tmp_path: Path, seed: int) -> None:
    """Two datastores differ in the documents of one group.

    Nobody else's sequences are in these documents. Then trees, scores and all, are the same.
    """
    chance = random.Random(seed)
    common = [(chance.choice(GROUPS[1:]), some_document(chance, 300)) for _ in range(60)]
    context = [0, 1, 2, 0, 1]
    trees = []
    for private in (range(10, 40), range(60, 140)):
        secret = [chance.choice(private) for _ in range(50)]
        for place in range(0, 50, 10):  # after words of others, too
            secret[place : place + 2] = context[-2:]
        secrets = [secret[begin : begin + 7] for begin in range(0, 50, 7)]
        directory = tmp_path / str(private.start)
        with new_live(directory, 300, shared_after=2) as live:
            for group, document in common:
                live.add([document], group=group)
            live.add([[0, 1, 2, 0, 1, secret[3]]] * 3, group="victim")
            live.add(secrets, group="victim")
            live.add([context[:2]], group="other")
            live.compact()
            trees.append(drafted(live, context, "ann", 48))
            assert set(trees[-1].tokens.tolist()).isdisjoint(private)
            own = drafted(live, context, "victim", 48)
            assert not set(own.tokens.tolist()).isdisjoint(private)
    assert paths(trees[0]) == paths(trees[1])
    assert len(trees[0]) > 4


def test_many_occurrences_are_sampled_and_counted_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that a thousand documents of one group show is told to that group alone."""
    small_segments(monkeypatch, memtable=256, largest=4000)
    with new_live(tmp_path / "live", 300, shared_after=3) as live:
        live.add([[1, 2, 3, 20 + number % 5] for number in range(1500)], group="ann")
        live.add([[1, 2, 3, 50, 51, 52]] * 40, group="bob")
        live.add([[1, 2, 3, 60, 61]] * 30, group="cleo")
        for group in ("ann", "bob"):
            live.add([[1, 2, 3, 60, 61]] * 2, group=group)
        live.compact()
        assert live.info().shard_count > 1
        for group, tokens in (
            ("dan", {60, 61}),
            ("bob", {50, 51, 52, 60, 61}),
            ("ann", {20, 21, 22, 23, 24, 60, 61}),
        ):
            assert set(drafted(live, [1, 2, 3], group).tokens.tolist()) == tokens
            tree = live.read_as(group).draft([1, 2, 3])
            assert set(tree.tokens.tolist()) == tokens
            counts = dict(zip(tree.tokens.tolist(), tree.counts.tolist(), strict=True))
            assert counts[60] == 34


def test_it_is_stored_and_a_reader_follows_it(tmp_path: Path) -> None:
    directory = tmp_path / "live"
    with new_live(directory) as live:
        assert live.info().shared_after == live.shared_after == 1
        live.add([[1, 2, 3]], group="ann")
        assert live.count([1, 2]) == 1
    with (
        LiveDatastore.open(directory, read_only=True) as reader,
        DraftSession([reader], [1, 2], group="bob") as session,
    ):
        assert session.draft(4).tokens.tolist() == [3]
        with LiveDatastore.open(directory, shared_after=2) as live:
            assert live.count([1, 2]) == 0
            refresh(reader)
            assert reader.info().shared_after == 2
            assert session.draft(4).tokens.tolist() == []
            assert reader.read_as("ann").count([1, 2]) == 1
    with LiveDatastore.open(directory) as live:
        assert live.shared_after == 2
        assert live.count([1, 2]) == 0
    with LiveDatastore.open(directory, shared_after=1) as live:
        assert live.count([1, 2]) == 1


@pytest.mark.parametrize("value", [0, -1, MAX_SHARED_AFTER + 1, 1.5, "2"])
def test_it_is_a_number_of_groups(tmp_path: Path, value: object) -> None:
    refused(ArgumentError, lambda: new_live(tmp_path / "live", shared_after=value), "shared_after")


def test_only_who_writes_the_datastore_sets_it(tmp_path: Path) -> None:
    new_live(tmp_path / "live").close()
    for location, options, text in (
        (tmp_path / "live", {"read_only": True}, "by a reader"),
        ("host:50051/chat", {}, "for a replica"),
    ):
        refused(
            ArgumentError,
            lambda path=location, more=options: LiveDatastore.open(  # type: ignore[misc]
                path, shared_after=2, tokenizer=identity(300), **more
            ),
            text,
        )


def test_a_damaged_number_is_refused(tmp_path: Path) -> None:
    new_live(tmp_path / "live").close()
    with closing(Documents(tmp_path / "live")) as documents:
        documents.set_shared_after(0)
    refused(StorageError, lambda: LiveDatastore.open(tmp_path / "live"), "shared_after is damaged")


def test_a_group_that_reads_has_a_valid_name(live: LiveDatastore) -> None:
    for call in (
        lambda: live.read_as("x" * 257),
        lambda: DraftSession([live], [1], group="x" * 257),
    ):
        refused(DocumentError, call, "a group")


def test_the_kernel_hides_all_of_a_shard_without_its_groups(live: LiveDatastore) -> None:
    """A shard needs as many keys as documents, or its file was damaged after the opening."""
    live.add([[1, 2, 3], [1, 2, 3]], group="ann")
    [segment] = live.backend.segments.all
    assert segment.group_keys is not None
    keys = segment.group_keys
    for some, visible in ((keys, 2), (keys[:1], 0), (np.repeat(keys, 2), 0)):
        groups = _kernel.ShardGroups(segment.view, some)
        sharing = _kernel.Sharing([groups], 2, int(keys[0]))
        kernel = _kernel.NativeKernel([segment.view], 300, sharing)
        assert kernel.count([1, 2]) == visible
    with pytest.raises(ValueError, match="another number of shards"):
        _kernel.NativeKernel([segment.view] * 2, 300, _kernel.Sharing([groups], 2, None))
    for count in (0, MAX_SHARED_AFTER + 1):
        with pytest.raises(ValueError, match="out of range"):
            _kernel.Sharing([groups], count, None)
