"""Opening datastores of either kind, frozen or live, here or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.locations import is_remote
from rest_store.errors import DatastoreFormatError, DeadlineError, ServiceUnavailableError
from rest_store.live.directory import is_live

if TYPE_CHECKING:
    from rest_store.live.live_datastore import LiveDatastore
    from rest_store.service.channel import Tls


def open_store(
    path: str | Path,
    *,
    tokenizer: object = None,
    cache: str | Path | None = None,
    token: str | None = None,
    tls: Tls | None = None,
) -> Datastore | LiveDatastore:
    """Open the datastore at `path`: a frozen one, or a live one for reading.

    From elsewhere a copy, or a replica.

    A frozen one needs none of the packages of the extra `[live]`, unless a service has it.

    Args:
        path: its directory, or its location (`rest_store.datastore.locations`).
        tokenizer: as in `Datastore.open`.
        cache: where copies and replicas are kept; None: `~/.cache/rest-store`.
        token: as in `Datastore.open`.
        tls: likewise.

    Raises:
        DatastoreError, TokenizerMismatchError, ServiceError: as `Datastore.open` or
            `LiveDatastore.open`.
    """
    is_elsewhere = is_remote(path)
    if "://" in str(path) if is_elsewhere else not is_live(Path(path)):
        return Datastore.open(path, tokenizer=tokenizer, cache=cache)
    from rest_store.live.live_datastore import LiveDatastore

    if not is_elsewhere:
        return LiveDatastore.open(path, tokenizer=tokenizer, read_only=True)
    try:
        return LiveDatastore.open(
            path, tokenizer=tokenizer, read_only=True, cache=cache, token=token, tls=tls
        )
    # It is frozen, or the service cannot say so.
    except (DatastoreFormatError, ServiceUnavailableError, DeadlineError):
        return Datastore.open(path, tokenizer=tokenizer, cache=cache, token=token, tls=tls)


def open_datastores(paths: Sequence[Path]) -> dict[str, Datastore | LiveDatastore]:
    """Return datastores, frozen or live, by the names of their folders.

    By their paths where several have one name.

    Raises:
        TokenizerMismatchError: they were built with different tokenizers.
    """
    names = [path.resolve().name for path in paths]
    stores = {
        name if names.count(name) == 1 else str(path): open_store(path)
        for name, path in zip(names, paths, strict=True)
    }
    opened = list(stores.values())
    for store in opened[1:]:
        opened[0].tokenizer.require_same(store.tokenizer, store.path)
    return stores
