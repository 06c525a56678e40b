"""The client of a datastore that is served in parts: all parts are asked at once, and answer as one datastore."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import Contexts, IntSequence, batch, limits
from rest_store.drafting.evidence import Evidence
from rest_store.drafting.remote import SessionSettings
from rest_store.service.client.answers import ServiceInfo
from rest_store.service.client.client import DatastoreClient
from rest_store.service.client.client_base import WRITE_SECONDS
from rest_store.service.client.merged_drafts import Answers, Round, merged_drafts
from rest_store.service.client.part_groups import Targets
from rest_store.service.client.parts_base import PartsBase, all_give_evidence, ask_together, sum_of_matches
from rest_store.service.client.parts_stream import PartsStream
from rest_store.service.client.requests import Request, Requests
from rest_store.service.client.stream import DraftStream

T = TypeVar("T")


class PartsClient(PartsBase[DatastoreClient], DatastoreClient):
    """A `DatastoreClient` of several parts. `DatastoreClient` makes one if its `targets` are parts; see there.

    Args:
        targets: a parts file, or for each part a list of the endpoints of its replicas.
        options: as `DatastoreClient`, for the client of each part.
    """

    def __init__(self, targets: Targets, **options: Any) -> None:
        PartsBase.__init__(self, targets, DatastoreClient, options)

    @property
    def vocabulary_size(self) -> int:
        """Greatest token id + 1; asks the parts if it is not known yet."""
        return self.tokenizer.vocabulary_size

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """The tokenizer of the datastores asked, as `DatastoreClient.tokenizer`."""
        for place in self._assembly.usable:
            if (tokenizer := self._codecs[place].tokenizer) is not None:
                return tokenizer
        return self.info().tokenizer

    def connect(self, timeout: float = 10.0) -> ServiceInfo:
        """Connect to all parts, as `DatastoreClient.connect`.

        Raises:
            TokenizerMismatchError, PartError: they do not belong together; says what differs.
            ServiceError: no part has answered.
        """
        return self.info(timeout=timeout)

    def info(self, *, timeout: float | None = None) -> ServiceInfo:
        """Ask all parts what they are; `ServiceInfo.parts` says which are away. Raises as `connect`."""
        ends = self._ends(timeout)
        with self._counters.failures:
            self.require_answers(self._describe(range(len(self._parts)), ends))
            self._require_usable()
            return self._assembly.info()

    def longest_suffix_match(
        self, context: IntSequence, *, max_suffix: int = 16, timeout: float | None = None
    ) -> SuffixMatch:
        """See `DatastoreClient.longest_suffix_match`: the longest of all parts, with the sum of its occurrences."""
        answers = self._ask_all(lambda part: part.matches(context, max_suffix), timeout)
        return sum_of_matches(answers)

    def count(self, tokens: IntSequence, *, timeout: float | None = None) -> int:
        """See `DatastoreClient.count`: the sum over all parts."""
        return sum(self._ask_all(lambda part: part.count(tokens), timeout))

    def draft(
        self,
        context: IntSequence,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        timeout: float | None = None,
    ) -> TokenTree:
        """See `DatastoreClient.draft`: the tree of the whole datastore, in two rounds of requests as a rule."""
        return self._draft([context], ["context"], limits(max_nodes, max_suffix, max_depth), timeout)[0]

    def draft_batch(
        self,
        contexts: Contexts,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        timeout: float | None = None,
    ) -> list[TokenTree]:
        """See `DatastoreClient.draft_batch`; all contexts share the rounds."""
        bounds, rows = limits(max_nodes, max_suffix, max_depth), batch(contexts)
        labels = [f"context {place}" for place in range(len(rows))]
        return self._draft(rows, labels, bounds, timeout) if rows else []

    def _draft(
        self,
        contexts: Sequence[IntSequence],
        labels: Sequence[str],
        bounds: tuple[int, int, int],
        timeout: float | None,
    ) -> list[TokenTree]:
        ends = self._ends(timeout)
        with self._counters.failures:
            rounds = merged_drafts(self.usable(ends), contexts, labels, bounds)
            return self._require_drafts(self._run(rounds, ends))

    def _run(self, rounds: Generator[Round, Answers, T], ends: float) -> T:
        """Ask one round after the other; return the result of `rounds`."""
        answers: Answers | None = None
        try:
            while True:
                wanted = next(rounds) if answers is None else rounds.send(answers)
                answers = self._round(wanted, self._end_of_round(ends))
        except StopIteration as done:
            result: T = done.value
            return result

    def evidence(
        self,
        context: IntSequence,
        proposals: TokenTree,
        *,
        max_nodes: int,
        max_suffix: int = 16,
        max_rows: int | None = None,
        timeout: float | None = None,
    ) -> list[Evidence] | None:
        """See `DatastoreClient.evidence`: that of each part, which a session adds up."""
        with self._counters.failures:
            if not all_give_evidence(self.usable(self._ends(timeout))):
                return None
        answers = self._ask_all(
            lambda part: part.evidence(context, proposals, max_nodes, max_suffix, max_rows), timeout
        )
        return self.of_parts(answers)

    def stream(
        self, *, max_nodes: int = 64, max_suffix: int = 16, max_depth: int = 10, timeout: float | None = None
    ) -> PartsStream:
        """See `DatastoreClient.stream`: one stream to each part for evidence; `draft` asks without a stream."""
        bounds = limits(max_nodes, max_suffix, max_depth)
        return PartsStream(self, bounds, self._seconds(timeout))

    def session(self, settings: SessionSettings) -> None:
        """Return None: no part has all that a session needs, so sessions are merged in the client."""

    def add(
        self,
        documents: Sequence[IntSequence],
        ids: Sequence[str] | None = None,
        *,
        datastore: str | None = None,
        timeout: float = WRITE_SECONDS,
    ) -> NoReturn:
        """Raise LiveFormatError: a datastore that is served in parts is frozen."""
        raise self.frozen()

    def delete(self, ids: Sequence[str], *, datastore: str | None = None, timeout: float = WRITE_SECONDS) -> NoReturn:
        """Raise LiveFormatError, as `add`."""
        raise self.frozen()

    def usable(self, ends: float) -> Mapping[int, Requests]:
        """Return the requests of the parts that can be asked, at least one; parts are described first."""
        if places := self._assembly.undescribed:
            self._describe(places, self._end_of_round(ends))
        return self._require_usable()

    def _describe(self, places: Sequence[int], ends: float) -> Answers:
        """Ask parts for their descriptions, and verify that they belong together; return the answers by place."""
        answers = self._round({place: [self._requests_of[place].describe] for place in places}, ends)
        self._assembly.learn({place: infos[0] for place, infos in answers.items()})
        return answers

    def _ask_all(self, request: Callable[[Any], Request[T]], timeout: float | None) -> list[T]:
        """Ask every part at once, and count the call; return the answers, at least one."""
        ends = self._ends(timeout)
        with self._counters.failures:
            usable = self.usable(ends)
            answers = self._round({place: [request(requests)] for place, requests in usable.items()}, ends)
            return [answered[0] for answered in self.require_answers(answers)]

    def _round(self, wanted: Round, ends: float) -> Answers:
        """Send all requests of a round at once, and wait until `ends` for the answers; return them by place.

        Raises:
            QueryError, TreeError: a request is invalid.
        """
        answers, failures = ask_together(
            {place: functools.partial(self._start_all, place, requests, ends) for place, requests in wanted.items()}
        )
        self._note(answers, failures)
        return answers

    def _start_all(self, place: int, requests: Sequence[Request[Any]], ends: float) -> Callable[[], list[Any]]:
        """Begin all requests to one part; return what waits for the answers."""
        waiting = [self._parts[place]._start(request, self._left(ends)) for request in requests]
        return lambda: [finish() for finish in waiting]

    def ask_streams(
        self, start: Callable[[DraftStream, float], Callable[[], T]], streams: dict[int, DraftStream], timeout: float
    ) -> list[T]:
        """Ask every part over a stream of its own, made when it is first used; return the answers, as `_ask_all`."""
        ends = self._ends(timeout)
        with self._counters.failures:
            for place in (usable := self.usable(ends)):
                if place not in streams:
                    streams[place] = self._parts[place].stream(timeout=timeout)
            left = self._left(ends)
            answers, failures = ask_together(
                {place: functools.partial(start, streams[place], left) for place in usable}
            )
            self._note(answers, failures)
            return self.require_answers(answers)

    def close(self) -> None:
        """Close the connections to all parts, as `DatastoreClient.close`."""
        for call in tuple(self._before_close):
            call(self)
        for part in self._parts:
            part.close()
