"""Files that are on the disk before others see them."""

from __future__ import annotations

import os
from pathlib import Path


def publish(part: Path, path: Path) -> None:
    """Sync a complete file, or the names in a complete directory, to disk, and rename it."""
    sync(part)
    part.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Have the disk write what a file has, or the names that a directory has."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
