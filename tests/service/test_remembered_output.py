"""One generation leaves one document with all of its output, however many streams it takes and however these end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from rest_store.drafting.output_document import PROMPT_TOKENS
from rest_store.drafting.session import DraftSession
from rest_store.service.client.client import DatastoreClient
from tests.service.test_live_remember import count, phrase, until
from tests.shared.services import PATIENCE, Service, reason_of, running
from tests.shared.sessions import Relay, Request, SessionTalk, is_run_by_the_service, opening, step


@pytest.fixture(scope="module")
def service(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a frozen datastore "a" and a live one "chat"."""
    with running(f"a={directory}", options=["--live", str(tmp_path_factory.mktemp("live") / "chat")]) as one:
        yield one


def documents(service: Service) -> int:
    with DatastoreClient(service.target, datastore="chat", timeout=PATIENCE) as client:
        return client.info().datastores[0].document_count


def require_one(service: Service, before: int, prompt: list[int], output: list[int]) -> None:
    """One document more, and that with all of the output: what it replaces is deleted next."""
    until(lambda: count(service, output[-8:]) > 0 and documents(service) == before + 1)
    assert count(service, (prompt[-PROMPT_TOKENS:] + output)[:64]) == 1
    assert count(service, output[-64:]) == 1


def text_of(length: int) -> list[int]:
    """Tokens in an order that occurs nowhere else."""
    return [token for _ in range(0, length, 16) for token in phrase(16)][:length]


def remembering(target: str) -> DatastoreClient:
    return DatastoreClient(target, timeout=PATIENCE, failure_threshold=1000, remember="chat")


def finished(*tokens: int) -> Request:
    """The last tokens of a generation."""
    message = step(*tokens)
    message.finished = True
    return message


@pytest.mark.parametrize("broken_at", [[32], [4, 8, 40], [60]], ids=str)
def test_a_stream_that_replaces_another_has_all_of_the_output(service: Service, broken_at: list[int]) -> None:
    """Also if there was no answer to the last step, and no other comes that would open another stream."""
    prompt, output, before = text_of(32), text_of(64), documents(service)
    with (
        Relay(service.target) as relay,
        remembering(relay.target) as client,
        DraftSession([client], prompt=prompt) as session,
    ):
        for place in range(0, 64, 4):
            relay.aborts = grpc.StatusCode.UNAVAILABLE if place in broken_at else None
            session.draft(8)
            session.accept(output[place : place + 4])
        assert sum(session.statistics.dropped.values()) == len(broken_at)
        relay.aborts = None
    require_one(service, before, prompt, output)


@pytest.mark.parametrize("refused_at", [0, 8, 40])
@pytest.mark.parametrize("unsent", [False, True])
def test_a_session_that_is_merged_in_the_client_from_then_on_is_remembered_whole(
    service: Service, refused_at: int, unsent: bool
) -> None:
    """A service that is overloaded when a stream is to be opened again; what follows is drafted in the client."""
    prompt, output, before = text_of(32), text_of(64), documents(service)
    with (
        Relay(service.target) as relay,
        remembering(relay.target) as client,
        DraftSession([client], prompt=prompt) as session,
    ):
        for place in range(0, 64, 4):
            if unsent and place == refused_at - 4:  # the stream breaks; what is accepted next goes into an opening
                relay.aborts = grpc.StatusCode.UNAVAILABLE
            if place == refused_at:
                relay.aborts = grpc.StatusCode.RESOURCE_EXHAUSTED
            session.draft(8)
            relay.aborts = None
            session.accept(output[place : place + 4])
            assert is_run_by_the_service(session) == (place < refused_at)
        assert documents(service) - before <= 1
    require_one(service, before, prompt, output)


def test_of_a_text_that_is_longer_than_a_session_may_be_the_beginning_is_kept(directory: Path, tmp_path: Path) -> None:
    prompt, output = text_of(32), text_of(64)
    options = ["--live", str(tmp_path / "chat"), "--max-session-tokens", "64"]
    with running(f"a={directory}", options=options) as service:
        with remembering(service.target) as client, DraftSession([client], prompt=prompt) as session:
            for place in range(0, 64, 4):
                session.draft(8)
                session.accept(output[place : place + 4])
            assert not is_run_by_the_service(session)
        require_one(service, 0, prompt, output[:32])


def test_a_stream_that_ended_after_the_last_step_is_replaced(directory: Path, tmp_path: Path) -> None:
    """As when a service is restarted: what the first process has added is deleted."""
    prompt, output = text_of(32), text_of(64)
    with running(f"a={directory}", options=["--live", str(tmp_path / "chat")]) as service:
        with remembering(service.target) as client, DraftSession([client], prompt=prompt) as session:
            for place in range(0, 64, 4):
                session.draft(8)
                session.accept(output[place : place + 4])
            assert service.stop() == 0
            service.restart()
            assert (documents(service), count(service, output[:60])) == (1, 1)
            client.connect(PATIENCE)
        require_one(service, 0, prompt, output)


def test_a_stream_whose_end_is_noticed_later_than_its_successor_adds_nothing(service: Service) -> None:
    text, before = text_of(40), documents(service)
    with service.stub() as stub:
        first, second = SessionTalk(stub), SessionTalk(stub)
        first.ask(opening(*text[:20], remember="chat", output_id="one"))
        first.ask(step(*text[20:30]))
        second.ask(opening(*text[:30], written=10, remember="chat", output_id="one"))
        second.ask(finished(*text[30:]))
        second.close()
        first.close()
    require_one(service, before, text[:20], text[20:])


def test_an_output_that_nobody_goes_on_with_is_there_and_replaced_if_somebody_does(service: Service) -> None:
    text, before = text_of(40), documents(service)
    with service.stub() as stub:
        for end in (26, 30):
            talk = SessionTalk(stub)
            talk.ask(opening(*text[: end - 6], written=end - 26, remember="chat", output_id="another"))
            talk.ask(step(*text[end - 6 : end]))
            talk.call.cancel()
            until(lambda end=end: count(service, text[20:end]) == 1)  # type: ignore[misc]
            assert documents(service) == before + 1
            talk.leave()
        talk = SessionTalk(stub)
        talk.ask(opening(*text[:30], written=10, remember="chat", output_id="another"))
        talk.ask(finished(*text[30:]))
        talk.close()
        require_one(service, before, text[:20], text[20:])
        talk = SessionTalk(stub)  # the same output of another generation
        talk.ask(opening(*text[:20], remember="chat", output_id="a third"))
        talk.ask(finished(*text[20:]))
        talk.close()
    assert documents(service) == before + 1


@pytest.mark.parametrize("name", ["a" * 65, "\0", "\n"], ids=ascii)
def test_an_id_that_cannot_be(service: Service, name: str) -> None:
    with service.stub() as stub:
        talk = SessionTalk(stub)
        with pytest.raises(grpc.RpcError) as caught:
            talk.ask(opening(1, remember="chat", output_id=name))
        assert (reason_of(caught.value), "id of the output" in caught.value.details()) == ("LIMIT", True)
        talk.leave()


def test_more_than_one_message_holds_that_is_accepted_at_the_end(service: Service) -> None:
    """The text is sent on another stream, which may be longer."""
    prompt, output, before = text_of(32), text_of(128), documents(service)
    with remembering(service.target) as client, DraftSession([client], prompt=prompt) as session:
        session.draft(8)
        session.accept(output[:64])
        session.draft(8)
        for _ in range(400):
            session.accept(output[:64], top_k=[[*range(10, 74)]] * 64)
        session.accept(output[64:])
    require_one(service, before, prompt, output)
