"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path`, which holds the old file or the whole new one; raises OSError if it cannot."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")  # threads may write at the same time, too
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
