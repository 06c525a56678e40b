"""The client of a datastore that is served in parts, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import Contexts, IntSequence, batch, limits
from rest_store.drafting.evidence import Evidence
from rest_store.errors import RestStoreError
from rest_store.service.client.answers import ServiceInfo
from rest_store.service.client.async_client import AsyncDatastoreClient
from rest_store.service.client.async_parts_stream import AsyncPartsStream
from rest_store.service.client.async_stream import AsyncDraftStream
from rest_store.service.client.client_base import WRITE_SECONDS
from rest_store.service.client.codec import TreeLimits
from rest_store.service.client.merged_drafts import Answers, Round, merged_drafts
from rest_store.service.client.part_groups import Targets
from rest_store.service.client.parts_base import OF_CALLER, PartsBase, all_give_evidence, sum_of_matches
from rest_store.service.client.requests import Request, Requests

T = TypeVar("T")


class AsyncPartsClient(PartsBase[AsyncDatastoreClient], AsyncDatastoreClient):
    """`PartsClient` for asyncio: the same methods, answers, errors and counters."""

    def __init__(self, targets: Targets, **options: Any) -> None:
        PartsBase.__init__(self, targets, AsyncDatastoreClient, options)

    async def connect(self, timeout: float = 10.0) -> ServiceInfo:
        """See `PartsClient.connect`."""
        return await self.info(timeout=timeout)

    async def info(self, *, timeout: float | None = None) -> ServiceInfo:
        """See `PartsClient.info`."""
        ends = self._ends(timeout)
        with self._counters.failures:
            self.require_answers(await self._describe(range(len(self._parts)), ends))
            self._require_usable()
            return self._assembly.info()

    async def longest_suffix_match(
        self, context: IntSequence, *, max_suffix: int = 16, timeout: float | None = None
    ) -> SuffixMatch:
        """See `PartsClient.longest_suffix_match`."""
        return sum_of_matches(await self._ask_all(lambda part: part.matches(context, max_suffix), timeout))

    async def count(self, tokens: IntSequence, *, timeout: float | None = None) -> int:
        """See `PartsClient.count`."""
        return sum(await self._ask_all(lambda part: part.count(tokens), timeout))

    async def draft(
        self,
        context: IntSequence,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        timeout: float | None = None,
    ) -> TokenTree:
        """See `PartsClient.draft`."""
        return (await self._draft([context], ["context"], limits(max_nodes, max_suffix, max_depth), timeout))[0]

    async def draft_batch(
        self,
        contexts: Contexts,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        timeout: float | None = None,
    ) -> list[TokenTree]:
        """See `PartsClient.draft_batch`."""
        bounds, rows = limits(max_nodes, max_suffix, max_depth), batch(contexts)
        labels = [f"context {place}" for place in range(len(rows))]
        return await self._draft(rows, labels, bounds, timeout) if rows else []

    async def _draft(
        self, contexts: Sequence[IntSequence], labels: Sequence[str], bounds: TreeLimits, timeout: float | None
    ) -> list[TokenTree]:
        ends = self._ends(timeout)
        with self._counters.failures:
            rounds = merged_drafts(await self._usable(ends), contexts, labels, bounds)
            return self._require_drafts(await self._run(rounds, ends))

    async def _run(self, rounds: Generator[Round, Answers, T], ends: float) -> T:
        answers: Answers | None = None
        try:
            while True:
                wanted = next(rounds) if answers is None else rounds.send(answers)
                answers = await self._round(wanted, self._end_of_round(ends))
        except StopIteration as done:
            result: T = done.value
            return result

    async def evidence(
        self,
        context: IntSequence,
        proposals: TokenTree,
        *,
        max_nodes: int,
        max_suffix: int = 16,
        max_rows: int | None = None,
        timeout: float | None = None,
    ) -> list[Evidence] | None:
        """See `PartsClient.evidence`."""
        with self._counters.failures:
            if not all_give_evidence(await self._usable(self._ends(timeout))):
                return None
        return self.of_parts(
            await self._ask_all(
                lambda part: part.evidence(context, proposals, max_nodes, max_suffix, max_rows), timeout
            )
        )

    def stream(
        self, *, max_nodes: int = 64, max_suffix: int = 16, max_depth: int = 10, timeout: float | None = None
    ) -> AsyncPartsStream:
        """See `PartsClient.stream`."""
        return AsyncPartsStream(self, limits(max_nodes, max_suffix, max_depth), self._seconds(timeout))

    async def add(
        self,
        documents: Sequence[IntSequence],
        ids: Sequence[str] | None = None,
        *,
        datastore: str | None = None,
        timeout: float = WRITE_SECONDS,
    ) -> NoReturn:
        """See `PartsClient.add`."""
        raise self.frozen()

    async def delete(
        self, ids: Sequence[str], *, datastore: str | None = None, timeout: float = WRITE_SECONDS
    ) -> NoReturn:
        """See `PartsClient.delete`."""
        raise self.frozen()

    async def _usable(self, ends: float) -> Mapping[int, Requests]:
        if places := self._assembly.undescribed:
            await self._describe(places, self._end_of_round(ends))
        return self._require_usable()

    async def _describe(self, places: Sequence[int], ends: float) -> Answers:
        answers = await self._round({place: [self._requests_of[place].describe] for place in places}, ends)
        self._assembly.learn({place: infos[0] for place, infos in answers.items()})
        return answers

    async def _ask_all(self, request: Callable[[Requests], Request[T]], timeout: float | None) -> list[T]:
        ends = self._ends(timeout)
        with self._counters.failures:
            usable = await self._usable(ends)
            answers = await self._round({place: [request(requests)] for place, requests in usable.items()}, ends)
            return [answered[0] for answered in self.require_answers(answers)]

    async def _round(self, wanted: Round, ends: float) -> Answers:
        """See `PartsClient._round`."""

        async def ask(place: int, requests: Sequence[Request[Any]]) -> list[Any]:
            part = self._parts[place]
            return await asyncio.gather(*(part._ask(request, self._left(ends)) for request in requests))

        return await self._together({place: ask(place, requests) for place, requests in wanted.items()})

    async def ask_streams(
        self,
        ask: Callable[[AsyncDraftStream, float], Awaitable[T]],
        streams: dict[int, AsyncDraftStream],
        timeout: float,
    ) -> list[T]:
        """See `PartsClient.ask_streams`."""
        ends = self._ends(timeout)
        with self._counters.failures:
            usable = await self._usable(ends)
            for place in usable:
                if place not in streams:
                    streams[place] = self._parts[place].stream(timeout=timeout)
            left = self._left(ends)
            return self.require_answers(await self._together({place: ask(streams[place], left) for place in usable}))

    async def _together(self, calls: Mapping[int, Awaitable[T]]) -> dict[int, T]:
        """Wait for all calls, by place; return the answers, and note which parts have none."""
        outcomes = await asyncio.gather(*calls.values(), return_exceptions=True)
        answers: dict[int, T] = {}
        failures: dict[int, RestStoreError] = {}
        for place, outcome in zip(calls, outcomes, strict=True):
            if isinstance(outcome, RestStoreError) and not isinstance(outcome, OF_CALLER):
                failures[place] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                answers[place] = outcome
        self._note(answers, failures)
        return answers

    async def close(self) -> None:
        """See `DatastoreClient.close`."""
        for part in self._parts:
            await part.close()
