"""Asking a service to reload, and hearing how it went."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from rest_store.addresses import Address
from rest_store.errors import DeadlineError, ProtocolError, ServeError, ServiceUnavailableError, describe
from rest_store.server.catalog import Outcome
from rest_store.statuses import DOMAIN, error_of
from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc


def request_reload(
    address: Address, *, token: str | None = None, authority: Path | None = None, timeout: float = 60.0
) -> list[Outcome]:
    """Make the service at `address` reload and return the outcome for each datastore.

    Args:
        address: of a service on this machine.
        token: bearer token, where it asks for one.
        authority: PEM file of the authority of its certificate, where it has one.
        timeout: seconds to wait.

    Raises:
        ServiceError: the subclass that says what went wrong.
    """
    if authority is None:
        channel = grpc.insecure_channel(address.text)
    else:
        try:
            credentials = grpc.ssl_channel_credentials(authority.read_bytes())
        except OSError as error:
            raise ServeError(describe(authority, "file", f"unreadable ({error.strerror})", "a PEM file")) from None
        channel = grpc.secure_channel(address.text, credentials)
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with channel:
        try:
            stub = datastore_pb2_grpc.DatastoreServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            response = stub.Reload(pb.ReloadRequest(), timeout=timeout, metadata=metadata)
        except grpc.RpcError as error:
            raise _named(error, address) from None
    return [Outcome(one.datastore, one.generation, one.refused or None) for one in response.outcomes]


def _named(error: grpc.RpcError, address: Address) -> Exception:
    status = rpc_status.from_call(cast(grpc.Call, error))
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN and (kind := error_of(info.reason)) is not None:
            return kind(f"{address.text}: {error.details()}")
    found = f"{error.code().name} ({error.details()})"
    kinds = {
        grpc.StatusCode.UNAVAILABLE: (ServiceUnavailableError, "service", "a running one"),
        grpc.StatusCode.DEADLINE_EXCEEDED: (DeadlineError, "answer", "one in time"),
    }
    kind, what, expected = kinds.get(error.code(), (ProtocolError, "answer", "that of a datastore service"))
    return kind(describe(address.text, what, found, expected))
