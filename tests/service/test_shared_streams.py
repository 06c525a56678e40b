"""Sessions that share a stream: what the service answers to a message of many, and that each session ends alone."""

from __future__ import annotations

import asyncio
import io
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup
from rest_store.service.address import Address
from rest_store.service.channel import Dialer
from rest_store.service.server import server as server_module
from rest_store.service.server import servicer, shared_stream
from rest_store.service.server.limits import Limits
from rest_store.service.server.logs import EventLog
from rest_store.service.server.rights import Rights
from rest_store.service.server.server import Options, Server
from rest_store.service.server.shared_stream import SharedStream
from rest_store.v1 import datastore_pb2 as pb
from rest_store.v1 import datastore_pb2_grpc
from tests.service.test_sessions import BAD, FIRST, GOOD
from tests.shared.messages import CODES, begin, ending
from tests.shared.services import PATIENCE, Service, metrics_of, reason_of, running
from tests.shared.sessions import Nodes, Request, SharedTalk, opening, sessions_of, step

MOST = 256  # sessions of a stream
NONE = pb.SessionEnd()


@pytest.fixture
def talk(service: Service) -> Iterator[SharedTalk]:
    """A stream of a healthy service, which has no sessions afterwards."""
    with service.stub() as stub:
        talk = SharedTalk(stub)
        yield talk
        talk.close()
    assert sessions_of(service) == (0, 0)


def reason(talk: SharedTalk) -> str | None:
    """The reason of the error that the stream ends with."""
    with pytest.raises(grpc.RpcError) as caught:
        list(talk.call)
    return reason_of(caught.value)


# --- What a session asks for ------------------------------------------------------------------------------------------


def test_each_session_is_the_one_in_process(phrases: Path, talk: SharedTalk) -> None:
    """Whatever others are in the same message, and whenever they begin and end."""
    chance, store = random.Random(5), Datastore.open(phrases)
    here: dict[int, DraftSession] = {}
    for turn in range(30):
        steps: dict[int, Request | bytes | None] = {}
        for number in chance.sample(range(1, 40), chance.randrange(1, 20)):
            if number not in here:
                text = [chance.randrange(1, 9) for _ in range(chance.randrange(20))]
                here[number] = DraftSession([store, PromptLookup()], text)
                steps[number] = opening(*text, nodes=turn + 1, prompt_lookup=True)
            else:
                tokens = [chance.randrange(1, 9) for _ in range(chance.randrange(1, 4))]
                here[number].accept(tokens)
                steps[number] = step(*tokens, nodes=turn + 1)
        last = {number for number in steps if chance.random() < 0.2}
        talk.tell(steps, last)
        for number, answer in talk.hear(len(steps)).items():
            tree = here[number].draft(turn + 1)
            nodes = Nodes.of(pb.DraftSessionResponse.FromString(answer.response).nodes)
            assert (nodes.tokens, nodes.parents) == (tree.tokens.tolist(), tree.parents.tolist())
            assert nodes.scores == tree.scores.tolist()  # type: ignore[union-attr]
            assert answer.HasField("end") is (number in last)
            assert answer.end == NONE
        for number in last:
            here.pop(number).close()


def test_a_message_that_asks_for_nothing_is_not_answered(talk: SharedTalk) -> None:
    talk.tell({})
    talk.tell({1: opening(1, 2, nodes=None), 2: opening(1, 2, nodes=None)})
    talk.tell({1: step(3, nodes=None), 2: step(3)})
    assert list(talk.hear(1)) == [2]
    talk.tell({1: None, 2: None, 7: None}, last=[1, 2, 7])
    assert all(answer.end == NONE and not answer.HasField("response") for answer in talk.hear(3).values())


def test_costs_cut_the_tree_of_their_session_alone(talk: SharedTalk) -> None:
    talk.tell({number: opening(1, 2, prompt_lookup=True) for number in (1, 2)})
    whole = talk.hear(2)[1].response
    dear = pb.TreeRequest(max_nodes=8, costs=pb.StepCosts(of_step=[1.0, 100.0]))
    talk.tell({1: Request(draft=dear), 2: step()})
    answers = {number: pb.DraftSessionResponse.FromString(one.response) for number, one in talk.hear(2).items()}
    assert answers[1].nodes == b""
    assert answers[2].nodes == pb.DraftSessionResponse.FromString(whole).nodes


def test_large_answers_come_in_several_messages(phrases: Path) -> None:
    """But one that is too large alone ends its session."""
    options = ["--max-message-bytes=1024"]
    with running(f"a={phrases}", options=options) as service, service.stub() as stub:
        talk = SharedTalk(stub)
        text = [token for other in range(2, 250) for token in (1, other)]
        talk.tell({number: opening(1, 2, prompt_lookup=True) for number in range(1, 31)})
        answers: set[int] = set()
        messages = 0
        while len(answers) < 30:
            message = next(talk.call)
            assert all(answer.HasField("response") for answer in message.answers)
            answers.update(answer.session for answer in message.answers)
            assert message.ByteSize() < 1100
            messages += 1
        assert messages > 1
        talk.tell({1: step(*text, 1, nodes=1024), 2: step(3)})
        heard = talk.hear(2)
        assert heard[2].HasField("response")
        assert heard[1].end.reason == "MESSAGE_SIZE"
        talk.close()


def test_a_long_text_delays_no_other_session(phrases: Path) -> None:
    with running(f"a={phrases}") as service, service.stub() as stub:
        talk = SharedTalk(stub)
        talk.tell({1: opening(*[1, 2] * 50_000), 2: opening(1, 2)})
        assert list(talk.hear(2)) == [2, 1]
        talk.tell({1: step(3), 2: step(3)})
        assert all(answer.HasField("response") for answer in talk.hear(2).values())
        talk.close()


def test_metrics_show_sessions_that_share_a_stream(service: Service, talk: SharedTalk) -> None:
    before = metrics_of(service)
    talk.tell({number: opening(1, 2) for number in range(5)})
    talk.hear(5)
    talk.tell({number: step(3, 4) for number in range(5)})
    talk.hear(5)
    after = metrics_of(service)
    assert after["rest_store_sessions",] == 5
    assert after["rest_store_session_bytes",] > 5 * 256 << 10
    for name, more in (("trees", 10), ("steps", 5), ("tokens", 10)):
        name = f"rest_store_session_{name}_total"
        assert after[name,] - before[name,] == more
    assert after["rest_store_sent_bytes_total", "DraftSessions"] > 0
    assert after["rest_store_requests_total", "OK", "DraftSessions"] >= 2


# --- What cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("messages", "expected"), BAD.values(), ids=BAD)
def test_what_cannot_be_ends_its_session_alone(
    talk: SharedTalk, messages: list[Request | bytes], expected: str
) -> None:
    talk.tell({1: FIRST})
    talk.hear(1)
    for message in messages[:-1]:
        talk.tell({2: message})
        if isinstance(message, bytes) or message.HasField("draft"):
            talk.hear(1)
    talk.tell({1: step(3), 2: messages[-1]})
    answers = talk.hear(2)
    assert answers[1].HasField("response")
    end = answers[2].end
    assert (end.reason, grpc_code(end.code)) == (expected, CODES[expected])
    assert end.message
    talk.tell({1: step(3), 3: FIRST})
    assert all(answer.HasField("response") for answer in talk.hear(2).values())


def grpc_code(number: int) -> str:
    return next(code.name for code in grpc.StatusCode if code.value[0] == number)


@pytest.mark.parametrize("messages", GOOD.values(), ids=GOOD)
def test_what_is_just_within_measure_is_answered(talk: SharedTalk, messages: list[Request]) -> None:
    talk.tell({1: FIRST})
    talk.hear(1)
    for message in messages:
        talk.tell({1: step(3), 2: message})
        answers = talk.hear(2 if message.HasField("draft") else 1)
        assert all(answer.HasField("response") and not answer.HasField("end") for answer in answers.values())


def test_a_step_of_no_session_has_a_status_of_its_own(talk: SharedTalk) -> None:
    talk.tell({1: FIRST, 2: step(3)})
    answers = talk.hear(2)
    assert answers[1].HasField("response")
    assert answers[2].end.reason == "MESSAGE_ORDER"
    talk.tell({1: step(3), 2: FIRST})
    assert all(answer.HasField("response") for answer in talk.hear(2).values())


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (pb.DraftSessionsRequest(steps=[pb.SessionStep(session=1)] * 2).SerializeToString(), "MESSAGE_ORDER"),
        (pb.DraftSessionsRequest(steps=[pb.SessionStep()] * (MOST + 1)).SerializeToString(), "LIMIT"),
        (b"\xff\xff", "CONTEXT_TYPE"),
        (bytes(1 << 20), "MESSAGE_SIZE"),
    ],
    ids=["a session twice", "too many steps", "malformed", "too large"],
)
def test_a_message_that_is_none_ends_the_stream(service: Service, data: bytes, expected: str) -> None:
    with service.channel() as channel:
        assert ending(begin(channel, "DraftSessions", data), stream=True) == ([], CODES[expected], expected)
    assert sessions_of(service) == (0, 0)


class _LongSteps:
    """In place of handlers: each step takes long, and is answered."""

    def begin(self, state: object, data: bytes) -> Any:
        return SimpleNamespace(step=SimpleNamespace(is_long=True))

    async def run(self, works: list[Any]) -> list[bytes]:
        return [b"tree"] * len(works)

    def end(self, state: object) -> None: ...


def test_what_is_being_sent_as_a_stream_ends_is_sent_before_its_status() -> None:
    """Beside it, gRPC sends none, and the client waits for its deadline."""

    async def run() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()
        sent: list[int] = []

        async def write(message: bytes) -> None:
            begun.set()
            await go_on.wait()
            sent.append(pb.DraftSessionsResponse.FromString(message).answers[0].session)

        handlers: Any = _LongSteps()
        stream = SharedStream(handlers, Rights(), Limits(), write, lambda error: NONE, lambda: None)
        steps = [pb.SessionStep(session=number, request=b"request") for number in (1, 2)]
        await stream.take(pb.DraftSessionsRequest(steps=steps).SerializeToString())
        await begun.wait()
        closing = asyncio.create_task(stream.close())
        done, _ = await asyncio.wait([closing], timeout=0.1)
        assert not done
        go_on.set()
        await closing
        assert sent == [1], "the answers that follow have nobody to read them"

    asyncio.run(run())


def test_sessions_beyond_the_limit_are_refused(talk: SharedTalk, service: Service) -> None:
    with service.stub() as stub:
        assert stub.Describe(pb.DescribeRequest()).limits.max_stream_sessions == MOST
    talk.tell({number: opening(1, 2) for number in range(MOST)})
    assert all(answer.HasField("response") for answer in talk.hear(MOST).values())
    talk.tell({MOST: opening(1, 2), 0: step(3), 1: None}, last=[1])
    answers = talk.hear(3)
    assert answers[MOST].end.reason == "OVERLOADED"
    assert answers[0].HasField("response")
    talk.tell({MOST + 1: opening(1, 2)})
    assert talk.hear(1)[MOST + 1].HasField("response"), "a place was given back"


def test_sessions_without_memory_are_refused(phrases: Path) -> None:
    options = ["--metrics=127.0.0.1:0", "--max-session-memory=2000000"]
    with running(f"a={phrases}", options=options) as service, service.stub() as stub:
        talk = SharedTalk(stub)
        talk.tell({number: opening(1, 2) for number in range(50)})
        answers = talk.hear(50)
        drafted = [number for number, answer in answers.items() if answer.HasField("response")]
        assert 0 < len(drafted) < 8
        assert {answers[number].end.reason for number in answers if number not in drafted} == {"OVERLOADED"}
        talk.tell(dict.fromkeys(drafted, step(3)))
        assert all(answer.HasField("response") for answer in talk.hear(len(drafted)).values())
        talk.close()
        assert sessions_of(service) == (0, 0)


# --- The life of a service --------------------------------------------------------------------------------------------


def test_idle_sessions_end_alone(phrases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(server_module, "_WATCH_SECONDS", 0.01)
    monkeypatch.setattr(servicer, "monotonic", lambda: now)
    monkeypatch.setattr(shared_stream, "monotonic", lambda: now)

    def message(**steps: Request) -> pb.DraftSessionsRequest:
        return pb.DraftSessionsRequest(
            steps=[pb.SessionStep(session=int(n[1:]), request=one.SerializeToString()) for n, one in steps.items()]
        )

    async def run() -> None:
        nonlocal now
        limits = Limits(session_idle_seconds=60)
        options = Options([("a", phrases)], [Address.parse("127.0.0.1:0")], limits=limits, drain_seconds=0)
        server = Server(options, "1", EventLog(file=io.StringIO()))
        (target,) = await server.start()
        async with Dialer(None, None).connect_async(target) as channel:
            call = datastore_pb2_grpc.DatastoreServiceStub(channel).DraftSessions(timeout=PATIENCE)
            await call.write(message(_1=opening(1, 2), _2=opening(1, 2)))
            assert len((await call.read()).answers) == 2
            now = 59.0
            await call.write(message(_2=step(3)))
            assert [answer.session for answer in (await call.read()).answers] == [2]
            now = 61.0
            [answer] = (await call.read()).answers
            assert (answer.session, answer.end.reason) == (1, "DRAINING")
            assert len(server._sessions.open) == 1  # type: ignore[union-attr]
            await call.write(message(_1=step(3), _2=step(3)))
            ends = {answer.session: answer.end.reason for answer in (await call.read()).answers}
            assert ends == {1: "MESSAGE_ORDER", 2: ""}
        await server.drain()

    asyncio.run(run())


def test_a_drained_service_answers_the_step_it_is_in(phrases: Path) -> None:
    """Also one with a long text, which is taken in beside other messages."""
    with running(f"a={phrases}") as service, service.stub() as stub:
        talk = SharedTalk(stub)
        talk.tell({1: opening(1, 2)})
        talk.hear(1)
        service.pause()
        talk.tell({1: step(3), 2: opening(*[1, 2] * 100_000)})
        service.signal(signal.SIGTERM)
        service.resume()
        heard: list[pb.DraftSessionsResponse] = []
        with pytest.raises(grpc.RpcError) as caught:
            heard.extend(talk.call)
        assert reason_of(caught.value) == "DRAINING"
        assert [answer.session for message in heard for answer in message.answers] in ([], [1, 2])
        talk.leave()
        assert service.process.wait(PATIENCE) == 0


def test_rights_are_those_of_the_stream(phrases: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("reader datastore=a\n")
    live = tmp_path / "live"
    server_options = ["--token-file", str(tokens), "--live", f"chat={live}"]
    with running(f"a={phrases}", f"b={phrases}", options=server_options) as service, service.stub() as stub:
        talk = SharedTalk(stub, [("authorization", "Bearer reader")])
        elsewhere = opening(1, 2, selection=pb.Selection(datastores=["b"]))
        talk.tell({1: opening(1, 2), 2: elsewhere, 3: opening(1, 2, remember="chat")})
        answers = talk.hear(3)
        assert answers[1].HasField("response")
        assert [answers[number].end.reason for number in (2, 3)] == ["UNKNOWN_DATASTORE", "PERMISSION_DENIED"]
        talk.close()
        stranger = SharedTalk(stub)
        stranger.tell({1: opening(1, 2)})
        assert reason(stranger) == "UNAUTHENTICATED"
        stranger.leave()
