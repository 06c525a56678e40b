"""What happens to sessions in the life of a service: limits, idleness, tokens, reloads, lost files, draining."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup
from rest_store.live.live_datastore import LiveDatastore
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc
from tests.service.reloads import reload
from tests.shared.services import PATIENCE, Service, metrics_of, reason_of, running
from tests.shared.sessions import Nodes, Request, SessionTalk, opening, sessions_of, step, top_k
from tests.shared.strategies import Corpus, identity, write_datastore

CHANCE = random.Random(5)
CORPUS = Corpus(300, [[[CHANCE.randrange(100) for _ in range(50)] for _ in range(400)]])  # several pages
OTHER = Corpus(300, [[[1, 2, number] for number in range(100, 140)]])
METRICS = "--metrics=127.0.0.1:0"
SHARED = {"recycled_logits": b"key", "shared_calibration": "name"}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_datastore(tmp_path_factory.mktemp("original"), CORPUS)


@pytest.fixture
def directory(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "a")
    return tmp_path / "a"


def reason_in(call: Callable[[], object]) -> str | None:
    """The reason of the error that a stream ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return reason_of(caught.value)


def refusal(talk: SessionTalk, request: Request) -> str | None:
    """Ask; return the reason of the error that ends the session, None for an answer."""
    try:
        talk.ask(request)
    except grpc.RpcError as error:
        talk.leave()
        return reason_of(error) or error.code().name
    return None


def refused_openings(stub: Any, number: int, **fields: Any) -> tuple[list[SessionTalk], int]:
    """Open so many sessions; return those that are open, and how many were refused as too many."""
    talks = [SessionTalk(stub) for _ in range(number)]
    reasons = [refusal(talk, opening(1, 2, **fields)) for talk in talks]
    assert set(reasons) <= {None, "OVERLOADED"}
    return [talk for talk, reason in zip(talks, reasons, strict=True) if reason is None], reasons.count("OVERLOADED")


def eventually(service: Service, streams: int) -> None:
    """Wait until the service has so many streams."""
    end = time.monotonic() + PATIENCE
    while metrics_of(service)["rest_store_streams",] != streams:
        assert time.monotonic() < end


def test_streams_beyond_the_limit_are_refused_and_their_places_given_back(original: Path) -> None:
    with running(f"a={original}", options=[METRICS, "--max-streams=20"]) as service, service.stub() as stub:
        silent = [SessionTalk(stub) for _ in range(12)]  # not one message
        eventually(service, 12)
        talks, refused = refused_openings(stub, 200)
        assert (len(talks), refused) == (8, 192)
        assert sessions_of(service)[0] == 8
        assert stub.Describe(pb.DescribeRequest()).limits.max_streams == 20
        assert len(talks[0].ask(step(3)).nodes) > 0
        for talk in (*silent, *talks):
            talk.close()
        assert sessions_of(service) == (0, 0)
        talks, refused = refused_openings(stub, 20)
        assert (len(talks), refused) == (20, 0)
        for talk in talks:
            talk.close()


def test_sessions_take_no_more_memory_than_they_may(original: Path) -> None:
    """One that would is refused; what others give back is there for the next ones."""
    most = 5_000_000
    options = [METRICS, f"--max-session-memory={most}"]
    with running(f"a={original}", options=options) as service, service.stub() as stub:
        (first,), _ = refused_openings(stub, 1)
        of_one = sessions_of(service)[1]
        fit = int(most / of_one)
        talks, refused = refused_openings(stub, fit + 5)
        assert (1 + len(talks), refused) == (fit, 6)
        assert sessions_of(service) == (fit, fit * of_one)
        assert len(first.ask(step(3)).nodes) > 0
        assert reason_in(lambda: first.ask(step(*[1] * 40_000))) == "OVERLOADED", "a text that grows"
        first.leave()
        assert sessions_of(service) == (fit - 1, (fit - 1) * of_one)
        assert reason_in(lambda: talks[0].ask(step(3, nodes=1024))) == "OVERLOADED", "a larger tree"
        talks.pop(0).leave()
        for talk in talks:
            assert len(talk.ask(step(3)).nodes) > 0
            talk.close()
        assert sessions_of(service) == (0, 0)
        assert refused_openings(stub, fit)[1] == 0


def test_sessions_take_no_more_memory_than_is_shown(original: Path) -> None:
    """With long texts, large trees and what they learn."""
    number = 40
    rows = top_k([[place % 100] * 8 for place in range(2000)])

    async def run(service: Service) -> None:
        async with grpc.aio.insecure_channel(service.target) as channel:
            stub = datastore_pb2_grpc.DatastoreServiceStub(channel)
            before = service.resident_bytes()
            calls = [stub.DraftSession(timeout=PATIENCE) for _ in range(number)]
            for call in calls:
                text = [CHANCE.randrange(300) for _ in range(2000)]
                await call.write(opening(*text, nodes=200, prompt_lookup=True, recycled_logits=b"", top_k=rows))
                assert len((await call.read()).nodes) == 11 * 200
            grown = service.resident_bytes() - before
            count, shown = sessions_of(service)
            assert count == number
            assert grown < shown < number * 8_000_000
            for call in calls:
                call.cancel()

    with running(f"a={original}", options=[METRICS]) as service:
        asyncio.run(run(service))
        eventually(service, 0)
        assert sessions_of(service) == (0, 0)


def test_the_guide_says_what_sessions_reserve(original: Path) -> None:
    guide = " ".join((Path(__file__).parents[2] / "docs/how-to/service.md").read_text(encoding="utf-8").split())
    with running(f"a={original}", options=[METRICS]) as service, service.stub() as stub:
        for length, said in ((2_000, "2,000 tokens need {:.1f} MB"), (128_000, "128,000 need {:.0f} MB")):
            talk = SessionTalk(stub)
            talk.ask(opening(*[1] * length, nodes=16, prompt_lookup=True))
            assert said.format(sessions_of(service)[1] / 1e6) in guide
            talk.close()
            eventually(service, 0)


def test_what_sessions_share_makes_room_for_sessions(original: Path) -> None:
    """It is kept for the next ones, but not at their cost."""
    most = 3_000_000
    with running(f"a={original}", options=[METRICS, f"--max-session-memory={most}"]) as service, service.stub() as stub:
        (talk,), _ = refused_openings(stub, 1)
        alone = sessions_of(service)[1]
        talk.close()
        for number in range(40):
            talk = SessionTalk(stub)
            talk.ask(opening(1, 2, shared_calibration=f"name {number}", recycled_logits=b"%d" % number))
            talk.ask(step(3, top_k=top_k([[4, 5]])))
            talk.close()
        count, kept = sessions_of(service)
        assert count == 0
        assert 0 < kept <= most
        talks, _ = refused_openings(stub, 30)
        assert len(talks) == int(most / alone)
        assert sessions_of(service)[1] == len(talks) * alone
        for talk in talks:
            talk.close()


def test_what_sessions_learn_is_within_their_memory(original: Path) -> None:
    """Recycled logits grow as they learn; a session that has no more memory for them ends."""
    most = 6_500_000
    rows = top_k([[number % 100, (number * 7) % 100] for number in range(1000)])
    with running(f"a={original}", options=[METRICS, f"--max-session-memory={most}"]) as service, service.stub() as stub:
        talks, _ = refused_openings(stub, 8, recycled_logits=b"")
        ended = 0
        for talk in talks:
            tokens = [CHANCE.randrange(300) for _ in range(1000)]
            reason = refusal(talk, step(*tokens, top_k=rows))
            assert reason in (None, "OVERLOADED")
            ended += reason is not None
            assert sessions_of(service)[1] <= most
        assert 0 < ended < len(talks) == 8
        for talk in talks:
            talk.leave()
        eventually(service, 0)
        assert sessions_of(service) == (0, 0)


def test_sessions_that_share_a_name_or_a_key_learn_together(original: Path) -> None:
    with running(f"a={original}", options=[METRICS]) as service, service.stub() as stub:
        first, second = (SessionTalk(stub) for _ in range(2))
        first.ask(opening(1, 2, **SHARED))
        second.ask(opening(290, 280, **SHARED))
        for _ in range(5):
            first.ask(step(250, 1, 2, top_k=top_k([[-1], [-1], [299]])))
        tokens = Nodes.of(second.ask(step(1, 2)).nodes).tokens
        assert 299 in tokens, "what the other one's model found likely after 1, 2"
        first.close()
        second.close()
        third = SessionTalk(stub)
        assert 299 in Nodes.of(third.ask(opening(1, 2, **SHARED)).nodes).tokens, "after they have ended"
        third.close()
        for fields in ({}, {"recycled_logits": b""}, {"recycled_logits": b"another"}):
            other = SessionTalk(stub)
            assert 299 not in Nodes.of(other.ask(opening(1, 2, **fields)).nodes).tokens
            other.close()


def test_a_service_has_idle_sessions_let_go_of_what_its_live_datastores_have_replaced(tmp_path: Path) -> None:
    with LiveDatastore.open(tmp_path / "chat", tokenizer=identity(300)) as live:
        ids = live.add([[1, 2, 3], [1, 2, 4]])
        live.compact()
    with running(options=["--live", str(tmp_path / "chat")]) as service, service.stub() as stub:
        talk = SessionTalk(stub)
        talk.ask(opening(1, 2, selection=pb.Selection()))
        with DatastoreClient(service.target, timeout=PATIENCE) as client:
            client.delete(ids[:1])
        maps, ends = Path(f"/proc/{service.process.pid}/maps"), time.monotonic() + PATIENCE
        while "(deleted)" in "".join(line for line in maps.read_text().splitlines() if "/segment-" in line):
            assert time.monotonic() < ends
            time.sleep(0.01)
        talk.close()


def test_a_session_keeps_the_datastore_that_it_began_with(directory: Path, original: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with running(f"a={directory}", f"b={original}") as service, service.stub() as stub:
        talk, like = SessionTalk(stub), SessionTalk(stub)
        before = talk.ask(opening(1, 2)).nodes
        assert like.ask(opening(1, 2, selection=pb.Selection(datastores=["b"]))).nodes == before
        directory.rename(tmp_path / "old")
        write_datastore(tmp_path / "other", OTHER).rename(directory)
        shutil.rmtree(tmp_path / "old")
        assert "reloaded a" in reload(service)
        for token in (3, 1, 2):
            assert talk.ask(step(token)).nodes == like.ask(step(token)).nodes
        new = SessionTalk(stub)
        assert new.ask(opening(1, 2)).nodes != before
        for one in (talk, like, new):
            one.close()


def truncate(directory: Path) -> None:
    for file in [*directory.glob("*.tokens"), *directory.glob("*.suffixes")]:
        os.truncate(file, 4096)


def test_a_datastore_truncated_underneath_ends_its_sessions(directory: Path, original: Path) -> None:
    with running(f"a={directory}", f"b={original}", options=[METRICS]) as service, service.stub() as stub:
        talk, other = SessionTalk(stub), SessionTalk(stub)
        talk.ask(opening(1, 2))
        other.ask(opening(1, 2, selection=pb.Selection(datastores=["b"])))
        truncate(directory)
        tokens = iter(range(100))

        def until_noticed() -> None:
            while True:  # pages that are in the kernel's caches are as they were
                talk.ask(step(next(tokens)))

        for fails in (until_noticed, lambda: SessionTalk(stub).ask(opening(1, 2))):
            with pytest.raises(grpc.RpcError) as caught:
                fails()
            assert reason_of(caught.value) == "DATASTORE_UNAVAILABLE"
            assert str(directory) not in caught.value.details()
        talk.leave()
        assert other.ask(step(3)).nodes
        assert sessions_of(service)[0] == 1
        other.close()
        assert sessions_of(service) == (0, 0)


def drafted(session: DraftSession, steps: int) -> None:
    for _ in range(steps):
        assert len(session.draft(8)) > 0
        session.accept([CHANCE.randrange(100)])


def test_a_drained_service_hands_its_sessions_over_between_two_steps(original: Path) -> None:
    with running(f"a={original}") as first, running(f"a={original}") as second:
        with (
            DatastoreClient([first.target, second.target], timeout=PATIENCE) as client,
            DraftSession([client, PromptLookup()], [1, 2, 3]) as session,
        ):
            drafted(session, 3)
            assert first.stop() == 0, "it does not wait for the next step"
            drafted(session, 3)
            assert session.statistics.dropped == {}
        assert not [line for line in first.log if "ERROR" in line]


def test_a_drained_service_refuses_new_sessions_and_answers_the_step_it_is_in(original: Path) -> None:
    """It was paused with a message on the way, and then told to end: that is answered, or the client told to go."""
    with running(f"a={original}") as service, service.stub() as stub:
        talk = SessionTalk(stub)
        talk.ask(opening(1, 2))
        service.pause()
        talk.tell(step(3))
        service.signal(signal.SIGTERM)
        service.resume()
        answers: list[pb.DraftSessionResponse] = []
        assert reason_in(lambda: answers.extend(talk.call)) == "DRAINING"
        assert len(answers) <= 1
        talk.leave()
        assert service.process.wait(PATIENCE) == 0
