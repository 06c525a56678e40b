"""Members that services run have the trees of members in process; a failure costs steps."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import DraftOptions
from rest_store.drafting.members import MemberSettings
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import (
    DeadlineError,
    MessageSizeError,
    OverloadedError,
    ProtocolError,
    ServiceError,
    ServiceUnavailableError,
    UnknownDatastoreError,
)
from rest_store.service.client import member as member_module
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.clients import LATE, free_port
from tests.shared.live import until
from tests.shared.services import PATIENCE, Service, failed, running
from tests.shared.sessions import Relay, Request, sessions_of, token_bytes
from tests.shared.strategies import refused

TEXT = [1, 2, 3, 50, 60, 1, 2]
MAX_TEXT = 2000
STEP = DraftOptions(8)


@pytest.fixture(scope="module")
def steady(numbers: Path) -> Iterator[Service]:
    """A service that nothing happens to."""
    options = ["--metrics=127.0.0.1:0", f"--max-session-tokens={MAX_TEXT}"]
    with running(f"one={numbers}", f"two={numbers}", options=options) as service:
        yield service


@pytest.fixture
def service(numbers: Path) -> Iterator[Service]:
    """A service that a test may end."""
    with running(f"one={numbers}", options=["--metrics=127.0.0.1:0"]) as service:
        yield service


class Stepper:
    """One member, and the text that it is told."""

    def __init__(self, client: DatastoreClient, text: list[int] = TEXT, **changes: Any) -> None:
        self.text = list(text)
        fields = {"learn": True, "tokenizer": None, "prompt_lookup": True}
        [self.member] = client.members(
            MemberSettings(**(fields | changes)), lambda: np.array(self.text, np.int32)
        )

    def step(self, limits: DraftOptions = STEP, timeout: float | None = None) -> TokenTree:
        self.member.send(limits)
        return self.member.receive(timeout)

    def accept(self, *tokens: int, top_k: Any = None, node_top_k: Any = None) -> None:
        self.text += tokens
        rows = [None if one is None else np.array(one, np.int32) for one in (top_k, node_top_k)]
        self.member.accept(np.array(tokens, np.int32), *rows)


@contextlib.contextmanager
def stepping(*targets: str, timeout: float = PATIENCE, **options: Any) -> Iterator[Stepper]:
    changes = {
        name: options.pop(name)
        for name in [*options]
        if name in MemberSettings.__dataclass_fields__
    }
    text = options.pop("text", TEXT)
    with DatastoreClient(list(targets), timeout=timeout, **options) as client:
        client.info(timeout=PATIENCE)
        stepper = Stepper(client, text, **changes)
        yield stepper
        stepper.member.close()


def openings(relay: Relay) -> list[pb.SessionOpening]:
    requests = [Request.FromString(data) for name, data in relay.received if name == "DraftSession"]
    return [request.open for request in requests if request.HasField("open")]


# --- The trees ------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(data=st.data())
def test_any_steps_give_the_trees_in_process(
    steady: Service, numbers: Path, data: st.DataObject
) -> None:
    text = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=12)) * data.draw(
        st.integers(1, 4)
    )
    names = data.draw(st.sampled_from([["one"], ["two", "one"]]))
    references = [np.array([*range(9), *text], np.int32)] * data.draw(st.integers(0, 2))
    budgets = st.sampled_from([1, 3, 16, 64])
    costs = st.sampled_from([[], [1.0, 1.1, 1.2], list(1 + 0.02 * np.arange(65))])
    stores = [Datastore.open(numbers) for _ in names]
    with (
        DraftSession(
            [*stores, PromptLookup(), RecycledLogits()], text, references=references
        ) as here,
        stepping(
            steady.target,
            text=text,
            datastore=names,
            recycled_logits=uuid4().bytes,
            references=references,
        ) as there,
    ):
        for token in data.draw(st.lists(st.integers(0, 9), max_size=6)):
            nodes = data.draw(budgets)
            cost = data.draw(costs)
            expected = here.draft(nodes, cost or None)
            tree = there.step(DraftOptions(nodes, np.array(cost)))
            assert tree.tokens.tolist() == expected.tokens.tolist()
            assert tree.parents.tolist() == expected.parents.tolist()
            assert tree.depths.tolist() == expected.depths.tolist()
            assert tree.scores is not None
            assert expected.scores is not None
            assert tree.scores.tolist() == expected.scores.tolist()
            assert tree.origins is not None
            assert expected.origins is not None
            of_stores = 2 ** len(stores) - 1
            masks = [
                int(mask & of_stores > 0) | mask >> len(stores) << 1
                for mask in expected.origins.tolist()
            ]
            assert tree.origins.tolist() == masks
            rows = [[token, 7]] * (1 + len(tree)) if data.draw(st.booleans()) else None
            here.accept([token], [[5, 6]], node_top_k=rows)
            there.accept(token, top_k=[[5, 6]], node_top_k=rows)


def test_a_step_is_one_small_message(steady: Service) -> None:
    with Relay(steady.target) as relay:
        with stepping(
            relay.target, text=TEXT * 100, recycled_logits=b"key", learn=False
        ) as stepper:
            for token in range(5):
                stepper.step(DraftOptions(8, np.array([1.0, 1.1])))
                stepper.accept(token)
            stepper.step(DraftOptions(0))
            stepper.step()
        assert {name for name, _ in relay.received} == {"Describe", "DraftSession"}
        assert relay.tokens() == stepper.text
        ahead, first, *rest = [data for name, data in relay.received if name == "DraftSession"]
    assert not Request.FromString(ahead).HasField("draft")
    opening = Request.FromString(ahead).open
    assert (opening.recycled_logits, opening.fixed_calibration, opening.prompt_lookup) == (
        b"key",
        True,
        True,
    )
    assert list(Request.FromString(first).draft.costs) == [1.0, 1.1]
    assert max(map(len, rest)) < 60
    assert [Request.FromString(data).HasField("draft") for data in rest] == [True] * 4 + [
        False,
        True,
    ]


def test_without_the_text_only_its_end_is_sent(steady: Service) -> None:
    text = [*range(100, 200), *TEXT]
    with Relay(steady.target) as relay:
        references = [np.array(text, np.int32)]
        with stepping(relay.target, text=text, send_text=False, references=references) as stepper:
            assert not stepper.member.has_references
            assert len(stepper.step()) > 0
            stepper.accept(3, top_k=[[5, 6]] * 100)
            assert len(stepper.step()) > 0
        assert relay.tokens() == [*text[-64:], 3]
        assert not any(opening.references for opening in openings(relay))


# --- What is refused ------------------------------------------------------------------------------


def test_a_text_that_is_or_grows_too_long_is_named_and_not_sent(steady: Service) -> None:
    with Relay(steady.target) as relay, stepping(relay.target, text=[1] * MAX_TEXT) as stepper:
        assert len(stepper.step()) > 0
        stepper.accept(1)
        with pytest.raises(ServiceError):
            stepper.step()
        for _ in range(2):
            refused(MessageSizeError, stepper.step, f"{MAX_TEXT + 1}", f"at most {MAX_TEXT}")
        assert len(openings(relay)) == 1


def test_a_token_that_the_datastore_does_not_know_is_refused_by_name(steady: Service) -> None:
    with stepping(steady.target) as stepper:
        stepper.accept(5000)
        with pytest.raises(ServiceError, match=r"service refused the session .*5000"):
            stepper.step()


def test_pauses_grow_up_to_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other endpoint is tried at once."""
    monkeypatch.setattr(member_module, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    with DatastoreClient(["127.0.0.1:1", "127.0.0.1:2"]) as client:
        stepper = Stepper(client)
        pauses = []
        for _ in range(13):
            stepper.member._fail(ServiceUnavailableError("gone"))
            pauses.append(round(stepper.member._paused_until - 1000.0, 1))
        failed(ServiceUnavailableError, lambda: stepper.member.send(STEP), "gone")
    assert pauses == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30]


def test_a_service_that_takes_no_more_sessions_is_left_alone_for_a_while(numbers: Path) -> None:
    with (
        running(f"one={numbers}", options=["--max-session-memory=800000"]) as service,
        stepping(service.target) as first,
        Relay(service.target) as relay,
        stepping(relay.target) as second,
    ):
        assert len(first.step()) > 0
        with pytest.raises(OverloadedError):
            second.step()
        until(lambda: fails(second) and second.member._paused_until > time.monotonic() + 1.0)
        received = len(relay.received)
        failed(OverloadedError, lambda: second.member.send(STEP))
        assert len(relay.received) == received
        assert len(first.step()) > 0


# --- What services do wrong -----------------------------------------------------------------------


WRONG = {
    "no message": b"\xff\xff",
    "too large": bytes(1 << 20),
    "half a node": pb.DraftSessionResponse(tree=pb.Tree(nodes=bytes(10))).SerializeToString(),
    "too many nodes": pb.DraftSessionResponse(
        tree=pb.Tree(nodes=bytes(20 * 9), scores=bytes(4 * 9), origins=bytes(9))
    ).SerializeToString(),
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
def test_a_wrong_answer_costs_a_step_and_the_next_one_is_taken(
    steady: Service, answer: bytes
) -> None:
    def wrong(name: str, data: bytes) -> bytes:
        return answer if name == "DraftSession" else data

    with Relay(steady.target) as relay, stepping(relay.target) as stepper:
        relay.answer = wrong
        refused(ProtocolError, stepper.step, relay.target)
        relay.answer = lambda _, data: data
        until(lambda: not fails(stepper))
        relay.answer = wrong
        refused(ProtocolError, stepper.step)
        relay.answer = lambda _, data: data
        assert len(stepper.step()) > 0, "at once: it has answered before"


@pytest.mark.parametrize(
    "code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
)
def test_any_status_is_a_service_error(steady: Service, code: grpc.StatusCode) -> None:
    """A proxy may end streams after some time with any status."""
    with Relay(steady.target) as relay, stepping(relay.target) as stepper:
        stepper.step()
        relay.aborts = code
        with pytest.raises(ServiceError):
            stepper.step()
        relay.aborts = None
        until(lambda: not fails(stepper))


def fails(stepper: Stepper, limits: DraftOptions = STEP) -> bool:
    """Take a step; whether it fails."""
    try:
        stepper.step(limits)
    except ServiceError:
        return True
    return False


# --- Late and dead services -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "later", [DraftOptions(1), DraftOptions(8, is_chain=True), DraftOptions(0)]
)
def test_a_late_answer_is_skipped_and_nothing_is_lost(steady: Service, later: DraftOptions) -> None:
    go = threading.Event()
    go.set()

    def held(name: str, data: bytes) -> bytes:
        if name == "DraftSession":
            go.wait(PATIENCE)
        return data

    with (
        Relay(steady.target, held) as relay,
        stepping(relay.target) as stepper,
        stepping(steady.target) as like,
    ):
        for one in (stepper, like):
            one.step()
            one.accept(3)
        go.clear()
        stepper.member.send(STEP)
        failed(DeadlineError, lambda: stepper.member.receive(LATE), "did not answer")
        stepper.accept(1, node_top_k=[[1, 2]])
        failed(
            DeadlineError, lambda: stepper.member.send(STEP), "has not answered an earlier step yet"
        )
        stepper.accept(2)
        like.step()
        like.accept(1)
        like.accept(2)
        go.set()
        until(lambda: not fails(stepper, later))
        like.step(later)
        assert stepper.step() == like.step()
        assert len(openings(relay)) == 1


def test_a_service_that_stays_silent_is_given_up(
    service: Service, steady: Service, monkeypatch: Any
) -> None:
    monkeypatch.setattr(member_module, "_MAX_LATENESS", 0.0)
    with stepping(service.target, steady.target, timeout=LATE, datastore="one") as stepper:
        until(lambda: not fails(stepper))
        service.pause()
        until(lambda: fails(stepper))
        until(lambda: not fails(stepper))
        assert stepper.member._endpoint.target == steady.target
        service.resume()


@pytest.mark.parametrize("end", [Service.kill, Service.stop], ids=["killed", "drained"])
def test_another_service_takes_over(
    service: Service, steady: Service, end: Callable[[Service], object]
) -> None:
    with (
        Relay(steady.target) as relay,
        stepping(service.target, relay.target, datastore="one") as stepper,
    ):
        for token in (3, 1, 2):
            stepper.step()
            stepper.accept(token)
        end(service)
        if end is Service.kill:
            until(lambda: not fails(stepper))
        assert len(stepper.step()) > 0, "a service that drains costs no step"
        assert openings(relay)[0].tokens == token_bytes(stepper.text)


def test_without_names_a_datastore_that_was_removed_costs_a_call(numbers: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with (
        DatastoreClient(address, timeout=PATIENCE) as client,
        DatastoreClient(address, timeout=PATIENCE) as other,
    ):
        with running(f"one={numbers}", f"two={numbers}", listen=[address]):
            stepper = Stepper(client)
            assert len(stepper.step()) > 0
            twice = other.count([1])
        with running(f"one={numbers}", listen=[address]):
            refused(UnknownDatastoreError, lambda: other.count([1]), "'two'")
            assert 2 * other.count([1]) == twice
            until(lambda: not fails(stepper))


def test_one_late_session_costs_others_nothing(steady: Service) -> None:
    with (
        Relay(steady.target, lambda name, data: None if name == "DraftSession" else data) as relay,
        DatastoreClient([relay.target, steady.target], timeout=PATIENCE, datastore="one") as client,
    ):
        client.info()
        silent = Stepper(client)
        failed(DeadlineError, lambda: silent.step(timeout=0.01))
        relay.answer = lambda _, data: data
        other = Stepper(client)
        for token in (3, 1, 2):
            assert len(other.step()) > 0
            other.accept(token)
        assert client.count([1]) > 0


# --- Many tokens, and the end ---------------------------------------------------------------------


def test_many_calls_of_accept_without_a_step_send_the_text_again(steady: Service) -> None:
    with Relay(steady.target) as relay, stepping(relay.target) as stepper:
        stepper.step()
        for number in range(1100):
            stepper.accept(number % 9)
        assert len(stepper.step()) > 0
        assert [len(one.tokens) // 4 for one in openings(relay)] == [len(TEXT), len(TEXT) + 1100]


def test_an_ended_session_leaves_nothing(steady: Service) -> None:
    def streams() -> int:
        return sum(thread.name == "rest-store stream" for thread in threading.enumerate())

    before = streams()
    with DatastoreClient(steady.target, datastore="one", timeout=PATIENCE) as client:
        steppers = [Stepper(client) for _ in range(5)]
        for stepper in steppers:
            stepper.step()
        until(lambda: sessions_of(steady)[0] == 5)
        for stepper in steppers[:4]:
            stepper.member.close()
            stepper.member.close()
        failed(ServiceUnavailableError, lambda: steppers[0].member.send(STEP), "session is closed")
        until(lambda: sessions_of(steady)[0] == 1)
    until(lambda: streams() <= before)
    until(lambda: sessions_of(steady)[0] == 0)
