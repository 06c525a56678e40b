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
    """The longest suffix of a context found in a source.

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
        match: as given.

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
        columns = [
            _integers("counts", counts, np.int64),
            _integers("tokens", tokens, np.int32),
            _integers("parents", parents, np.int32),
        ]
        sizes = (columns[1].size, columns[2].size, columns[0].size)
        if len(set(sizes)) > 1:
            raise ArgumentError(
                describe(
                    "draft tree", "length of tokens, parents and counts", sizes, "one and the same"
                )
            )
        depths: list[int] = []
        for node, parent in enumerate(columns[2].tolist()):
            if not -1 <= parent < node:
                raise ArgumentError(
                    describe("draft tree", f"parent of node {node}", parent, f"-1..{node - 1}")
                )
            depths.append(1 if parent < 0 else depths[parent] + 1)
        self.match = match
        self.packed = b"".join(
            column.tobytes() for column in (*columns, np.array(depths, dtype=np.int32))
        )
        self._scores = (
            None if scores is None else _numbers("scores", scores).astype(np.float32).tobytes()
        )
        self._origins = (
            None if origins is None else _integers("origins", origins, np.uint8).tobytes()
        )
        for what, column, width in (("scores", self._scores, 4), ("origins", self._origins, 1)):
            if column is not None and len(column) != width * sizes[0]:
                raise ArgumentError(
                    describe("draft tree", f"length of {what}", len(column) // width, sizes[0])
                )

    @classmethod
    def from_packed(
        cls,
        packed: bytes,
        match: tuple[int, int],
        scores: bytes | None = None,
        origins: bytes | None = None,
    ) -> TokenTree:
        """Make a tree of its packed bytes, unchecked.

        Args:
            packed: as the attribute.
            match: length and count.
            scores: float32[N] or None.
            origins: uint8[N] or None.
        """
        tree = cls.__new__(cls)
        tree.packed = packed
        tree.match = SuffixMatch(*match)
        tree._scores, tree._origins = scores, origins
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
        size, parents, depths = len(self), self.parents, self.depths
        mask = np.eye(size, dtype=np.bool_)
        for depth in range(2, int(depths.max(initial=0)) + 1):
            level = np.flatnonzero(depths == depth)
            mask[level] |= mask[parents[level]]
        return mask

    def children(self, node: int) -> npt.NDArray[np.int64]:
        """Return the indices of the children of `node`, ascending; -1 stands for the context."""
        return np.flatnonzero(self.parents == node)

    def longest_path(self, tokens: Iterable[int]) -> npt.NDArray[np.int64]:
        """Return the nodes of the longest path that spells the beginning of `tokens`, int64[k]."""
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
        return self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> tuple[bytes, tuple[int, ...], bytes | None, bytes | None]:
        return self.packed, tuple(self.match), self._scores, self._origins

    def __repr__(self) -> str:
        depth = int(self.depths.max(initial=0))
        return f"TokenTree({counted(len(self), 'node')}, depth {depth}, match={tuple(self.match)})"


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
        found = int(array.min()) if int(array.min()) < limits.min else int(array.max())
        raise ArgumentError(
            describe("draft tree", f"one of {what}", found, f"{limits.min}..{limits.max}")
        )
    return array.astype(dtype)
