"""What a client knows of its service: the datastores that it queries, and how to make and verify messages."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from itertools import islice

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence, tail
from rest_store.drafting.evidence import Evidence
from rest_store.errors import ProtocolError, TokenizerMismatchError, TreeError, UnknownDatastoreError, describe
from rest_store.service.client.answers import NUMBER_BYTES, ServedDatastore, ServiceInfo, read_tree, served_by
from rest_store.service.names import is_name
from rest_store.v1 import datastore_pb2 as pb

TreeLimits = tuple[int, int, int]  # max_nodes, max_suffix, max_depth
_evidence_fault = native_kernel().evidence_fault

_NAME_BYTES = 1024  # longest name of a datastore, unless the service has described a longer one
# Whatever the service says. It keeps at most 64 MiB of documents that wait, and 1 KiB for each counts.
_MOST_STREAM_SESSIONS = 256  # that share a stream
_LARGEST_MESSAGE = 48 << 20  # bytes
_MOST_DOCUMENTS = 8 << 10  # of a request
_SOME_DATASTORES = 64  # that may answer, unless the service has described more


class Codec:
    """Makes parts of requests and verifies parts of answers. Thread-safe once the service is known.

    The first description fixes the tokenizer: the one passed in, else that of the datastores asked. From then on every
    request names it, so that no other endpoint can answer in ids that mean something else.

    Args:
        names: datastores to ask; empty: all whose tokenizer matches.
        tokenizer: identity of the tokenizer in use, or None.

    Attributes:
        tokenizer: the one that every request names; None while it is unknown.
        vocabulary_size: of that tokenizer; 0 until the service has been described.
        max_evidence_rows: most rows of evidence for one context; 0 until the service has been described, and if it has
            no evidence.
        max_request_bytes: largest message that the service takes.
        max_session_tokens: longest text of a session that the service runs; 0: it runs none.
        max_stream_sessions: sessions that may share a stream; 0: none.
        max_message_bytes: largest answer, and largest request that adds or deletes documents; at most 48 MiB.
        max_documents: most documents of such a request.
        names: of the datastores that are asked, in the order of answers.
        live: names of the live ones among them.
        calibration: fingerprint of the service's calibration.
        max_datastores: most datastores that may answer.
        max_contexts: most contexts of a request, times datastores.
        asks_parts: whether requests name the parts and builds that were described, so that no others answer.
        selection: what every request selects.
    """

    def __init__(self, names: Sequence[str], tokenizer: TokenizerIdentity | None) -> None:
        self._names = tuple(names)
        self.tokenizer = tokenizer
        self.vocabulary_size = 0
        self.max_evidence_rows = 0
        self.max_request_bytes = 0
        self.max_session_tokens = self.max_stream_sessions = 0
        self.max_message_bytes = self.max_documents = 0
        self.max_contexts = 1
        self.asks_parts = False
        self.names: tuple[str, ...] = ()
        self.live: tuple[str, ...] = ()
        self.calibration = ""
        self.max_datastores = len(self._names) or _SOME_DATASTORES
        self._name_bytes = _NAME_BYTES
        self._forgotten = False
        self.selection = pb.Selection()

    @property
    def is_known(self) -> bool:
        """Whether the service has been described."""
        return self.vocabulary_size > 0 and not self._forgotten

    def learn(self, response: pb.DescribeResponse, target: str) -> ServiceInfo:
        """Take in the description of a service, and return what this client asks of it.

        Raises:
            TokenizerMismatchError: a datastore to be asked was built with another tokenizer; says what differs.
            UnknownDatastoreError: the service has no datastore of a name.
            ProtocolError: the description contradicts itself.
        """
        chosen = self._chosen(served_by(response, target), target)
        limits = {field.name: int(getattr(response.limits, field.name)) for field in response.limits.DESCRIPTOR.fields}
        info = ServiceInfo(target, response.version, response.kernel, chosen, limits)
        self.tokenizer = self.tokenizer or info.tokenizer
        parts = []
        if self.asks_parts:
            parts = [datastore.part.message() for datastore in chosen if datastore.part is not None]
        self.selection = pb.Selection(
            datastores=self._names, tokenizer_fingerprint=self.tokenizer.fingerprint, parts=parts
        )
        self.max_evidence_rows = 0
        if _evidence_fault is not None and limits["max_evidence_rows"]:
            of_each = (limits["max_contexts"] or limits["max_evidence_rows"]) // len(chosen)
            self.max_evidence_rows = max(1, min(limits["max_evidence_rows"], of_each))
        self.max_request_bytes = limits["max_request_bytes"] or limits["max_message_bytes"]
        self.max_session_tokens, self.calibration = limits["max_session_tokens"], response.calibration
        self.max_stream_sessions = min(limits["max_stream_sessions"], _MOST_STREAM_SESSIONS)
        self.max_message_bytes = min(limits["max_message_bytes"], _LARGEST_MESSAGE)
        self.max_documents = min(limits["max_contexts"] or 1, _MOST_DOCUMENTS)
        self.max_contexts = max(1, (limits["max_contexts"] or 1) // len(chosen))
        self.names = tuple(datastore.name for datastore in chosen)
        self.live = tuple(datastore.name for datastore in chosen if datastore.live is not None)
        self.max_datastores = max(self.max_datastores, len(chosen))
        self._name_bytes = max(self._name_bytes, *(len(datastore.name.encode()) for datastore in chosen))
        self.vocabulary_size = info.tokenizer.vocabulary_size
        self._forgotten = False
        return info

    def forget(self) -> None:
        """Have the service described again before it is asked; the tokenizer stays the same."""
        self._forgotten = True

    def _chosen(self, served: tuple[ServedDatastore, ...], target: str) -> tuple[ServedDatastore, ...]:
        """Return the datastores that answer requests, in the order of their answers."""
        by_name = {datastore.name: datastore for datastore in served}
        for name in self._names:
            if name not in by_name:
                expected = "one of " + ", ".join(repr(known) for known in by_name)
                raise UnknownDatastoreError(describe(target, f"datastore '{name}'", "absent", expected))
        chosen = tuple(by_name[name] for name in self._names) or served
        tokenizer = self.tokenizer
        if tokenizer is not None and not self._names:
            chosen = tuple(datastore for datastore in chosen if datastore.tokenizer == tokenizer) or chosen[:1]
        for datastore in chosen:
            if tokenizer is not None:
                datastore.tokenizer.require_same(tokenizer, f"{target}: datastore '{datastore.name}'")
            elif datastore.tokenizer != chosen[0].tokenizer:
                what, found = f"tokenizer of datastore '{datastore.name}'", f"'{datastore.tokenizer.name}'"
                expected = f"'{chosen[0].tokenizer.name}' as of '{chosen[0].name}'; name datastores or a tokenizer"
                raise TokenizerMismatchError(describe(target, what, found, expected))
        return chosen

    def live_name(self, name: str | None) -> str:
        """Return the name of the live datastore to write to: `name`, or the only one that is asked.

        Raises:
            UnknownDatastoreError: none is named, and there is not exactly one.
        """
        if name is None and len(self.live) == 1:
            return self.live[0]
        if not is_name(name):
            found = f"{len(self.live)} live ones asked" if name is None else ascii(name)
            raise UnknownDatastoreError(describe("client", "datastore to write to", found, "the name of a live one"))
        return name

    def proposals(self, tree: TokenTree) -> pb.Proposals:
        """Return a tree as the proposals of a request; raise TreeError or TokenRangeError if it is invalid."""
        if not isinstance(tree, TokenTree):
            raise TreeError(describe("query", "proposals", type(tree).__name__, "a TokenTree"))
        tokens = tree.tokens.tolist()
        if tokens:
            tail(tokens, len(tokens), self.vocabulary_size, "proposals")
        scores = None if tree.scores is None else tree.scores.tolist()
        return pb.Proposals(tokens=tokens, parents=tree.parents.tolist(), scores=scores)

    def bounded(self, limits: pb.EvidenceLimits) -> pb.EvidenceLimits:
        """Return `limits` with no more rows than the service gives."""
        rows = min(limits.max_rows, self.max_evidence_rows)
        return pb.EvidenceLimits(max_nodes=limits.max_nodes, max_suffix=limits.max_suffix, max_rows=rows)

    def largest(self, of_datastore: int, number: int = 1) -> int:
        """Return the size of the largest answer with `number` items of `of_datastore` bytes from each datastore."""
        return self.max_datastores * (number * of_datastore + self._name_bytes) + NUMBER_BYTES

    def require_names(self, names: Iterable[str], target: str) -> tuple[str, ...]:
        """Return the names of the datastores that answered; raise ProtocolError unless they are those asked."""
        answering = tuple(islice(names, self.max_datastores + 1))
        if len(answering) > self.max_datastores:
            most = self.max_datastores
            raise ProtocolError(describe(target, "number of datastores that answer", f"over {most}", f"at most {most}"))
        if not answering or len(set(answering)) != len(answering) or (self._names and answering != self._names):
            expected = self._names or "one or more, each once"
            raise ProtocolError(describe(target, "datastores that answer", reprlib.repr(answering), expected))
        return answering

    def trees(self, messages: Sequence[pb.Tree], number: int, limits: TreeLimits, target: str) -> list[TokenTree]:
        """Return the trees of an answer; raise ProtocolError unless they are `number` valid ones within `limits`."""
        if len(messages) != number:
            raise ProtocolError(describe(target, "number of trees", len(messages), number))
        return [read_tree(message, self.vocabulary_size, limits, target) for message in messages]

    def evidence(
        self, messages: Sequence[pb.Evidence], names: tuple[str, ...], limits: pb.EvidenceLimits, target: str
    ) -> list[Evidence]:
        """Return the evidence of each datastore for one context; raise ProtocolError unless it is valid."""
        if len(messages) != len(names):
            raise ProtocolError(describe(target, "number of datastores with evidence", len(messages), len(names)))
        for message in messages:
            assert _evidence_fault is not None  # else none was asked for
            fault = _evidence_fault(message.rows, self.vocabulary_size, limits.max_rows)
            if fault is not None:
                expected = f"rows of a vocabulary of {self.vocabulary_size}, at most {limits.max_rows}"
                raise ProtocolError(describe(target, "evidence", fault, expected))
        return [Evidence(name, one.rows, name in self.live) for name, one in zip(names, messages, strict=True)]


def tail_of(tokens: IntSequence, size: int, vocabulary_size: int) -> list[int]:
    """Return what `tail` does, and an empty list for no tokens; raise QueryError as `tail` for anything else."""
    try:
        is_empty = len(tokens) == 0
    except TypeError:
        is_empty = False  # not a sequence, as `tail` says
    return [] if is_empty else tail(tokens, size, vocabulary_size)


def longest(trees: Sequence[TokenTree]) -> TokenTree:
    """Return the tree of the longest match, of equal ones the first."""
    return max(trees, key=lambda tree: tree.match.length)
