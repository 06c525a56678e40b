"""The interface of query kernels, and the choice between the native kernel and the numpy reference."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rest_store.datastore.native import native_module
from rest_store.datastore.reference import KernelShard, PackedTree, ReferenceKernel
from rest_store.datastore.shard import Shard
from rest_store.errors import NativeKernelError, describe

MAX_SUFFIX = 64
MAX_DEPTH = 32
MAX_NODES = 1024
MAX_SEQUENCE = MAX_SUFFIX + MAX_DEPTH  # tokens that are counted: a match and a continuation of it
MAX_LISTED = 1 << 16  # nodes of a tree that a part of a datastore lists for the tree of the whole


class Kernel(Protocol):
    """Exact queries over shards. A suffix is the end of a context: 1 to 64 tokens of the vocabulary.

    Methods raise ValueError for a number of tokens, a token or a limit out of range; `Datastore` checks them before and
    words the errors. They raise DatastoreUnavailableError if a page of the files could not be read. Thread-safe; the
    native kernel releases the GIL.
    """

    def longest_suffix_match(self, suffix: list[int], /) -> tuple[int, int]:
        """Return (match length, count)."""

    def count(self, tokens: list[int], /) -> int:
        """Return the occurrences of `tokens`, 1 to 96 of them."""

    def draft(self, suffix: list[int], max_nodes: int, max_depth: int, /) -> PackedTree:
        """Return the draft tree of a context that ends with `suffix`."""

    def require_readable(self) -> None:
        """Raise DatastoreUnavailableError if a page of the files could not be read."""


def native_kernel() -> type[Any] | None:
    """Return the native kernel's class, or None if it was not built."""
    return getattr(native_module(), "NativeKernel", None)


def kernel_name() -> str:
    """Return the kernel that datastores use in this process: "native" or "reference".

    The environment variable REST_STORE_KERNEL=reference selects the reference even if the native kernel was built.
    """
    if os.environ.get("REST_STORE_KERNEL") == "reference" or native_kernel() is None:
        return "reference"
    return "native"


def native_session_kernel() -> Any:
    """Return the compiled module, which draft sessions need.

    Raises:
        NativeKernelError: it was not built.
    """
    module = native_module()
    if module is None:
        expected = "installed; install a C++20 compiler and reinstall rest-store"
        raise NativeKernelError(describe("draft session", "the native kernel", "missing", expected))
    return module


_warned = False


def open_kernel(views: Sequence[KernelShard], vocabulary_size: int, before: Kernel | None = None) -> Kernel:
    """Return a kernel over shards: the native one if it was built, otherwise the reference with one warning.

    Args:
        views: the shards.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        before: a kernel over shards of the same documents, or of some of them; this one uses the trees that it caches.
    """
    global _warned
    native = native_kernel()
    if kernel_name() == "native" and native is not None:
        return native(views, vocabulary_size, before if isinstance(before, native) else None)  # type: ignore[no-any-return]
    if native is None and not _warned:
        _warned = True
        warnings.warn(
            "rest-store: the native kernel was not built; queries run on the numpy reference, exact but slow. "
            "Install a C++20 compiler and reinstall to get it.",
            RuntimeWarning,
            stacklevel=5,
        )
    return ReferenceKernel(views, vocabulary_size)


def native_tree_fault() -> Callable[[bytes, int, int], int] | None:
    """Return the function that validates a packed tree; None if the kernel was not built.

    Its arguments are the packed nodes, the vocabulary size and the greatest depth. It returns 0 for a valid tree, or
    says what is wrong with the first faulty node: 1 its token, 2 its parent, 3 its depth, 4 its count.
    """
    return getattr(native_module(), "tree_fault", None)


def native_evidence_fault() -> Callable[[bytes, int, int], str | None] | None:
    """Return the function that validates the rows of `Evidence`; None if the kernel was not built.

    Its arguments are the rows, the vocabulary size and the greatest number of rows. It returns None for valid rows, or
    a description of the fault.
    """
    return getattr(native_module(), "evidence_fault", None)


def shard_view(shard: Shard) -> KernelShard:
    """Return `shard` as kernels read it, without a copy."""
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
        files=(tokens, suffixes),
    )
