"""Generation with the datastore behind a service: the same text, also when the service dies half-way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rest_store
from rest_store.errors import DraftingWarning
from tests.shared.services import running
from tests.shared.strategies import Corpus, write_datastore
from tests.shared.tiny import VOCABULARY, prompts, tiny_model

NEW_TOKENS = 60


class OnTokens:
    """A streamer that calls `act` once so many tokens have been written."""

    def __init__(self, number: int, act: Any) -> None:
        self._left = number
        self._act = act
        self._prompt = True

    def put(self, tokens: torch.Tensor) -> None:
        if self._prompt:
            self._prompt = False
            return
        self._left -= tokens.numel()
        if self._left <= 0 and self._act is not None:
            act, self._act = self._act, None
            act()

    def end(self) -> None:
        assert self._act is None, "the text was shorter than that"


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def inputs() -> dict[str, torch.Tensor]:
    return prompts(1)


@pytest.fixture(scope="module")
def plain(model: Any, inputs: dict[str, torch.Tensor]) -> list[int]:
    written: list[int] = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)[0].tolist()
    return written


@pytest.fixture
def datastore(tmp_path: Path, plain: list[int]) -> Path:
    """A datastore that holds what the model will write, and something else."""
    (tmp_path / "ds").mkdir()
    return write_datastore(tmp_path / "ds", Corpus(VOCABULARY, [[plain, list(range(VOCABULARY))]]))


def drafted(model: Any, inputs: dict[str, torch.Tensor], source: Any, streamer: OnTokens | None = None) -> Any:
    return model.generate(
        **inputs,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        custom_generate=rest_store.generate,
        drafter=source if isinstance(source, list) else [source],
        adaptive=False,
        stream_to=streamer,
    )


def test_the_text_is_the_same_in_process_and_through_a_service(
    model: Any, inputs: dict[str, torch.Tensor], plain: list[int], datastore: Path
) -> None:
    embedded = drafted(model, inputs, rest_store.Datastore.open(datastore))
    assert embedded.sequences[0].tolist() == plain
    assert embedded.statistics.mean_tokens > 2
    with running(datastore) as service, rest_store.DatastoreClient(service.target, timeout=10) as client:
        remote = drafted(model, inputs, client)
        assert remote.sequences[0].tolist() == plain
        assert remote.statistics.mean_tokens > 2
        assert remote.statistics.drafts.dropped == {}


SEND_TEXT = pytest.mark.parametrize("send_text", [True, False], ids=["whole text", "its end"])


@SEND_TEXT
@pytest.mark.parametrize("way", ["killed", "stopped", "paused"])
def test_a_service_that_goes_away_half_way_changes_nothing(
    model: Any, inputs: dict[str, torch.Tensor], plain: list[int], datastore: Path, way: str, send_text: bool
) -> None:
    with running(datastore) as service, rest_store.DatastoreClient(service.target, send_text=send_text) as client:
        assert client.info().datastores
        ways = {"killed": service.kill, "stopped": service.stop, "paused": service.pause}
        with pytest.warns(DraftingWarning, match=f"went on without a session or source: {service.target}: ") as issued:
            output = drafted(model, inputs, client, OnTokens(NEW_TOKENS // 2, ways[way]))
        assert len(issued) == 1
        assert output.sequences[0].tolist() == plain
        assert sum(output.statistics.drafts.dropped.values()) > 0
        assert output.statistics.drafts.errors == [], "the session goes on without the source"
