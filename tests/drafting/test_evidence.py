"""Evidence: its counts are right, and a session drafts from it as it would from the datastores themselves."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.store import Store
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting import external_sources
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.evidence import Evidence, collect_evidence
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from tests.shared.live import new_live, some_document
from tests.shared.strategies import Corpus, brute_count, corpora, open_datastore

NO_TREE = TokenTree([], [], [], scores=[])
Row = tuple[list[int], list[tuple[int, int, int, dict[int, int]]]]  # path; suffixes: length, count, probes, weights


def every_path(tokens: Sequence[int], depth: int) -> TokenTree:
    """All paths of at most `depth` of these tokens, all certain: as proposals they make a service read everything."""
    nodes: list[int] = []
    parents: list[int] = []
    above = [-1]
    for _ in range(depth):
        first = len(nodes)
        nodes += [token for _ in above for token in tokens]
        parents += [parent for parent in above for _ in tokens]
        above = list(range(first, len(nodes)))
    return TokenTree(nodes, parents, [1] * len(nodes), scores=[1.0] * len(nodes))


class Behind:
    """Datastores of this process as an external source, as a service's client is."""

    def __init__(self, stores: Mapping[str, Datastore], proposals: TokenTree | None = None) -> None:
        self.stores = dict(stores)
        self.proposals = proposals  # in place of a session's, for a tree of any size
        self.asked = 0

    def draft_batch(self, contexts: Sequence[IntSequence], **limits: int) -> list[TokenTree]:
        raise AssertionError("asked for trees")

    def evidence(
        self, context: Any, proposals: TokenTree, *, max_nodes: int, max_suffix: int, max_rows: int
    ) -> list[Evidence]:
        self.asked += 1
        if self.proposals is not None:
            proposals, max_nodes, max_rows = self.proposals, 1024, 4 * len(self.proposals) + 4
        scores = proposals.scores
        assert scores is not None
        bounds = {"max_nodes": max_nodes, "max_suffix": max_suffix, "max_rows": max_rows}
        return collect_evidence(self.stores, context, proposals.tokens, proposals.parents, scores, **bounds)


def rows_of(packed: bytes) -> list[Row]:
    """Read rows of evidence with numpy, by the definition of the message."""
    rows, suffixes, continuations, width = np.frombuffer(packed, "<u4", 4).tolist()
    place = 16

    def column(kind: str, count: int) -> list[int]:
        nonlocal place
        found = np.frombuffer(packed, kind, count, place)
        place += found.nbytes
        return [int(one) for one in found]

    token = f"<u{width}"
    tokens, parents, own = column(token, rows - 1), column("<u2", rows - 1), column("u1", rows)
    lengths, probes, sizes = column("u1", suffixes), column("u1", suffixes), column("u1", suffixes)
    counts, following = column("<u8", suffixes), column(token, continuations)
    weights = column("u1", continuations)
    assert place == len(packed)
    out: list[Row] = []
    suffix = continuation = 0
    for row in range(rows):
        path = [*out[parents[row - 1]][0], tokens[row - 1]] if row else []
        found = []
        for _ in range(own[row]):
            end = continuation + sizes[suffix]
            said = dict(zip(following[continuation:end], weights[continuation:end], strict=True))
            found.append((lengths[suffix], counts[suffix], probes[suffix], said))
            suffix, continuation = suffix + 1, end
        out.append((path, found))
    return out


def read(store: Store, context: list[int], **bounds: int) -> bytes:
    """The evidence of one datastore without proposals."""
    none = np.zeros(0, np.int32)
    limits = {"max_nodes": 4, "max_suffix": 16, "max_rows": 20, **bounds}
    (found,) = collect_evidence(
        {"one": store}, np.array(context, np.int32), none, none, none.astype(np.float32), **limits
    )
    assert found.row_count == len(rows_of(found.rows))
    return found.rows


@st.composite
def texts(draw: st.DrawFn, corpus: Corpus) -> list[int]:
    """A text that begins with each token of the corpus, at most 60 tokens, and repeats itself and the corpus."""
    alphabet = sorted({token for document in corpus.documents for token in document})
    piece = st.sampled_from(corpus.documents) | st.lists(st.sampled_from(alphabet), min_size=1, max_size=8)
    pieces = draw(st.lists(piece, min_size=1, max_size=6))
    return [*alphabet, *(token for one in pieces for token in one)][:60]


def small(corpus: Corpus) -> bool:
    return len({token for document in corpus.documents for token in document}) <= 4


def replayed(
    sources: Sequence[object], text: list[int], nodes: int, *, learn: bool, max_suffix: int = 64
) -> tuple[list[TokenTree], list[float]]:
    """The trees along `text`, and what was learnt on the way."""
    trees = []
    calibration = Calibration.default()
    start = 1
    options: dict[str, Any] = {"calibration": calibration, "learn": learn, "max_suffix": max_suffix}
    with DraftSession(sources, text[:start], **options) as session:
        while start < len(text):
            trees.append(session.draft(nodes))
            end = min(start + len(trees[-1].longest_path(text[start:])) + 1, len(text))
            top = [[text[place - 1], text[place]] for place in range(start, end)]
            session.accept(text[start:end], top)
            start = end
        assert session.statistics.dropped == {}
    return trees, calibration.weights


def require_same(left: tuple[list[TokenTree], list[float]], right: tuple[list[TokenTree], list[float]]) -> None:
    assert left[1] == right[1]
    for one, other in zip(left[0], right[0], strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.parents.tolist() == other.parents.tolist()
        assert one.scores is not None
        assert other.scores is not None
        assert one.scores.tolist() == other.scores.tolist()


@settings(max_examples=15)
@given(data=st.data())
def test_a_session_given_evidence_drafts_as_one_over_the_datastores(data: st.DataObject) -> None:
    """If there are rows for every path, trees and scores are the same."""
    several = [data.draw(corpora().filter(small)) for _ in range(data.draw(st.integers(1, 2)))]
    for corpus in several[1:]:  # one vocabulary
        corpus.shards[:] = [[[t % 2 for t in document] for document in shard] for shard in corpus.shards]
    several[1:] = [Corpus(several[0].vocabulary_size, corpus.shards) for corpus in several[1:]]
    text = data.draw(texts(several[0]))
    nodes, learn = data.draw(st.integers(1, 4)), data.draw(st.booleans())
    recycled = data.draw(st.booleans())
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(external_sources, "rows_for", return_value=1024):
        stores = {}
        for place, corpus in enumerate(several):
            (Path(folder) / str(place)).mkdir()
            stores[str(place)] = open_datastore(Path(folder) / str(place), corpus)
        local = [PromptLookup()]

        def with_local(*sources: object) -> list[object]:
            return [*local, *([RecycledLogits()] if recycled else []), *sources]

        behind = Behind(stores, every_path(sorted({*text}), nodes - 1))
        given = replayed(with_local(behind), text, nodes, learn=learn)
        assert behind.asked == len(given[0])  # once a step
        require_same(given, replayed(with_local(*stores.values()), text, nodes, learn=learn))


@settings(max_examples=12)
@given(data=st.data())
def test_rows_agree_with_the_datastore(data: st.DataObject) -> None:
    corpus = data.draw(corpora())
    text = data.draw(texts(corpus))
    bounds = {"max_suffix": data.draw(st.sampled_from([1, 3, 16, 64])), "max_rows": data.draw(st.integers(1, 40))}
    with tempfile.TemporaryDirectory() as folder:
        store = open_datastore(Path(folder), corpus)
        packed = read(store, text, **bounds)
        assert packed == read(store, text, **bounds)
        rows = rows_of(packed)
        longest = store.longest_suffix_match(text, max_suffix=bounds["max_suffix"])
    assert 1 <= len(rows) <= bounds["max_rows"]
    assert len({tuple(path) for path, _ in rows}) == len(rows)
    assert rows[0][1][0][:2] == longest
    for path, suffixes in rows:
        assert len(path) <= 3
        whole = text + path
        for length, count, probes, weights in suffixes:
            assert length <= bounds["max_suffix"] + len(path)
            assert count == brute_count(corpus, whole[-length:])
            assert 0 < probes <= count
            assert sum(weights.values()) <= probes
            for token, weight in weights.items():
                exact = brute_count(corpus, [*whole[-length:], token])
                assert weight == exact if probes == count else weight <= exact


def test_evidence_of_a_live_datastore_follows_its_changes(tmp_path: Path) -> None:
    """Its readers share a cache, and none reads what one of other shards has put there."""
    chance = random.Random(0)
    documents: list[list[int]] = []
    contexts = [some_document(chance, 300, 6) for _ in range(8)]
    with new_live(tmp_path / "live") as live:
        for place in range(6):
            some = [some_document(chance, 300, 6) for _ in range(2)]
            documents += some
            live.add(some)
            (tmp_path / str(place)).mkdir()
            with open_datastore(tmp_path / str(place), Corpus(300, [documents])) as frozen:
                for context in contexts:
                    assert read(live, context, max_rows=1) == read(frozen, context, max_rows=1)


def test_likely_paths_come_first_and_proposals_are_followed(tmp_path: Path) -> None:
    """The datastore only knows what follows 7; the session proposes 7 itself, and then 8."""
    store = open_datastore(tmp_path, Corpus(300, [[[1, 2, 3], [1, 2, 3], [7, 9, 4], [8, 5, 6]]]))
    limits = {"max_nodes": 8, "max_suffix": 16, "max_rows": 12}
    (found,) = collect_evidence(
        {"one": store},
        np.array([1], np.int32),
        np.array([7, 8], np.int32),
        np.array([-1, 0], np.int32),
        np.array([0.9, 0.8], np.float32),
        **limits,
    )
    paths = [path for path, _ in rows_of(found.rows)]
    assert paths[0] == []
    assert [7] in paths
    assert [7, 8] in paths
    assert [2] in paths
    assert len(paths) < 12  # nothing is read that no tree would look past


def test_an_empty_context_is_followed_by_proposals(tmp_path: Path) -> None:
    store = open_datastore(tmp_path, Corpus(300, [[[1, 2, 3]]]))
    one = np.array([1], np.int32)
    limits = {"max_nodes": 8, "max_suffix": 16, "max_rows": 3}
    (found,) = collect_evidence(
        {"one": store}, one[:0], one, np.array([-1], np.int32), np.array([0.5], np.float32), **limits
    )
    rows = rows_of(found.rows)
    assert rows[0] == ([], [])
    assert rows[1] == ([1], [(1, 1, 1, {2: 1})])


@pytest.mark.parametrize("vocabulary", [300, 70_000])
def test_damaged_evidence_is_detected(tmp_path: Path, vocabulary: int) -> None:
    fault = native_kernel().evidence_fault
    packed = read(open_datastore(tmp_path, Corpus(vocabulary, [[[1, 2, 3, 4, vocabulary - 1, 2, 3]]])), [2, 3])
    rows = len(rows_of(packed))
    assert fault(packed, vocabulary, rows) is None
    assert fault(packed, vocabulary, rows - 1) == "of more rows than requested, or of 0"
    assert fault(packed, 4, rows) == "with a token outside the vocabulary"
    assert fault(b"", vocabulary, rows) == "shorter than its head"
    for size in range(16, len(packed)):
        assert fault(packed[:size], vocabulary, rows) == "of another size than its head says"
    assert fault(packed + b"\0", vocabulary, rows) == "of another size than its head says"
    for place, value, expected in (
        (0, 0, "of more rows than requested, or of 0"),
        (4, 255, "of more parts than it has places for"),
        (12, 3, "of tokens of an unknown width"),
    ):
        damaged = bytearray(packed)
        damaged[place] = value
        assert fault(bytes(damaged), vocabulary, rows) == expected


@settings(max_examples=50)
@given(data=st.data())
def test_no_bytes_break_the_reader(tiny_evidence: bytes, data: st.DataObject) -> None:
    """Changed bytes are either refused or still valid evidence, which a session can draft from."""
    fault = native_kernel().evidence_fault
    damaged = bytearray(tiny_evidence)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    fault_text = fault(bytes(damaged), 2**31, 100)

    class Damaged(Behind):
        def evidence(self, context: Any, proposals: TokenTree, **bounds: int) -> list[Evidence]:
            return [Evidence("one", bytes(damaged))]

    enough = mock.patch.object(external_sources, "rows_for", return_value=100)
    with enough, DraftSession([Damaged({})], [2, 3]) as session:
        tree = session.draft(16)
        assert len(tree) <= 16
        assert session.statistics.dropped == ({} if fault_text is None else {(0, "error"): 1})
        assert fault_text is None or len(tree) == 0


@pytest.fixture(scope="module")
def tiny_evidence(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    corpus = Corpus(300, [[[1, 2, 3, 4, 5, 2, 3, 6, 2, 3, 4]]])
    return read(open_datastore(tmp_path_factory.mktemp("tiny"), corpus), [1, 2, 3])


@pytest.mark.parametrize("max_suffix", [63, 64])
def test_a_suffix_may_be_as_long_as_a_session_looks_for(tmp_path: Path, max_suffix: int) -> None:
    text = random.Random(0).choices(range(300), k=100)
    store = open_datastore(tmp_path, Corpus(300, [[text]]))
    ((_, suffixes), *_) = rows_of(read(store, text[:90], max_suffix=max_suffix))
    assert [length for length, *_ in suffixes] == [max_suffix, 8, 4, 3, 2, 1]
    for source in (store, Behind({"one": store})):
        with DraftSession([source], text[:90], max_suffix=max_suffix) as session:
            assert session.draft(1).tokens.tolist() == text[90:91]
            assert session.statistics.dropped == {}


def test_more_datastores_than_a_session_can_hold_are_read_in_groups(tmp_path: Path) -> None:
    stores = {}
    for place in range(8):
        folder = tmp_path / str(place)
        folder.mkdir()
        stores[str(place)] = open_datastore(folder, Corpus(300, [[[1, 2, 3, place, 4], [1, 2, 5]]]))

    def read(*names: str) -> list[Evidence]:
        none = np.zeros(0, np.int32)
        chosen = {name: stores[name] for name in names}
        bounds = {"max_nodes": 8, "max_suffix": 16, "max_rows": 12}
        return collect_evidence(chosen, np.array([1, 2], np.int32), none, none, np.zeros(0, np.float32), **bounds)

    assert read(*"01234567") == read(*"012345") + read(*"67")
    with mock.patch.object(native_kernel(), "MAX_STORES", 8), pytest.raises(ValueError, match="can hold"):
        read(*"01234567")


def test_a_session_reads_as_many_datastores_of_a_service_as_it_can_hold(tmp_path: Path) -> None:
    """The first ones that there is room for; the others are named, and every step without them is counted."""
    store = open_datastore(tmp_path, Corpus(300, [[[1, 2, 3, 4]]]))

    def behind(*names: str) -> Behind:
        return Behind(dict.fromkeys(names, store))

    with (
        DraftSession([behind(*"abcdef")], [1, 2]) as six,
        DraftSession([behind(*"abcdefgh")], [1, 2]) as eight,
        DraftSession([behind(*"abcd"), PromptLookup(), behind(*"efgh")], [1, 2]) as two,
    ):
        trees = [session.draft(8) for session in (six, eight, six, eight)]
        assert len(trees[0])
        assert trees[0] == trees[1]
        assert trees[2] == trees[3]
        assert six.statistics.dropped == {}
        assert eight.statistics.dropped == {(0, "full"): 2}
        assert eight.statistics.errors == ["source 0: the session has no room for its datastores g, h"]
        two.draft(8)
        assert two.statistics.errors == ["source 2: the session has no room for its datastores g, h"]


def test_a_source_may_turn_out_to_have_no_evidence_and_to_have_it_again(tmp_path: Path) -> None:
    store = open_datastore(tmp_path, Corpus(300, [[[1, 2, 3, 4, 5, 6, 7, 8]]]))

    class Sometimes(Behind):
        has = True

        def evidence(self, *arguments: Any, **bounds: int) -> Any:
            return super().evidence(*arguments, **bounds) if self.has else None

        def draft_batch(self, contexts: Sequence[IntSequence], **limits: int) -> list[TokenTree]:
            assert not self.has
            return store.draft_batch(contexts, **limits)

    source = Sometimes({"one": store})
    drafted = []
    with DraftSession([source], [1]) as session:
        for token, source.has in ((2, True), (3, False), (4, False), (5, True), (6, True)):
            drafted.append(session.draft(2).tokens.tolist())
            session.accept([token])
        # The step at which evidence ends is drafted without the source: trees were not asked for in the same question.
        assert session.statistics.dropped == {(0, "error"): 1}
        assert "no evidence any more" in session.statistics.errors[0]
    assert drafted == [[2, 3], [], [4, 5], [5, 6], [6, 7]]


def test_proposals_outside_the_vocabulary_stay_with_the_session(tmp_path: Path) -> None:
    store = open_datastore(tmp_path, Corpus(300, [[[1, 2, 3, 4]]]))
    seen: list[TokenTree] = []

    class Watching(Behind):
        tokenizer = store.manifest.tokenizer

        def evidence(self, context: Any, proposals: TokenTree, **bounds: int) -> list[Evidence]:
            assert max(context, default=0) < 300
            seen.append(proposals)
            return super().evidence(context, proposals, **bounds)

    with DraftSession([PromptLookup(), Watching({"one": store})], [1, 2, 500, 3, 4, 1, 2, 3, 7, 1, 2]) as session:
        own = session.draft(16)
        assert 500 in own.tokens.tolist()
        assert session.statistics.dropped == {}
    (proposals,) = seen
    assert len(proposals) > 0
    assert int(proposals.tokens.max()) < 300
