"""What a draft session draws continuations from, besides datastores: external sources, the text, the model's logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol, runtime_checkable

from rest_store.datastore.kernel import native_session_kernel
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.evidence import Evidence
from rest_store.errors import CopyError, describe


@runtime_checkable
class Source(Protocol):
    """Anything that proposes continuations with counts: a `Datastore`, a `DatastoreClient`, or your own.

    A session asks it once a step, for several suffixes of the same context. If it raises or is late, the step goes on
    without it, as it does after an invalid answer: a tree with tokens outside the vocabulary, with more nodes than
    asked for, or with nodes but no match inside its context.
    """

    def draft_batch(
        self, contexts: Sequence[IntSequence], *, max_nodes: int, max_suffix: int, max_depth: int
    ) -> list[TokenTree]:
        """Return, for each of `contexts`, continuations of its longest suffix match as a tree with counts."""


@runtime_checkable
class EvidenceSource(Source, Protocol):
    """A source that returns the evidence of its datastores, all that a session would read of them, in one answer."""

    def evidence(
        self, context: IntSequence, proposals: TokenTree, *, max_nodes: int, max_suffix: int, max_rows: int
    ) -> list[Evidence] | None:
        """Return the evidence of each datastore, as `collect_evidence` reads it.

        Args:
            context: the end of the text, at most `max_suffix` tokens, oldest first; may be empty.
            proposals: the tree that the session's other sources would draft, with scores.
            max_nodes: of the session's tree.
            max_suffix: longest suffix of `context` to look for, in tokens.
            max_rows: most paths, 1..1024.

        Returns:
            One for each datastore; None if the source has no evidence: then the session asks for `draft_batch`.
        """


class PromptLookup:
    """Continuations from the prompt and the output so far, at several suffix lengths, recent ones weighing more.

    A marker: the session holds the text. Source: Saxena, "Prompt Lookup Decoding" (2023).
    """

    def __repr__(self) -> str:
        return "PromptLookup()"


class RecycledLogits:
    """Tokens that the target model itself found likely after similar contexts, as passed to `DraftSession.accept`.

    Kept by the last one, two and three tokens, at most 131,072 rows of 8 tokens (6 MB); new rows displace old ones.
    Sessions may share one: what one generation learnt then helps the next. Thread-safe. Source: Token Recycling,
    arXiv 2408.08696.
    """

    def __init__(self) -> None:
        self.native = native_session_kernel().NativeRecycledLogits()

    def __len__(self) -> int:
        """Return the number of rows held."""
        return len(self.native)

    def __reduce__(self) -> NoReturn:
        raise CopyError(describe("recycled logits", "a copy", "impossible", "new ones, which learn anew"))

    def __repr__(self) -> str:
        return f"RecycledLogits({len(self)} rows)"
