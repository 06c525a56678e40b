"""A row of an engine's batch whose session is asked for a draft."""

from __future__ import annotations

from typing import NamedTuple

from rest_store.drafting.session import DraftSession
from rest_store.engines.likely_tokens import LikelyTokens, Rows
from rest_store.engines.row_sessions import RowSession, Tokens


class AskedRow(NamedTuple):
    """A row whose session is asked.

    Attributes:
        row: the row's text.
        session: its session.
        new: int32[n], tokens that the session does not have yet.
        room: draft tokens that it is asked for.
        top_k, node_top_k: what the model found likely, as `DraftSession.accept` takes it; one of them, or none.
    """

    row: RowSession
    session: DraftSession
    new: Tokens
    room: int
    top_k: Rows | None = None
    node_top_k: Rows | None = None

    def with_likely(self, likely: LikelyTokens, output: int) -> AskedRow:
        """Return it with what the model found likely in a step that produced `output` tokens of the row."""
        if self.new.size == output:  # the session's latest draft continues what it was told before
            return self._replace(node_top_k=likely.of_nodes(self.row.row, self.row.nodes))
        return self._replace(top_k=likely.of_text(self.row.row, output, self.new.size))
