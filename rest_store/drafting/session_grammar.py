"""The grammar of one draft session, whose faults cost drafts and never the session."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import DraftOptions
from rest_store.drafting.grammar import (
    ConstrainedTree,
    Grammar,
    GrammarText,
    GrammarTree,
    constrained,
)


class SessionGrammar:
    """The text of a session under a grammar, until the grammar fails or the text leaves it.

    From then on it changes no draft.

    Args:
        grammar: the grammar.
        origin: origin of the nodes that the grammar adds, as a bitmask.
        report: called once with the error that ends the grammar.

    Raises:
        Exception: the grammar cannot begin a text; its library says why.
    """

    def __init__(
        self, grammar: Grammar, origin: int, report: Callable[[Exception], object]
    ) -> None:
        self._origin = origin
        self._report = report
        self._text: GrammarText | None = GrammarText(grammar)
        self._tree: GrammarTree | None = None  # of the step under way

    def begin_step(self) -> None:
        """Begin a new draft tree at the end of the text."""
        self._tree = None if self._text is None else self._text.tree()

    def filter(
        self, node: int, parent: int, token: int, tokens: bytes, probabilities: bytes
    ) -> tuple[bytes, bytes] | None:
        """Filter the candidates of a node as `GrammarTree.filter`; None: they stay as they are."""
        if self._text is None or self._tree is None:
            return None
        try:
            return self._tree.filter(node, parent, token, tokens, probabilities)
        except Exception as error:
            self._end(error)
            return None

    def constrain(self, tree: TokenTree, options: DraftOptions) -> ConstrainedTree:
        """Return the tree of a member as the grammar leaves it."""
        if self._text is not None:
            try:
                return constrained(tree, self._text.tree(), options, self._origin)
            except Exception as error:
                self._end(error)
        return unconstrained(tree)

    def accept(self, tokens: list[int]) -> None:
        """Append tokens to the text."""
        if self._text is None:
            return
        try:
            is_in_grammar = self._text.accept(tokens)
        except Exception as error:
            self._end(error)
            return
        if not is_in_grammar:
            self._end(ValueError("the text has left the grammar"))

    def _end(self, error: Exception) -> None:
        self._text = None
        self._report(error)


def unconstrained(tree: TokenTree) -> ConstrainedTree:
    """Return a tree that no grammar changes."""
    return ConstrainedTree(tree, np.arange(len(tree), dtype=np.int32))
