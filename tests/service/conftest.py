"""Fixtures of several tests of the service."""

from __future__ import annotations

from pathlib import Path

import pytest

from rest_store.service.client.shared_stream import SharedStreams
from tests.shared.services import Certificates
from tests.shared.strategies import Corpus, write_datastore


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small datastore."""
    return write_datastore(tmp_path_factory.mktemp("served"), Corpus(300, [[[1, 2, 3]]]))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of an authority, a server and a client."""
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["own stream", "shared stream"])
def streams(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions in services have streams of their own, or share them from the beginning as they do in batches."""
    monkeypatch.setattr(SharedStreams, "are_wanted", request.param == "shared stream")
