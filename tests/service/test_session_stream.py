"""Sessions that a service runs for a client: the trees of sessions in process, and which sessions it runs."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import TargetError
from rest_store.service.client.async_client import AsyncDatastoreClient
from rest_store.service.client.client import DatastoreClient
from rest_store.v1 import datastore_pb2 as pb
from tests.shared.services import PATIENCE, Service, running
from tests.shared.sessions import Relay, Request, is_run_by_the_service, sessions_of, without_sessions
from tests.shared.strategies import Corpus, corpus_of_phrases, identity, refused, write_datastore

CHANCE = random.Random(11)
TEXT = 3000  # most tokens of a text of the service
pytestmark = pytest.mark.usefixtures("streams")


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("datastores")
    for name in ("one", "two"):
        (root / name).mkdir()
    return {
        "one": write_datastore(root / "one", corpus_of_phrases(CHANCE, 6, 30)),
        "two": write_datastore(root / "two", corpus_of_phrases(CHANCE, 4, 8)),
    }


@pytest.fixture(scope="module")
def stores(directories: dict[str, Path]) -> list[Datastore]:
    return [Datastore.open(path) for path in directories.values()]


@pytest.fixture(scope="module")
def service(directories: dict[str, Path]) -> Iterator[Service]:
    options = ["--metrics=127.0.0.1:0", f"--max-session-tokens={TEXT}"]
    with running(*directories.values(), unix=True, options=options) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[DatastoreClient]:
    with DatastoreClient(service.unix, timeout=PATIENCE) as client:
        yield client


def some_text(seed: int, length: int) -> list[int]:
    """A text that repeats itself at times."""
    chance = random.Random(seed)
    pieces = [[chance.randrange(7) for _ in range(chance.randrange(2, 12))] for _ in range(6)]
    tokens: list[int] = []
    while len(tokens) < length:
        tokens += chance.choice(pieces)
    return tokens[:length]


def replayed(
    sources: Sequence[object],
    text: list[int],
    *,
    start: int = 20,
    budgets: Sequence[int] = (8,),
    costs: Sequence[Any] = (None,),
    shapes: Sequence[str] = ("tree",),
    scores: Sequence[float] = (0.0,),
    is_remote: bool | None = None,
    **options: Any,
) -> tuple[list[TokenTree], DraftSession]:
    """The trees along `text`, for which the model found likely what comes and one other token, and their session.

    Budgets, costs, shapes and least scores take turns. With `is_remote`, checks whether a service runs the session.
    """
    trees = []
    top_k = [[text[place], (text[place] + 1) % 300] for place in range(1, start)]
    prompt_top_k = np.reshape([*top_k, [-1, -1]][:start], (-1, 2))
    with DraftSession(sources, text[:start], prompt_top_k=prompt_top_k, **options) as session:
        while start < len(text):
            turn = len(trees)
            shape, least = shapes[turn % len(shapes)], scores[turn % len(scores)]
            tree = session.draft(budgets[turn % len(budgets)], costs[turn % len(costs)], shape=shape, min_score=least)
            trees.append(tree)
            end = min(start + len(tree.longest_path(text[start:])) + 1, len(text))
            rows = [[text[place + 1], 7] if place + 1 < end else [-1, -1] for place in range(start, end)]
            of_nodes = [[5, int(token)] for token in [9, *tree.tokens]] if turn % 3 else None
            session.accept(text[start:end], rows, node_top_k=of_nodes)
            start = end
            if is_remote is not None:
                assert is_run_by_the_service(session) is is_remote
        trees.append(session.draft(1))  # with which the last tokens travel
        assert session.statistics.dropped == {}
    return trees, session


def require_same(through: Sequence[TokenTree], here: Sequence[TokenTree], origins: Sequence[int]) -> None:
    """The same trees; `origins` has, for each source of those in process, its place among those through a service."""
    for one, other in zip(through, here, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.parents.tolist() == other.parents.tolist()
        assert one.depths.tolist() == other.depths.tolist()
        assert one.scores is not None
        assert other.scores is not None
        assert one.scores.tolist() == other.scores.tolist()
        assert one.origins is not None
        assert other.origins is not None
        expected = np.zeros_like(other.origins)
        for bit, place in enumerate(origins):
            expected |= (other.origins >> bit & 1) << place
        assert one.origins.tolist() == expected.tolist()


# --- The trees --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize(("lookup", "recycled"), [(True, True), (True, False), (False, True), (False, False)])
def test_trees_and_what_is_learnt_are_those_in_process(
    client: DatastoreClient, stores: list[Datastore], lookup: bool, recycled: bool, learn: bool
) -> None:
    def with_local(sources: Sequence[object]) -> list[object]:
        return [*sources, *([PromptLookup()] if lookup else []), *([RecycledLogits()] if recycled else [])]

    text = some_text(3, 150)
    here, in_process = replayed(with_local(stores), text, learn=learn, budgets=(8, 64, 1))
    through, session = replayed(with_local([client]), text, learn=learn, budgets=(8, 64, 1), is_remote=True)
    require_same(through, here, [0, 0, 1, 2])
    assert any(len(tree) > 8 for tree in here)
    assert session.statistics == in_process.statistics
    assert session.calibration.weights == in_process.calibration.weights
    assert any(session.calibration.weights) is learn


@settings(max_examples=20)
@given(data=st.data())
def test_any_text_and_any_steps_give_the_trees_in_process(
    client: DatastoreClient, service: Service, stores: list[Datastore], data: st.DataObject
) -> None:
    text = data.draw(st.lists(st.integers(0, 6), min_size=2, max_size=12)) * data.draw(st.integers(1, 5))
    budgets = data.draw(st.lists(st.sampled_from([0, 1, 3, 16, 64, 1024]), min_size=1, max_size=4))
    costs = data.draw(
        st.lists(st.sampled_from([None, [1.0, 1.1, 1.2], 1 + 0.02 * np.arange(65), lambda width: width]), min_size=1)
    )
    options = {
        "start": data.draw(st.integers(0, 1)),
        "budgets": budgets,
        "costs": costs,
        "shapes": data.draw(st.lists(st.sampled_from(["tree", "chain"]), min_size=1, max_size=3)),
        "scores": data.draw(st.lists(st.sampled_from([0.0, 0.05, 0.3]), min_size=1, max_size=3)),
        "max_suffix": data.draw(st.sampled_from([1, 4, 64])),
    }
    several = data.draw(st.booleans())
    with DatastoreClient(service.unix, datastore="two", timeout=PATIENCE) as one:
        asked = client if several else one
        through, _ = replayed([RecycledLogits(), asked, PromptLookup()], text, is_remote=True, **options)
    here, _ = replayed([*(stores if several else stores[1:]), PromptLookup(), RecycledLogits()], text, **options)
    require_same(through, here, [*([1, 1] if several else [1]), 2, 0])


def test_steps_without_a_draft_and_drafts_without_a_step(client: DatastoreClient, stores: list[Datastore]) -> None:
    """The model says what it found likely after the text, with a tree or without one."""

    def trees(*sources: object) -> list[TokenTree]:
        found = []
        with DraftSession([*sources, RecycledLogits()], some_text(1, 30)) as session:
            session.accept([1, 2], node_top_k=[[3, 6]])
            session.accept([3], [[4, 5]])
            for _ in range(2):
                found.append(session.draft(8))
            session.accept([4], node_top_k=[[2, 3]] * (1 + len(found[-1])))
            session.accept([5], [[1, 0]], node_top_k=[[5, 8]])
            found += [session.draft(8), session.draft(0)]
            session.accept([int(found[-2].tokens[0])], [[6, 3]], node_top_k=[[9, 7]])
            found.append(session.draft(0, shape="chain"))
            session.accept([4], node_top_k=[[8, 5]])
            for token in (1, 2, 3, 4, 5):  # after which something of all this is known
                session.accept([token])
                found.append(session.draft(16))
            assert session.statistics.dropped == {}
        return found

    require_same(trees(client), trees(*stores), [0, 0, 1])


def test_an_empty_text_grows(client: DatastoreClient, stores: list[Datastore]) -> None:
    def trees(*sources: object) -> list[TokenTree]:
        with DraftSession(sources) as session:
            found = [session.draft(8)]
            for token in (1, 2, 3):
                session.accept([token])
                found.append(session.draft(8))
            return found

    require_same(trees(client), trees(*stores), [0, 0])


def test_tokens_that_datastores_do_not_know_are_merged_here(client: DatastoreClient) -> None:
    """A model may have more tokens than its tokenizer."""
    with DraftSession([client, PromptLookup()], some_text(2, 40)) as session:
        assert len(session.draft(8)) > 0
        assert is_run_by_the_service(session)
        session.accept([5000, *some_text(2, 20)])
        assert len(session.draft(8)) > 0
        assert not is_run_by_the_service(session)
        assert session.statistics.dropped == {}


def test_recycled_logits_are_shared_by_the_sessions_that_share_them(
    client: DatastoreClient, stores: list[Datastore]
) -> None:
    text = some_text(4, 60)
    for sources in ([client], stores):
        shared, trees = RecycledLogits(), []
        for recycled in (shared, shared, RecycledLogits()):
            found, _ = replayed([*sources, recycled], text, budgets=(4,))
            trees.append([tree.tokens.tolist() for tree in found])
        assert trees[0] == trees[2]
        assert trees[1] != trees[2], "it knows what the first generation found likely"


def test_a_calibration_that_is_shared_here_is_carried_on(client: DatastoreClient, stores: list[Datastore]) -> None:
    def weights(*sources: object) -> list[list[float]]:
        calibration, found = Calibration.default(), []
        for seed in (5, 6):
            replayed([*sources, PromptLookup()], some_text(seed, 80), calibration=calibration)
            found.append(calibration.weights)
        return found

    assert weights(client) == weights(*stores)


def test_clients_that_give_a_name_learn_together(service: Service) -> None:
    def client(**options: Any) -> DatastoreClient:
        return DatastoreClient(service.unix, timeout=PATIENCE, **options)

    def first_weights(client: DatastoreClient) -> list[float]:
        with DraftSession([client], [1, 2]) as session:
            session.draft(1)
            return session.calibration.weights

    with client(shared_calibration="model") as one, client(shared_calibration="model") as other, client() as alone:
        _, session = replayed([one, PromptLookup()], some_text(7, 80))
        learnt = session.calibration.weights
        assert any(learnt)
        assert first_weights(other) == learnt
        assert first_weights(alone) == [0] * 5
    for name in ("", "x" * 257, 3, "\ud800"):
        refused(TargetError, lambda name=name: client(shared_calibration=name), "shared_calibration")


@pytest.mark.parametrize("option", ["send_text", "shared_calibration"])
def test_the_client_for_asyncio_takes_no_options_of_sessions(option: str) -> None:
    with pytest.raises(TypeError, match=option):
        AsyncDatastoreClient("127.0.0.1:1", **{option: None})


def test_a_step_is_one_small_message_and_one_answer(client: DatastoreClient, service: Service) -> None:
    with Relay(service.unix) as relay, DatastoreClient(relay.target, timeout=PATIENCE) as through:
        text = some_text(8, 2500)
        replayed([through, PromptLookup()], text, start=2400, costs=(1 + 0.01 * np.arange(9),))
        messages = [Request.FromString(data) for name, data in relay.received if name == "DraftSession"]
        assert relay.methods() == {"Describe", "DraftSession"}
        assert through.statistics.streams_opened == 1
    ahead, first, *rest = messages
    assert list(ahead.open.tokens) == text[:2400]
    assert not ahead.HasField("draft")
    assert first.draft.HasField("costs")
    assert relay.tokens() == text
    assert max(len(one.SerializeToString()) for one in (first, *rest)) < 300
    assert not any(one.HasField("open") or one.draft.HasField("costs") for one in rest[:-1])


# --- Where it is run --------------------------------------------------------------------------------------------------


def test_without_the_text_only_the_end_of_the_context_is_sent(service: Service, stores: list[Datastore]) -> None:
    text = some_text(9, 400)
    text[:300] = [200 + place % 90 for place in range(300)]  # tokens of their own
    with (
        Relay(service.unix) as relay,
        DatastoreClient(relay.target, timeout=PATIENCE, send_text=False) as private,
    ):
        through, _ = replayed([private, PromptLookup()], text, start=380, is_remote=False)
        assert "DraftSession" not in relay.methods()
        sent = relay.tokens()
        asked = [pb.DraftStreamRequest.FromString(data) for name, data in relay.received if name == "DraftStream"]
    assert through
    assert max(len(one.proposals.tokens) for one in asked) == 2, "as the docs say"
    assert not set(sent) & set(text[: 380 - 64]) - set(text[380 - 64 :]), "of what is further back than 64 tokens"
    assert max(map(len, through)) > 0


def test_a_text_that_is_too_long_for_the_service_is_merged_here(service: Service, stores: list[Datastore]) -> None:
    with Relay(service.unix) as relay, DatastoreClient(relay.target, timeout=PATIENCE) as client:
        text = some_text(10, TEXT + 40)
        trees, session = replayed([client, PromptLookup()], text, start=TEXT - 20)
        assert not is_run_by_the_service(session), "it has grown too long"
        assert relay.methods() > {"DraftSession"}
        assert all(len(tree) > 0 for tree in trees)
        relay.received.clear()
        _, session = replayed([client, PromptLookup()], text, start=TEXT + 10, is_remote=False)
        assert "DraftSession" not in relay.methods(), "it is not even tried"
    assert sessions_of(service)[0] == 0


def other_calibration(name: str, answer: bytes) -> bytes:
    """The answers of a service whose calibration is another one."""
    if name != "Describe":
        return answer
    described = pb.DescribeResponse.FromString(answer)
    described.calibration = "sha256:" + "0" * 64
    return described.SerializeToString()


@pytest.mark.parametrize("changed", [without_sessions, other_calibration])
def test_a_service_that_cannot_run_this_session_is_merged_here(service: Service, changed: Any) -> None:
    with Relay(service.unix, changed) as relay, DatastoreClient(relay.target, timeout=PATIENCE) as client:
        trees, _ = replayed([client, PromptLookup()], some_text(11, 60), is_remote=False)
        assert "DraftSession" not in relay.methods()
        assert sum(map(len, trees)) > 0
        assert client.statistics.refused == client.statistics.broken == 0


def test_an_own_calibration_is_weighed_here(client: DatastoreClient, stores: list[Datastore]) -> None:
    """Trees that the service does not have."""
    features = np.random.default_rng(0).random((400, native_kernel().FEATURES), np.float32)
    own = Calibration.fit(features, np.tile(np.uint8([1, 0]), 200), np.arange(2, 402, 2, dtype=np.uint32), trees=2)
    _, session = replayed([client, PromptLookup()], some_text(12, 60), calibration=own, is_remote=False)
    assert session.calibration is own


def test_sources_beside_the_service_are_merged_here(
    client: DatastoreClient, service: Service, stores: list[Datastore]
) -> None:
    with DatastoreClient(service.target, timeout=PATIENCE) as other:
        for sources in ([client, stores[0]], [client, other], [other, client, PromptLookup()]):
            trees, _ = replayed(sources, some_text(13, 60), is_remote=False)
            assert sum(map(len, trees)) > 0


def test_a_service_with_another_tokenizer_is_left_out(client: DatastoreClient, service: Service) -> None:
    """At once if it is known, after the first step else; what is here drafts on."""
    with DatastoreClient(service.target, timeout=PATIENCE) as unknown:
        client.connect()
        for asked in (client, unknown):
            text = some_text(14, 60)
            with DraftSession([asked, PromptLookup()], text, tokenizer=identity(301)) as session:
                for _ in range(3):
                    tree = session.draft(8)
                    assert tree.origins is not None
                    assert set(tree.origins.tolist()) == {2}
                    session.accept(text[:2])
                assert session.statistics.dropped == {(0, "tokenizer"): 3}
                assert "301" in session.statistics.absent[0].reason
                assert not is_run_by_the_service(session)
    assert sessions_of(service)[0] == 0


def test_a_client_of_several_tokenizers_names_what_differs(tmp_path: Path, directories: dict[str, Path]) -> None:
    other = write_datastore(tmp_path, Corpus(301, [[[1, 2, 3]]]))
    with running(directories["one"], f"other={other}") as service:
        with DatastoreClient(service.target, timeout=PATIENCE) as client, DraftSession([client], [1, 2]) as session:
            assert len(session.draft(8)) == 0
            assert session.statistics.dropped == {(0, "tokenizer"): 1}
        with (
            DatastoreClient(service.target, tokenizer=identity(301), timeout=PATIENCE) as client,
            DraftSession([client], [1, 2]) as session,
        ):
            assert session.draft(8).tokens.tolist() == [3]
            assert is_run_by_the_service(session)
