"""The sources of a draft session as its steps ask them: the kernel's session here, and members elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rest_store.datastore.store import Store
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.kernel_session import follow_changes, kernel_session, take_prompt
from rest_store.drafting.limits import DraftLimits, TopK
from rest_store.drafting.members import MemberSettings, MemberSource
from rest_store.drafting.merge import merge_trees
from rest_store.drafting.session_member import Drop, SessionMember, rows_of
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import (
    ContextTypeError,
    DatastoreClosedError,
    DatastoreUnavailableError,
    SessionClosedError,
    TokenizerMismatchError,
    describe,
)

if TYPE_CHECKING:
    from rest_store._kernel import PackedDraft

_NO_NODES = np.zeros(0, np.int32)


class SessionSources:
    """Asks the sources of one session, step by step, for `DraftSession` and for batches of sessions.

    A step is `send`, then `draft_here` where `drafts_here` says so, `receive`, and `merge`. Where no tree has come,
    `draft_here` comes before `merge`.

    Args:
        sources, calibration, learn, max_suffix, timeout: as in `DraftSession`.
        tokenizer: of the session; None: that of the first datastore in this process.
        prompt: int32[n], the text so far.
        prompt_top_k: rows of the last tokens of the prompt.

    Attributes:
        native: the kernel's side of the session.
        datastores: those in this process, by place.
        members: the sessions elsewhere.

    Raises:
        ContextTypeError: `prompt_top_k` has more rows than there are tokens.
        DatastoreClosedError, DatastoreUnavailableError, NativeKernelError: as `kernel_session`.

    Not thread-safe.
    """

    def __init__(
        self,
        sources: Sequence[object],
        calibration: Calibration,
        prompt: npt.NDArray[np.int32],
        prompt_top_k: TopK | None,
        *,
        learn: bool,
        max_suffix: int,
        tokenizer: TokenizerIdentity | None,
        timeout: float | None,
    ) -> None:
        self.native, self.datastores = kernel_session(calibration, sources, learn=learn, max_suffix=max_suffix)
        self.members: list[SessionMember] = []
        self._left_out: list[Drop] = []  # for good
        self._drops: list[Drop] = []  # from this step
        self._timeout = timeout
        self._closed = False
        self._waiting: list[SessionMember] = []  # of this step: members whose answers have not come
        self._ends: float | None = None  # `time.monotonic`
        self._trees: list[tuple[SessionMember, TokenTree]] = []
        self._merged: TokenTree | None = None  # drafted since the last `accept`, if a member's tree is a part of it
        self._nodes = _NO_NODES  # of the kernel's tree, as `SessionMember.nodes`
        for opened in list(self.datastores.values()):
            if tokenizer is None:
                tokenizer = opened.store.tokenizer
            try:
                tokenizer.require_same(opened.store.tokenizer, "draft session")
            except TokenizerMismatchError as error:
                self._leave_out_datastore(Drop.of(opened.place, error))
        if tokenizer is not None:
            self.native.limit_tokens(tokenizer.vocabulary_size)
        take_prompt(self.native, prompt, prompt_top_k)
        self._open_members(sources, MemberSettings(learn, max_suffix, tokenizer, prompt_top_k))

    def _open_members(self, sources: Sequence[object], settings: MemberSettings) -> None:
        """Open the sessions elsewhere; leave out a source that refuses."""
        lookup = recycled = None
        elsewhere: dict[int, MemberSource] = {}
        for place, source in enumerate(sources):
            if isinstance(source, PromptLookup):
                lookup, settings = place, replace(settings, prompt_lookup=True)
            elif isinstance(source, RecycledLogits):
                recycled, settings = place, replace(settings, recycled_logits=source.key)
            elif not isinstance(source, Store):
                assert isinstance(source, MemberSource)  # as `require_sources` has checked
                elsewhere[place] = source
        for place, member_source in elsewhere.items():
            try:
                opened = member_source.members(settings, self._text)
            except Exception as error:
                self._left_out.append(Drop.of(place, error))
            else:
                self.members += [SessionMember(member, place, lookup, recycled) for member in opened]

    def _text(self) -> npt.NDArray[np.int32]:
        return np.frombuffer(self.native.tail(self.native.length()), np.int32)

    @property
    def drops(self) -> list[Drop]:
        """The sources that the latest step goes on without."""
        return self._left_out + self._drops

    @property
    def drafts_here(self) -> bool:
        """Whether the kernel's tree is a part of the session's, also if members answer."""
        return bool(self.datastores) or not self.members

    def send(self, limits: DraftLimits) -> None:
        """Ask the members for the next step."""
        self._forget_merged()
        self._drops, self._waiting = [], []
        if not self.members:
            return
        self._ends = None if self._timeout is None else monotonic() + self._timeout
        for member in self.members.copy():
            drop = member.send(limits)
            if drop is None:
                self._waiting.append(member)
            else:
                self._drop(member, drop)

    def draft_here(self, limits: DraftLimits) -> PackedDraft:
        """Return the kernel's draft of the step."""
        follow_changes(self.native, self.datastores.values())
        draft = self.native.draft(*limits)
        if self.leave_out_unreadable():
            draft = self.native.draft(*limits)
        return draft

    def receive(self, limits: DraftLimits) -> bool:
        """Wait for the members' trees, asked for with `limits`; return whether one has come."""
        for member in self._waiting:
            timeout = None if self._ends is None else max(0.0, self._ends - monotonic())
            answer = member.receive(limits, timeout)
            if isinstance(answer, Drop):
                self._drop(member, answer)
            else:
                self._trees.append((member, answer))
        return bool(self._trees)

    def merge(self, here: PackedDraft | None, limits: DraftLimits) -> TokenTree:
        """Return the draft of the step.

        Args:
            here: the kernel's; None: it has made none, and a member's has come.
            limits: as in `send`.
        """
        trees = [tree for _, tree in self._trees]
        if here is not None:
            packed, scores, origins = here
            trees.append(TokenTree.from_packed(packed, (0, 0), scores, origins))
            if len(trees) == 1:
                return trees[0]
        else:
            self.native.forget()
        if len(trees) == 1:
            merged, nodes = trees[0], [np.arange(len(trees[0]), dtype=np.int32)]
        else:
            merged, nodes = merge_trees(trees, limits)
        for (member, _), of_member in zip(self._trees, nodes, strict=False):  # the kernel's comes last
            member.nodes = of_member
        self._nodes = _NO_NODES if here is None else nodes[-1]
        self._merged = merged
        return merged

    def forget(self) -> None:
        """Discard the latest draft, as if none had been made since the last `accept`."""
        self.native.forget()
        self._forget_merged()

    def _forget_merged(self) -> None:
        self._trees = []
        self._merged = None
        for member in self.members:
            member.forget()

    def rows_here(self, node_top_k: TopK | None) -> TopK | None:
        """Return the rows of `node_top_k` that belong to the kernel's tree; that of `accept` to the session's.

        Raises:
            ContextTypeError: there are not as many rows as the merged tree needs.
        """
        if node_top_k is None or self._merged is None:
            return node_top_k
        if len(node_top_k) != 1 + len(self._merged):
            found, expected = f"of shape {list(node_top_k.shape)}", f"[{1 + len(self._merged)}, k]"
            raise ContextTypeError(describe("draft session", "node_top_k", found, expected))
        return rows_of(self._nodes, node_top_k)

    def accept(
        self, tokens: npt.NDArray[np.int32], top_k: TopK | None, node_top_k: TopK | None, accepted_here: int
    ) -> int:
        """Tell the members what the kernel has appended, `accepted_here` tokens of its own tree.

        Returns:
            How many of `tokens` are in the session's tree.
        """
        accepted = accepted_here if self._merged is None else len(self._merged.longest_path(tokens))
        for member in self.members:
            member.accept(tokens, top_k, node_top_k)
        self._merged = None
        return accepted

    def leave_out_unreadable(self) -> bool:
        """Leave out datastores that have lost a page or were closed; return whether any were."""
        readable = len(self.datastores)
        for opened in list(self.datastores.values()):
            try:
                opened.store.require_readable()
            except (DatastoreUnavailableError, DatastoreClosedError) as error:
                self._leave_out_datastore(Drop(opened.place, "error", str(error)))
        return len(self.datastores) < readable

    def _leave_out_datastore(self, drop: Drop) -> None:
        """Draft without a datastore from now on; every step counts that."""
        del self.datastores[drop.place]
        self.native.remove_store(drop.place)
        self._left_out.append(drop)

    def _drop(self, member: SessionMember, drop: Drop) -> None:
        """Go on without a member: in this step, or for good if it has another tokenizer."""
        if drop.why == "tokenizer":
            self._left_out.append(drop)
            self.members.remove(member)
            member.close()
        else:
            self._drops.append(drop)

    def require_open(self, where: str) -> None:
        """Raise SessionClosedError after `close`."""
        if self._closed:
            raise SessionClosedError(describe(where, "the session", "closed", "open"))

    def close(self) -> None:
        """End the sessions elsewhere; may be called again."""
        self._closed = True
        for member in self.members:
            member.close()
