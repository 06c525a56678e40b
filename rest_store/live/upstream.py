"""The live datastore that a replica follows: `Upstream`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rest_store.datastore.tokenizer import TokenizerIdentity
    from rest_store.datastore.validation import IntSequence
    from rest_store.live.added_documents import AddedDocuments
    from rest_store.live.records import Changes


class Upstream(Protocol):
    """The live datastore that a replica follows.

    It connects at the first call, and again after an error. Every method, and `tokenizer`, raises
    RestStoreError when the service refuses or cannot be reached. Thread-safe.

    Attributes:
        location: its location in the caller's words, for messages.
    """

    location: str

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """Identity of the tokenizer of its tokens."""

    def changes(self, after: int, datastore_id: str) -> Iterator[Changes]:
        """Yield the changes after number `after` as they come, without an end.

        Now and then it yields Changes without any change, as a sign of life.

        Args:
            after: number of the newest change that the replica has.
            datastore_id: id of the datastore that made it; "": none. If the upstream has another
                id, all of its changes are yielded.
        """

    def add(
        self,
        documents: Sequence[IntSequence],
        ids: Sequence[str] | None,
        *,
        namespace: str,
        group: str,
        epoch: int,
    ) -> tuple[AddedDocuments, int]:
        """Validate and add documents.

        Returns:
            Their ids, and the number of a change with which all of them are visible.
        """

    def delete(self, ids: Sequence[str], *, namespace: str) -> tuple[int, int]:
        """Delete documents.

        Returns:
            How many documents existed, and the number of a change with which they are gone.
        """

    def close(self) -> None:
        """Disconnect; `changes` ends with an error. Any thread may call it, and call it again."""
