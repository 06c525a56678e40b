"""Other people's rules for drafting, as sessions of the same contract, to compare with in the same loop.

model.generate(..., custom_generate=rest_store.generate, drafter=PromptLookupRule.of(tokens=10))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.generation.draft_sessions import Session
from rest_store.generation.drafts import EMPTY


def tree_of(paths: Sequence[Sequence[int]]) -> TokenTree:
    """Return the tree of several continuations, which share their common beginnings; the first one comes first."""
    tokens: list[int] = []
    parents: list[int] = []
    places: dict[tuple[int, int], int] = {}
    for path in paths:
        parent = -1
        for token in path:
            place = places.get((parent, token))
            if place is None:
                place = places[parent, token] = len(tokens)
                tokens.append(int(token))
                parents.append(parent)
            parent = place
    return TokenTree(tokens, parents, [1] * len(tokens))


class Store(Protocol):
    """What answers drafts: a `Datastore` or what stands in for one."""

    def draft(self, context: list[int], *, max_nodes: int, max_suffix: int, max_depth: int) -> TokenTree:
        """Return the most frequent continuations of the longest suffix match of `context`."""


class RestRule:
    """REST's rule: the most frequent continuations of the longest match in one datastore (REST, section 3.2).

    Args:
        store: the datastore.
        prompt: the tokens so far.
        max_suffix: longest suffix tried.
        max_depth: longest continuation.
    """

    def __init__(self, store: Store, prompt: Sequence[int], *, max_suffix: int = 16, max_depth: int = 10) -> None:
        self._store = store
        self._context = list(prompt[-max_suffix:])
        self._max_suffix, self._max_depth = max_suffix, max_depth

    @classmethod
    def of(cls, store: Store) -> Callable[[list[int]], Session]:
        """Return what makes the session of a prompt."""
        return lambda prompt: cls(store, prompt)

    def draft(self, *, max_nodes: int, costs: npt.NDArray[np.float64] | None) -> TokenTree:
        """Return the datastore's tree."""
        return self._store.draft(
            self._context, max_nodes=max_nodes, max_suffix=self._max_suffix, max_depth=self._max_depth
        )

    def accept(self, tokens: Sequence[int]) -> None:
        """Take over `tokens`."""
        self._context = [*self._context, *map(int, tokens)][-self._max_suffix :]

    def close(self) -> None:
        """Do nothing."""


class LongestMatch:
    """Several datastores as one: the one with the longest suffix match drafts; of equal ones, the first.

    Args:
        stores: datastores of one tokenizer, at least one.
    """

    def __init__(self, stores: Sequence[Any]) -> None:
        self._stores = list(stores)
        self._vocabulary = min(store.vocabulary_size for store in self._stores)

    def draft(
        self, context: Sequence[int] | npt.NDArray[np.int32], *, max_nodes: int, max_suffix: int, max_depth: int
    ) -> TokenTree:
        """Return its continuations of `context`, which begins after its last token outside their vocabulary."""
        context = np.asarray(context, np.int64)
        outside = np.flatnonzero(context >= self._vocabulary)
        context = context[outside[-1] + 1 :] if outside.size else context
        if context.size == 0:
            return EMPTY
        best = max(
            self._stores, key=lambda store: int(store.longest_suffix_match(context, max_suffix=max_suffix).length)
        )
        tree: TokenTree = best.draft(context, max_nodes=max_nodes, max_suffix=max_suffix, max_depth=max_depth)
        return tree


class PromptLookupRule:
    """Prompt lookup as in `transformers`: what followed the first occurrence of the longest n-gram, as one chain.

    Args:
        prompt: the tokens so far.
        max_ngram: tokens of the longest n-gram looked for.
        tokens: draft tokens at most.
    """

    def __init__(self, prompt: Sequence[int], *, max_ngram: int = 3, tokens: int = 10) -> None:
        self._max_ngram, self._tokens = max_ngram, tokens
        self._context: list[int] = []
        self._first: dict[tuple[int, ...], int] = {}  # where what follows an n-gram begins
        self.accept(prompt)

    @classmethod
    def of(cls, *, tokens: int = 10) -> Callable[[list[int]], Session]:
        """Return what makes the session of a prompt."""
        return lambda prompt: cls(prompt, tokens=tokens)

    def draft(self, *, max_nodes: int, costs: npt.NDArray[np.float64] | None) -> TokenTree:
        """Return the chain that followed the n-gram which ends the context; empty if none occurred before."""
        for size in range(min(self._max_ngram, len(self._context)), 0, -1):
            place = self._first.get(tuple(self._context[-size:]))
            if place is not None and place < len(self._context):
                return tree_of([self._context[place : place + min(self._tokens, max_nodes)]])
        return EMPTY

    def accept(self, tokens: Sequence[int]) -> None:
        """Take over `tokens`."""
        for token in tokens:
            self._context.append(int(token))
            end = len(self._context)
            for size in range(1, min(self._max_ngram, end) + 1):
                self._first.setdefault(tuple(self._context[end - size : end]), end)

    def close(self) -> None:
        """Do nothing."""
