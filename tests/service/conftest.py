"""Fixtures of several tests of the service."""

from __future__ import annotations

from pathlib import Path

import pytest

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
