"""The sources of draft sessions as their steps ask them: the
kernel's sessions here, and members elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.store import Store
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.draft_options import DraftOptions, TopK
from rest_store.drafting.grammar import (
    ConstrainedTree,
    Grammar,
    GrammarText,
    GrammarTree,
    constrained,
)
from rest_store.drafting.kernel_session import follow_changes, kernel_session
from rest_store.drafting.members import Member, MemberSettings, MemberSource, Origins, require_tree
from rest_store.drafting.merge import merge_trees
from rest_store.drafting.sources import PromptLookup, RecycledLogits, source_names
from rest_store.errors import (
    ContextTypeError,
    DeadlineError,
    SessionClosedError,
    SourceError,
    TokenizerMismatchError,
    describe,
    error_text,
)

if TYPE_CHECKING:
    from rest_store._kernel import PackedDraft

# Of each node of a source's tree, the node of the session's that it became; -1: none.
Nodes = npt.NDArray[np.int32]
_NO_NODES = np.zeros(0, np.int32)


class Drop(NamedTuple):
    """A source that a step goes on without.

    Attributes:
        source: its name.
        why: "error", "late" or "tokenizer".
        text: of the error.
    """

    source: str
    why: str
    text: str

    @classmethod
    def of(cls, source: str, error: Exception) -> Drop:
        """Return a source because of `error`."""
        why = "error"
        if isinstance(error, TokenizerMismatchError):
            why = "tokenizer"
        elif isinstance(error, DeadlineError):
            why = "late"
        return cls(source, why, error_text(error))


@dataclass
class OpenMember:
    """A member of a session.

    Attributes:
        source: name of its source.
        member: the member.
        nodes: of its tree since the latest `accept`; None: whether it has one is unknown.
    """

    source: str
    member: Member
    nodes: Nodes | None = None


class SessionSources:
    """The sources of one session, for `DraftSession` and for batches of sessions.

    Args:
        sources, calibration, learn, timeout: as in `DraftSession`.
        tokenizer: of the session; None: that of the first datastore in this process.
        prompt: int32[n], the text so far.
        references: int32[n] each, as in `DraftSession`.

    Attributes:
        native: the kernel's side of the session.
        datastores: those in this process, by index.
        members: the sessions elsewhere.
        elsewhere: origins of these, as a bitmask.
        waited: seconds that the latest step spent on these.

    Raises:
        SourceError: there are references, but no prompt lookup.
        DatastoreClosedError, DatastoreUnavailableError, NativeKernelError: as `kernel_session`.

    Not thread-safe.
    """

    def __init__(
        self,
        sources: Sequence[object],
        calibration: Calibration,
        prompt: npt.NDArray[np.int32],
        references: Sequence[npt.NDArray[np.int32]],
        *,
        learn: bool,
        tokenizer: TokenizerIdentity | None,
        timeout: float | None,
    ) -> None:
        self.native, self.datastores = kernel_session(calibration, sources, learn=learn)
        self._names = source_names(sources)
        self.members: list[OpenMember] = []
        self.elsewhere = 0
        self.waited = 0.0
        self._left_out: list[Drop] = []  # for good
        self._drops: list[Drop] = []  # from this step
        self._timeout = timeout
        self._closed = False
        self._waiting: list[OpenMember] = []  # of this step: members whose answers have not come
        self._ends: float | None = None  # `time.monotonic`, when it waits no longer
        self._most_nodes = 0  # of a tree of this step
        self._answers: list[tuple[OpenMember, TokenTree]] = []
        # Drafted since the last `accept`, if a member's tree is a part of it.
        self._merged: TokenTree | None = None
        self._nodes = _NO_NODES  # of the kernel's tree
        self._grammar: GrammarText | None = None
        self._grammar_tree: GrammarTree | None = None  # of this step
        self._grammar_origin = 0
        for opened in list(self.datastores.values()):
            if tokenizer is None:
                tokenizer = opened.store.tokenizer
            try:
                tokenizer.require_same(opened.store.tokenizer, "draft session")
            except TokenizerMismatchError as error:
                self._leave_out_datastore(opened.index, Drop.of(self._names[opened.index], error))
        if tokenizer is not None:
            self.native.limit_tokens(tokenizer.vocabulary_size)
        bits = {type(source): 1 << index for index, source in enumerate(sources)}
        if references and PromptLookup not in bits:
            raise SourceError(
                describe(
                    "draft session", "sources", "without a PromptLookup", "one, for the references"
                )
            )
        for reference in references:
            self.native.add_reference(reference)
        self.native.prompt(prompt)
        recycled = next(
            (source.key for source in sources if isinstance(source, RecycledLogits)), None
        )
        for index, (name, source) in enumerate(zip(self._names, sources, strict=True)):
            if isinstance(source, Grammar):
                self._open_grammar(index, source)
            if isinstance(source, Store | PromptLookup | RecycledLogits | Grammar):
                continue
            assert isinstance(source, MemberSource)  # as `require_sources` has checked
            self.elsewhere |= 1 << index
            origins = Origins(1 << index, bits.get(PromptLookup, 0), bits.get(RecycledLogits, 0))
            settings = MemberSettings(
                learn, tokenizer, PromptLookup in bits, references, recycled, origins
            )
            try:
                self.members += [
                    OpenMember(name, member) for member in source.members(settings, self._text)
                ]
            except Exception as error:
                self._left_out.append(Drop.of(name, error))
        self._searches_references = bool(references) and not all(
            one.member.has_references for one in self.members
        )

    # --- a grammar --------------------------------------------------------------------------------

    def _open_grammar(self, index: int, grammar: Grammar) -> None:
        try:
            self._grammar = GrammarText(grammar)
        except Exception as error:
            self._left_out.append(Drop.of(self._names[index], error))
            return
        self._grammar_origin = 1 << index
        self.native.use_filter(index, self._filter)

    def _filter(self, *candidates: Any) -> tuple[bytes, bytes] | None:
        """Filter the candidates of a node (`GrammarTree.filter`).

        Without a grammar, or if it fails, keep them.
        """
        if self._grammar is None or self._grammar_tree is None:
            return None
        try:
            return self._grammar_tree.filter(*candidates)
        except Exception as error:
            self._leave_out_grammar(error)
            return None

    def _constrained(self, tree: TokenTree, limits: DraftOptions) -> ConstrainedTree:
        """Return the tree of a member as the grammar leaves it."""
        if self._grammar is not None:
            try:
                return constrained(tree, self._grammar.tree(), limits, self._grammar_origin)
            except Exception as error:
                self._leave_out_grammar(error)
        return ConstrainedTree(tree, np.arange(len(tree), dtype=np.int32))

    def _leave_out_grammar(self, error: Exception) -> None:
        """Go on without the grammar."""
        self._grammar = None
        self._left_out.append(Drop.of("grammar", error))

    def _accept_in_grammar(self, tokens: list[int]) -> None:
        if self._grammar is None:
            return
        try:
            is_in_grammar = self._grammar.accept(tokens)
        except Exception as error:
            self._leave_out_grammar(error)
            return
        if not is_in_grammar:
            self._leave_out_grammar(ValueError("the text has left the grammar"))

    def _text(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.native.text(), np.int32)

    @property
    def drops(self) -> list[Drop]:
        """The sources that the latest step goes on without."""
        return self._left_out + self._drops

    # --- a step -----------------------------------------------------------------------------------

    @property
    def drafts_here(self) -> bool:
        """Whether the kernel's tree is a part of the session's, also if members answer."""
        return not self.members or bool(self.datastores) or self._searches_references

    def send(self, limits: DraftOptions, *, services: bool) -> None:
        """Ask the members for the next step, if `services` are to be asked."""
        self._grammar_tree = None if self._grammar is None else self._grammar.tree()
        self._merged, self._drops, self._answers, self._waiting, self.waited = None, [], [], [], 0.0
        self._most_nodes = limits.max_nodes
        if not self.members:
            return
        began = perf_counter()
        self._ends = None if self._timeout is None else monotonic() + self._timeout
        for opened in self.members.copy():
            opened.nodes = None
            if not services:
                continue
            try:
                opened.member.send(limits)
            except Exception as error:
                self._drop(opened, error)
            else:
                self._waiting.append(opened)
        self.waited = perf_counter() - began if services else 0.0

    def receive(self) -> bool:
        """Wait for the members' trees; return whether one has come."""
        if not self._waiting:
            return False
        began = perf_counter()
        waiting, self._waiting = self._waiting, []
        for opened in waiting:
            try:
                tree = opened.member.receive(
                    None if self._ends is None else max(0.0, self._ends - monotonic())
                )
                require_tree(opened.source, tree, self._most_nodes)
            except Exception as error:
                self._drop(opened, error)
            else:
                self._answers.append((opened, tree))
        self.waited += perf_counter() - began
        return bool(self._answers)

    def merge(self, here: PackedDraft | None, limits: DraftOptions) -> TokenTree:
        """Return the draft of the step.

        Args:
            here: the kernel's; None: it has made none, and a member's has come.
            limits: as in `send`.
        """
        if not self._answers and here is not None:
            return _tree_of(here)
        of_members = [self._constrained(tree, limits) for _, tree in self._answers]
        trees = [one.tree for one in of_members]
        if here is None:
            self.native.forget()
        else:
            trees.append(_tree_of(here))
        if len(trees) == 1:
            merged, nodes = trees[0], [np.arange(len(trees[0]), dtype=np.int32)]
        else:
            merged, nodes = merge_trees(trees, limits)
        for (opened, _), member, of_session in zip(self._answers, of_members, nodes, strict=False):
            # A node of the member's tree may be none of the constrained one.
            opened.nodes = np.append(of_session, np.int32(-1))[member.nodes]
        self._nodes = _NO_NODES if here is None else nodes[-1]
        self._merged = merged
        return merged

    def forget(self) -> None:
        """Discard the latest draft, as if none had been made since the last `accept`."""
        self.native.forget()
        self._merged = None
        for opened in self.members:
            opened.nodes = None

    # --- what was accepted ------------------------------------------------------------------------

    def rows_here(self, node_top_k: TopK | None) -> TopK | None:
        """Return the rows of `node_top_k` that belong to the kernel's tree.

        That of `accept` to the session's.

        Raises:
            ContextTypeError: there are not as many rows as the merged tree needs.
        """
        if node_top_k is None or self._merged is None:
            return node_top_k
        if len(node_top_k) != 1 + len(self._merged):
            found, expected = f"of shape {list(node_top_k.shape)}", f"[{1 + len(self._merged)}, k]"
            raise ContextTypeError(describe("draft session", "node_top_k", found, expected))
        return _rows_of(self._nodes, node_top_k)

    def accept(
        self, tokens: npt.NDArray[np.int32], top_k: TopK | None, node_top_k: TopK | None
    ) -> None:
        """Tell the members what the kernel has appended; those that raise have lost the text."""
        self._accept_in_grammar(tokens.tolist())
        for opened in self.members.copy():
            try:
                opened.member.accept(tokens, top_k, _rows_of(opened.nodes, node_top_k))
            except Exception as error:
                self._leave_out_member(opened, Drop.of(opened.source, error))
            opened.nodes = _NO_NODES
        self._merged = None

    # --- sources that fail ------------------------------------------------------------------------

    def leave_out_unreadable(self) -> bool:
        """Leave out datastores that have lost a page or were closed; return whether any were."""
        faults = {
            index: fault for index, opened in self.datastores.items() if (fault := opened.fault())
        }
        for index, fault in faults.items():
            self._leave_out_datastore(index, Drop(self._names[index], "error", fault))
        return bool(faults)

    def _leave_out_datastore(self, index: int, drop: Drop) -> None:
        """Draft without a datastore from now on; every step counts that."""
        del self.datastores[index]
        self.native.remove_store(index)
        self._left_out.append(drop)

    def _drop(self, opened: OpenMember, error: Exception) -> None:
        """Go on without a member: in this step, or for good if it has another tokenizer."""
        drop = Drop.of(opened.source, error)
        if drop.why == "tokenizer":
            self._leave_out_member(opened, drop)
        else:
            self._drops.append(drop)

    def _leave_out_member(self, opened: OpenMember, drop: Drop) -> None:
        self._left_out.append(drop)
        self.members.remove(opened)
        with suppress(Exception):
            opened.member.close()

    def require_open(self, where: str) -> None:
        """Raise SessionClosedError after `close`."""
        if self._closed:
            raise SessionClosedError(describe(where, "the session", "closed", "open"))

    def close(self) -> None:
        """End the sessions elsewhere; may be called again."""
        self._closed = True
        for opened in self.members:
            with suppress(Exception):  # the others are closed, too
                opened.member.close()


def _tree_of(draft: PackedDraft) -> TokenTree:
    packed, scores, origins = draft
    return TokenTree.from_packed(packed, (0, 0), scores, origins)


def _rows_of(nodes: Nodes | None, node_top_k: TopK | None) -> TopK | None:
    """Return the rows of `node_top_k`, [1 + M, k] of the session's
    tree, that belong to the tree of a source.

    Returns:
        [1 + N, k], rows of -1 where nothing is known; None: nothing is known of any.
    """
    if nodes is None or node_top_k is None:
        return None
    unknown = np.full((1, node_top_k.shape[1]), -1, node_top_k.dtype)
    indices = np.where(nodes >= 0, nodes + 1, len(node_top_k))
    rows: TopK = np.concatenate([node_top_k, unknown])[np.concatenate([[0], indices])]
    return rows


def draft_step(
    sessions: Sequence[SessionSources], limits: Sequence[DraftOptions], *, services: bool
) -> list[TokenTree]:
    """Return the next draft of each session.

    If this raises, as interrupts do, none of them has one.

    Args:
        sessions: different ones.
        limits: of each; with one shape, and all of them with costs or none.
        services: whether members are asked.
    """
    try:
        for session, one in zip(sessions, limits, strict=True):
            session.send(one, services=services)
        drafts = _draft_here(
            sessions, limits, [i for i, session in enumerate(sessions) if session.drafts_here]
        )
        unanswered = [
            i for i, session in enumerate(sessions) if session.members and not session.receive()
        ]
        if unanswered:
            drafts |= _draft_here(sessions, limits, [i for i in unanswered if i not in drafts])
        return [session.merge(drafts.get(i), limits[i]) for i, session in enumerate(sessions)]
    except BaseException:
        for session in sessions:
            session.forget()
        raise


def _draft_here(
    sessions: Sequence[SessionSources], limits: Sequence[DraftOptions], chosen: Collection[int]
) -> dict[int, PackedDraft]:
    """Return what the kernel drafts for the `chosen` sessions."""
    opened = {
        datastore.store: datastore for i in chosen for datastore in sessions[i].datastores.values()
    }
    for i in chosen:
        follow_changes(sessions[i].native, sessions[i].datastores.values())
    drafts = _draft_by_kernel(sessions, limits, chosen)
    if any(datastore.fault() for datastore in opened.values()):
        drafts |= _draft_by_kernel(
            sessions, limits, [i for i in chosen if sessions[i].leave_out_unreadable()]
        )
    return drafts


def _draft_by_kernel(
    sessions: Sequence[SessionSources], limits: Sequence[DraftOptions], chosen: Collection[int]
) -> dict[int, PackedDraft]:
    if not chosen:
        return {}
    if len(sessions) == 1 or limits[0].costs.size:
        return {i: sessions[i].native.draft(*limits[i]) for i in chosen}
    natives, nodes = [sessions[i].native for i in chosen], [limits[i].max_nodes for i in chosen]
    return dict(
        zip(chosen, native_kernel().draft_all(natives, nodes, limits[0].is_chain), strict=True)
    )
