"""Batches of sessions that a service runs: what they ask for travels together, and each fails alone."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rest_store import accept_all, draft_all
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.clients import LATE, SLACK
from tests.shared.live import until
from tests.shared.services import PATIENCE, Service, running
from tests.shared.sessions import Relay, is_run_by_the_service, sessions_of, without_shared_streams
from tests.shared.strategies import corpus_of_phrases, write_datastore

TEXTS = [[1, 2, 3], [2, 3, 1, 2], [0, 1], [3, 3, 2, 1]]
MOST_TEXT = 400  # tokens of a session


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_datastore(tmp_path_factory.mktemp("datastore"), corpus_of_phrases(random.Random(3), 5, 30))


@contextlib.contextmanager
def service_of(directory: Path) -> Iterator[Service]:
    options = ["--metrics=127.0.0.1:0", f"--max-session-tokens={MOST_TEXT}"]
    with running(directory, options=options) as service:
        yield service


@pytest.fixture(scope="module")
def service(directory: Path) -> Iterator[Service]:
    with service_of(directory) as service:
        yield service


@pytest.fixture
def mortal(directory: Path) -> Iterator[Service]:
    """A service that a test may end."""
    with service_of(directory) as service:
        yield service


@contextlib.contextmanager
def batch(client: object, texts: Sequence[Sequence[int]] = TEXTS, **options: Any) -> Iterator[list[DraftSession]]:
    """Sessions over the client, prompt lookup and recycled logits."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(DraftSession([client, PromptLookup(), RecycledLogits()], text, **options))
            for text in texts
        ]


def stepped(sessions: Sequence[DraftSession], nodes: int = 8, **options: Any) -> list[list[int]]:
    """Draft a step of all, and accept what its trees begin with and another token; return the drafts."""
    trees = draft_all(sessions, nodes, **options)
    tokens = [[*tree.tokens[: len(session) % 3].tolist(), 1] for session, tree in zip(sessions, trees, strict=True)]
    top_k = [[[1, 2]] * len(one) for one in tokens]
    of_nodes = [[[3, 1]] * (1 + len(tree)) if len(tree) % 2 else None for tree in trees]
    accept_all(sessions, tokens, top_k, node_top_k=of_nodes)
    return [tree.tokens.tolist() for tree in trees]


def dropped(sessions: Sequence[DraftSession]) -> list[int]:
    """How many steps each session went without its service."""
    return [sum(session.statistics.dropped.values()) for session in sessions]


# --- One stream -------------------------------------------------------------------------------------------------------


def test_a_batch_travels_in_one_message_and_drafts_what_it_does_in_process(service: Service, directory: Path) -> None:
    store = Datastore.open(directory)
    with Relay(service.target) as relay, DatastoreClient(relay.target, timeout=PATIENCE) as client:
        with batch(client) as sessions, batch(store) as here:
            for nodes in (8, 3, 64, 16):
                assert stepped(sessions, nodes) == stepped(here, nodes)
            assert draft_all(sessions, 8) == draft_all(here, 8), "with which the last tokens travel"
            assert all(map(is_run_by_the_service, sessions))
            for session, other in zip(sessions, here, strict=True):
                assert session.statistics == other.statistics
                assert session.calibration.weights == other.calibration.weights
        assert relay.batches[:5] == [len(TEXTS)] * 5
        assert relay.methods() == {"Describe", "DraftSession"}


def test_chains_are_those_in_process_and_those_of_streams_of_their_own(service: Service, directory: Path) -> None:
    store = Datastore.open(directory)
    with (
        Relay(service.target, without_shared_streams) as relay,
        DatastoreClient(relay.target, timeout=PATIENCE) as old,
        DatastoreClient(service.target, timeout=PATIENCE) as client,
        batch(store) as here,
        batch(client) as sessions,
        batch(old) as apart,
    ):
        for nodes in (4, 8, 1, 16):
            chains = stepped(here, nodes, shape="chain")
            assert stepped(sessions, nodes, shape="chain") == chains
            assert stepped(apart, nodes, shape="chain") == chains
        assert draft_all(sessions, 8) == draft_all(here, 8), "with which the last tokens travel"
        assert [one.calibration.weights for one in sessions] == [one.calibration.weights for one in here]
        assert relay.batches == []
        assert dropped([*sessions, *apart]) == [0] * 8


def test_sessions_come_and_go(service: Service, directory: Path) -> None:
    chance, store = random.Random(8), Datastore.open(directory)
    with Relay(service.target) as relay, DatastoreClient(relay.target, timeout=PATIENCE) as client:
        pairs: list[tuple[DraftSession, DraftSession]] = []
        for _ in range(12):
            for _ in range(chance.randrange(3)):
                text = [chance.randrange(4) for _ in range(chance.randrange(1, 9))]
                pairs.append(
                    (DraftSession([client, PromptLookup()], text), DraftSession([store, PromptLookup()], text))
                )
            while len(pairs) > 6:
                for session in pairs.pop(chance.randrange(len(pairs))):
                    session.close()
            sessions, here = ([pair[side] for pair in pairs] for side in (0, 1))
            assert stepped(sessions) == stepped(here)
            assert dropped(sessions) == [0] * len(pairs)
        assert max(relay.batches) > 2
        for pair in pairs:
            for session in pair:
                session.close()


def test_a_full_stream_is_followed_by_another(service: Service) -> None:
    def with_two(name: str, data: bytes) -> bytes:
        if name != "Describe":
            return data
        described = pb.DescribeResponse.FromString(data)
        described.limits.max_stream_sessions = 2
        return described.SerializeToString()

    texts = [[1, 2, number] for number in range(5)]
    with (
        Relay(service.target, with_two) as relay,
        DatastoreClient(relay.target, timeout=PATIENCE) as client,
        batch(client, texts) as sessions,
    ):
        for _ in range(3):
            stepped(sessions)
        assert dropped(sessions) == [0] * 5
        assert sorted(relay.batches) == [1] * 3 + [2] * 6


def test_a_message_is_no_larger_than_the_service_takes(directory: Path) -> None:
    texts = [[1, 2, number] for number in range(40)]
    with (
        running(directory, options=["--max-contexts=1", "--max-message-bytes=4096"]) as service,
        Relay(service.target) as relay,
        DatastoreClient(relay.target, timeout=PATIENCE) as client,
        batch(client, texts) as sessions,
    ):
        for _ in range(3):
            stepped(sessions)
        assert dropped(sessions) == [0] * 40
        assert len(relay.batches) > 3


def test_a_session_that_has_drafted_alone_keeps_its_stream(service: Service) -> None:
    with (
        Relay(service.target) as relay,
        DatastoreClient(relay.target, timeout=PATIENCE) as client,
        batch(client) as sessions,
    ):
        sessions[0].draft(8)
        for _ in range(3):
            stepped(sessions)
        assert relay.batches == [3] * 3
        assert dropped(sessions) == [0] * 4
        assert client.statistics.streams_opened == 4 + 3, "the others had a stream that nothing was asked on"


def test_a_batch_of_one_has_a_stream_of_its_own(service: Service) -> None:
    with Relay(service.target) as relay, DatastoreClient(relay.target, timeout=PATIENCE) as client:
        with batch(client, TEXTS[:1]) as sessions:
            stepped(sessions)
        assert relay.batches == []


def test_sessions_in_threads_may_share_a_stream(service: Service, directory: Path) -> None:
    store = Datastore.open(directory)
    with DatastoreClient(service.target, timeout=PATIENCE) as client, batch(client) as sessions, batch(store) as here:
        expected = [[stepped([session])[0] for _ in range(20)] for session in here]
        client._sessions.streams.are_wanted = True
        found: dict[int, list[list[int]]] = {}

        def run(number: int) -> None:
            found[number] = [stepped([sessions[number]])[0] for _ in range(20)]

        threads = [threading.Thread(target=run, args=(number,)) for number in range(len(TEXTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert [found[number] for number in range(len(TEXTS))] == expected
        assert dropped(sessions) == [0] * 4


def test_nothing_is_left_of_a_batch(service: Service) -> None:
    with DatastoreClient(service.target, timeout=PATIENCE) as client:
        with batch(client) as sessions:
            stepped(sessions)
            assert sessions_of(service)[0] == len(TEXTS)
        end = time.monotonic() + PATIENCE
        while sessions_of(service)[0]:
            assert time.monotonic() < end


def test_a_closed_client_leaves_no_thread(service: Service) -> None:
    """Also while somebody still holds it."""
    before = set(threading.enumerate())
    with DatastoreClient(service.target, timeout=PATIENCE) as client:
        with batch(client) as sessions:
            stepped(sessions)
        until(lambda: sessions_of(service)[0] == 0)  # the thread that sends has nothing left to do
    until(lambda: set(threading.enumerate()) <= before)
    del client


# --- What happens to services -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [Service.kill, Service.stop], ids=["killed", "drained"])
def test_another_service_takes_over_without_a_step_undrafted(
    mortal: Service, service: Service, end: Callable[[Service], object]
) -> None:
    with DatastoreClient([mortal.target, service.target], timeout=PATIENCE) as client, batch(client) as sessions:
        for turn in range(6):
            assert all(stepped(sessions))
            if turn == 2:
                end(mortal)
        assert dropped(sessions) == [0] * 4
        assert client.statistics.failovers > 0
        assert all(map(is_run_by_the_service, sessions))


def test_a_killed_service_costs_steps_until_it_is_back(mortal: Service) -> None:
    options: dict[str, Any] = {"timeout": 2.0, "failure_threshold": 1000}
    with DatastoreClient(mortal.target, **options) as client, batch(client) as sessions:
        stepped(sessions)
        mortal.kill()
        stepped(sessions)
        assert dropped(sessions) == [1] * 4
        mortal.restart()
        end = time.monotonic() + PATIENCE
        while any(session.statistics.absent for session in sessions):  # gRPC connects again when it likes
            stepped(sessions)
            assert time.monotonic() < end
        assert all(map(is_run_by_the_service, sessions))


def test_a_paused_service_costs_all_sessions_one_deadline(mortal: Service) -> None:
    """Their late answers are skipped when they come."""
    texts = [[1, 2, number % 4] for number in range(int(2 * SLACK / LATE))]
    with DatastoreClient(mortal.target, timeout=PATIENCE) as client, batch(client, texts) as sessions:
        stepped(sessions)
        for session in sessions:
            session.sources.remote._remote._timeout = LATE  # type: ignore[union-attr]
        mortal.pause()
        began = time.monotonic()
        stepped(sessions)
        assert time.monotonic() - began < LATE + SLACK
        stepped(sessions)
        assert dropped(sessions) == [2] * len(texts)
        mortal.resume()
        for session in sessions:
            session.sources.remote._remote._timeout = PATIENCE  # type: ignore[union-attr]
        end = time.monotonic() + PATIENCE
        while any(session.statistics.absent for session in sessions):
            stepped(sessions)
            assert time.monotonic() < end
        assert client.statistics.late_answers == len(texts)
        assert client.statistics.streams_opened <= 2 * len(texts), "the first batch shares a stream, and no more"


def test_a_text_that_has_become_too_long_is_merged_here_alone(service: Service) -> None:
    texts = [[1, 2] * (MOST_TEXT // 2 - 1), *TEXTS[1:]]
    with DatastoreClient(service.target, timeout=PATIENCE) as client, batch(client, texts) as sessions:
        for _ in range(4):
            stepped(sessions)
        assert dropped(sessions) == [0] * 4
        assert [is_run_by_the_service(session) for session in sessions] == [False, True, True, True]


def test_a_wrong_answer_costs_its_session_a_step(service: Service) -> None:
    with (
        Relay(service.target) as relay,
        DatastoreClient(relay.target, timeout=PATIENCE) as client,
        batch(client) as sessions,
    ):
        stepped(sessions)
        left = iter([b"\xff\xff"])
        relay.answer = lambda name, data: next(left, data) if name == "DraftSession" else data
        for _ in range(2):
            stepped(sessions)
        assert sorted(dropped(sessions)) == [0, 0, 0, 1]
        assert all(map(is_run_by_the_service, sessions))


def of(*answers: pb.SessionAnswer) -> bytes:
    return pb.DraftSessionsResponse(answers=answers).SerializeToString()


def with_unknown_end(data: bytes) -> bytes:
    message = pb.DraftSessionsResponse.FromString(data)
    message.answers[0].end.reason = "NONE"
    message.answers[0].end.code = 3
    message.answers[0].ClearField("response")
    return message.SerializeToString()


WRONG: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "malformed": (lambda _: b"\xff\xff", "malformed"),
    "empty": (lambda _: b"", "number of answers in a message is 0"),
    "no session": (lambda _: of(pb.SessionAnswer(session=99, response=b"")), "session of an answer is 99"),
    "too many answers": (lambda data: data * 9, "number of answers is"),
    "an unknown end": (with_unknown_end, "reason of a session's end is 'NONE'"),
}


@pytest.mark.parametrize(("change", "what"), WRONG.values(), ids=WRONG)
def test_a_message_that_is_no_answer_costs_a_step_at_most(
    service: Service, change: Callable[[bytes], bytes], what: str
) -> None:
    with (
        Relay(service.target) as relay,
        DatastoreClient(relay.target, timeout=PATIENCE, retries=0) as client,
        batch(client) as sessions,
    ):
        stepped(sessions)
        changes = iter([change])
        relay.answer = lambda name, data: next(changes, bytes)(data) if name == "DraftSessions" else data
        for _ in range(4):
            stepped(sessions)
        assert set(dropped(sessions)) <= {0, 1}
        assert what in " ".join(error for session in sessions for error in session.statistics.errors)
        assert all(map(is_run_by_the_service, sessions))


# --- Streams of their own ---------------------------------------------------------------------------------------------


def test_sessions_at_an_older_service_meet_there(service: Service, directory: Path) -> None:
    """Every answer is held back until all sessions have been asked."""
    meeting = threading.Barrier(len(TEXTS))

    def held_back(name: str, data: bytes) -> bytes:
        if name == "DraftSession":
            meeting.wait()
        return without_shared_streams(name, data)

    with Relay(service.target, held_back) as relay, DatastoreClient(relay.target, timeout=PATIENCE) as client:
        store = Datastore.open(directory)
        with batch(client) as sessions, batch(store) as here:
            for _ in range(3):
                assert stepped(sessions) == stepped(here)
            assert all(map(is_run_by_the_service, sessions))
            for session, other in zip(sessions, here, strict=True):
                assert session.statistics == other.statistics


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
