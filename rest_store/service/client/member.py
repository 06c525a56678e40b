"""A member of a draft session: a session that a service runs.

It uses one stream at a time, and opens another when that breaks.
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
from rest_store.service.client.partition_clients import PartitionClient, Partitions
from rest_store.service.client.requests import parse
from rest_store.service.client.stream_call import StreamCall
from rest_store.service.client.trees import read_session_tree
from rest_store.v1 import datastore_pb2 as pb

# Seconds. The pause after a failure starts here, and doubles with each further failure.
_FIRST_PAUSE = 0.1
_MAX_PAUSE = 30.0
_MAX_DOUBLINGS = 10  # the pause is at its longest before; more would overflow
# A service is silent once so many first answers in a row have not come.
_SILENT_ANSWERS = 2
# Seconds that a new session waits for its first answer from a silent service.
_SILENT_SECONDS = 0.002
# Seconds between two waits for the description of a silent service.
_DESCRIBE_SECONDS = 1.0
# Seconds. A stream counts as broken when an answer is later than this.
_MAX_LATENESS = 1.0
# Calls of `accept` that one message has room for. After more, the text is sent again.
_MAX_UNSENT = 1024


class ServiceMember:
    """A session that a service runs (`Member`).

    After a failure the next `send` opens another stream, with the text. It does so at once after a
    stream that had answered, and while there are endpoints that were not tried. Otherwise a
    pause begins, which doubles with each failure. During the pause `send` fails without a call.

    Args:
        partitions: all partitions of the datastore.
        partition: the partition whose service runs this session.
        settings: of the session.
        text: returns the text so far, int32[n].
        timeout: the longest wait of a step, in seconds.
        max_sent: an opening has at most so many tokens, the last ones of the text; None: all.
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
        self._max_sent = max_sent
        self.has_references = max_sent is None
        self._endpoint = partition.preferred
        self._closed = False

        # The stream, and the next message on it, with the tokens accepted since the last one.
        self._stream: StreamCall | None = None
        self._message = pb.DraftSessionRequest()
        self._has_answered = False
        # Tokens of the text that the service has, or that `_message` has for it.
        self._length = 0
        # When the request for the latest tree was sent; None: its answer has been read.
        self._unanswered_since: float | None = None
        # The rows that the next `node_top_k` has to have: one for the text, and one for each node
        # of the tree that was read here. 0: none is sent, since the session lacks the service's
        # tree.
        self._node_rows = 1
        # For each mask of origins of the service, the mask of the session.
        self._origins = b""

        # The present step.
        self._options = DraftOptions(0)
        self._step_began_at = 0.0
        # Whether `receive` has to send the step, because `send` could not.
        self._is_unsent = False

        # Failures since the last answer, the last of them, and the end of the pause after it.
        self._failures = 0
        self._failure: RestStoreError | None = None
        self._paused_until = 0.0

        if partition.is_known:
            self._open_ahead()

    def _open_ahead(self) -> None:
        """Open the stream ahead of the first step, which raises the error if this fails."""
        try:
            self._open()
            self._send_message()
        except RestStoreError as error:
            self._fail(error)

    def send(self, options: DraftOptions) -> None:
        """Send the tokens accepted since the last step, and ask for the next tree."""
        if self._closed:
            raise ServiceUnavailableError("client: the session is closed")
        self._step_began_at = time.monotonic()
        if self._stream is not None:
            # Before `_options` changes: a late answer is read with those of its own step.
            try:
                self._skip_late_answer(self._stream)
            except DeadlineError:
                raise
            except RestStoreError as error:
                self._fail(error)
        if self._failure is not None and time.monotonic() < self._paused_until:
            # A new error: that of the failed step has the traceback of that step.
            raise type(self._failure)(str(self._failure))
        self._options = options
        # The service has to be described first, which waits for it; `receive` may wait.
        self._is_unsent = not self._partition.is_known
        if self._is_unsent:
            return
        try:
            self._send_step()
        except RestStoreError as error:
            self._raise_failed(error)

    def receive(self, timeout: float | None) -> TokenTree:
        """Return the tree that the latest `send` asked for."""
        # The wait begins with the request. So the members of a batch, which are received one after
        # the other, are late together.
        ends = self._step_began_at + self._timeout
        if timeout is not None:
            ends = min(ends, time.monotonic() + timeout)
        if self._options.max_nodes == 0:
            return TokenTree([], [], [], scores=[], origins=[])
        waits_briefly = self._waits_briefly()
        if waits_briefly:
            ends = min(ends, time.monotonic() + _SILENT_SECONDS)
        try:
            tree = self._receive_until(ends)
        except RestStoreError as error:
            if isinstance(error, DeadlineError | ServiceUnavailableError):
                self._count_unanswered(waits_briefly)
            self._raise_failed(error)
        if tree is None:
            self._count_unanswered(waits_briefly)
            target = self._endpoint.target
            raise DeadlineError(f"{target}: service did not answer before the deadline")
        return tree

    def _receive_until(self, ends: float) -> TokenTree | None:
        """Return the tree, or None if it has not come at `ends` (`time.monotonic`)."""
        if self._is_unsent:
            self._partitions.describe_partition(self._partition, ends)
            self._endpoint = self._partition.preferred
            self._send_step()
        if self._stream is None or self._unanswered_since is None:
            raise ServiceUnavailableError(f"{self._endpoint.target}: nothing was sent")
        answer = self._stream.receive(ends)
        if answer is None:
            return None
        return self._read(answer)

    def _waits_briefly(self) -> bool:
        """Return whether this step waits only briefly, because the service is silent."""
        is_silent = self._partition.unanswered >= _SILENT_ANSWERS
        if self._has_answered or not is_silent:
            return False
        next_wait = self._partition.unanswered_at + _DESCRIBE_SECONDS
        return not self._is_unsent or self._step_began_at < next_wait

    def _count_unanswered(self, waits_briefly: bool) -> None:
        if not waits_briefly:
            self._partition.unanswered += 1
            self._partition.unanswered_at = self._step_began_at

    def accept(
        self, tokens: npt.NDArray[np.int32], top_k: TopK | None, node_top_k: TopK | None
    ) -> None:
        """Keep the arguments of `DraftSession.accept` for the next step."""
        if self._stream is None:  # the next opening has these tokens in its text
            return
        if len(self._message.accepted) == _MAX_UNSENT:
            self._end_stream()
            return
        accepted = self._message.accepted.add(tokens=tokens.tolist())
        self._length += len(tokens)
        if top_k is not None:
            first = max(0, len(top_k) - self._length)
            _set_top_k(accepted.top_k, top_k[first:])
        if node_top_k is not None and len(node_top_k) == self._node_rows:
            _set_top_k(accepted.node_top_k, node_top_k)
        self._node_rows = 1

    def close(self) -> None:
        """End the session of the service; may be called again."""
        self._closed = True
        self._end_stream()

    # --- messages ---------------------------------------------------------------------------------

    def _skip_late_answer(self, stream: StreamCall) -> None:
        """Read the answer of an earlier step that was late, if there is one.

        Raises:
            DeadlineError: the answer has not come yet.
            RestStoreError: the stream has ended, or is stuck.
        """
        # Even if no answer is late, this raises the error of a stream that has ended.
        answer = stream.receive(0.0)
        if answer is not None:
            self._read(answer)
            # The session did not get this tree, so it has no row for each of its nodes. `accept`
            # ends the tree in the service, and from then on one row is right.
            self._node_rows = 1 if self._message.accepted else 0
            return
        if self._unanswered_since is None:
            return
        target = self._endpoint.target
        lateness = time.monotonic() - self._unanswered_since - self._timeout
        if lateness > _MAX_LATENESS:
            raise ServiceUnavailableError(
                f"{target}: service has not answered for {lateness:.1f} s"
            )
        raise DeadlineError(f"{target}: service has not answered an earlier step yet")

    def _send_step(self) -> None:
        """Send the accepted tokens, and ask for a tree unless it is to have no nodes.

        Opens a stream if there is none.
        """
        if self._stream is None:
            self._open()
        if self._options.max_nodes == 0:
            self._message.ClearField("draft")
        else:
            draft = self._message.draft
            draft.max_nodes = self._options.max_nodes
            draft.chain = self._options.is_chain
            draft.costs.extend(self._options.costs.tolist())
            self._unanswered_since = time.monotonic()
            self._node_rows = 0
        self._send_message()

    def _send_message(self) -> None:
        """Send `_message`, unless it is empty."""
        assert self._stream is not None
        message = self._message.SerializeToString()
        if message:
            self._stream.send(message)
        self._message = pb.DraftSessionRequest()

    def _open(self) -> None:
        """Open a stream, and put the text into `_message`.

        Raises:
            MessageSizeError: the text is too long for the service.
            TokenizerMismatchError: the datastores have another tokenizer.
        """
        requests = self._partition.requests
        assert requests is not None
        settings = self._settings
        target = self._endpoint.target
        if settings.tokenizer is not None:
            settings.tokenizer.require_same(requests.info.tokenizer, f"{target}: draft session")
        tokens = self._text()
        if self._max_sent is not None:
            tokens = tokens[-self._max_sent :]
        references = settings.references if self.has_references else ()
        size = len(tokens) + sum(1 + len(reference) for reference in references)
        max_size = requests.info.limits["max_session_tokens"]
        if size > max_size:
            actual = f"{size} tokens long"
            raise MessageSizeError(
                describe(target, "text of the session", actual, f"at most {max_size} tokens")
            )
        opening = self._message.open
        opening.selection.CopyFrom(requests.selection)
        opening.selection.group = settings.group or opening.selection.group
        opening.tokens = tokens.astype("<i4").tobytes()
        opening.references.extend(reference.astype("<i4").tobytes() for reference in references)
        opening.prompt_lookup = settings.prompt_lookup
        opening.recycled_logits = settings.recycled_logits or b""
        opening.fixed_calibration = not settings.learn
        self._length = len(tokens)
        self._origins = self._origin_table(len(opening.selection.datastores))
        self._stream = self._endpoint.open_session()

    def _read(self, message: bytes) -> TokenTree:
        """Parse an answer, and record that the service answered.

        Raises:
            ProtocolError: no tree was asked for, or the answer is not a tree.
        """
        is_expected = self._unanswered_since is not None
        self._unanswered_since = None
        target = self._endpoint.target
        requests = self._partition.requests
        assert requests is not None
        response = parse(pb.DraftSessionResponse, message, target)
        if not is_expected:
            raise ProtocolError(f"{target}: service sent more answers than it was asked for")
        tree = read_session_tree(
            response.tree,
            requests.vocabulary_size,
            self._options.max_nodes,
            self._origins,
            target,
        )
        self._has_answered = True
        self._node_rows = 1 + len(tree)
        self._failures = 0
        self._failure = None
        self._partition.unanswered = 0
        self._partition.preferred = self._endpoint
        return tree

    def _origin_table(self, datastores: int) -> bytes:
        """Return for each of the 256 masks of the service the mask of the session.

        The bits of the service are its datastores, then prompt lookup and recycled logits where the
        session has these.
        """
        origins = self._settings.origins
        session_bits = [origins.datastores] * datastores
        if self._settings.prompt_lookup:
            session_bits.append(origins.prompt_lookup)
        if self._settings.recycled_logits is not None:
            session_bits.append(origins.recycled_logits)
        # A mask is one byte: a session has at most 8 sources.
        service_masks = np.arange(256)
        session_masks = np.zeros(256, np.uint8)
        for index, bit in enumerate(session_bits):
            has_source = (service_masks >> index) & 1 == 1
            session_masks[has_source] |= bit
        return session_masks.tobytes()

    # --- failures ---------------------------------------------------------------------------------

    def _fail(self, error: RestStoreError) -> None:
        """End the stream, turn to the next endpoint, and pause if all of them have failed."""
        if not self._has_answered:  # an answer has ended the count of failures
            self._failures += 1
        self._failure = error
        if isinstance(error, UnknownDatastoreError):
            self._partition.is_known = False
        self._end_stream()
        untried = len(self._partition.endpoints) - self._failures
        pause = 0.0
        if untried <= 0:
            doublings = min(-untried, _MAX_DOUBLINGS)
            pause = min(_FIRST_PAUSE * 2.0**doublings, _MAX_PAUSE)
        self._paused_until = time.monotonic() + pause
        self._endpoint = self._partition.after(self._endpoint)

    def _raise_failed(self, error: RestStoreError) -> NoReturn:
        """Call `_fail`, and raise the error.

        A `ServiceError` or `TokenizerMismatchError` is raised as it is. Other errors become
        `ServiceError`.
        """
        target = self._endpoint.target
        self._fail(error)
        if isinstance(error, ServiceError | TokenizerMismatchError):
            raise error
        raise ServiceError(f"{target}: service refused the session ({error})") from error

    def _end_stream(self) -> None:
        """End the stream; the next one begins with the text."""
        stream = self._stream
        self._stream = None
        if stream is not None:
            stream.close()
        self._message = pb.DraftSessionRequest()
        self._has_answered = False
        self._unanswered_since = None
        self._node_rows = 1


def _set_top_k(message: pb.TopK, top_k: TopK) -> None:
    """Fill in the most likely tokens of some places; nothing if there are none."""
    if top_k.size:
        message.tokens = top_k.astype("<i4").tobytes()
        message.k = top_k.shape[1]
