"""Drafts for a batch: valid lists whatever happens, the same text as without, and fewer steps."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rest_store
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.session import DraftSession
from rest_store.engines import batch_drafter
from rest_store.engines.batch_drafter import BatchDrafter
from rest_store.engines.metrics import EngineMetrics
from rest_store.engines.settings import EngineSettings
from rest_store.engines.sources import EngineSources
from tests.shared.engine import Clock, Engine, Model, Request, cyclic, plain_output
from tests.shared.members import ScriptedSource, scored
from tests.shared.recycled import recycled_rows
from tests.shared.strategies import Corpus, identity, write_datastore

LOG = logging.getLogger("test")
VOCABULARY, MOST, LONGEST = 300, 4, 200


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A datastore of what the model writes."""
    model = cyclic(VOCABULARY)
    texts = [[start, start + 1, *plain_output(model, [start, start + 1], 60)] for start in range(0, 200, 10)]
    (tmp_path / "ds").mkdir()
    return write_datastore(tmp_path / "ds", Corpus(VOCABULARY, [texts]))


def sources(**settings: Any) -> EngineSources:
    tokenizer = identity(VOCABULARY)
    read = EngineSettings.read(settings, "settings")
    return EngineSources(read, tokenizer, name="test", vocabulary_size=VOCABULARY, where="settings", log=LOG)


def drafter(clock: Clock | None = None, *, longest: int = LONGEST, **settings: Any) -> BatchDrafter:
    opened = sources(**settings)
    return BatchDrafter(
        opened,
        EngineMetrics(opened.labels, LOG),
        most=MOST,
        longest=longest,
        vocabulary_size=VOCABULARY,
        clock=clock or Clock(),
    )


def totals(batch: BatchDrafter, name: str) -> dict[str, float]:
    """Return a counter by label."""
    return {label: total for (counter, label), total in batch.metrics.totals().items() if counter == name and total}


def total(batch: BatchDrafter, name: str) -> float:
    return sum(totals(batch, name).values())


def errors(batch: BatchDrafter) -> dict[str, float]:
    return totals(batch, "errors")


@pytest.fixture
def batch(place: Path) -> Iterator[BatchDrafter]:
    made = drafter(datastores=[str(place)])
    yield made
    made.close()


def requests(seed: int, count: int = 8, most: int = 40) -> list[Request]:
    chance = random.Random(seed)
    return [Request([chance.randrange(290) for _ in range(chance.randrange(2, 30))], most) for _ in range(count)]


def outputs_are_plain(engine: Engine, asked: list[Request], **options: Any) -> None:
    outputs = engine.run(*asked, **options)
    assert outputs == [plain_output(engine.model, request.prompt, request.most, LONGEST) for request in asked]


def test_the_model_writes_the_same_in_fewer_steps(batch: BatchDrafter) -> None:
    engine = Engine(batch, cyclic(VOCABULARY))
    outputs_are_plain(engine, requests(0))
    assert engine.steps < 0.7 * 80
    assert errors(batch) == {}
    assert 0 < total(batch, "accepted_tokens") <= engine.accepted
    assert 0 < total(batch, "draft_tokens") <= engine.verified
    by_source = totals(batch, "source_accepted_tokens")
    assert max(by_source, key=lambda source: by_source[source]).endswith("ds")
    assert "logits" not in by_source, "it was shown none"


@pytest.mark.parametrize("seed", range(6))
def test_requests_are_preempted_and_chunked(batch: BatchDrafter, seed: int) -> None:
    engine = Engine(batch, cyclic(VOCABULARY), chunk=random.Random(seed).choice([3, 7, 1000]))
    outputs_are_plain(engine, requests(seed), seed=seed)
    assert errors(batch) == {}


def test_rows_near_the_longest_length_are_left_alone(batch: BatchDrafter) -> None:
    """Then the engine asks nobody; the other rows go on, and what was missed is made up for."""
    engine = Engine(batch, cyclic(VOCABULARY), rows=3)
    long, short = Request(list(range(150)), 100), requests(2, 5, most=90)
    outputs_are_plain(engine, [long, *short])
    assert engine.skipped > 0
    assert errors(batch) == {}


def test_aborted_requests_leave_their_rows(batch: BatchDrafter) -> None:
    engine = Engine(batch, cyclic(VOCABULARY))
    asked = requests(3)
    engine.waiting += asked
    for _ in range(5):
        engine.step()
    aborted = engine.requests[1]
    engine.abort(1)
    outputs_are_plain(engine, [])
    assert all(
        request.output == plain_output(engine.model, request.prompt, request.most)
        for request in asked
        if request is not aborted
    )


def test_more_is_drafted_from_what_was_remembered(tmp_path: Path) -> None:
    def model(text: list[int]) -> int:
        return hash(tuple(text[-3:])) % 290

    memory = str(tmp_path / "memory")
    steps = []
    for _ in range(2):
        batch = drafter(remember=memory)
        engine = Engine(batch, model)
        outputs_are_plain(engine, requests(4))
        steps.append(engine.steps)
        batch.close()
    assert steps[1] < 0.6 * steps[0]
    with rest_store.LiveDatastore.open(memory, read_only=True) as live:
        for request in requests(4):
            output = plain_output(model, request.prompt, request.most)
            assert live.count([*request.prompt[-16:], *output]) > 0
            assert len(request.prompt) <= 16 or live.count(request.prompt[-17:]) == 0


def test_ended_requests_are_remembered_beside_the_steps(tmp_path: Path) -> None:
    batch = drafter(remember=str(tmp_path / "memory"))
    outputs_are_plain(Engine(batch, cyclic(VOCABULARY)), requests(5))
    batch._clock.now += 10  # type: ignore[attr-defined]
    batch.tend()
    target = batch._sources.target
    assert rest_store.drafting.remembering.flush(target, None)
    assert total(batch, "remembered_documents") == 8
    batch.close()


def require_right(file: Path, model: Model, least: int) -> None:
    """Check recycled logits of a model that looks at two tokens."""
    rows = [(context, likely) for context, likely in recycled_rows(file, identity(VOCABULARY)) if len(context) > 1]
    assert len(rows) >= least
    for context, likely in rows:
        assert likely == [model(context), (model(context) + 1) % VOCABULARY]


@pytest.mark.parametrize("seed", range(6))
def test_what_the_model_finds_likely_is_recycled_in_its_place(place: Path, tmp_path: Path, seed: int) -> None:
    """Of rows that are read in chunks, preempted and moved."""
    chance, file, model = random.Random(seed), tmp_path / "logits", cyclic(VOCABULARY)
    batch = drafter(datastores=[str(place)], logits=str(file))
    engine = Engine(batch, model, chunk=chance.choice([3, 7, 1000]), shows_logits=True)
    outputs_are_plain(engine, requests(seed, 12), seed=seed)
    assert errors(batch) == {}
    assert total(batch, "unplaced_logits") <= 5, (
        "preempted requests that are back in the next step have lost their drafts"
    )
    batch.close()
    require_right(file, model, 100)


def test_logits_of_drafts_that_the_scheduler_cut_are_left_out(place: Path, tmp_path: Path) -> None:
    file, model = tmp_path / "logits", cyclic(VOCABULARY)
    batch = drafter(datastores=[str(place)], logits=str(file))
    engine = Engine(batch, model, shows_logits=True)
    engine.waiting += requests(0)
    cut = 0
    while engine.waiting or engine.requests:
        engine.step()
        for request in engine.requests[1:2]:
            cut += len(request.draft) > 1
            request.draft = request.draft[:1]
    assert cut > 10
    assert total(batch, "unplaced_logits") >= cut - 2
    batch.close()
    require_right(file, model, 20)


@pytest.mark.parametrize(
    "computed",
    [
        [np.zeros((1, 8), np.int32)],
        [np.zeros((3, 8), np.int32)],
        [np.zeros((2, 8), np.int32)] * 2,
        [np.zeros(2, np.int32)],
    ],
)
def test_logits_of_other_positions_are_counted(batch: BatchDrafter, computed: Any) -> None:
    tokens = np.tile(np.arange(9, dtype=np.int32), (2, 1))
    batch.propose([[4], [5]], np.array([5, 6], np.int32), tokens)  # the first step is a plain one
    batch.propose([[5], [6]], np.array([6, 7], np.int32), tokens, computed)
    assert (total(batch, "unplaced_logits"), errors(batch)) == (1, {})


def test_logits_that_cannot_be_saved_are_said(place: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    batch = drafter(datastores=[str(place)], logits=str(tmp_path / "folder" / "logits"))
    outputs_are_plain(Engine(batch, cyclic(VOCABULARY), shows_logits=True), requests(0))
    (tmp_path / "folder").rmdir()
    batch.close()
    assert errors(batch) == {"logits": 1}


def failing(*_: Any, **__: Any) -> Any:
    raise MemoryError("no more\nmemory")


@pytest.mark.parametrize("name", ["draft_all", "accept_all"])
def test_whatever_fails_is_answered_with_no_drafts_and_said_once(
    batch: BatchDrafter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    engine = Engine(batch, cyclic(VOCABULARY))
    engine.waiting += requests(0)
    with monkeypatch.context() as patched:
        patched.setattr(batch_drafter, name, failing)
        for _ in range(30):
            engine.step()
    count = errors(batch)["propose"]
    assert count > 1
    outputs_are_plain(engine, [])
    assert engine.accepted > 0
    assert errors(batch) == {"propose": count}
    said = [record.getMessage() for record in caplog.records if "no drafts" in record.getMessage()]
    assert said == ["rest-store: no drafts (propose): MemoryError: no more memory; said once"]


def test_sessions_that_cannot_be_closed_are_said(batch: BatchDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(DraftSession, "close", failing)
        outputs_are_plain(Engine(batch, cyclic(VOCABULARY)), requests(0))
    assert set(errors(batch)) == {"close"}


def test_malformed_arguments_are_answered_with_no_drafts(batch: BatchDrafter) -> None:
    tokens, lengths = np.zeros((2, 9), np.int32), np.array([3, 4], np.int32)
    assert batch.propose([[1], [2]], None, tokens) == [[], []]  # type: ignore[arg-type]
    assert batch.propose([[1], [2]], lengths, None) == [[], []]  # type: ignore[arg-type]
    assert batch.propose([[1], [2]], lengths, tokens[:1]) == [[], []]
    assert batch.propose([], lengths, tokens) == []
    assert batch.propose([[], []], lengths, tokens) == [[], []]
    assert errors(batch) == {"propose": 3}


def test_tokens_that_no_vocabulary_has_are_done_without(batch: BatchDrafter) -> None:
    """As the rows of embedded prompts hold them."""
    tokens = np.full((1, 9), -1, np.int32)
    assert batch.propose([[1]], np.array([4], np.int32), tokens) == [[]]
    assert errors(batch) == {"open": 1}


def test_a_datastore_that_is_closed_is_done_without(batch: BatchDrafter) -> None:
    engine = Engine(batch, cyclic(VOCABULARY))
    engine.waiting += requests(0)
    for _ in range(4):
        engine.step()
    batch._sources.stores[0].close()  # type: ignore[attr-defined]
    outputs_are_plain(engine, [])
    assert errors(batch)["source"] > 0


def test_interrupts_pass(batch: BatchDrafter, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(batch._rows, "follow", interrupt)
    with pytest.raises(KeyboardInterrupt):
        batch.propose([[1]], np.array([4], np.int32), np.ones((1, 9), np.int32))
    assert batch._lock.acquire(blocking=False)
    batch._lock.release()


def test_its_thread_ends_with_it(place: Path) -> None:
    others = threading.enumerate()  # those of earlier tests may be about to end
    made = drafter(datastores=[str(place)])
    (thread,) = [running for running in threading.enumerate() if running.name == "rest-store" and running not in others]
    made.close()
    made.close()
    thread.join()


class SlowService(ScriptedSource):
    """A service that takes two steps of the engine, and proposes nothing that the model writes."""

    def receive(self, timeout: float | None) -> TokenTree:
        time.sleep(0.02)
        return super().receive(timeout)


def test_a_service_that_brings_nothing_is_hardly_asked_and_the_rest_drafts_on(place: Path) -> None:
    steps = []
    for service in (None, SlowService(scored([299], [-1], [0.5]))):
        opened = sources(datastores=[str(place)])
        if service is not None:
            opened._sources.append(service)
            opened.here = 0b1101
        clock = Clock()
        clock.look = 1e-5
        batch = BatchDrafter(
            opened,
            EngineMetrics(opened.labels, LOG),
            most=MOST,
            longest=LONGEST,
            vocabulary_size=VOCABULARY,
            clock=clock,
        )
        engine = Engine(batch, cyclic(VOCABULARY), rows=2)
        engine.waiting += requests(0, 12)
        while engine.waiting or engine.requests:
            clock.now += 0.01 + 0.0001 * sum(len(request.draft) for request in engine.requests)
            engine.step()
        assert errors(batch) == {}
        batch.close()
        steps.append(engine.steps)
    assert service is not None
    assert 0 < len(service.calls("receive")) < 0.2 * 2 * steps[0]
    assert steps[1] < 1.1 * steps[0]
