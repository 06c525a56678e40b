"""A draft session that a service runs, over one stream that replaces itself when it breaks."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import MAX_NODES, native_kernel
from rest_store.drafting.kernel_session import NO_COSTS, DraftLimits, TopK
from rest_store.drafting.remote import MOST_RECENT, NODE_BYTES, RemoteTree, SessionSettings, tree_nodes
from rest_store.errors import (
    DeadlineError,
    DraftingWarning,
    LiveFormatError,
    MessageOrderError,
    MessageSizeError,
    OverloadedError,
    PermissionDeniedError,
    ProtocolError,
    QueryError,
    RestStoreError,
    ServiceUnavailableError,
    TokenizerMismatchError,
    UnknownDatastoreError,
    describe,
)
from rest_store.service.client.answers import NUMBER_BYTES, parse
from rest_store.service.client.client_sessions import ClientSessions
from rest_store.service.client.endpoints import Endpoint
from rest_store.service.client.generation_stream import GenerationStream, Route
from rest_store.service.client.retry import RetryPolicy
from rest_store.service.client.shared_stream import SharedSession
from rest_store.service.client.stream_call import StreamCall
from rest_store.v1 import datastore_pb2 as pb

_WEIGHTS = 5  # of a calibration
_MOST_TOP_K = 8  # tokens of a row that a session reads
_EMPTY_TREE = np.ones(1)  # costs that cut any tree to no nodes; max_nodes of 0 would mean the default
_MOST_UNSENT = 512  # calls of `accept` since the last tree; after more the text is sent again
# Errors of a service that cannot remember the output of a session.
_NOT_REMEMBERED = (PermissionDeniedError, LiveFormatError, UnknownDatastoreError, TokenizerMismatchError)
# Errors of a service that runs sessions, but not this one: its text is too long, for instance.
_NOT_RUN = (QueryError, MessageSizeError, MessageOrderError)

Text = Callable[[], tuple[npt.NDArray[np.int32], int]]


class SessionStream(GenerationStream[StreamCall | SharedSession]):
    """A session that a service runs for a `DraftSession`; see `RemoteSession`. Make one with `DatastoreClient.session`.

    `open` opens the stream and sends the text; steps send what is new. When the service goes away, the next attempt
    sends the text again, there or at another endpoint. While the answer of a step that was late is still to come,
    further steps fail at once.

    Not thread-safe.

    Args:
        route: to its service.
        settings: of the session.
        sessions: what it shares with other sessions of its client.
    """

    def __init__(
        self,
        route: Route[StreamCall | SharedSession],
        settings: SessionSettings,
        sessions: ClientSessions,
    ) -> None:
        super().__init__(route)
        self._settings = settings
        self._sessions = sessions
        self._remember = sessions.remember
        self._output_id = uuid4().hex if self._remember else ""
        self._is_open = False  # whether the text has been sent on the call
        self._next = pb.DraftSessionRequest()  # the next message, with what was accepted since the last one
        self._costs = b""  # of trees, sent last
        self._datastores = 0  # that answer it
        self._recent: list[float] = []  # what recent steps have taught the session there
        self._is_late = False  # whether the answer to the last message is still to come
        self._sent: tuple[RetryPolicy[Any], float] | None = None  # of a step whose message was sent ahead; its deadline

    def open(self, text: Text) -> None:
        """Open the session ahead of its first step, as `RemoteSession.open`, at a service that is known to answer."""
        endpoint = self._endpoints.healthy
        if endpoint is None or not self._codec.is_known:
            return
        try:
            if self._runs_here(text):
                call, request = self._call_at(endpoint), pb.DraftSessionRequest()
                self._fill(request.open, text)
                self._send(call, request.SerializeToString())
                call.flush()
        except BaseException:
            self._drop()
            raise

    def share(self) -> None:
        """Share a stream with other sessions of the client, as `RemoteSession.share`."""
        self._sessions.streams.are_wanted = True
        if self._sessions.streams.are_used and isinstance(self._call, StreamCall) and not self._datastores:
            self._drop()  # it has the text alone

    def flush(self) -> None:
        """Send what `send` has left to be sent, as `RemoteSession.flush`."""
        if self._call is not None:
            self._call.flush()

    def accept(
        self,
        tokens: npt.NDArray[np.int32],
        top_k: TopK | None,
        node_top_k: TopK | None,
    ) -> None:
        """Keep for the next step what `DraftSession.accept` was told."""
        if len(self._next.accepted) >= _MOST_UNSENT:
            self._drop()
        if not self._is_open and node_top_k is not None:
            node_top_k = node_top_k[:1]  # that of the text; the next call knows nothing of a tree
        accepted = self._next.accepted.add(tokens=tokens.tolist())
        _add_top_k(accepted.top_k, top_k)
        _add_top_k(accepted.node_top_k, node_top_k)

    def send(self, text: Text, limits: DraftLimits, *, timeout: float | None) -> bool:
        """Send the message of the next step ahead, as `RemoteSession.send`, to a service that is known to answer."""
        if self._sent is not None:  # and nobody has waited for the answer
            self._sent, self._is_late = None, True
        endpoint = self._endpoints.healthy if self._call is None else self._endpoint
        if endpoint is None or endpoint.circuit.is_open or self._closed or self._is_late or not self._codec.is_known:
            return False
        self._endpoints.require_one()
        if not self._is_open and not self._runs_here(text):
            return False
        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        policy = RetryPolicy(self._endpoints, seconds, endpoint)
        ends = time.monotonic() + policy.allowance()
        self._send_step(policy.endpoint, text, limits)
        self._sent = policy, ends
        return True

    def draft(self, text: Text, limits: DraftLimits, *, timeout: float | None) -> RemoteTree | None:
        """Return the tree of the next step, as `RemoteSession.draft`."""
        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        ends = time.monotonic() + seconds
        sent, self._sent = self._sent, None
        if sent is None and self._needs_description and seconds:
            self._info(timeout=seconds)
        has_answered = self._datastores > 0
        try:
            with self._endpoints.counters.failures:
                if self._closed:
                    raise ServiceUnavailableError("client: the session is closed")
                if sent is not None:
                    policy, sent_ends = sent
                    if (tree := self._answer_to_sent(policy, sent_ends)) is not None:
                        return tree
                else:
                    self._catch_up()
                    self._endpoints.require_one()
                    if not self._is_open and not self._runs_here(text):
                        return None
                    policy = RetryPolicy(self._endpoints, ends - time.monotonic(), self._endpoint)
                return policy.call(
                    lambda endpoint, left: self._attempt(endpoint, text, limits, time.monotonic() + left)
                )
        except _NOT_REMEMBERED as error:
            if has_answered or not self._remember:
                raise
            self._remember = ""  # also if the warning raises
            warnings.warn(f"rest-store: outputs are not remembered: {error}", DraftingWarning, stacklevel=2)
            return self.draft(text, limits, timeout=max(0.0, ends - time.monotonic()))
        except _NOT_RUN:
            return None
        except OverloadedError:
            if not self._is_open:
                return None  # it opens no more sessions now
            raise
        except ProtocolError:
            if not has_answered and (left := ends - time.monotonic()) > 0:
                with suppress(RestStoreError):
                    self._info(timeout=left)  # one that runs no sessions may have taken its place
            raise

    def _runs_here(self, text: Text) -> bool:
        """Return whether the service runs this session; raise TokenizerMismatchError if it has another tokenizer."""
        codec, settings = self._codec, self._settings
        if settings.tokenizer is not None and codec.tokenizer is not None:
            settings.tokenizer.require_same(codec.tokenizer, "draft session")
        if not codec.max_session_tokens or codec.calibration != settings.calibration.fingerprint:
            return False
        return len(text()[0]) <= codec.max_session_tokens

    def _catch_up(self) -> None:
        """Skip the answer of a late step; raise DeadlineError if it has not come yet."""
        if not self._is_late or self._call is None or self._endpoint is None:
            return
        try:
            message = self._call.receive(time.monotonic())
        except RestStoreError:
            self._drop()  # the next attempt opens another
            return
        if message is None:
            raise DeadlineError(f"{self._endpoint.target}: service has not answered an earlier step yet")
        self._is_late = False
        self._endpoints.counters.add("late_answers")
        try:
            self._read(message, self._endpoint.target)
        except RestStoreError:
            self._drop()
            raise

    def _answer_to_sent(self, policy: RetryPolicy[Any], ends: float) -> RemoteTree | None:
        """Return the answer to a message that was sent ahead; None if the step is to be attempted again."""
        try:
            tree = self._receive(policy.endpoint, ends)
        except RestStoreError as error:
            time.sleep(policy.failed(error))
            return None
        policy.succeeded()
        return tree

    def _attempt(self, endpoint: Endpoint[Any], text: Text, limits: DraftLimits, ends: float) -> RemoteTree:
        self._send_step(endpoint, text, limits)
        return self._receive(endpoint, ends)

    def _send_step(self, endpoint: Endpoint[Any], text: Text, limits: DraftLimits) -> None:
        try:
            self._drop_if_large()
            self._send(self._call_at(endpoint), self._message(text, limits))
        except BaseException:
            self._drop()
            raise

    def _drop_if_large(self) -> None:
        """Drop the call if the next message is too large for it; an opening holds all of the text."""
        if self._next.ByteSize() > self._codec.max_request_bytes // 2:
            self._drop()

    def _receive(self, endpoint: Endpoint[Any], ends: float) -> RemoteTree:
        try:
            assert self._call is not None  # a message has been sent
            answer = self._call.receive(ends)
            if answer is None:
                self._is_late = True
                raise DeadlineError(f"{endpoint.target}: service did not answer before the deadline")
            return self._read(answer, endpoint.target)
        except BaseException:
            if not self._is_late:  # else its answer may still come
                self._drop()
            raise

    def _send(self, call: StreamCall | SharedSession, message: bytes) -> None:
        """Send a message that has all of `_next`."""
        call.send(message)
        self._is_open, self._next = True, pb.DraftSessionRequest()

    def _message(self, text: Text, limits: DraftLimits) -> bytes:
        """Return the next message, which is to be sent."""
        self._sequence += 1
        request = self._next
        draft = request.draft
        draft.max_nodes, draft.sequence = tree_nodes(limits), self._sequence
        draft.min_score = limits.min_score
        costs = limits.costs
        if not limits.max_nodes:
            draft.max_nodes, costs = 1, _EMPTY_TREE
        elif limits.is_chain:
            draft.chain.max_nodes = limits.max_nodes
            if costs.size:
                draft.chain.costs.of_step.extend(costs.tolist())
            costs = NO_COSTS  # a service that drafts no chains is not to cut the tree
        if (sent := costs.tobytes()) != self._costs:
            draft.costs.SetInParent()
            draft.costs.of_step.extend(costs.tolist())
            self._costs = sent
        if not self._is_open:
            self._fill(request.open, text)
        return request.SerializeToString()

    def _fill(self, opening: pb.SessionOpening, text: Text) -> None:
        """Fill in the opening of a session, with the text but for what was accepted since the last step."""
        tokens, written = text()
        unsent = sum(len(one.tokens) for one in self._next.accepted)
        settings = self._settings
        opening.selection.CopyFrom(self._codec.selection)
        opening.tokens.extend(tokens[: len(tokens) - unsent].tolist())
        opening.written = written - unsent
        _add_top_k(opening.top_k, settings.prompt_top_k, self._codec.max_request_bytes // 4)
        opening.prompt_lookup = settings.prompt_lookup
        if settings.recycled_logits is not None:
            opening.recycled_logits = settings.recycled_logits
        opening.calibration_weights.extend(settings.calibration.weights)
        opening.shared_calibration = self._sessions.shared_calibration
        opening.fixed_calibration = not settings.learn
        opening.max_suffix = settings.max_suffix
        opening.recent.extend(self._recent)
        if self._remember:
            opening.remember, opening.output_id = self._remember, self._output_id

    def _read(self, message: bytes, target: str) -> RemoteTree:
        """Return the tree of an answer; raise ProtocolError unless it is the answer to the last message."""
        most = self._codec.largest(NUMBER_BYTES) + NODE_BYTES * MAX_NODES
        response = parse(pb.DraftSessionResponse, message, target, most)
        if response.sequence != self._sequence:
            raise ProtocolError(describe(target, "sequence of an answer", response.sequence, self._sequence))
        if response.datastores or not self._datastores:
            self._datastores = len(self._codec.require_names(response.datastores, target))
        weights, recent = list(response.calibration_weights), list(response.recent)
        if weights and (len(weights) != _WEIGHTS or not math.isfinite(sum(weights))):
            raise ProtocolError(describe(target, "calibration weights", weights[:8], f"{_WEIGHTS} finite numbers"))
        if len(recent) > MOST_RECENT or not math.isfinite(sum(recent)):
            expected = f"at most {MOST_RECENT} finite numbers"
            raise ProtocolError(describe(target, "what recent steps have taught", recent[:8], expected))
        self._recent = recent
        return RemoteTree(response.nodes, self._codec.vocabulary_size, self._datastores, weights)

    def _drop(self) -> None:
        """End the call; the next attempt opens another and sends the text."""
        super()._drop()
        self._is_open, self._next, self._costs = False, pb.DraftSessionRequest(), b""
        self._datastores = 0
        self._is_late = False
        self._sent = None

    def close(self, text: Text) -> None:
        """End the session for good, as `RemoteSession.close`."""
        try:
            if self._remember and not self._closed:
                with suppress(RestStoreError):
                    self._finish(text)
        finally:
            self._closed = True
            self._drop()

    def _finish(self, text: Text) -> None:
        """Hand over what was accepted since the last step; if the stream has ended, the whole text on another one."""
        self._drop_if_large()
        if self._is_open and self._call is not None:
            try:
                self._call.receive(time.monotonic())  # waits for nothing
            except RestStoreError:
                self._drop()
        if not self._is_open:
            endpoint = self._endpoints.healthy
            if endpoint is None or not text()[1] or not self._runs_here(text):
                return
            self._next = pb.DraftSessionRequest()  # the text has all of it, and what was not told here
            self._fill(self._next.open, text)
            self._call_at(endpoint)
        assert self._call is not None
        self._next.finished = True
        self._sessions.finish(self._call.finish(self._next.SerializeToString()))
        self._call = None


def _add_top_k(message: pb.TopK, rows: TopK | None, most_bytes: int | None = None) -> None:
    """Fill in rows of most likely tokens, the last ones if they are too many; without any, nothing."""
    if rows is None or not rows.size:
        return
    if most_bytes is not None:
        rows = rows[max(0, len(rows) - most_bytes // (4 * min(rows.shape[1], _MOST_TOP_K))) :]
    message.tokens, message.k = native_kernel().packed_top_k(rows)
