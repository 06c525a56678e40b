"""A datastore in partitions: it answers as one, and sessions go on without a partition."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rest_store.cli import main
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.partition import Partition
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ArgumentError, QueryError, ServiceUnavailableError
from rest_store.service.client.client import DatastoreClient
from tests.shared.clients import KINDS, connected
from tests.shared.live import until
from tests.shared.served import Serving, serving
from tests.shared.services import PATIENCE
from tests.shared.strategies import Corpus, refused, write_datastore, zipf_corpus

CORPUS = zipf_corpus(5, 8_000, 40, 300, 6)
MOST = 1024  # nodes, with which no path of these texts is missing from the tree of a partition


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_datastore(tmp_path_factory.mktemp("whole"), CORPUS)


@pytest.fixture(scope="module")
def whole(directory: Path) -> Datastore:
    return Datastore.open(directory)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("sockets")) as served:
        yield served


@pytest.fixture(scope="module")
def groups(served: Serving, directory: Path) -> list[list[str]]:
    """Three partitions, which no test stops."""
    return served.start_all(directory, 3)


def texts(number: int) -> list[list[int]]:
    """Ends of documents and random tokens."""
    chance = random.Random(1)
    chosen = []
    for _ in range(number):
        document = chance.choice(CORPUS.documents)
        end = chance.randrange(1, len(document) + 1)
        chosen.append(
            [*document[max(0, end - 20) : end], *chance.choice([[], [chance.randrange(300)]])]
        )
    return chosen


@KINDS
def test_answers_are_those_of_the_whole(
    kind: type, groups: list[list[str]], whole: Datastore
) -> None:
    limits = {"max_nodes": MOST, "max_depth": 2}
    with connected(kind, groups) as client:
        info = client.info()
        assert sum(one.token_count for one in info.datastores) == whole.info().token_count
        assert [
            one.partition and (one.partition.number, one.partition.total) for one in info.datastores
        ] == [
            (1, 3),
            (2, 3),
            (3, 3),
        ]
        for text in texts(25):
            assert client.longest_suffix_match(text) == whole.longest_suffix_match(text)
            assert client.count(text[-3:]) == whole.count(text[-3:])
            full = whole.draft(text, **limits)
            tree = client.draft(text, **limits)
            assert tree.match == full.match
            if len(full) < MOST:
                assert tree == full
        trees = client.draft_batch(texts(30), max_nodes=20)
        assert [tree.match for tree in trees] == [
            tree.match for tree in whole.draft_batch(texts(30))
        ]
        assert 0 < max(map(len, trees)) <= 20
        assert client.draft_batch([]) == []
        with pytest.raises(QueryError):
            client.draft([300])
        with pytest.raises(QueryError):
            client.count([])


def steps_of(sources: list[object], text: list[int]) -> int:
    """Return the number of steps of a session over the second half of a text."""
    place = len(text) // 2
    steps = 0
    with DraftSession([*sources, PromptLookup(), RecycledLogits()], text[:place]) as session:
        while place < len(text):
            new = text[place : place + len(session.draft(16).longest_path(text[place:])) + 1]
            session.accept(new)
            place = place + len(new)
            steps = steps + 1
        assert session.statistics.omissions == {}
    return steps


def test_sessions_accept_nearly_what_they_do_with_the_whole(
    groups: list[list[str]], whole: Datastore
) -> None:
    others = zipf_corpus(9, 8_000, 40, 300, 1).documents
    chance = random.Random(3)
    steps = {"whole": 0, "partitions": 0}
    with DatastoreClient(groups, timeout=PATIENCE) as client:
        for _ in range(20):
            text = [token for document in chance.choices(others, k=3) for token in document][:150]
            for name, source in (("whole", whole), ("partitions", client)):
                steps[name] += steps_of([source], text)
    assert steps["partitions"] <= 1.02 * steps["whole"]


def test_a_partition_that_is_away_is_an_error_of_queries_and_left_out_of_sessions(
    served: Serving, directory: Path
) -> None:
    groups = served.start_all(directory, 3, "away")
    with DatastoreClient(groups, timeout=1.0) as client:
        client.info(timeout=PATIENCE)
        with DraftSession([client, PromptLookup()], [1, 2, 3, 1, 2]) as session:
            session.draft(8)
            served.stop("away2of3")
            for call in (lambda: client.count([1]), lambda: client.info(timeout=1.0)):
                with pytest.raises(ServiceUnavailableError, match="away2of3"):
                    call()
            until(lambda: (session.draft(8), session.statistics.absent)[1])
            assert len(session.draft(8)) > 0
            served.start("away2of3", directory, "2/3")
            until(lambda: (session.draft(8), not session.statistics.absent)[1])


def test_a_client_of_partitions_cannot_write(groups: list[list[str]]) -> None:
    with DatastoreClient(groups, timeout=PATIENCE) as client:
        assert ";" in repr(client)
        assert client.tokenizer.vocabulary_size == 300
        refused("live", lambda: client.add([[1]]), "is frozen, expected a live one")
        refused("live", lambda: client.delete(["a"]), "is frozen, expected a live one")


# --- Partitions that are not one datastore --------------------------------------------------------


@pytest.fixture(scope="module")
def target(
    served: Serving, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str | None], list[str]]:
    """Return the endpoint of a partition of a build.

    Each text is served once, with blanks or without.
    """
    root = tmp_path_factory.mktemp("builds")
    shards = [[[1, 2, 3, number]] for number in range(4)]
    builds = {
        "one": Corpus(300, shards),
        "other": Corpus(300, shards[::-1]),
        "tokenizer": Corpus(400, shards),
    }
    directories = {name: write_datastore(root / name, corpus) for name, corpus in builds.items()}
    started: dict[tuple[str, str | None], list[str]] = {}
    names = (f"service{number}" for number in itertools.count())

    def group(name: str, partition: str | None) -> list[str]:
        if (name, partition) not in started:
            started[name, partition] = [
                served.start(next(names), directories[name], partition and partition.strip())
            ]
        return started[name, partition]

    return group


MIXED: dict[str, list[tuple[str, str | None]]] = {
    "two builds": [("one", "1/2"), ("other", "2/2")],
    "two tokenizers": [("one", "1/2"), ("tokenizer", "2/2")],
    "one partition twice": [("one", "1/2"), ("one", "1/2 ")],
    "a partition missing": [("one", "1/3"), ("one", "3/3")],
    "too many": [("one", "1/2"), ("one", "2/2"), ("one", "2/3")],
    "a whole datastore": [("one", "1/2"), ("one", None)],
}


@pytest.mark.parametrize("case", MIXED)
def test_partitions_that_are_not_one_datastore(
    case: str, target: Callable[[str, str | None], list[str]]
) -> None:
    groups = [target(*one) for one in MIXED[case]]
    with DatastoreClient(groups, timeout=PATIENCE) as client:
        targets = [f"{group[0]} (served" for group in groups]
        refused(
            "partitions", client.info, *targets, f"expected {len(groups)} partitions of one build"
        )
        refused("partitions", lambda: client.count([1]))
        with DraftSession([client, PromptLookup()], [1, 2, 1]) as session:
            assert len(session.draft(8)) > 0
            assert [*session.statistics.omissions] == [(str(client), "error")]


@pytest.mark.parametrize(
    "text", ["0/4", "5/4", "0/0", "1/0", "-1/4", "4", "1/2/3", "one/4", "", "1 / 4"]
)
def test_a_partition_that_is_none(text: str, directory: Path) -> None:
    refused(ArgumentError, lambda: Partition.parse(text), "partition")
    done = CliRunner().invoke(main, ["serve", str(directory), "--partition", text])
    assert (done.exit_code, "--partition" in done.stderr) == (2, True)


# --- Commands -------------------------------------------------------------------------------------


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, words)
    return done.exit_code, done.output


def test_info_of_partitions(groups: list[list[str]], whole: Datastore) -> None:
    place = ";".join(map(",".join, groups))
    status, text = run("info", place)
    assert (status, text.count("partition 2/3")) == (0, 1)
    facts = json.loads(run("info", place, "--json")[1])
    assert sum(partition["tokens"] for partition in facts["datastores"]) == whole.info().token_count
    assert "served, partition 1/3" in run("info", groups[0][0])[1]
    assert run("info", f"{place};127.0.0.1:1", "--timeout", "0.2")[0] == 1
