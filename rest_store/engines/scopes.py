"""State that an engine's requests share, apart for each namespace and each adapter."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from rest_store.drafting.grammar import Grammar
from rest_store.drafting.sources import RecycledLogits
from rest_store.engines.engine_settings import ADAPTER_MARK
from rest_store.engines.latest_outputs import LatestOutputs

_MAX_SCOPES = 64  # besides those of the settings: of adapters


class Scope:
    """The remembered outputs, recycled logits and grammars' choices that some requests share.

    Args:
        target: the outputs of these requests are added to it: a store, a client of a service, or
            None.
    """

    def __init__(self, target: Any) -> None:
        self.target = target
        self.latest_outputs = LatestOutputs(target)
        self.logits = RecycledLogits()
        self._grammars: WeakKeyDictionary[Grammar, Grammar] = WeakKeyDictionary()
        self._lock = Lock()

    def own(self, grammar: Grammar | None) -> Grammar | None:
        """Return a grammar that learns from the requests of this scope alone.

        Args:
            grammar: it learns nothing itself.
        """
        if grammar is None:
            return None
        with self._lock:
            own = self._grammars.get(grammar)
            if own is None:
                own = grammar.copy()
                self._grammars[grammar] = own
            return own


class Scopes:
    """The scopes of an engine, by namespace and adapter. Thread-safe.

    Args:
        open_target: opens the target of one namespace of the live datastore.
        namespaces: that the operator named; their scopes are opened at once.
    """

    def __init__(self, open_target: Callable[[str], Any], namespaces: list[str]) -> None:
        self._open_target = open_target
        self._named = {name: Scope(open_target(name)) for name in namespaces}
        self._adapted: OrderedDict[str, Scope] = OrderedDict()
        self._lock = Lock()

    @property
    def namespaces(self) -> list[str]:
        """The names that requests may choose."""
        return list(self._named)

    def __iter__(self) -> Iterator[Scope]:
        """Return the scopes that are open."""
        with self._lock:
            return iter([*self._named.values(), *self._adapted.values()])

    def get(self, namespace: str, adapter: str) -> Scope:
        """Return the scope of requests.

        The outputs of an adapter have a namespace whose name is the adapter's behind a mark that no
        other namespace has. Of the scopes of adapters, the most recently used ones are kept.

        Args:
            namespace: one of `namespaces`.
            adapter: "": none.

        Raises:
            RestStoreError: of the subclass for the cause: an adapter's target cannot be opened.
        """
        if not adapter:
            return self._named[namespace]
        name = f"{namespace}{ADAPTER_MARK}{adapter}"
        with self._lock:
            if name not in self._adapted:
                self._adapted[name] = Scope(self._open_target(name))
                if len(self._adapted) > _MAX_SCOPES:
                    self._adapted.popitem(last=False)
            self._adapted.move_to_end(name)
            return self._adapted[name]
