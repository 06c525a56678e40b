"""Batches of sessions that a service runs: all are asked before any answer is awaited."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rest_store import accept_all, draft_all
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup
from rest_store.service.client.client import DatastoreClient
from tests.shared.services import PATIENCE, Service, running
from tests.shared.sessions import Relay, is_run_by_the_service
from tests.shared.strategies import corpus_of_phrases, write_datastore

TEXTS = [[1, 2, 3], [2, 3, 1, 2], [0, 1], [3, 3, 2, 1]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_datastore(tmp_path_factory.mktemp("datastore"), corpus_of_phrases(random.Random(3), 5, 30))


@pytest.fixture(scope="module")
def service(directory: Path) -> Iterator[Service]:
    with running(directory) as service:
        yield service


def test_sessions_at_a_service_meet_there_and_draft_what_they_do_in_process(service: Service, directory: Path) -> None:
    """Every answer is held back until all sessions have been asked."""
    meeting = threading.Barrier(len(TEXTS))

    def held_back(name: str, data: bytes) -> bytes:
        if name == "DraftSession":
            meeting.wait()
        return data

    with Relay(service.target, held_back) as relay, DatastoreClient(relay.target, timeout=PATIENCE) as client:
        sessions = [DraftSession([client, PromptLookup()], text) for text in TEXTS]
        store = Datastore.open(directory)
        here = [DraftSession([store, PromptLookup()], text) for text in TEXTS]
        for step in range(3):
            trees, expected = draft_all(sessions, 8), draft_all(here, 8)
            assert [tree.tokens.tolist() for tree in trees] == [tree.tokens.tolist() for tree in expected]
            assert all(map(is_run_by_the_service, sessions))
            tokens = [[*tree.tokens[:step].tolist(), 1] for tree in trees]
            accept_all(sessions, tokens)
            accept_all(here, tokens)
        for session, other in zip(sessions, here, strict=True):
            assert session.statistics == other.statistics
            session.close()


def test_a_late_answer_delays_its_own_session_alone(service: Service) -> None:
    """The answer of a step that was late is skipped when it comes."""
    go = threading.Event()

    def slow(name: str, data: bytes) -> bytes:
        if name == "DraftSession":
            go.wait()
        return data

    with (
        Relay(service.target, slow) as relay,
        DatastoreClient(relay.target, timeout=PATIENCE) as away,
        DatastoreClient(service.target, timeout=PATIENCE) as client,
    ):
        late = DraftSession([away, PromptLookup()], TEXTS[0], source_timeout=0.2)
        sessions = [late, *(DraftSession([client, PromptLookup()], text) for text in TEXTS[1:])]
        for session in sessions[1:]:
            session.draft(8)
        for _ in range(2):
            draft_all(sessions, 8)
            accept_all(sessions, [[1]] * len(sessions))
        assert [session.statistics.dropped for session in sessions] == [{(0, "error"): 2}, {}, {}, {}]
        go.set()
        while late.statistics.absent:
            draft_all(sessions, 8)
        assert is_run_by_the_service(late)
        for session in sessions:
            session.close()
