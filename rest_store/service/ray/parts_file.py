"""The file that tells clients where the parts of a datastore are served."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from rest_store.errors import ServeError


def write_parts(path: Path, groups: Sequence[Sequence[str]]) -> None:
    """Write the endpoints of each part to `path`, all at once: a reader sees the old file or the new one.

    Raises:
        ServeError: it cannot be written.
    """
    lines = [f"[[part]]\nendpoints = {json.dumps(list(endpoints))}\n" for endpoints in groups]
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            beside.write_text("".join(lines), encoding="utf-8")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise ServeError(f"{path}: the parts file cannot be written ({error.strerror})") from error
