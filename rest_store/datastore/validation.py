"""What a query may ask: limits and contexts, checked alike by a datastore and by the client of a service."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import MAX_DEPTH, MAX_NODES, MAX_SUFFIX
from rest_store.errors import ContextTypeError, EmptyContextError, LimitError, QueryError, TokenRangeError, describe

IntSequence: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]
Contexts: TypeAlias = Sequence[IntSequence] | npt.NDArray[np.integer[Any]]  # an array: 2-D, a context a row

_NATIVE_TYPES = ("<i8", "<i4", "<u2", "<u4")  # integer arrays that kernels read as they are


def plain(context: IntSequence) -> Any:
    """Return `context` as a kernel takes it: a list, a tuple or a 1-D array of a common integer type.

    Items of lists and tuples are left to the kernel, which takes what `operator.index` takes.

    Raises:
        TypeError: an array that is not 1-D integers.
    """
    if type(context) in (list, tuple):
        return context
    if isinstance(context, list | tuple):  # subclasses, such as a named tuple
        return list(context)
    array = np.asarray(context)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError("context is not 1-D integers")
    return _native(array)


def plain_batch(contexts: list[IntSequence] | npt.NDArray[Any]) -> Any:
    """Return what `array_or_batch` returned as a kernel takes it: a list of what `plain` returns, or a 2-D array.

    Raises:
        TypeError: an array that is not integers.
    """
    if isinstance(contexts, list):
        return contexts if set(map(type, contexts)) == {list} else [plain(context) for context in contexts]
    if contexts.dtype.kind not in "iu":
        raise TypeError("contexts are not integers")
    return _native(contexts[:, -MAX_SUFFIX:])


def _native(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return integers as kernels read them."""
    odd = any(stride % array.itemsize for stride in array.strides)
    if array.dtype.str not in _NATIVE_TYPES or odd or not array.flags.aligned:
        return array.astype(np.int64)  # 2^63 and above become negative: outside the vocabulary all the same
    return array


def tail(context: IntSequence, size: int, vocabulary_size: int, what: str = "context") -> list[int]:
    """Return the last `size` tokens of `context` as a list of int.

    Raises:
        QueryError: `context` is not 1-D integers, is empty, or holds an id outside the vocabulary among these.
    """
    try:
        kept = plain(context)[-size:]
        tokens = list(map(operator.index, kept)) if isinstance(kept, list | tuple) else kept.tolist()
        if tokens and min(tokens) >= 0 and max(tokens) < vocabulary_size:
            return tokens
    except (TypeError, ValueError):
        pass
    raise explain(context, size, vocabulary_size, what) or QueryError(f"query: {what} cannot be read")


def explain(context: object, max_suffix: int, vocabulary_size: int, what: str = "context") -> QueryError | None:
    """Find out why the end of `context` cannot be asked; None if this context is in order."""
    if isinstance(context, list | tuple):
        items = list(context[-max_suffix:])
    else:
        try:
            array = np.asarray(context)
        except (TypeError, ValueError):  # ragged
            array = np.empty((), dtype=object)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            shape = f"{array.ndim}-D {array.dtype}" if array.dtype != object else type(context).__name__
            return ContextTypeError(describe("query", what, shape, "1-D integers"))
        items = array[-max_suffix:].tolist()
    if not items:
        return EmptyContextError(describe("query", what, "empty", "at least one token"))
    for item in items:
        try:
            token = operator.index(item)
        except TypeError:
            return ContextTypeError(describe("query", f"an item of {what}", reprlib.repr(item), "an integer"))
        if not 0 <= token < vocabulary_size:
            expected = f"0..{vocabulary_size - 1}"
            return TokenRangeError(describe("query", f"token id in {what}", token, expected))
    return None


def batch(contexts: Contexts) -> list[IntSequence]:
    """Return `contexts` as a list; raise ContextTypeError unless it is a sequence."""
    try:
        return list(contexts)
    except TypeError:
        found, expected = type(contexts).__name__, "a sequence of contexts"
        raise ContextTypeError(describe("query", "contexts", found, expected)) from None


def array_or_batch(contexts: Contexts) -> list[IntSequence] | npt.NDArray[Any]:
    """Return `contexts` as an array if they are a 2-D array or tensor, else as `batch` does."""
    if getattr(contexts, "ndim", 0) == 2:
        with suppress(TypeError, ValueError):  # a tensor on another device
            return np.asarray(contexts)
    return batch(contexts)


def limit(name: str, value: Any, greatest: int) -> int:
    """Return the limit `value` as an int; raise LimitError unless it is one of 1 .. greatest."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if not 1 <= number <= greatest:
        raise LimitError(describe("query", name, repr(value), f"1..{greatest}"))
    return number


def limits(max_nodes: Any, max_suffix: Any, max_depth: Any) -> tuple[int, int, int]:
    """Return the three limits of a draft as int; raise LimitError for one that is out of range."""
    return (
        limit("max_nodes", max_nodes, MAX_NODES),
        limit("max_suffix", max_suffix, MAX_SUFFIX),
        limit("max_depth", max_depth, MAX_DEPTH),
    )


def too_many_tokens(size: int) -> LimitError:
    """Return the error for a sequence to count that is longer than 64 tokens."""
    return LimitError(describe("query", "number of tokens", size, f"1..{MAX_SUFFIX}"))
