"""The service as its client knows it: which datastores answer, and what may be asked of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rest_store.datastore.kernel import MAX_SUFFIX, native_evidence_fault
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import IntSequence, tail, too_many_tokens
from rest_store.drafting.evidence import Evidence
from rest_store.errors import ProtocolError, TokenizerMismatchError, TreeError, UnknownDatastoreError, describe
from rest_store.service.client.answers import ServedDatastore, ServiceInfo, TreeReader, served_by
from rest_store.v1 import datastore_pb2 as pb

Limits = tuple[int, int, int]  # max_nodes, max_suffix, max_depth
evidence_fault = native_evidence_fault()


class Step(NamedTuple):
    """What a step of a stream asks for beyond the tree of the context."""

    proposals: pb.Proposals | None = None
    evidence: pb.EvidenceLimits | None = None


class Counterpart:
    """Builds requests and reads answers; sends nothing.

    The tokenizer is settled by the first description: the one given, else that of the datastores asked. From then on
    every request names it, so that no other endpoint can answer in ids that mean something else.

    Thread-safe once described.

    Args:
        names: datastores to ask; none: all whose tokenizer matches.
        tokenizer: identity of the tokenizer in use, or None.
    """

    def __init__(self, names: Sequence[str], tokenizer: TokenizerIdentity | None) -> None:
        self.names = tuple(names)
        self._tokenizer = tokenizer
        self._selection = pb.Selection()
        self.vocabulary_size = 0  # until described
        self.max_evidence_rows = 0  # until described; of a service that knows no evidence, too

    @property
    def tokenizer(self) -> TokenizerIdentity | None:
        """The tokenizer given, else that of the datastores asked; None until described."""
        return self._tokenizer

    @property
    def is_known(self) -> bool:
        """Whether the service has been described."""
        return self.vocabulary_size > 0

    def learn(self, response: pb.DescribeResponse, target: str) -> ServiceInfo:
        """Settle what is asked from a description; return it.

        Raises:
            TokenizerMismatchError: a datastore to be asked was built with another tokenizer; says what differs.
            UnknownDatastoreError: there is no datastore of a name given.
            ProtocolError: the description contradicts itself.
        """
        chosen = self._chosen(served_by(response, target), target)
        kept = response.limits
        found = {field.name: int(getattr(kept, field.name)) for field in kept.DESCRIPTOR.fields}
        info = ServiceInfo(target, response.version, response.kernel, chosen, found)
        self._tokenizer = self._tokenizer or info.tokenizer
        self._selection = pb.Selection(datastores=self.names, tokenizer_fingerprint=self._tokenizer.fingerprint)
        self.max_evidence_rows = found["max_evidence_rows"] if evidence_fault is not None else 0
        self.vocabulary_size = info.tokenizer.vocabulary_size
        return info

    def _chosen(self, served: tuple[ServedDatastore, ...], target: str) -> tuple[ServedDatastore, ...]:
        by_name = {one.name: one for one in served}
        for name in self.names:
            if name not in by_name:
                found = ", ".join(repr(known) for known in by_name)
                raise UnknownDatastoreError(describe(target, f"datastore '{name}'", "absent", f"one of {found}"))
        chosen = tuple(by_name[name] for name in self.names) or served
        tokenizer = self._tokenizer
        if tokenizer is not None and not self.names:
            chosen = tuple(one for one in chosen if one.tokenizer == tokenizer) or chosen[:1]
        for one in chosen:
            if tokenizer is not None:
                one.tokenizer.require_same(tokenizer, f"{target}: datastore '{one.name}'")
            elif one.tokenizer != chosen[0].tokenizer:
                raise TokenizerMismatchError(
                    describe(
                        target,
                        f"tokenizer of datastore '{one.name}'",
                        f"'{one.tokenizer.name}'",
                        f"'{chosen[0].tokenizer.name}' as of '{chosen[0].name}'; name datastores or a tokenizer",
                    )
                )
        return chosen

    def draft_request(
        self, contexts: Sequence[IntSequence], bounds: Limits, proposals: TokenTree | None = None, *, several: bool
    ) -> bytes:
        """Return the request for drafts of `contexts`; raise QueryError for one that cannot be asked."""
        max_nodes, max_suffix, max_depth = bounds
        asked = [
            tail(context, max_suffix, self.vocabulary_size, f"context {place}" if several else "context")
            for place, context in enumerate(contexts)
        ]
        return pb.DraftRequest(
            selection=self._selection,
            limits=pb.DraftLimits(max_nodes=max_nodes, max_suffix=max_suffix, max_depth=max_depth),
            contexts=[pb.Context(tokens=tokens, proposals=self.proposed(proposals)) for tokens in asked],
        ).SerializeToString()

    def evidence_request(self, context: IntSequence, proposals: TokenTree, asked: pb.EvidenceLimits) -> bytes:
        """Return the request for evidence after `context`, which may be empty; raise QueryError, TreeError as above."""
        tokens = tail(context, asked.max_suffix, self.vocabulary_size) if len(context) else []
        return pb.DraftRequest(
            selection=self._selection,
            contexts=[pb.Context(tokens=tokens, proposals=self.proposed(proposals, scored=True))],
            evidence=self.bounded(asked),
        ).SerializeToString()

    def bounded(self, asked: pb.EvidenceLimits) -> pb.EvidenceLimits:
        """Return what is asked for, of rows no more than the service has."""
        rows = min(asked.max_rows, self.max_evidence_rows)
        return pb.EvidenceLimits(max_nodes=asked.max_nodes, max_suffix=asked.max_suffix, max_rows=rows)

    def stream_request(self, tokens: list[int], bounds: Limits | None, step: Step, sequence: int) -> bytes:
        """Return one message of a stream; its first has `bounds`."""
        request = pb.DraftStreamRequest(
            tokens=tokens, sequence=sequence, proposals=step.proposals, evidence=step.evidence
        )
        if bounds is not None:
            request.selection.CopyFrom(self._selection)
            request.limits.max_nodes, request.limits.max_suffix, request.limits.max_depth = bounds
        return request.SerializeToString()

    def proposed(self, proposals: TokenTree | None, *, scored: bool = False) -> pb.Proposals | None:
        """Return proposals as a message, with their scores if need be.

        Raises:
            TreeError, TokenRangeError: what is no tree of this vocabulary.
        """
        if proposals is None or (isinstance(proposals, TokenTree) and not len(proposals)):
            return None
        if not isinstance(proposals, TokenTree):
            raise TreeError(describe("query", "proposals", type(proposals).__name__, "a TokenTree"))
        tokens = proposals.tokens.tolist()
        if min(tokens) < 0 or max(tokens) >= self.vocabulary_size:
            tail(tokens, len(tokens), self.vocabulary_size, "proposals")  # says which
        scores = proposals.scores if scored else None
        return pb.Proposals(
            tokens=tokens, parents=proposals.parents.tolist(), scores=None if scores is None else scores.tolist()
        )

    def match_request(self, context: IntSequence, max_suffix: int) -> bytes:
        """Return the request for the longest suffix match of `context`."""
        tokens = tail(context, max_suffix, self.vocabulary_size)
        return pb.LongestSuffixMatchRequest(
            selection=self._selection, max_suffix=max_suffix, tokens=tokens
        ).SerializeToString()

    def count_request(self, tokens: IntSequence) -> bytes:
        """Return the request for the occurrences of `tokens`; raise QueryError for what cannot be asked."""
        asked = tail(tokens, MAX_SUFFIX, self.vocabulary_size, "tokens")
        if len(tokens) > MAX_SUFFIX:
            raise too_many_tokens(len(tokens))
        return pb.CountRequest(
            selection=self._selection, sequences=[pb.TokenSequence(tokens=asked)]
        ).SerializeToString()

    def answering(self, names: Iterable[str], target: str) -> tuple[str, ...]:
        """Return the names of the datastores that answered; raise ProtocolError unless they are those asked."""
        found = tuple(names)
        if not found or len(set(found)) != len(found) or (self.names and found != self.names):
            expected = self.names or "one or more, each once"
            raise ProtocolError(describe(target, "datastores that answer", found, expected))
        return found

    def drafts(
        self, trees: Sequence[pb.Tree], names: tuple[str, ...], bounds: Limits, target: str, *, groups: int, each: int
    ) -> list[TokenTree]:
        """Return the trees of `groups` contexts with `each` trees for every datastore, verified, in their order."""
        expected = groups * len(names) * each
        if len(trees) != expected:
            raise ProtocolError(describe(target, "number of trees", len(trees), expected))
        return TreeReader(target, self.vocabulary_size, *bounds).read(trees)

    def evidence(
        self, found: Sequence[pb.Evidence], names: tuple[str, ...], asked: pb.EvidenceLimits, target: str
    ) -> list[Evidence]:
        """Return the evidence of each datastore for one context, verified.

        Raises:
            ProtocolError: of another number of datastores, or not as the definition says.
        """
        if len(found) != len(names):
            raise ProtocolError(describe(target, "number of datastores with evidence", len(found), len(names)))
        for one in found:
            assert evidence_fault is not None  # else none was asked for
            fault = evidence_fault(one.rows, self.vocabulary_size, asked.max_rows)
            if fault is not None:
                expected = f"rows of a vocabulary of {self.vocabulary_size}, at most {asked.max_rows}"
                raise ProtocolError(describe(target, "evidence", fault, expected))
        return [Evidence(name, one.rows) for name, one in zip(names, found, strict=True)]

    def match(self, response: pb.LongestSuffixMatchResponse, max_suffix: int, target: str) -> SuffixMatch:
        """Return the longest match of an answer, of equal ones the first."""
        self.answering((one.datastore for one in response.matches), target)
        for one in response.matches:
            if one.length > max_suffix or (one.length == 0) != (one.count == 0):
                found = f"{one.length} tokens, {one.count} occurrences"
                raise ProtocolError(describe(target, "match", found, f"at most {max_suffix} tokens that occur"))
        best = max(response.matches, key=lambda one: one.length)
        return SuffixMatch(best.length, best.count)

    def count(self, response: pb.CountResponse, target: str) -> int:
        """Return the occurrences in all datastores together."""
        names = self.answering(response.datastores, target)
        if len(response.counts) != len(names):
            raise ProtocolError(describe(target, "number of counts", len(response.counts), len(names)))
        return sum(response.counts)


def longest(trees: Sequence[TokenTree]) -> TokenTree:
    """Return the tree of the longest match, of equal ones the first."""
    return trees[0] if len(trees) == 1 else max(trees, key=lambda tree: tree.match.length)


def longest_of_each(names: Sequence[str], trees: list[TokenTree]) -> list[TokenTree]:
    """Return the tree of the longest match for each context, given those of every datastore, context by context."""
    step = len(names)
    return trees if step == 1 else [longest(trees[at : at + step]) for at in range(0, len(trees), step)]


def by_name(names: Sequence[str], trees: Sequence[TokenTree]) -> dict[str, list[TokenTree]]:
    """Return the trees of one context by name of datastore, given those of the first, then of the second, and so on."""
    each = len(trees) // len(names)
    return {name: list(trees[place * each : (place + 1) * each]) for place, name in enumerate(names)}
