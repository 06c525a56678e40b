"""Any of a service and its replicas may be killed: all end with the same documents."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from rest_store.errors import RestStoreError
from rest_store.live.live_datastore import LiveDatastore
from rest_store.service.client.client import DatastoreClient
from tests.shared.live import until
from tests.shared.services import running
from tests.shared.strategies import identity

ROUNDS = int(os.environ.get("REST_STORE_KILLS", "12"))
REPLICA = """
import sys, time
from rest_store.live.live_datastore import LiveDatastore
with LiveDatastore.open(sys.argv[1], cache=sys.argv[2]):
    print("open", flush=True)
    time.sleep(3600)
"""
Texts = dict[str, list[int]]  # by id
Documents = list[tuple[str, list[int], str, int, float]]  # namespace, tokens, group, epoch, time


@contextmanager
def replica(location: str, cache: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that follows the service until it is killed."""
    command = [sys.executable, "-c", REPLICA, location, str(cache)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def documents_of(live: LiveDatastore) -> Documents:
    return [
        (namespace, document.tokens.tolist(), document.group, document.epoch, document.added)
        for namespace in ("", "tenant")
        for document in live.namespace(namespace).documents()
    ]


def change(
    client: DatastoreClient,
    chance: random.Random,
    present: dict[str, list[int]],
    gone: list[list[int]],
) -> None:
    """Add or delete some documents, and keep what was acknowledged.

    A text occurs in one document alone.
    """
    if present and chance.random() < 0.3:
        ids = chance.sample(sorted(present), chance.randrange(1, 1 + min(5, len(present))))
        texts = [present.pop(id) for id in ids]
        client.delete(ids, timeout=2.0)
        gone += texts
    else:
        texts = [[*uuid4().bytes] * chance.randrange(1, 20) for _ in range(chance.randrange(1, 6))]
        ids = client.add(
            texts, group=chance.choice(["", "g"]), epoch=chance.randrange(3), timeout=2.0
        )
        present |= zip(ids, texts, strict=True)
        client.add([[*uuid4().bytes]], namespace="tenant", timeout=2.0)


@pytest.mark.slow
def test_whatever_is_killed_all_replicas_end_equal(tmp_path: Path) -> None:
    chance = random.Random(os.environ.get("REST_STORE_SEED", 1))
    LiveDatastore.open(tmp_path / "chat", tokenizer=identity(300), max_tokens=20_000).close()
    caches = [tmp_path / "one", tmp_path / "two"]
    present: Texts = {}
    gone: list[list[int]] = []
    with running(options=["--live", str(tmp_path / "chat")]) as service:
        location = f"{service.target}/chat"
        with DatastoreClient(service.target) as client:
            for _ in range(ROUNDS):
                victim = chance.randrange(3)
                with replica(location, caches[0]) as one, replica(location, caches[1]) as two:
                    for _ in range(chance.randrange(1, 30)):
                        with suppress(RestStoreError):
                            change(client, chance, present, gone)
                        if chance.random() < 0.1:
                            service.kill() if victim == 2 else (one, two)[victim].kill()
                            if victim == 2:
                                service.restart()
            client.add([[1, 2]])
        replicas = [LiveDatastore.open(location, cache=cache) for cache in caches]
        for live in replicas:
            until(lambda live=live: live.count([1, 2]) > 0 and live.info().behind == 0)
        assert service.stop() == 0
        with LiveDatastore.open(tmp_path / "chat", read_only=True) as served:
            expected = documents_of(served)
            for live in replicas:
                assert documents_of(live) == expected
                for text in gone:
                    assert live.count(text[:16]) == 0, "what was deleted does not come back"
                live.close()
