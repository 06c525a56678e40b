"""What a client asks: the method of each call, its request, and how its answer is read. Sends nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, Generic, ParamSpec, TypeVar

from rest_store.datastore.kernel import MAX_NODES, MAX_SUFFIX
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import Contexts, IntSequence, batch, limit, limits
from rest_store.drafting.evidence import MAX_EVIDENCE_ROWS, Evidence
from rest_store.errors import RestStoreError
from rest_store.service.client.answers import ServiceInfo, parsed
from rest_store.service.client.codec import Counterpart, Limits, by_name, longest, longest_of_each
from rest_store.service.client.counters import Tally
from rest_store.v1 import datastore_pb2 as pb

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class Question(Generic[T]):
    """One call.

    Attributes:
        method: of the service.
        request: makes the message, once the service is known; raises QueryError for what cannot be asked.
        read: reads an answer, given who sent it; raises ServiceError for what is none.
    """

    method: str
    request: Callable[[], bytes]
    read: Callable[[bytes, str], T]


def evidence_limits(max_nodes: int, max_suffix: int, max_rows: int) -> pb.EvidenceLimits:
    """Return the limits of a question for evidence as a message; raise LimitError for one that is out of range."""
    return pb.EvidenceLimits(
        max_nodes=limit("max_nodes", max_nodes, MAX_NODES),
        max_suffix=limit("max_suffix", max_suffix, MAX_SUFFIX),
        max_rows=limit("max_rows", max_rows, MAX_EVIDENCE_ROWS),
    )


def _counted(ask: Callable[Concatenate[Questions, P], T]) -> Callable[Concatenate[Questions, P], T]:
    """Count a question that cannot be asked as a call that was refused."""

    @functools.wraps(ask)
    def counted(self: Questions, /, *arguments: P.args, **options: P.kwargs) -> T:
        try:
            return ask(self, *arguments, **options)
        except RestStoreError as error:
            self.tally.failed(error)
            raise

    return counted


class Questions:
    """Makes the questions of one client. Thread-safe.

    Args:
        counterpart: the service.
        tally: counts what cannot be asked.
    """

    def __init__(self, counterpart: Counterpart, tally: Tally) -> None:
        self.counterpart = counterpart
        self.tally = tally
        self.describe = Question("Describe", bytes, self._learn)

    def _learn(self, answer: bytes, target: str) -> ServiceInfo:
        return self.counterpart.learn(parsed(pb.DescribeResponse, answer, target), target)

    @_counted
    def match(self, context: IntSequence, max_suffix: int) -> Question[SuffixMatch]:
        """Ask for the longest suffix match; raise LimitError if `max_suffix` is out of range."""
        known, most = self.counterpart, limit("max_suffix", max_suffix, MAX_SUFFIX)

        def read(answer: bytes, target: str) -> SuffixMatch:
            return known.match(parsed(pb.LongestSuffixMatchResponse, answer, target), most, target)

        return Question("LongestSuffixMatch", lambda: known.match_request(context, most), read)

    def count(self, tokens: IntSequence) -> Question[int]:
        """Ask for the occurrences of `tokens`."""
        known = self.counterpart

        def read(answer: bytes, target: str) -> int:
            return known.count(parsed(pb.CountResponse, answer, target), target)

        return Question("Count", lambda: known.count_request(tokens), read)

    @_counted
    def draft(self, context: IntSequence, max_nodes: int, max_suffix: int, max_depth: int) -> Question[TokenTree]:
        """Ask for the draft tree of the longest match; raise LimitError for a limit out of range, as the next three."""
        bounds = limits(max_nodes, max_suffix, max_depth)
        return self._drafts([context], bounds, None, lambda _, trees: longest(trees))

    @_counted
    def draft_each(
        self, context: IntSequence, max_nodes: int, max_suffix: int, max_depth: int
    ) -> Question[dict[str, TokenTree]]:
        """Ask for the draft tree of each datastore."""
        bounds = limits(max_nodes, max_suffix, max_depth)
        return self._drafts([context], bounds, None, lambda names, trees: dict(zip(names, trees, strict=True)))

    @_counted
    def draft_with(
        self, context: IntSequence, proposals: TokenTree, max_nodes: int, max_suffix: int, max_depth: int
    ) -> Question[dict[str, list[TokenTree]]]:
        """Ask for the draft trees after `context` and after each of `proposals`."""
        return self._drafts([context], limits(max_nodes, max_suffix, max_depth), proposals, by_name)

    @_counted
    def draft_batch(
        self, contexts: Contexts, max_nodes: int, max_suffix: int, max_depth: int
    ) -> Question[list[TokenTree]] | None:
        """Ask for the draft tree of each of `contexts`; None if there are none."""
        bounds = limits(max_nodes, max_suffix, max_depth)
        asked = batch(contexts)
        return self._drafts(asked, bounds, None, longest_of_each, several=True) if asked else None

    @_counted
    def evidence(
        self, context: IntSequence, proposals: TokenTree, max_nodes: int, max_suffix: int, max_rows: int
    ) -> Question[list[Evidence] | None]:
        """Ask for evidence; the answer is None if the one who answers knows none.

        Raises:
            LimitError: a limit is out of range.
        """
        known, asked = self.counterpart, evidence_limits(max_nodes, max_suffix, max_rows)

        def read(answer: bytes, target: str) -> list[Evidence] | None:
            response = parsed(pb.DraftResponse, answer, target)
            names = known.answering(response.datastores, target)
            if response.trees:
                return None
            return known.evidence(response.evidence, names, asked, target)

        return Question("Draft", lambda: known.evidence_request(context, proposals, asked), read)

    def _drafts(
        self,
        contexts: Sequence[IntSequence],
        bounds: Limits,
        proposals: TokenTree | None,
        gather: Callable[[tuple[str, ...], list[TokenTree]], T],
        *,
        several: bool = False,
    ) -> Question[T]:
        """Ask for drafts; `gather` takes the names of the datastores and, context by context, the trees of each."""
        known = self.counterpart
        each = 1 + (len(proposals) if isinstance(proposals, TokenTree) else 0)

        def read(answer: bytes, target: str) -> T:
            response = parsed(pb.DraftResponse, answer, target)
            names = known.answering(response.datastores, target)
            trees = known.drafts(response.trees, names, bounds, target, groups=len(contexts), each=each)
            return gather(names, trees)

        return Question("Draft", lambda: known.draft_request(contexts, bounds, proposals, several=several), read)
