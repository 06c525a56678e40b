"""`Datastore`: errors of invalid queries, forms of contexts, and `info`."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.manifest import FILE_NAME, Manifest
from rest_store.errors import (
    ArgumentError,
    ContextTypeError,
    QueryError,
    TokenizerLoadError,
    TokenizerMismatchError,
)
from tests.shared.strategies import identity, refused


@pytest.fixture
def store(directory: Path) -> Datastore:
    return Datastore.open(directory)


# Invalid queries.

Ask = Callable[[Datastore, Any], object]

QUERIES: dict[str, tuple[Ask, str]] = {  # how to query with a context, and what messages call it
    "draft": (lambda store, context: store.draft(context), "context"),
    "longest_suffix_match": (lambda store, context: store.longest_suffix_match(context), "context"),
    "draft_batch": (lambda store, context: store.draft_batch([[1], context]), "context 1"),
    "count": (lambda store, context: store.count(context), "tokens"),
}


class FiveByIndex:
    def __index__(self) -> int:
        return 5


BAD_CONTEXTS: list[tuple[object, type[QueryError], str, str, str]] = [
    # context, error, what, what is found, what is expected; {} stands for how messages call the
    # context
    (None, ContextTypeError, "{}", "a NoneType", "1-D integers"),
    (5, ContextTypeError, "{}", "0-D int64", "1-D integers"),
    ("abc", ContextTypeError, "{}", "0-D <U3", "1-D integers"),
    ({1, 2}, ContextTypeError, "{}", "a set", "1-D integers"),
    (np.array([[1, 2], [3, 4]]), ContextTypeError, "{}", "2-D int64", "1-D integers"),
    (np.array([1.0, 2.0]), ContextTypeError, "{}", "1-D float64", "1-D integers"),
    (np.array([True]), ContextTypeError, "{}", "1-D bool", "1-D integers"),
    (np.array([1, 2], dtype=object), ContextTypeError, "{}", "a ndarray", "1-D integers"),
    (deque([1, [2, 3]]), ContextTypeError, "{}", "a deque", "1-D integers"),
    ([1, 2.0], ContextTypeError, "{}", "1-D float64", "1-D integers"),
    ((1, "2"), ContextTypeError, "{}", "1-D <U21", "1-D integers"),
    ([[1, 2], [3, 4]], ContextTypeError, "{}", "2-D int64", "1-D integers"),
    ([], QueryError, "{}", "empty", "at least one token"),
    (np.array([], dtype=np.int32), QueryError, "{}", "empty", "at least one token"),
    ([1, -1], QueryError, "token id in {}", "-1", "0..299"),
    ([300, 1], QueryError, "token id in {}", "300", "0..299"),
    ([1, 2**32 + 1], QueryError, "token id in {}", str(2**32 + 1), "0..299"),
    ([2**70], QueryError, "token id in {}", str(2**70), "0..299"),
    (np.array([-1, 1], dtype=np.int8), QueryError, "token id in {}", "-1", "0..299"),
    (
        np.array([2**64 - 1], dtype=np.uint64),
        QueryError,
        "token id in {}",
        str(2**64 - 1),
        "0..299",
    ),
    (range(-1, 2), QueryError, "token id in {}", "-1", "0..299"),
]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(
    ("context", "error", "what", "actual", "expected"),
    BAD_CONTEXTS,
    ids=[f"{type(context).__name__} {context!r}"[:40] for context, *_ in BAD_CONTEXTS],
)
def test_a_bad_context(
    store: Datastore,
    query: str,
    context: object,
    error: type[QueryError],
    what: str,
    actual: str,
    expected: str,
) -> None:
    ask, name = QUERIES[query]
    message = refused(error, lambda: ask(store, context))
    assert message == f"query: {what.format(name)} is {actual}, expected {expected}"


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize(
    ("context", "meant"),
    [
        ([True, 2], [1, 2]),
        ([FiveByIndex()], [5]),
        (range(1, 4), [1, 2, 3]),
        (deque([1, 2]), [1, 2]),
        (np.array([1, 2], dtype=np.uint64), [1, 2]),
        (np.array([1, 2], dtype=">u2"), [1, 2]),
    ],
    ids=str,
)
def test_whatever_can_be_an_index_is_an_integer(
    store: Datastore, query: str, context: object, meant: object
) -> None:
    """True is the token 1, as an index is in Python, but an array of bools is refused."""
    ask, _ = QUERIES[query]
    assert ask(store, context) == ask(store, meant)


@pytest.mark.parametrize("before", [300, None, [1]])
def test_only_the_last_max_suffix_tokens_are_read(store: Datastore, before: object) -> None:
    context: Any = [before, 2, 3]
    assert store.draft(context, max_suffix=2) == store.draft([2, 3], max_suffix=2)
    assert store.draft_batch([context], max_suffix=2) == [store.draft([2, 3], max_suffix=2)]
    assert store.longest_suffix_match(context, max_suffix=2) == (2, 2)
    with pytest.raises(QueryError):
        store.draft(context, max_suffix=3)


def test_contexts_that_are_not_a_sequence(store: Datastore) -> None:
    message = refused(ContextTypeError, lambda: store.draft_batch(None))  # type: ignore[arg-type]
    assert message == "query: contexts is NoneType, expected a sequence of contexts"
    contexts: Any = (context for context in ([1], [2], [300]))
    refused(QueryError, lambda: store.draft_batch(contexts), "token id in context 2 is 300")
    assert store.draft_batch([]) == []


ROWS = [[7, 1, 2, 3], [1, 2, 3, 4], [0, 0, 7, 8], [9, 9, 9, 9]]


@pytest.mark.parametrize(
    "array",
    [
        *(np.array(ROWS, dtype=kind) for kind in ("i8", "u2", "u8", ">i4")),
        np.asfortranarray(np.array(ROWS)),
        np.repeat(np.array(ROWS), 2, axis=1)[:, ::2],
    ],
    ids=lambda array: f"{array.dtype}-{'-'.join(map(str, array.strides))}",
)
def test_a_batch_may_be_one_array(store: Datastore, array: Any) -> None:
    for limits in ({}, {"max_suffix": 2}, {"max_suffix": 1}):
        assert store.draft_batch(array, **limits) == [store.draft(row, **limits) for row in ROWS]
    assert store.draft_batch(array[:0]) == []
    array.flags.writeable = False
    assert store.draft_batch(array[1:2]) == [store.draft(ROWS[1])]


def test_a_batch_may_be_a_tensor(store: Datastore) -> None:
    torch = pytest.importorskip("torch")
    assert store.draft_batch(torch.tensor(ROWS)) == [store.draft(row) for row in ROWS]


@pytest.mark.parametrize(
    ("limit", "greatest", "queries"),
    [
        ("max_nodes", 1024, ("draft", "draft_batch")),
        ("max_suffix", 64, ("draft", "draft_batch", "longest_suffix_match")),
        ("max_depth", 32, ("draft", "draft_batch")),
    ],
)
@pytest.mark.parametrize("value", [0, ..., 2**70, 4.0, "4", None])
def test_a_limit_out_of_range(
    store: Datastore, limit: str, greatest: int, queries: tuple[str, ...], value: object
) -> None:
    value = greatest + 1 if value is ... else value
    for query in queries:
        context: Any = [[1]] if query == "draft_batch" else [1]
        message = refused(ArgumentError, lambda: getattr(store, query)(context, **{limit: value}))
        assert message == f"query: {limit} is {value!r}, expected 1..{greatest}"


def test_limits_may_be_of_any_integer_type(store: Datastore) -> None:
    limits: Any = {"max_nodes": np.uint8(2), "max_suffix": FiveByIndex(), "max_depth": np.int64(3)}
    assert store.draft([1], **limits) == store.draft([1], max_nodes=2, max_suffix=5, max_depth=3)


def test_counting_more_than_96_tokens(store: Datastore) -> None:
    assert store.count([1] * 96) == 0
    message = refused(ArgumentError, lambda: store.count([1] * 97))
    assert message == "query: number of tokens is 97, expected 1..96"


# Opening.


def test_info_says_what_the_datastore_is(store: Datastore) -> None:
    os.utime(store.path / FILE_NAME, (1_700_000_000, 1_700_000_000))
    store = Datastore.open(store.path)
    info = store.info()
    assert info.path == store.path
    assert info.tokenizer == identity(300)
    assert (info.token_count, info.document_count, info.shard_count) == (11, 2, 2)
    assert info.size == sum(path.stat().st_size for path in store.path.glob("shard-*"))
    assert info.built == datetime.fromtimestamp(1_700_000_000, timezone.utc)
    assert info.manifest == Manifest.read(store.path)
    assert repr(store) == f"Datastore({str(store.path)!r}, 11 tokens, 2 shards)"


def test_the_tokenizer_it_was_built_with(directory: Path) -> None:
    same = replace(identity(300), name="mine")
    assert Datastore.open(str(directory), tokenizer=same).vocabulary_size == 300
    expected = f"{directory}: tokenizer 'test' is one with a vocabulary of 301"
    refused(
        TokenizerMismatchError, lambda: Datastore.open(directory, tokenizer=identity(301)), expected
    )
    refused(TokenizerLoadError, lambda: Datastore.open(directory, tokenizer=7), "a int")
