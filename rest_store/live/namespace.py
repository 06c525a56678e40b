"""One namespace of a live datastore: documents of one tenant or task, which no query of another reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.datastore.store import Snapshot, Store
from rest_store.datastore.validation import IntSequence, label

if TYPE_CHECKING:
    from rest_store.live.added import AddedDocuments
    from rest_store.live.live_datastore import LiveDatastore


class StoredDocument(NamedTuple):
    """A document of a live datastore.

    Attributes:
        tokens: int[n].
        group: what it belongs to, such as the prompt that it answers; "": nothing.
        epoch: of the model that wrote it.
        added: seconds since 1970.
    """

    tokens: npt.NDArray[np.unsignedinteger]
    group: str
    epoch: int
    added: float


class Namespace(Store):
    """The documents of one namespace: a store for queries and sessions, and a target of `remember`. Thread-safe.

    `LiveDatastore` deletes and limits them, with `namespace=`.

    Attributes:
        name: of the namespace.
        live: the datastore that it is a part of.
    """

    is_live: ClassVar[bool] = True

    def __init__(self, live: LiveDatastore, name: str) -> None:
        self.name = label("live datastore", "a namespace", name)
        self.path, self.tokenizer = live.path, live.tokenizer
        self.live = live

    @property
    def snapshot(self) -> Snapshot:
        """The segments that queries read from now on."""
        return self.live.snapshot_of(self.name)

    def documents(self, *, group: str | None = None, latest: int | None = None) -> Iterator[StoredDocument]:
        """Yield the documents of this namespace, as `LiveDatastore.documents`."""
        return self.live.documents(namespace=self.name, group=group, latest=latest)

    def close(self) -> None:
        """Do nothing: the datastore stays open for its other namespaces."""

    def add(
        self,
        documents: Sequence[IntSequence | str],
        ids: Sequence[str] | None = None,
        *,
        group: str = "",
        epoch: int = 0,
    ) -> AddedDocuments:
        """Add documents to this namespace; as `LiveDatastore.add`."""
        return self.live.add(documents, ids, namespace=self.name, group=group, epoch=epoch)
