"""The choice between the native query kernel and its numpy reference, and the interface that both have."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from rest_store.datastore.mapped_file import MappedFile
from rest_store.datastore.prepared import PreparedFile
from rest_store.datastore.reference import KernelShard, ReferenceKernel
from rest_store.datastore.shard import Shard
from rest_store.datastore.tree import TokenTree
from rest_store.errors import NativeKernelError, describe

MAX_SUFFIX = 64
MAX_DEPTH = 32
MAX_NODES = 1024


class Kernel(Protocol):
    """Exact queries over shards. Contexts are 1-D integers, of which the last `max_suffix` are read.

    A batch is a list of contexts or 2-D integers, a context a row. Methods raise TypeError or ValueError, without
    saying more, for a context that is not 1-D integers of the vocabulary or is empty. Thread-safe; the native kernel
    releases the GIL.
    """

    def longest_suffix_match(self, context: Any, max_suffix: int, /) -> tuple[int, int]:
        """Return (match length, count)."""

    def count(self, tokens: Any, /) -> int:
        """Return the occurrences of `tokens`, 1 to 64 of them."""

    def draft(self, context: Any, max_nodes: int, max_suffix: int, max_depth: int, /) -> TokenTree:
        """Return the draft tree of `context`."""

    def draft_batch(self, contexts: Any, max_nodes: int, max_suffix: int, max_depth: int, /) -> list[TokenTree]:
        """Return what `draft` returns, for each of `contexts`."""


def native_kernel() -> type[Any] | None:
    """Return the native kernel's class, or None if it was not built."""
    try:
        from rest_store._kernel import NativeKernel
    except ImportError:
        return None
    return NativeKernel  # type: ignore[no-any-return]


def kernel_name() -> str:
    """Return which kernel opens datastores in this process: "native" or "reference".

    The environment variable REST_STORE_KERNEL=reference asks for the reference where both are there.
    """
    if os.environ.get("REST_STORE_KERNEL") == "reference" or native_kernel() is None:
        return "reference"
    return "native"


def native_session_kernel() -> Any:
    """Return the compiled module, which draft sessions run in.

    Raises:
        NativeKernelError: it was not built.
    """
    try:
        from rest_store import _kernel
    except ImportError as error:
        expected = "installed; install a C++20 compiler and reinstall rest-store"
        raise NativeKernelError(describe("draft session", "the native kernel", "missing", expected)) from error
    return _kernel


_warned = False


def open_kernel(shards: Sequence[Shard], vocabulary_size: int, prepared: PreparedFile | None = None) -> Kernel:
    """Return a kernel over `shards`, native if it was built; say once in a process if it was not.

    `prepared` spares the native kernel work. The reference does without: it answers the same.
    """
    global _warned
    views = [shard_view(shard) for shard in shards]
    native = native_kernel()
    if kernel_name() == "native" and native is not None:
        return native(views, vocabulary_size, TokenTree, prepared)  # type: ignore[no-any-return]
    if native is None and not _warned:
        _warned = True
        warnings.warn(
            "rest-store: the native kernel was not built; queries run on the numpy reference, exact but slow. "
            "Install a C++20 compiler and reinstall to get it.",
            RuntimeWarning,
            stacklevel=4,
        )
    return ReferenceKernel(views, vocabulary_size)


class PageGuard(Protocol):
    """Watches mapped pages for as long as it lives."""

    @property
    def lost(self) -> bool:
        """Whether a page could not be read, so that zeros have taken the place of it and of what follows."""


def native_tree_fault() -> Callable[[bytes, int, int], int] | None:
    """Return what checks a packed tree, given vocabulary size and greatest depth; None if the kernel was not built.

    It returns 0 for a tree, else what is wrong with the first node that is: 1 its token, 2 its parent, 3 its depth, 4
    its count.
    """
    try:
        from rest_store._kernel import tree_fault
    except ImportError:
        return None
    return tree_fault  # type: ignore[no-any-return]


def native_evidence_fault() -> Callable[[bytes, int, int], str | None] | None:
    """Return what checks the rows of `Evidence`, given vocabulary size and most rows; None without the kernel.

    It returns None for rows in order, else what they are instead.
    """
    try:
        from rest_store._kernel import evidence_fault
    except ImportError:
        return None
    return evidence_fault  # type: ignore[no-any-return]


def guard_pages(files: Iterable[MappedFile[Any]]) -> PageGuard | None:
    """Keep this process alive should `files` be truncated underneath, or their disk fail (SIGBUS).

    Installs a handler of SIGBUS for the whole process, once. Returns None where the native kernel was not built, which
    has the handler.
    """
    try:
        from rest_store._kernel import PageGuard as NativeGuard
    except ImportError:
        return None
    return NativeGuard([file.raw for file in files])  # type: ignore[no-any-return]


def shard_view(shard: Shard) -> KernelShard:
    """Return the arrays of `shard` as kernels read them."""
    tokens, suffixes = shard.tokens, shard.suffixes
    return KernelShard(
        symbols=tokens.payload_and_tail,
        keys=suffixes.key_bytes,
        entries=suffixes.packed,
        position_count=tokens.header.position_count,
        entry_count=suffixes.header.entry_count,
        key_count=suffixes.header.key_count,
        width=tokens.header.width,
        bits=suffixes.header.bits,
    )
