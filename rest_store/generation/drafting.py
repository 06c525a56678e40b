"""The drafting side of a generation, kept at arm's length: what raises, is late or is malformed changes nothing.

A drafter is somebody's code, often with a network behind it. Here it runs on a thread of its own and is asked for the
next tree while the model's answer is written out; a tree is looked at before it is used, and what goes wrong is
counted.
"""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree

EMPTY = TokenTree([], [], [])
_TRIES = 3  # failures in a row after which a drafter is asked no more


class Session(Protocol):
    """The drafting side of one generation, for example a `DraftSession`."""

    def draft(self, *, max_nodes: int, costs: npt.NDArray[np.float64] | None) -> TokenTree:
        """Return a tree of continuations of all tokens so far, of at most `max_nodes` nodes; may be empty.

        Args:
            max_nodes: the budget.
            costs: float64[max_nodes + 1], seconds of a step that verifies 0, 1, ... draft tokens; None: not known.
        """

    def accept(self, tokens: Sequence[int]) -> None:
        """Take over the tokens that the target model produced, at least one, oldest first.

        A session whose `accept` also has an argument `top_k` is given int64[len(tokens), k] with it: the model's
        likeliest next tokens after each of `tokens`, -1 where not known yet. One that has `node_top_k` is given
        int64[1 + N, k], the same after the context and after each of the N nodes of its last tree, accepted or not;
        None if that tree was not verified.
        """

    def close(self) -> None:
        """Let go of everything; nothing is asked afterwards."""


@dataclass
class DraftCounts:
    """What a drafter did in one generation, in trees.

    Attributes:
        asked: trees asked for.
        nodes: draft tokens verified.
        accepted: draft tokens accepted.
        failed: calls that raised.
        malformed: answers that are not a tree over the vocabulary within the budget.
        late: answers that were not there in time.
        errors: the first few reasons, as text.
    """

    asked: int = 0
    nodes: int = 0
    accepted: int = 0
    failed: int = 0
    malformed: int = 0
    late: int = 0
    errors: list[str] = field(default_factory=list)

    def note(self, reason: str) -> None:
        """Keep a reason, unless there are many already."""
        if len(self.errors) < 4:
            self.errors.append(reason)


def well_formed(tree: object, max_nodes: int, vocabulary_size: int) -> str | None:
    """Return what is wrong with a drafter's answer; None if it can be verified."""
    if not isinstance(tree, TokenTree):
        return f"a {type(tree).__name__}, not a TokenTree"
    size = len(tree)
    if not size:
        return None
    if size > max_nodes:
        return f"{size} nodes, asked for at most {max_nodes}"
    if len(tree.packed) != 20 * size:
        return "columns of unequal length"
    tokens, parents, depths = tree.tokens, tree.parents, tree.depths
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocabulary_size:
        return f"a token outside 0..{vocabulary_size - 1}"
    if bool((parents >= np.arange(size)).any()) or int(parents.min()) < -1:
        return "a parent that does not come before its child"
    above = np.where(parents < 0, 0, depths[parents])
    if bool((depths != above + 1).any()):
        return "depths that do not follow from parents"
    return None


def pruned(tree: TokenTree, max_nodes: int, max_depth: int) -> tuple[TokenTree, npt.NDArray[np.int64]]:
    """Return the first `max_nodes` nodes of `tree` no deeper than `max_depth`, and their places in `tree`."""
    kept = np.flatnonzero(tree.depths <= max_depth)[: max(0, max_nodes)]
    if kept.size == len(tree):
        return tree, kept
    places = np.full(len(tree) + 1, -1, dtype=np.int64)  # the last one stands for parent -1
    places[kept] = np.arange(kept.size)
    return TokenTree(tree.tokens[kept], places[tree.parents[kept]], tree.counts[kept], match=tree.match), kept


class Draft:
    """A tree for one row, as it came and as it is verified.

    Attributes:
        tree: what is verified, pruned to what can be accepted.
        origins: for each node of `tree` a bitmask of the sources that proposed it; 1 for all if the drafter says none.
    """

    def __init__(self, tree: TokenTree, max_nodes: int, max_depth: int) -> None:
        self.tree, self._kept = pruned(tree, max_nodes, max_depth)
        self._size = len(tree)
        origins = getattr(tree, "origins", None)
        if origins is None or len(origins) != len(tree):
            self.origins = [1] * len(self.tree)
        else:
            self.origins = np.asarray(origins)[self._kept].tolist()

    def of_all_nodes(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        """Spread rows for the context and each node verified over the nodes as they came, -1 elsewhere."""
        if not self._size:
            return None
        spread = np.full((1 + self._size, rows.shape[1]), -1, dtype=np.int64)
        spread[0] = rows[0]
        spread[1 + self._kept] = rows[1 : 1 + len(self.tree)]
        return spread


class Accepted(NamedTuple):
    """What the model produced for a row in one step; the arrays are as in `Session.accept`."""

    row: int
    tokens: list[int]
    top_k: npt.NDArray[np.int64]
    node_top_k: npt.NDArray[np.int64] | None


class Drafting:
    """The sessions of all rows of a generation, run by one thread in the order in which they are asked.

    Args:
        make: for each row what makes its session; called on the thread, so that it overlaps the prompt's forward pass.
            None: the row is not drafted for.
        vocabulary_size: token ids of the model.

    Used by one thread; its own thread is a daemon and ends with `close`, or when what it is doing returns.
    """

    def __init__(self, make: Sequence[Callable[[], Session] | None], vocabulary_size: int) -> None:
        self.counts = DraftCounts()
        self._vocabulary_size = vocabulary_size
        self._sessions: list[Session | None] = [None] * len(make)
        self._open = [maker is not None for maker in make]
        self._failures = [0] * len(make)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._round = 0
        self._answered = 0
        self._news = threading.Condition()
        self._answer: list[TokenTree] = []
        self._accepted: list[Accepted] = []
        self._reads: list[set[str]] = [set() for _ in make]
        if any(self._open):
            threading.Thread(target=self._work, name="rest-store drafting", daemon=True).start()
            self._jobs.put(lambda: self._make(make))

    @property
    def active(self) -> bool:
        """Whether there is a drafter left to ask."""
        return any(self._open)

    @property
    def busy(self) -> bool:
        """Whether an answer is still being waited for, after being late."""
        with self._news:
            return self._answered < self._round

    @property
    def reads_logits(self) -> bool:
        """Whether some session is told the likeliest next tokens."""
        return any(is_open and reads for is_open, reads in zip(self._open, self._reads, strict=True))

    def accept(self, accepted: Accepted) -> None:
        """Note what the model produced for a row; told to the session with the next `ask`."""
        if self._open[accepted.row]:
            self._accepted.append(accepted)

    def ask(self, rows: Sequence[int], max_nodes: int, costs: npt.NDArray[np.float64] | None) -> None:
        """Begin to draft trees of at most `max_nodes` nodes for `rows`; with none, only tell what was accepted."""
        accepted, self._accepted = self._accepted, []
        if not self.active:
            return
        self._round += 1
        number, wanted = self._round, list(rows)
        self.counts.asked += len(wanted)
        self._jobs.put(lambda: self._draft(number, accepted, wanted, max_nodes, costs))

    def trees(self, timeout: float) -> list[TokenTree]:
        """Return the tree of each row, empty where there is none; wait `timeout` seconds at most."""
        nothing = [EMPTY] * len(self._open)
        if not self.active:
            return nothing
        with self._news:
            if self._news.wait_for(lambda: self._answered == self._round, timeout):
                return self._answer
        self.counts.late += 1
        self.counts.note(f"no answer within {timeout:.3f} s")
        return nothing

    def close(self) -> None:
        """Close all sessions, on their thread; do not wait for it."""
        if any(session is not None for session in self._sessions) or self.active:
            self._jobs.put(self._close)
        self._jobs.put(None)
        self._open = [False] * len(self._open)

    # --- on the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _make(self, make: Sequence[Callable[[], Session] | None]) -> None:
        for row, maker in enumerate(make):
            if maker is not None:
                try:
                    session = self._sessions[row] = maker()
                    self._reads[row] = {"top_k", "node_top_k"} & set(inspect.signature(session.accept).parameters)
                except Exception as error:
                    self._give_up(row, f"opening: {_shown(error)}")

    def _draft(
        self,
        number: int,
        accepted: list[Accepted],
        rows: list[int],
        max_nodes: int,
        costs: npt.NDArray[np.float64] | None,
    ) -> None:
        for told in accepted:
            session = self._sessions[told.row]
            if session is not None:
                more: dict[str, Any] = {name: getattr(told, name) for name in self._reads[told.row]}
                try:
                    session.accept(told.tokens, **more)
                except Exception as error:  # it no longer knows the context
                    self._give_up(told.row, f"accept: {_shown(error)}")
        trees = [EMPTY] * len(self._sessions)
        for row in rows:
            if number == self._round:  # else nobody waits for this answer any more
                trees[row] = self._tree(row, max_nodes, costs)
        with self._news:
            self._answer, self._answered = trees, number
            self._news.notify_all()

    def _tree(self, row: int, max_nodes: int, costs: npt.NDArray[np.float64] | None) -> TokenTree:
        session = self._sessions[row]
        if session is None:
            return EMPTY
        try:
            tree = session.draft(max_nodes=max_nodes, costs=costs)
            wrong = well_formed(tree, max_nodes, self._vocabulary_size)
        except Exception as error:
            self._failures[row] += 1
            self.counts.failed += 1
            self.counts.note(f"draft: {_shown(error)}")
        else:
            if wrong is None:
                self._failures[row] = 0
                return tree
            self._failures[row] += 1
            self.counts.malformed += 1
            self.counts.note(f"draft: {wrong}")
        if self._failures[row] >= _TRIES:
            self._shut(row)
        return EMPTY

    def _give_up(self, row: int, reason: str) -> None:
        self.counts.failed += 1
        self.counts.note(reason)
        self._shut(row)

    def _shut(self, row: int) -> None:
        session, self._sessions[row] = self._sessions[row], None
        self._open[row] = False
        if session is not None:
            try:
                session.close()
            except Exception as error:
                self.counts.note(f"close: {_shown(error)}")

    def _close(self) -> None:
        for row in range(len(self._sessions)):
            self._shut(row)


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def tree_of(paths: Sequence[Sequence[int]]) -> TokenTree:
    """Return the tree of several continuations, shared where they begin alike, the first one in front."""
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
