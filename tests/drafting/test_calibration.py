"""Calibrations: fits recover the probabilities behind the labels.

Damaged files and bad numbers are refused.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from rest_store import _kernel  # type: ignore[attr-defined]
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup
from rest_store.errors import DataFileError
from tests.shared.strategies import refused

FEATURES = int(_kernel.FEATURES)
Rows = tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8], npt.NDArray[np.uint32]]


def places(seed: int, count: int) -> Rows:
    """Places of four candidates.

    Feature 7 of a candidate is its log odds against the others and "none of these".
    """
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(count, 4, FEATURES)).astype(np.float32)
    odds = np.exp(features[:, :, 7])
    probabilities = odds / (1 + odds.sum(axis=1, keepdims=True))
    labels = np.zeros((count, 4), np.uint8)
    draws = rng.random(count)[:, None] - np.cumsum(probabilities, axis=1)
    right = (draws < 0).argmax(axis=1)
    rows = np.flatnonzero((draws < 0).any(axis=1))
    labels[rows, right[rows]] = 1
    return (
        features.reshape(-1, FEATURES),
        labels.ravel(),
        np.arange(4, 4 * count + 1, 4, dtype=np.uint32),
    )


def trees_of(calibration: Calibration) -> npt.NDArray[np.void]:
    kind = np.dtype([("features", "<u2", 6), ("thresholds", "<f4", 6), ("leaves", "<f4", 64)])
    return np.frombuffer(calibration.native.gbdt[4:], kind)


def log_odds(
    calibration: Calibration, features: npt.NDArray[np.float32]
) -> npt.NDArray[np.float64]:
    total = np.full(
        len(features), np.frombuffer(calibration.native.gbdt[:4], np.float32)[0], np.float64
    )
    for tree in trees_of(calibration):
        above = features[:, tree["features"]] > tree["thresholds"]
        total += tree["leaves"][above @ (1 << np.arange(6))]
    return total


def test_fitting_recovers_the_probabilities_behind_the_labels() -> None:
    calibration = Calibration.fit(*places(1, 8_000), trees=60)
    features, labels, _ = places(2, 8_000)
    odds = np.exp(log_odds(calibration, features)).reshape(-1, 4)
    fitted = odds / (1 + odds.sum(axis=1, keepdims=True))
    true = np.exp(features[:, 7]).reshape(-1, 4)
    true = true / (1 + true.sum(axis=1, keepdims=True))
    assert np.corrcoef(fitted.ravel(), true.ravel())[0, 1] > 0.95
    # Calibrated: of all candidates with about the same probability, that share is right.
    bins = (fitted.ravel() * 10).astype(int)
    for one in range(6):
        chosen = bins == one
        assert abs(fitted.ravel()[chosen].mean() - labels[chosen].mean()) < 0.05


def test_the_same_rows_give_the_same_trees() -> None:
    rows = places(3, 500)
    assert (
        Calibration.fit(*rows, trees=5).native.gbdt == Calibration.fit(*rows, trees=5).native.gbdt
    )
    assert (
        Calibration.fit(*rows, trees=5).native.gbdt
        != Calibration.fit(*places(4, 500), trees=5).native.gbdt
    )


# numpy 1 wraps the number, and the kernel refuses what comes out.
@pytest.mark.filterwarnings("ignore:NumPy will stop allowing conversion:DeprecationWarning")
def test_rows_that_do_not_belong_together_are_refused() -> None:
    features, labels, ends = places(6, 10)
    refused(DataFileError, lambda: Calibration.fit(features[:, 1:], labels, ends), str(FEATURES))
    refused(DataFileError, lambda: Calibration.fit(features[1:], labels, ends))
    refused(DataFileError, lambda: Calibration.fit(features, labels, ends[:-1]))
    refused(DataFileError, lambda: Calibration.fit(features, labels, ends[::-1]))
    for wrong, fragment in (
        ([10**9, 40], "ascend"),
        ([20, 20, 40], "ascend"),
        ([40, 4, 40], "ascend"),
    ):
        refused(
            DataFileError, lambda wrong=wrong: Calibration.fit(features, labels, wrong), fragment
        )  # type: ignore[misc]
    high = labels * 200
    refused(DataFileError, lambda: Calibration.fit(features, high, ends), "label")
    several = np.ones_like(labels)
    refused(DataFileError, lambda: Calibration.fit(features, several, ends), "several right")
    for value in (np.nan, np.inf):
        holed = features.copy()
        holed[17, 3] = value
        refused(DataFileError, lambda holed=holed: Calibration.fit(holed, labels, ends), "finite")
    refused(DataFileError, lambda: Calibration.fit(features, labels, [-1, 40]))
    for options in ({"rate": float("nan")}, {"row_share": 0.0}, {"row_share": 1.5}, {"trees": -1}):
        refused(
            DataFileError,
            lambda options=options: Calibration.fit(features, labels, ends, **options),
        )  # type: ignore[misc]
    refused(DataFileError, lambda: Calibration(b"gbdt"))
    refused(DataFileError, lambda: Calibration(bytes(4), [0.0]))


def gbdt(base: float = 0.0, leaf: float = 0.0, threshold: float = 0.0) -> bytes:
    tree = np.zeros(
        1, np.dtype([("features", "<u2", 6), ("thresholds", "<f4", 6), ("leaves", "<f4", 64)])
    )
    tree["leaves"], tree["thresholds"] = leaf, threshold
    return np.float32(base).tobytes() + tree.tobytes()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    Calibration(gbdt(1, 1, 1))
    for one in (gbdt(base=bad), gbdt(leaf=bad), gbdt(threshold=bad)):
        refused(DataFileError, lambda one=one: Calibration(one), "finite")  # type: ignore[misc]
        refused(DataFileError, lambda one=one: Calibration(gbdt(), live_gbdt=one), "finite")
        refused(DataFileError, lambda one=one: Calibration(gbdt(), text_gbdt=one), "finite")
    refused(DataFileError, lambda: Calibration(gbdt(leaf=3e38)), "finite")  # sums would not be
    for place in range(5):
        weights = [0.0] * 5
        weights[place] = bad
        refused(DataFileError, lambda weights=weights: Calibration(gbdt(), weights), "finite")


def evaluated(
    calibration: Calibration, features: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """Log odds as the kernel has them.

    By all instructions of this machine, and in both widths, the same bits.
    """
    ways = {
        calibration.native.log_odds(features, is_wide, instructions)
        for is_wide in (False, True)
        for instructions in _kernel.INSTRUCTIONS
    }
    assert len(ways) == 1
    return np.frombuffer(ways.pop(), np.float32)


def random_gbdt(seed: int, count: int, scale: float) -> bytes:
    """Trees with thresholds that many share, and leaves of very different sizes."""
    rng = np.random.default_rng(seed)
    trees = np.zeros(
        count, np.dtype([("features", "<u2", 6), ("thresholds", "<f4", 6), ("leaves", "<f4", 64)])
    )
    trees["features"] = rng.integers(FEATURES, size=(count, 6))
    trees["thresholds"] = rng.integers(-5, 5, size=(count, 6)) / 4
    trees["leaves"] = rng.normal(size=(count, 64)) * scale / np.arange(1, count + 1)[:, None]
    return np.float32(rng.normal()).tobytes() + trees.tobytes()


@pytest.mark.parametrize("scale", [0.0, 1e-38, 0.3, 1.0, 1e25])
@pytest.mark.parametrize(("count", "rows"), [(0, 5), (1, 1), (3, 16), (40, 17), (700, 100)])
def test_trees_are_evaluated_to_the_same_bits_everywhere(
    count: int, rows: int, scale: float
) -> None:
    """Leaves are 16-bit multiples of the least power of two that holds the greatest of them."""
    calibration = Calibration(random_gbdt(count, count, scale))
    features = (
        np.random.default_rng(rows).integers(-6, 6, size=(rows, FEATURES)).astype(np.float32) / 4
    )
    expected = log_odds(calibration, features)
    greatest = np.abs(trees_of(calibration)["leaves"]).max(initial=0)
    tolerance = count * greatest / 2**15 + np.abs(expected).max() * 1e-6
    assert np.abs(evaluated(calibration, features) - expected).max() <= tolerance


def test_sums_of_very_many_trees_do_not_overflow() -> None:
    """Sums of so many leaves would overflow if leaves were rounded to 16 bits alone."""
    one = gbdt(leaf=1.5)
    calibration = Calibration(one[:4] + 70_000 * one[4:])
    assert evaluated(calibration, np.zeros((1, FEATURES), np.float32)) == pytest.approx(
        105_000, rel=1e-4
    )


def test_the_default_is_evaluated_as_its_file_has_it() -> None:
    default = Calibration.default()
    features = np.random.default_rng(1).choice(
        trees_of(default)["thresholds"].ravel(), size=(500, FEATURES)
    )
    errors = evaluated(default, features) - log_odds(default, features)
    assert np.abs(errors).max() < 0.01  # of log odds


def test_copies_of_the_default_learn_on_their_own() -> None:
    one, other = Calibration.default(), Calibration.default()
    one.native.weights = [0.5] * 5
    one.provenance["recordings"] = "changed"
    assert other.weights == Calibration.default().weights == [0.0] * 5
    assert other.provenance == Calibration.default().provenance != one.provenance


def test_constant_features_can_be_fitted() -> None:
    features, labels, ends = places(5, 300)
    fitted = Calibration.fit(np.zeros_like(features), labels, ends, trees=3)
    assert np.isfinite(log_odds(fitted, features)).all()


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    refused(DataFileError, lambda: Calibration.default().save(tmp_path / "folder"), "not written")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_great_log_odds_do_not_overflow() -> None:
    with DraftSession(
        [PromptLookup()], [1, 2, 3, 1, 2, 4, 1, 2], calibration=Calibration(gbdt(base=300))
    ) as session:
        tree = session.draft(16)
        assert tree.scores is not None
        assert len(tree) > 2
        assert np.isfinite(tree.scores).all()
        session.accept([3])
        assert np.isfinite(session.calibration.weights).all()


def test_a_saved_calibration_is_read_back_whole(tmp_path: Path) -> None:
    plain = Calibration.fit(*places(7, 500), trees=4, provenance={"recordings": "made up"})
    fitted = Calibration(
        plain.native.gbdt,
        [0.5, -0.25, 0.0, 1.0, -1.0],
        plain.provenance,
        live_gbdt=gbdt(leaf=1),
        text_gbdt=gbdt(leaf=2) + gbdt(leaf=3)[4:],
    )
    fitted.save(tmp_path / "one")
    read = Calibration.load(tmp_path / "one")
    for one in (read, pickle.loads(pickle.dumps(fitted)), fitted.copy()):
        assert one.native.gbdt == plain.native.gbdt
        assert one.native.live_gbdt == gbdt(leaf=1)
        assert one.native.text_gbdt == gbdt(leaf=2) + gbdt(leaf=3)[4:]
    assert read.provenance == {"recordings": "made up"}
    assert read.weights == fitted.weights
    plain.save(tmp_path / "one")
    assert Calibration.load(tmp_path / "one").native.live_gbdt == b""
    plain.save(tmp_path / ("x" * 255))  # as long as the system allows
    assert len(list(tmp_path.iterdir())) == 2, "nothing temporary is left"


def test_a_file_without_trees_for_steps_without_logits_is_read(tmp_path: Path) -> None:
    Calibration(gbdt(), live_gbdt=gbdt(leaf=1)).save(tmp_path / "new")
    content = (tmp_path / "new").read_bytes()
    (tmp_path / "old").write_bytes(content.replace(b', "text_size": 0', b"", 1))
    assert (tmp_path / "old").read_bytes() != content
    old = Calibration.load(tmp_path / "old").native
    assert (old.gbdt, old.live_gbdt, old.text_gbdt) == (gbdt(), gbdt(leaf=1), b"")


def test_bad_files_are_refused_by_what_is_wrong(tmp_path: Path) -> None:
    Calibration.fit(*places(8, 200), trees=2).save(tmp_path / "good")
    content = (tmp_path / "good").read_bytes()
    head = content.split(b"\n")[0] + b"\n"
    cases = {
        "calibration is unreadable (No such file or directory), expected a file": None,
        "this is no calibration file": b"",
        "header is damaged, expected one line of JSON": content[:40],
        "header is damaged,": head + b"[" * 100_000,
        "header is damaged": content.replace(b'"version"', b'"revision"', 1),
        "version is 9, expected 1": content.replace(b'"version": 1', b'"version": 9', 1),
        "the trees are damaged (Error": content[:-1],
        "the trees are damaged": content[:-8] + b"x" + content[-7:],
        "weights is": content.replace(b'"weights": [0.0', b'"weights": [NaN', 1),
        "weights is a str": content.replace(b"[0.0, 0.0, 0.0, 0.0, 0.0]", b'"0"', 1),
        "live_size is 99999": content.replace(b'"live_size": 0', b'"live_size": 99999', 1),
        "live_size is a": content.replace(b'"live_size": 0', b'"live_size": "a"', 1),
        "text_size is -1": content.replace(b'"text_size": 0', b'"text_size": -1', 1),
        "number of bytes of trees is 588, expected more than": content.replace(
            b'"live_size": 0', b'"live_size": 294', 1
        ).replace(b'"text_size": 0', b'"text_size": 294', 1),
        "gbdt is of a wrong size": content.replace(b'"live_size": 0', b'"live_size": 7', 1),
        "provenance is": content.replace(b'"provenance": {}', b'"provenance": 7', 1),
    }
    for fragment, bad in cases.items():
        path = tmp_path / "bad"
        if bad is not None:
            path.write_bytes(bad)
        refused(DataFileError, lambda path=path: Calibration.load(path), fragment)
    for place in (tmp_path, tmp_path / ("x" * 300)):
        refused(
            DataFileError, lambda place=place: Calibration.load(place), "calibration is unreadable"
        )  # type: ignore[misc]
    for place in (tmp_path / "no" / "where", tmp_path / ("x" * 300), "", "."):
        refused(DataFileError, lambda place=place: Calibration.default().save(place), "writable")
