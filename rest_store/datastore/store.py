"""The exact queries of frozen and live datastores (REST, arXiv 2311.08252, 3.1 and 3.2)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NoReturn, TypeVar, cast

from rest_store.datastore.kernel import MAX_SEQUENCE, MAX_SUFFIX, native_kernel
from rest_store.datastore.shard import ShardView
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import (
    Contexts,
    IntSequence,
    check_int,
    check_tree_limits,
    label,
    tail,
    tails,
    too_many_tokens,
)
from rest_store.errors import DatastoreClosedError, describe

if TYPE_CHECKING:
    from rest_store._kernel import NativeKernel, Sharing


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The shards of a datastore at one time; they never change.

    Attributes:
        views: the shards as the kernel reads them; none after `close`.
        kernel: answers queries over them.
        sharing: which of the occurrences in them queries may tell of; None: all.
    """

    views: Sequence[ShardView]
    kernel: NativeKernel
    sharing: Sharing | None = None

    @classmethod
    def from_views(
        cls, views: Sequence[ShardView], vocabulary_size: int, sharing: Sharing | None = None
    ) -> Snapshot:
        """Return the snapshot of `views`, at least one; ids are `0 .. vocabulary_size - 1`."""
        more = () if sharing is None else (sharing,)
        kernel = native_kernel().NativeKernel(list(views), vocabulary_size, *more)
        return cls(views, kernel, sharing)

    @classmethod
    def closed(cls, path: Path) -> Snapshot:
        """Return the snapshot of a closed datastore, whose queries raise DatastoreClosedError."""
        return cls((), cast("NativeKernel", _ClosedKernel(path)))


Opened = TypeVar("Opened", bound="Store")


class Store(ABC):
    """A datastore in this process: `Datastore`, or `LiveDatastore`.

    Attributes:
        path: its directory.
        tokenizer: identity of the tokenizer that its tokens are from.
        is_live: whether it takes in documents while it is queried.

    A context manager, which `close` ends. A copy is the datastore itself. Thread-safe; queries
    release the GIL.
    """

    is_live: ClassVar[bool] = False
    path: Path
    tokenizer: TokenizerIdentity

    @property
    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The shards that queries read from now on.

        Another object once they change, and after `close`.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the datastore; every later query raises DatastoreClosedError.

        May be called again.
        """

    def read_as(self, group: str) -> Store:
        """Return this datastore as `group` may read it: a live one may hold texts from others.

        Raises:
            DocumentError: `group` is not a valid group.
        """
        label("datastore", "a group", group)
        return self

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self: Opened) -> Opened:
        return self

    def __deepcopy__(self: Opened, memo: object) -> Opened:
        return self

    @property
    def kernel(self) -> NativeKernel:
        """The kernel that answers queries."""
        return self.snapshot.kernel

    @property
    def vocabulary_size(self) -> int:
        """Ids are `0 .. vocabulary_size - 1`."""
        return self.tokenizer.vocabulary_size

    @property
    def token_count(self) -> int:
        """Tokens of the documents that queries read."""
        return sum(view.entry_count for view in self.snapshot.views)

    @property
    def label(self) -> str:
        """Its name for people: the path, and the namespace if it is one."""
        return str(self.path)

    def require_readable(self) -> None:
        """Raise the error that every query would raise.

        Raises:
            DatastoreClosedError: after `close`.
            DatastoreUnavailableError: a page of the files could not be read.
        """
        self.kernel.require_readable()

    def longest_suffix_match(self, context: IntSequence, *, max_suffix: int = 16) -> SuffixMatch:
        """Find the longest suffix of `context` that occurs in this datastore (REST, Algorithm 1).

        Args:
            context: 1-D integers, oldest first; only the last `max_suffix` are read.
            max_suffix: longest suffix tried, in tokens, 1..64.

        Returns:
            SuffixMatch(length, count): `length` in tokens, 0 if even the last token is absent.

        Raises:
            QueryError: `context` is not 1-D integers, is empty, or holds an id outside the
                vocabulary, or a limit is out of range.
            DatastoreClosedError: after `close`.
            DatastoreUnavailableError: a page of the files could not be read.

        Thread-safe; releases the GIL.
        """
        max_suffix = check_int("max_suffix", max_suffix, MAX_SUFFIX)
        suffix = tail(context, max_suffix, self.vocabulary_size)
        return SuffixMatch(*self.kernel.longest_suffix_match(suffix))

    def draft(
        self,
        context: IntSequence,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
    ) -> TokenTree:
        """Return a tree of the most frequent continuations of the longest suffix match.

        Counts are exact, over all matches. Nodes come by count, greatest first; of equal counts the
        one with fewer tokens first, of those the lexicographically first (FORMAT.md, section 7).

        Args:
            context: 1-D integers, oldest first; only the last `max_suffix` are read.
            max_nodes: most draft tokens, 1..1024.
            max_suffix: longest suffix tried, in tokens, 1..64.
            max_depth: longest continuation, in tokens, 1..32.

        Returns:
            The draft tree with its suffix match; empty if nothing matches or no occurrence is
            continued.

        Raises:
            QueryError: `context` is not 1-D integers, is empty, or holds an id outside the
                vocabulary, or a limit is out of range.
            DatastoreClosedError: after `close`.
            DatastoreUnavailableError: a page of the files could not be read.

        Thread-safe; releases the GIL.
        """
        max_nodes, max_suffix, max_depth = check_tree_limits(max_nodes, max_suffix, max_depth)
        suffix = tail(context, max_suffix, self.vocabulary_size)
        return TokenTree.from_packed(*self.kernel.draft(suffix, max_nodes, max_depth))

    def draft_batch(
        self, contexts: Contexts, *, max_nodes: int = 64, max_suffix: int = 16, max_depth: int = 10
    ) -> list[TokenTree]:
        """Return the answer of `draft` for each of `contexts`.

        Args:
            contexts: a sequence of contexts, or an array or tensor int[B, N] with one context per
                row.
            max_nodes: as in `draft`.
            max_suffix: as in `draft`.
            max_depth: as in `draft`.

        Returns:
            B draft trees, in the order of the contexts.

        Raises:
            QueryError: as in `draft`; the message names the index of the context.
            DatastoreClosedError, DatastoreUnavailableError: as in `draft`.

        Thread-safe; releases the GIL.
        """
        max_nodes, max_suffix, max_depth = check_tree_limits(max_nodes, max_suffix, max_depth)
        suffixes = tails(contexts, max_suffix, self.vocabulary_size)
        kernel = self.kernel
        return [
            TokenTree.from_packed(*kernel.draft(suffix, max_nodes, max_depth))
            for suffix in suffixes
        ]

    def count(self, tokens: IntSequence) -> int:
        """Return the number of occurrences of `tokens` within documents of this datastore.

        Args:
            tokens: 1-D integers, 1 to 96 of them: the longest suffix and the longest continuation.

        Raises:
            QueryError: `tokens` is not 1-D integers, is empty or too long, or holds an id outside
                the vocabulary.
            DatastoreClosedError, DatastoreUnavailableError: as in `draft`.

        Thread-safe; releases the GIL.
        """
        sequence = tail(tokens, MAX_SEQUENCE + 1, self.vocabulary_size, "tokens")
        if len(sequence) > MAX_SEQUENCE:
            raise too_many_tokens(len(tokens))
        return self.kernel.count(sequence)


class _ClosedKernel:
    """Stands for the kernel of a closed datastore."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _refuse(self, *_: object) -> NoReturn:
        raise DatastoreClosedError(describe(self._path, "the datastore", "closed", "open"))

    longest_suffix_match = count = draft = require_readable = _refuse
