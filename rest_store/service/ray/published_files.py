"""The files that tell clients, and Prometheus, where the servers of the parts are."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rest_store.errors import ServeError
from rest_store.service.ray.placement import Replica


def write_parts(path: Path, groups: Sequence[Sequence[str]]) -> None:
    """Write the endpoints of each part to `path`, all at once: a reader sees the old file or the new one.

    Raises:
        ServeError: it cannot be written.
    """
    lines = [f"[[part]]\nendpoints = {json.dumps(list(endpoints))}\n" for endpoints in groups]
    _replace(path, "parts file", "".join(lines))


def write_metrics(path: Path, targets: Iterable[tuple[Replica, str]]) -> None:
    """Write where each server has its metrics, for `file_sd_configs` of Prometheus; otherwise as `write_parts`.

    Args:
        path: of the file.
        targets: `HOST:PORT` of the metrics of each replica.
    """
    groups = [
        {"targets": [target], "labels": {"part": str(replica.part), "replica": str(replica.number)}}
        for replica, target in targets
    ]
    _replace(path, "metrics file", json.dumps(groups, indent=1) + "\n")


def _replace(path: Path, what: str, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            beside.write_text(text, encoding="utf-8")
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise ServeError(f"{path}: the {what} cannot be written ({error.strerror})") from error
