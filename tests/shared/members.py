"""Members of draft sessions without a network: scripted ones, and real sessions over datastores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import DraftOptions, TopK
from rest_store.drafting.members import MemberSettings
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits

Text = Callable[[], npt.NDArray[np.int32]]


def scored(
    tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float], origin: int = 1
) -> TokenTree:
    """Return a tree as members return it."""
    return TokenTree(
        tokens, parents, [0] * len(tokens), scores=scores, origins=[origin] * len(tokens)
    )


class ScriptedSource:
    """A source with one member, which says what it is told to.

    Args:
        *answers: for each step, a tree to return, or an exception to raise; the last one is
            repeated. The class of an exception is raised by `send`.

    Attributes:
        log: what it was called with, in order.
    """

    has_references = False

    def __str__(self) -> str:
        return "scripted"

    def __init__(self, *answers: TokenTree | BaseException | type[BaseException]) -> None:
        self.answers = list(answers)
        self.log: list[tuple[Any, ...]] = []
        self.settings: MemberSettings | None = None

    def members(self, settings: MemberSettings, text: Text) -> Sequence[ScriptedSource]:
        self.settings = settings
        self.text = text
        return [self]

    def send(self, limits: DraftOptions) -> None:
        self.log.append(("send", limits))
        answer = self.answers[0]
        if isinstance(answer, type):
            self._next()
            raise answer("cannot be sent")

    def receive(self, timeout: float | None) -> TokenTree:
        self.log.append(("receive", timeout))
        answer = self._next()
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[return-value]  # whatever it was told to say

    def _next(self) -> TokenTree | BaseException | type[BaseException]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def accept(
        self, tokens: npt.NDArray[np.int32], top_k: TopK | None, node_top_k: TopK | None
    ) -> None:
        rows = [None if rows is None else rows.tolist() for rows in (top_k, node_top_k)]
        self.log.append(("accept", tokens.tolist(), *rows))

    def close(self) -> None:
        self.log.append(("close",))

    def calls(self, name: str) -> list[tuple[Any, ...]]:
        """Return the arguments of all calls of one method."""
        return [call[1:] for call in self.log if call[0] == name]


class Elsewhere:
    """A source of real sessions as members, which hold logits by key as a service does.

    Args:
        *parts: datastores of each member.
    """

    def __str__(self) -> str:
        return "elsewhere"

    def __init__(self, *parts: Sequence[object]) -> None:
        self.parts = parts
        self.logits: list[dict[bytes, RecycledLogits]] = [{} for _ in parts]
        self.opened: list[LocalMember] = []

    def members(self, settings: MemberSettings, text: Text) -> Sequence[LocalMember]:
        parts = zip(self.parts, self.logits, strict=True)
        self.opened = [LocalMember(stores, settings, text, logits) for stores, logits in parts]
        return self.opened


class LocalMember:
    """A member that is a session of this process."""

    has_references = True

    def __init__(
        self,
        stores: Sequence[object],
        settings: MemberSettings,
        text: Text,
        logits: dict[bytes, RecycledLogits],
    ) -> None:
        sources = list(stores)
        self._bits = [settings.origins.datastores] * len(stores)
        if settings.prompt_lookup:
            sources.append(PromptLookup())
            self._bits.append(settings.origins.prompt_lookup)
        if settings.recycled_logits is not None:
            sources.append(logits.setdefault(settings.recycled_logits, RecycledLogits()))
            self._bits.append(settings.origins.recycled_logits)
        self.session = DraftSession(
            sources,
            text(),
            learn=settings.learn,
            tokenizer=settings.tokenizer,
            references=settings.references if self.has_references else (),
        )
        self._accepted: list[tuple[Any, ...]] = []
        self._limits: DraftOptions | None = None

    def send(self, limits: DraftOptions) -> None:
        for tokens, top_k, node_top_k in self._accepted:
            self.session.accept(tokens, top_k, node_top_k=node_top_k)
        self._accepted.clear()
        self._limits = limits

    def receive(self, timeout: float | None) -> TokenTree:
        assert self._limits is not None
        shape = "chain" if self._limits.is_chain else "tree"
        costs = self._limits.costs
        tree = self.session.draft(
            self._limits.max_nodes, costs if costs.size else None, shape=shape
        )
        assert tree.origins is not None
        origins = np.zeros(len(tree), np.uint8)
        for source, bit in enumerate(self._bits):
            origins |= np.where(tree.origins >> source & 1, np.uint8(bit), np.uint8(0))
        return TokenTree(
            tree.tokens, tree.parents, tree.counts, scores=tree.scores, origins=origins
        )

    def accept(
        self, tokens: npt.NDArray[np.int32], top_k: TopK | None, node_top_k: TopK | None
    ) -> None:
        self._accepted.append((tokens, top_k, node_top_k))

    def close(self) -> None:
        self.session.close()
