"""Drafts for one generation from a datastore in parts: a stream to each part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.evidence import MAX_EVIDENCE_ROWS, Evidence
from rest_store.errors import ServiceUnavailableError
from rest_store.service.client.codec import TreeLimits, tail_of
from rest_store.service.client.parts_base import OF_CALLER
from rest_store.service.client.stream import DraftStream
from rest_store.service.client.stream_base import ANY_TOKEN, KEPT_TOKENS

if TYPE_CHECKING:
    from rest_store.service.client.parts_client import PartsClient


_MORE_ROWS = 32


def rows_of_part(max_rows: int) -> int:
    """Return how many paths each part is asked for where a session would ask one service for `max_rows`.

    A part knows less about which paths are likely, and its counts are missing on paths that it has not read. With this
    many paths, M is within 0.5% of that of the whole datastore, or greater: the parts read more occurrences together.
    """
    return min(2 * max_rows + _MORE_ROWS, MAX_EVIDENCE_ROWS)


class GenerationText:
    """The end of one generation's text, until its stream is closed."""

    def __init__(self) -> None:
        self.closed = False
        self._tokens: list[int] = []

    def require_open(self) -> None:
        """Raise ServiceUnavailableError after the end of the stream."""
        if self.closed:
            raise ServiceUnavailableError("client: the stream is closed")

    @contextmanager
    def taking(self, new_tokens: IntSequence) -> Iterator[list[int]]:
        """Append the tokens since the last step, and yield the end of the text; undone after an error of the caller."""
        self.require_open()
        before = self._tokens
        self._tokens = (before + tail_of(new_tokens, KEPT_TOKENS, ANY_TOKEN))[-KEPT_TOKENS:]
        try:
            yield self._tokens
        except OF_CALLER:
            self._tokens = before
            raise


class PartsStream(DraftStream):
    """`DraftStream` of several parts, each of which is asked for evidence on a stream of its own. Not thread-safe.

    Args:
        client: of the parts.
        bounds: of every draft tree.
        timeout: seconds for each step.
    """

    def __init__(self, client: PartsClient, bounds: TreeLimits, timeout: float) -> None:
        self._client = client
        self._bounds = bounds
        self._timeout = timeout
        self._text = GenerationText()
        self._streams: dict[int, DraftStream] = {}

    def draft(self, new_tokens: IntSequence) -> TokenTree:
        """See `DraftStream.draft`; each request has the whole context."""
        nodes, suffix, depth = self._bounds
        with self._text.taking(new_tokens) as context:
            return self._client.draft(
                context, max_nodes=nodes, max_suffix=suffix, max_depth=depth, timeout=self._timeout
            )

    def evidence(
        self,
        new_tokens: IntSequence,
        proposals: TokenTree,
        *,
        max_nodes: int,
        max_suffix: int = 16,
        max_rows: int | None = None,
    ) -> list[Evidence] | None:
        """See `DraftStream.evidence`: that of each part, which a session adds up."""
        with self._text.taking(new_tokens) as context:
            return self._ask_parts(context, proposals, max_nodes, max_suffix, max_rows)

    def evidence_after(
        self, context: IntSequence, proposals: TokenTree, *, max_nodes: int, max_suffix: int, max_rows: int
    ) -> list[Evidence] | None:
        """See `DraftStream.evidence_after`; each part is asked for `rows_of_part(max_rows)` paths."""
        self._text.require_open()
        return self._ask_parts(context, proposals, max_nodes, max_suffix, rows_of_part(max_rows))

    def _ask_parts(
        self, context: IntSequence, proposals: TokenTree, max_nodes: int, max_suffix: int, max_rows: int | None
    ) -> list[Evidence] | None:
        def start(stream: DraftStream, timeout: float) -> Callable[[], list[Evidence] | None]:
            return stream.send_evidence_after(
                context,
                proposals,
                max_nodes=max_nodes,
                max_suffix=max_suffix,
                max_rows=max_rows,
                timeout=timeout,
            )

        return self._client.of_parts(self._client.ask_streams(start, self._streams, self._timeout))

    def close(self) -> None:
        """End the streams to all parts. May be called again."""
        self._text.closed = True
        for stream in self._streams.values():
            stream.close()
