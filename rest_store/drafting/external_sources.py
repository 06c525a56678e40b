"""The sources of a session that are no datastores of this process: what they are asked in a step, and their answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.asking import Asker
from rest_store.drafting.evidence import Evidence, rows_for
from rest_store.drafting.sources import EvidenceSource, Source
from rest_store.errors import LimitError, TokenizerMismatchError, describe

_LONGEST = 16  # suffix of the context that trees are asked for, in tokens, unless told otherwise
_SUFFIXES = (4, 3, 2, 1)  # shorter ones
_SUFFIX_OF_PATHS = 2  # the shorter one of each path that the other sources would draft
_OWN_NODES = 8  # of those paths
_ASKED_NODES, _ASKED_DEPTH = 64, 12  # of each of the trees asked for
_NO_COSTS = np.zeros(0)
_LAST_TOKEN = 2**31 - 1

_Tokens = npt.NDArray[np.int32]
_Answer = tuple[list[Evidence] | None, list[TokenTree]]


@dataclass(frozen=True)
class _Question:
    """One step: what evidence is asked for, and for sources without evidence, contexts that trees are asked for."""

    tail: _Tokens
    proposals: TokenTree  # of the other sources, with scores
    max_nodes: int
    max_suffix: int
    max_rows: int
    contexts: list[_Tokens]
    befores: list[_Tokens]  # of each of the contexts, its path from the root of the draft


@dataclass(eq=False)
class _Asked:
    """One source and where its answers go.

    Attributes:
        store: its first place among the kernel's stores, where its trees go, too.
        place: among the session's sources.
        stores: by name of datastore, where its evidence goes.
        gives_evidence: as far as its last answer says.
    """

    store: int
    place: int
    source: Source
    stores: dict[str, int] = field(default_factory=dict)
    gives_evidence: bool = False
    asker: Asker[_Question, _Answer] | None = None
    late: Future[_Answer] | None = None  # asked in an earlier step, not answered yet

    def all_stores(self) -> Iterator[int]:
        return iter({self.store, *self.stores.values()})


class ExternalSources:
    """Asks sources for evidence, once a step, or for trees those that have none, and hands the answers to the kernel.

    Args:
        native: the kernel's side of the session.
        sources: (place among the kernel's stores, place among the session's sources, source) of each.
        timeout: seconds that a step waits for them; None: as long as they take.
        max_suffix: longest suffix of the context that they are asked for, in tokens.
        tokenizer: of the session: they may be asked for tokens of its vocabulary and answer with these alone, and one
            that turns out to have another is dropped; None: that of the first source that turns out to have one.
        drop: told the place of a source and why a step goes on without it.

    Not thread-safe.
    """

    def __init__(
        self,
        native: Any,
        sources: Sequence[tuple[int, int, Source]],
        *,
        timeout: float | None,
        max_suffix: int,
        tokenizer: TokenizerIdentity | None,
        drop: Callable[[int, str], None],
    ) -> None:
        self._native = native
        self._all = [_Asked(store, place, source) for store, place, source in sources]
        self._timeout = timeout
        self._max_suffix = max_suffix
        self._tokenizer = tokenizer
        self._drop = drop

    def __len__(self) -> int:
        """Return their number."""
        return len(self._all)

    @property
    def _vocabulary_size(self) -> int:
        return _LAST_TOKEN + 1 if self._tokenizer is None else self._tokenizer.vocabulary_size

    def ask(self, max_nodes: int) -> None:
        """Ask about this step's context, for a tree of `max_nodes`; those that do not answer are left out of it."""
        for one in self._all:
            for store in one.all_stores():
                self._native.give(store, None)
        question = self._question(max(1, max_nodes))
        if question is None:
            return
        waiting: dict[int, Future[_Answer]] = {}
        for one in self._all if self._timeout is not None else ():
            if one.late is None or one.late.done():
                one.asker = one.asker or Asker(partial(_answer, one.source))
                one.late = None
                waiting[one.place] = one.asker.ask(question)
        deadline = time.monotonic() + (self._timeout or 0)
        for one in self._all:
            try:
                if self._timeout is None:
                    found = _answer(one.source, question)
                else:
                    found = _awaited(one, waiting.get(one.place), deadline)
                self._give(one, question, found)
            except TokenizerMismatchError:
                self._leave_out(one, "tokenizer")
            except LateError:
                self._drop(one.place, "late" if one.late is not None else "error")
            except Exception:
                self._leave_out(one, "error")

    def _leave_out(self, one: _Asked, why: str) -> None:
        """Go on without `one` in this step, whatever it has answered."""
        for store in one.all_stores():
            self._native.give(store, None)
        self._drop(one.place, why)

    def close(self) -> None:
        """Ask nothing more."""
        for one in self._all:
            if one.asker is not None:
                one.asker.close()

    def _question(self, max_nodes: int) -> _Question | None:
        """Return what to ask; None without text."""
        if not self._native.length():
            return None
        evident = any(isinstance(one.source, EvidenceSource) for one in self._all)
        tail = self._known(np.frombuffer(self._native.tail(max(_LONGEST, self._max_suffix)), np.int32))
        contexts: list[_Tokens] = []
        befores: list[_Tokens] = []
        if any(not one.gives_evidence for one in self._all):
            contexts, befores = self._contexts(tail)
        proposals = self._proposals(max_nodes if evident else 0)
        own = tail[-self._max_suffix :]
        return _Question(own, proposals, max_nodes, self._max_suffix, rows_for(max_nodes), contexts, befores)

    def _proposals(self, max_nodes: int) -> TokenTree:
        """Return the tree that the other sources would draft, as far as it is in the vocabulary."""
        packed, scores, _ = self._native.draft(max_nodes, _NO_COSTS)
        tree = TokenTree.from_packed(packed, (0, 0), scores)
        if not (tree.tokens >= self._vocabulary_size).any():
            return tree
        places: dict[int, int] = {-1: -1}
        for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
            if token < self._vocabulary_size and parent in places:
                places[node] = len(places) - 1
        del places[-1]
        kept = list(places)
        parents = [places.get(parent, -1) for parent in tree.parents[kept].tolist()]
        assert tree.scores is not None
        return TokenTree(tree.tokens[kept], parents, tree.counts[kept], scores=tree.scores[kept])

    def _contexts(self, tail: _Tokens) -> tuple[list[_Tokens], list[_Tokens]]:
        """Return suffixes of the context and of the paths that the other sources would draft, and those paths."""
        longest = max(_LONGEST, self._max_suffix)
        contexts: list[_Tokens] = []
        if tail.size:
            contexts = [tail[-min(size, self._max_suffix) :] for size in (longest, *_SUFFIXES)]
        befores = [tail[:0]] * len(contexts)
        own = self._native.draft(_OWN_NODES, _NO_COSTS)
        tree = TokenTree.from_packed(own[0], (0, 0))
        paths: list[_Tokens] = []
        for token, parent in zip(tree.tokens, tree.parents.tolist(), strict=True):
            path = np.append(paths[parent] if parent >= 0 else tail[:0], token)
            paths.append(path)
            whole = self._known(np.concatenate([tail, path]))
            for size in (longest, _SUFFIX_OF_PATHS) if whole.size else ():
                befores.append(path)
                contexts.append(whole[-min(size, self._max_suffix + path.size) :])
        return contexts, befores

    def _known(self, tokens: _Tokens) -> _Tokens:
        """Return the last tokens that are all in the vocabulary."""
        outside = np.flatnonzero(tokens >= self._vocabulary_size)
        return tokens[outside[-1] + 1 :] if outside.size else tokens

    def _give(self, one: _Asked, question: _Question, answer: _Answer) -> None:
        """Hand an answer to the kernel; raise if it is none to `question`."""
        evidence, trees = answer
        if evidence or trees:
            self._require_tokenizer(one.source)
        one.gives_evidence = evidence is not None
        if evidence is None and not question.contexts:
            return
        if evidence is None:
            self._native.give(one.store, self._checked(question, trees))
            return
        for found in evidence:
            if found.datastore not in one.stores:
                one.stores[found.datastore] = self._native.add_store(one.place) if one.stores else one.store
            store = one.stores[found.datastore]
            self._native.give_evidence(store, found.rows, self._vocabulary_size, question.max_rows)

    def _require_tokenizer(self, source: Source) -> None:
        """Raise TokenizerMismatchError if `source`, which has answered, is known by now to have another tokenizer."""
        own = tokenizer_of(source)
        if own is not None:
            self._tokenizer = self._tokenizer or own
            self._tokenizer.require_same(own, "draft session")

    def _checked(self, question: _Question, trees: list[TokenTree]) -> list[tuple[Any, ...]]:
        """Return `trees` as the kernel takes them; raise if they answer something else than `question`."""
        given: list[tuple[Any, ...]] = []
        for context, before, tree in zip(question.contexts, question.befores, trees, strict=True):
            tokens, match = tree.tokens, tree.match
            if tokens.size > _ASKED_NODES or not (tokens.size > 0) <= match.length <= context.size:
                raise ValueError("more nodes than asked for, or no match of this context")
            if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < self._vocabulary_size:
                raise ValueError("a token outside the vocabulary")
            given.append((before, match.length, match.count, tree.counts, tokens, tree.parents))
        return given


def tokenizer_of(source: object) -> TokenizerIdentity | None:
    """Return the tokenizer that `source` says it has; None if it has none, or does not know it."""
    try:
        own = getattr(source, "tokenizer", None)
    except Exception:
        return None
    return own if isinstance(own, TokenizerIdentity) else None


def seconds(timeout: float | None) -> float | None:
    """Return `timeout`; raise LimitError unless it is None or a time that can be waited for."""
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (number and 0 <= timeout <= threading.TIMEOUT_MAX):
        raise LimitError(describe("draft session", "source_timeout", repr(timeout), "None or seconds from 0 on"))
    return timeout


def _answer(source: Source, question: _Question) -> _Answer:
    """Ask `source` for evidence, and for trees if it has none."""
    if isinstance(source, EvidenceSource):
        found = source.evidence(
            question.tail,
            question.proposals,
            max_nodes=question.max_nodes,
            max_suffix=question.max_suffix,
            max_rows=question.max_rows,
        )
        if found is not None:
            return found, []
    if not question.contexts:
        return None, []
    longest = max(_LONGEST, question.max_suffix)
    trees = source.draft_batch(question.contexts, max_nodes=_ASKED_NODES, max_suffix=longest, max_depth=_ASKED_DEPTH)
    return None, trees


def _awaited(one: _Asked, asked: Future[_Answer] | None, deadline: float) -> _Answer:
    """Return the answer, which must come before `deadline`; LateError if it does not."""
    if asked is None:
        raise LateError
    one.late = asked
    asked.exception(max(0.0, deadline - time.monotonic()))  # raises if there is no answer
    one.late = None
    return asked.result()
