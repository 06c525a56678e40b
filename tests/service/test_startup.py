"""Names of sources that lie elsewhere."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rest_store.live.live_datastore import LiveDatastore
from rest_store.service.client.startup import display_name
from tests.shared.services import running
from tests.shared.strategies import Corpus, identity, write_datastore


@pytest.mark.parametrize(
    "location",
    ["10.0.0.1:1/code", "unix:/run/socket#code", "s3://bucket/code", "10.0.0.1:1;10.0.0.1:2/code"],
)
def test_a_location_that_names_its_datastore_is_the_name(location: str) -> None:
    assert display_name(location) == location


def test_a_service_says_what_it_has(tmp_path: Path) -> None:
    store = write_datastore(tmp_path / "code", Corpus(300, [[[5, 6, 7] * 20]]))
    LiveDatastore.open(tmp_path / "chat", tokenizer=identity(300)).close()
    with running(store, options=["--live", str(tmp_path / "chat")], unix=True) as service:
        assert display_name(service.target) == f"code, chat at {service.target}"
        assert display_name(service.target, is_live=True) == f"chat at {service.target}"
        assert display_name(service.unix, is_live=False) == f"code at {service.unix}"
    with running(store) as whole:
        assert display_name(whole.target, is_live=True) == whole.target, "it has none"


def test_without_an_answer_the_location_is_the_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        location = f"127.0.0.1:{closed.getsockname()[1]}"
    assert display_name(location) == location
