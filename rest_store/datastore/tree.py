"""The draft tree: proposed continuations of a context, merged where they begin alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from rest_store.datastore.render import counted
from rest_store.errors import ArgumentError, describe

NODE_BYTES = 20  # of a node in `TokenTree.packed`
_Integer = TypeVar("_Integer", bound=np.signedinteger[Any])


class SuffixMatch(NamedTuple):
    """The longest suffix of a context that occurs in a source.

    Attributes:
        length: match length in tokens; 0 if even the last token is absent.
        count: its occurrences in the source; 0 if `length` is 0.
    """

    length: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which a match does not need


class TokenTree:
    """Continuations of a context as a tree; each node is one draft token.

    Parents come before their children. Immutable and thread-safe; arrays are read-only views.

    Args:
        tokens: int[N], the draft token of each node.
        parents: int[N], the index of each node's parent; -1 for a child of the context.
        counts: int[N], occurrences of the match followed by the path to the node.
        match: the suffix match that the tree continues.
        scores: float[N], the estimated acceptance probability of each node; None if there is no
            estimate.
        origins: uint8[N], bit i set if source i of a draft session proposed the node; None outside
            of sessions.

    Attributes:
        packed: counts int64[N], tokens int32[N], parents int32[N] and depths int32[N], one after
            the other.
        match: the suffix match.

    Raises:
        ArgumentError: not 1-D numbers, arrays of unequal length, a parent that does not come before
            its child, or an origin outside 0..255.
    """

    __slots__ = ("_origins", "_scores", "match", "packed")

    packed: bytes
    match: SuffixMatch

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
        count_column = _integers("counts", counts, np.int64)
        token_column = _integers("tokens", tokens, np.int32)
        parent_column = _integers("parents", parents, np.int32)
        sizes = (token_column.size, parent_column.size, count_column.size)
        size = sizes[0]
        if len(set(sizes)) > 1:
            what = "length of tokens, parents and counts"
            raise ArgumentError(describe("draft tree", what, sizes, "one and the same"))
        depths: list[int] = []
        for node, parent in enumerate(parent_column.tolist()):
            if not -1 <= parent < node:
                raise ArgumentError(
                    describe("draft tree", f"parent of node {node}", parent, f"-1..{node - 1}")
                )
            depths.append(1 if parent < 0 else depths[parent] + 1)
        depth_column = np.array(depths, dtype=np.int32)
        columns = (count_column, token_column, parent_column, depth_column)
        self.match = match
        self.packed = b"".join(column.tobytes() for column in columns)
        self._scores = None
        if scores is not None:
            score_column = _numbers("scores", scores).astype(np.float32)
            _require_size("scores", score_column.size, size)
            self._scores = score_column.tobytes()
        self._origins = None
        if origins is not None:
            origin_column = _integers("origins", origins, np.uint8)
            _require_size("origins", origin_column.size, size)
            self._origins = origin_column.tobytes()

    @classmethod
    def from_packed(
        cls,
        packed: bytes,
        match: tuple[int, int],
        scores: bytes | None = None,
        origins: bytes | None = None,
    ) -> TokenTree:
        """Return the tree of its packed bytes, which are not validated.

        Args:
            packed: as the attribute.
            match: length and count.
            scores: float32[N] or None.
            origins: uint8[N] or None.
        """
        tree = cls.__new__(cls)
        tree.packed = packed
        tree.match = SuffixMatch(*match)
        tree._scores = scores
        tree._origins = origins
        return tree

    def __len__(self) -> int:
        return len(self.packed) // NODE_BYTES

    def _column(self, start: int, dtype: type[_Integer]) -> npt.NDArray[_Integer]:
        size = len(self)
        return np.frombuffer(self.packed, dtype, size, start * size)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Occurrences of the match followed by the path to each node, int64[N]."""
        return self._column(0, np.int64)

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """Draft tokens, int32[N]."""
        return self._column(8, np.int32)

    @property
    def parents(self) -> npt.NDArray[np.int32]:
        """Indices of the parents, int32[N]; -1 for a child of the context."""
        return self._column(12, np.int32)

    @property
    def depths(self) -> npt.NDArray[np.int32]:
        """Tokens from the context to each node, int32[N]; 1 for a child of the context."""
        return self._column(16, np.int32)

    @property
    def scores(self) -> npt.NDArray[np.float32] | None:
        """Estimated acceptance probability of each node, float32[N].

        None for the trees of a datastore.
        """
        return None if self._scores is None else np.frombuffer(self._scores, np.float32)

    @property
    def origins(self) -> npt.NDArray[np.uint8] | None:
        """The sources of the session that proposed each node, one bit each, uint8[N].

        None for a datastore's trees.
        """
        return None if self._origins is None else np.frombuffer(self._origins, np.uint8)

    def mask(self) -> npt.NDArray[np.bool_]:
        """Return the tree attention mask, bool[N, N]: each row sees itself and its ancestors."""
        parents = self.parents
        depths = self.depths
        mask = np.eye(len(self), dtype=np.bool_)
        for depth in range(2, int(depths.max(initial=0)) + 1):
            level = np.flatnonzero(depths == depth)
            mask[level] |= mask[parents[level]]
        return mask

    def children(self, node: int) -> npt.NDArray[np.int64]:
        """Return the indices of the children of `node`, ascending; -1 stands for the context."""
        return np.flatnonzero(self.parents == node)

    def longest_path(self, tokens: Iterable[int]) -> npt.NDArray[np.int64]:
        """Return the nodes of the longest path that spells the beginning of `tokens`, int64[k]."""
        child_of: dict[tuple[int, int], int] = {}  # by parent and token; of equals the first
        for node, key in enumerate(zip(self.parents.tolist(), self.tokens.tolist(), strict=True)):
            child_of.setdefault(key, node)
        path: list[int] = []
        last = -1
        for token in tokens:
            child = child_of.get((last, int(token)))
            if child is None:
                break
            path.append(child)
            last = child
        return np.array(path, dtype=np.int64)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenTree):
            return NotImplemented
        return self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> tuple[bytes, tuple[int, ...], bytes | None, bytes | None]:
        return self.packed, tuple(self.match), self._scores, self._origins

    def __repr__(self) -> str:
        depth = int(self.depths.max(initial=0))
        return f"TokenTree({counted(len(self), 'node')}, depth {depth}, match={tuple(self.match)})"


def _require_size(what: str, actual: int, expected: int) -> None:
    """Raise ArgumentError unless a column has as many elements as the tree has nodes."""
    if actual != expected:
        raise ArgumentError(describe("draft tree", f"length of {what}", actual, expected))


def _numbers(
    what: str, values: object, kinds: str = "iuf", expected: str = "1-D numbers"
) -> npt.NDArray[Any]:
    """Return `values` as a 1-D array of a type whose kind is one of `kinds`.

    Raise ArgumentError unless they are.
    """
    try:
        array: npt.NDArray[Any] = np.asarray(values)
    except (TypeError, ValueError):  # ragged
        array = np.empty((), dtype=object)
    if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
        raise ArgumentError(describe("draft tree", what, f"{array.ndim}-D {array.dtype}", expected))
    return array


def _integers(
    what: str, values: Sequence[int] | npt.NDArray[np.integer[Any]], dtype: type[np.integer[Any]]
) -> npt.NDArray[np.integer[Any]]:
    """Return `values` as 1-D integers of type `dtype`; raise ArgumentError unless they are."""
    array = _numbers(what, values, "iu", "1-D integers")
    limits = np.iinfo(dtype)
    if array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
        actual = int(array.min()) if int(array.min()) < limits.min else int(array.max())
        raise ArgumentError(
            describe("draft tree", f"one of {what}", actual, f"{limits.min}..{limits.max}")
        )
    return array.astype(dtype)
