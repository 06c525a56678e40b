"""The draft tree: proposed continuations of a context that share their common beginnings."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from rest_store.errors import TreeError, describe

_NODE_SIZE = 20  # bytes of a node when packed
_HEADER = struct.Struct("=QII")  # match count, match length, bytes of the packed nodes that follow
_Integer = TypeVar("_Integer", bound=np.signedinteger[Any])


class SuffixMatch(NamedTuple):
    """The longest suffix of a context found in a source.

    Attributes:
        length: match length in tokens; 0 if even the last token is absent.
        count: its occurrences in the source; 0 if `length` is 0.
    """

    length: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of a match


class TokenTree:
    """Continuations of a context as a tree; each node is one draft token.

    Parents come before their children. Immutable and thread-safe; the arrays are read-only views of one block.

    Args:
        tokens: int[N], the draft token of each node.
        parents: int[N], the place of each node's parent in the tree; -1 for a child of the context.
        counts: int[N], occurrences of the continuation that ends in the node, after the match.
        match: the suffix match that the continuations follow.
        scores: float[N], the calibrated probability that each node is accepted; None if nobody estimated it.
        origins: uint8[N], bit i set: source i of a draft session proposed the node; None outside of sessions.

    Raises:
        TreeError: not 1-D integers, arrays of unequal length, or a parent that does not come before its child.
    """

    # A tree lies in a block of bytes, where others may lie, too: from `_start` on a header, then the packed nodes. Both
    # kernels rely on these slots.
    __slots__ = ("_block", "_extras", "_start")

    def __init__(
        self,
        tokens: Sequence[int] | npt.NDArray[np.integer[Any]],
        parents: Sequence[int] | npt.NDArray[np.integer[Any]],
        counts: Sequence[int] | npt.NDArray[np.integer[Any]],
        *,
        match: SuffixMatch = SuffixMatch(0, 0),  # noqa: B008  a named tuple is immutable
        scores: Sequence[float] | npt.NDArray[np.floating[Any]] | None = None,
        origins: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None,
    ) -> None:
        columns = [
            _integers("counts", counts, np.int64),
            _integers("tokens", tokens, np.int32),
            _integers("parents", parents, np.int32),
        ]
        sizes = (columns[1].size, columns[2].size, columns[0].size)
        if len(set(sizes)) > 1:
            raise TreeError(describe("draft tree", "length of tokens, parents and counts", sizes, "one and the same"))
        depths: list[int] = []
        for node, parent in enumerate(columns[2].tolist()):
            if not -1 <= parent < node:
                raise TreeError(describe("draft tree", f"parent of node {node}", parent, f"-1..{node - 1}"))
            depths.append(1 if parent < 0 else depths[parent] + 1)
        packed = b"".join(column.tobytes() for column in (*columns, np.array(depths, dtype=np.int32)))
        extras = (
            None if scores is None else np.asarray(scores, np.float32).tobytes(),
            None if origins is None else np.asarray(origins, np.uint8).tobytes(),
        )
        for what, column, width in (("scores", extras[0], 4), ("origins", extras[1], 1)):
            if column is not None and len(column) != width * sizes[0]:
                raise TreeError(describe("draft tree", f"length of {what}", len(column) // width, sizes[0]))
        self._place(packed, match, extras)

    @classmethod
    def from_packed(
        cls, packed: bytes, match: tuple[int, int], scores: bytes | None = None, origins: bytes | None = None
    ) -> TokenTree:
        """Wrap what a kernel returns, unchecked: counts int64[N], then tokens, parents and depths int32[N].

        A session's trees come with scores float32[N] and origins uint8[N].
        """
        tree = cls.__new__(cls)
        tree._place(packed, match, (scores, origins))
        return tree

    def _place(self, packed: bytes, match: tuple[int, int], extras: tuple[bytes | None, bytes | None]) -> None:
        try:
            self._block = _HEADER.pack(match[1], match[0], len(packed)) + packed
        except struct.error:
            raise TreeError(describe("draft tree", "match", tuple(match), "a length and a count from 0 on")) from None
        self._start = 0
        self._extras = None if extras == (None, None) else extras  # scores and origins

    @property
    def match(self) -> SuffixMatch:
        """The suffix match that the continuations follow."""
        count, length, _ = _HEADER.unpack_from(self._block, self._start)
        return SuffixMatch(length, count)

    @property
    def packed(self) -> bytes:
        """Counts int64[N], tokens int32[N], parents int32[N] and depths int32[N], one after the other."""
        begin = self._start + _HEADER.size
        return self._block[begin : begin + self._size]

    @property
    def _size(self) -> int:
        return _HEADER.unpack_from(self._block, self._start)[2]  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return self._size // _NODE_SIZE

    def _column(self, start: int, dtype: type[_Integer]) -> npt.NDArray[_Integer]:
        size = len(self)
        return np.frombuffer(self._block, dtype, size, self._start + _HEADER.size + start * size)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Occurrences of the continuation that ends in each node, int64[N]."""
        return self._column(0, np.int64)

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Draft tokens, int32[N]."""
        return self._column(8, np.int32)

    @property
    def parents(self) -> npt.NDArray[np.int32]:
        """Places of the parents, int32[N]; -1: child of the context."""
        return self._column(12, np.int32)

    @property
    def depths(self) -> npt.NDArray[np.int32]:
        """Tokens from the context to each node, int32[N]; 1 for a child of the context."""
        return self._column(16, np.int32)

    @property
    def scores(self) -> npt.NDArray[np.float32] | None:
        """Calibrated probability that each node is accepted, float32[N]; None for a datastore's trees."""
        scores = None if self._extras is None else self._extras[0]
        return None if scores is None else np.frombuffer(scores, np.float32)

    @property
    def origins(self) -> npt.NDArray[np.uint8] | None:
        """Which sources of the session proposed each node, one bit each, uint8[N]; None for a datastore's trees."""
        origins = None if self._extras is None else self._extras[1]
        return None if origins is None else np.frombuffer(origins, np.uint8)

    def mask(self) -> npt.NDArray[np.bool_]:
        """Return who sees whom under tree attention, bool[N, N]: a row sees itself and its ancestors."""
        size, parents, depths = len(self), self.parents, self.depths
        mask = np.eye(size, dtype=np.bool_)
        for depth in range(2, int(depths.max(initial=0)) + 1):
            level = np.flatnonzero(depths == depth)
            mask[level] |= mask[parents[level]]
        return mask

    def positions(self, context_length: int) -> npt.NDArray[np.int64]:
        """Return the position of each node in the sequence, int64[N], for a context of `context_length` tokens."""
        return self.depths.astype(np.int64) + (context_length - 1)

    def children(self, node: int) -> npt.NDArray[np.int64]:
        """Return the places of the children of `node`, ascending; -1 asks for those of the context."""
        return np.flatnonzero(self.parents == node)

    def longest_path(self, tokens: Iterable[int]) -> npt.NDArray[np.int64]:
        """Return the nodes met when walking down along `tokens`, int64[k], k the number that the tree foresaw."""
        by_parent = {
            (parent, token): node
            for node, (parent, token) in reversed(
                list(enumerate(zip(self.parents.tolist(), self.tokens.tolist(), strict=True)))
            )
        }
        path: list[int] = []
        for token in tokens:
            node = by_parent.get((path[-1] if path else -1, int(token)))
            if node is None:
                break
            path.append(node)
        return np.array(path, dtype=np.int64)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenTree):
            return NotImplemented
        return (self.packed, self.match, self._extras) == (other.packed, other.match, other._extras)

    def __hash__(self) -> int:
        return hash((self.packed, *self.match, self._extras))

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenTree.from_packed, (self.packed, tuple(self.match), *(self._extras or ()))

    def __repr__(self) -> str:
        return f"TokenTree({len(self)} nodes, depth {int(self.depths.max(initial=0))}, match={tuple(self.match)})"


def _integers(
    what: str, values: Sequence[int] | npt.NDArray[np.integer[Any]], dtype: type[np.signedinteger[Any]]
) -> npt.NDArray[np.signedinteger[Any]]:
    """Return `values` as 1-D integers of type `dtype`; raise TreeError unless they are."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):  # ragged
        array = np.empty((), dtype=object)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TreeError(describe("draft tree", what, f"{array.ndim}-D {array.dtype}", "1-D integers"))
    limits = np.iinfo(dtype)
    if array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
        found = int(array.min()) if int(array.min()) < limits.min else int(array.max())
        raise TreeError(describe("draft tree", f"one of {what}", found, f"{limits.min}..{limits.max}"))
    return array.astype(dtype)
