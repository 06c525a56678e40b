"""Opening a datastore of either kind, frozen or live."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rest_store.datastore.datastore import Datastore
from rest_store.live.directory import is_live

if TYPE_CHECKING:
    from rest_store.live.live_datastore import LiveDatastore


def open_store(path: str | Path, *, tokenizer: object = None) -> Datastore | LiveDatastore:
    """Open the datastore in directory `path`: a frozen one, or a live one for reading.

    A frozen one needs none of the packages of the extra `[live]`.

    Args:
        path: its directory.
        tokenizer: as in `Datastore.open`.

    Raises:
        DatastoreError, TokenizerMismatchError: as `Datastore.open` or `LiveDatastore.open`.
    """
    if not is_live(Path(path)):
        return Datastore.open(path, tokenizer=tokenizer)
    from rest_store.live.live_datastore import LiveDatastore

    return LiveDatastore.open(path, tokenizer=tokenizer, read_only=True)
