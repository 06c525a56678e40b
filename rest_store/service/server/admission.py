"""Admission of calls to a service, and the end of calls that fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import code_pb2, error_details_pb2, status_pb2

from rest_store.errors import RestStoreError, ServiceUnavailableError
from rest_store.service.bearer_tokens import ALL_ALLOWED, BearerTokens, Grant
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.service_limits import Budget, ServiceLimits
from rest_store.service.statuses import DETAILS_KEY, DOMAIN, status_for

GRANT: ContextVar[Grant] = ContextVar("GRANT", default=ALL_ALLOWED)  # of the present call

# Characters of an error that are sent. Trailing metadata is limited to 8 KiB.
_MAX_MESSAGE_LENGTH = 1000
# Health checks at once, which need no token. A silent one takes about 20 KiB.
_MAX_HEALTH_CHECKS = 1024
_HEALTH = "/grpc.health.v1.Health/"

Context = Any  # grpc.aio.ServicerContext, which is generic in the types of its messages

_log = logging.getLogger(__name__)


class Admission(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Lets calls in, or refuses them before their message is read. For use within one event loop.

    Every method but health checks requires a token, if the service has any.

    Args:
        tokens: of the service.
        limits: of calls at once.
        metrics: count refused calls.

    Attributes:
        requests: requests in flight.
        streams: open streams.
        calls: tasks of both.
    """

    def __init__(self, tokens: BearerTokens, limits: ServiceLimits, metrics: Metrics) -> None:
        self._tokens = tokens
        self._metrics = metrics
        self.requests = Budget("requests in flight", limits.max_in_flight)
        self.streams = Budget("open streams", limits.max_streams)
        self.calls: set[asyncio.Task[Any]] = set()
        self._health_checks = Budget("health checks", _MAX_HEALTH_CHECKS)
        self._is_draining = False

    def drain(self) -> None:
        """Refuse all further calls but health checks, because the service shuts down."""
        self._is_draining = True

    async def intercept_service(
        self,
        continuation: Callable[[Any], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of a call, or one that refuses it.

        gRPC calls this in the task of the call.
        """
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        task = asyncio.current_task()
        assert task is not None
        try:
            if method.startswith(_HEALTH):
                budget = self._health_checks
            else:
                if self._is_draining:
                    raise shutting_down()
                GRANT.set(self._tokens.require(handler_call_details.invocation_metadata))
                is_stream = handler is not None and handler.response_streaming
                budget = self.streams if is_stream else self.requests
                self.calls.add(task)
                task.add_done_callback(self.calls.discard)
            budget.take()
        except RestStoreError as error:
            return grpc.stream_stream_rpc_method_handler(
                self._refusal(method.rpartition("/")[2], error)
            )
        task.add_done_callback(lambda _: budget.give_back())
        return handler

    def _refusal(
        self, name: str, error: RestStoreError
    ) -> Callable[[Any, Context], Awaitable[None]]:
        async def refuse(_: Any, context: Context) -> None:
            await end_call(name, error, context, self._metrics)

        return refuse


async def end_call(name: str, error: Exception, context: Context, metrics: Metrics) -> NoReturn:
    """End a call with the status of an error, count it, and log the error if it is a defect.

    Args:
        name: of the method.
        error: the failure.
        context: of the call.
        metrics: count the end.
    """
    status = status_for(error)
    message = str(error)
    if len(message) > _MAX_MESSAGE_LENGTH:
        message = message[:_MAX_MESSAGE_LENGTH] + "..."
    if status.reason == "INTERNAL":
        _log.error("%s failed", name, exc_info=error)
        message = f"service failed internally ({type(error).__name__}); its log says more"
    metrics.ended(name, status.code)
    detail = AnyMessage()
    detail.Pack(error_details_pb2.ErrorInfo(reason=status.reason, domain=DOMAIN))
    details = status_pb2.Status(
        code=code_pb2.Code.Value(status.code), message=message, details=[detail]
    )
    trailing = ((DETAILS_KEY, details.SerializeToString()),)
    await context.abort(getattr(grpc.StatusCode, status.code), message, trailing)
    raise AssertionError("abort raises")


@asynccontextmanager
async def ending(name: str, context: Context, metrics: Metrics) -> AsyncIterator[None]:
    """Within the block, answer a call of the method `name`; an error ends it with a status."""
    try:
        yield
    except asyncio.CancelledError:
        metrics.ended(name, "CANCELLED")
        raise
    except Exception as error:
        await end_call(name, error, context, metrics)


def shutting_down() -> ServiceUnavailableError:
    """Return the error of calls to a service that shuts down."""
    return ServiceUnavailableError("service is shutting down; ask another one")
