"""Datastores for measuring, opened by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rest_store.datastore.datastore import Datastore
from rest_store.live.opening import open_store

if TYPE_CHECKING:
    from rest_store.live.live_datastore import LiveDatastore


def open_datastores(paths: Sequence[Path]) -> dict[str, Datastore | LiveDatastore]:
    """Return datastores, frozen or live, by the names of their folders; by their paths where several have one name.

    Raises:
        TokenizerMismatchError: they were built with different tokenizers.
    """
    names = [path.resolve().name for path in paths]
    stores = {
        name if names.count(name) == 1 else str(path): open_store(path) for name, path in zip(names, paths, strict=True)
    }
    opened = list(stores.values())
    for store in opened[1:]:
        opened[0].tokenizer.require_same(store.tokenizer, store.path)
    return stores
