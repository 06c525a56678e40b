"""Opening a datastore that may be frozen or live, and in a directory or a service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.locations import is_remote
from rest_store.datastore.store import Store
from rest_store.errors import DatastoreFormatError, DeadlineError, ServiceUnavailableError
from rest_store.live.agent_memory import as_sources
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
    """Open a frozen datastore, or a live one for reading.

    For a location, a copy of the frozen datastore or a replica of the live one is opened. A frozen
    datastore needs no package of the extra `[live]`, unless a service has it.

    Args:
        path: the directory or the location (`rest_store.datastore.locations`).
        tokenizer: as in `Datastore.open`.
        cache: the directory of copies and replicas; None: `~/.cache/rest-store`.
        token: as in `Datastore.open`.
        tls: as in `Datastore.open`.

    Raises:
        DatastoreError, TokenizerMismatchError, ServiceError: as `Datastore.open` or
            `LiveDatastore.open`.
    """
    if is_remote(path):
        return _open_location(str(path), tokenizer=tokenizer, cache=cache, token=token, tls=tls)
    if is_live(Path(path)):
        from rest_store.live.live_datastore import LiveDatastore

        return LiveDatastore.open(path, tokenizer=tokenizer, read_only=True)
    return Datastore.open(path, tokenizer=tokenizer)


def _open_location(
    location: str,
    *,
    tokenizer: object,
    cache: str | Path | None,
    token: str | None,
    tls: Tls | None,
) -> Datastore | LiveDatastore:
    is_url = "://" in location
    if is_url:  # object stores and web servers have only frozen datastores
        return Datastore.open(location, tokenizer=tokenizer, cache=cache)
    from rest_store.live.live_datastore import LiveDatastore

    try:
        return LiveDatastore.open(
            location, tokenizer=tokenizer, read_only=True, cache=cache, token=token, tls=tls
        )
    except (DatastoreFormatError, ServiceUnavailableError, DeadlineError):
        # It is frozen, or the service cannot say so. A copy may be in the cache.
        return Datastore.open(location, tokenizer=tokenizer, cache=cache, token=token, tls=tls)


def open_datastores(paths: Sequence[Path]) -> dict[str, Store]:
    """Open several datastores, and return them by the names of their folders.

    Datastores whose folders have the same name are returned by their paths. An agent's memory is
    returned as its kinds of text, such as "memory/written".

    Raises:
        TokenizerMismatchError: they were built with different tokenizers.
    """
    names = [path.resolve().name for path in paths]
    stores: dict[str, Store] = {}
    for name, path in zip(names, paths, strict=True):
        label = name if names.count(name) == 1 else str(path)
        for kind, source in as_sources(open_store(path)).items():
            stores[f"{label}/{kind}" if kind else label] = source
    opened = list(stores.values())
    for store in opened[1:]:
        opened[0].tokenizer.require_same(store.tokenizer, store.path)
    return stores
