"""What a step passes to the session of one row of an engine's batch, and asks of it."""

from __future__ import annotations

from typing import NamedTuple

from rest_store.drafting.session import DraftSession
from rest_store.engines.likely_tokens import LikelyTokens, Rows
from rest_store.engines.row_sessions import RowSession, Tokens


class RowDraft(NamedTuple):
    """The request for the draft of a row.

    Attributes:
        row: the row's text.
        session: its session.
        new: int32[n], tokens that the session does not have yet.
        max_nodes: most draft tokens.
        top_k, node_top_k: what the model found likely, as `DraftSession.accept` takes it; at most one of them is set.
    """

    row: RowSession
    session: DraftSession
    new: Tokens
    max_nodes: int
    top_k: Rows | None = None
    node_top_k: Rows | None = None

    def with_likely(self, likely: LikelyTokens, output: int) -> RowDraft:
        """Return the request with what the model found likely in a step that produced `output` tokens of the row."""
        if self.new.size == output:  # the session's latest draft was made for this step
            return self._replace(node_top_k=likely.of_nodes(self.row.index, self.row.nodes))
        return self._replace(top_k=likely.of_text(self.row.index, output, self.new.size))
