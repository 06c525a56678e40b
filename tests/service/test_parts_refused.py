"""Parts that are not one datastore, and files that do not say where parts are: named errors before any work."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rest_store.cli import main
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.part import Part
from rest_store.errors import PartError, RestStoreError, ServeError, TargetError, TokenizerMismatchError
from rest_store.service.client.client import DatastoreClient
from rest_store.service.server.catalog import Catalog
from tests.shared.clients import KINDS, connected
from tests.shared.parts import Serving, serving
from tests.shared.services import PATIENCE
from tests.shared.strategies import Corpus, identity, refused, write_datastore

SHARDS = [[[1, 2, 3, number]] for number in range(4)]


def stored(folder: Path, corpus: Corpus) -> Path:
    folder.mkdir()
    return write_datastore(folder, corpus)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("builds")
    return {
        "one": stored(root / "one", Corpus(300, SHARDS)),
        "other": stored(root / "other", Corpus(300, SHARDS[::-1])),
        "tokenizer": stored(root / "tokenizer", Corpus(400, SHARDS)),
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("sockets")) as served:
        yield served


@pytest.fixture(scope="module")
def target(served: Serving, directories: dict[str, Path]) -> Callable[[str, str | None], list[str]]:
    """Return the group of endpoints of a part; each text is served once, with blanks or without."""
    started: dict[tuple[str, str | None], list[str]] = {}
    names = (f"service{number}" for number in itertools.count())

    def group(name: str, part: str | None) -> list[str]:
        if (name, part) not in started:
            started[name, part] = [served.start(next(names), directories[name], part and part.strip())]
        return started[name, part]

    return group


Target = Callable[[str, str | None], list[str]]
MIXED: dict[str, tuple[type[RestStoreError], list[tuple[str, str | None]], list[str]]] = {
    "two builds": (PartError, [("one", "1/2"), ("other", "2/2")], ["build of datastore 'served'", "sha256:"]),
    "two tokenizers": (TokenizerMismatchError, [("one", "1/2"), ("tokenizer", "2/2")], []),
    "one part twice": (PartError, [("one", "1/2"), ("one", "1/2 ")], ["part 1/2 is also at", "each part in one group"]),
    "a part missing": (PartError, [("one", "1/3"), ("one", "3/3")], ["is 2, expected 3 parts: 2/3 missing"]),
    "too many": (PartError, [("one", "1/2"), ("one", "2/2"), ("one", "2/3")], ["is 3, expected 2 parts"]),
    "parts of different numbers": (PartError, [("one", "1/2"), ("one", "2/3")], ["is 2, expected 3 parts"]),
    "a whole datastore": (PartError, [("one", "1/2"), ("one", None)], ["is the whole, expected one of 2 parts"]),
}


@KINDS
@pytest.mark.parametrize("case", MIXED)
def test_parts_that_are_not_one_datastore(kind: type[Any], case: str, target: Target) -> None:
    error, services, fragments = MIXED[case]
    with connected(kind, [target(*one) for one in services]) as client:
        refused(error, client.connect, *fragments)
        refused(error, lambda: client.draft([1]), *fragments)
        assert client.statistics.refused == client.statistics.calls == 2


def test_parts_of_another_tokenizer_than_the_client(target: Target) -> None:
    groups = [target("one", "1/2"), target("one", "2/2")]
    with DatastoreClient(groups, tokenizer=identity(400), timeout=PATIENCE) as client:
        refused(TokenizerMismatchError, client.connect)
    with DatastoreClient(groups, tokenizer=identity(300), timeout=PATIENCE) as client:
        assert client.connect().tokenizer == client.tokenizer == identity(300)


def test_a_replica_that_serves_another_part_is_not_asked(target: Target, directories: dict[str, Path]) -> None:
    """It is as good as away, and said by name where there is no other."""
    whole = Datastore.open(directories["one"])
    groups = [[*target("one", "1/2")], [*target("one", "2/2"), *target("one", "2/3"), *target("one", None)]]
    with DatastoreClient(groups, timeout=PATIENCE) as client:
        for _ in range(20):
            assert client.count([1, 2]) == whole.count([1, 2])
        assert client.statistics.absent_parts == 0


def test_other_clients_ask_a_part_as_any_service(target: Target, directories: dict[str, Path]) -> None:
    with DatastoreClient(target("one", "2/3"), timeout=PATIENCE) as client:
        assert client.count([1, 2]) == Datastore.open(directories["one"], part="2/3").count([1, 2])
        [described] = client.info().datastores
        assert described.part is not None
        assert described.part[:2] == (2, 3)
        assert described.part.build == Datastore.open(directories["one"]).manifest.digest
    with DatastoreClient([target("one", None)], timeout=PATIENCE) as client:
        assert client.count([1, 2]) == 4


FILES = {
    "nothing": ("", "a [[part]] for each part"),
    "no TOML": ("[[part", "not TOML"),
    "not UTF-8": (b"\xff", "not TOML"),
    "no list": ("part = 3", "a [[part]] for each part"),
    "another table": ('timeout = 3\n[[part]]\nendpoints = ["a:1"]', "a [[part]] for each part"),
    "no endpoints": ("[[part]]\n", "endpoints and nothing else"),
    "another key": ('[[part]]\nendpoints = ["a:1"]\nnumber = 1', "endpoints and nothing else"),
    "an empty list": ("[[part]]\nendpoints = []", "no endpoints"),
    "a text": ('[[part]]\nendpoints = "a:1"', "a list of"),
    "a number": ("[[part]]\nendpoints = [3]", "HOST:PORT"),
    "no address": ('[[part]]\nendpoints = ["nowhere"]', "HOST:PORT"),
    "an address twice": ('[[part]]\nendpoints = ["a:1"]\n[[part]]\nendpoints = ["a:1"]', "in place 1 and in place 2"),
    "not tables": ("part = [1]", "endpoints and nothing else"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_parts_file_that_is_malformed(case: str, tmp_path: Path) -> None:
    content, fragment = FILES[case]
    path = tmp_path / "parts.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(TargetError, lambda: DatastoreClient(str(path)), fragment)


def test_parts_that_are_listed_wrongly(tmp_path: Path) -> None:
    refused(TargetError, lambda: DatastoreClient(str(tmp_path / "absent.toml")), "unreadable")
    refused(TargetError, lambda: DatastoreClient([["a:1"], "b:1"]), "place 2 is 'b:1'")
    refused(TargetError, lambda: DatastoreClient([["a:1"], []]), "no endpoints")
    refused(TargetError, lambda: DatastoreClient([["a:1"]] * 2000), "2000")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (1 << 21))
    refused(TargetError, lambda: DatastoreClient(str(large)), "too large")


@pytest.mark.parametrize(
    "text", ["0/4", "5/4", "0/0", "1/0", "-1/4", "4", "1/2/3", "one/4", "", "1 / 4", "1/99999999999"]
)
def test_a_part_that_is_none(text: str, directories: dict[str, Path]) -> None:
    refused(PartError, lambda: Part.parse(text), "part")
    refused(PartError, lambda: Datastore.open(directories["one"], part=text), "part")
    done = CliRunner().invoke(main, ["serve", str(directories["one"]), "--part", text])
    assert done.exit_code == 2
    assert "--part" in done.stderr


def test_more_parts_than_shards(directories: dict[str, Path]) -> None:
    refused(PartError, lambda: Datastore.open(directories["one"], part="1/5"), "is 5, expected at most 4")
    refused(PartError, lambda: Catalog([("a", directories["one"])], part=Part(1, 5)), "is 5, expected at most 4")


def test_live_datastores_are_not_served_in_parts(directories: dict[str, Path], tmp_path: Path) -> None:
    places = [("a", directories["one"])]
    refused(ServeError, lambda: Catalog(places, [("chat", tmp_path / "chat")], part=Part(1, 2)), "chat")
