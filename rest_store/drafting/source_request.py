"""The request of one step to external sources: for evidence after the context, or for trees of several contexts.

A source with evidence is asked once, for what it knows along the paths that the session's tree may take. A source
without evidence is asked for the trees of several suffixes of the context, and of the paths that the session's other
sources would draft: each tree answers for one backoff level of one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.kernel_session import NO_COSTS

if TYPE_CHECKING:
    from rest_store._kernel import NativeSession

DEFAULT_SUFFIX = 16  # tokens of the contexts of trees, unless the session reads more
TREE_NODES, TREE_DEPTH = 64, 12  # of each requested tree
_BACKOFF_SUFFIXES = (4, 3, 2, 1)  # shorter suffixes of the context that trees are requested for
_PATH_SUFFIX = 2  # the shorter suffix of each path that the other sources would draft
_PATH_NODES = 8  # such paths
_PROPOSED_NODES = 2  # nodes of the other sources' tree that a request for evidence has; more do not improve M

_Tokens = npt.NDArray[np.int32]


class SourceRequest(NamedTuple):
    """What a step asks every source.

    Attributes:
        tail: int32[n], the end of the text, without tokens outside the vocabulary; at most `max_suffix` tokens.
        proposals: the tree that the other sources would draft, with scores; empty if no source reads evidence.
        max_nodes: of the session's tree.
        max_suffix: longest suffix of the context to look for, in tokens.
        max_rows: most paths that evidence is read for.
        contexts: the contexts of trees, for sources without evidence; empty if all gave evidence last time.
        paths: for each of `contexts`, its path from the root of the draft.
    """

    tail: _Tokens
    proposals: TokenTree
    max_nodes: int
    max_suffix: int
    max_rows: int
    contexts: list[_Tokens]
    paths: list[_Tokens]

    @classmethod
    def of(
        cls,
        native: NativeSession,
        *,
        max_nodes: int,
        max_suffix: int,
        max_rows: int,
        vocabulary_size: int,
        evidence: bool,
        trees: bool,
    ) -> SourceRequest | None:
        """Return the request of a step; None without text.

        Args:
            native: the kernel session. It drafts proposals and paths, for which external sources are left out.
            max_nodes: of the session's tree, at least 1.
            max_suffix: longest suffix of the context that sources are asked for, in tokens.
            max_rows: most paths that evidence is read for.
            vocabulary_size: greater than all tokens of the request.
            evidence: whether a source may answer with evidence.
            trees: whether a source may answer with trees.
        """
        if not native.length():
            return None
        longest = max(DEFAULT_SUFFIX, max_suffix)
        tail = _known(np.frombuffer(native.tail(longest), np.int32), vocabulary_size)
        contexts, paths = _contexts(native, tail, longest, max_suffix, vocabulary_size) if trees else ([], [])
        proposals = _proposals(native, min(max_nodes, _PROPOSED_NODES) if evidence else 0, vocabulary_size)
        return cls(tail[-max_suffix:], proposals, max_nodes, max_suffix, max_rows, contexts, paths)

    def checked(self, trees: Sequence[TokenTree], vocabulary_size: int) -> list[tuple[Any, ...]]:
        """Return `trees` as the kernel takes them; raise ValueError if they do not answer this request."""
        checked: list[tuple[Any, ...]] = []
        for context, path, tree in zip(self.contexts, self.paths, trees, strict=True):
            tokens, match = tree.tokens, tree.match
            shortest = 1 if tokens.size else 0
            if tokens.size > TREE_NODES or not shortest <= match.length <= context.size:
                raise ValueError("tree has too many nodes, or its match is not a suffix of the context")
            if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary_size:
                raise ValueError("tree has a token outside the vocabulary")
            checked.append((path, match.length, match.count, tree.counts, tokens, tree.parents))
        return checked


def _proposals(native: NativeSession, max_nodes: int, vocabulary_size: int) -> TokenTree:
    """Return the tree that the other sources would draft, without the tokens outside the vocabulary."""
    packed, scores, _ = native.draft(max_nodes, NO_COSTS)
    tree = TokenTree.from_packed(packed, (0, 0), scores)
    if not (tree.tokens >= vocabulary_size).any():
        return tree
    kept: dict[int, int] = {}  # place in `tree` -> place among the nodes kept
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        if token < vocabulary_size and (parent < 0 or parent in kept):
            kept[node] = len(kept)
    nodes = list(kept)
    parents = [kept.get(parent, -1) for parent in tree.parents[nodes].tolist()]
    assert tree.scores is not None
    return TokenTree(tree.tokens[nodes], parents, tree.counts[nodes], scores=tree.scores[nodes])


def _contexts(
    native: NativeSession, tail: _Tokens, longest: int, max_suffix: int, vocabulary_size: int
) -> tuple[list[_Tokens], list[_Tokens]]:
    """Return suffixes of the context and of the paths that the other sources would draft, and the path of each."""
    contexts: list[_Tokens] = []
    if tail.size:
        contexts = [tail[-min(size, max_suffix) :] for size in (longest, *_BACKOFF_SUFFIXES)]
    paths = [tail[:0]] * len(contexts)
    tree = TokenTree.from_packed(native.draft(_PATH_NODES, NO_COSTS)[0], (0, 0))
    path_to: list[_Tokens] = []
    for token, parent in zip(tree.tokens, tree.parents.tolist(), strict=True):
        path = np.append(path_to[parent] if parent >= 0 else tail[:0], token)
        path_to.append(path)
        context = _known(np.concatenate([tail, path]), vocabulary_size)
        for size in (longest, _PATH_SUFFIX) if context.size else ():
            paths.append(path)
            contexts.append(context[-min(size, max_suffix + path.size) :])
    return contexts, paths


def _known(tokens: _Tokens, vocabulary_size: int) -> _Tokens:
    """Return the last tokens that are all in the vocabulary."""
    if not tokens.size or tokens.max() < vocabulary_size:
        return tokens
    outside = np.flatnonzero(tokens >= vocabulary_size)
    return tokens[outside[-1] + 1 :]
