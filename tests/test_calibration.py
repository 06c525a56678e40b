"""Calibrations: fitting finds what there is to find, files are whole or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from strategies import refused

from rest_store import _kernel  # type: ignore[attr-defined]
from rest_store.calibration import Calibration
from rest_store.errors import CalibrationError

FACTS = int(_kernel.FACTS)
Rows = tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8], npt.NDArray[np.uint32]]


def places(seed: int, count: int) -> Rows:
    """Places of four proposals; fact 7 of a proposal is the logarithm of its chance against the others and none."""
    rng = np.random.default_rng(seed)
    facts = rng.normal(size=(count, 4, FACTS)).astype(np.float32)
    odds = np.exp(facts[:, :, 7])
    chances = odds / (1 + odds.sum(axis=1, keepdims=True))
    labels = np.zeros((count, 4), np.uint8)
    draws = rng.random(count)[:, None] - np.cumsum(chances, axis=1)
    right = (draws < 0).argmax(axis=1)
    rows = np.flatnonzero((draws < 0).any(axis=1))
    labels[rows, right[rows]] = 1
    return facts.reshape(-1, FACTS), labels.ravel(), np.arange(4, 4 * count + 1, 4, dtype=np.uint32)


def trees_of(calibration: Calibration) -> npt.NDArray[np.void]:
    kind = np.dtype([("facts", "<u2", 6), ("thresholds", "<f4", 6), ("leaves", "<f4", 64)])
    return np.frombuffer(calibration.native.forest[4:], kind)


def log_odds(calibration: Calibration, facts: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    total = np.full(len(facts), np.frombuffer(calibration.native.forest[:4], np.float32)[0], np.float64)
    for tree in trees_of(calibration):
        above = facts[:, tree["facts"]] > tree["thresholds"]
        total += tree["leaves"][above @ (1 << np.arange(6))]
    return total


def test_fitting_finds_the_chances_that_made_the_labels() -> None:
    calibration = Calibration.fit(*places(1, 8_000), trees=60)
    facts, labels, _ = places(2, 8_000)
    odds = np.exp(log_odds(calibration, facts)).reshape(-1, 4)
    fitted = odds / (1 + odds.sum(axis=1, keepdims=True))
    true = np.exp(facts[:, 7]).reshape(-1, 4)
    true = true / (1 + true.sum(axis=1, keepdims=True))
    assert np.corrcoef(fitted.ravel(), true.ravel())[0, 1] > 0.95
    # Calibrated: of all proposals with about one chance, that share is right.
    bins = (fitted.ravel() * 10).astype(int)
    for one in range(6):
        chosen = bins == one
        assert abs(fitted.ravel()[chosen].mean() - labels[chosen].mean()) < 0.05


def test_the_same_rows_give_the_same_trees() -> None:
    rows = places(3, 500)
    assert Calibration.fit(*rows, trees=5).native.forest == Calibration.fit(*rows, trees=5).native.forest
    assert Calibration.fit(*rows, trees=5).native.forest != Calibration.fit(*places(4, 500), trees=5).native.forest


def test_constant_facts_are_no_trouble() -> None:
    facts, labels, ends = places(5, 300)
    assert np.isfinite(log_odds(Calibration.fit(np.zeros_like(facts), labels, ends, trees=3), facts)).all()


def test_rows_that_do_not_belong_together_are_refused() -> None:
    facts, labels, ends = places(6, 10)
    refused(CalibrationError, lambda: Calibration.fit(facts[:, 1:], labels, ends), str(FACTS))
    refused(CalibrationError, lambda: Calibration.fit(facts[1:], labels, ends))
    refused(CalibrationError, lambda: Calibration.fit(facts, labels, ends[:-1]))
    refused(CalibrationError, lambda: Calibration.fit(facts, labels, ends[::-1]))
    refused(CalibrationError, lambda: Calibration(b"forest"))
    refused(CalibrationError, lambda: Calibration(bytes(4), [0.0]))


def test_a_saved_calibration_is_read_back_whole(tmp_path: Path) -> None:
    fitted = Calibration.fit(*places(7, 500), trees=4, provenance={"recordings": "made up"})
    fitted.native.weights = [0.5, -0.25, 0.0, 1.0, -1.0]
    fitted.save(tmp_path / "one")
    read = Calibration.load(tmp_path / "one")
    assert read.native.forest == fitted.native.forest
    assert read.provenance == {"recordings": "made up"}
    assert read.weights == fitted.weights
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_bad_files_are_refused_by_what_is_wrong(tmp_path: Path) -> None:
    Calibration.fit(*places(8, 200), trees=2).save(tmp_path / "good")
    content = (tmp_path / "good").read_bytes()
    cases = {
        "calibration is No such file": None,
        "content is something else": b"PK" + content,
        "header is damaged": content.replace(b"{", b"[", 1),
        "version is 2": content.replace(b'"version": 1', b'"version": 2'),
        "checksum": content[:-1] + bytes([content[-1] ^ 1]),
    }
    for fragment, bad in cases.items():
        path = tmp_path / "bad"
        if bad is not None:
            path.write_bytes(bad)
        refused(CalibrationError, lambda path=path: Calibration.load(path), fragment)  # type: ignore[misc]
    refused(CalibrationError, lambda: Calibration.load(tmp_path), "calibration is")
    refused(CalibrationError, lambda: Calibration.default().save(tmp_path / "no" / "where"), "writable")


def test_the_default_says_from_what_it_was_fitted() -> None:
    default = Calibration.default()
    assert {"recordings", "prompts", "sources"} <= set(default.provenance)
    assert len(trees_of(default)) == default.provenance["trees"]
    assert default.weights == pytest.approx([0] * 5)
