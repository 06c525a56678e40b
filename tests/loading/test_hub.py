"""A hub that cannot be reached: one try, one line."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from huggingface_hub import constants

from build_index.tokenization import load_tokenizer
from rest_store.errors import ModelLoadError, RestStoreError, TokenizerLoadError
from rest_store.generation.model import load_model
from rest_store.loading.hub import hub_failure
from tests.shared.strategies import refused

NAME = "nobody/no-such-model"


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Requests about a repository that a hub got which answers none of them."""
    got: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                peer, _ = listening.accept()
            except OSError:
                return
            with peer:
                request = peer.recv(1 << 16)
                got.extend([request] * (NAME.encode() in request))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening,), daemon=True).start()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        yield got
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("load", "error", "expected"),
    [
        (
            load_tokenizer,
            TokenizerLoadError,
            f"{NAME}: tokenizer is absent here, and the Hugging Face hub cannot be r",
        ),
        (
            load_model,
            ModelLoadError,
            "no such directory here, and from the Hugging Face hub: it cannot be reached (",
        ),
    ],
)
def test_it_is_tried_once(
    connections: list[bytes], load: Any, error: type[RestStoreError], expected: str
) -> None:
    assert len(refused(error, lambda: load(NAME), expected).splitlines()) == 1
    assert len(connections) == 1


@pytest.mark.parametrize(("status", "failure"), [(404, None), (401, None), (503, "status 503")])
def test_an_answer_is_an_answer(
    status: int, failure: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    class Answer:
        status_code = status

    def answer(url: str) -> None:
        error = HfHubHTTPError.__new__(HfHubHTTPError)
        error.response = Answer()
        raise error

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", answer)
    assert hub_failure(NAME) == failure


def test_a_hub_that_is_turned_off_is_not_asked(
    connections: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_failure(NAME) is not None
    assert connections == []


def test_what_is_no_name_on_the_hub_is_no_failure_of_the_hub(connections: list[bytes]) -> None:
    assert hub_failure("no such name!") is None
    refused(
        TokenizerLoadError,
        lambda: load_tokenizer("no such name!"),
        "tokenizer is refused by transformers (",
    )
    assert connections == []
