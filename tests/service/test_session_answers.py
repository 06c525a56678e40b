"""What services answer to the sessions that they run: a wrong answer costs a step, and is said once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from tests.service.test_session_faults import TEXT, eventually_without_sessions, opened, steps
from tests.shared.services import PATIENCE, Service, running
from tests.shared.sessions import Nodes, Relay, is_run_by_the_service, without_sessions
from tests.shared.strategies import ONE_TO_NINE, write_datastore

pytestmark = pytest.mark.usefixtures("streams")
Answer = pb.DraftSessionResponse


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that nothing happens to."""
    directory = write_datastore(tmp_path_factory.mktemp("one"), ONE_TO_NINE)
    with running(f"one={directory}", options=["--metrics=127.0.0.1:0"]) as service:
        yield service


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


def recently(*numbers: float) -> Callable[[Answer], None]:
    def change(answer: Answer) -> None:
        del answer.recent[:]
        answer.recent.extend(numbers)

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
    "seventeen numbers of recent steps": (recently(*[0.5] * 17), "what recent steps have taught"),
    "numbers of recent steps without end": (recently(1, 2, float("inf"), 0), "what recent steps have taught"),
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
        recently(3e38, -3e38, 1e9, 0)(answer)

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
        relay.lacks = {"DraftSession", "DraftSessions"}
        relay.answer = without_sessions
        with DraftSession([client, PromptLookup()], TEXT) as session:
            assert steps(session, 3, 1, 2) == [False, True, True]
            assert not is_run_by_the_service(session)
            assert session.statistics.dropped == {(0, "error"): 1}
