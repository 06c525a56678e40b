"""A service as a source of drafts in generation: it never raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.evidence import Evidence
from rest_store.errors import RestStoreError
from rest_store.service.client.counters import Tally

_EMPTY = TokenTree([], [], [])


class _Drafter(Protocol):
    @property
    def tokenizer(self) -> TokenizerIdentity: ...

    def draft(self, context: IntSequence, *, max_nodes: int, max_suffix: int, max_depth: int) -> TokenTree: ...

    def draft_batch(
        self, contexts: Sequence[IntSequence], *, max_nodes: int, max_suffix: int, max_depth: int
    ) -> list[TokenTree]: ...

    def evidence(
        self, context: IntSequence, proposals: TokenTree, *, max_nodes: int, max_suffix: int, max_rows: int
    ) -> list[Evidence] | None: ...


class ServiceSource:
    """Drafts of a client where it has an answer, empty trees where it raises: generation goes on without them.

    Each such step is counted in the client's statistics: why it failed, and as one of `empty_answers`. Make one with
    `DatastoreClient.source`. Thread-safe, as the client is.
    """

    def __init__(self, client: _Drafter, tally: Tally) -> None:
        self._client = client
        self._tally = tally

    @property
    def tokenizer(self) -> TokenizerIdentity | None:
        """The tokenizer of the client's datastores; None while the service cannot be asked for it."""
        try:
            return self._client.tokenizer
        except RestStoreError:
            return None

    def draft(
        self, context: IntSequence, *, max_nodes: int = 64, max_suffix: int = 16, max_depth: int = 10
    ) -> TokenTree:
        """Return the client's draft, or an empty tree."""
        try:
            return self._client.draft(context, max_nodes=max_nodes, max_suffix=max_suffix, max_depth=max_depth)
        except RestStoreError:
            self._tally.add("empty_answers")
            return _EMPTY

    def draft_batch(
        self,
        contexts: Sequence[IntSequence],
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
    ) -> list[TokenTree]:
        """Return the client's drafts, or as many empty trees."""
        try:
            return self._client.draft_batch(contexts, max_nodes=max_nodes, max_suffix=max_suffix, max_depth=max_depth)
        except RestStoreError:
            self._tally.add("empty_answers")
            return [_EMPTY] * len(contexts)

    def evidence(
        self, context: IntSequence, proposals: TokenTree, *, max_nodes: int, max_suffix: int = 16, max_rows: int
    ) -> list[Evidence] | None:
        """Return the client's evidence, or that of no datastore; None if the service knows none."""
        try:
            return self._client.evidence(
                context, proposals, max_nodes=max_nodes, max_suffix=max_suffix, max_rows=max_rows
            )
        except RestStoreError:
            self._tally.add("empty_answers")
            return []

    def __repr__(self) -> str:
        return f"ServiceSource({self._client!r})"
