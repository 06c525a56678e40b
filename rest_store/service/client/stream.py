"""Drafts for one generation, over one stream that replaces itself when it breaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.evidence import Evidence, rows_for
from rest_store.errors import RestStoreError, ServiceError
from rest_store.service.client.codec import Step
from rest_store.service.client.endpoints import Endpoint
from rest_store.service.client.requests import evidence_limits
from rest_store.service.client.stream_base import StreamBase, longest_of, trees_of
from rest_store.service.client.stream_call import StreamCall
from rest_store.service.client.stream_state import Answer
from rest_store.v1 import datastore_pb2 as pb


class DraftStream(StreamBase[StreamCall, Callable[..., object]]):
    """Drafts for one generation: after the first step only new tokens travel. Make one with `DatastoreClient.stream`.

    Opened by the first step. When the service goes away, the next attempt opens another stream, there or at another
    endpoint, with the last 64 tokens. An answer that comes after its deadline is skipped when it comes.

    Not thread-safe: one generation, one stream, one thread at a time.
    """

    def draft(self, new_tokens: IntSequence) -> TokenTree:
        """Return the draft tree after the tokens so far; of several datastores that of the longest match.

        Args:
            new_tokens: 1-D integers: at first the context, oldest first (its last 64 are read), then what has come
                since the last step; may be empty then.

        Raises:
            QueryError: as `Datastore.draft`.
            ServiceError: no answer; the subclass says why. The tokens are kept: the next step sends them.
        """
        return longest_of(self._ask(new_tokens, None))

    def draft_each(self, new_tokens: IntSequence) -> dict[str, TokenTree]:
        """Return the tree of each datastore, by name; otherwise as `draft`."""
        return trees_of(self._ask(new_tokens, None))

    def draft_with(self, new_tokens: IntSequence, proposals: TokenTree) -> dict[str, list[TokenTree]]:
        """Return what each datastore drafts after the tokens so far, and after each of `proposals`.

        Args:
            new_tokens: as `draft`.
            proposals: continuations to be continued in their turn.

        Returns:
            By name of datastore: the tree of the context, then for each node of `proposals` the tree of the context
            followed by the path to the node.

        Raises:
            TreeError: `proposals` is no draft tree; `new_tokens` were not taken, as with any QueryError.
            RestStoreError: as `draft`.
        """
        return self._ask(new_tokens, proposals).trees

    def evidence(
        self,
        new_tokens: IntSequence,
        proposals: TokenTree,
        *,
        max_nodes: int,
        max_suffix: int = 16,
        max_rows: int | None = None,
    ) -> list[Evidence] | None:
        """Return what each datastore knows along the paths that a session's tree may take; see `DatastoreClient`.

        Args:
            new_tokens: as `draft`.
            proposals: the tree that the session's other sources would draft, with scores.
            max_nodes: of the session's tree, 1..1024.
            max_suffix: longest suffix of the text tried, in tokens, 1..64.
            max_rows: most paths, 1..1024; None: 8 more than nodes.

        Returns:
            None if the service knows no evidence; `new_tokens` were taken all the same.

        Raises:
            LimitError: a limit is out of range; `new_tokens` were not taken.
            RestStoreError: as `draft_with`.
        """
        asked = evidence_limits(max_nodes, max_suffix, rows_for(max_nodes) if max_rows is None else max_rows)
        return self._ask(new_tokens, proposals, asked).evidence

    def _ask(
        self, new_tokens: IntSequence, proposals: TokenTree | None, evidence: pb.EvidenceLimits | None = None
    ) -> Answer:
        ends = time.monotonic() + self._timeout
        if self._needs_description:
            try:
                self._learn(timeout=self._timeout)
            except ServiceError:
                self._conversation.add(new_tokens)  # for the next step
                raise
        try:
            step, pursuit = self._begin(new_tokens, proposals, evidence, ends)
            while True:
                seconds = pursuit.allowance()
                try:
                    answer = self._attempt(pursuit.endpoint, step, time.monotonic() + seconds)
                except RestStoreError as error:
                    wait = self._failed(pursuit, error)
                    if wait:
                        time.sleep(wait)
                else:
                    pursuit.succeeded()
                    return answer
        except RestStoreError as error:
            self._endpoints.tally.failed(error)
            raise

    def _attempt(self, endpoint: Endpoint[Any], step: Step, ends: float) -> Answer:
        call = self._call_at(endpoint)
        call.send(self._conversation.request(step))
        self._conversation.sent(step)
        while True:
            answer = self._read(call.receive(ends), endpoint.target)
            if answer is not None:
                return answer

    def _end(self, call: StreamCall) -> None:
        call.close()

    def close(self) -> None:
        """End the stream for good. May be called again."""
        self._closed = True
        self._drop()

    def __enter__(self) -> DraftStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
