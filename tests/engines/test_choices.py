"""The choices of a request: whether it is drafted for, from which texts, and which it expects."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rest_store
from rest_store.drafting.remembering import flush
from rest_store.engines import latest_outputs
from rest_store.engines.engine_metrics import EngineMetrics, request_line
from rest_store.engines.engine_settings import EngineSettings
from rest_store.engines.engine_sources import EngineSources, RequestSources
from rest_store.engines.request import (
    EngineRequest,
    NewRequest,
    StepRequest,
    parse_extra_arguments,
    wants_drafts,
)
from rest_store.engines.request_drafter import RequestDrafter
from rest_store.engines.scopes import Scope
from rest_store.errors import StorageError
from rest_store.live.agent_memory import RECORD_NAME
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
from tests.shared.strategies import Corpus, identity, write_datastore

MODEL = cyclic(VOCABULARY)
NOTHING = np.empty(0, np.int32)
PROMPT = [3, 4]


def totals(drafter: RequestDrafter, name: str) -> dict[str, float]:
    """Return a counter by label."""
    return {
        label: total
        for (counter, label), total in drafter.metrics.totals().items()
        if counter == name and total
    }


def written(drafter: RequestDrafter, id: str, **chosen: Any) -> dict[str, float]:
    """Write a request to its end; return the accepted draft tokens by source."""
    before = totals(drafter, "source_accepted_tokens")
    write([request := Written(drafter, MODEL, id, PROMPT, **chosen)], 12)
    own = [*PROMPT, *plain_output(MODEL, PROMPT, len(request.text) - len(PROMPT))]
    assert request.text == own, "whatever it chooses, the text is its own"
    drafter.finish([id])
    flush(None, None)
    after = totals(drafter, "source_accepted_tokens")
    return {name: count - before.get(name, 0) for name, count in after.items()}


@pytest.fixture
def drafter(tmp_path: Path) -> Iterator[RequestDrafter]:
    drafter = drafter_with(remember=str(tmp_path / "memory"), namespaces=["a", "b"])
    yield drafter
    drafter.close()


def test_a_tenants_texts_are_drafted_for_no_other(drafter: RequestDrafter, tmp_path: Path) -> None:
    first = {tenant: written(drafter, f"{tenant} 1", namespace=tenant) for tenant in ("a", None)}
    assert [counts.get("outputs", 0) for counts in first.values()] == [0, 0]
    assert written(drafter, "b 1", namespace="b").get("outputs", 0) == 0
    assert written(drafter, "a 2", namespace="a")["outputs"] > 0
    assert totals(drafter, "errors") == {}
    drafter.close()
    with rest_store.LiveDatastore.open(tmp_path / "memory", read_only=True) as live:
        assert [live.namespace(name).count([5, 6, 7]) for name in ("", "a", "b")] == [1, 2, 1]
    again = drafter_with(remember=str(tmp_path / "memory"), namespaces=["a", "b", "new"])
    assert written(again, "new", namespace="new").get("outputs", 0) == 0
    assert written(again, "a 3", namespace="a")["outputs"] > 0
    again.close()


def test_a_tenants_latest_outputs_are_searched_for_no_other(
    drafter: RequestDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_outputs, "_SECONDS", 0.0)
    written(drafter, "a 1", namespace="a")
    chosen = {
        "a": {"namespace": "a"},
        "b": {"namespace": "b"},
        "default": {},
        "unknown": {"namespace": "other"},
        "adapted": {"namespace": "a", "adapter": "tuned"},
    }
    for id, fields in chosen.items():
        drafter.begin(NewRequest(id, PROMPT, len(PROMPT), **fields))
        assert not drafter.latest_outputs(id).size, "not read yet"
    drafter.work()
    sizes = {id: drafter.latest_outputs(id).size for id in (*chosen, "no request")}
    assert sizes == {**dict.fromkeys(sizes, 0), "a": len(PROMPT) + 12 + 1}
    assert drafter.latest_outputs("a")[:2].tolist() == PROMPT


def test_a_memory_that_cannot_be_read_is_not_searched(
    drafter: RequestDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_outputs, "_SECONDS", 0.0)
    for name in ("a", "b"):
        written(drafter, f"{name} 1", namespace=name)
        drafter.begin(NewRequest(name, PROMPT, len(PROMPT), namespace=name))
        drafter.latest_outputs(name)
    drafter.work()
    assert all(drafter.latest_outputs(name).size for name in ("a", "b"))

    def fail(*arguments: Any, **options: Any) -> Any:
        raise StorageError("no longer readable")

    drafter._sources._scopes.get("a", "").target.add([[1, 2, 3]])
    monkeypatch.setattr(drafter._sources._scopes.get("a", "").target, "documents", fail)
    drafter.work()
    assert [drafter.latest_outputs(name).size > 0 for name in ("a", "b")] == [False, True]
    assert totals(drafter, "errors")["work"] >= 1


def test_a_tenants_likely_tokens_are_drafted_for_no_other(drafter: RequestDrafter) -> None:
    """They are a memory, too: the model's logits after a text show the text."""
    text = np.arange(20, 30, dtype=np.int32)
    likely = np.stack([text + 1, text + 2], axis=1)

    def drafted(id: str, namespace: str | None, adapter: str = "") -> int:
        drafter.begin(NewRequest(id, [19], 1, namespace=namespace, adapter=adapter))
        drafter.draft([StepRequest(id, NOTHING, 8)])
        (tree,) = drafter.draft([StepRequest(id, text[:3], 8)])
        drafter.draft([StepRequest(id, text, 8, top_k=likely)])
        return len(tree)

    assert drafted("a 1", "a") == 0
    assert drafted("b 1", "b") == drafted("1", None) == drafted("adapted", "a", "tuned") == 0
    assert drafted("a 2", "a") > 0


def test_a_tenants_choices_under_a_grammar_are_drafted_for_no_other(
    drafter: RequestDrafter,
) -> None:
    from rest_store.drafting.grammar import Grammar

    grammar = object.__new__(Grammar)
    vars(grammar).update(_choices={}, _lock=None)
    own = [drafter._sources.chosen(name).scope.own(grammar) for name in ("a", "b", None, "a")]
    assert own[0] is own[3]
    assert len({id(one) for one in (*own, grammar)}) == 4
    assert drafter._sources.chosen("a").scope.own(None) is None


def test_a_namespace_without_the_operator_is_no_memory(
    drafter: RequestDrafter, caplog: pytest.LogCaptureFixture
) -> None:
    """A namespace that the operator did not name shares nothing, and the request goes on."""
    assert written(drafter, "1").get("outputs", 0) == 0
    for number, name in enumerate(["other", "other", 7, ["a"], "a/lora:b"]):
        assert written(drafter, f"other {number}", namespace=name).get("outputs", 0) == 0
    assert written(drafter, "2")["outputs"] > 0
    assert totals(drafter, "errors") == {"choices": 5}
    assert totals(drafter, "remembered_documents") == {"": 2}
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == (
        "rest-store: no drafts (choices): request: namespace is 'other', expected one of '', 'a',"
        " 'b'; said once"
    )
    assert len(said) == 4


def test_an_adapters_texts_are_remembered_by_its_name(tmp_path: Path) -> None:
    memory = str(tmp_path / "memory")
    for start in range(2):
        drafter = drafter_with(remember=memory, namespaces=["a"])
        base = written(drafter, "base").get("outputs", 0)
        tuned = written(drafter, "tuned", adapter="tuned").get("outputs", 0)
        other = written(drafter, "other", adapter="other", namespace="a").get("outputs", 0)
        assert [base > 0, tuned > 0, other > 0] == [bool(start)] * 3
        assert written(drafter, "again", adapter="tuned")["outputs"] > 0
        assert written(drafter, "new", adapter=f"new {start}").get("outputs", 0) == 0
        # A name too long for a namespace has no memory, and is said.
        assert written(drafter, "long", adapter="x" * 300).get("outputs", 0) == 0
        assert totals(drafter, "errors") == {"choices": 1}
        drafter.close()


def test_an_agents_memory_is_drafted_for_no_tenant(tmp_path: Path) -> None:
    """Its kinds of text are those of the engine's own requests."""
    memory = tmp_path / "memory"
    with rest_store.LiveDatastore.open(memory, tokenizer=identity(VOCABULARY)) as live:
        live.namespace("written").add([[3, 4, 100, 101]])
        (memory / RECORD_NAME).touch()
    drafter = drafter_with(remember=str(memory), namespaces=["a"])
    assert drafter._sources.chosen().places == [0, 1, 2, 3, 4]
    assert drafter._sources.chosen("a").places == [1, 2, 3, 4]
    assert drafter._sources.chosen("unknown").places == [2, 3, 4]
    drafter.close()


def test_a_name_may_be_that_of_another_source(places: dict[str, str], tmp_path: Path) -> None:
    named = {"outputs": places["code"], "prompt": places["chat"]}
    drafter = drafter_with(datastores=named, remember=str(tmp_path / "live"))
    assert drafter._sources.labels == ["outputs", "prompt", "outputs", "prompt", "logits"]
    assert drafter._sources.chosen(None, "outputs").places == [0, 2, 3, 4, 5]
    drafter.close()


def test_many_adapters_take_bounded_memory(tmp_path: Path) -> None:
    drafter = drafter_with(remember=str(tmp_path / "memory"))
    scopes = drafter._sources._scopes
    for number in range(200):
        scopes.get("", f"{number}")
    assert len(list(scopes)) == 65
    assert scopes.get("", "199") in list(scopes)
    drafter.close()


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Two datastores that go on differently after the same tokens."""
    made = {}
    for number, name in enumerate(["code", "chat"]):
        (tmp_path / name).mkdir()
        corpus = Corpus(VOCABULARY, [[[3, 4, 100 + number, 110 + number]]])
        made[name] = str(write_datastore(tmp_path / name, corpus))
    return made


def test_requests_choose_among_named_datastores(
    places: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drafter = drafter_with(datastores=places, remember=str(tmp_path / "memory"))
    assert drafter._sources.labels == ["code", "chat", "outputs", "prompt", "logits"]

    def first(chosen: Any) -> set[int]:
        drafter.begin(NewRequest("a", PROMPT, 2, datastores=chosen))
        (tree,) = drafter.draft([StepRequest("a", NOTHING, 8)])
        return {int(token) for token in tree.tokens if token in (100, 101)}

    both = {100, 101}
    firsts = [first(chosen) for chosen in (None, ["code"], "chat", ["chat", "code"], [])]
    assert firsts == [both, {100}, {101}, both, set()]
    assert totals(drafter, "errors") == {}
    assert first(["code", "unknown", 7]) == {100}
    assert first(str(Path(places["chat"]))) == set(), "its place is not its name"
    assert totals(drafter, "errors") == {"choices": 3}
    assert "a datastore is 'unknown', expected one of 'code', 'chat'" in caplog.text
    drafter.close()


def test_drafts_of_a_choice_count_for_their_source(places: dict[str, str], tmp_path: Path) -> None:
    """Sources of a session that lacks some are those of the engine."""
    places["written"] = written_datastore(tmp_path / "written", MODEL)
    drafter = drafter_with(datastores=places)
    counts = written(drafter, "a", datastores=["written"])
    assert set(counts) <= {"written", "prompt", "logits"}
    assert counts["written"] > 0
    drafter.close()


def test_datastores_of_a_list_are_named_by_their_place(places: dict[str, str]) -> None:
    drafter = drafter_with(datastores=[f"{places['code']}/", places["chat"]])
    for name in (places["code"], f"{places['code']}/"):
        chosen = drafter._sources.chosen(None, [name])
        assert chosen.places == [0, 2, 3, 4]
    drafter.close()


def test_drafts_are_switched_off_for_one_request(tmp_path: Path) -> None:
    place = written_datastore(tmp_path / "ds", MODEL)
    drafter = drafter_with(datastores=[place], remember=str(tmp_path / "memory"))
    requests = [
        Written(drafter, MODEL, "on", PROMPT),
        Written(drafter, MODEL, "off", PROMPT, drafts=False),
    ]
    write(requests, 12)
    assert requests[0].accepted > requests[1].accepted == 0
    drafter.finish(["on", "off"])
    flush(None, None)
    assert totals(drafter, "remembered_documents") == {"": 2}, "it is remembered all the same"
    assert totals(drafter, "errors") == {}
    drafter.close()


def test_the_switch_is_read_as_engines_pass_it_on() -> None:
    failed: list[str] = []
    for value, drafts in ((False, False), (0, False), (0.0, False), (True, True), (1, True)):
        assert wants_drafts({"drafts": value}, failed.append) == drafts
    assert wants_drafts({}, failed.append)
    assert wants_drafts(None, failed.append)
    assert parse_extra_arguments({"drafts": False}, failed.append)["drafts"] is False
    assert failed == []
    assert wants_drafts({"drafts": "no"}, failed.append)
    assert failed == ["request: drafts is 'no', expected true or false"]


def test_placeholders_of_images_are_never_matched(tmp_path: Path) -> None:
    """The prompt has two equal images, each of them many equal tokens."""
    image = [250] * 40
    prompt = [10, *image, 11, 12, 13, *image, 11]
    placeholders = [place for place, token in enumerate(prompt) if token == 250]
    drafter = drafter_with(remember=str(tmp_path / "memory"))
    drafter.begin(NewRequest("a", prompt, len(prompt), placeholders=placeholders))
    drafter.begin(NewRequest("plain", prompt, len(prompt)))
    steps = [StepRequest(id, NOTHING, 16) for id in ("a", "plain")]
    text_alone, plain = drafter.draft(steps)
    assert drafter.length("a") == len(prompt), "the engine's count has them"
    assert 250 in plain.tokens
    assert 250 not in text_alone.tokens
    assert text_alone.tokens[:2].tolist() == [12, 13], "text is drafted from"
    output = np.array([20, 21, 22, 23, 24], np.int32)
    drafter.accept([StepRequest("a", output, 0)])
    assert drafter.length("a") == len(prompt) + 5
    drafter.finish(["a"])
    flush(None, None)
    drafter.drop(["plain"])
    drafter.close()
    with rest_store.LiveDatastore.open(tmp_path / "memory", read_only=True) as live:
        assert live.count([10, 11, 12, 13, 11, *output]) == 1


@pytest.fixture
def predicting() -> Iterator[tuple[RequestDrafter, list[str]]]:
    """A drafter whose tokenizer has a token for each character, and what it has tokenized."""
    encoded: list[str] = []

    def encode(text: str, *, add_special_tokens: bool) -> list[int]:
        encoded.append(text)
        return [ord(character) for character in text]

    tokenizer = SimpleNamespace(identity=identity(VOCABULARY), encode=encode)
    log = logging.getLogger("test")
    sources = EngineSources(
        EngineSettings(), tokenizer, name="m", vocabulary_size=VOCABULARY, where="", log=log
    )
    metrics = EngineMetrics(sources.names, log)
    drafter = RequestDrafter(sources, metrics, vocabulary_size=VOCABULARY, clock=Clock())
    yield drafter, encoded
    drafter.close()


def test_tokens_of_a_prediction_are_counted(
    predicting: tuple[RequestDrafter, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """The output follows the prediction, leaves it, and does not come back."""
    caplog.set_level("INFO")
    drafter, encoded = predicting
    text = "".join(chr(40 + token) for token in range(60))
    output = [*range(40, 70), *[200 + number for number in range(20)]]

    def model(tokens: list[int]) -> int:
        return int(output[min(len(tokens) - 2, len(output) - 1)])

    request = Written(drafter, model, "a", [1, 2], references=[text])
    while len(request.text) < 2 + len(output):
        write([request], 1, "chain")
    drafter.finish(["a"])
    accepted = totals(drafter, "accepted_prediction_tokens")[""]
    rejected = totals(drafter, "rejected_prediction_tokens")[""]
    assert 20 <= accepted <= 30
    assert 1 <= rejected <= 8
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("rest-store: request a: ")
    assert line.endswith(
        f"accepted_prediction_tokens {accepted}; rejected_prediction_tokens {rejected}"
    )
    # Another request, and one that comes back after it was put off.
    for id in ("b", "b"):
        drafter.begin(NewRequest(id, [1, 2], 2, references=[text]))
    assert encoded == [text], "it is tokenized once"


def test_requests_have_lines_where_the_settings_ask_for_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    sources = RequestSources([], Scope(None), [0, 1, 2])
    for is_asked in (False, True):
        log = logging.getLogger("test")
        counted = EngineMetrics([], log, log_requests=is_asked)
        counted.end_request("a", EngineRequest(NewRequest("a", [1], 1), sources).acceptance)
    assert [record.getMessage() for record in caplog.records] == [
        "rest-store: request a: 0 tokens in 0 steps; 0 draft tokens, 0 accepted"
    ]
    request = EngineRequest(NewRequest("a", [1, 2], 1), sources)
    request.count_step(StepRequest("a", np.array([3], np.int32), 0))
    assert request_line(request.acceptance).startswith("1 token in 1 step; ")
