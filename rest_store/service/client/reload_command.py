"""The command `rest-store reload`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from rest_store.options import json_option
from rest_store.service.address import Address
from rest_store.service.options import Access, access_options, timeout_option

if TYPE_CHECKING:
    from rest_store.service.channel import Tls


def request_reload(
    address: Address, *, token: str | None, tls: Tls | bool | None, timeout: float
) -> list[dict[str, Any]]:
    """Make the service at `address` reload; return name, generation and reason of refusal for each datastore.

    Raises:
        LimitError: `timeout` is out of range.
        TargetError: the token or a certificate is not valid.
        ServiceError: the service did not reload; the subclass says why.
    """
    import grpc

    from rest_store.service.channel import Dialer, seconds_of
    from rest_store.service.errors import error_of_call
    from rest_store.v1 import datastore_pb2 as pb
    from rest_store.v1 import datastore_pb2_grpc

    seconds, dialer = seconds_of(timeout), Dialer(token, tls)
    with dialer.connect(address.text) as channel:
        stub = datastore_pb2_grpc.DatastoreServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        try:
            response = stub.Reload(pb.ReloadRequest(), timeout=seconds, metadata=dialer.metadata)
        except grpc.RpcError as error:
            raise error_of_call(address.text, error) from None
    return [
        {"name": outcome.datastore, "generation": outcome.generation, "refused": outcome.refused or None}
        for outcome in response.outcomes
    ]


@click.command(epilog="Example: rest-store reload 127.0.0.1:50051")
@click.argument("address", metavar="ADDRESS")
@access_options
@timeout_option(60.0)
@json_option
def reload(
    address: str,
    access: Access,
    timeout: float,
    as_json: bool,
) -> None:
    """Make the service at ADDRESS, on this machine, read its datastores, tokens and certificates again.

    Waits for the outcome. Datastores that do not open or have another tokenizer are refused, as are tokens and
    certificates that are not valid; the old ones then stay in use, and the exit status is 1. Opening verifies the
    manifest, headers and file sizes, not the content: run `rest-store check` before.
    """
    outcomes = request_reload(Address.parse(address), timeout=timeout, **access.arguments())
    if as_json:
        click.echo(json.dumps({"outcomes": outcomes}))
    else:
        for outcome in outcomes:
            refused = outcome["refused"]
            what = f"refused, the old one stays in use: {refused}" if refused else "reloaded"
            click.echo(f"{outcome['name'] or 'service'}: generation {outcome['generation']}: {what}")
    if any(outcome["refused"] for outcome in outcomes):
        raise SystemExit(1)
