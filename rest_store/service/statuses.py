"""The gRPC statuses of errors, in both directions: the tables in docs/reference/protocol.md.

An error of a request is sent as a gRPC status with a google.rpc.ErrorInfo. Its `reason` tells
errors with the same status code apart.
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
    """A row of the table.

    Attributes:
        reason: of the ErrorInfo.
        code: name of the grpc.StatusCode.
        error: class of the error, in the server and in the client.
    """

    reason: str
    code: str
    error: type[RestStoreError]

    def error_with(self, message: str) -> RestStoreError:
        """Return the error of this row, for a client to raise."""
        if self.error is errors.DatastoreFormatError:  # "live" is the only kind that is sent
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

# Statuses without an ErrorInfo of this domain. They come from gRPC itself, or from a proxy.
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

# Words of gRPC about a connection that cannot be made, and their meaning.
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
_MAYBE_PROXY = ("UNAVAILABLE", "DEADLINE_EXCEEDED")  # may be statuses of a proxy


def status_for(error: BaseException) -> Status:
    """Return the row of an error, by its class or the nearest base class; else INTERNAL."""
    for base in type(error).__mro__:
        for status in STATUSES:
            if status.error is base:
                return status
    return _BY_REASON["INTERNAL"]


def call_error(target: str, failure: Any) -> RestStoreError:
    """Return the error for a failed call to the service at `target`.

    If the service sent a reason, it is the error of the table; otherwise the nearest ServiceError.

    Args:
        target: address of the service.
        failure: the error of grpc or grpc.aio.
    """
    code = failure.code().name
    details = failure.details() or ""
    status = _BY_REASON.get(_reason(failure.trailing_metadata()))
    if status is not None:
        return status.error_with(details)
    if code == "RESOURCE_EXHAUSTED" and "larger than max" in details:
        return errors.MessageSizeError(f"{target}: message is too large ({details})")
    # The only sign of a waiting call that gRPC drops.
    if code == "CANCELLED" and details in ("", code):
        return errors.OverloadedError(
            f"{target}: service is overloaded and dropped the call unread"
        )
    if code in _BY_CODE:
        error, message = _BY_CODE[code]
        if code == "UNAVAILABLE":
            for words, meaning in _CONNECTIONS.items():
                if words in details:
                    details = meaning
                    break
        proxy = proxy_for(target) if code in _MAYBE_PROXY else None
        if proxy is not None:
            target = f"{target}, through the proxy {proxy}"
        if details:
            message = f"{message} ({details})"
        return error(f"{target}: {message}")
    return errors.ProtocolError(
        describe(target, "status", f"{code} ({details})", "one of a datastore service")
    )


def _reason(metadata: Iterable[Any] | None) -> str:
    """Return the `reason` of the ErrorInfo of this domain; "" if there is none."""
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
