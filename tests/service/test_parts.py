"""A datastore that is served in parts answers as one: exactly, and on without a part that is away."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from rest_store.service.client.async_parts_client import AsyncPartsClient
from rest_store.service.client.parts_client import PartsClient

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import (
    ContextTypeError,
    EmptyContextError,
    LiveFormatError,
    PartError,
    ServiceUnavailableError,
    TargetError,
    TokenRangeError,
    TreeError,
)
from rest_store.service.client import parts_base
from rest_store.service.client.async_client import AsyncDatastoreClient
from rest_store.service.client.client import DatastoreClient
from rest_store.service.ray.published_files import write_parts
from tests.shared.clients import KINDS, LATE, connected
from tests.shared.live import until
from tests.shared.parts import Serving, serving
from tests.shared.services import PATIENCE, running
from tests.shared.strategies import refused, write_datastore, zipf_corpus

NO_TREE = TokenTree([], [], [], scores=[])
CORPUS = zipf_corpus(5, 8_000, 40, 300, 6)


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
    """Three parts, which no test stops."""
    return served.start_all(directory, 3)


def texts(number: int, seed: int = 1) -> list[list[int]]:
    """Ends of documents and random tokens."""
    chance = random.Random(seed)
    chosen = []
    for _ in range(number):
        document = chance.choice(CORPUS.documents)
        end = chance.randrange(1, len(document) + 1)
        chosen.append([*document[max(0, end - 20) : end], *chance.choice([[], [chance.randrange(300)]])])
    return chosen


@KINDS
def test_answers_are_those_of_the_whole(kind: type[Any], groups: list[list[str]], whole: Datastore) -> None:
    with connected(kind, groups) as client:
        assert client.connect(PATIENCE).token_count == whole.info().token_count
        for text in texts(25):
            assert client.longest_suffix_match(text) == whole.longest_suffix_match(text)
            assert client.count(text[-3:]) == whole.count(text[-3:])
            assert client.draft(text, max_nodes=20, max_depth=4) == whole.draft(text, max_nodes=20, max_depth=4)
        assert client.draft_batch(texts(30)) == whole.draft_batch(texts(30))
        assert client.draft_batch([]) == []
        with pytest.raises(TokenRangeError):
            client.draft([300])
        with pytest.raises(EmptyContextError):
            client.count([])
        statistics = client.statistics
        assert (statistics.answers, statistics.calls, statistics.refused) == (77, 79, 2)
        assert (statistics.absent_parts, statistics.unproved_trees, statistics.retries) == (0, 0, 0)


@KINDS
def test_streams_of_parts(kind: type[Any], groups: list[list[str]], whole: Datastore) -> None:
    with connected(kind, groups) as client:
        stream = client.stream(max_nodes=9)
        text: list[int] = []
        for new in texts(6):
            text += new
            assert stream.draft(new) == whole.draft(text, max_nodes=9)
        with pytest.raises(TokenRangeError):
            stream.draft([300])
        assert stream.draft([]) == whole.draft(text, max_nodes=9)
        found = stream.evidence([1], NO_TREE, max_nodes=4)
        assert found == client.evidence([*text, 1], NO_TREE, max_nodes=4)
        assert [one.datastore for one in found] == ["served"] * 3
        new = CORPUS.documents[3][:6]
        text += [1, *new]
        few = stream.evidence(new, NO_TREE, max_nodes=16, max_rows=2)
        assert few == client.evidence(text, NO_TREE, max_nodes=16, max_rows=2), "no more than asked for"
        more = stream.evidence_after(text, NO_TREE, max_nodes=16, max_suffix=16, max_rows=2)
        assert more == client.evidence(text, NO_TREE, max_nodes=16, max_rows=36), "as many as a session needs"
        assert more != few
        stream.close()
        with pytest.raises(ServiceUnavailableError):
            stream.draft([1])


@KINDS
def test_what_is_no_tree_is_the_fault_of_the_caller(kind: type[Any], groups: list[list[str]], whole: Datastore) -> None:
    """Of no part; and a stream has not taken the tokens that came with it."""
    no_tree: Any = "no tree"
    with connected(kind, groups) as client:
        stream = client.stream(max_nodes=9)
        text = CORPUS.documents[3][:6]
        assert stream.draft(text) == whole.draft(text, max_nodes=9)
        with pytest.raises(TreeError, match="proposals is str, expected a TokenTree"):
            client.evidence(text, no_tree, max_nodes=4)
        with pytest.raises(TreeError, match="proposals is str, expected a TokenTree"):
            stream.evidence(CORPUS.documents[4][:6], no_tree, max_nodes=4)
        assert stream.draft([]) == whole.draft(text, max_nodes=9)


@KINDS
def test_what_is_no_context_is_refused_by_name(kind: type[Any], groups: list[list[str]]) -> None:
    no_context = cast("list[int]", 5)
    with connected(kind, groups) as client, connected(kind, groups[0]) as part:
        for evidence in (client.evidence, client.stream().evidence, part.evidence, part.stream().evidence):
            refused(ContextTypeError, lambda: evidence(no_context, NO_TREE, max_nodes=4), "context is 0-D")  # noqa: B023
        refused(ContextTypeError, lambda: client.stream().draft(no_context), "context is 0-D")


@KINDS
def test_parts_without_evidence(kind: type[Any], directory: Path) -> None:
    """As of a service: None, after which a caller asks for trees."""
    with contextlib.ExitStack() as stack:
        services = [
            stack.enter_context(running(directory, options=[part], environment={"REST_STORE_KERNEL": "reference"}))
            for part in ("--part=1/2", "--part=2/2")
        ]
        client = stack.enter_context(connected(kind, [[service.target] for service in services]))
        assert client.evidence([1], NO_TREE, max_nodes=4) is None
        assert client.statistics.refused == 0


def replayed(sources: list[object], text: list[int], nodes: int) -> int:
    """How many steps a session takes for the second half of a text."""
    place, steps = len(text) // 2, 0
    with DraftSession([*sources, PromptLookup(), RecycledLogits()], text[:place]) as session:
        while place < len(text):
            path = session.draft(nodes).longest_path(text[place:])
            new = text[place : place + len(path) + 1]
            session.accept(new)
            place, steps = place + len(new), steps + 1
        assert session.statistics.dropped == {}
    return steps


def test_sessions_accept_what_they_do_with_the_whole(groups: list[list[str]], whole: Datastore) -> None:
    """Within half a percent, over texts of another corpus of the same kind; what the parts know is one source."""
    others = zipf_corpus(9, 8_000, 40, 300, 1).documents
    chance, steps = random.Random(3), {"whole": 0, "parts": 0}
    with DatastoreClient(groups, timeout=PATIENCE) as client:
        for _ in range(20):
            text = [token for document in chance.choices(others, k=3) for token in document][:150]
            for name, source in (("whole", whole), ("parts", client)):
                steps[name] += replayed([source], text, 16)
        assert client.statistics.answers == client.statistics.calls >= steps["parts"]
    assert steps["parts"] <= 1.005 * steps["whole"]


def test_a_part_that_is_away_is_left_out_and_counted(served: Serving, directory: Path) -> None:
    groups = served.start_all(directory, 3, "away")
    rest = [Datastore.open(directory, part=part) for part in ("1/3", "3/3")]
    with DatastoreClient(groups, timeout=PATIENCE, retries=0, pause=0, failure_threshold=1) as client:
        client.connect()
        with DraftSession([client, PromptLookup()], texts(1)[0]) as session:
            session.draft(8)
            served.stop("away2of3")
            for text in texts(10):
                assert client.count(text[-2:]) == sum(store.count(text[-2:]) for store in rest)
            assert client.statistics.absent_parts == client.statistics.calls - 2
            parts = client.info().parts
            assert [part.fault is None for part in parts] == [True, False, True]
            assert parts[1].part is not None
            assert (parts[1].part.number, parts[1].targets) == (2, tuple(groups[1]))
            session.draft(8)
            assert session.statistics.dropped == {(0, "part"): 1}
            assert "without a part" in session.statistics.absent[0].reason
            served.start("away2of3", directory, "2/3")
            whole = Datastore.open(directory)
            [token, *_] = (
                token for token in range(300) if whole.count([token]) > sum(one.count([token]) for one in rest)
            )
            until(lambda: client.count([token]) == whole.count([token]))
            until(lambda: (session.draft(8), not session.statistics.absent)[1])


def test_without_any_part_the_error_says_so_and_sessions_go_on(served: Serving, directory: Path) -> None:
    groups = served.start_all(directory, 2, "none")
    with DatastoreClient(groups, timeout=PATIENCE, retries=0) as client:
        client.connect()
        for name in ("none1of2", "none2of2"):
            served.stop(name)
        for call in (lambda: client.draft([1]), lambda: client.count([1]), client.info):
            with pytest.raises(ServiceUnavailableError, match="none1of2"):
                call()
        assert client.statistics.unavailable == 3
        with DraftSession([client, PromptLookup()], [1, 2, 3, 1, 2]) as session:
            assert len(session.draft(4)) > 0
            assert session.statistics.dropped == {(0, "error"): 1}


def test_a_replica_takes_over(served: Serving, directory: Path, whole: Datastore) -> None:
    groups = [[served.start(f"replica{number}{name}", directory, f"{number}/2") for name in "ab"] for number in (1, 2)]
    with DatastoreClient(groups, timeout=PATIENCE) as client:
        client.connect()
        with DraftSession([client], texts(1)[0]) as session:
            session.draft(8)
            served.stop("replica2a")
            session.draft(8)
            assert session.statistics.dropped == {}
        for text in texts(5):
            assert client.draft(text) == whole.draft(text)
        assert client.statistics.failovers >= 1
        assert client.statistics.absent_parts == 0
        assert client.statistics.answers == client.statistics.calls


@KINDS
def test_a_part_that_has_moved_is_found_by_the_parts_file(
    kind: type[Any], served: Serving, directory: Path, whole: Datastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_base, "_READ_AGAIN", 0)
    name, first = f"moved{kind.__name__}", Datastore.open(directory, part="1/2")
    [token, *_] = (token for token in range(300) if whole.count([token]) > first.count([token]))
    groups = served.start_all(directory, 2, name)
    write_parts(tmp_path / "parts.toml", groups)
    with connected(kind, tmp_path / "parts.toml", timeout=PATIENCE, retries=0, pause=0) as client:
        client.connect()
        served.stop(f"{name}2of2")
        assert client.count([token]) == first.count([token])
        (tmp_path / "parts.toml").write_text("[[part]")
        assert client.count([token]) == first.count([token])
        moved = served.start(f"{name}2again", directory, "2/2")
        write_parts(tmp_path / "parts.toml", [groups[0], [moved]])
        assert client.count([token]) == first.count([token])  # this call finds the file
        text = CORPUS.documents[3][:6]
        until(lambda: client.draft(text) == whole.draft(text))
        assert client.count([token]) == whole.count([token])
        assert client.info().parts[1].targets == (moved,)


@KINDS
def test_a_silent_part_costs_no_more_than_the_deadline_of_all(
    kind: type[Any], groups: list[list[str]], directory: Path, served: Serving
) -> None:
    """The others answer all rounds within it."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        targets = [groups[0], [f"127.0.0.1:{silent.getsockname()[1]}"], groups[2]]
        with connected(kind, targets, timeout=20 * LATE, failure_threshold=1, pause=1000) as client:
            others = [Datastore.open(directory, part=part) for part in ("1/3", "3/3")]
            text = texts(1)[0]
            assert client.count(text[-1:]) == sum(store.count(text[-1:]) for store in others)
            assert client.draft(text).match.length == max(store.draft(text).match.length for store in others)
            assert client.statistics.absent_parts == 2


def test_a_part_of_a_new_build_is_left_out_until_all_have_it(served: Serving, tmp_path: Path, directory: Path) -> None:
    """While services reload one after the other, no answer is mixed from both."""
    (tmp_path / "a").mkdir()
    old = write_datastore(tmp_path / "a", CORPUS)
    other = zipf_corpus(6, 4_000, 40, 300, 6)
    groups = served.start_all(old, 2, "new")
    was = [Datastore.open(old, part=f"{number}/2") for number in (1, 2)]
    with (
        DatastoreClient(groups, timeout=PATIENCE, failure_threshold=1000) as client,
        DraftSession([client], texts(1)[0]) as session,
    ):
        session.draft(4)
        assert client.count([1]) == sum(store.count([1]) for store in was)
        (tmp_path / "b").mkdir()
        new = write_datastore(tmp_path / "b", other)
        (tmp_path / "a").rename(tmp_path / "c")
        new.rename(tmp_path / "a")
        served.reload("new1of2")
        token = next(token for token in range(300) if was[1].count([token]))
        assert client.count([token]) == was[1].count([token])
        assert client.statistics.absent_parts == 1
        session.draft(4)
        assert session.statistics.dropped == {(0, "part"): 1}
        served.reload("new2of2")
        whole = Datastore.open(tmp_path / "a")
        token = next(token for token in range(300) if whole.count([token]) > 5)
        with contextlib.suppress(PartError):  # the first call learns that the other part has changed, too
            client.count([token])
        assert client.count([token]) == whole.count([token])
        session.draft(4)
        assert session.statistics.absent == {}


def test_what_is_served_in_parts_is_frozen(groups: list[list[str]]) -> None:
    with DatastoreClient(groups) as client:
        refused(LiveFormatError, lambda: client.add([[1]]), "in parts")
        refused(LiveFormatError, lambda: client.delete(["a"]), "in parts")
    refused(TargetError, lambda: DatastoreClient(groups, remember="chat"), "remember")

    async def write() -> None:
        async with AsyncDatastoreClient(groups) as client:
            with pytest.raises(LiveFormatError):
                await client.add([[1]])
            with pytest.raises(LiveFormatError):
                await client.delete(["a"])

    asyncio.run(write())


def test_a_client_of_parts_is_a_client_and_can_be_pickled(groups: list[list[str]], whole: Datastore) -> None:
    with DatastoreClient(groups, timeout=PATIENCE) as client:
        assert isinstance(client, PartsClient)
        assert "; " in repr(client)
        assert client.vocabulary_size == 300
        for other in (copy.copy(client), pickle.loads(pickle.dumps(client))):
            with other:
                assert other.count([1]) == whole.count([1])
    with DatastoreClient([groups[0]], timeout=PATIENCE) as client, pytest.raises(PartError):
        client.connect()


def test_a_pickled_client_of_parts_reads_the_parts_file_again(
    served: Serving, directory: Path, whole: Datastore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts_base, "_READ_AGAIN", 0)
    groups, file = served.start_all(directory, 2, "pickled"), tmp_path / "parts.toml"
    write_parts(file, groups)
    with DatastoreClient(str(file), timeout=PATIENCE, retries=0, pause=0) as client:
        other = pickle.loads(pickle.dumps(client))
    with other:
        other.connect()
        served.stop("pickled2of2")
        moved = served.start("pickled2again", directory, "2/2")
        write_parts(file, [groups[0], [moved]])
        other.count([1])  # this call finds the file
        assert other.info().parts[1].targets == (moved,)
        assert other.count([1]) == whole.count([1])


@pytest.mark.parametrize(("kind", "base"), [(PartsClient, DatastoreClient), (AsyncPartsClient, AsyncDatastoreClient)])
def test_no_method_that_asks_one_service_is_inherited(kind: type[Any], base: type[Any]) -> None:
    public = {name for name in vars(base) if not name.startswith("_")} - {"before_close"}
    own = {name for parent in kind.__mro__[: kind.__mro__.index(base)] for name in vars(parent)}
    assert public <= own
