"""The kinds of text in an agent's memory, which `rest-store remember` writes.

Each is a namespace of a live datastore, and so a source of its own.
"""

from __future__ import annotations

from build_index.documents import READ, WRITTEN
from rest_store.datastore.store import Store
from rest_store.live.namespace import Namespace

RECORD_NAME = "remembered.sqlite"  # the file in its directory that names the files it holds
FILES = "files"
HISTORY = "history"
NAMESPACES = (WRITTEN, READ, FILES, HISTORY)
# Texts that a model read are no source: beside its answers they cost 0.6 to 0.9% of M.
_SOURCES = (WRITTEN, FILES, HISTORY)


def as_sources(store: Store) -> dict[str, Store]:
    """Return a datastore as the sources of a session.

    Args:
        store: an opened datastore.

    Returns:
        By the names of namespaces: those of an agent's memory that hold text now, except for
        `read`, and the default one, "", if it holds text or may be written to. Any other datastore
        is one source.
    """
    if not isinstance(store, Namespace) or not (store.path / RECORD_NAME).is_file():
        return {"": store}
    kinds = {name: Namespace(store.backend, name) for name in _SOURCES}
    sources: dict[str, Store] = {name: kind for name, kind in kinds.items() if kind.token_count}
    if store.token_count or not store.backend.read_only or not sources:
        sources[""] = store
    return sources
