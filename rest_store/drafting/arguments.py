"""What callers hand to draft sessions, checked and converted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import MAX_NODES
from rest_store.datastore.validation import IntSequence, limit, real
from rest_store.drafting.limits import NO_COSTS, TopK
from rest_store.errors import ContextTypeError, LimitError, TokenRangeError, describe

_LAST_TOKEN = 2**31 - 1

Costs = npt.ArrayLike | Callable[[int], float]


def node_limit(max_nodes: object) -> int:
    """Return `max_nodes` as an int; raise LimitError unless it is 0..1024."""
    return limit("max_nodes", max_nodes, MAX_NODES, least=0, where="draft session")


def is_chain(shape: object) -> bool:
    """Return whether a draft is to be a chain; raise LimitError for an unknown shape."""
    if shape not in ("tree", "chain"):
        raise LimitError(describe("draft session", "shape", repr(shape), "'tree' or 'chain'"))
    return shape == "chain"


def lowest_score(min_score: object) -> float:
    """Return `min_score` as a float; raise LimitError unless it is 0..1."""
    score = real(min_score)
    if not 0 <= score <= 1:
        raise LimitError(describe("draft session", "min_score", repr(min_score), "0..1"))
    return score


def tokens_of(what: str, values: IntSequence) -> npt.NDArray[np.int32]:
    """Return `values` as int32; raise unless they are 1-D integers from 0 on."""
    array = _integers(what, values)
    if array.ndim != 1:
        raise ContextTypeError(describe("draft session", what, f"{array.ndim}-D", "1-D integers"))
    narrow = array.dtype == np.int32  # then no token is too great
    if array.size and not (array.min() >= 0 and (narrow or array.max() <= _LAST_TOKEN)):
        outside = int(array.min()) if int(array.min()) < 0 else int(array.max())
        raise TokenRangeError(describe("draft session", f"token id in {what}", outside, f"0..{_LAST_TOKEN}"))
    return np.ascontiguousarray(array, np.int32)


def top_k_of(what: str, values: npt.ArrayLike) -> TopK:
    """Return `values` as int32[n, k] or int64[n, k]; raise unless they are 2-D integers."""
    array = _integers(what, values)
    if array.ndim != 2:
        raise ContextTypeError(describe("draft session", what, f"of shape {array.shape}", "[n, k] integers"))
    if array.dtype == np.int32:
        return np.ascontiguousarray(array, np.int32)
    return np.ascontiguousarray(array, np.int64)


def _integers(what: str, values: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):  # ragged
        array = np.empty((), dtype=object)
    if array.size and array.dtype.kind not in "iu":
        raise ContextTypeError(describe("draft session", what, f"{array.ndim}-D {array.dtype}", "integers"))
    return array


def times_of(costs: Costs | None, nodes: int) -> npt.NDArray[np.float64]:
    """Return the times of steps with 0, 1, .. n draft tokens, float64[n + 1], n <= `nodes`; empty without costs.

    Raises:
        LimitError: `costs` are not 1-D positive numbers or a function of one.
    """
    if costs is None:
        return NO_COSTS
    try:
        values = [costs(1 + count) for count in range(nodes + 1)] if callable(costs) else costs
        array = np.asarray(values, np.float64, order="C")
    except (TypeError, ValueError, OverflowError):  # an int that no float can hold
        array = np.empty((0, 0))
    if array.ndim != 1 or array.size == 0 or not bool(np.all((array > 0) & np.isfinite(array))):
        raise LimitError(describe("draft", "costs", f"of shape {array.shape}", "1-D positive finite numbers"))
    return array[: nodes + 1]
