"""Asking a service to reload, and hearing how it went."""

from __future__ import annotations

import grpc

from rest_store.service.address import Address
from rest_store.service.channel import Dialer, Tls, seconds_of
from rest_store.service.errors import failed_call
from rest_store.service.server.catalog import Outcome
from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc


def request_reload(
    address: Address, *, token: str | None = None, tls: Tls | None = None, timeout: float = 60.0
) -> list[Outcome]:
    """Make the service at `address` reload and return the outcome for each datastore.

    Args:
        address: of a service on this machine.
        token: bearer token, where it asks for one.
        tls: certificates, where it has one.
        timeout: seconds to wait.

    Raises:
        LimitError: `timeout` is none.
        TargetError: a token or certificate that is none.
        ServiceError: the service did not do it; the subclass says why.
    """
    seconds, dialer = seconds_of(timeout), Dialer(token, tls)
    with dialer.connect(address.text) as channel:
        stub = datastore_pb2_grpc.DatastoreServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        try:
            response = stub.Reload(pb.ReloadRequest(), timeout=seconds, metadata=dialer.metadata)
        except grpc.RpcError as error:
            raise failed_call(address.text, error) from None
    return [Outcome(one.datastore, one.generation, one.refused or None) for one in response.outcomes]
