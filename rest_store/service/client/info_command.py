"""The output of `rest-store info` for a service, or for a datastore served in partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from rest_store.datastore.render import counted, table
from rest_store.service.client.client import DatastoreClient
from rest_store.service.client.descriptions import ServedDatastore, ServiceInfo


def show_service(target: str, *, timeout: float, as_json: bool, **reach: Any) -> None:
    """Print the description of a service; of a datastore in partitions, all have to answer.

    Args:
        target: as `DatastoreClient` takes it.
        timeout: seconds to wait for an answer.
        as_json: print one JSON object.
        reach: token and certificates, as `DatastoreClient`.
    """
    with DatastoreClient(target, **reach) as client:
        info = client.info(timeout=timeout)
    if as_json:
        datastores = [_datastore(datastore) for datastore in info.datastores]
        facts = {
            "target": info.target,
            "version": info.version,
            "datastores": datastores,
            "limits": info.limits,
        }
        click.echo(json.dumps(facts))
    else:
        click.echo(table(_rows(info)))


def _datastore(datastore: ServedDatastore) -> dict[str, Any]:
    built = None
    if datastore.built is not None:
        built = datastore.built.isoformat(timespec="seconds")
    partition = None
    if datastore.partition is not None:
        partition = datastore.partition._asdict()
    return {
        "name": datastore.name,
        "tokenizer": {
            "name": datastore.tokenizer.name,
            "fingerprint": datastore.tokenizer.fingerprint,
        },
        "tokens": datastore.token_count,
        "documents": datastore.document_count,
        "shards": datastore.shard_count,
        "size": datastore.size,
        "built": built,
        "live": datastore.is_live,
        "partition": partition,
    }


def _rows(info: ServiceInfo) -> Iterator[tuple[str, str]]:
    yield "service", info.target
    yield "version", info.version
    for datastore in info.datastores:
        yield "datastore", str(datastore)
        yield (
            "tokens",
            f"{datastore.token_count:,} in {counted(datastore.document_count, 'document')}",
        )
        yield (
            "size",
            f"{counted(datastore.size, 'byte')} in {counted(datastore.shard_count, 'shard')}",
        )
        yield (
            "tokenizer",
            f"{datastore.tokenizer.name}, {counted(datastore.tokenizer.vocabulary_size, 'id')}",
        )
