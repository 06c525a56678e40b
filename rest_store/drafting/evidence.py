"""What a datastore knows along the paths that a draft tree may take, as it travels from a source to a session."""

from __future__ import annotations

from dataclasses import dataclass

MAX_EVIDENCE_ROWS = 1024
SPARE_ROWS = 8  # beyond the nodes of the tree that the evidence is for


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of one datastore: after the context, and after each of the likeliest paths.

    Attributes:
        datastore: its name; a session tells the datastores of one source apart by it.
        rows: the paths, and of each the suffixes that occur, how often, and what follows them; laid out as the message
            Evidence in `proto/rest_store/v1/datastore.proto` says.
    """

    datastore: str
    rows: bytes

    @property
    def row_count(self) -> int:
        """Paths, that of the context among them."""
        return int.from_bytes(self.rows[:4], "little")


def rows_for(max_nodes: int) -> int:
    """Return how many rows serve a tree of `max_nodes` well, 1..1024."""
    return min(max(1, max_nodes) + SPARE_ROWS, MAX_EVIDENCE_ROWS)
