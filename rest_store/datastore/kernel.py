"""The compiled kernel, and the limits of what it may be asked."""

from __future__ import annotations

from typing import Any, Protocol

from rest_store.errors import NativeKernelError, describe

MAX_SUFFIX = 64
MAX_DEPTH = 32
MAX_NODES = 1024
MAX_SEQUENCE = MAX_SUFFIX + MAX_DEPTH  # tokens that are counted: a match and a continuation of it

PackedTree = tuple[bytes, tuple[int, int]]  # the packed nodes (see TokenTree), and length and count of the match


class Kernel(Protocol):
    """Exact queries over shards: `NativeKernel`. A suffix is the end of a context: 1 to 64 tokens of the vocabulary.

    Methods raise ValueError for a number of tokens, a token or a limit out of range; `Datastore` checks them before and
    words the errors. They raise DatastoreUnavailableError if a page of the files could not be read. Thread-safe;
    releases the GIL.
    """

    def longest_suffix_match(self, suffix: list[int], /) -> tuple[int, int]:
        """Return (match length, count)."""

    def count(self, tokens: list[int], /) -> int:
        """Return the occurrences of `tokens`, 1 to 96 of them."""

    def draft(self, suffix: list[int], max_nodes: int, max_depth: int, /) -> PackedTree:
        """Return the draft tree of a context that ends with `suffix`."""

    def require_readable(self) -> None:
        """Raise DatastoreUnavailableError if a page of the files could not be read."""


def native_kernel() -> Any:
    """Return the compiled module, `rest_store._kernel`.

    Raises:
        NativeKernelError: it cannot be imported.
    """
    try:
        from rest_store import _kernel
    except ImportError as error:
        found = f"missing ({error})"
        expected = "installed: install a wheel of rest-store, or a C++20 compiler, and install rest-store again"
        raise NativeKernelError(describe("rest-store", "the compiled kernel", found, expected)) from None
    return _kernel
