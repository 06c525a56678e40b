"""What `rest-store info` shows of a service, and of a datastore that is served in parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from rest_store.datastore.render import counted, table
from rest_store.service.client.answers import PartInfo, ServedDatastore, ServiceInfo
from rest_store.service.client.client import DatastoreClient


def show_service(target: str, *, timeout: float, as_json: bool, **reach: Any) -> None:
    """Print what the service, or the parts, at `target` are; exit with status 1 if a part does not answer.

    Args:
        target: as `DatastoreClient` takes it.
        timeout: seconds to wait for an answer.
        as_json: print one JSON object.
        reach: token and certificates, as `DatastoreClient`.
    """
    with DatastoreClient(target, **reach) as client:
        info = client.connect(timeout)
    click.echo(json.dumps(_facts(info)) if as_json else table(_rows(info)))
    if any(part.fault is not None for part in info.parts):
        raise SystemExit(1)


def _facts(info: ServiceInfo) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "target": info.target,
        "version": info.version,
        "kernel": info.kernel,
        "datastores": [_datastore(one) for one in info.datastores],
        "limits": info.limits,
    }
    if info.parts:
        facts["parts"] = [_part(part) for part in info.parts]
    return facts


def _datastore(one: ServedDatastore) -> dict[str, Any]:
    return {
        "name": one.name,
        "tokenizer": {"name": one.tokenizer.name, "fingerprint": one.tokenizer.fingerprint},
        "tokens": one.token_count,
        "documents": one.document_count,
        "shards": one.shard_count,
        "size": one.size,
        "built": None if one.built is None else one.built.isoformat(timespec="seconds"),
        "generation": one.generation,
        "live": one.live is not None,
        "part": None if one.part is None else one.part._asdict(),
    }


def _part(part: PartInfo) -> dict[str, Any]:
    return {
        "targets": part.targets,
        "part": None if part.part is None else part.part._asdict(),
        "tokens": None if part.info is None else part.info.token_count,
        "shards": None if part.info is None else part.info.shard_count,
        "fault": part.fault,
    }


def _rows(info: ServiceInfo) -> Iterator[tuple[str, str]]:
    yield "service", info.target
    yield "version", f"{info.version}, {info.kernel} kernel"
    for one in info.datastores:
        part = "" if one.part is None else f", part {one.part.number}/{one.part.parts}"
        yield "datastore", f"{one.name}{part}"
        yield "tokens", f"{one.token_count:,} in {counted(one.document_count, 'document')}"
        yield "size", f"{counted(one.size, 'byte')} in {counted(one.shard_count, 'shard')}"
        yield "tokenizer", f"{one.tokenizer.name}, {counted(one.tokenizer.vocabulary_size, 'id')}"
        if one.part is not None:
            yield "build", one.part.build
    for own in info.parts:
        name = "part" if own.part is None else f"part {own.part.number}/{own.part.parts}"
        tokens = "" if own.info is None else f", {own.info.token_count:,} tokens"
        yield name, f"{', '.join(own.targets)}: " + (f"absent ({own.fault})" if own.fault else f"answers{tokens}")
