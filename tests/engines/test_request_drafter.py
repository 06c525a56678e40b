"""Drafts by request id are valid trees, texts stay the same, and outputs are remembered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rest_store
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.remembering import flush
from rest_store.drafting.session import DraftSession
from rest_store.engines import request_drafter
from rest_store.engines.engine_sources import EngineSources, RequestSources
from rest_store.engines.request import NO_TREE, EngineRequest, NewRequest, StepRequest
from rest_store.engines.request_drafter import RequestDrafter
from rest_store.engines.scopes import Scope
from rest_store.live.namespace import Namespace
from tests.shared.engine import (
    VOCABULARY,
    Clock,
    Written,
    cyclic,
    drafter_with,
    plain_output,
    write,
    written_datastore,
)
from tests.shared.live import until
from tests.shared.members import ScriptedSource, scored

MODEL = cyclic(VOCABULARY)
NOTHING = np.empty(0, np.int32)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return written_datastore(tmp_path / "ds", MODEL)


def totals(drafter: RequestDrafter, name: str) -> dict[str, float]:
    """Return a counter by label."""
    return {
        label: total
        for (counter, label), total in drafter.metrics.totals().items()
        if counter == name and total
    }


@pytest.fixture
def drafter(place: str) -> Iterator[RequestDrafter]:
    drafter = drafter_with(datastores=[place])
    yield drafter
    drafter.close()


@pytest.mark.parametrize("shape", ["tree", "chain"])
def test_requests_are_drafted_for_by_their_ids(drafter: RequestDrafter, shape: str) -> None:
    requests = [
        Written(drafter, MODEL, f"{start}", [start, start + 1]) for start in range(0, 100, 10)
    ]
    write(requests[::2], 5, shape)
    write(requests[::-1], 5, shape)
    assert all(len(request.text) == drafter.length(request.id) for request in requests)
    accepted, drafted = (
        sum(totals(drafter, name).values()) for name in ("accepted_tokens", "draft_tokens")
    )
    assert 0 < accepted <= drafted
    assert accepted == sum(len(request.text) - 2 for request in requests) - 75
    assert totals(drafter, "errors") == {}
    drafter.drop(["0", "unknown"])
    drafter.finish(["10", "unknown"])
    assert sorted(drafter._requests) == sorted(str(start) for start in range(20, 100, 10))
    assert drafter.draft([StepRequest("0", NOTHING, 8)]) == [scored([], [], [])]


def test_what_was_verified_counts_and_not_what_was_drafted(drafter: RequestDrafter) -> None:
    text = [20, 21]
    drafter.begin(NewRequest("a", text, 2))
    (tree,) = drafter.draft([StepRequest("a", NOTHING, 8)], "chain")
    assert len(tree) > 3
    right = plain_output(MODEL, text, 3)
    drafter.draft(
        [StepRequest("a", np.array(right, np.int32), 8, scored(right[:2], [-1, 0], [0.5, 0.5]))]
    )
    drafter.draft(
        [StepRequest("a", np.array(plain_output(MODEL, text + right, 1), np.int32), 8, NO_TREE)]
    )
    assert totals(drafter, "draft_tokens") == totals(drafter, "accepted_tokens") == {"": 2}


def test_what_is_accepted_without_a_draft_is_a_part_of_the_step(
    drafter: RequestDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [Written(drafter, MODEL, name, [20, 21]) for name in "ab"]
    write(requests, 4)
    settled: list[float] = []
    monkeypatch.setattr(drafter._services, "settle", settled.append)
    drafter._waited, drafter._sources.here = 1e-9, 0
    ended, going = (request.step() for request in requests)
    drafter.accept([ended])
    assert not settled
    drafter.draft([going])
    assert settled == [pytest.approx(requests[1].tree.tokens.size)]
    assert totals(drafter, "steps") == {"": 5}


def test_finished_requests_are_remembered_once(tmp_path: Path) -> None:
    memory = str(tmp_path / "memory")
    drafter = drafter_with(remember=memory)
    prompt = list(range(30))
    requests = [Written(drafter, MODEL, name, prompt) for name in ("a", "same", "dropped", "open")]
    requests[2].text[-1:] = [7]
    write(requests, 12)
    drafter.finish(["a", "same"])
    drafter.drop(["dropped"])
    assert flush(drafter._sources.target, None)
    assert totals(drafter, "remembered_documents") == {"": 1}
    drafter.close()
    with rest_store.LiveDatastore.open(memory, read_only=True) as live:
        assert live.info().document_count == 1, "the one that was open wrote the same"
        assert live.count([*prompt[-16:], *requests[0].text[30:]]) == 1
        assert live.count(prompt[-17:]) == 0


def test_requests_of_a_group_are_remembered_with_it_and_read_it_first(tmp_path: Path) -> None:
    """In a namespace, documents of the group count as a part of the prompt."""
    drafter, accepted = drafter_with(remember=str(tmp_path / "memory"), namespace="team"), []
    memory = drafter._sources.target
    assert isinstance(memory, Namespace)
    for number, group in enumerate(["one", "one", "two", 7, ""]):
        before = totals(drafter, "source_accepted_tokens").get("prompt", 0)
        write(
            [request := Written(drafter, MODEL, f"{number}", [3, 4], group=group, epoch=number)], 12
        )
        accepted.append(totals(drafter, "source_accepted_tokens").get("prompt", 0) - before)
        drafter.finish([request.id])
        assert flush(memory, None)
    assert accepted[1] > 0
    assert accepted == [0, accepted[1], 0, 0, 0]
    assert totals(drafter, "errors") == {"references": 1}
    kept = [(document.group, document.epoch) for document in memory.documents()]
    assert kept == [("one", 0), ("one", 1), ("two", 2), ("", 0), ("", 4)]
    assert [document.epoch for document in memory.documents(group="one")] == [0, 1]
    drafter.close()


def test_requests_draft_from_what_enough_groups_wrote(tmp_path: Path) -> None:
    drafter, accepted = drafter_with(remember=str(tmp_path / "memory"), shared_after=2), []
    memory = drafter._sources.target
    for number, group in enumerate(["one", "two", "two", "three", ""]):
        before = totals(drafter, "source_accepted_tokens").get("outputs", 0)
        write([request := Written(drafter, MODEL, f"{number}", [3, 4], group=group)], 12)
        accepted.append(totals(drafter, "source_accepted_tokens").get("outputs", 0) - before > 0)
        drafter.finish([request.id])
        assert flush(memory, None)
    assert accepted == [False, False, True, True, True]
    assert totals(drafter, "errors") == {}
    drafter.close()


def test_what_cannot_be_read_or_encoded_costs_its_references_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Other requests keep their references, and the output is remembered with its group."""
    drafter = drafter_with(remember=str(tmp_path / "memory"))
    memory = drafter._sources.target
    assert isinstance(memory, rest_store.LiveDatastore)
    accepted = []
    for name, reference in (
        ("first", [0.5]),
        ("a", [0.5]),
        ("b", plain_output(MODEL, [5, 6], 30)),
        ("c", [0.5]),
    ):
        if name in "bc":
            monkeypatch.setattr(memory, "documents", failing)
        request = Written(
            drafter, MODEL, name, [5, 6], group="one", epoch=2, references=[reference]
        )
        write([request], 4)
        accepted.append(request.accepted)
        drafter.finish([name])
    assert accepted[0] == 0 < accepted[2]
    assert flush(memory, None)
    assert totals(drafter, "errors") == {"references": 5}
    assert (
        sum(
            "no drafts (references): MemoryError" in record.getMessage()
            for record in caplog.records
        )
        == 1
    )
    monkeypatch.undo()
    assert {(document.group, document.epoch) for document in memory.documents()} == {("one", 2)}
    drafter.close()


def test_what_was_written_is_remembered_when_the_engine_rests(tmp_path: Path) -> None:
    """Later text is remembered alone, if the engine did not rest after all.

    Reading prompts is no rest.
    """
    clock = Clock()
    clock.look = 0.0
    drafter = drafter_with(clock, remember=str(tmp_path / "memory"))
    memory, request = drafter._sources.target, Written(drafter, MODEL, "a", [5, 6])
    assert isinstance(memory, rest_store.LiveDatastore)
    for steps, seconds, documents in ((20, 8, 0), (3, 12, 1), (6, 12, 2)):
        write([request], steps)
        clock.now += seconds
        for _ in range(2):
            drafter.work()
        assert flush(memory, None)
        assert memory.info().document_count == documents
    assert memory.count(request.text[:4]) == memory.count(request.text[-4:]) == 1
    drafter.finish(["a"])
    assert flush(memory, None)
    assert totals(drafter, "remembered_documents") == {"": 2}
    drafter.close()


@pytest.mark.parametrize(
    ("begun", "expected"),
    [
        ({}, [1, 2, 3, 9, 4, 5, 6, 9, 8]),
        ({"max_tokens": 5}, [1, 2, 3, 9, 4]),
        ({"ends": {9}}, [1, 2, 3, 9, 4, 5, 6, 9]),
        ({"ends": {9}, "max_tokens": 4}, [1, 2, 3, 9]),
    ],
)
def test_what_is_written_beyond_an_end_is_not_remembered(
    begun: dict[str, Any], expected: list[int]
) -> None:
    """The engine says that a request has ended after one more step.

    End tokens before that are part of its text.
    """
    sources = RequestSources([], Scope(None), [0, 1, 2])
    request = EngineRequest(NewRequest("a", [7, 7, 1], 2, **begun), sources)
    for step in ([2, 3, 9], [4, 5], [6, 9], [8]):
        request.extend(np.array(step, np.int32))
    document = request.document()
    assert document is not None
    assert document.tokens.tolist() == [7, 7, *expected]


def failing(*_: Any, **__: Any) -> Any:
    raise MemoryError("no more\nmemory")


@pytest.mark.parametrize("name", ["draft_all", "accept_all"])
def test_whatever_fails_is_answered_with_no_drafts_and_said_once(
    drafter: RequestDrafter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    requests = [Written(drafter, MODEL, f"{start}", [start, start + 1]) for start in (10, 20)]
    write(requests, 2)
    with monkeypatch.context() as patched:
        patched.setattr(request_drafter, name, failing)
        write(requests, 4)
        assert name == "accept_all" or all(not len(request.tree) for request in requests)
    count = totals(drafter, "errors")["propose"]
    before = totals(drafter, "accepted_tokens")
    write(requests, 6)
    assert totals(drafter, "errors") == {"propose": count}
    assert totals(drafter, "accepted_tokens") != before
    said = [record.getMessage() for record in caplog.records if "no drafts" in record.getMessage()]
    assert said == ["rest-store: no drafts (propose): MemoryError: no more memory; said once"]


@pytest.mark.parametrize("name", ["draft_all", "accept_all"])
def test_a_fault_of_one_request_costs_that_one_its_drafts(
    drafter: RequestDrafter, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The request is given up at its first fault, and those beside it have drafts."""
    alone = Written(drafter, MODEL, "alone", [20, 21])
    write([alone], 8)
    requests = [Written(drafter, MODEL, id, [20, 21]) for id in ("faulty", "other")]
    write(requests, 1)
    native, faulty = getattr(request_drafter, name), drafter._requests["faulty"].session

    def failing_for_one(sessions: Any, *others: Any, **named: Any) -> Any:
        if faulty in sessions:
            raise MemoryError("a fault of one")
        return native(sessions, *others, **named)

    monkeypatch.setattr(request_drafter, name, failing_for_one)
    write(requests, 7)
    assert requests[1].text == alone.text
    assert len(requests[0].text) < len(alone.text)
    assert totals(drafter, "errors") == {"propose": 1}


def test_tokens_that_no_vocabulary_has_are_done_without(drafter: RequestDrafter) -> None:
    """Embedded prompts have such tokens."""
    drafter.begin(NewRequest("a", [-1, -1], 2))
    write([Written(drafter, MODEL, "b", [5, 6])], 1)
    assert [len(tree) for tree in drafter.draft([StepRequest("a", NOTHING, 8)])] == [0]
    assert totals(drafter, "errors") == {"open": 1}


def test_tokens_that_the_model_does_not_have_cost_the_others_nothing(
    drafter: RequestDrafter,
) -> None:
    """A reference of another vocabulary has them; the request is written on without drafts."""
    alone = Written(drafter, MODEL, "alone", [20, 21])
    write([alone], 8)
    faulty = Written(drafter, MODEL, "faulty", [5, 6], references=[[5, 6, 7, VOCABULARY + 9] * 3])
    other = Written(drafter, MODEL, "other", [20, 21])
    write([faulty, other], 8)
    assert other.text == alone.text
    assert faulty.accepted == 0
    assert totals(drafter, "errors") == {"tokens": 1}


def test_sources_that_do_not_close_are_counted(
    drafter: RequestDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = drafter._sources
    with monkeypatch.context() as patched:
        patched.setattr(sources, "close", failing)
        drafter.close()
    assert totals(drafter, "errors") == {"close": 1}
    sources.close()


class SlowService(ScriptedSource):
    """A service that takes two steps of the engine, and proposes nothing that the model writes."""

    def receive(self, timeout: float | None) -> TokenTree:
        time.sleep(0.02)
        return super().receive(timeout)


def test_a_service_that_brings_nothing_is_hardly_asked_and_the_rest_drafts_on(place: str) -> None:
    lengths = []
    for service in (None, SlowService(scored([299], [-1], [0.5]))):
        clock = Clock()
        drafter = drafter_with(clock, datastores=[place])
        if service is not None:
            drafter._sources._sources.append(service)
            drafter._sources._names_of.append(["slow"])
            drafter._sources.here = 0b1101
        request = Written(drafter, MODEL, "a", [5, 6])
        write([request], 100)
        lengths.append(len(request.text))
        assert totals(drafter, "errors") == {}
        drafter.close()
    assert service is not None
    assert 0 < len(service.calls("receive")) < 20
    assert lengths[1] > 0.9 * lengths[0]


def test_an_interrupt_passes_and_the_next_step_drafts(
    drafter: RequestDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    drafter.begin(NewRequest("a", [5, 6], 2))
    with monkeypatch.context() as patch:
        patch.setattr(request_drafter, "draft_all", interrupt)
        with pytest.raises(KeyboardInterrupt):
            drafter.draft([StepRequest("a", NOTHING, 8)])
    (tree,) = drafter.draft([StepRequest("a", NOTHING, 8)])
    assert len(tree)
    assert totals(drafter, "errors") == {}


def test_its_thread_ends_with_it(place: str) -> None:
    others = threading.enumerate()  # those of earlier tests may be about to end
    drafter = drafter_with(datastores=[place])
    (thread,) = [
        running
        for running in threading.enumerate()
        if running.name == "rest-store" and running not in others
    ]
    drafter.close()
    drafter.close()
    thread.join(60)
    assert not thread.is_alive()


FAULTS: dict[str, tuple[type, str, Callable[[RequestDrafter], object]]] = {
    "begin": (EngineSources, "chosen", lambda drafter: drafter.begin(NewRequest("b", [5], 1))),
    "propose": (
        EngineRequest,
        "count_step",
        lambda drafter: drafter.accept([StepRequest("a", np.array([7], np.int32), 0)]),
    ),
    "close": (DraftSession, "close", lambda drafter: drafter.drop(["a"])),
    "remember": (EngineRequest, "document", lambda drafter: drafter.finish(["a"])),
}


@pytest.mark.parametrize("where", FAULTS)
def test_a_fault_beside_a_draft_is_counted_and_costs_no_other_request(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    drafter = drafter_with(datastores=[place], remember=str(tmp_path / "memory"))
    write([Written(drafter, MODEL, "a", [5, 6])], 2)
    owner, name, call = FAULTS[where]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing)
        call(drafter)
    other = Written(drafter, MODEL, "other", [20, 21])
    write([other], 2)
    assert len(other.tree)
    assert totals(drafter, "errors") == {where: 1}
    drafter.close()


def test_its_thread_survives_errors(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_drafter, "_WORK_SECONDS", 0.001)
    drafter = drafter_with(datastores=[place])
    monkeypatch.setattr(drafter.metrics, "publish", failing)
    until(lambda: totals(drafter, "errors").get("work", 0) > 1)
    monkeypatch.undo()
    drafter.close()
