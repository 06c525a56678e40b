"""Errors between service and client: the tables in docs/reference/protocol.md, in both directions.

Each of our errors that a request can meet travels as a gRPC status with a google.rpc.ErrorInfo,
whose `reason` tells errors with the same status code apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from rest_store import errors
from rest_store.errors import RestStoreError, describe
from rest_store.service.proxy import proxy_for

DOMAIN = "rest-store"
DETAILS_KEY = "grpc-status-details-bin"


class Status(NamedTuple):
    """One row of the table."""

    reason: str
    code: str  # name of the grpc.StatusCode
    error: type[RestStoreError]  # what a server raises and a client gets

    def error_with(self, message: str) -> RestStoreError:
        """Return the error of this row, as a client raises it."""
        if self.error is errors.DatastoreFormatError:  # of formats, clients meet this one alone
            return errors.DatastoreFormatError("live", message)
        return self.error(message)


STATUSES = (
    Status("CONTEXT_TYPE", "INVALID_ARGUMENT", errors.ContextTypeError),
    Status("QUERY", "INVALID_ARGUMENT", errors.QueryError),
    Status("ARGUMENT", "INVALID_ARGUMENT", errors.ArgumentError),
    Status("DOCUMENT", "INVALID_ARGUMENT", errors.DocumentError),
    Status("PROTOCOL", "FAILED_PRECONDITION", errors.ProtocolError),
    Status("TOKENIZER_MISMATCH", "FAILED_PRECONDITION", errors.TokenizerMismatchError),
    Status("WRONG_KIND", "FAILED_PRECONDITION", errors.DatastoreFormatError),
    Status("NO_SUCH_FILE", "NOT_FOUND", errors.FetchError),
    Status("UNKNOWN_DATASTORE", "NOT_FOUND", errors.UnknownDatastoreError),
    Status("OVERLOADED", "RESOURCE_EXHAUSTED", errors.OverloadedError),
    Status("MESSAGE_SIZE", "RESOURCE_EXHAUSTED", errors.MessageSizeError),
    Status("STORAGE", "RESOURCE_EXHAUSTED", errors.StorageError),
    Status("UNAUTHENTICATED", "UNAUTHENTICATED", errors.AuthenticationError),
    Status("PERMISSION_DENIED", "PERMISSION_DENIED", errors.PermissionDeniedError),
    Status("DRAINING", "UNAVAILABLE", errors.ServiceUnavailableError),
    Status("DATASTORE_UNAVAILABLE", "UNAVAILABLE", errors.DatastoreUnavailableError),
    Status("INTERNAL", "INTERNAL", errors.ServiceError),
)
_BY_REASON = {status.reason: status for status in STATUSES}

# Statuses without our detail come from gRPC itself, or from something between client and service.
_BY_CODE: dict[str, tuple[type[RestStoreError], str]] = {
    "DEADLINE_EXCEEDED": (errors.DeadlineError, "service did not answer before the deadline"),
    "UNAVAILABLE": (errors.ServiceUnavailableError, "service is unreachable"),
    "CANCELLED": (errors.ServiceUnavailableError, "service went away during the call"),
    "ABORTED": (errors.ServiceUnavailableError, "service went away during the call"),
    "UNAUTHENTICATED": (errors.AuthenticationError, "service does not accept this client"),
    "PERMISSION_DENIED": (errors.AuthenticationError, "service does not accept this client"),
    "RESOURCE_EXHAUSTED": (errors.OverloadedError, "service is overloaded"),
    "INTERNAL": (errors.ServiceError, "service failed internally"),
    "UNKNOWN": (errors.ServiceError, "service failed internally"),
}

# What gRPC says of a connection that cannot be made, and what that means.
_CONNECTIONS = {
    "Connection refused": "connection refused: nothing listens there",
    "lookup failed": "no such host",
    "No such file or directory": "there is no such socket",
    "WRONG_VERSION_NUMBER": "it does not speak TLS: leave out tls= and the options --tls...",
    "CERTIFICATE_VERIFY_FAILED": (
        "its certificate is not trusted: name its authority with --tls-ca, or tls=Tls(ca)"
    ),
    "Hostname Verification": "its certificate is for another name: give it with --tls-server-name",
    ": Socket closed": (
        "it hung up: if it speaks TLS, name its authority with --tls-ca, or tls=Tls(ca), "
        "and a client certificate where it requires one"
    ),
}
_MAYBE_PROXY = ("UNAVAILABLE", "DEADLINE_EXCEEDED")  # of a service, or of a proxy before it


def status_for(error: BaseException) -> Status:
    """Return the row of `error`, by its class or the nearest above it.

    INTERNAL for what is not in the table.
    """
    for base in type(error).__mro__:
        for status in STATUSES:
            if status.error is base:
                return status
    return _BY_REASON["INTERNAL"]


def call_error(target: str, failure: Any) -> RestStoreError:
    """Return our error for a failed call of grpc or grpc.aio to the service at `target`.

    That is the one of the table where the service sent our detail, else the nearest ServiceError.
    """
    code, details = failure.code().name, failure.details() or ""
    status = _BY_REASON.get(_reason(failure.trailing_metadata()))
    if status is not None:
        return status.error_with(details)
    if code == "RESOURCE_EXHAUSTED" and "larger than max" in details:
        return errors.MessageSizeError(f"{target}: message is too large ({details})")
    # All that gRPC says when it drops a call that waits.
    if code == "CANCELLED" and details in ("", code):
        return errors.OverloadedError(
            f"{target}: service is overloaded and dropped the call unread"
        )
    if code in _BY_CODE:
        error, message = _BY_CODE[code]
        if code == "UNAVAILABLE":
            details = next(
                (meaning for said, meaning in _CONNECTIONS.items() if said in details), details
            )
        if code in _MAYBE_PROXY and (proxy := proxy_for(target)) is not None:
            target = f"{target}, through the proxy {proxy}"
        return error(f"{target}: {message} ({details})" if details else f"{target}: {message}")
    return errors.ProtocolError(
        describe(target, "status", f"{code} ({details})", "one of a datastore service")
    )


def _reason(metadata: Iterable[Any] | None) -> str:
    """Return the `reason` of our google.rpc.ErrorInfo, or an empty
    text if there is none that can be read.
    """
    for key, value in metadata or ():
        if key != DETAILS_KEY:
            continue
        try:
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.domain == DOMAIN:
                    return str(info.reason)
        except (DecodeError, TypeError):
            return ""
    return ""
