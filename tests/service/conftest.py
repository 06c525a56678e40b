"""Fixtures of several tests of the service."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from rest_store.datastore.datastore import Datastore
from tests.shared.services import Certificates, Service, running
from tests.shared.sessions import CONTEXTS, NAMES, TEXT
from tests.shared.strategies import ONE_TO_NINE, Corpus, write_datastore

CHANCE = random.Random(0)
PAGES = Corpus(300, [[[CHANCE.randrange(100) for _ in range(50)] for _ in range(400)]])
PHRASES = Corpus(300, [[[1, 2, 3, 4, 5, 6], [1, 2, 3, 7, 8], [5, 6, 1, 2, 9]]])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small datastore."""
    return write_datastore(tmp_path_factory.mktemp("served"), Corpus(300, [[[1, 2, 3]]]))


@pytest.fixture(scope="module")
def phrases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A datastore in which some phrases occur again."""
    return write_datastore(tmp_path_factory.mktemp("phrases"), PHRASES)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A datastore whose files have several pages."""
    return write_datastore(tmp_path_factory.mktemp("pages"), PAGES)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A datastore of the numbers from one to nine."""
    return write_datastore(tmp_path_factory.mktemp("numbers"), ONE_TO_NINE)


@pytest.fixture(scope="module")
def store(phrases: Path) -> Datastore:
    """The same, opened here."""
    return Datastore.open(phrases)


@pytest.fixture(scope="module")
def service(phrases: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of `phrases` under seven names, and of another vocabulary under one."""
    other = write_datastore(tmp_path_factory.mktemp("other"), Corpus(301, PHRASES.shards))
    options = [
        "--metrics=127.0.0.1:0",
        f"--max-session-tokens={TEXT}",
        f"--max-contexts={CONTEXTS}",
    ]
    with running(
        *(f"{name}={phrases}" for name in NAMES), f"other={other}", options=options
    ) as service:
        yield service


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates of an authority, a server and a client."""
    return Certificates.make(tmp_path_factory.mktemp("certificates"))
