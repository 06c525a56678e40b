"""Drafts for one generation with asyncio, over one stream that replaces itself when it breaks."""

from __future__ import annotations

import time
from typing import Any

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.evidence import Evidence
from rest_store.errors import RestStoreError
from rest_store.service.client.codec import longest
from rest_store.service.client.endpoints import Endpoint
from rest_store.service.client.requests import evidence_limits
from rest_store.service.client.stream_base import Answer, Step, StreamBase
from rest_store.service.client.stream_call import AsyncStreamCall
from rest_store.v1 import datastore_pb2 as pb


class AsyncDraftStream(StreamBase[AsyncStreamCall]):
    """`DraftStream` for asyncio. Make one with `AsyncDatastoreClient.stream`; one generation, one stream, one task."""

    async def draft(self, new_tokens: IntSequence) -> TokenTree:
        """See `DraftStream.draft`."""
        return longest((await self._ask(new_tokens)).trees)

    async def evidence(
        self,
        new_tokens: IntSequence,
        proposals: TokenTree,
        *,
        max_nodes: int,
        max_suffix: int = 16,
        max_rows: int | None = None,
    ) -> list[Evidence] | None:
        """See `DraftStream.evidence`."""
        return (await self._ask(new_tokens, proposals, evidence_limits(max_nodes, max_suffix, max_rows))).evidence

    async def evidence_after(
        self, context: IntSequence, proposals: TokenTree, *, max_nodes: int, max_suffix: int, max_rows: int
    ) -> list[Evidence] | None:
        """See `DraftStream.evidence_after`."""
        return await self.ask_evidence_after(
            context,
            proposals,
            max_nodes=max_nodes,
            max_suffix=max_suffix,
            max_rows=max_rows,
            timeout=self._timeout,
        )

    async def ask_evidence_after(
        self,
        context: IntSequence,
        proposals: TokenTree,
        *,
        max_nodes: int,
        max_suffix: int,
        max_rows: int | None,
        timeout: float,
    ) -> list[Evidence] | None:
        """Return what `evidence_after` does, within `timeout` seconds."""
        limits = evidence_limits(max_nodes, max_suffix, max_rows)
        return (await self._ask(self._new_in(context, max_suffix), proposals, limits, timeout)).evidence

    async def _ask(
        self,
        new_tokens: IntSequence,
        proposals: TokenTree | None = None,
        evidence: pb.EvidenceLimits | None = None,
        timeout: float | None = None,
    ) -> Answer:
        seconds = self._timeout if timeout is None else timeout
        ends = time.monotonic() + seconds
        if self._needs_description:
            try:
                await self._info(timeout=seconds)
            except RestStoreError:
                self._add(new_tokens, may_be_empty=evidence is not None)  # for the next step
                raise
        with self._endpoints.counters.failures:
            step, policy = self._begin(new_tokens, proposals, evidence, ends)
            return await policy.call_async(
                lambda endpoint, seconds: self._attempt(endpoint, step, time.monotonic() + seconds)
            )

    async def _attempt(self, endpoint: Endpoint[Any], step: Step, ends: float) -> Answer:
        try:
            call = self._call_at(endpoint)
            await call.send(self._message(step), ends)
            self._sent(step)
            while True:
                answer = self._read(await call.receive(ends), endpoint.target)
                if answer is not None:
                    return answer
        except RestStoreError as error:
            self._drop_after(error)
            raise

    async def close(self) -> None:
        """End the stream for good. May be called again."""
        self._closed = True
        self._drop()

    async def __aenter__(self) -> AsyncDraftStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
