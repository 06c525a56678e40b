"""Datastores for measuring, opened by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rest_store.datastore.datastore import Datastore
from rest_store.errors import RecordingError, describe
from rest_store.live.opening import open_store

if TYPE_CHECKING:
    from rest_store.live.live_datastore import LiveDatastore


def open_datastores(paths: Sequence[Path]) -> dict[str, Datastore | LiveDatastore]:
    """Return datastores, frozen or live, by the names of their folders; by their paths where several have one name.

    Raises:
        RecordingError: a datastore is named twice.
        TokenizerMismatchError: they were built with different tokenizers.
    """
    resolved = [path.resolve() for path in paths]
    for path in paths:
        if resolved.count(path.resolve()) > 1:
            raise RecordingError(describe("--datastore", "datastore", f"{path} twice", "each one once"))
    names = [path.name for path in resolved]
    stores = {
        name if names.count(name) == 1 else str(path): open_store(path) for name, path in zip(names, paths, strict=True)
    }
    opened = list(stores.values())
    for store in opened[1:]:
        opened[0].tokenizer.require_same(store.tokenizer, store.path)
    return stores
