"""The arguments of draft sessions, checked and converted: options of a draft, accepted tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import MAX_NODES
from rest_store.datastore.validation import IntSequence, check_int
from rest_store.errors import ArgumentError, ContextTypeError, QueryError, describe

NO_COSTS = np.zeros(0)  # a draft without costs has the size that `max_nodes` says
NO_TOKENS = np.zeros(0, np.int32)
_LAST_TOKEN = 2**31 - 1

TOP_K = 8  # most likely tokens that sessions read of a row
TopK: TypeAlias = npt.NDArray[np.int32]  # rows of most likely tokens, [n, k]; -1 ends a row


class DraftOptions(NamedTuple):
    """The options of one draft; the arguments of the kernel's `draft`.

    Attributes:
        max_nodes: most draft tokens, 0..1024.
        costs: those of `DraftSession.draft`, float64[n + 1]; empty: the draft is not cut.
        is_chain: whether it is to be a chain.
        verified: of a lookahead: int32[n], the draft that is verified meanwhile.
        length: of a lookahead: the most tokens of the next draft; 0: it is no lookahead.
    """

    max_nodes: int
    costs: npt.NDArray[np.float64] = NO_COSTS
    is_chain: bool = False
    verified: npt.NDArray[np.int32] = NO_TOKENS
    length: int = 0

    @property
    def for_members(self) -> DraftOptions:
        """The options for sessions in other processes, which make no lookaheads but chains."""
        if not self.length:
            return self
        size = self.verified.size + 1 + self.length
        return DraftOptions(min(size, self.max_nodes), is_chain=True)

    @classmethod
    def from_arguments(
        cls, max_nodes: object, costs: npt.ArrayLike | None, shape: object
    ) -> DraftOptions:
        """Return the options that the arguments of `DraftSession.draft` mean.

        Raises:
            ArgumentError: as `DraftSession.draft`.
        """
        nodes = check_int("max_nodes", max_nodes, MAX_NODES, minimum=0, where="draft session")
        if shape not in ("tree", "chain"):
            raise ArgumentError(
                describe("draft session", "shape", repr(shape), "'tree' or 'chain'")
            )
        if costs is None:
            return cls(nodes, NO_COSTS, shape == "chain")
        times = _parse_costs(costs, nodes)
        return cls(times.size - 1, times, shape == "chain")


class Accepted(NamedTuple):
    """The output of the target model in one step of a session.

    Attributes:
        tokens: int32[n], n > 0.
        top_k: as `DraftSession.accept` takes it, or None.
        node_top_k: the same.
    """

    tokens: npt.NDArray[np.int32]
    top_k: TopK | None = None
    node_top_k: TopK | None = None

    @classmethod
    def from_arguments(
        cls,
        where: str,
        tokens: IntSequence,
        top_k: npt.ArrayLike | None,
        node_top_k: npt.ArrayLike | None,
    ) -> Accepted:
        """Return the arguments of `DraftSession.accept`, checked.

        Args:
            where: how the message about empty tokens begins.
            tokens: as `DraftSession.accept` takes them.
            top_k: likewise.
            node_top_k: likewise.

        Raises:
            ContextTypeError, QueryError: as `DraftSession.accept`.
        """
        array = parse_tokens("tokens", tokens)
        if array.size == 0:
            raise QueryError(f"{where}: no tokens; expected at least one")
        return cls(array, parse_top_k("top_k", top_k), parse_top_k("node_top_k", node_top_k))


def _parse_costs(costs: npt.ArrayLike, nodes: int) -> npt.NDArray[np.float64]:
    """Return the times of steps with 0, 1, .. n draft tokens, float64[n + 1], n <= `nodes`.

    Raises:
        ArgumentError: `costs` are not 1-D positive numbers.
    """
    try:
        array = np.asarray(costs, np.float64, order="C")
    except (TypeError, ValueError, OverflowError):  # an int that no float can hold
        array = np.empty((0, 0))
    if array.ndim != 1 or array.size == 0 or not bool(np.all((array > 0) & np.isfinite(array))):
        raise ArgumentError(
            describe("draft", "costs", f"of shape {array.shape}", "1-D positive finite numbers")
        )
    return array[: nodes + 1]


def parse_tokens(what: str, values: IntSequence) -> npt.NDArray[np.int32]:
    """Return `values` as int32.

    Raises:
        ContextTypeError, QueryError: they are not 1-D integers of 0 .. 2^31 - 1.
    """
    array = _integers(what, values)
    if array.ndim != 1:
        raise ContextTypeError(describe("draft session", what, f"{array.ndim}-D", "1-D integers"))
    narrow = array.dtype == np.int32  # then no token is too great
    if array.size and not (array.min() >= 0 and (narrow or array.max() <= _LAST_TOKEN)):
        outside = int(array.min()) if int(array.min()) < 0 else int(array.max())
        raise QueryError(
            describe("draft session", f"token id in {what}", outside, f"0..{_LAST_TOKEN}")
        )
    return np.ascontiguousarray(array, np.int32)


def parse_references(values: Iterable[IntSequence]) -> list[npt.NDArray[np.int32]]:
    """Return the references of a session as int32, without empty ones; raise as `parse_tokens`."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ContextTypeError(
            f"draft session: references are of the type {type(values).__name__}, expected a list"
            " of 1-D integers"
        )
    references = []
    for index, value in enumerate(values):
        reference = parse_tokens(f"references[{index}]", value)
        if reference.size:
            references.append(reference)
    return references


def parse_top_k(what: str, values: npt.ArrayLike | None) -> TopK | None:
    """Return the first 8 columns of `values` as int32, -1 for numbers that are no tokens.

    Raises:
        ContextTypeError: `values` are neither None nor 2-D integers.
    """
    if values is None:
        return None
    array = _integers(what, values)
    if array.ndim != 2:
        raise ContextTypeError(
            describe("draft session", what, f"of shape {array.shape}", "[n, k] integers")
        )
    likely = array[:, :TOP_K]
    rows = likely.astype(np.int32, order="C")
    rows[(likely < 0) | (likely > _LAST_TOKEN)] = -1
    return rows


def _integers(what: str, values: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):  # ragged
        array = np.empty((), dtype=object)
    if array.size and array.dtype.kind not in "iu":
        raise ContextTypeError(
            describe("draft session", what, f"{array.ndim}-D {array.dtype}", "integers")
        )
    return array
