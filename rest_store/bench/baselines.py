"""Other people's rules for drafting, to compare draft sessions with.

Each has the methods of a `DraftSession` that replays call.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rest_store.datastore.store import Store
from rest_store.datastore.tree import TokenTree

# REST's rule, as in the paper.
_MAX_SUFFIX = 16
_MAX_DEPTH = 10
# Prompt lookup: the longest n-gram, and the draft tokens.
_NGRAM = 3
_CHAIN = 10
_EMPTY = TokenTree([], [], [])


def merge_paths(paths: Sequence[Sequence[int]]) -> TokenTree:
    """Return the tree of several continuations, in order; equal beginnings become one path."""
    tokens: list[int] = []
    parents: list[int] = []
    nodes: dict[tuple[int, int], int] = {}  # by parent and token
    for path in paths:
        parent = -1
        for token in path:
            node = nodes.get((parent, token))
            if node is None:
                node = nodes[parent, token] = len(tokens)
                tokens.append(int(token))
                parents.append(parent)
            parent = node
    return TokenTree(tokens, parents, [1] * len(tokens))


class RestRule:
    """REST's rule: the most frequent continuations of the longest match.

    (arXiv 2311.08252, section 3.2.) Of several datastores the one with the longest match drafts, of
    equal ones the first. The context begins after its last token outside their vocabulary.

    Args:
        stores: datastores of one tokenizer, at least one.
        prompt: the tokens so far.
        max_suffix: longest suffix tried.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        prompt: Sequence[int] | npt.NDArray[np.int32],
        *,
        max_suffix: int = _MAX_SUFFIX,
    ) -> None:
        self._stores = list(stores)
        self._vocabulary_size = min(store.vocabulary_size for store in self._stores)
        self._max_suffix = max_suffix
        self._context: list[int] = []
        self.accept(prompt)

    def draft(self, max_nodes: int, costs: npt.NDArray[np.float64] | None = None) -> TokenTree:
        """Return the datastore's tree; `costs` are not used."""
        if not self._context:
            return _EMPTY
        lengths = [
            store.longest_suffix_match(self._context, max_suffix=self._max_suffix).length
            for store in self._stores
        ]
        longest = self._stores[lengths.index(max(lengths))]
        return longest.draft(
            self._context, max_nodes=max_nodes, max_suffix=self._max_suffix, max_depth=_MAX_DEPTH
        )

    def accept(self, tokens: Sequence[int] | npt.NDArray[np.int32], *likely: object) -> None:
        """Take over `tokens`; the likely tokens are not used."""
        for token in map(int, tokens[-self._max_suffix :]):
            if token >= self._vocabulary_size:
                self._context = []
            else:
                self._context = [*self._context, token][-self._max_suffix :]


class PromptLookupRule:
    """Prompt lookup as in `transformers`: one chain, from the first match of the longest n-gram.

    Args:
        prompt: the tokens so far.
    """

    def __init__(self, prompt: Sequence[int] | npt.NDArray[np.int32]) -> None:
        self._text: list[int] = []
        self._first: dict[tuple[int, ...], int] = {}  # by n-gram, the position behind the first one
        self.accept(prompt)

    def draft(self, max_nodes: int, costs: npt.NDArray[np.float64] | None = None) -> TokenTree:
        """Return the chain that followed the n-gram at the end of the text; empty: none did."""
        for size in range(min(_NGRAM, len(self._text)), 0, -1):
            begin = self._first[tuple(self._text[-size:])]
            if begin < len(self._text):
                return merge_paths([self._text[begin : begin + min(_CHAIN, max_nodes)]])
        return _EMPTY

    def accept(self, tokens: Sequence[int] | npt.NDArray[np.int32], *likely: object) -> None:
        """Take over `tokens`; the likely tokens are not used."""
        for token in map(int, tokens):
            self._text.append(token)
            end = len(self._text)
            for size in range(1, min(_NGRAM, end) + 1):
                self._first.setdefault(tuple(self._text[end - size : end]), end)
