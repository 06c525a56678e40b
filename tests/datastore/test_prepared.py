"""Prepared drafts: written as FORMAT.md says, used where they are all that is asked for, and never believed blindly."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from build_index import preparation
from build_index.preparation import prepare_drafts
from rest_store.datastore.check import check_datastore
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.kernel import native_kernel, shard_view
from rest_store.datastore.prepared import FILE_NAME, PreparedFile, pack_draft, write_prepared
from rest_store.datastore.reference import ReferenceKernel
from rest_store.datastore.tree import SuffixMatch, TokenTree
from tests.shared.strategies import (
    Corpus,
    add_prepared,
    brute_draft,
    corpora,
    paths,
    write_datastore,
    zipf_corpus,
)

pytestmark = pytest.mark.skipif(native_kernel() is None, reason="without the native kernel nothing is prepared")


def frequent(corpus: Corpus, least: int) -> set[tuple[int, ...]]:
    """All sequences of 1 to 16 tokens with so many occurrences."""
    found = Counter(
        tuple(document[start:end])
        for document in corpus.documents
        for start in range(len(document))
        for end in range(start + 1, min(start + 16, len(document)) + 1)
    )
    return {tokens for tokens, count in found.items() if count >= least}


@pytest.mark.parametrize("vocabulary_size", [300, 70_000])
def test_the_file_is_laid_out_as_the_format_says(tmp_path: Path, vocabulary_size: int) -> None:
    """The bytes of FORMAT.md, section 8, put together here by hand."""
    top = vocabulary_size - 1
    corpus = Corpus(vocabulary_size, [[[top, 1, 2]], [[3, top, 1, 1]]])
    shards = Datastore.open(write_datastore(tmp_path, corpus)).shards
    trees = {
        (top,): TokenTree([1, 2, 1], [-1, 0, 0], [2, 1, 1], match=SuffixMatch(1, 2)),
        (1,): TokenTree([1, 2], [-1, -1], [1, 1], match=SuffixMatch(1, 3)),
        (top, 1, 2): TokenTree([], [], [], match=SuffixMatch(3, 2**39)),
    }
    drafts = [(tokens, pack_draft(tokens, tree, vocabulary_size)) for tokens, tree in trees.items()]
    write_prepared(tmp_path / FILE_NAME, shards, drafts, vocabulary_size=vocabulary_size, max_nodes=64, max_depth=10)

    width = 2 if vocabulary_size == 300 else 3

    def bucket(tokens: tuple[int, ...]) -> int:
        hashed = 0
        for token in tokens:
            hashed ^= token
            hashed = hashed * 0x9E3779B97F4A7C15 % 2**64
            hashed ^= hashed >> 32
        return hashed >> 61

    def big(token: int) -> bytes:
        return token.to_bytes(width, "big")

    records, offsets, in_buckets = b"", [0], [0] * 8
    for tokens in sorted(trees, key=lambda tokens: (bucket(tokens), tokens)):
        tree = trees[tokens]
        in_buckets[bucket(tokens)] += 1
        records += bytes([len(tokens), len(tree)]) + tree.match.count.to_bytes(8, "little")
        records += b"".join(map(big, tokens))
        for token, parent, count in zip(tree.tokens.tolist(), tree.parents.tolist(), tree.counts.tolist(), strict=True):
            records += big(token) + bytes([parent + 1]) + count.to_bytes(5, "little")
        offsets.append(len(records))
    starts = [sum(in_buckets[:place]) for place in range(9)]
    payload = struct.pack("<4Q", *offsets) + struct.pack("<9I", *starts) + records
    digest = hashlib.sha256(b"".join(shard.suffixes.header.sha256 for shard in shards)).digest()
    header = struct.pack(
        "<8sIHHIIIIQQQ32s32s",
        b"\x89RSTPRE\n",
        0x0A0B0C0D,
        1,
        256,
        width,
        vocabulary_size,
        64,
        10,
        3,
        3,
        len(payload),
        hashlib.sha256(payload).digest(),
        digest,
    ).ljust(252, b"\0")
    header += struct.pack("<I", zlib.crc32(header))
    assert (tmp_path / FILE_NAME).read_bytes() == header + payload + bytes(8)

    opened = PreparedFile.open(tmp_path / FILE_NAME)
    for tokens, tree in trees.items():
        place = opened.find(tokens)
        assert place is not None
        assert opened.draft(place) == (list(tokens), tree)
    assert opened.find([2]) is None


@settings(deadline=None)
@given(data=st.data(), corpus=corpora(), least=st.integers(2, 6))
def test_frequent_sequences_are_prepared_and_nothing_changes(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, corpus: Corpus, least: int
) -> None:
    assume(corpus.vocabulary_size <= 1 << 16)  # each id is counted
    directory = write_datastore(tmp_path_factory.mktemp("ds"), corpus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "LEAST", least)
        patch.setattr(preparation, "BYTES_A_TOKEN", 1e9)
        add_prepared(directory)
    store, plain = Datastore.open(directory), Datastore.open(directory)
    plain = Datastore(directory, plain.manifest, plain.shards)
    wanted = frequent(corpus, least)
    if not wanted:
        assert store.prepared is None
        assert not (directory / FILE_NAME).exists()
        return
    assert store.prepared is not None
    kept = [store.prepared.draft(place) for place in range(store.prepared.header.draft_count)]
    assert {tuple(tokens) for tokens, _ in kept} == wanted
    assert len(kept) == len(wanted) == store.info().prepared_count
    for tokens, tree in kept[:8]:
        assert paths(tree) == brute_draft(corpus, tokens, 64, 16, 10)
    check_datastore(directory, full=True)
    for _ in range(8):
        context = list(data.draw(st.sampled_from(sorted(wanted))))
        limits = {
            "max_nodes": data.draw(st.sampled_from([1, 2, 5, 63, 64, 65, 1024])),
            "max_suffix": data.draw(st.integers(1, 20)),
            "max_depth": data.draw(st.sampled_from([1, 2, 9, 10, 11, 32])),
        }
        context = [data.draw(st.integers(0, corpus.vocabulary_size - 1)), *context]
        found = store.draft(context, **limits)
        assert found == plain.draft(context, **limits) == store.draft_batch([context], **limits)[0]


@pytest.mark.parametrize("vocabulary_size", [300, 70_000])
@pytest.mark.parametrize("shards", [1, 2, 7])
def test_answers_are_those_without_prepared_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary_size: int, shards: int
) -> None:
    """Matches so heavy that drafts are looked for, and all limits around those of the file."""
    monkeypatch.setattr(preparation, "LEAST", 64)
    monkeypatch.setattr(preparation, "BYTES_A_TOKEN", 100)
    corpus = zipf_corpus(shards, 8_000, 150, vocabulary_size, shards)
    store = Datastore.open(add_prepared(write_datastore(tmp_path, corpus)))
    assert store.prepared is not None
    plain = Datastore(tmp_path, store.manifest, store.shards)
    reference = ReferenceKernel([shard_view(shard) for shard in store.shards], vocabulary_size)
    contexts = [store.prepared.draft(place)[0] for place in range(store.prepared.header.draft_count)]
    assert len(contexts) > 20
    for depth in (1, 2, 9, 10, 11, 32):
        for nodes in (1, 2, 63, 64, 65, 254, 1024):
            limits = {"max_nodes": nodes, "max_depth": depth}
            expected = [plain.draft(context, **limits) for context in contexts]
            assert [store.draft(context, **limits) for context in contexts] == expected
            assert store.draft_batch(contexts, **limits) == expected
        assert reference.draft(contexts[depth % len(contexts)], 64, 16, depth) == plain.draft(
            contexts[depth % len(contexts)], max_depth=depth
        )


def test_a_draft_is_taken_from_the_file_where_it_is_all_that_is_asked_for(tmp_path: Path) -> None:
    """A file of drafts that are not true shows what is read from it."""
    store = Datastore.open(write_datastore(tmp_path, Corpus(300, [[[5, 6, 7, 8]] * 100])))
    long = TokenTree([200, *range(100, 163)], [-1, 0, *[-1] * 62], [3, 2] + [1] * 62, match=SuffixMatch(1, 100))
    short = TokenTree([201, 202, 203], [-1, 0, 1], [3, 3, 3], match=SuffixMatch(1, 100))
    drafts = [((tokens,), pack_draft([tokens], tree, 300)) for tokens, tree in ((5, long), (6, short))]
    write_prepared(tmp_path / FILE_NAME, store.shards, drafts, vocabulary_size=300, max_nodes=64, max_depth=10)
    prepared = PreparedFile.open(tmp_path / FILE_NAME)
    asked = Datastore(tmp_path, store.manifest, store.shards, prepared)

    def first(context: list[int], **limits: int) -> int:
        return int(asked.draft(context, **limits).tokens[0])

    assert asked.draft([5]) == long
    assert paths(asked.draft([5], max_nodes=3)) == paths(long)[:3]
    assert first([5], max_nodes=65) == 6  # the file may not hold the 65th
    assert first([5], max_depth=11) == 6  # nor what is deeper
    assert first([5], max_depth=1) == 6  # nor 64 nodes of one token
    assert paths(asked.draft([5], max_depth=1, max_nodes=63)) == [p for p in paths(long) if len(p[0]) == 1]
    assert asked.draft([6], max_nodes=1024) == short  # fewer than were asked for: there are no others
    assert paths(asked.draft([6], max_depth=2)) == paths(short)[:2]
    assert first([6], max_depth=11) == 7
    assert first([7]) == 8  # not prepared
    assert asked.draft_batch([[6], [7], [5]], max_depth=2)[0].tokens.tolist() == [201, 202]
    assert asked.longest_suffix_match([5]) == (1, 100)


def test_the_heaviest_are_kept_where_room_is_short(heavy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Datastore.open(heavy)
    assert store.prepared is not None
    every = sorted(
        (store.prepared.draft(place) for place in range(store.prepared.header.draft_count)),
        key=lambda draft: (-draft[1].match.count, draft[0]),
    )
    sizes = np.cumsum([len(pack_draft(tokens, tree, store.vocabulary_size)) + 24 for tokens, tree in every])
    assert len(every) > 30
    for number in (1, 7, len(every) // 2, len(every) - 1):
        monkeypatch.setattr(preparation, "BYTES_A_TOKEN", (sizes[number] - 1) / store.manifest.token_count)
        record = prepare_drafts(heavy / "some", store.shards, store.vocabulary_size)
        assert record is not None
        some = PreparedFile.open(heavy / "some")
        kept = {tuple(some.draft(place)[0]) for place in range(record.draft_count)}
        assert kept == {tuple(tokens) for tokens, _ in every[:number]}
        assert record.size <= sizes[number] + 276
        monkeypatch.setattr(preparation, "MOST_BYTES", sizes[number] - 1)
        monkeypatch.setattr(preparation, "BYTES_A_TOKEN", 100)
        prepare_drafts(heavy / "same", store.shards, store.vocabulary_size)
        assert (heavy / "same").read_bytes() == (heavy / "some").read_bytes()
        monkeypatch.setattr(preparation, "MOST_BYTES", 1 << 26)
    monkeypatch.setattr(preparation, "BYTES_A_TOKEN", 0)
    assert prepare_drafts(heavy / "none", store.shards, store.vocabulary_size) is None
    assert not (heavy / "none").exists()


def test_sequences_with_more_frequent_continuations_than_a_draft_has_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "LEAST", 3)
    monkeypatch.setattr(preparation, "BYTES_A_TOKEN", 1e9)
    corpus = Corpus(300, [[[299, token] for token in range(100)] * 2, [[299, token] for token in range(100)] * 2])
    store = Datastore.open(add_prepared(write_datastore(tmp_path, corpus)))
    assert store.prepared is not None
    kept = {tuple(store.prepared.draft(place)[0]) for place in range(store.prepared.header.draft_count)}
    assert kept == frequent(corpus, 3)
    assert len(kept) == 201


def test_large_datastores_prepare_what_is_frequent_for_their_size() -> None:
    assert preparation._least(1_000_000) == 2048
    assert preparation._least(1 << 32) == 1 << 14
