"""Native kernel, numpy reference and brute force give the same answers, byte for byte."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.kernel import kernel_name, native_kernel
from rest_store.datastore.tree import TokenTree
from tests.shared.strategies import (
    Corpus,
    brute_count,
    brute_draft,
    brute_match,
    contexts,
    corpora,
    open_datastore,
    paths,
    write_datastore,
    zipf_corpus,
)


def both_kernels(directory: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> list[Datastore]:
    write_datastore(directory, corpus)
    stores = []
    for wanted in ("native", "reference"):
        monkeypatch.setenv("REST_STORE_KERNEL", wanted)
        assert kernel_name() == wanted
        stores.append(Datastore.open(directory))
    return stores


def test_the_native_kernel_is_built() -> None:
    assert native_kernel() is not None


@given(data=st.data())
def test_kernels_agree_with_brute_force(data: st.DataObject) -> None:
    corpus = data.draw(corpora())
    limits = {
        "max_nodes": data.draw(st.sampled_from([1, 2, 5, 16, 64, 1024])),
        "max_suffix": data.draw(st.sampled_from([1, 2, 4, 16, 64])),
        "max_depth": data.draw(st.sampled_from([1, 2, 3, 10, 32])),
    }
    batch = data.draw(st.lists(contexts(corpus), min_size=1, max_size=5))
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as monkeypatch:
        for store in both_kernels(Path(directory), corpus, monkeypatch):
            trees = store.draft_batch(batch, **limits)
            for context, tree in zip(batch, trees, strict=True):
                match = brute_match(corpus, context, limits["max_suffix"])
                assert store.longest_suffix_match(context, max_suffix=limits["max_suffix"]) == match
                assert tree.match == match
                assert paths(tree) == brute_draft(corpus, context, **limits)
                assert store.draft(context, **limits) == tree
                assert tree == TokenTree(tree.tokens, tree.parents, tree.counts, match=tree.match)
                piece = context[:64]
                assert store.count(piece) == brute_count(corpus, piece)


@pytest.mark.parametrize("shards", [1, 2, 7])
@pytest.mark.parametrize(("alphabet", "vocabulary_size"), [(3, 300), (40, 49_152), (1_000, 131_072)])
def test_heavy_matches_are_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int, alphabet: int, vocabulary_size: int
) -> None:
    """Matches with many more occurrences than are sampled: tests the bounds of samples and the boundary searches."""
    corpus = zipf_corpus(shards + alphabet, 40_000, alphabet, vocabulary_size, shards)
    native, reference = both_kernels(tmp_path, corpus, monkeypatch)
    rng = np.random.default_rng(0)
    asked = 0
    for document in corpus.documents[:: max(1, len(corpus.documents) // 6)]:
        end = int(rng.integers(1, len(document) + 1))
        for max_suffix in (1, 2, 16):
            for max_nodes, max_depth in ((1, 1), (4, 10), (64, 10), (300, 3)):
                limits = {"max_nodes": max_nodes, "max_suffix": max_suffix, "max_depth": max_depth}
                tree = native.draft(document[:end], **limits)
                assert tree == reference.draft(document[:end], **limits)
                asked += tree.match.count > 45 * max_nodes
    assert asked > 15  # the test reached the sampled path


def test_answers_do_not_depend_on_the_shard_layout(tmp_path: Path) -> None:
    whole = zipf_corpus(5, 30_000, 50, 49_152, 1)
    documents = whole.documents
    stores = []
    for shards in (1, 3, 8):
        (tmp_path / str(shards)).mkdir()
        layout = Corpus(whole.vocabulary_size, [documents[place::shards] for place in range(shards)])
        stores.append(open_datastore(tmp_path / str(shards), layout))
    for document in documents[::10]:
        answers = [(store.draft(document[:5]), store.count(document[:2])) for store in stores]
        assert answers[0] == answers[1] == answers[2]


def test_repeated_queries_with_other_limits_are_exact(tmp_path: Path) -> None:
    corpus = zipf_corpus(9, 30_000, 20, 49_152, 2)
    store = open_datastore(tmp_path, corpus)
    fresh = Datastore.open(tmp_path)
    context = corpus.documents[0][:1]
    for limits in ({"max_nodes": 64}, {"max_nodes": 8}, {"max_depth": 2}, {"max_nodes": 64}):
        assert store.draft(context, **limits) == Datastore.open(tmp_path).draft(context, **limits)
    assert fresh.draft(context, max_nodes=8).tokens.tolist() == store.draft(context).tokens.tolist()[:8]


def test_threads_get_the_answers_of_one_thread(tmp_path: Path) -> None:
    corpus = zipf_corpus(3, 30_000, 30, 49_152, 2)
    store = open_datastore(tmp_path, corpus)
    asked = [document[: 1 + place % 7] for place, document in enumerate(corpus.documents)]
    expected = [Datastore.open(tmp_path).draft(context) for context in asked]
    wrong: list[int] = []

    def ask() -> None:
        for _ in range(5):
            wrong.extend(i for i, context in enumerate(asked) if store.draft(context) != expected[i])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("length", [1, 2, 40])
def test_a_run_of_one_token_is_answered_exactly(tmp_path: Path, length: int) -> None:
    """Nearly all continuations are equal and fewer than `max_nodes`: the sample must not miss the rare ones."""
    corpus = Corpus(300, [[[7] * 30_000], [[7] * 5_000 + [8], [7, 9], [200] + [7] * 100]])
    store = open_datastore(tmp_path, corpus)
    tree = store.draft([7] * length, max_suffix=64, max_depth=3)
    assert paths(tree) == brute_draft(corpus, [7] * length, 64, 64, 3)


@pytest.mark.parametrize("kind", [list, tuple, np.array, np.int32, np.uint16, np.uint32, np.int8, ">i4", "strided"])
def test_contexts_of_every_integer_type_are_accepted(tmp_path: Path, kind: object) -> None:
    store = open_datastore(tmp_path, Corpus(300, [[[1, 2, 3, 4, 5, 1, 2, 3, 9]]]))
    expected = store.draft([7, 1, 2, 3])
    assert len(expected) == 6 + 1
    if kind == "strided":
        context: object = np.array([7, 0, 1, 0, 2, 0, 3, 0])[::2]
    elif (isinstance(kind, type) and issubclass(kind, np.generic)) or isinstance(kind, str):
        context = np.array([7, 1, 2, 3], dtype=kind)
    else:
        context = kind([7, 1, 2, 3])  # type: ignore[operator]
    assert store.draft(context) == expected  # type: ignore[arg-type]
    assert store.draft_batch([context]) == [expected]  # type: ignore[list-item]
    assert store.longest_suffix_match(context) == (3, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["odd stride", "odd offset"])
def test_unaligned_contexts_are_accepted(tmp_path: Path, layout: str) -> None:
    store = open_datastore(tmp_path, Corpus(300, [[[1, 2, 3, 4]]]))
    if layout == "odd stride":
        records = np.zeros(3, dtype=[("token", "i4"), ("other", "i2")])
        records["token"] = [1, 2, 3]
        context = records["token"]
    else:
        context = np.frombuffer(b"\0" + np.array([1, 2, 3], dtype=np.int32).tobytes(), dtype=np.int32, offset=1)
    assert store.draft(context) == store.draft([1, 2, 3])
    assert store.count(context) == 1


def test_large_batches_are_answered_in_order(tmp_path: Path) -> None:
    store = open_datastore(tmp_path, Corpus(1_000, [[list(range(1_000))]]))
    trees = store.draft_batch([[token] for token in range(999)], max_nodes=1)
    assert [tree.tokens.tolist() for tree in trees] == [[token + 1] for token in range(999)]


def test_the_kernel_checks_its_own_bounds(tmp_path: Path) -> None:
    """It does not rely on the checks of `Datastore`."""
    kernel = open_datastore(tmp_path, Corpus(300, [[[1, 2, 3] * 60]])).kernel
    for max_nodes, max_depth in (((1 << 16) + 1, 1), (1, 33), (0, 1), (1, 0)):
        with pytest.raises(ValueError, match="limit out of range"):
            kernel.draft([1], max_nodes, max_depth)
    for tokens in ([], [1] * 65):
        with pytest.raises(ValueError, match="number of tokens out of range"):
            kernel.longest_suffix_match(tokens)
    with pytest.raises(ValueError, match="number of tokens out of range"):
        kernel.count([1] * 97)
    with pytest.raises(ValueError, match="token outside the vocabulary"):
        kernel.count([300])


def test_arguments_that_are_not_tokens_are_type_errors_of_the_kernel(tmp_path: Path) -> None:
    kernel = open_datastore(tmp_path, Corpus(300, [[[1, 2, 3]]])).kernel
    for value in (None, 5, "text", [-1], [1.5], [2**32]):
        with pytest.raises(TypeError):
            kernel.draft(value, 1, 1)  # type: ignore[arg-type]
