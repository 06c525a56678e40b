"""The requests of a client: the method of each, its message, and how its answer is read. Sends nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Concatenate, Generic, ParamSpec, TypeVar

from rest_store.datastore.kernel import MAX_NODES, MAX_SEQUENCE, MAX_SUFFIX
from rest_store.datastore.render import counted
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import (
    Contexts,
    IntSequence,
    batch,
    document_ids,
    limit,
    limits,
    tail,
    too_many_tokens,
)
from rest_store.drafting.evidence import MAX_EVIDENCE_ROWS, Evidence, rows_for
from rest_store.errors import ProtocolError, describe
from rest_store.service.client.answers import (
    DESCRIPTION_BYTES,
    NUMBER_BYTES,
    ServiceInfo,
    evidence_bytes,
    parse,
    tree_bytes,
)
from rest_store.service.client.codec import Codec, TreeLimits, longest, tail_of
from rest_store.service.client.counters import ClientCounters
from rest_store.service.client.documents import batches_of, new_documents
from rest_store.v1 import datastore_pb2 as pb

T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")


@dataclass(frozen=True)
class Request(Generic[T]):
    """One request.

    Attributes:
        method: of the service.
        encode: makes the message, once the service is known; raises QueryError for what cannot be asked.
        decode: reads an answer, given its bytes and who sent it; raises ServiceError for one that is not valid.
    """

    method: str
    encode: Callable[[], bytes]
    decode: Callable[[bytes, str], T]

    def then(self, make: Callable[[T], U]) -> Request[U]:
        """Return the request whose answer is what `make` makes of the answer of this one."""
        return Request(self.method, self.encode, lambda answer, target: make(self.decode(answer, target)))


def longest_match(matches: Iterable[SuffixMatch]) -> SuffixMatch:
    """Return the longest match, of equal ones the first."""
    return max(matches, key=lambda match: match.length)


def evidence_limits(max_nodes: int, max_suffix: int, max_rows: int | None) -> pb.EvidenceLimits:
    """Return limits of evidence as a message; raise LimitError for one that is out of range."""
    nodes = limit("max_nodes", max_nodes, MAX_NODES)
    return pb.EvidenceLimits(
        max_nodes=nodes,
        max_suffix=limit("max_suffix", max_suffix, MAX_SUFFIX),
        max_rows=rows_for(nodes) if max_rows is None else limit("max_rows", max_rows, MAX_EVIDENCE_ROWS),
    )


def _counted(make: Callable[Concatenate[Requests, P], T]) -> Callable[Concatenate[Requests, P], T]:
    """Count a request that cannot be made as a call that was refused."""

    @functools.wraps(make)
    def counted(self: Requests, /, *arguments: P.args, **options: P.kwargs) -> T:
        with self.counters.failures:
            return make(self, *arguments, **options)

    return counted


class Requests:
    """Makes the requests of one client. Thread-safe. All methods raise LimitError for a limit out of range.

    Args:
        codec: what is known of the service.
        counters: count requests that cannot be made.
    """

    def __init__(self, codec: Codec, counters: ClientCounters) -> None:
        self.codec = codec
        self.counters = counters
        self.describe = Request("Describe", bytes, self._learn)

    def _learn(self, answer: bytes, target: str) -> ServiceInfo:
        return self.codec.learn(parse(pb.DescribeResponse, answer, target, DESCRIPTION_BYTES), target)

    def match(self, context: IntSequence, max_suffix: int) -> Request[SuffixMatch]:
        """Ask for the longest suffix match of `context`; with several datastores, of equal matches the first."""
        return self.matches(context, max_suffix).then(lambda matches: longest_match(matches.values()))

    @_counted
    def matches(self, context: IntSequence, max_suffix: int) -> Request[dict[str, SuffixMatch]]:
        """Ask for the longest suffix match of `context` in each datastore."""
        codec, longest_suffix = self.codec, limit("max_suffix", max_suffix, MAX_SUFFIX)

        def encode() -> bytes:
            tokens = tail(context, longest_suffix, codec.vocabulary_size)
            return pb.LongestSuffixMatchRequest(
                selection=codec.selection, max_suffix=longest_suffix, tokens=tokens
            ).SerializeToString()

        def decode(answer: bytes, target: str) -> dict[str, SuffixMatch]:
            matches = parse(pb.LongestSuffixMatchResponse, answer, target, codec.largest(NUMBER_BYTES)).matches
            codec.require_names((match.datastore for match in matches), target)
            for match in matches:
                if match.length > longest_suffix or (match.length == 0) != (match.count == 0):
                    found = f"{counted(match.length, 'token')}, {counted(match.count, 'occurrence')}"
                    expected = f"at most {longest_suffix} tokens that occur"
                    raise ProtocolError(describe(target, "match", found, expected))
            return {match.datastore: SuffixMatch(match.length, match.count) for match in matches}

        return Request("LongestSuffixMatch", encode, decode)

    def count(self, tokens: IntSequence) -> Request[int]:
        """Ask for the occurrences of `tokens` in all datastores together."""
        codec = self.codec

        def sequences() -> list[list[int]]:
            sequence = tail(tokens, MAX_SEQUENCE, codec.vocabulary_size, "tokens")
            if len(tokens) > MAX_SEQUENCE:
                raise too_many_tokens(len(tokens))
            return [sequence]

        return self._counts(sequences, 1).then(lambda counts: sum(number for [number] in counts.values()))

    def counts(self, sequences: Sequence[Sequence[int]]) -> Request[dict[str, list[int]]]:
        """Ask for the occurrences of each of `sequences`, which are valid, in each datastore."""
        return self._counts(lambda: sequences, len(sequences))

    def _counts(self, sequences: Callable[[], Sequence[Sequence[int]]], number: int) -> Request[dict[str, list[int]]]:
        codec = self.codec

        def encode() -> bytes:
            request = pb.CountRequest(selection=codec.selection)
            for sequence in sequences():
                request.sequences.add(tokens=sequence)
            return request.SerializeToString()

        def decode(answer: bytes, target: str) -> dict[str, list[int]]:
            response = parse(pb.CountResponse, answer, target, codec.largest(NUMBER_BYTES, number))
            names = codec.require_names(response.datastores, target)
            expected = len(names) * number
            if len(response.counts) != expected:
                raise ProtocolError(describe(target, "number of counts", len(response.counts), expected))
            return {name: list(response.counts[place :: len(names)]) for place, name in enumerate(names)}

        return Request("Count", encode, decode)

    @_counted
    def draft(self, context: IntSequence, max_nodes: int, max_suffix: int, max_depth: int) -> Request[TokenTree]:
        """Ask for the draft tree of `context`; with several datastores, that of the longest match."""
        drafts = self._drafts([context], ["context"], limits(max_nodes, max_suffix, max_depth))
        return drafts.then(lambda trees: trees[0])

    @_counted
    def draft_batch(
        self, contexts: Contexts, max_nodes: int, max_suffix: int, max_depth: int
    ) -> Request[list[TokenTree]] | None:
        """Ask for what `draft` asks for, for each of `contexts`; None if there are none."""
        bounds, rows = limits(max_nodes, max_suffix, max_depth), batch(contexts)
        if not rows:
            return None
        return self._drafts(rows, [f"context {place}" for place in range(len(rows))], bounds)

    def _drafts(
        self, contexts: Sequence[IntSequence], labels: Sequence[str], bounds: TreeLimits
    ) -> Request[list[TokenTree]]:
        trees = self.trees(contexts, labels, bounds)
        return trees.then(lambda answers: [longest(list(by_name.values())) for by_name in answers])

    def trees(
        self, contexts: Sequence[IntSequence], labels: Sequence[str], bounds: TreeLimits
    ) -> Request[list[dict[str, TokenTree]]]:
        """Ask for the draft tree of each of `contexts` in each datastore.

        Args:
            contexts: at least one.
            labels: how messages name them.
            bounds: limits, checked; more than 1024 nodes count for several contexts.
        """
        codec, (max_nodes, max_suffix, max_depth) = self.codec, bounds

        def encode() -> bytes:
            tails = [
                tail(context, max_suffix, codec.vocabulary_size, label)
                for context, label in zip(contexts, labels, strict=True)
            ]
            return pb.DraftRequest(
                selection=codec.selection,
                limits=pb.DraftLimits(max_nodes=max_nodes, max_suffix=max_suffix, max_depth=max_depth),
                contexts=[pb.Context(tokens=tokens) for tokens in tails],
            ).SerializeToString()

        def decode(answer: bytes, target: str) -> list[dict[str, TokenTree]]:
            most = codec.largest(tree_bytes(max_nodes), len(contexts))
            response = parse(pb.DraftResponse, answer, target, most)
            names = codec.require_names(response.datastores, target)
            step = len(names)
            trees = codec.trees(response.trees, len(contexts) * step, bounds, target)
            return [dict(zip(names, trees[start:], strict=False)) for start in range(0, len(trees), step)]

        return Request("Draft", encode, decode)

    @_counted
    def evidence(
        self, context: IntSequence, proposals: TokenTree, max_nodes: int, max_suffix: int, max_rows: int | None
    ) -> Request[list[Evidence] | None]:
        """Ask for evidence after `context`, which may be empty; the answer of a service that has none is None."""
        codec, bounds = self.codec, evidence_limits(max_nodes, max_suffix, max_rows)

        def encode() -> bytes:
            tokens = tail_of(context, bounds.max_suffix, codec.vocabulary_size)
            return pb.DraftRequest(
                selection=codec.selection,
                contexts=[pb.Context(tokens=tokens, proposals=codec.proposals(proposals))],
                evidence=codec.bounded(bounds),
            ).SerializeToString()

        def decode(answer: bytes, target: str) -> list[Evidence] | None:
            response = parse(pb.DraftResponse, answer, target, codec.largest(evidence_bytes(bounds)))
            names = codec.require_names(response.datastores, target)
            return None if response.trees else codec.evidence(response.evidence, names, bounds, target)

        return Request("Draft", encode, decode)

    @_counted
    def add(
        self, documents: Sequence[IntSequence], ids: Sequence[str] | None, datastore: str | None
    ) -> list[Request[list[str]]]:
        """Add documents to a live datastore, in as many requests as they take, once the service is known."""
        name, new = self.codec.live_name(datastore), new_documents(documents, ids, self.codec.vocabulary_size)
        batches = self._batches(new, [document.ByteSize() for document in new])
        return [self._addition(name, batch) for batch in batches]

    def _batches(self, items: Sequence[T], sizes: Sequence[int]) -> Iterator[Sequence[T]]:
        return batches_of(items, sizes, self.codec.max_message_bytes, self.codec.max_documents)

    def _addition(self, name: str, documents: Sequence[pb.Document]) -> Request[list[str]]:
        def encode() -> bytes:
            fingerprint = self.codec.selection.tokenizer_fingerprint
            request = pb.AddRequest(datastore=name, tokenizer_fingerprint=fingerprint, documents=documents)
            return request.SerializeToString()

        def decode(answer: bytes, target: str) -> list[str]:
            ids = [document.id for document in documents]
            most = sum(len(id.encode()) for id in ids) + NUMBER_BYTES * len(ids)
            if list(parse(pb.AddResponse, answer, target, most).ids) != ids:
                raise ProtocolError(describe(target, "ids of documents", "others", "those that were sent"))
            return ids

        return Request("Add", encode, decode)

    @_counted
    def delete(self, ids: Sequence[str], datastore: str | None) -> list[Request[int]]:
        """Delete documents of a live datastore, in as many requests as they take, once the service is known."""
        name, known = self.codec.live_name(datastore), document_ids("delete", ids)
        return [self._deletion(name, batch) for batch in self._batches(known, [len(id.encode()) for id in known])]

    def _deletion(self, name: str, ids: Sequence[str]) -> Request[int]:
        def encode() -> bytes:
            return pb.DeleteRequest(datastore=name, ids=ids).SerializeToString()

        def decode(answer: bytes, target: str) -> int:
            deleted = parse(pb.DeleteResponse, answer, target, NUMBER_BYTES).deleted
            if deleted > len(ids):
                raise ProtocolError(describe(target, "number of documents", deleted, f"at most {len(ids)}"))
            return int(deleted)

        return Request("Delete", encode, decode)
