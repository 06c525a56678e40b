"""What a draft session draws continuations from, besides datastores: external sources, the text, the model's logits."""

from __future__ import annotations

import inspect
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.render import counted
from rest_store.datastore.store import Store
from rest_store.datastore.tokenizer import identity_of
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence, real
from rest_store.drafting.evidence import Evidence
from rest_store.drafting.recycled_logits_file import read_rows, write_rows
from rest_store.errors import CopyError, LimitError, RecycledLogitsError, SourceError, describe

if TYPE_CHECKING:
    from rest_store._kernel import NativeRecycledLogits

_MAX_SOURCES = 8
# How a session calls the methods of a source: the number of positional arguments, and the keywords.
_DRAFT_BATCH = (1, ("max_nodes", "max_suffix", "max_depth"))
_EVIDENCE = (2, ("max_nodes", "max_suffix", "max_rows"))


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
            One for each datastore, or for each part of one; None if the source has no evidence: then the session asks
            for `draft_batch`.
        """


class EvidenceStream(Protocol):
    """What answers one session in place of `EvidenceSource.evidence`. Ends with `close`, which may be called again."""

    def evidence_after(
        self, context: IntSequence, proposals: TokenTree, *, max_nodes: int, max_suffix: int, max_rows: int
    ) -> list[Evidence] | None:
        """As `EvidenceSource.evidence`; each context continues the one before, as a rule."""

    def close(self) -> None:
        """End the stream."""


@runtime_checkable
class StreamedSource(EvidenceSource, Protocol):
    """A source that each session asks over a stream of its own, which saves it to send the same text again."""

    def stream(self) -> EvidenceStream:
        """Return a stream for a session."""


class PromptLookup:
    """Continuations from the prompt and the output so far, at several suffix lengths, recent ones weighing more.

    A marker: the session holds the text. Source: Saxena, "Prompt Lookup Decoding" (2023).
    """

    def __repr__(self) -> str:
        return "PromptLookup()"


class RecycledLogits:
    """Tokens that the target model itself found likely after similar contexts, as passed to `DraftSession.accept`.

    Rows are kept for the last one, two, three and four tokens of a context: at most 131,072 rows of 8 tokens (9 MB);
    new rows replace old ones. A row combines the likely tokens of every time that its context came up; later times
    weigh more. Sessions may share one: what one generation learnt then helps the next. `save` and `load` carry it over
    to another program. Thread-safe. Source: Token Recycling, arXiv 2408.08696, which keeps only rows for the last
    token, each from the latest time.
    """

    def __init__(self) -> None:
        self.native: NativeRecycledLogits = native_kernel().NativeRecycledLogits()
        self.key = secrets.token_bytes(16)  # by which a service that runs sessions knows them

    def __len__(self) -> int:
        """Return the number of rows held."""
        return len(self.native)

    @classmethod
    def load(cls, path: str | os.PathLike[str], tokenizer: object) -> RecycledLogits:
        """Read what `save` wrote.

        Args:
            path: the file.
            tokenizer: of the target model: a `TokenizerIdentity` or a tokenizer, as `identity_of` takes it.

        Raises:
            RecycledLogitsError: the file cannot be read, is damaged, or was written by another release.
            TokenizerMismatchError: its tokens are of another tokenizer.
        """
        identity = identity_of(tokenizer)
        logits = cls()
        if not logits.native.add_rows(read_rows(Path(path), identity), identity.vocabulary_size):
            raise RecycledLogitsError(describe(path, "rows", "malformed", "tokens of the vocabulary with weights"))
        return logits

    def save(self, path: str | os.PathLike[str], tokenizer: object) -> None:
        """Write all rows, about 4 MB when it is full; `path` holds the old file or the whole new one.

        The file holds pieces of four tokens of every text that sessions learnt from.

        Args:
            path: the file.
            tokenizer: of the tokens, as in `load`.

        Raises:
            RecycledLogitsError: the file cannot be written.
        """
        identity = identity_of(tokenizer)
        write_rows(Path(path), self.native.rows(identity.vocabulary_size), identity)

    @property
    def memory(self) -> int:
        """Bytes of the rows."""
        return int(self.native.memory())

    def __reduce__(self) -> NoReturn:
        raise CopyError(describe("recycled logits", "a copy", "impossible", "new ones, which learn anew"))

    def __repr__(self) -> str:
        return f"RecycledLogits({counted(len(self), 'row')})"


def require_sources(where: str, sources: object) -> None:
    """Check the sources of a session as they are handed over, without asking them anything.

    Args:
        where: how messages begin.
        sources: at most 8, each of them once: at most one `PromptLookup`, one `RecycledLogits` and 6 others.

    Raises:
        SourceError: not a sequence of sources, an object is not a source, is given twice, or there are too many.
        NativeKernelError: the kernel was not compiled.
    """
    most_stores = int(native_kernel().MAX_STORES)
    if not isinstance(sources, Sequence) or isinstance(sources, str | bytes):
        raise SourceError(describe(where, "sources", _kind(sources), "a list of sources"))
    if len(sources) > _MAX_SOURCES:
        raise SourceError(describe(where, "number of sources", len(sources), f"at most {_MAX_SOURCES}"))
    stores = 0  # sources with counts
    for place, source in enumerate(sources):
        if any(source is other for other in sources[:place]):
            raise SourceError(describe(where, f"source {place}", "one of the others", "another one"))
        if isinstance(source, PromptLookup | RecycledLogits):
            kind = PromptLookup if isinstance(source, PromptLookup) else RecycledLogits
            if any(isinstance(other, kind) for other in sources[:place]):
                raise SourceError(describe(where, f"source {place}", f"a second {source}", "one of each"))
            continue
        stores += 1
        if (fault := _source_fault(source)) is not None:
            expected = "a source: an object with draft_batch(contexts, *, max_nodes, max_suffix, max_depth)"
            raise SourceError(describe(where, f"source {place}", fault, expected))
    if stores > most_stores:
        raise SourceError(describe(where, "number of sources with counts", stores, f"at most {most_stores}"))


def require_source_timeout(where: str, timeout: object) -> None:
    """Check the seconds that a step waits for external sources.

    Raises:
        LimitError: `timeout` is neither None nor a time that a thread can wait.
    """
    if timeout is not None and not 0 <= real(timeout) <= TIMEOUT_MAX:
        raise LimitError(describe(where, "source_timeout", repr(timeout), "None or seconds from 0 on"))


def _source_fault(source: object) -> str | None:
    """Return what is wrong with `source`; None if a session can ask it."""
    if isinstance(source, Store):
        return None
    if isinstance(source, type) or not isinstance(source, Source):
        return _kind(source)
    methods = {"draft_batch": _DRAFT_BATCH} | ({"evidence": _EVIDENCE} if isinstance(source, EvidenceSource) else {})
    for name, arguments in methods.items():
        if (fault := _method_fault(getattr(source, name), *arguments)) is not None:
            return f"{_kind(source)}, whose {name} {fault}"
    return None


def _method_fault(method: Any, positional: int, keywords: Sequence[str]) -> str | None:
    """Return why a session cannot call `method`; None if it can, or if its signature is not known."""
    if not callable(method):
        return "is not a method"
    if inspect.iscoroutinefunction(method):
        return "is a coroutine"
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # some built-in functions
        return None
    try:
        signature.bind(*range(positional), **dict.fromkeys(keywords))
    except TypeError as error:
        return f"does not take these arguments ({error})"
    return None


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
