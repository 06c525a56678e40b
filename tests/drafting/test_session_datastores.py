"""Sessions over datastores estimate alike for any shards, and survive files that change."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from build_index.memory_plan import resident_bytes
from rest_store import _kernel  # type: ignore[attr-defined]
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.strategies import Corpus, identity, open_datastore

FEATURES = int(_kernel.FEATURES)
# Columns of the table of candidates: the best frozen datastore, the second, and the best live one.
BLOCK = 16
RECYCLED = 9  # columns at the end, of recycled logits
BEST, SECOND, LIVE, END = (FEATURES - RECYCLED - count * BLOCK for count in (3, 2, 1, 0))
TIMES = END + 4  # that what is likely after the last token was seen
SHARE = 4  # in a block: the share of the longest match's occurrences that a candidate follows


def test_estimates_do_not_depend_on_the_number_of_shards(
    tmp_path: Path, calibration: Calibration
) -> None:
    """The share of a token among 1030 continuations is the same in one shard and in many."""
    usual = [[1, 2]] * 1000
    rare = [[[1, 3]]] * 30
    scores = []
    for name, shards in (("one", [usual + [[1, 3]] * 30]), ("many", [usual, *rare])):
        (tmp_path / name).mkdir()
        with DraftSession(
            [open_datastore(tmp_path / name, Corpus(300, shards))], [1], calibration=calibration
        ) as session:
            tree = session.draft(16)
            assert tree.scores is not None
            scores.append(dict(zip(tree.tokens.tolist(), tree.scores.tolist(), strict=True)))
    assert scores[1][2] == pytest.approx(scores[0][2], rel=0.1)
    assert scores[1][3] < 2 * scores[0][3]


def test_a_datastore_truncated_underneath_is_left_out(
    tmp_path: Path, calibration: Calibration
) -> None:
    rng = np.random.default_rng(0)
    store = open_datastore(tmp_path, Corpus(300, [[rng.integers(0, 300, 60_000).tolist()]]))
    with DraftSession([PromptLookup(), store], [1, 2, 3, 1, 2], calibration=calibration) as session:
        os.truncate(next(tmp_path.glob("*.tokens")), 4096)
        tree = session.draft()
        assert session.statistics.omissions == {(str(tmp_path), "error"): 1}
        assert tree.origins is not None
        assert set(tree.origins.tolist()) == {1}
        session.draft()
        assert session.statistics.omissions == {(str(tmp_path), "error"): 2}


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads resident memory from Linux's /proc"
)
@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer keeps what was freed"
)
def test_what_is_cached_of_many_shards_has_a_bound(tmp_path: Path) -> None:
    """Each cached short suffix has an interval in each shard, and 64 MB are the bound."""
    rng = np.random.default_rng(0)
    store = open_datastore(
        tmp_path, Corpus(300, [[rng.integers(0, 300, 40).tolist()] for _ in range(1000)])
    )
    with DraftSession([store], [1]) as session:
        session.draft()
        before = resident_bytes()
        for token in rng.integers(0, 300, 3000):
            session.accept([token])
            session.draft()
    assert resident_bytes() - before < 100 << 20


@pytest.fixture
def frozen(tmp_path: Path) -> Datastore:
    (tmp_path / "frozen").mkdir()
    return open_datastore(
        tmp_path / "frozen", Corpus(300, [[[1, 2, 3, 4, 5]] * 3 + [[1, 2, 9, 9]]])
    )


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveDatastore]:
    with LiveDatastore.open(tmp_path / "live", tokenizer=identity(300)) as live:
        live.add([[1, 2, 3, 4, 5]] * 3 + [[1, 2, 9, 9]])
        yield live


def recorded(*sources: object, text: Sequence[int] = (1, 2)) -> npt.NDArray[np.float32]:
    """Features of the candidates after a text, in the order of the fixed rule."""
    with DraftSession(sources, text, calibration=Calibration(bytes(4))) as session:
        session.record_candidates(True)
        session.draft(1)
        session.accept([3])
        return np.frombuffer(session.recorded_candidates()[0], np.float32).reshape(-1, FEATURES)


def test_a_live_datastore_has_columns_of_its_own(frozen: Datastore, live: LiveDatastore) -> None:
    alone = recorded(frozen)
    beside = recorded(live, frozen)
    assert alone[:, BEST + SHARE].tolist() == beside[:, BEST + SHARE].tolist() == [0.75, 0.25]
    assert (alone[:, LIVE:END] == -1).all()
    assert (beside[:, SECOND:LIVE] == -1).all()
    assert beside[:, LIVE:END].tolist() == beside[:, BEST:SECOND].tolist()
    assert (recorded(live)[:, BEST:LIVE] == -1).all()


def test_recycled_logits_weigh_all_their_times() -> None:
    logits = RecycledLogits()
    for likely in ([3, 4], [3, 4], [5, 3]):
        DraftSession([logits]).accept([1, 2], [[-1, -1], likely])
    rows = recorded(logits, text=[9, 2])[:, END:]
    whole = 1 + 0.8 + 0.64  # of a token that is the likeliest each time
    shares = [(0.64 + 0.8 + 0.25) / whole, 1 / whole, (0.64 + 0.8) / 4 / whole]
    assert rows[:, 0] == pytest.approx(shares, abs=1e-3)  # of 3, 5 and 4 after the last token
    assert (rows[:, 1:4] == 0).all()  # after the last two, three and four, nothing is known
    assert rows[:, 4:8].tolist() == [[3, 0, 0, 0]] * 3


def test_rows_of_text_and_of_nodes_count_once() -> None:
    logits = RecycledLogits()
    with DraftSession([PromptLookup(), logits], [1, 2, 3, 1]) as session:
        tree = session.draft(1)
        assert tree.tokens.tolist() == [2]
        # After 1, after 2, after 7.
        session.accept([2, 7], [[4, 5], [6, 5], [8, 5]], node_top_k=[[4, 5], [6, 5]])
    for token, likely in ((1, 4), (2, 6), (7, 8)):
        assert DraftSession([logits], [9, token]).draft(4).tokens[0] == likely
        assert (recorded(logits, text=[9, token])[:, TIMES] == 1).all()


def reading(column: int) -> Calibration:
    """A calibration that reads one column: candidates with more than a half there are probable."""
    features = np.zeros((400, FEATURES), np.float32)
    features[::2, column] = 1
    return Calibration.fit(
        features,
        (features[:, column] > 0).astype(np.uint8),
        np.arange(1, 401, dtype=np.uint32),
        trees=9,
    )


def scores(source: object, calibration: Calibration) -> dict[int, float]:
    return scores_of([source], calibration)


def scores_of(sources: Sequence[object], calibration: Calibration) -> dict[int, float]:
    with DraftSession(sources, [1, 2], calibration=calibration) as session:
        tree = session.draft(2)
    assert tree.scores is not None
    return dict(zip(tree.tokens.tolist(), tree.scores.tolist(), strict=True))


def test_steps_with_a_live_datastore_have_trees_of_their_own(
    frozen: Datastore, live: LiveDatastore
) -> None:
    usual = reading(BEST + SHARE)
    of_live = reading(LIVE + SHARE)
    both = Calibration(usual.native.gbdt, live_gbdt=of_live.native.gbdt)
    assert scores(frozen, both) == scores(frozen, usual)
    assert scores(live, both) == scores(frozen, usual)
    crossed = Calibration(of_live.native.gbdt, live_gbdt=usual.native.gbdt)
    assert scores(frozen, crossed) == scores(frozen, of_live) != scores(frozen, usual)
    assert scores(live, crossed) == scores(frozen, of_live)


def test_steps_without_recycled_logits_have_trees_of_their_own(
    frozen: Datastore, live: LiveDatastore
) -> None:
    of_best, of_live = reading(BEST + SHARE).native.gbdt, reading(LIVE + SHARE).native.gbdt
    of_text = Calibration(of_live, live_gbdt=of_best, text_gbdt=of_best)
    assert scores(frozen, of_text) == scores(frozen, Calibration(of_best))
    live_text = Calibration(of_best, live_gbdt=of_best, text_gbdt=of_live)
    assert scores(live, live_text) == scores(frozen, Calibration(of_best))

    logits = RecycledLogits()
    for kind, store in ((of_text, frozen), (live_text, live)):
        usual = Calibration(kind.native.gbdt, live_gbdt=kind.native.live_gbdt)
        unlearnt = RecycledLogits()
        assert scores_of([store, unlearnt], kind) == scores(store, kind)
        DraftSession([logits], [7]).accept([8], np.array([[9], [9]], np.int32))
        assert scores_of([store, logits], kind) == scores_of([store, logits], usual)
        assert scores_of([store, logits], kind) != scores_of([store, unlearnt], kind)


def test_without_trees_of_its_own_a_live_datastore_counts_as_any_other(
    frozen: Datastore, live: LiveDatastore
) -> None:
    assert scores(live, reading(BEST + SHARE)) == scores(frozen, reading(BEST + SHARE))
