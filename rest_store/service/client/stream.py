"""Drafts for one generation, over one stream that replaces itself when it breaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.evidence import Evidence
from rest_store.errors import RestStoreError
from rest_store.service.client.codec import longest
from rest_store.service.client.endpoints import Endpoint
from rest_store.service.client.requests import evidence_limits
from rest_store.service.client.stream_base import Answer, Step, StreamBase
from rest_store.service.client.stream_call import StreamCall
from rest_store.v1 import datastore_pb2 as pb


class DraftStream(StreamBase[StreamCall]):
    """Drafts for one generation: after the first step only new tokens travel. Make one with `DatastoreClient.stream`.

    The first step opens it. When the service goes away, the next attempt opens another stream, there or at another
    endpoint, with the last 64 tokens. An answer that comes after its deadline is skipped when it comes.

    Not thread-safe: one generation, one stream, one thread at a time.
    """

    def draft(self, new_tokens: IntSequence) -> TokenTree:
        """Return the draft tree after the tokens so far; of several datastores that of the longest match.

        Args:
            new_tokens: 1-D integers: at first the context, oldest first (its last 64 are read), then the tokens since
                the last step; may be empty then.

        Raises:
            QueryError: as `Datastore.draft`; the tokens were not taken.
            ServiceError: no answer; the subclass says why. The tokens are kept: the next step sends them.
        """
        return longest(self._ask(new_tokens).trees)

    def evidence(
        self,
        new_tokens: IntSequence,
        proposals: TokenTree,
        *,
        max_nodes: int,
        max_suffix: int = 16,
        max_rows: int | None = None,
    ) -> list[Evidence] | None:
        """Return the evidence after the tokens so far: `new_tokens` as `draft`, the rest as `DatastoreClient.evidence`.

        Raises:
            TreeError, LimitError: as there; `new_tokens` were not taken.
            QueryError, ServiceError: as `draft`.
        """
        return self._ask(new_tokens, proposals, evidence_limits(max_nodes, max_suffix, max_rows)).evidence

    def evidence_after(
        self, context: IntSequence, proposals: TokenTree, *, max_nodes: int, max_suffix: int, max_rows: int
    ) -> list[Evidence] | None:
        """Return what `DatastoreClient.evidence` does; of `context`, only what is new to the service travels.

        Raises as `evidence`.
        """
        return self.evidence(
            self._new_in(context, max_suffix), proposals, max_nodes=max_nodes, max_suffix=max_suffix, max_rows=max_rows
        )

    def send_evidence_after(
        self,
        context: IntSequence,
        proposals: TokenTree,
        *,
        max_nodes: int,
        max_suffix: int,
        max_rows: int | None,
        timeout: float,
    ) -> Callable[[], list[Evidence] | None]:
        """Ask what `evidence_after` asks; return what waits for the answer, so that others are asked meanwhile."""
        limits = evidence_limits(max_nodes, max_suffix, max_rows)
        finish = self._start(self._new_in(context, max_suffix), proposals, limits, timeout)
        return lambda: finish().evidence

    def _ask(
        self,
        new_tokens: IntSequence,
        proposals: TokenTree | None = None,
        evidence: pb.EvidenceLimits | None = None,
    ) -> Answer:
        return self._start(new_tokens, proposals, evidence, self._timeout)()

    def _start(
        self,
        new_tokens: IntSequence,
        proposals: TokenTree | None,
        evidence: pb.EvidenceLimits | None,
        timeout: float,
    ) -> Callable[[], Answer]:
        """Send a step; return what waits for its answer, and sends it again where there is none."""
        ends = time.monotonic() + timeout
        if self._needs_description:
            try:
                self._info(timeout=timeout)
            except RestStoreError:
                self._add(new_tokens, may_be_empty=evidence is not None)  # for the next step
                raise
        with self._endpoints.counters.failures:
            step, policy = self._begin(new_tokens, proposals, evidence, ends)
            receive = self._send(policy.endpoint, step, time.monotonic() + policy.allowance())

        def finish() -> Answer:
            with self._endpoints.counters.failures:
                return policy.finish(
                    receive, lambda endpoint, seconds: self._send(endpoint, step, time.monotonic() + seconds)()
                )

        return finish

    def _send(self, endpoint: Endpoint[Any], step: Step, ends: float) -> Callable[[], Answer]:
        """Send a step to `endpoint`; return what waits for its answer until `ends`, and raises what went wrong."""
        failure: RestStoreError | None = None
        try:
            self._call_at(endpoint).send(self._message(step))
            self._sent(step)
        except RestStoreError as error:
            self._drop_after(error)
            failure = error

        def receive() -> Answer:
            if failure is not None:
                raise failure
            try:
                while True:
                    assert self._call is not None  # the step was sent on it
                    answer = self._read(self._call.receive(ends), endpoint.target)
                    if answer is not None:
                        return answer
            except RestStoreError as error:
                self._drop_after(error)
                raise

        return receive

    def close(self) -> None:
        """End the stream for good. May be called again."""
        self._closed = True
        self._drop()

    def __enter__(self) -> DraftStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
