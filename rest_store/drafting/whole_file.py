"""Files that are written whole or not at all, and what compressed ones hold."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path`, which holds the old file or the whole new one; raises OSError if it cannot."""
    if not path.name:  # such as "." or "/"
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    # Unique, since threads may write at the same time; without the name of `path`, which may be as long as can be.
    temporary = path.with_name(f".{uuid4().hex}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def decompressed(packed: bytes, most: int) -> bytes:
    """Return what `zlib.compress` made `packed` of.

    Args:
        packed: what was compressed.
        most: bytes that it may take: a small file can hold a thousand times its size.

    Raises:
        zlib.error: `packed` is damaged or incomplete, or takes more than `most` bytes.
    """
    inflate = zlib.decompressobj()
    content = inflate.decompress(packed, most + 1)
    if len(content) > most or not inflate.eof:
        raise zlib.error(f"more than {most} bytes" if len(content) > most else "incomplete")
    return content
