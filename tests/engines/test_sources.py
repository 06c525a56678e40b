"""An engine's sources are opened once, refused by name, and left out while they are away."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.remembering import RememberCounts, remember
from rest_store.engines.engine_metrics import EngineMetrics
from rest_store.engines.engine_settings import EngineSettings
from rest_store.engines.engine_sources import EngineSources
from rest_store.engines.request import (
    NewRequest,
    StepRequest,
    parse_extra_arguments,
    parse_prediction,
)
from rest_store.engines.request_drafter import RequestDrafter
from rest_store.errors import (
    DatastoreFormatError,
    DatastoreNotFoundError,
    QueryError,
    RestStoreError,
    SourceError,
    TokenizerMismatchError,
    WriterError,
)
from rest_store.live.agent_memory import RECORD_NAME
from rest_store.live.live_datastore import LiveDatastore
from rest_store.service.client import startup
from tests.shared.clients import free_port
from tests.shared.engine import Clock, Model, Written, cyclic, write, written_datastore
from tests.shared.live import until
from tests.shared.services import PATIENCE, running
from tests.shared.strategies import ONE_TO_NINE, Corpus, identity, write_datastore

LOG = logging.getLogger("test")
VOCABULARY = 300


def opened(
    *, tokenizer: object = None, vocabulary_size: int = VOCABULARY, **settings: Any
) -> EngineSources:
    read = EngineSettings.read(settings, "settings")
    return EngineSources(
        read, tokenizer, name="model", vocabulary_size=vocabulary_size, where="settings", log=LOG
    )


def datastore(directory: Path, corpus: Corpus = ONE_TO_NINE) -> str:
    directory.mkdir()
    return str(write_datastore(directory, corpus))


def test_a_datastore_named_twice_is_one(tmp_path: Path) -> None:
    place, memory = datastore(tmp_path / "a"), str(tmp_path / "m")
    made = opened(
        datastores=[place, f"{place}/", memory],
        remember=f"{memory}/",
        tokenizer=identity(VOCABULARY),
    )
    assert made.labels == [place, "outputs", "prompt", "logits"]
    assert made.target is made.stores[1]
    made.close()


def refused(error: type[RestStoreError], message: str, **settings: Any) -> None:
    with pytest.raises(error) as raised:
        opened(**settings)
    assert message in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    place, absent = datastore(tmp_path / "a"), str(tmp_path / "absent")
    refused(DatastoreNotFoundError, absent, datastores=[place, absent])
    refused(DatastoreFormatError, place, remember=place)
    many = [datastore(tmp_path / f"{number}") for number in range(7)]
    refused(
        SourceError,
        "settings: 7 datastores, services and grammars among the sources, expected at most 6",
        datastores=many,
    )


def test_other_tokenizers_are_refused(tmp_path: Path) -> None:
    place, other = datastore(tmp_path / "a"), datastore(tmp_path / "b", Corpus(400, [[[1, 2]]]))
    refused(TokenizerMismatchError, "'model'", datastores=[place], tokenizer=_tokenizer(301))
    refused(TokenizerMismatchError, other, datastores=[place, other], vocabulary_size=400)
    message = "vocabulary size is 300, expected at most the model's 299"
    refused(QueryError, message, datastores=[place], vocabulary_size=299)


def _tokenizer(size: int) -> object:
    """A tokenizer as `identity_of` takes it, which has no name of its own."""

    class Fast:
        def to_str(self) -> str:
            words = ", ".join(f'"{number}": {number}' for number in range(size))
            return f'{{"model": {{"type": "WordLevel", "vocab": {{{words}}}}}}}'

    return Fast()


def test_what_was_opened_is_closed_when_another_fails(tmp_path: Path) -> None:
    memory = str(tmp_path / "m")
    refused(
        QueryError,
        "vocabulary size",
        remember=memory,
        tokenizer=identity(VOCABULARY),
        vocabulary_size=9,
    )
    made = opened(remember=memory)
    refused(WriterError, memory, remember=memory)
    made.close()


def drafted(
    made: EngineSources,
    model: Model = cyclic(VOCABULARY),  # noqa: B008
) -> tuple[dict[str, float], dict[str, float]]:
    """Write with these sources.

    Return how many draft tokens of each were accepted, and what went wrong.
    """
    metrics = EngineMetrics(made.labels, LOG)
    drafter = RequestDrafter(made, metrics, vocabulary_size=VOCABULARY, clock=Clock())
    write(
        [Written(drafter, model, f"{number}", [number, number + 1]) for number in range(5, 45, 5)],
        20,
    )
    drafter.close()
    totals = metrics.totals()
    accepted, errors = (
        {label: total for (name, label), total in totals.items() if name == counter and total}
        for counter in ("source_accepted_tokens", "errors")
    )
    return accepted, errors


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine's services take longer to answer than an engine waits."""
    monkeypatch.setattr(startup, "_CONNECT_SECONDS", PATIENCE)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("drafting", ["local", "remote"])
def test_a_service_drafts(tmp_path: Path, drafting: str) -> None:
    """A copy of its datastore drafts while the service is away."""
    settings = {"drafting": drafting, "cache": str(tmp_path / "cache"), "source_timeout": 60}
    with running(written_datastore(tmp_path / "ds", cyclic(VOCABULARY))) as service:
        made = opened(datastores=[service.target], **settings)
        assert made.labels[0] == service.target
        assert len(made.stores) == (drafting == "local")
        accepted, errors = drafted(made)
    assert accepted[service.target] > 0
    assert errors == {}
    if drafting == "local":
        assert drafted(opened(datastores=[service.target], **settings)) == (accepted, {})


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("drafting", ["local", "remote"])
def test_a_service_remembers_for_all_engines(tmp_path: Path, drafting: str) -> None:
    text = np.array([1, 2, 3, 4, 5, 6, 7], np.int32)
    LiveDatastore.open(tmp_path / "chat", tokenizer=identity(VOCABULARY)).close()
    with running(options=["--live", str(tmp_path / "chat")]) as service:
        shared: dict[str, Any] = {
            "drafting": drafting,
            "tokenizer": identity(VOCABULARY),
            "source_timeout": 60,
        }
        chat = f"{service.target}/chat"
        one = opened(remember=chat, namespace="team", cache=str(tmp_path / "one"), **shared)
        other = opened(remember=chat, namespace="team", cache=str(tmp_path / "other"), **shared)
        another = opened(remember=chat, cache=str(tmp_path / "other"), **shared)
        assert one.target is not None
        remember(
            one.target,
            [document for document in [OutputDocument.from_output([], text.tolist())] if document],
            RememberCounts(),
        )
        one.close()

        def first(made: EngineSources) -> list[int]:
            with made.session(text[:3]) as session:
                return session.draft(1).tokens.tolist()

        until(lambda: first(other) == [4])
        assert first(another) == []
        other.close()
        another.close()


@pytest.mark.usefixtures("patient")
def test_a_service_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    with running(datastore(tmp_path / "ds")) as service:
        settings: dict[str, Any] = {"datastores": [service.target], "tokenizer": identity(301)}
        refused(TokenizerMismatchError, "301", cache=str(tmp_path / "cache"), **settings)
        refused(TokenizerMismatchError, "301", drafting="remote", **settings)


def test_a_service_that_is_away_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = f"127.0.0.1:{free_port()}"
    accepted, errors = drafted(
        opened(datastores=[target], cache=str(tmp_path)), lambda text: (text[-1] + 1) % 7
    )
    assert f"{target}" in caplog.text
    assert "its drafts are left out until it answers" in caplog.text
    assert errors["source"] > 0
    assert accepted["prompt"] > 0, "the prompt is drafted from all the same"


def test_a_memory_that_is_there_needs_no_tokenizer(tmp_path: Path) -> None:
    memory = tmp_path / "m"
    LiveDatastore.open(memory, tokenizer=identity(VOCABULARY)).close()
    opened(remember=str(memory)).close()


def test_references_are_texts_or_tokens() -> None:
    tokenizer = SimpleNamespace(
        identity=identity(VOCABULARY), encode=lambda text, add_special_tokens: [7, len(text)]
    )
    made = opened(tokenizer=tokenizer)
    failed: list[str] = []
    content = {
        "type": "content",
        "content": [{"type": "text", "text": "four"}, [1, 2], {"type": "other"}],
    }
    assert [
        reference.tolist() for reference in made.encoded(parse_prediction(content, failed.append))
    ] == [[7, 4], [1, 2]]
    read = [parse_prediction(given, failed.append) for given in ("a", ["a", "b"], [1, 2], None, {})]
    assert read == [["a"], ["a", "b"], [[1, 2]], [], []]
    assert failed == []
    with made.session(np.array([5, 6], np.int32), made.encoded([[5, 6, 9, 8]])) as session:
        assert session.draft(2, shape="chain").tokens.tolist() == [9, 8]
    made.close()


def test_extra_arguments_that_are_malformed_are_named() -> None:
    failed: list[str] = []
    assert parse_extra_arguments(None, failed.append) == {}
    assert parse_extra_arguments({"group": 3, "epoch": 4, "other": 5}, failed.append) == {
        "references": [],
        "group": 3,
        "epoch": 4,
    }
    assert failed == []
    assert [parse_extra_arguments(given, failed.append) for given in ("x", 7, ["a"])] == [
        {},
        {},
        {},
    ]
    assert parse_extra_arguments({"prediction": {"content": 7}}, failed.append) == {
        "references": []
    }
    what = "request: the extra arguments are"
    assert failed == [
        *(f"{what} of the type {name}, expected an object" for name in ("str", "int", "list")),
        "request: prediction is of the type int, expected a text, token ids, or a list of these",
    ]


@pytest.mark.parametrize("references", [["a text"], [[1.5]], [[-1]], [None]])
def test_malformed_references_are_left_out_and_counted(references: Any) -> None:
    made = opened()
    drafter = RequestDrafter(made, EngineMetrics(made.labels, LOG), vocabulary_size=VOCABULARY)
    drafter.begin(NewRequest("a", [5, 6, 5, 6, 5], 5, references=references))
    assert len(drafter.draft([StepRequest("a", np.empty(0, np.int32), 4)])[0]) > 0
    assert drafter.metrics.totals()["errors", "references"] == 1
    drafter.close()


def test_an_agents_memory_is_a_source_of_each_kind_of_text(tmp_path: Path) -> None:
    memory = tmp_path / "m"
    with LiveDatastore.open(memory, tokenizer=identity(VOCABULARY)) as live:
        live.namespace("written").add([[1, 2, 3]])
        live.namespace("history").add([[4, 5, 6]])
        (memory / RECORD_NAME).touch()
    made = opened(datastores=[str(memory)], tokenizer=identity(VOCABULARY))
    assert made.labels == [f"{memory}/written", f"{memory}/history", "prompt", "logits"]
    made.close()
    made = opened(remember=str(memory), tokenizer=identity(VOCABULARY))
    assert made.labels == ["outputs/written", "outputs/history", "outputs", "prompt", "logits"]
    assert made.target is made.stores[2]
    with made.session(np.array([9, 1], np.int32)) as session:
        assert session.draft(4).tokens.tolist() == [2, 3]
    made.close()
    made = opened(remember=str(memory), namespace="someone", tokenizer=identity(VOCABULARY))
    assert made.labels == ["outputs", "prompt", "logits"]
    made.close()
