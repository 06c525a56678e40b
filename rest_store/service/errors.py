"""From the status of a gRPC call to the error that a client raises."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from rest_store.errors import (
    AuthenticationError,
    DeadlineError,
    MessageSizeError,
    OverloadedError,
    ProtocolError,
    RestStoreError,
    ServiceInternalError,
    ServiceUnavailableError,
    describe,
)
from rest_store.service.statuses import DOMAIN, error_of

_DETAILS = "grpc-status-details-bin"

# Statuses that come without our detail, from gRPC itself or from something between client and service.
_PLAIN: dict[str, tuple[type[RestStoreError], str, str]] = {
    "DEADLINE_EXCEEDED": (DeadlineError, "late", "an answer before the deadline"),
    "UNAVAILABLE": (ServiceUnavailableError, "unreachable", "one that answers"),
    "CANCELLED": (ServiceUnavailableError, "gone during the call", "one that answers"),
    "ABORTED": (ServiceUnavailableError, "gone during the call", "one that answers"),
    "UNAUTHENTICATED": (AuthenticationError, "closed to this client", "a token that it accepts"),
    "PERMISSION_DENIED": (AuthenticationError, "closed to this client", "a token that it accepts"),
    "INTERNAL": (ServiceInternalError, "defective", "one in order"),
    "UNKNOWN": (ServiceInternalError, "defective", "one in order"),
}


def failure_of(target: str, code: str, details: str, metadata: Iterable[Any] | None) -> RestStoreError:
    """Return the error that a status stands for.

    Args:
        target: who was asked, for the message.
        code: name of the grpc.StatusCode, not OK unless the answer is absent.
        details: its text.
        metadata: trailing metadata, pairs of key and value, or None.

    Returns:
        The error of statuses.py where the service sent our detail, with the service's message; else the
        nearest of `ServiceError`.
    """
    reason = _reason(metadata)
    if reason is not None:
        kind = error_of(reason)
        if kind is not None:
            return kind(details)
    if code == "RESOURCE_EXHAUSTED":
        if "larger than max" in details:
            return MessageSizeError(describe(target, "message", f"too large ({details})", "one within the limit"))
        return OverloadedError(describe(target, "service", f"overloaded ({details})", "one with room for this call"))
    if code == "CANCELLED" and details in ("", code):  # that is all that gRPC says when it drops a call that waits
        expected = "one with room for this call"
        return OverloadedError(describe(target, "service", "dropping calls unread", expected))
    if code in _PLAIN:
        error, found, expected = _PLAIN[code]
        return error(describe(target, "service", f"{found} ({details})", expected))
    return ProtocolError(describe(target, "status", f"{code} ({details})", "one of a datastore service"))


def failed_call(target: str, error: Any) -> RestStoreError:
    """Return our error for a failed call of grpc or grpc.aio."""
    return failure_of(target, error.code().name, error.details() or "", error.trailing_metadata())


def _reason(metadata: Iterable[Any] | None) -> str | None:
    """Return the `reason` of our google.rpc.ErrorInfo, or None if there is none that can be read."""
    for key, value in metadata or ():
        if key != _DETAILS:
            continue
        try:
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.domain == DOMAIN:
                    return str(info.reason)
        except (DecodeError, TypeError):
            return None
    return None
