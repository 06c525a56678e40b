"""The sources of one draft session: the kernel's session in this process, and members elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.datastore.store import Store
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import label
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.draft_options import Accepted, DraftOptions, TopK
from rest_store.drafting.grammar import ConstrainedTree, Grammar
from rest_store.drafting.kernel_session import follow_changes, kernel_session
from rest_store.drafting.members import Member, MemberSettings, MemberSource, Origins, require_tree
from rest_store.drafting.merge import merge_trees, tree_from_columns
from rest_store.drafting.session_grammar import SessionGrammar, unconstrained
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
    from rest_store._kernel import ScoredColumns

# For each node of a source's tree, the index of the node of the session's tree; -1: none.
NodeIndices = npt.NDArray[np.int32]
_NO_NODES = np.zeros(0, np.int32)


class Omission(NamedTuple):
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
    def from_error(cls, source: str, error: Exception) -> Omission:
        """Return the omission of a source that raised `error`."""
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
        nodes: for each node of the member's tree, its index in the session's tree. None: no tree
            has arrived in this step. Empty: `accept` has cleared it.
    """

    source: str
    member: Member
    nodes: NodeIndices | None = None


class SessionSources:
    """The sources of one session, as the steps of a session or of many ask them.

    A step calls `send`, the kernel, `receive` and `merge`, in this order (`steps.py`).

    Args:
        sources, calibration, learn, timeout: as in `DraftSession`.
        tokenizer: of the session; None: that of the first datastore in this process.
        prompt: int32[n], the text so far.
        references: int32[n] each, as in `DraftSession`.
        group: as in `DraftSession`.

    Attributes:
        native: the kernel's side of the session.
        datastores: datastores in this process, by index.
        members: the sessions in other processes.
        service_origins: origins of the sources in other processes, as a bitmask.
        waited: seconds that the latest step waited for members.

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
        group: str = "",
    ) -> None:
        if references and not any(isinstance(source, PromptLookup) for source in sources):
            raise SourceError(
                "draft session: references without a PromptLookup among the sources, expected one"
                " to search them"
            )
        self._group = label("draft session", "a group", group)
        own = [
            source.read_as(group) if group and isinstance(source, Store) else source
            for source in sources
        ]
        self.native, self.datastores = kernel_session(calibration, own, learn=learn)
        self.members: list[OpenMember] = []
        self.service_origins = 0
        self.waited = 0.0
        self._names = source_names(sources)
        self._timeout = timeout
        self._is_closed = False
        self._grammar: SessionGrammar | None = None
        self._permanent_omissions: list[Omission] = []
        self._step_omissions: list[Omission] = []  # of this step
        self._waiting: list[OpenMember] = []  # members whose trees have not come in this step
        self._deadline: float | None = None  # of this step, as of `time.monotonic`
        self._options = DraftOptions(0)  # of this step
        self._answers: list[tuple[OpenMember, TokenTree]] = []  # of this step
        # The tree since the last `accept`, if a member's tree is in it.
        self._merged: TokenTree | None = None
        self._kernel_nodes = _NO_NODES  # of the kernel's tree in `_merged`
        identity = self._leave_out_other_tokenizers(tokenizer)
        if identity is not None:
            self.native.limit_tokens(identity.vocabulary_size)
        for reference in references:
            self.native.add_reference(reference)
        self.native.prompt(prompt)
        self._open_grammar(sources)
        self._open_members(sources, references, identity, learn=learn)
        self._searches_references = bool(references) and not all(
            opened.member.has_references for opened in self.members
        )

    def _leave_out_other_tokenizers(
        self, tokenizer: TokenizerIdentity | None
    ) -> TokenizerIdentity | None:
        """Leave out datastores of another tokenizer than the session's; return the latter."""
        for index, opened in list(self.datastores.items()):
            if tokenizer is None:
                tokenizer = opened.store.tokenizer
            try:
                tokenizer.require_same(opened.store.tokenizer, "draft session")
            except TokenizerMismatchError as error:
                self._leave_out_datastore(index, Omission.from_error(self._names[index], error))
        return tokenizer

    def _open_grammar(self, sources: Sequence[object]) -> None:
        for index, source in enumerate(sources):
            if not isinstance(source, Grammar):
                continue
            try:
                self._grammar = SessionGrammar(source, 1 << index, self._report_grammar)
            except Exception as error:
                self._permanent_omissions.append(Omission.from_error(self._names[index], error))
                return
            self.native.use_filter(index, self._grammar.filter)

    def _report_grammar(self, error: Exception) -> None:
        self._permanent_omissions.append(Omission.from_error("grammar", error))

    def _open_members(
        self,
        sources: Sequence[object],
        references: Sequence[npt.NDArray[np.int32]],
        tokenizer: TokenizerIdentity | None,
        *,
        learn: bool,
    ) -> None:
        """Open the sessions of the sources in other processes."""
        origins = _member_origins(sources)
        for index, source in enumerate(sources):
            if isinstance(source, Store | PromptLookup | RecycledLogits | Grammar):
                continue
            assert isinstance(source, MemberSource)  # as `require_sources` has checked
            self.service_origins |= 1 << index
            settings = MemberSettings(
                learn=learn,
                tokenizer=tokenizer,
                prompt_lookup=bool(origins.prompt_lookup),
                references=references,
                recycled_logits=_logits_key(sources),
                origins=origins._replace(datastores=1 << index),
                group=self._group,
            )
            name = self._names[index]
            try:
                for member in source.members(settings, self._text):
                    self.members.append(OpenMember(name, member))
            except Exception as error:
                self._permanent_omissions.append(Omission.from_error(name, error))

    def _text(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.native.text(), np.int32)

    @property
    def omissions(self) -> list[Omission]:
        """The sources that the latest step goes on without."""
        return self._permanent_omissions + self._step_omissions

    # --- a step -----------------------------------------------------------------------------------

    @property
    def uses_kernel(self) -> bool:
        """Whether the kernel drafts in each step, also where members answer."""
        return not self.members or bool(self.datastores) or self._searches_references

    def send(self, options: DraftOptions, *, services: bool) -> None:
        """Begin a step: ask the members for their trees, if `services` are to be asked."""
        self._options = options
        self._merged = None
        self._step_omissions = []
        self._answers = []
        self._waiting = []
        self.waited = 0.0
        if self._grammar is not None:
            self._grammar.begin_step()
        for opened in self.members:
            opened.nodes = None
        if not self.members or not services:
            return
        began = perf_counter()
        self._deadline = None if self._timeout is None else monotonic() + self._timeout
        member_options = options.for_members
        for opened in self.members.copy():
            try:
                opened.member.send(member_options)
            except Exception as error:
                self._leave_out_of_step(opened, error)
            else:
                self._waiting.append(opened)
        self.waited = perf_counter() - began

    def receive(self) -> bool:
        """Wait for the members' trees; return whether one has come."""
        if not self._waiting:
            return False
        began = perf_counter()
        waiting = self._waiting
        self._waiting = []
        for opened in waiting:
            timeout = None if self._deadline is None else max(0.0, self._deadline - monotonic())
            try:
                tree = opened.member.receive(timeout)
                require_tree(opened.source, tree, self._options.for_members)
            except Exception as error:
                self._leave_out_of_step(opened, error)
            else:
                self._answers.append((opened, tree))
        self.waited += perf_counter() - began
        return bool(self._answers)

    def merge(self, columns: ScoredColumns | None) -> TokenTree:
        """Return the draft of the step.

        Args:
            columns: the kernel's tree; None: the kernel has not drafted, and a member's tree has
                come.
        """
        if columns is None:
            self.native.forget()
        elif not self._answers:
            return tree_from_columns(columns)
        constrained = [self._constrain(tree) for _, tree in self._answers]
        trees = [one.tree for one in constrained]
        if columns is not None:
            trees.append(tree_from_columns(columns))
        if len(trees) == 1:
            merged = trees[0]
            indices = [np.arange(len(merged), dtype=np.int32)]
        else:
            merged, indices = merge_trees(trees, self._options)
        self._map_nodes(indices, constrained)
        self._kernel_nodes = _NO_NODES if columns is None else indices[-1]
        self._merged = merged
        return merged

    def _map_nodes(
        self, indices: Sequence[NodeIndices], constrained: Sequence[ConstrainedTree]
    ) -> None:
        """Set `nodes` of each member that has answered.

        Args:
            indices: for each tree that was merged, the members' first, the indices of its nodes in
                the merged tree.
            constrained: the members' trees as the grammar has left them.
        """
        for number, (opened, _) in enumerate(self._answers):
            # Index -1, a node that the grammar has removed, reads the element that is appended.
            merged_or_removed = np.append(indices[number], np.int32(-1))
            opened.nodes = merged_or_removed[constrained[number].nodes]

    def _constrain(self, tree: TokenTree) -> ConstrainedTree:
        if self._grammar is None:
            return unconstrained(tree)
        return self._grammar.constrain(tree, self._options.for_members)

    def forget(self) -> None:
        """Discard the latest draft, as if none had been made since the last `accept`."""
        self.native.forget()
        self._merged = None
        for opened in self.members:
            opened.nodes = None

    # --- accepted tokens --------------------------------------------------------------------------

    def for_kernel(self, accepted: Accepted) -> Accepted:
        """Return accepted tokens with the rows of `node_top_k` that belong to the kernel's tree.

        Raises:
            ContextTypeError: there are not as many rows as the merged tree needs.
        """
        node_top_k = accepted.node_top_k
        if node_top_k is None or self._merged is None:
            return accepted
        expected_rows = 1 + len(self._merged)
        if len(node_top_k) != expected_rows:
            shape = list(node_top_k.shape)
            raise ContextTypeError(
                describe(
                    "draft session", "node_top_k", f"of shape {shape}", f"[{expected_rows}, k]"
                )
            )
        return accepted._replace(node_top_k=_rows_of_nodes(self._kernel_nodes, node_top_k))

    def accept(self, accepted: Accepted) -> None:
        """Pass accepted tokens on to members and grammar, after the kernel has appended them.

        A member that raises has lost the text, and is left out from then on.
        """
        if self._grammar is not None:
            self._grammar.accept(accepted.tokens.tolist())
        for opened in self.members.copy():
            rows = _rows_of_nodes(opened.nodes, accepted.node_top_k)
            try:
                opened.member.accept(accepted.tokens, accepted.top_k, rows)
            except Exception as error:
                self._leave_out_for_good(opened, Omission.from_error(opened.source, error))
            opened.nodes = _NO_NODES
        self._merged = None

    # --- sources that fail ------------------------------------------------------------------------

    def follow_changes(self) -> None:
        """Read the present shards of live datastores from now on."""
        follow_changes(self.native, self.datastores.values())

    def leave_out_unreadable(self) -> bool:
        """Leave out datastores that have lost a page or were closed; return whether any were."""
        faults = {index: opened.fault() for index, opened in self.datastores.items()}
        for index, fault in faults.items():
            if fault:
                self._leave_out_datastore(index, Omission(self._names[index], "error", fault))
        return any(faults.values())

    def _leave_out_datastore(self, index: int, omission: Omission) -> None:
        """Draft without a datastore from now on. Every step counts the omission."""
        del self.datastores[index]
        self.native.remove_store(index)
        self._permanent_omissions.append(omission)

    def _leave_out_of_step(self, opened: OpenMember, error: Exception) -> None:
        """Go on without a member in this step, or for good if it has another tokenizer."""
        omission = Omission.from_error(opened.source, error)
        if omission.why == "tokenizer":
            self._leave_out_for_good(opened, omission)
        else:
            self._step_omissions.append(omission)

    def _leave_out_for_good(self, opened: OpenMember, omission: Omission) -> None:
        """Close a member, and draft without it from now on. Every step counts the omission."""
        self._permanent_omissions.append(omission)
        self.members.remove(opened)
        with suppress(Exception):
            opened.member.close()

    def require_open(self, where: str) -> None:
        """Raise SessionClosedError after `close`."""
        if self._is_closed:
            raise SessionClosedError(f"{where}: the session is closed")

    def close(self) -> None:
        """End the sessions in other processes; may be called again."""
        self._is_closed = True
        for opened in self.members:
            with suppress(Exception):  # the others are closed, too
                opened.member.close()


def _member_origins(sources: Sequence[object]) -> Origins:
    """Return the bits of the session's prompt lookup and recycled logits; 0: it has none.

    A member has its own, whose candidates count as the session's.
    """
    lookup_origin = 0
    logits_origin = 0
    for index, source in enumerate(sources):
        if isinstance(source, PromptLookup):
            lookup_origin = 1 << index
        elif isinstance(source, RecycledLogits):
            logits_origin = 1 << index
    return Origins(0, lookup_origin, logits_origin)


def _logits_key(sources: Sequence[object]) -> bytes | None:
    """Return the key of the session's recycled logits; None: they are no source."""
    for source in sources:
        if isinstance(source, RecycledLogits):
            return source.key
    return None


def _rows_of_nodes(nodes: NodeIndices | None, node_top_k: TopK | None) -> TopK | None:
    """Return the rows of likely tokens for the tree of one source.

    Args:
        nodes: for each of the N nodes of the source's tree, its index in the session's tree.
        node_top_k: [1 + M, k], of the session's tree.

    Returns:
        [1 + N, k], rows of -1 where unknown; None: all are unknown.
    """
    if nodes is None or node_top_k is None:
        return None
    unknown = np.full((1, node_top_k.shape[1]), -1, node_top_k.dtype)
    indices = np.where(nodes >= 0, nodes + 1, len(node_top_k))
    rows: TopK = np.concatenate([node_top_k, unknown])[np.concatenate([[0], indices])]
    return rows
