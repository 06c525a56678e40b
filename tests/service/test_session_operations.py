"""Sessions in the life of a service: limits, long texts, replaced files, draining."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from rest_store.live.live_datastore import LiveDatastore
from rest_store.service.server import served_session
from rest_store.service.server.server import Server
from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc
from tests.shared.live import until
from tests.shared.served import serving_here
from tests.shared.services import PATIENCE, Service, reason_of, running
from tests.shared.sessions import Nodes, SessionTalk, opening, sessions_of, step, top_k
from tests.shared.strategies import identity

CHANCE = random.Random(5)
METRICS = "--metrics=127.0.0.1:0"


def reason_in(call: Callable[[], object]) -> str | None:
    """The reason of the error that a stream ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return reason_of(caught.value)


def open_sessions(stub: Any, number: int) -> list[SessionTalk]:
    """Try to open so many sessions; return those that were not refused as too many."""
    talks = []
    for _ in range(number):
        talk = SessionTalk(stub)
        try:
            talk.ask(opening(1, 2))
            talks.append(talk)
        except grpc.RpcError as error:
            talk.leave()
            if reason_of(error) != "OVERLOADED":
                raise
    return talks


def test_sessions_take_no_more_memory_than_they_may(pages: Path) -> None:
    """A session beyond the limit is refused, and memory that others free is there for the next."""
    most = 5_000_000
    options = [METRICS, f"--max-session-memory={most}"]
    with running(f"a={pages}", options=options) as service, service.stub() as stub:
        [first] = open_sessions(stub, 1)
        of_one = sessions_of(service)[1]
        fit = int(most / of_one)
        talks = open_sessions(stub, fit + 5)
        assert 1 + len(talks) == fit
        assert sessions_of(service) == (fit, fit * of_one)
        assert len(first.ask(step(3)).tree.nodes) > 0
        assert reason_in(lambda: first.ask(step(*[1] * 40_000))) == "OVERLOADED", (
            "a text that grows"
        )
        first.leave()
        assert sessions_of(service) == (fit - 1, (fit - 1) * of_one)
        assert reason_in(lambda: talks[0].ask(step(3, nodes=1024))) == "OVERLOADED", "a larger tree"
        talks.pop(0).leave()
        for talk in talks:
            assert len(talk.ask(step(3)).tree.nodes) > 0
            talk.close()
        assert sessions_of(service) == (0, 0)
        assert len(open_sessions(stub, fit)) == fit


def test_sessions_take_no_more_memory_than_is_shown(pages: Path) -> None:
    """The sessions have long texts and large trees."""
    number = 40

    async def run(service: Service) -> None:
        async with grpc.aio.insecure_channel(service.target) as channel:
            stub = datastore_pb2_grpc.DatastoreServiceStub(channel)
            before = service.resident_bytes()
            calls = [stub.DraftSession(timeout=PATIENCE) for _ in range(number)]
            for call in calls:
                text = [CHANCE.randrange(300) for _ in range(2000)]
                await call.write(opening(*text, nodes=200, prompt_lookup=True))
                assert len((await call.read()).tree.nodes) == 20 * 200
            grown = service.resident_bytes() - before
            count, shown = sessions_of(service)
            assert count == number
            assert grown < shown < number * 8_000_000
            for call in calls:
                call.cancel()

    with running(f"a={pages}", options=[METRICS]) as service:
        asyncio.run(run(service))
        until(lambda: sessions_of(service) == (0, 0))


def test_long_texts_wait_for_a_thread_of_their_own_and_are_dropped_with_their_clients(
    pages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    go_on = threading.Event()
    parse_text = served_session.parse_text

    def held(data: bytes, vocabulary_size: int) -> Any:
        if len(data) > 4 * 4096:
            begun.append(len(data) // 4)
            assert go_on.wait(PATIENCE)
        return parse_text(data, vocabulary_size)

    monkeypatch.setattr(served_session, "parse_text", held)
    long, heavy = opening(*[1] * 5000), pb.DraftRequest(contexts=[pb.Context(tokens=[1])] * 500)

    def opened(server: Server) -> int:
        return sum(stream.session is not None for stream in server._streams.open)

    async def run() -> None:
        async with (
            serving_here(pages) as (server, target),
            grpc.aio.insecure_channel(target) as channel,
        ):
            stub = datastore_pb2_grpc.DatastoreServiceStub(channel)
            waiting = [stub.DraftSession(timeout=PATIENCE) for _ in range(6)]
            for call in waiting:
                await call.write(long)
                while not begun:  # the first one has the thread
                    await asyncio.sleep(0.01)
            while opened(server) < len(waiting):
                await asyncio.sleep(0.01)
            other = stub.DraftSession(timeout=PATIENCE)
            # A large tree takes a thread, too.
            for message in (opening(1, 2), step(3), step(4, nodes=200)):
                await other.write(message)
                assert (await other.read()).tree.nodes
            assert len((await stub.Draft(heavy, timeout=PATIENCE)).trees) == 500
            for call in waiting[1:]:
                call.cancel()
            while opened(server) > 2:
                await asyncio.sleep(0.01)
            go_on.set()
            assert (await waiting[0].read()).tree.nodes
            assert begun == [5000]

    asyncio.run(run())


def test_the_guide_says_what_sessions_reserve(pages: Path) -> None:
    guide = " ".join(
        (Path(__file__).parents[2] / "docs/how-to/service.md").read_text(encoding="utf-8").split()
    )
    with running(f"a={pages}", options=[METRICS]) as service, service.stub() as stub:
        for length, said in (
            (2_000, "2,000 tokens need {:.1f} MB"),
            (128_000, "128,000 need {:.0f} MB"),
        ):
            talk = SessionTalk(stub)
            talk.ask(opening(*[1] * length, nodes=16, prompt_lookup=True))
            assert said.format(sessions_of(service)[1] / 1e6) in guide
            talk.close()


def test_sessions_that_share_a_key_learn_together(pages: Path) -> None:
    shared = {"recycled_logits": b"key"}
    with running(f"a={pages}") as service, service.stub() as stub:

        def first_draft(**fields: Any) -> Nodes:
            talk = SessionTalk(stub)
            nodes = Nodes.from_message(talk.ask(opening(1, 2, **fields)).tree)
            talk.close()
            return nodes

        before = first_draft(**shared)
        first = SessionTalk(stub)
        first.ask(opening(1, 2, **shared))
        for _ in range(5):
            first.ask(step(250, 1, 2, top_k=top_k([[-1], [-1], [299]])))
        after = first_draft(**shared)
        assert 299 in after.tokens, "what the other one's model found likely after 1, 2"
        first.close()
        assert first_draft(**shared) == after, "it is kept for the next ones"
        others = [SessionTalk(stub) for _ in range(64)]
        for number, talk in enumerate(others):
            answer = talk.ask(opening(1, 2, recycled_logits=b"%d" % number))
            assert Nodes.from_message(answer.tree) == before
        assert first_draft(**shared) == before, (
            "of the keys that are kept, the one used first is forgotten"
        )
        for talk in others:
            talk.close()


def test_idle_sessions_let_go_of_what_live_datastores_have_replaced(tmp_path: Path) -> None:
    with LiveDatastore.open(tmp_path / "chat", tokenizer=identity(300)) as live:
        ids = live.add([[1, 2, 3], [1, 2, 4]])
        live.compact()
    with running(options=["--live", str(tmp_path / "chat")]) as service, service.stub() as stub:
        talk = SessionTalk(stub)
        talk.ask(opening(1, 2, selection=pb.Selection()))
        stub.Delete(pb.DeleteRequest(datastore="chat", ids=ids[:1]), timeout=PATIENCE)
        maps = Path(f"/proc/{service.process.pid}/maps")
        until(
            lambda: (
                not any(
                    "(deleted)" in line and "/segment-" in line
                    for line in maps.read_text().splitlines()
                )
            )
        )
        talk.close()


def test_a_drained_service_answers_the_step_it_is_in(pages: Path) -> None:
    """A step that was on its way is answered first, or not at all."""
    with running(f"a={pages}") as service, service.stub() as stub:
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
