"""What errors are called between service and client: the table in proto/rest_store/v1/datastore.proto.

Each of our errors that a request can meet travels as a gRPC status with a google.rpc.ErrorInfo, whose `reason` tells
errors with the same status code apart.
"""

from __future__ import annotations

from typing import NamedTuple

from rest_store import errors
from rest_store.errors import RestStoreError

DOMAIN = "rest-store"


class Status(NamedTuple):
    """One row of the table."""

    reason: str
    code: str  # name of the grpc.StatusCode
    error: type[RestStoreError]  # what a server raises and a client gets


STATUSES = (
    Status("CONTEXT_TYPE", "INVALID_ARGUMENT", errors.ContextTypeError),
    Status("EMPTY_CONTEXT", "INVALID_ARGUMENT", errors.EmptyContextError),
    Status("TOKEN_RANGE", "INVALID_ARGUMENT", errors.TokenRangeError),
    Status("LIMIT", "INVALID_ARGUMENT", errors.LimitError),
    Status("TOKENIZER_MISMATCH", "FAILED_PRECONDITION", errors.TokenizerMismatchError),
    Status("UNKNOWN_DATASTORE", "NOT_FOUND", errors.UnknownDatastoreError),
    Status("OVERLOADED", "RESOURCE_EXHAUSTED", errors.OverloadedError),
    Status("MESSAGE_SIZE", "RESOURCE_EXHAUSTED", errors.MessageSizeError),
    Status("UNAUTHENTICATED", "UNAUTHENTICATED", errors.AuthenticationError),
    Status("DRAINING", "UNAVAILABLE", errors.ServiceUnavailableError),
    Status("DATASTORE_UNAVAILABLE", "UNAVAILABLE", errors.DatastoreUnavailableError),
    Status("INTERNAL", "INTERNAL", errors.ServiceInternalError),
)

_BY_REASON = {status.reason: status for status in STATUSES}


def status_of(error: BaseException) -> Status:
    """Return the row of `error`, by its class or the nearest above it; INTERNAL for what is not in the table."""
    for base in type(error).__mro__:
        for status in STATUSES:
            if status.error is base:
                return status
    return _BY_REASON["INTERNAL"]


def error_of(reason: str) -> type[RestStoreError] | None:
    """Return the error that `reason` stands for, or None if it is not in the table (a newer server's)."""
    status = _BY_REASON.get(reason)
    return status.error if status else None
