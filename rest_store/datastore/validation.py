"""Validation of arguments, the same in a datastore and in the client of a service."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import MAX_DEPTH, MAX_NODES, MAX_SEQUENCE, MAX_SUFFIX
from rest_store.errors import ArgumentError, ContextTypeError, DocumentError, QueryError, describe

_MAX_ID_LENGTH = 256  # characters
_MAX_EPOCH = 2**62

IntSequence: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]
# An array is 2-D, one context per row.
Contexts: TypeAlias = Sequence[IntSequence] | npt.NDArray[np.integer[Any]]


def tail(context: IntSequence, size: int, vocabulary_size: int, what: str = "context") -> list[int]:
    """Return the last `size` tokens of `context` as a list of int.

    Args:
        context: 1-D integers: anything that `operator.index` takes, or an array.
        size: at least 1.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        what: name of the context in messages.

    Raises:
        QueryError: `context` is not 1-D integers or is empty, or one of these tokens is outside the
            vocabulary.
    """
    try:
        if isinstance(context, list | tuple):
            tokens = list(map(operator.index, context[-size:]))
        else:
            array = np.asarray(context)
            is_valid = array.ndim == 1 and array.dtype.kind in "iu"
            tokens = array[-size:].tolist() if is_valid else []
        if tokens and min(tokens) >= 0 and max(tokens) < vocabulary_size:
            return tokens
    except (TypeError, ValueError):
        pass
    raise _fault(context, size, vocabulary_size, what)


def tails(contexts: Contexts, size: int, vocabulary_size: int) -> list[list[int]]:
    """Return the answer of `tail` for each of `contexts`. Errors name the index of the context."""
    return [
        tail(context, size, vocabulary_size, f"context {index}")
        for index, context in enumerate(batch(contexts))
    ]


def batch(contexts: Contexts) -> list[IntSequence]:
    """Return `contexts` as a list; raise ContextTypeError if it is not a sequence."""
    try:
        return list(contexts)
    except TypeError:
        actual = type(contexts).__name__
        expected = "a sequence of contexts"
        raise ContextTypeError(describe("query", "contexts", actual, expected)) from None


def check_int(
    name: str, value: Any, maximum: int, *, minimum: int = 1, where: str = "query"
) -> int:
    """Return `value` as an int; raise ArgumentError unless it is in `minimum .. maximum`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if not minimum <= number <= maximum:
        raise ArgumentError(describe(where, name, repr(value), f"{minimum}..{maximum}"))
    return number


def real(value: object) -> float:
    """Return `value` as a float.

    If it is not a real number that a float can hold, return NaN, which lies in no range.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.nan


class TreeLimits(NamedTuple):
    """The limits of a draft tree of a datastore.

    Attributes:
        max_nodes: most draft tokens.
        max_suffix: longest suffix tried, in tokens.
        max_depth: longest continuation, in tokens.
    """

    max_nodes: int
    max_suffix: int
    max_depth: int


def check_tree_limits(max_nodes: Any, max_suffix: Any, max_depth: Any) -> TreeLimits:
    """Return the limits of a draft tree; raise ArgumentError for one that is out of range."""
    return TreeLimits(
        check_int("max_nodes", max_nodes, MAX_NODES),
        check_int("max_suffix", max_suffix, MAX_SUFFIX),
        check_int("max_depth", max_depth, MAX_DEPTH),
    )


def document_tokens(
    tokens: IntSequence, index: int, vocabulary_size: int, *, expected: str = "1-D integers"
) -> npt.NDArray[np.integer[Any]]:
    """Return a document to be added, int[n].

    Args:
        tokens: 1-D integers, at least one.
        index: of the document, for messages.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        expected: description of a document, for messages.

    Raises:
        DocumentError: `tokens` is empty, or not 1-D integers.
        QueryError: a token is outside the vocabulary.
    """
    what = f"document {index}"
    try:
        array: npt.NDArray[Any] = np.asarray(tokens)
    except (TypeError, ValueError, OverflowError):  # ragged
        array = np.empty((), object)
    if array.size == 0:
        raise DocumentError(describe("add", what, "empty", "at least one token"))
    if array.ndim != 1 or array.dtype.kind not in "iu":
        actual = f"{array.ndim}-D {array.dtype}" if array.dtype != object else type(tokens).__name__
        raise DocumentError(describe("add", what, actual, expected))
    for extreme in (int(array.min()), int(array.max())):
        if not 0 <= extreme < vocabulary_size:
            raise QueryError(
                describe("add", f"token id in {what}", extreme, f"0..{vocabulary_size - 1}")
            )
    return array


def new_ids(documents: Sequence[Any], ids: Sequence[str] | None) -> list[str]:
    """Return `ids`, one for each of `documents`; None: new ids.

    Raises:
        DocumentError: `documents` is not a sequence, an id is not valid, or there is not one id for
            each document.
    """
    is_text = isinstance(documents, str | bytes)
    is_sequence = isinstance(documents, Sequence | np.ndarray) and not is_text
    if not is_sequence or getattr(documents, "ndim", 1) == 0:
        raise DocumentError(
            describe("add", "documents", f"a {type(documents).__name__}", "a sequence of documents")
        )
    names = [uuid4().hex for _ in documents] if ids is None else document_ids("add", ids)
    if len(names) != len(documents):
        raise DocumentError(
            describe("add", "number of ids", len(names), f"{len(documents)}, one for each document")
        )
    return names


def document_ids(where: str, ids: Sequence[str], what: str = "an id") -> list[str]:
    """Return `ids` as a list; raise DocumentError unless each is a valid id of a document."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        raise DocumentError(describe(where, "ids", f"a {type(ids).__name__}", "a sequence of ids"))
    for id in ids:
        if not isinstance(id, str) or not 0 < len(id) <= _MAX_ID_LENGTH or not _is_text(id):
            expected = f"1..{_MAX_ID_LENGTH} Unicode characters, none of them NUL"
            raise DocumentError(describe(where, what, reprlib.repr(id), expected))
    return list(ids)


def label(where: str, what: str, value: str) -> str:
    """Return a namespace or a group; raise DocumentError unless it is "" or valid like an id."""
    if value != "":
        document_ids(where, [value], what)
    return value


def epoch_number(epoch: int) -> int:
    """Return the epoch of documents; raise ArgumentError if it is out of range."""
    return check_int("epoch", epoch, _MAX_EPOCH, minimum=0, where="add")


def _is_text(id: str) -> bool:
    try:
        return b"\0" not in id.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False


def too_many_tokens(size: int) -> ArgumentError:
    """Return the error for a sequence to count that is longer than 96 tokens."""
    return ArgumentError(describe("query", "number of tokens", size, f"1..{MAX_SEQUENCE}"))


def _fault(context: object, size: int, vocabulary_size: int, what: str) -> QueryError:
    """Return an error that names the fault in the last `size` tokens of `context`."""
    try:
        array: npt.NDArray[Any] = np.asarray(context)
    except (TypeError, ValueError):  # ragged
        array = np.empty((), dtype=object)
    tokens = array[-size:].tolist() if array.ndim == 1 else []
    if array.ndim == 1 and not tokens:
        return QueryError(describe("query", what, "empty", "at least one token"))
    for token in tokens:
        if isinstance(token, int) and not 0 <= token < vocabulary_size:
            return QueryError(
                describe("query", f"token id in {what}", token, f"0..{vocabulary_size - 1}")
            )
    actual = f"{array.ndim}-D {array.dtype}"
    if array.dtype == object:
        actual = f"a {type(context).__name__}"
    return ContextTypeError(describe("query", what, actual, "1-D integers"))
