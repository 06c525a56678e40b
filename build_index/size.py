"""Sizes in bytes, as people write them."""

from __future__ import annotations

import math
import re

from rest_store.errors import MemoryBudgetError, describe

MIB = 1 << 20
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of a size such as `8G`, `512M`, `1.5GiB` or `1000`.

    K, M, G and T are powers of 1,024.

    Raises:
        MemoryBudgetError: the text is not a size, or the size is zero.
    """
    match = _SIZE.fullmatch(text.strip())
    size = 0 if match is None else float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")
    if not 1 <= size < math.inf:
        raise MemoryBudgetError(
            describe("--memory", "size", f"'{text}'", "a size such as 8G or 512M")
        )
    return int(size)


def size_text(size: float) -> str:
    """Return a size in bytes for people: `"1.5 GiB"`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
