"""What a client counts: every call once, as what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_store.datastore.tree import TokenTree
from rest_store.errors import LimitError, RestStoreError, ServiceUnavailableError, TokenRangeError, TreeError
from rest_store.service.client.counters import ClientStatistics
from tests.service.test_client import SHARD, VOCABULARY
from tests.shared.clients import KINDS, connected, free_port
from tests.shared.services import Service, running
from tests.shared.strategies import Corpus, refused, write_datastore


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path: Path = write_datastore(tmp_path_factory.mktemp("one"), Corpus(VOCABULARY, [SHARD]))
    with running(path) as service:
        yield service


@KINDS
def test_a_step_whose_service_cannot_be_described_is_one_call(kind: type[Any]) -> None:
    with connected(kind, f"127.0.0.1:{free_port()}", retries=0) as client:
        stream = client.stream()
        for _ in range(3):
            with pytest.raises(ServiceUnavailableError):
                stream.draft([1])
        assert client.statistics == ClientStatistics(calls=3, unavailable=3)
        with pytest.raises(ServiceUnavailableError):
            client.draft([1])
        assert client.statistics == ClientStatistics(calls=4, unavailable=4)


ONE = TokenTree([VOCABULARY], [-1], [1])
UNASKED: list[tuple[str, tuple[Any, ...], dict[str, Any], type[RestStoreError]]] = [
    ("draft", ([1, VOCABULARY],), {}, TokenRangeError),
    ("draft", ([1],), {"max_nodes": 0}, LimitError),
    ("draft", ([1],), {"timeout": -1}, LimitError),
    ("evidence", ([1], [1, 2]), {"max_nodes": 1}, TreeError),
    ("evidence", ([1], ONE), {"max_nodes": 1}, TokenRangeError),
    ("draft_batch", ([[1], [VOCABULARY]],), {}, TokenRangeError),
    ("draft_batch", ([[1]],), {"max_suffix": 65}, LimitError),
    ("longest_suffix_match", ([1],), {"max_suffix": 0}, LimitError),
    ("longest_suffix_match", ([-1],), {}, TokenRangeError),
    ("count", ([1] * 97,), {}, LimitError),
]


@KINDS
def test_a_query_refused_before_anything_is_sent_is_counted(kind: type[Any], service: Service) -> None:
    with connected(kind, service.target) as client:
        client.connect()
        for number, (method, arguments, options, error) in enumerate(UNASKED, 1):
            refused(error, lambda: getattr(client, method)(*arguments, **options))  # noqa: B023
            assert client.statistics == ClientStatistics(calls=1 + number, answers=1, refused=number), method


@KINDS
def test_no_context_is_no_call(kind: type[Any]) -> None:
    with connected(kind, f"127.0.0.1:{free_port()}") as client:
        assert client.draft_batch([]) == client.draft_batch(np.zeros((0, 3), dtype=int)) == []
        assert client.statistics == ClientStatistics()


@KINDS
def test_a_step_refused_before_anything_is_sent_is_counted_and_takes_nothing(kind: type[Any], service: Service) -> None:
    with connected(kind, service.target) as client:
        stream = client.stream()
        before = stream.draft([1, 2])
        refused(TreeError, lambda: stream.evidence([3], [1, 2], max_nodes=1), "proposals is list")
        refused(TokenRangeError, lambda: stream.evidence([3], ONE, max_nodes=1), "proposals")
        refused(TokenRangeError, lambda: stream.draft([VOCABULARY]))
        assert stream.draft([]) == before  # the token 3 was not taken
        assert stream.draft([3]) == client.draft([1, 2, 3])
        counts = client.statistics
        assert counts == ClientStatistics(calls=8, answers=5, refused=3, streams_opened=1)  # the stream has lived
        stream.close()


@KINDS
def test_proposals_that_are_none_say_nothing_of_a_service_that_is_away(kind: type[Any], service: Service) -> None:
    with connected(kind, service.target, failure_threshold=2, pause=100.0, retries=0) as client:
        stream = client.stream()
        stream.draft([1])
        service.kill()
        for _ in range(2):
            refused(TreeError, lambda: stream.evidence([1], [1], max_nodes=1))
            with pytest.raises(ServiceUnavailableError):
                stream.draft([1])
        service.restart()
        assert client.statistics.circuits_opened == 1  # failures in a row, whatever else was asked meanwhile
        stream.close()
