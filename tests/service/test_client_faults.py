"""Callers get a right answer or a named error within their deadline, whatever happens."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.errors import DeadlineError, RestStoreError, ServiceUnavailableError
from rest_store.service.client.client import DatastoreClient
from tests.shared.clients import LATE, SLACK
from tests.shared.services import PATIENCE, Service, failed, running


@pytest.fixture
def service(phrases: Path) -> Iterator[Service]:
    with running(phrases) as service:
        yield service


def answered(call: Any, attempts: int = 1000) -> Any:
    """Return the answer of `call` once the service is back. Each failure before must be named."""
    for _ in range(attempts):
        with contextlib.suppress(ServiceUnavailableError, DeadlineError):
            return call()
    raise AssertionError("never answered")


def test_a_dead_service_is_named_within_the_deadline_and_found_again(
    service: Service, store: Datastore
) -> None:
    with DatastoreClient(service.target, timeout=LATE) as client:
        client.info(timeout=PATIENCE)
        service.kill()
        began = time.monotonic()
        failed(ServiceUnavailableError, lambda: client.draft([1]), service.target)
        assert time.monotonic() - began < LATE + SLACK
        service.restart()
        assert answered(lambda: client.draft([1])) == store.draft([1])


def test_a_paused_service_costs_a_deadline(service: Service, store: Datastore) -> None:
    with DatastoreClient(service.target, timeout=LATE) as client:
        client.info(timeout=PATIENCE)
        service.pause()
        began = time.monotonic()
        failed(DeadlineError, lambda: client.draft([1]), "did not answer before the deadline")
        assert LATE * 0.9 < time.monotonic() - began < LATE + SLACK
        service.resume()
        assert answered(lambda: client.draft([1])) == store.draft([1])


def test_an_endpoint_that_is_paused_or_drains_leaves_time_for_another(
    phrases: Path, service: Service, store: Datastore
) -> None:
    with (
        running(phrases, options=["--drain-seconds", "0.2"]) as first,
        DatastoreClient([service.target, first.target], timeout=5.0) as client,
    ):
        assert client.info().target == service.target
        service.pause()
        assert client.draft([3]) == store.draft([3])
        assert client.info().target == first.target
        service.resume()
        assert first.stop() == 0
        assert client.draft([4]) == store.draft([4])
        assert client.info().target == service.target


def test_threads_share_a_client_through_a_restart(service: Service, store: Datastore) -> None:
    contexts = [[a, b] for a in range(6) for b in range(6)]
    expected = {tuple(context): store.draft(context) for context in contexts}
    wrong: list[object] = []
    ready = threading.Barrier(9)

    def ask(client: DatastoreClient) -> None:
        ready.wait(PATIENCE)
        for context in contexts * 5:
            try:
                if client.draft(context) != expected[tuple(context)]:
                    wrong.append(context)
            except RestStoreError as error:
                wrong.append(error)

    with DatastoreClient(service.target, timeout=PATIENCE) as client:
        client.info()
        threads = [threading.Thread(target=ask, args=(client,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        ready.wait(PATIENCE)
        service.kill()
        service.restart()
        for thread in threads:
            thread.join(PATIENCE)
    assert not wrong
