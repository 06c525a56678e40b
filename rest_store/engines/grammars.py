"""The grammars of an engine's requests, one for all requests that follow the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock

from rest_store.drafting.grammar import Grammar

_MAX_GRAMMARS = 256  # that are kept, with the choices that they have learned


class Grammars:
    """Keeps the grammars of requests. Thread-safe.

    Args:
        failed: called with a word for where it failed, and why there is no grammar.
    """

    def __init__(self, failed: Callable[[str, BaseException], object]) -> None:
        self._failed = failed
        self._grammars: dict[Hashable, Grammar | None] = {}
        self._lock = Lock()

    def shared(self, key: Hashable, make: Callable[[], Grammar | None]) -> Grammar | None:
        """Return the grammar of a request; None: there is none that is known here.

        Args:
            key: equal for requests that follow the same grammar.
            make: makes it; an error is counted once, and costs these requests its drafts.
        """
        with self._lock:
            if key in self._grammars:
                return self._grammars[key]
            try:
                grammar = make()
            except Exception as error:
                self._failed("grammar", error)
                grammar = None
            if len(self._grammars) >= _MAX_GRAMMARS:
                self._grammars.pop(next(iter(self._grammars)))
            self._grammars[key] = grammar
            return grammar
