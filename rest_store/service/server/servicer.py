"""Between gRPC and the answers: which method, who may ask, how much at once, and errors as statuses.

Messages pass as bytes, so that their sizes are known and that a malformed one is an error of ours like any other.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import code_pb2, error_details_pb2, status_pb2

from rest_store.errors import (
    AuthenticationError,
    MessageSizeError,
    RestStoreError,
    ServiceInternalError,
    ServiceUnavailableError,
    describe,
)
from rest_store.service.address import is_local_peer
from rest_store.service.server.executor import Reply
from rest_store.service.server.handlers import Replies
from rest_store.service.server.limits import BearerTokens, Gate, Limits
from rest_store.service.server.logs import EventLog
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.requests import parsed
from rest_store.service.server.stream_state import Generation
from rest_store.service.statuses import DOMAIN, status_of
from rest_store.v1 import datastore_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["DatastoreService"].full_name
METHODS = tuple(method.name for method in pb.DESCRIPTOR.services_by_name["DatastoreService"].methods)
_LONGEST_MESSAGE = 1000  # characters of an error that travel; trailing metadata is limited to 8 KiB

if TYPE_CHECKING:  # generic in their stubs alone
    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Handlers: TypeAlias = grpc.GenericRpcHandler[Any, Any]
else:
    Handler, Handlers = grpc.RpcMethodHandler, grpc.GenericRpcHandler

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
Context = Any  # grpc.aio.ServicerContext, which takes the types of its messages
Unary = Callable[[bytes, Context], Awaitable[bytes]]
Reload = Callable[[], Awaitable[pb.ReloadResponse]]


class Servicer(Handlers):
    """The methods of DatastoreService, and the door in front of them and of further services.

    Args:
        replies: what answers.
        reload: reopens the datastores and says how it went.
        tokens: bearer tokens, asked of every call but to the methods in `public`.
        others: further services; `public` names those of their methods that need no token.
        log_requests: write an event for every request.
    """

    def __init__(
        self,
        replies: Replies,
        reload: Reload,
        *,
        limits: Limits,
        tokens: BearerTokens,
        metrics: Metrics,
        log: EventLog,
        others: tuple[Handlers, ...] = (),
        public: frozenset[str] = frozenset(),
        log_requests: bool = False,
    ) -> None:
        self._replies = replies
        self._reload = reload
        self._limits = limits
        self._tokens = tokens
        self._metrics = metrics
        self._log = log
        self._others = others
        self._public = public
        self._log_requests = log_requests
        self.requests = Gate("number of requests in flight", limits.max_in_flight)
        self.streams = Gate("number of streams", limits.max_streams)
        self._stream_tasks: set[asyncio.Task[Any]] = set()
        self.draining = False
        self._ending = False
        unary = grpc.unary_unary_rpc_method_handler
        own = {
            "Draft": unary(self._unary("Draft", replies.draft)),
            "LongestSuffixMatch": unary(self._unary("LongestSuffixMatch", replies.longest_suffix_match)),
            "Count": unary(self._unary("Count", replies.count)),
            "Describe": unary(self._unary("Describe", replies.describe)),
            "Reload": unary(self._reloaded),
            "DraftStream": grpc.stream_stream_rpc_method_handler(self._stream),
        }
        assert set(own) == set(METHODS)
        self._own = {f"/{SERVICE}/{name}": handler for name, handler in own.items()}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Return what answers a call, or what refuses it before its message is read; called in the call's own task."""
        method = handler_call_details.method
        task = asyncio.current_task()
        assert task is not None
        try:
            if method in self._public:
                return self._other(handler_call_details)
            self._tokens.require(handler_call_details.invocation_metadata)
            if self.draining:
                raise ServiceUnavailableError(describe("service", "state", "shutting down", "another one to be asked"))
            handler = self._own.get(method)
            if handler is None:
                handler = self._other(handler_call_details)
                if handler is not None and handler.response_streaming:
                    self.streams.enter(task)
            elif handler.response_streaming:
                self.streams.enter(task)
                self._stream_tasks.add(task)
                task.add_done_callback(self._stream_tasks.discard)
            else:
                self.requests.enter(task)
        except RestStoreError as error:
            self._metrics.reject(status_of(error).reason)
            return grpc.stream_stream_rpc_method_handler(partial(self._refused, method.rpartition("/")[2], error))
        return handler

    def _other(self, details: grpc.HandlerCallDetails) -> Handler | None:
        return next((found for other in self._others if (found := other.service(details)) is not None), None)

    def end_streams(self) -> None:
        """End every stream of drafts between two answers, telling its client to ask another service."""
        self._ending = True
        for task in self._stream_tasks:
            task.cancel()

    def _unary(self, name: str, reply: Callable[[bytes], Reply]) -> Unary:
        counts = self._metrics.methods[name]
        limit = self._limits.max_message_bytes

        async def answer(data: bytes, context: Context) -> bytes:
            start = perf_counter()
            try:
                if len(data) > limit:
                    raise _too_large("request", data, limit)
                found = reply(data)
                if not isinstance(found, bytes):
                    found = await found
                if len(found) > limit:
                    raise _too_large("response", found, limit)
            except asyncio.CancelledError:
                counts.ended("CANCELLED")
                raise
            except Exception as error:
                await self._fail(name, error, context)
                raise AssertionError("abort raises") from error
            seconds = perf_counter() - start
            counts.answered(seconds, len(data), len(found))
            if self._log_requests:
                self._log("request", method=name, peer=context.peer(), seconds=round(seconds, 6), bytes=len(found))
            return found

        return answer

    async def _stream(self, _: object, context: Context) -> None:
        generation = Generation()
        counts = self._metrics.methods["DraftStream"]
        limit = self._limits.max_message_bytes
        continued = self._replies.continued
        answered = 0
        try:
            while (data := await context.read()) is not EOF:
                start = perf_counter()
                if len(data) > limit:
                    raise _too_large("request", data, limit)
                found = continued(generation, data)
                if not isinstance(found, bytes):
                    found = await found
                if len(found) > limit:
                    raise _too_large("response", found, limit)
                counts.answered(perf_counter() - start, len(data), len(found))
                answered += 1
                await context.write(found)
        except asyncio.CancelledError:
            counts.ended("CANCELLED")
            if not self._ending:
                raise
            error = ServiceUnavailableError(describe("service", "state", "shutting down", "another one to be asked"))
            await self._fail("DraftStream", error, context)
        except Exception as error:
            await self._fail("DraftStream", error, context)
        if self._log_requests:
            self._log("stream", peer=context.peer(), answers=answered)

    async def _reloaded(self, data: bytes, context: Context) -> bytes:
        counts = self._metrics.methods["Reload"]
        start = perf_counter()
        try:
            parsed(pb.ReloadRequest, data)
            if not is_local_peer(context.peer()):
                found, expected = context.peer(), "one on this machine"
                raise AuthenticationError(describe("request", "peer that asks for a reload", found, expected))
            outcome = (await self._reload()).SerializeToString()
        except Exception as error:
            await self._fail("Reload", error, context)
            raise AssertionError("abort raises") from error
        counts.answered(perf_counter() - start, len(data), len(outcome))
        return outcome

    async def _refused(self, name: str, error: RestStoreError, _: object, context: Context) -> None:
        await self._fail(name, error, context)

    async def _fail(self, name: str, error: Exception, context: Context) -> None:
        """End a call with the status of `error`; raises what ends the call within gRPC."""
        row = status_of(error)
        message = str(error)
        if row.reason == "INTERNAL":
            self._log("defect", method=name, error=repr(error), traceback="".join(traceback.format_exception(error)))
            found = f"an unforeseen {type(error).__name__}"
            message = str(ServiceInternalError(describe("service", "state", found, "an answer; its log says more")))
        elif self._log_requests:
            self._log("refused", method=name, peer=context.peer(), reason=row.reason, message=message)
        if name in self._metrics.methods:
            self._metrics.methods[name].ended(row.code)
        if len(message) > _LONGEST_MESSAGE:
            message = message[:_LONGEST_MESSAGE] + "..."
        detail = AnyMessage()
        detail.Pack(error_details_pb2.ErrorInfo(reason=row.reason, domain=DOMAIN))
        status = status_pb2.Status(code=code_pb2.Code.Value(row.code), message=message, details=[detail])
        trailing = (("grpc-status-details-bin", status.SerializeToString()),)
        await context.abort(getattr(grpc.StatusCode, row.code), message, trailing)


def _too_large(what: str, data: bytes, limit: int) -> MessageSizeError:
    return MessageSizeError(describe(what, "size", f"{len(data)} bytes", f"at most {limit}"))
