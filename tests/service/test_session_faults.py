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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ServiceUnavailableError
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.clients import LATE, SLACK
from tests.shared.services import PATIENCE, Service, running
from tests.shared.sessions import Nodes, Relay, Request, is_run_by_the_service, sessions_of, without_sessions
from tests.shared.strategies import ONE_TO_NINE, write_datastore

TEXT = [1, 2, 3, 50, 60, 1, 2]
Answer = pb.DraftSessionResponse


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


def test_a_paused_service_costs_the_deadline_once_and_its_late_answer_is_skipped(service: Service) -> None:
    with opened(service.target) as (client, session):
        assert steps(session, 3, 1, 2) == [True] * 3
        session._remote._remote._timeout = LATE  # type: ignore[union-attr]
        service.pause()
        began = time.monotonic()
        assert steps(session, 3) == [False]
        assert time.monotonic() - began < LATE + SLACK
        assert steps(session, 1, 2, 3) == [False] * 3
        assert client.statistics.deadlines == 4
        service.resume()
        session._remote._remote._timeout = PATIENCE  # type: ignore[union-attr]
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


# --- Answers ----------------------------------------------------------------------------------------------------------


def of_answer(change: Callable[[Answer], object], after: int = 0) -> Callable[[str, bytes], bytes]:
    """Answers of sessions are changed, except the first `after`."""
    answers = 0

    def changed(name: str, data: bytes) -> bytes:
        nonlocal answers
        if name != "DraftSession":
            return data
        answers += 1
        if answers <= after:
            return data
        message = Answer.FromString(data)
        change(message)
        return message.SerializeToString()

    return changed


def of_nodes(**columns: list[Any]) -> Callable[[Answer], None]:
    """The nodes have other values, at least one of each."""

    def change(answer: Answer) -> None:
        nodes = Nodes.of(answer.nodes)
        answer.nodes = nodes._replace(
            **{name: values + getattr(nodes, name)[len(values) :] for name, values in columns.items()}
        ).packed()

    return change


def named(*names: str) -> Callable[[Answer], None]:
    def change(answer: Answer) -> None:
        del answer.datastores[:]
        answer.datastores.extend(names)

    return change


def weighing(*weights: float) -> Callable[[Answer], None]:
    def change(answer: Answer) -> None:
        del answer.calibration_weights[:]
        answer.calibration_weights.extend(weights)

    return change


WRONG: dict[str, tuple[Callable[[Answer], object], str]] = {
    "another sequence": (lambda answer: setattr(answer, "sequence", answer.sequence + 1), "sequence"),
    "no sequence": (lambda answer: answer.ClearField("sequence"), "sequence"),
    "half a node": (lambda answer: setattr(answer, "nodes", answer.nodes[:-1]), "of a wrong size"),
    "too many nodes": (lambda answer: setattr(answer, "nodes", bytes(11 * 9)), "larger than asked for"),
    "very many nodes": (lambda answer: setattr(answer, "nodes", bytes(11 * 5000)), "larger than asked for"),
    "a token outside": (of_nodes(tokens=[300]), "a token outside the vocabulary"),
    "a token below": (of_nodes(tokens=[-1]), "a token outside the vocabulary"),
    "its own parent": (of_nodes(parents=[0]), "a parent after its child"),
    "a parent that follows": (of_nodes(parents=[1]), "a parent after its child"),
    "a parent below": (of_nodes(parents=[-2]), "a parent after its child"),
    "a score that is no number": (of_nodes(scores=[float("nan")]), "a score outside 0..1"),
    "a score above one": (of_nodes(scores=[1.5]), "a score outside 0..1"),
    "a score below zero": (of_nodes(scores=[-0.5]), "a score outside 0..1"),
    "four weights": (weighing(0, 0, 0, 0), "calibration weights"),
    "very many weights": (weighing(*[0] * 5000), "calibration weights"),
    "weights that are no numbers": (weighing(0, 0, 0, 0, float("nan")), "calibration weights"),
    "weights without end": (weighing(0, 0, 0, 0, float("inf")), "calibration weights"),
    "names twice": (named("one", "one"), "datastores that answer"),
    "very many names": (named(*map(str, range(100))), "datastores that answer"),
}


@pytest.mark.parametrize(("change", "what"), WRONG.values(), ids=WRONG)
def test_a_wrong_answer_is_counted_and_the_next_one_taken(steady: Service, change: Any, what: str) -> None:
    with Relay(steady.target) as relay, opened(relay.target) as (_, session):
        assert steps(session, 3, 1) == [True] * 2
        relay.answer = of_answer(change)
        assert steps(session, 2, 3) == [False] * 2
        relay.answer = lambda _, data: data
        assert steps(session, 1, 2) == [True] * 2
        assert session.statistics.dropped == {(0, "error"): 2}
        assert what in session.statistics.errors[0]
        assert all(abs(weight) < 1 for weight in session.calibration.weights)
        assert is_run_by_the_service(session)
    eventually_without_sessions(steady)


def test_the_first_answer_names_the_datastores(steady: Service) -> None:
    with Relay(steady.target, of_answer(named())) as relay, opened(relay.target) as (_, session):
        assert steps(session, 3, 1) == [False] * 2
        assert "datastores that answer" in session.statistics.errors[0]
        relay.answer = lambda _, data: data
        assert steps(session, 2) == [True]


@pytest.mark.parametrize("answer", [b"\xff\xff", b"", bytes(1 << 20)])
def test_what_is_no_answer_is_counted(steady: Service, answer: bytes) -> None:
    with Relay(steady.target) as relay, opened(relay.target) as (_, session):
        assert steps(session, 3) == [True]
        relay.answer = lambda name, data: answer if name == "DraftSession" else data
        assert steps(session, 1, 2) == [False] * 2
        assert "ProtocolError" in session.statistics.errors[0]


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_any_status_costs_a_step_at_most_for_each_that_has_it(steady: Service, code: grpc.StatusCode) -> None:
    """As from a proxy that ends streams after some time."""
    with Relay(steady.target) as relay, opened(relay.target, retries=0) as (_, session):
        assert steps(session, 3, 1) == [True] * 2
        relay.aborts = code
        assert len(steps(session, 2, 3)) == 2
        relay.aborts = None
        assert steps(session, 1, 2, 3) == [True] * 3
        assert session.statistics.dropped in ({}, {(0, "error"): 1}, {(0, "error"): 2})


def test_any_origins_and_any_weights_do_no_harm(steady: Service) -> None:
    def change(answer: Answer) -> None:
        nodes = Nodes.of(answer.nodes)
        answer.nodes = nodes._replace(origins=[255] * len(nodes.origins)).packed()
        weighing(3e38, -3e38, 1e9, 0, 0)(answer)

    with Relay(steady.target, of_answer(change)) as relay, opened(relay.target) as (_, session):
        for token in (3, 1, 2):
            tree = session.draft(8)
            assert tree.origins is not None
            assert set(tree.origins.tolist()) == {0b111}, "places of sources that there are"
            session.accept([token])
        assert max(map(abs, session.calibration.weights)) <= 1
        relay.close()
        assert len(session.draft(8)) > 0


def test_a_service_that_has_lost_its_sessions_is_merged_here(steady: Service) -> None:
    """An older release took its place: it has no such method."""
    with Relay(steady.target) as relay, DatastoreClient(relay.target, timeout=PATIENCE) as client:
        client.connect()
        relay.lacks = "DraftSession"
        relay.answer = without_sessions
        with DraftSession([client, PromptLookup()], TEXT) as session:
            assert steps(session, 3, 1, 2) == [False, True, True]
            assert not is_run_by_the_service(session)
            assert session.statistics.dropped == {(0, "error"): 1}


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
