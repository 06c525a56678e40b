"""The sources of a draft session beside datastores and services: the text, and the logits."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, TypeAlias

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.render import counted
from rest_store.datastore.store import Store
from rest_store.datastore.validation import real
from rest_store.drafting.grammar import Grammar
from rest_store.drafting.members import MemberSource
from rest_store.errors import ArgumentError, SourceError, describe

if TYPE_CHECKING:
    from rest_store._kernel import NativeRecycledLogits


class PromptLookup:
    """Continuations from the prompt and the output so far, at several suffix lengths.

    Recent continuations weigh more. The object is a marker: the session holds the text. Source:
    Saxena, "Prompt Lookup Decoding" (2023).
    """

    def __repr__(self) -> str:
        return "PromptLookup()"

    def __str__(self) -> str:
        return "prompt lookup"


class RecycledLogits:
    """Likely next tokens after similar contexts, by the target model's own logits.

    `DraftSession.accept` passes them in. There is a row for the last one, two, three and four
    tokens of a context: at most 131,072 rows of 8 tokens (9 MB); new rows replace old ones. A row
    combines the likely tokens of every time that its context came up; later times weigh more.
    Sessions may share one object, so that one generation learns for the next. Thread-safe. Source:
    Token Recycling, arXiv 2408.08696, which has rows for the last token only, each from the latest
    time.
    """

    def __init__(self) -> None:
        self.native: NativeRecycledLogits = native_kernel().NativeRecycledLogits()
        self.key = secrets.token_bytes(16)  # names them to services that run sessions

    def __len__(self) -> int:
        """Return the number of rows held."""
        return len(self.native)

    def copy(self) -> RecycledLogits:
        """Return a copy that holds the same rows, and learns for itself."""
        copy = RecycledLogits()
        copy.native = native_kernel().NativeRecycledLogits(self.native)
        return copy

    def __repr__(self) -> str:
        return f"RecycledLogits({counted(len(self), 'row')})"

    def __str__(self) -> str:
        return "recycled logits"


# The client of a service is a `MemberSource`. It comes last, since protocols are slow to check.
Source: TypeAlias = Store | PromptLookup | RecycledLogits | Grammar | MemberSource


def source_names(sources: Iterable[object]) -> list[str]:
    """Return a name for each source: the label of a datastore in this process, else its `str`."""
    names: list[str] = []
    for source in sources:
        name = source.label if isinstance(source, Store) else str(source)
        names.append(f"{name} ({len(names) + 1})" if name in names else name)
    return names


def require_sources(where: str, sources: object) -> None:
    """Check the sources of a session, without a query to any of them.

    Args:
        where: how messages begin.
        sources: at most 8, each of them once: at most one `PromptLookup`, one `RecycledLogits` and
            6 others.

    Raises:
        SourceError: not a sequence of sources, an object is not a source or occurs twice, or there
            are too many.
        NativeKernelError: the kernel was not compiled.
    """
    if not isinstance(sources, Sequence) or isinstance(sources, str | bytes):
        raise SourceError(describe(where, "sources", kind_of(sources), "a list of sources"))
    for index, source in enumerate(sources):
        if isinstance(source, type) or not isinstance(source, Source):
            expected = (
                "a datastore, a DatastoreClient, a PromptLookup, a RecycledLogits or a Grammar"
            )
            raise SourceError(describe(where, f"source {index}", kind_of(source), expected))
        if any(source is other for other in sources[:index]):
            raise SourceError(
                f"{where}: source {index} occurs twice among the sources, expected once"
            )
    for kind in (PromptLookup, RecycledLogits, Grammar):
        indices = [index for index, source in enumerate(sources) if isinstance(source, kind)]
        if len(indices) > 1:
            raise SourceError(
                f"{where}: source {indices[1]} is a second {kind.__name__}, expected at most one"
            )
    max_stores = int(native_kernel().MAX_STORES)
    stores = sum(not isinstance(source, PromptLookup | RecycledLogits) for source in sources)
    if stores > max_stores:
        raise SourceError(
            f"{where}: {stores} datastores, services and grammars among the sources, expected at"
            f" most {max_stores}"
        )


def require_source_timeout(where: str, timeout: object) -> None:
    """Check a number of seconds that a step waits for services.

    Raises:
        ArgumentError: `timeout` is neither None nor a time that a thread can wait.
    """
    if timeout is not None and not 0 <= real(timeout) <= TIMEOUT_MAX:
        raise ArgumentError(
            describe(where, "source_timeout", repr(timeout), "None or seconds from 0 on")
        )


def kind_of(value: object) -> str:
    """Return the name of an object's kind, for the message that refuses it."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
