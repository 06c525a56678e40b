"""The compiled kernel, and the limits of its queries."""

from __future__ import annotations

from typing import Any

from rest_store.errors import NativeKernelError, describe

MAX_SUFFIX = 64
MAX_DEPTH = 32
MAX_NODES = 1024
MAX_SEQUENCE = MAX_SUFFIX + MAX_DEPTH  # tokens of a match and its continuation

# The columns of a tree (`TokenTree.packed`), and length and count of its match.
MatchColumns = tuple[bytes, tuple[int, int]]


def native_kernel() -> Any:
    """Return the compiled module, `rest_store._kernel`.

    Raises:
        NativeKernelError: it cannot be imported.
    """
    try:
        from rest_store import _kernel
    except ImportError as error:
        actual = f"missing ({error})"
        expected = (
            "installed: install a wheel of rest-store, or a C++20 compiler, and install rest-store"
            " again"
        )
        raise NativeKernelError(
            describe("rest-store", "the native kernel", actual, expected)
        ) from None
    return _kernel
