"""Files that are on the disk before other processes see them."""

from __future__ import annotations

import os
from pathlib import Path


def publish(temporary: Path, path: Path) -> None:
    """Write a complete file, or the names in a complete directory, to disk, and rename it."""
    sync(temporary)
    temporary.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Write the content of a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
