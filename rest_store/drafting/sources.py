"""What a draft session draws continuations from: datastores, the text itself, and the target model's own logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from rest_store.datastore.kernel import native_session_kernel
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.evidence import Evidence


@runtime_checkable
class Source(Protocol):
    """Anything that proposes continuations with counts: a `Datastore`, a service's client, or your own.

    A session asks it once in a step, for the same context cut to several lengths. It may raise, and it may be late:
    then the session goes on without it, as it does where a tree has tokens outside the vocabulary, more nodes than
    asked for, or nodes but no match that lies within its context.
    """

    def draft_batch(
        self, contexts: Sequence[IntSequence], *, max_nodes: int, max_suffix: int, max_depth: int
    ) -> list[TokenTree]:
        """Return, for each of `contexts`, continuations of its longest suffix match as a tree with counts."""


@runtime_checkable
class EvidenceSource(Source, Protocol):
    """A source whose datastores can say all that a session would read of them in this process, in one answer."""

    def evidence(
        self, context: IntSequence, proposals: TokenTree, *, max_nodes: int, max_suffix: int, max_rows: int
    ) -> list[Evidence] | None:
        """Return the evidence of each datastore along the paths that a session's tree may take, as `collect_evidence` reads it.

        Args:
            context: the end of the text, at most `max_suffix` tokens, oldest first; may be empty.
            proposals: the tree that the session's other sources would draft, with scores.
            max_nodes: of the session's tree.
            max_suffix: longest suffix of `context` to look for, in tokens.
            max_rows: most paths, 1..1024.

        Returns:
            One for each datastore, none if there is nothing to say; None where the source turns out to have no
            evidence: then the session asks for `draft_batch`.
        """


class PromptLookup:
    """Continuations from the prompt and the output so far, at several suffix lengths, recent ones weighing more.

    The text belongs to the session; this object only says that it is to be used. Source: Saxena, "Prompt Lookup
    Decoding" (2023).
    """

    def __repr__(self) -> str:
        return "PromptLookup()"


class RecycledLogits:
    """Continuations that the target model itself found likely earlier, as it told `DraftSession.accept`.

    Kept by the last one, two and three tokens, at most 131,072 rows of 8 tokens (6 MB); new rows displace old ones.
    Sessions may share one: what one generation learnt then helps the next. Thread-safe. Source: Token Recycling,
    arXiv 2408.08696.
    """

    def __init__(self) -> None:
        self.native = native_session_kernel().NativeRecycledLogits()

    def __len__(self) -> int:
        """Return the number of rows held."""
        return len(self.native)

    def __repr__(self) -> str:
        return f"RecycledLogits({len(self)} rows)"
