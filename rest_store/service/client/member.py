"""A member of a draft session: a session that a service runs, over
a stream that is opened again when it breaks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import DraftOptions, TopK
from rest_store.drafting.members import MemberSettings
from rest_store.errors import (
    DeadlineError,
    MessageSizeError,
    ProtocolError,
    RestStoreError,
    ServiceError,
    ServiceUnavailableError,
    TokenizerMismatchError,
    UnknownDatastoreError,
    describe,
)
from rest_store.service.client.partition import PartitionClient, Partitions
from rest_store.service.client.requests import parse
from rest_store.service.client.stream_call import StreamCall
from rest_store.service.client.trees import read_session_tree
from rest_store.v1 import datastore_pb2 as pb

_FIRST_PAUSE, _MAX_PAUSE = 0.1, 30.0  # seconds, between which the pause doubles with each failure
_MAX_DOUBLINGS = 10
_SILENT_ANSWERS = 2  # waited for in vain, after which the service counts as one that answers nobody
_SILENT_SECONDS = 0.002  # that the first answer of a new session is waited for then
_DESCRIBE_SECONDS = 1.0  # between two waits for what a silent service is
# Seconds without the answer of a late step, after which the stream counts as broken.
_MAX_LATENESS = 1.0
# Calls of `accept` that one message has room for; after more the text is sent again.
_MAX_UNSENT = 1024


class ServiceMember:
    """See `Member`, whose methods these are.

    After a failure the next `send` opens another stream with the text: at once at an endpoint that
    has not failed since the last answer, else after a pause that doubles with each failure. Until
    then `send` fails without a call.

    Args:
        partitions: all partitions of the datastore.
        partition: the one whose service runs this session.
        settings: of the session.
        text: returns the text so far, int32[n].
        timeout: seconds that a step waits at most.
        max_sent: tokens of an opening, the last of the text; None: all.
    """

    def __init__(
        self,
        partitions: Partitions,
        partition: PartitionClient,
        settings: MemberSettings,
        text: Callable[[], npt.NDArray[np.int32]],
        *,
        timeout: float,
        max_sent: int | None = None,
    ) -> None:
        self._partitions = partitions
        self._partition = partition
        self._settings = settings
        self._text = text
        self._timeout = timeout
        self._sent = slice(max_sent and -max_sent, None)
        self.has_references = max_sent is None
        self._endpoint = partition.preferred
        self._closed = False
        # Of the stream:
        self._stream: StreamCall | None = None
        # The next message, with what was accepted since the last one.
        self._next = pb.DraftSessionRequest()
        self._length = 0  # tokens that it has been told
        # When a tree was asked for, if its answer has not been read yet.
        self._sent_at: float | None = None
        # That `node_top_k` has next: the text's, and each node's of the tree; 0: the tree is
        # unknown.
        self._rows = 1
        self._origins = b""  # masks of origins of its trees, as ours
        self._has_answered = False
        # Of the present step:
        self._limits = DraftOptions(0)
        self._asked_at = 0.0
        self._is_due = False  # whether `receive` is to send what `send` could not
        # Of failures:
        self._failures = 0  # since the last answer
        self._failure: RestStoreError | None = None  # the latest
        self._rests_until = 0.0
        # The session is opened ahead of its first step, which says what is wrong.
        if partition.is_known:
            try:
                self._open()
                self._send_next()
            except RestStoreError as error:
                self._fail(error)

    def send(self, limits: DraftOptions) -> None:
        """Send what was accepted since the last step, and ask for the next tree."""
        if self._closed:
            raise ServiceUnavailableError("client: the session is closed")
        self._asked_at = time.monotonic()
        if self._stream is not None:
            try:
                # Which is read with the limits that it was asked with.
                self._skip_late_answer(self._stream)
            except DeadlineError:
                raise
            except RestStoreError as error:
                self._fail(error)
        if self._failure is not None and time.monotonic() < self._rests_until:
            raise type(self._failure)(str(self._failure))  # without the traceback of that step
        self._limits = limits
        self._is_due = not self._partition.is_known  # what the service is takes a call that waits
        if not self._is_due:
            try:
                self._send_step()
            except RestStoreError as error:
                self._raise_failed(error)

    def receive(self, timeout: float | None) -> TokenTree:
        """Return the tree that the latest `send` asked for."""
        # From the request on: members of a batch, which are waited for one after the other, are
        # late together.
        ends = self._asked_at + self._timeout
        if timeout is not None:
            ends = min(ends, time.monotonic() + timeout)
        if not self._limits.max_nodes:  # nothing was asked for
            return TokenTree([], [], [], scores=[], origins=[])
        is_brief = self._is_brief()
        if is_brief:
            ends = min(ends, time.monotonic() + _SILENT_SECONDS)
        try:
            if self._is_due:
                self._partitions.describe_partition(self._partition, ends)
                self._endpoint = self._partition.preferred
                self._send_step()
            if self._stream is None or self._sent_at is None:
                raise ServiceUnavailableError(f"{self._endpoint.target}: nothing was sent")
            answer = self._stream.receive(ends)
            if answer is not None:
                return self._read(answer)
        except RestStoreError as error:
            if isinstance(error, DeadlineError | ServiceUnavailableError):
                self._count_unanswered(is_brief)
            self._raise_failed(error)
        self._count_unanswered(is_brief)
        raise DeadlineError(f"{self._endpoint.target}: service did not answer before the deadline")

    def _is_brief(self) -> bool:
        """Return whether the first answer of this session is hardly
        waited for, as others have waited in vain.
        """
        if self._partition.unanswered < _SILENT_ANSWERS or self._has_answered:
            return False
        return (
            not self._is_due or self._asked_at < self._partition.unanswered_at + _DESCRIBE_SECONDS
        )

    def _count_unanswered(self, is_brief: bool) -> None:
        if not is_brief:
            self._partition.unanswered += 1
            self._partition.unanswered_at = self._asked_at

    def accept(
        self, tokens: npt.NDArray[np.int32], top_k: TopK | None, node_top_k: TopK | None
    ) -> None:
        """Keep for the next step what `DraftSession.accept` was told."""
        if self._stream is None:  # the next opening has it in the text
            return
        if len(self._next.accepted) == _MAX_UNSENT:
            self._drop()
            return
        accepted = self._next.accepted.add(tokens=tokens.tolist())
        self._length += len(tokens)
        if top_k is not None:
            _add_top_k(accepted.top_k, top_k[max(0, len(top_k) - self._length) :])
        if node_top_k is not None and len(node_top_k) == self._rows:
            _add_top_k(accepted.node_top_k, node_top_k)
        self._rows = 1

    def close(self) -> None:
        """End the session there; may be called again."""
        self._closed = True
        self._drop()

    def _skip_late_answer(self, stream: StreamCall) -> None:
        """Take the answer of an earlier step that was late.

        Raises:
            DeadlineError: it has not come yet.
            RestStoreError: the stream has ended, or is stuck.
        """
        answer = stream.receive(0.0)  # also raises the error of a stream that has ended meanwhile
        if answer is not None:
            self._read(answer)
            self._rows = 1 if self._next.accepted else 0
        elif self._sent_at is not None:
            late = time.monotonic() - self._sent_at - self._timeout
            if late > _MAX_LATENESS:
                raise ServiceUnavailableError(
                    f"{self._endpoint.target}: service has not answered for {late:.1f} s"
                )
            raise DeadlineError(
                f"{self._endpoint.target}: service has not answered an earlier step yet"
            )

    def _send_step(self) -> None:
        """Ask for a tree, unless it is to have no nodes, after what was accepted.

        Open the stream if there is none.
        """
        if self._stream is None:
            self._open()
        limits, draft = self._limits, self._next.draft
        if limits.max_nodes:
            draft.max_nodes, draft.chain = limits.max_nodes, limits.is_chain
            draft.costs.extend(limits.costs.tolist())
            self._sent_at, self._rows = time.monotonic(), 0
        else:
            self._next.ClearField("draft")
        self._send_next()

    def _send_next(self) -> None:
        """Send `_next`."""
        assert self._stream is not None
        if message := self._next.SerializeToString():
            self._stream.send(message)
        self._next = pb.DraftSessionRequest()

    def _open(self) -> None:
        """Open a stream, whose first message has the text.

        Raises:
            MessageSizeError: the text is too long for the service.
            TokenizerMismatchError: its datastores have another tokenizer.
        """
        requests, settings, target = self._partition.requests, self._settings, self._endpoint.target
        assert requests is not None
        if settings.tokenizer is not None:
            settings.tokenizer.require_same(requests.info.tokenizer, f"{target}: draft session")
        tokens = self._text()[self._sent]
        references = settings.references if self.has_references else ()
        most, size = (
            requests.info.limits["max_session_tokens"],
            len(tokens) + sum(1 + len(one) for one in references),
        )
        if size > most:
            raise MessageSizeError(
                describe(target, "number of tokens of a session", size, f"at most {most}")
            )
        opening = self._next.open
        opening.selection.CopyFrom(requests.selection)
        opening.tokens = tokens.astype("<i4").tobytes()
        opening.references.extend(reference.astype("<i4").tobytes() for reference in references)
        self._length = len(tokens)
        opening.prompt_lookup = settings.prompt_lookup
        opening.recycled_logits = settings.recycled_logits or b""
        opening.fixed_calibration = not settings.learn
        self._origins = self._masks(len(opening.selection.datastores))
        self._stream = self._endpoint.open_session()

    def _read(self, message: bytes) -> TokenTree:
        """Return the tree of an answer.

        Raise ProtocolError unless one was asked for, and this is one.
        """
        asked, self._sent_at = self._sent_at is not None, None
        target, requests = self._endpoint.target, self._partition.requests
        assert requests is not None
        response = parse(pb.DraftSessionResponse, message, target)
        if not asked:
            raise ProtocolError(describe(target, "answer", "a second one", "one for each request"))
        tree = read_session_tree(
            response.nodes, requests.vocabulary_size, self._limits, self._origins, target
        )
        self._has_answered, self._rows = True, 1 + len(tree)
        self._failures, self._failure, self._partition.unanswered = 0, None, 0
        self._partition.preferred = self._endpoint
        return tree

    def _masks(self, datastores: int) -> bytes:
        """Return our origins for each mask of the service, whose bits
        are its datastores, and what the session has.
        """
        origins = self._settings.origins
        bits = [origins.datastores] * datastores
        if self._settings.prompt_lookup:
            bits.append(origins.prompt_lookup)
        if self._settings.recycled_logits is not None:
            bits.append(origins.recycled_logits)
        masks = np.zeros(256, np.uint8)
        for index, bit in enumerate(bits):
            masks[np.arange(256) >> index & 1 > 0] |= bit
        return masks.tobytes()

    def _fail(self, error: RestStoreError) -> None:
        """Drop the stream, and rest."""
        # None before, if it has answered.
        self._failures = 0 if self._has_answered else self._failures + 1
        self._failure = error
        if isinstance(error, UnknownDatastoreError):
            self._partition.is_known = False
        self._drop()
        untried = len(self._partition.endpoints) - self._failures
        pause = 0.0
        if untried <= 0:
            pause = min(_FIRST_PAUSE * 2.0 ** min(-untried, _MAX_DOUBLINGS), _MAX_PAUSE)
        self._rests_until = time.monotonic() + pause
        self._endpoint = self._partition.after(self._endpoint)

    def _raise_failed(self, error: RestStoreError) -> NoReturn:
        target = self._endpoint.target
        self._fail(error)
        if isinstance(error, ServiceError | TokenizerMismatchError):
            raise error
        raise ServiceError(f"{target}: service refused the session ({error})") from error

    def _drop(self) -> None:
        """End the stream; the next one begins with the text."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._next = pb.DraftSessionRequest()
        self._has_answered, self._sent_at, self._rows = False, None, 1


def _add_top_k(message: pb.TopK, rows: TopK | None) -> None:
    """Fill in rows of most likely tokens; without any, nothing."""
    if rows is not None and rows.size:
        message.tokens, message.k = rows.astype("<i4").tobytes(), rows.shape[1]
