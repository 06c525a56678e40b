"""Between gRPC and the handlers: authentication, limits on work in flight, and errors as statuses.

Messages pass as bytes, so that their sizes are known and a malformed one is an error of ours like any other.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from rest_store.errors import (
    AuthenticationError,
    MessageSizeError,
    OverloadedError,
    PermissionDeniedError,
    RestStoreError,
    ServiceUnavailableError,
    describe,
)
from rest_store.service.address import is_local_peer
from rest_store.service.errors import DETAILS_KEY, DOMAIN, Status, status_of
from rest_store.service.server.handlers import Handlers, StreamState
from rest_store.service.server.limits import Gate, Limits
from rest_store.service.server.live_handlers import LiveHandlers
from rest_store.service.server.logs import EventLog
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.requests import parse
from rest_store.service.server.rights import BearerTokens, Rights
from rest_store.service.server.session_handlers import SessionHandlers, SessionState
from rest_store.service.server.shared_stream import SharedStream
from rest_store.v1 import datastore_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["DatastoreService"].full_name
METHODS = tuple(method.name for method in pb.DESCRIPTOR.services_by_name["DatastoreService"].methods)
_LONGEST_MESSAGE = 1000  # characters of an error that travel or are logged; trailing metadata is limited to 8 KiB
_LONGEST_NAME = 100  # characters of a method's name in the log; callers choose it
_MOST_PUBLIC = 1024  # calls of methods that need no token; silent ones take about 20 KiB each
_LARGEST_OTHER = 4096  # bytes of a request to a further service, which holds a name

if TYPE_CHECKING:  # generic in their stubs alone
    MethodHandler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    GenericHandler: TypeAlias = grpc.GenericRpcHandler[Any, Any]
else:
    MethodHandler, GenericHandler = grpc.RpcMethodHandler, grpc.GenericRpcHandler

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # missing in the stubs
Context = Any  # grpc.aio.ServicerContext, which takes the types of its messages
R = TypeVar("R", bytes, bytes | None)
Handle = Callable[[bytes], Awaitable[R]]
HandleUnary = Callable[[bytes, Rights], Awaitable[bytes]]
Unary = Callable[[bytes, Context], Awaitable[bytes]]
Answer = Callable[[AsyncIterator[Any]], AsyncGenerator[Message, None]]  # from requests to responses


class Servicer(GenericHandler):
    """The methods of DatastoreService, and access control for these and for further services.

    Args:
        handlers: answer queries.
        session_handlers: answer the messages of sessions.
        live_handlers: answer requests that change live datastores.
        reload: starts a reload, or queues it behind one that runs.
        limits: of message sizes and of calls in flight.
        tokens: required by all methods except those in `public`.
        metrics: count requests and answers.
        log: receives events, with `log_requests` one for every request.
        others: methods of further services by full name: the type of their requests, and what answers them.
        public: full names of methods that need no token; beyond 1024 calls at once, a new one ends the oldest.
        log_requests: see `log`.
    """

    def __init__(
        self,
        handlers: Handlers,
        session_handlers: SessionHandlers,
        live_handlers: LiveHandlers,
        reload: Callable[[], asyncio.Task[pb.ReloadResponse]],
        *,
        limits: Limits,
        tokens: BearerTokens,
        metrics: Metrics,
        log: EventLog,
        others: Mapping[str, tuple[type[Message], Answer]],
        public: frozenset[str] = frozenset(),
        log_requests: bool = False,
    ) -> None:
        self._handlers = handlers
        self._session_handlers = session_handlers
        self._reload = reload
        self._limits = limits
        self._tokens = tokens
        self._metrics = metrics
        self._log = log
        self._public = public
        self._log_requests = log_requests
        self.requests = Gate("requests in flight", limits.max_in_flight)
        self.streams = Gate("open streams", limits.max_streams)
        self.draining = False
        self._public_calls: dict[asyncio.Task[Any], None] = {}  # the oldest first
        self._rights: WeakKeyDictionary[asyncio.Task[Any], Rights] = WeakKeyDictionary()  # of calls
        self._in_step: set[asyncio.Task[Any]] = set()  # streams whose latest message is not answered yet
        self._last_messages: dict[asyncio.Task[Any], float] = {}  # when those of streams came, on a monotonic clock
        self._shared: dict[asyncio.Task[Any], SharedStream] = {}  # streams of many sessions
        self._endings: WeakKeyDictionary[asyncio.Task[Any], RestStoreError] = WeakKeyDictionary()  # of streams
        unary = grpc.unary_unary_rpc_method_handler
        methods = {
            "Draft": unary(self._unary("Draft", handlers.draft)),
            "LongestSuffixMatch": unary(self._unary("LongestSuffixMatch", handlers.longest_suffix_match)),
            "Count": unary(self._unary("Count", handlers.count)),
            "Describe": unary(self._unary("Describe", handlers.describe)),
            "Add": unary(self._unary("Add", live_handlers.add, limits.max_message_bytes)),
            "Delete": unary(self._unary("Delete", live_handlers.delete, limits.max_message_bytes)),
            "Reload": unary(self._reload_datastores),
            "DraftStream": self._streaming("DraftStream", self._draft_stream),
            "DraftSession": self._streaming("DraftSession", self._draft_session),
            "DraftSessions": self._streaming("DraftSessions", self._draft_sessions),
        }
        assert set(methods) == set(METHODS)
        self._methods = {f"/{SERVICE}/{name}": handler for name, handler in methods.items()}
        for name, (kind, answer) in others.items():
            self._methods[name] = self._other(name.rpartition("/")[2], kind, answer)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> MethodHandler | None:
        """Return the handler of a call, or one that refuses it before its message is read.

        gRPC calls this in the task of the call.
        """
        method = handler_call_details.method
        handler = self._methods.get(method)
        task = asyncio.current_task()
        assert task is not None
        if method in self._public:
            self._enter_public(task)
            return handler
        try:
            self._rights[task] = self._tokens.require(handler_call_details.invocation_metadata)
            if self.draining:
                raise _shutting_down()
            if handler is not None and handler.response_streaming:
                self.streams.enter(task)
            elif handler is not None:
                self.requests.enter(task)
        except RestStoreError as error:
            self._metrics.reject(status_of(error).reason)
            return grpc.stream_stream_rpc_method_handler(partial(self._refuse, method.rpartition("/")[2], error))
        return handler

    def _other(self, name: str, kind: type[Message], answer: Answer) -> MethodHandler:
        """Return a handler of a method of another service. Its messages pass as bytes as well, so errors are ours."""

        async def run(context: Context) -> None:
            async def requests() -> AsyncIterator[Message]:
                while (data := await context.read()) is not EOF:
                    _require_size("request", len(data), _LARGEST_OTHER)
                    yield parse(kind, data)

            async with aclosing(answer(requests())) as responses:
                async for response in responses:
                    await context.write(response.SerializeToString())

        return self._streaming(name, run)

    def _streaming(self, name: str, run: Callable[[Context], Awaitable[None]]) -> MethodHandler:
        return grpc.stream_stream_rpc_method_handler(partial(self._stream, name, run))

    def _enter_public(self, task: asyncio.Task[Any]) -> None:
        """Let in a call that needs no token. Beyond the limit it ends the oldest, so open calls keep nobody out."""
        if len(self._public_calls) >= _MOST_PUBLIC:
            oldest = next(iter(self._public_calls))
            del self._public_calls[oldest]
            self._end(oldest, OverloadedError(f"service has {_MOST_PUBLIC} newer calls without a token"))
        self._public_calls[task] = None
        task.add_done_callback(lambda task: self._public_calls.pop(task, None))

    def end_streams(self, *, between_steps: bool = False) -> None:
        """End streams with a status that tells clients to use another service; with `between_steps`, not in a step."""
        for task in self.streams.tasks:
            if not (between_steps and task in self._in_step):
                self._end(task, _shutting_down())

    def end_idle_streams(self, seconds: float) -> None:
        """End the streams and sessions that have had no message for `seconds`."""
        latest = monotonic() - seconds
        error = ServiceUnavailableError(f"session is idle: it had no message for {seconds} s")
        for stream in list(self._shared.values()):
            stream.end_idle(latest, error)
        for task, last_message in list(self._last_messages.items()):
            if last_message < latest and task not in self._in_step:
                self._end(task, error)

    def end_revoked_streams(self) -> None:
        """End the streams whose token is no longer accepted, or has other rights than before."""
        for task in self.streams.tasks:
            rights = self._tokens.current(self._rights[task])
            if rights is None:
                found, expected = "not accepted any more", "a bearer token known here"
                self._end(task, AuthenticationError(describe("stream", "authorization", found, expected)))
            elif rights != self._rights[task]:
                self._end(task, ServiceUnavailableError("stream ended: its token allows something else now"))

    def _end(self, task: asyncio.Task[Any], error: RestStoreError) -> None:
        self._endings[task] = error
        task.cancel()

    async def _answer(self, method: str, handle: Handle[R], data: bytes, most: int = 0) -> R:
        """Return the response to one message of at most `most` bytes, after checks of both sizes, and count it."""
        start = perf_counter()
        _require_size("request", len(data), most or self._limits.max_request_bytes)
        response = await handle(data)
        size = 0 if response is None else len(response)
        _require_size("response", size, self._limits.max_message_bytes)
        self._metrics.methods[method].answered(perf_counter() - start, len(data), size)
        return response

    def _unary(self, name: str, handle: HandleUnary, most: int = 0) -> Unary:
        async def answer(data: bytes, context: Context) -> bytes:
            start = perf_counter()
            try:
                rights = self._rights_of_call()
                response = await self._answer(name, lambda data: handle(data, rights), data, most)
            except asyncio.CancelledError:
                self._metrics.methods[name].ended("CANCELLED")
                raise
            except Exception as error:
                await self._fail(name, error, context)
                raise AssertionError("abort raises") from error
            if self._log_requests:
                seconds = round(perf_counter() - start, 6)
                self._log("request", method=name, peer=context.peer(), seconds=seconds, bytes=len(response))
            return response

        return answer

    async def _stream(self, name: str, run: Callable[[Context], Awaitable[None]], _: object, context: Context) -> None:
        """Run a stream until its client, an error or this service ends it."""
        task = asyncio.current_task()
        assert task is not None
        try:
            await run(context)
        except asyncio.CancelledError:
            if task not in self._endings:
                if name in self._metrics.methods:
                    self._metrics.methods[name].ended("CANCELLED")
                raise
            await self._fail(name, self._endings[task], context)
        except Exception as error:
            await self._fail(name, error, context)

    async def _draft_stream(self, context: Context) -> None:
        state = StreamState(self._rights_of_call())
        await self._converse("DraftStream", partial(self._handlers.draft_step, state), context)

    async def _draft_session(self, context: Context) -> None:
        state = SessionState(self._rights_of_call())
        handle = partial(self._session_handlers.step, state)
        try:
            await self._converse("DraftSession", handle, context, self._limits.max_opening_bytes)
        finally:
            self._session_handlers.end(state)

    async def _draft_sessions(self, context: Context) -> None:
        name = "DraftSessions"
        task = asyncio.current_task()
        assert task is not None

        async def write(message: bytes) -> None:
            await context.write(message)
            self._metrics.methods[name].bytes_sent += len(message)

        def end_of(error: Exception) -> pb.SessionEnd:
            status, message = self._reported(name, error, context)
            return pb.SessionEnd(code=code_pb2.Code.Value(status.code), message=message, reason=status.reason)

        def settled() -> None:
            if not stream.is_running:
                self._in_step.discard(task)
                if self.draining:
                    self._end(task, _shutting_down())

        most = self._limits.max_steps_bytes
        stream = SharedStream(self._session_handlers, self._rights_of_call(), self._limits, write, end_of, settled)
        self._shared[task] = stream
        try:
            await self._converse(name, stream.take, context, most, most)
        finally:
            del self._shared[task]
            await stream.close()

    def _rights_of_call(self) -> Rights:
        task = asyncio.current_task()
        assert task is not None
        return self._rights[task]

    async def _converse(
        self,
        name: str,
        handle: Handle[bytes] | Handle[bytes | None],
        context: Context,
        most_at_first: int = 0,
        most: int = 0,
    ) -> None:
        """Answer the messages of a stream, one after the other, until its client ends it or this service drains."""
        task = asyncio.current_task()
        assert task is not None
        messages = answers = 0
        try:
            while True:
                self._last_messages[task] = monotonic()
                if (data := await context.read()) is EOF:
                    return
                self._in_step.add(task)
                response = await self._answer(name, handle, data, most if messages else most_at_first)
                del data
                messages += 1
                if response is not None:
                    await context.write(response)
                    answers += 1
                if task in self._shared and self._shared[task].is_running:
                    continue
                self._in_step.discard(task)
                if self.draining:
                    raise _shutting_down()
        finally:
            self._in_step.discard(task)
            del self._last_messages[task]
            if self._log_requests:
                self._log("stream", peer=context.peer(), answers=answers)

    async def _reload_datastores(self, data: bytes, context: Context) -> bytes:
        async def handle(data: bytes, rights: Rights) -> bytes:
            parse(pb.ReloadRequest, data)
            if rights.datastores is not None:
                found, expected = "one for some datastores", "one for all of them, which a reload reads again"
                raise PermissionDeniedError(describe("request", "token", found, expected))
            if not is_local_peer(context.peer()):
                found, expected = context.peer(), "one on this machine"
                raise AuthenticationError(describe("request", "peer that asks for a reload", found, expected))
            return (await asyncio.shield(self._reload())).SerializeToString()

        return await self._unary("Reload", handle)(data, context)

    async def _refuse(self, name: str, error: RestStoreError, _: object, context: Context) -> None:
        await self._fail(name, error, context)

    async def _fail(self, name: str, error: Exception, context: Context) -> None:
        """End a call with the status of `error`; raises what ends the call within gRPC."""
        status, message = self._reported(name, error, context)
        detail = AnyMessage()
        detail.Pack(error_details_pb2.ErrorInfo(reason=status.reason, domain=DOMAIN))
        details = status_pb2.Status(code=code_pb2.Code.Value(status.code), message=message, details=[detail])
        trailing = ((DETAILS_KEY, details.SerializeToString()),)
        await context.abort(getattr(grpc.StatusCode, status.code), message, trailing)

    def _reported(self, name: str, error: Exception, context: Context) -> tuple[Status, str]:
        """Count and log an error that ends a call or a session; return its status, and the message of it."""
        status = status_of(error)
        message = str(error)
        if len(message) > _LONGEST_MESSAGE:
            message = message[:_LONGEST_MESSAGE] + "..."
        if status.reason == "INTERNAL":
            kind, text = type(error).__name__, "".join(traceback.format_exception(error))
            self._log.limited("defect", name, kind, method=name, error=repr(error), traceback=text)
            message = f"service failed internally ({kind}); its log says more"
        elif self._log_requests:
            fields = {"method": name[:_LONGEST_NAME], "peer": context.peer(), "reason": status.reason}
            self._log.limited("refused", status.reason, **fields, message=message)
        traceback.clear_frames(error.__traceback__)  # else they hold the request until the next garbage collection
        if name in self._metrics.methods:
            self._metrics.methods[name].ended(status.code)
        return status, message


def _require_size(what: str, size: int, most: int) -> None:
    if size > most:
        raise MessageSizeError(describe(what, "size", f"{size} bytes", f"at most {most}"))


def _shutting_down() -> ServiceUnavailableError:
    return ServiceUnavailableError("service is shutting down; ask another one")
