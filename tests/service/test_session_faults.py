"""Sessions that a service runs, and what may happen to it: no step fails, few go without, answers are verified."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ServiceUnavailableError
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.clients import LATE, SLACK
from tests.shared.services import PATIENCE, Service, running
from tests.shared.sessions import Relay, Request, is_run_by_the_service, sessions_of
from tests.shared.strategies import ONE_TO_NINE, write_datastore

TEXT = [1, 2, 3, 50, 60, 1, 2]
pytestmark = pytest.mark.usefixtures("streams")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_datastore(tmp_path_factory.mktemp("one"), ONE_TO_NINE)


@pytest.fixture(scope="module")
def steady(directory: Path) -> Iterator[Service]:
    """A service that nothing happens to."""
    with running(f"one={directory}", options=["--metrics=127.0.0.1:0"]) as service:
        yield service


@pytest.fixture
def service(directory: Path) -> Iterator[Service]:
    """A service that a test may end."""
    with running(f"one={directory}", options=["--metrics=127.0.0.1:0"]) as service:
        yield service


def drafting(*targets: str, **options: Any) -> tuple[DatastoreClient, DraftSession]:
    """A client, and a session over it and the text."""
    client = DatastoreClient(list(targets), **{"timeout": PATIENCE, **options})
    return client, DraftSession([client, PromptLookup(), RecycledLogits()], TEXT)


@contextlib.contextmanager
def opened(*targets: str, **options: Any) -> Iterator[tuple[DatastoreClient, DraftSession]]:
    client, session = drafting(*targets, **options)
    with client, session:
        yield client, session


def eventually_without_sessions(service: Service) -> None:
    end = time.monotonic() + PATIENCE
    while sessions_of(service)[0] > 0:
        assert time.monotonic() < end


def steps(session: DraftSession, *tokens: int) -> list[bool]:
    """Draft and accept each of `tokens`; return for each step whether the service had a part in it."""
    found = []
    for token in tokens:
        tree = session.draft(8)
        assert len(tree) > 0, "the text itself proposes something"
        found.append(0 not in session.statistics.absent)
        session.accept([token], [[-1, -1]], node_top_k=[[9, 8]] * (1 + len(tree)))
    return found


# --- The service goes away --------------------------------------------------------------------------------------------


def test_a_killed_service_costs_steps_until_it_is_back(service: Service) -> None:
    with opened(service.target, timeout=2.0, failure_threshold=1000) as (client, session):
        assert steps(session, 3, 1, 2) == [True] * 3
        service.kill()
        assert steps(session, 3, 1, 2) == [False] * 3
        assert session.statistics.dropped == {(0, "error"): 3}
        assert session.statistics.absent[0].steps == 3
        assert "ServiceUnavailableError: " in session.statistics.errors[0]
        service.restart()
        end = time.monotonic() + PATIENCE
        while not steps(session, 3, 1, 2)[-1]:  # gRPC connects again when it likes
            assert time.monotonic() < end
        assert steps(session, 3, 1, 2) == [True] * 3
        assert session.statistics.absent == {}
        assert client.statistics.streams_opened >= 2
        assert is_run_by_the_service(session)


def test_a_killed_service_is_replaced_by_another_without_a_step_undrafted(service: Service, steady: Service) -> None:
    with opened(service.target, steady.target) as (client, session), opened(steady.target) as (_, like):
        trees = []
        for token in (3, 1, 2, 3, 50, 1, 2):
            trees.append((session.draft(8), like.draft(8)))
            for one in (session, like):
                one.accept([token])
            if len(trees) == 3:
                service.kill()
        assert session.statistics.dropped == {}
        assert (client.statistics.failovers, client.statistics.streams_opened) == (1, 2)
        for mine, other in trees:
            assert mine.tokens.tolist() == other.tokens.tolist()
        assert session.calibration.weights == pytest.approx(like.calibration.weights, abs=0.01), "it learns on"


def test_a_session_that_is_opened_again_says_what_recent_steps_have_taught(steady: Service) -> None:
    answers: list[bytes] = []

    def keep(name: str, data: bytes) -> bytes:
        answers.extend([data] * (name == "DraftSession"))
        return data

    with Relay(steady.target, keep) as relay, opened(relay.target) as (_, session):
        assert steps(session, 3, 1, 2) == [True] * 3
        session.sources.remote._remote._drop()  # type: ignore[union-attr]
        assert steps(session, 3) == [True]
        requests = [Request.FromString(data) for name, data in relay.received if name == "DraftSession"]
        [first, again] = [request.open for request in requests if request.HasField("open")]
        assert list(first.recent) == []
        assert list(again.recent) == list(pb.DraftSessionResponse.FromString(answers[2]).recent)
        assert len(again.recent) == 4


def test_a_paused_service_costs_the_deadline_once_and_its_late_answer_is_skipped(service: Service) -> None:
    with opened(service.target) as (client, session):
        assert steps(session, 3, 1, 2) == [True] * 3
        session.sources.remote._remote._timeout = LATE  # type: ignore[union-attr]
        service.pause()
        began = time.monotonic()
        assert steps(session, 3) == [False]
        assert time.monotonic() - began < LATE + SLACK
        assert steps(session, 1, 2, 3) == [False] * 3
        assert client.statistics.deadlines == 4
        service.resume()
        session.sources.remote._remote._timeout = PATIENCE  # type: ignore[union-attr]
        end = time.monotonic() + PATIENCE
        while not steps(session, 1)[0]:
            assert time.monotonic() < end
        assert client.statistics.late_answers == 1
        assert client.statistics.streams_opened == 1
        assert steps(session, 2, 3, 1) == [True] * 3


def test_a_paused_service_is_left_for_another_one(service: Service, steady: Service) -> None:
    with opened(service.target, steady.target, timeout=2 * LATE) as (client, session):
        assert client.connect(PATIENCE).target == service.target
        steps(session, 3)
        service.pause()
        while not steps(session, 1)[0]:
            assert len(session) < 100
        session.sources.remote._remote._timeout = PATIENCE  # type: ignore[union-attr]
        assert client.statistics.failovers == 1
        assert steps(session, 2, 3) == [True] * 2
        service.resume()


def test_a_session_without_time_for_its_service_drafts_from_what_is_here(steady: Service) -> None:
    with (
        DatastoreClient(steady.target, timeout=PATIENCE) as client,
        DraftSession([client, PromptLookup(), RecycledLogits()], TEXT, source_timeout=0) as session,
    ):
        assert steps(session, 1, 2) == [False] * 2
        assert sum(session.statistics.dropped.values()) == 2


def test_a_session_that_ended_idle_is_opened_again_without_a_step_undrafted(directory: Path) -> None:
    options = ["--metrics=127.0.0.1:0", "--session-idle-seconds=1"]
    with running(f"one={directory}", options=options) as service, opened(service.target) as (client, session):
        assert steps(session, 3) == [True]
        eventually_without_sessions(service)
        assert steps(session, 1, 2) == [True] * 2
        assert session.statistics.dropped == {}
        assert (client.statistics.streams_opened, client.statistics.failovers) == (2, 0)


def test_a_service_that_takes_no_more_sessions_is_merged_here(directory: Path) -> None:
    options = ["--max-session-memory=800000"]
    with running(f"one={directory}", options=options) as service, opened(service.target) as (_, first):
        assert steps(first, 3) == [True]
        with opened(service.target) as (_, second):
            assert steps(second, 3, 1) == [True] * 2
            assert second.statistics.dropped == {}
            assert not is_run_by_the_service(second)
        assert steps(first, 1) == [True]
        assert is_run_by_the_service(first)


def test_a_service_that_has_lost_its_datastore_is_gone_without(tmp_path: Path) -> None:
    directory = tmp_path / "one"
    directory.mkdir()
    write_datastore(directory, ONE_TO_NINE)
    with running(f"one={directory}") as service, opened(service.target) as (_, session):
        assert steps(session, 3, 1, 2) == [True] * 3
        for file in [*directory.glob("*.tokens"), *directory.glob("*.suffixes")]:
            os.truncate(file, 0)
        assert not all(steps(session, *[1, 2, 3] * 20))
        assert "DatastoreUnavailableError" in session.statistics.errors[0]
        assert str(tmp_path) not in session.statistics.errors[0]


# --- Opening ----------------------------------------------------------------------------------------------------------


def test_a_session_is_open_before_its_first_step(steady: Service) -> None:
    with DatastoreClient(steady.target, timeout=PATIENCE) as client:
        client.connect()
        with DraftSession([client, PromptLookup()], TEXT) as session:
            end = time.monotonic() + PATIENCE
            while not sessions_of(steady)[0]:
                assert time.monotonic() < end
            assert session.statistics.steps == 0
            assert steps(session, 3) == [True]
            assert client.statistics.streams_opened == 1


def test_no_session_is_opened_ahead_where_calls_have_failed(service: Service) -> None:
    with DatastoreClient(service.target, timeout=PATIENCE, failure_threshold=1, retries=0, pause=PATIENCE) as client:
        client.connect()
        service.kill()
        with pytest.raises(ServiceUnavailableError):
            client.count([1])
        with DraftSession([client, PromptLookup()], TEXT) as session:
            assert client.statistics.streams_opened == 0
            assert steps(session, 3) == [False]


# --- The end of sessions, processes and patience ----------------------------------------------------------------------


def test_a_closed_client_is_gone_without(steady: Service) -> None:
    with opened(steady.target) as (client, session):
        assert steps(session, 3) == [True]
        client.close()
        assert steps(session, 1, 2) == [False] * 2
        assert "the client is closed" in session.statistics.errors[0]


@pytest.mark.parametrize("closed", [True, False])
def test_an_ended_session_leaves_nothing(steady: Service, closed: bool) -> None:
    def streams() -> int:
        return sum(thread.name == "rest-store stream" for thread in threading.enumerate())

    before = streams()
    with DatastoreClient(steady.target, timeout=PATIENCE) as client:
        sessions = [DraftSession([client, PromptLookup()], TEXT) for _ in range(5)]
        for session in sessions:
            session.draft(8)
        assert sessions_of(steady)[0] == 5
        if closed:
            for session in sessions:
                session.close()
        del session, sessions
        gc.collect()
        eventually_without_sessions(steady)
        end = time.monotonic() + PATIENCE
        while streams() > before:
            assert time.monotonic() < end
        assert client.statistics.answers > 5


def test_an_interrupt_leaves_the_session_as_it_was(service: Service, steady: Service) -> None:
    with (
        DatastoreClient(service.target, timeout=PATIENCE) as client,
        DatastoreClient(steady.target, timeout=PATIENCE) as other,
        DraftSession([client, PromptLookup()], TEXT, learn=False) as session,
        DraftSession([other, PromptLookup()], TEXT, learn=False) as like,
    ):
        for one in (session, like):
            assert steps(one, 3, 1) == [True] * 2
        before = session.statistics.steps
        service.pause()
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            session.draft(8)
        assert session.statistics.steps == before
        service.resume()
        assert session.draft(8).tokens.tolist() == like.draft(8).tokens.tolist()
        assert session.statistics == like.statistics


FORKED = """
import os, sys
from rest_store import DatastoreClient, DraftSession, PromptLookup
client = DatastoreClient(sys.argv[1], timeout=60)
session = DraftSession([client, PromptLookup()], [1, 2, 3, 50, 60, 1, 2])
assert len(session.draft(8)) and not session.statistics.dropped
if os.fork() == 0:
    tree = session.draft(8)
    os._exit(7 if len(tree) and "fork" in session.statistics.errors[0] else 8)
status = os.waitstatus_to_exitcode(os.wait()[1])
session.accept([3])
tree = session.draft(8)
print(status, len(tree) > 0, session.statistics.dropped)
"""


def test_a_forked_process_goes_on_without_and_leaves_the_stream_alone(steady: Service) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, steady.target], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert done.stdout.split(maxsplit=2) == ["7", "True", "{}\n"] or done.stdout == "7 True {}\n"


def test_many_calls_of_accept_without_a_draft_are_few_messages(steady: Service) -> None:
    """After so many the text is sent again."""
    with Relay(steady.target) as relay, opened(relay.target) as (client, session):
        assert steps(session, 3) == [True]
        for number in range(2000):
            session.accept([number % 9], [[1, 2]])
        assert steps(session, 1) == [True]
        assert session.statistics.dropped == {}
        assert client.statistics.streams_opened == 2
        requests = [Request.FromString(data) for name, data in relay.received if name == "DraftSession"]
        assert len(requests) == 3, "an opening, a step, and a step that opens it again"
        assert len(requests[2].accepted) <= 512
        accepted = sum(len(one.tokens) for one in requests[2].accepted)
        assert requests[2].open.written + accepted == 2001
        assert len(requests[2].open.tokens) + accepted == len(TEXT) + 2001


def test_costs_of_wider_steps_than_asked_for_are_not_sent(steady: Service) -> None:
    with Relay(steady.target) as relay, opened(relay.target) as (_, session):
        costs = 1 + 0.001 * np.arange(5000)
        assert len(session.draft(8, costs)) > 0
        assert session.statistics.dropped == {}
        assert is_run_by_the_service(session)
        _, request = [Request.FromString(data) for name, data in relay.received if name == "DraftSession"]
        assert len(request.draft.costs.of_step) == 9
