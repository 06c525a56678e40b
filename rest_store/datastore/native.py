"""The compiled module, which may be missing."""

from __future__ import annotations

from typing import Any


def native_module() -> Any:
    """Return the compiled module, or None if it was not built."""
    try:
        from rest_store import _kernel
    except ImportError:
        return None
    return _kernel
