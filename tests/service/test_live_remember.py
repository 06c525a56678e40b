"""What a service remembers of the sessions that it runs: what was accepted, once, however the stream ends."""

from __future__ import annotations

import io
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import numpy as np
import pytest

from rest_store.drafting.output_document import LEAST_TOKENS, PROMPT_TOKENS
from rest_store.drafting.session import DraftSession
from rest_store.errors import DraftingWarning, StorageError, TargetError
from rest_store.live.live_datastore import LiveDatastore
from rest_store.service.client.client import DatastoreClient
from rest_store.service.server import hosted_live_datastore
from rest_store.service.server.hosted_live_datastore import HostedLiveDatastore
from rest_store.service.server.logs import EventLog
from tests.service.test_server_security import bearer
from tests.shared.services import PATIENCE, Service, metrics_of, reason_of, running
from tests.shared.sessions import SessionTalk, is_run_by_the_service, opening, step
from tests.shared.strategies import identity, refused

pytestmark = pytest.mark.usefixtures("streams")

VOCABULARY = 300
METRICS = "--metrics=127.0.0.1:0"


@pytest.fixture(scope="module")
def service(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a frozen datastore "a" and a live one "chat"."""
    with running(f"a={directory}", options=["--live", str(tmp_path_factory.mktemp("live") / "chat"), METRICS]) as one:
        yield one


def phrase(length: int = 16) -> list[int]:
    """Tokens that occur nowhere else."""
    return [10 + byte for byte in uuid4().bytes[:length]]


def counted(service: Service, name: str) -> float:
    return metrics_of(service)[f"rest_store_live_{name}_total", "chat"]


def until(true: Callable[[], bool]) -> None:
    """Wait until something is true."""
    ends = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.002)


def count(service: Service, tokens: Sequence[int]) -> int:
    """Count tokens in the live datastore, whatever their number."""
    with DatastoreClient(service.target, datastore="chat", timeout=PATIENCE) as client:
        return client.count(tokens)


def generate(client: DatastoreClient, prompt: Sequence[int], output: Sequence[int], by: int = 3) -> None:
    """Write `output` in steps, as a model that was offered drafts."""
    with DraftSession([client], prompt=prompt) as session:
        for start in range(0, len(output), by):
            session.draft(8)
            session.accept(output[start : start + by])
        assert is_run_by_the_service(session)


def test_the_output_is_added_with_the_end_of_its_prompt(service: Service) -> None:
    prompt, output, before = phrase(16) + phrase(16), phrase(), counted(service, "remembered")
    with DatastoreClient(service.target, timeout=PATIENCE, remember="chat") as client:
        generate(client, prompt, output)
    until(lambda: counted(service, "remembered") == before + 1)
    assert count(service, prompt[-PROMPT_TOKENS:] + output) == 1  # the last step too, after which no tree was asked for
    assert count(service, prompt[-PROMPT_TOKENS - 1 :][:2]) == 0
    with DatastoreClient(service.target, timeout=PATIENCE, remember="chat") as client:
        generate(client, prompt, output, by=5)
    until(lambda: counted(service, "remembered") == before + 2)
    assert count(service, output) == 1  # the same output is the same document
    with DraftSession([DatastoreClient(service.target, timeout=PATIENCE)], prompt=prompt) as session:
        assert session.draft(16).longest_path(output).size >= 8


def test_nothing_is_remembered_unless_it_is_asked_for(service: Service) -> None:
    output = phrase()
    with DatastoreClient(service.target, timeout=PATIENCE) as client:
        generate(client, [1, 2], output)
        ids = client.add([phrase()])
        assert client.count(output) == 0
        client.delete(ids)


def left(talk: SessionTalk) -> None:
    talk.close()


def broken(talk: SessionTalk) -> None:
    talk.leave()


def wrong(talk: SessionTalk) -> None:
    with pytest.raises(grpc.RpcError):
        talk.ask(opening(1))
    talk.leave()


@pytest.mark.parametrize("end", [left, broken, wrong])
def test_what_was_accepted_is_remembered_however_the_stream_ends(
    end: Callable[[SessionTalk], None], service: Service
) -> None:
    text, before = phrase(), counted(service, "remembered")
    with service.stub() as stub:
        talk = SessionTalk(stub)
        talk.ask(opening(*text[:4], remember="chat", written=2))
        talk.ask(step(*text[4:7]))
        talk.ask(step(*text[7:12]))
        assert count(service, text[4:6]) == 0
        end(talk)
        until(lambda: counted(service, "remembered") == before + 1)
    assert count(service, text[:12]) == 1


def test_too_short_an_output_is_not_worth_it(service: Service) -> None:
    text, before = phrase(), counted(service, "remembered")
    with service.stub() as stub:
        for length in (0, LEAST_TOKENS - 1, LEAST_TOKENS):
            talk = SessionTalk(stub)
            talk.ask(opening(1, 2, remember="chat"))
            if length:
                talk.ask(step(*text[:length]))
            talk.close()
    until(lambda: counted(service, "remembered") == before + 1)
    assert (count(service, text[: LEAST_TOKENS - 1]), count(service, text[:LEAST_TOKENS])) == (1, 1)


def test_an_idle_stream_and_one_that_is_drained_are_remembered(directory: Path, tmp_path: Path) -> None:
    idle, drained = phrase(), phrase()
    options = ["--live", str(tmp_path / "chat"), "--session-idle-seconds", "1", METRICS]
    with running(f"a={directory}", options=options) as service, service.stub() as stub:
        talk = SessionTalk(stub)
        talk.ask(opening(1, remember="chat"))
        talk.ask(step(*idle))
        with pytest.raises(grpc.RpcError):
            next(talk.call)
        until(lambda: counted(service, "remembered") == 1)
        other = SessionTalk(stub)
        other.ask(opening(1, remember="chat"))
        other.ask(step(*drained))
        assert service.stop() == 0
        talk.leave()
        other.leave()
    with LiveDatastore.open(tmp_path / "chat", read_only=True) as store:
        assert [store.count(text) for text in (idle, drained)] == [1, 1]


REFUSED = {
    "only reads": ("plain", "chat", "PERMISSION_DENIED", "expected one whose line in the token file says `write`"),
    "frozen": ("writer", "a", "NOT_LIVE", "datastore 'a' is frozen"),
    "unknown": ("writer", "none", "UNKNOWN_DATASTORE", "name of a datastore is 'none'"),
    "another tokenizer": ("writer", "other", "TOKENIZER_MISMATCH", "the client's tokenizer"),
}


@pytest.fixture(scope="module")
def guarded(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with tokens, and with a live datastore "other" of another tokenizer."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens").write_text("plain\nwriter write\n")
    LiveDatastore.open(folder / "other", tokenizer=identity(VOCABULARY + 1)).close()
    live = [part for name in ("chat", "other") for part in ("--live", str(folder / name))]
    with running(f"a={directory}", options=[*live, "--token-file", str(folder / "tokens"), METRICS]) as service:
        yield service


@pytest.mark.parametrize(("token", "name", "reason", "found"), REFUSED.values(), ids=REFUSED)
def test_where_it_cannot_be_remembered_clients_are_told_and_draft_all_the_same(
    token: str, name: str, reason: str, found: str, guarded: Service
) -> None:
    with guarded.stub() as stub:
        talk = SessionTalk(stub, bearer(token))
        with pytest.raises(grpc.RpcError) as caught:
            talk.ask(opening(1, remember=name))
        assert (reason_of(caught.value), found in caught.value.details()) == (reason, True)
        talk.leave()
    options: dict[str, Any] = {"datastore": "a", "token": token, "timeout": PATIENCE, "remember": name}
    with DatastoreClient(guarded.target, **options) as client, DraftSession([client], prompt=[1]) as session:
        with pytest.warns(DraftingWarning, match="outputs are not remembered: .*" + found.replace("`", ".")):
            tree = session.draft(4)
        assert tree.tokens.tolist() == [2, 3]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            session.accept([2])
            assert session.draft(4).tokens.tolist() == [3]
        assert is_run_by_the_service(session)


def test_a_warning_that_raises_costs_one_step(guarded: Service) -> None:
    options: dict[str, Any] = {"datastore": "a", "token": "plain", "timeout": PATIENCE, "remember": "chat"}
    with (
        DatastoreClient(guarded.target, **options) as client,
        DraftSession([client], prompt=[1]) as session,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        assert len(session.draft(4)) == 0
        assert session.draft(4).tokens.tolist() == [2, 3]


def test_ends_of_sessions_do_not_accumulate_in_a_client(service: Service) -> None:
    with DatastoreClient(service.target, timeout=PATIENCE, remember="chat") as client:
        for _ in range(2):
            generate(client, [1, 2], phrase())
            [ended] = client._sessions._finishing
            assert ended.wait(PATIENCE)


def test_bad_arguments() -> None:
    for name in ("", 5, ["chat"]):
        refused(TargetError, lambda name=name: DatastoreClient("x:1", remember=name), "remember is")  # type: ignore[misc]
    refused(TargetError, lambda: DatastoreClient("x:1", remember="chat", send_text=False), "None without send_text")


def test_a_full_queue_and_a_failing_disk_drop_and_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    served = HostedLiveDatastore("chat", tmp_path / "chat", identity(VOCABULARY), EventLog(file=log))
    go_on, add = threading.Event(), served._live.add

    def slow(documents: Any, ids: Any) -> list[str]:
        go_on.wait(PATIENCE)
        if documents[0][-1] == 99:
            raise StorageError(f"{tmp_path / 'chat'}: documents cannot be written (disk full)")
        return add(documents, ids)

    monkeypatch.setattr(served._live, "add", slow)
    monkeypatch.setattr(hosted_live_datastore, "_MOST_REMEMBERED", 8 * (20 + hosted_live_datastore._OF_DOCUMENT))
    for number in range(10):
        served.remember([200], np.full(20, 99 if number == 0 else number, np.int32))  # waits for nothing
    assert (served.remembered, served.dropped) == (0, 2)
    go_on.set()
    served.close()
    assert (served.remembered, served.dropped, served.failures) == (7, 3, 1)
    assert log.getvalue().count(" failure ") == 1
    with LiveDatastore.open(tmp_path / "chat") as store:
        assert [store.count([number] * 20) for number in range(1, 10)] == [1] * 7 + [0] * 2


def test_what_an_output_was_to_replace_stays_if_it_cannot_be_added(tmp_path: Path) -> None:
    with LiveDatastore.open(tmp_path / "chat", tokenizer=identity(VOCABULARY), max_tokens=40):
        pass
    served = HostedLiveDatastore("chat", tmp_path / "chat", None, EventLog(file=io.StringIO()))
    served.remember([1], np.arange(20, dtype=np.int32), id="unfinished")
    served.remember([1], np.arange(50, dtype=np.int32), replaced="unfinished")
    served.close()
    assert (served.remembered, served.dropped) == (1, 1)
    with LiveDatastore.open(tmp_path / "chat") as store:
        assert store.count(range(20)) == 1


def test_errors_name_the_datastore_and_not_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    served = HostedLiveDatastore("chat", Path("d"), identity(VOCABULARY), EventLog(file=io.StringIO()))
    full = StorageError(f"{served._live.path}: documents cannot be written (disk full)")
    monkeypatch.setattr(served._live, "delete", lambda ids: raised(full))
    error = served.delete(["x"]).exception(PATIENCE)
    served.close()
    assert str(error) == "datastore 'chat': documents cannot be written (disk full)"


def raised(error: Exception) -> Any:
    raise error


def test_the_end_waits_for_what_has_begun_and_for_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = HostedLiveDatastore("chat", tmp_path / "chat", identity(VOCABULARY), EventLog(file=io.StringIO()))
    begun, go_on, delete = threading.Event(), threading.Event(), served._live.delete

    def slow(ids: Any) -> int:
        begun.set()
        go_on.wait(PATIENCE)
        return delete(ids)

    monkeypatch.setattr(served._live, "delete", slow)
    first, others = served.delete(["x"]), [served.delete(["x"]) for _ in range(3)]
    served.remember([], np.arange(20, dtype=np.int32))
    begun.wait(PATIENCE)
    closing = threading.Thread(target=served.close)
    closing.start()
    until(lambda: all(other.cancelled() for other in others))
    go_on.set()
    closing.join()
    assert (first.result(), served.remembered) == (0, 1)


def test_what_is_queued_for_a_client_is_added_when_it_is_closed(service: Service) -> None:
    text = phrase()
    client = DatastoreClient(service.target, timeout=PATIENCE)
    client.before_close(lambda it: it.add([text]))
    client.close()
    assert count(service, text) == 1
