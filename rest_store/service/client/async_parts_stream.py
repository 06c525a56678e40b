"""Drafts for one generation from a datastore in parts, with asyncio: a stream to each part."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.evidence import Evidence
from rest_store.service.client.async_stream import AsyncDraftStream
from rest_store.service.client.codec import TreeLimits
from rest_store.service.client.parts_stream import GenerationText, rows_of_part

if TYPE_CHECKING:
    from rest_store.service.client.async_parts_client import AsyncPartsClient


class AsyncPartsStream(AsyncDraftStream):
    """`PartsStream` for asyncio; one generation, one stream, one task."""

    def __init__(self, client: AsyncPartsClient, bounds: TreeLimits, timeout: float) -> None:
        self._client = client
        self._bounds = bounds
        self._timeout = timeout
        self._text = GenerationText()
        self._streams: dict[int, AsyncDraftStream] = {}

    async def draft(self, new_tokens: IntSequence) -> TokenTree:
        """See `PartsStream.draft`."""
        nodes, suffix, depth = self._bounds
        with self._text.taking(new_tokens) as context:
            return await self._client.draft(
                context, max_nodes=nodes, max_suffix=suffix, max_depth=depth, timeout=self._timeout
            )

    async def evidence(
        self,
        new_tokens: IntSequence,
        proposals: TokenTree,
        *,
        max_nodes: int,
        max_suffix: int = 16,
        max_rows: int | None = None,
    ) -> list[Evidence] | None:
        """See `PartsStream.evidence`."""
        with self._text.taking(new_tokens) as context:
            return await self._ask_parts(context, proposals, max_nodes, max_suffix, max_rows)

    async def evidence_after(
        self, context: IntSequence, proposals: TokenTree, *, max_nodes: int, max_suffix: int, max_rows: int
    ) -> list[Evidence] | None:
        """See `PartsStream.evidence_after`."""
        self._text.require_open()
        return await self._ask_parts(context, proposals, max_nodes, max_suffix, rows_of_part(max_rows))

    async def _ask_parts(
        self, context: IntSequence, proposals: TokenTree, max_nodes: int, max_suffix: int, max_rows: int | None
    ) -> list[Evidence] | None:
        def ask(stream: AsyncDraftStream, timeout: float) -> Awaitable[list[Evidence] | None]:
            return stream.ask_evidence_after(
                context,
                proposals,
                max_nodes=max_nodes,
                max_suffix=max_suffix,
                max_rows=max_rows,
                timeout=timeout,
            )

        return self._client.of_parts(await self._client.ask_streams(ask, self._streams, self._timeout))

    async def close(self) -> None:
        """See `PartsStream.close`."""
        self._text.closed = True
        for stream in self._streams.values():
            await stream.close()
