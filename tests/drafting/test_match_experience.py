"""Long matches are believed as far as they came true, in one text and in all texts together."""

from __future__ import annotations

import numpy as np
import pytest

from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup

LONG = (16, 32)  # tokens from which on a match is long, and longer
SHARED = 100.0  # tokens that experience with all texts counts for
DISTINCT = list(range(10, 110))


class Counts:
    """The kernel's counts of one class of matches, and their factor for the odds."""

    def __init__(self) -> None:
        self.tried = self.promised = self.right = 0.0

    def learn(self, promised: float, right: bool) -> None:
        self.tried += 1
        self.promised += promised
        self.right += right

    def odds_ratio(self, of_text: Counts) -> float:
        share = min(self.tried, SHARED) / self.tried if self.tried else 0.0
        tried = of_text.tried + share * self.tried
        promised = of_text.promised + share * self.promised
        right = of_text.right + share * self.right
        return ((right + 1) / (tried - right + 1)) / ((promised + 1) / (tried - promised + 1))


def likeliest(session: DraftSession) -> float:
    """Return the score of the only node of a draft."""
    scores = session.draft(1).scores
    assert scores is not None
    return float(scores[0]) if len(scores) else 0.0


def written(right: bool, start: int) -> list[int]:
    """Return the text after distinct tokens: these again, or every fifth one another."""
    tokens = DISTINCT[start:]
    return tokens if right else [1_000 + i if i % 5 == 4 else t for i, t in enumerate(tokens)]


def test_odds_are_those_of_the_counts() -> None:
    """The plain oracle gives the same odds, beside a session that teaches nothing."""
    calibration = Calibration.default()
    all_texts = [Counts() for _ in LONG]
    for text in range(3):
        begin = DISTINCT[:18]
        prompt = [*DISTINCT, *begin]
        of_text = [Counts() for _ in LONG]
        with (
            DraftSession([PromptLookup()], prompt, calibration=calibration) as learning,
            DraftSession(
                [PromptLookup()], prompt, calibration=Calibration.default(), learn=False
            ) as plain,
        ):
            for place, token in enumerate(written(text != 1, len(begin))):
                calibration.native.weights = [0.0] * 5  # which learn, too
                promised = likeliest(plain)
                score = likeliest(learning)
                length = 0
                written_so_far = [*begin, *written(text != 1, len(begin))[:place]]
                while written_so_far[-1 - length :][:1] == [
                    DISTINCT[len(written_so_far) - 1 - length]
                ]:
                    length += 1
                    if length == len(written_so_far):
                        break
                of_class = sum(length >= least for least in LONG) - 1
                if of_class < 0:
                    assert score == pytest.approx(promised, rel=1e-4)
                else:
                    ratio = all_texts[of_class].odds_ratio(of_text[of_class])
                    expected = promised * ratio / (1 + promised * (ratio - 1))
                    assert score == pytest.approx(expected, rel=1e-3)
                    is_right = token == DISTINCT[len(written_so_far)]
                    all_texts[of_class].learn(promised, is_right)
                    of_text[of_class].learn(promised, is_right)
                learning.accept([token])
                plain.accept([token])
    assert all(counts.tried > 60 for counts in all_texts[1:])


def test_sessions_of_one_calibration_share_their_experience() -> None:
    def first_score(own: Calibration) -> float:
        prompt = [*DISTINCT, *DISTINCT[:40]]
        with DraftSession([PromptLookup()], prompt, calibration=own) as session:
            return likeliest(session)

    calibration = Calibration.default()
    before = first_score(calibration)
    unchanged = calibration.copy()
    for _ in range(5):
        prompt = [*DISTINCT, *DISTINCT[:20]]
        with DraftSession([PromptLookup()], prompt, calibration=calibration) as session:
            for token in DISTINCT[20:]:
                session.draft(8)
                session.accept([token])
    calibration.native.weights = [0.0] * 5
    assert first_score(calibration) > max(before + 0.1, 0.98)
    assert first_score(unchanged) == before, "a copy learns on its own"


def test_matches_that_go_wrong_are_doubted() -> None:
    def last_score(calibration: Calibration, wrong: int) -> float:
        """Return the score after so many copies that end in another token than the document."""
        text = [*DISTINCT]
        with DraftSession([PromptLookup()], text, calibration=calibration) as session:
            for number in range(wrong):
                session.accept(DISTINCT[:40])
                session.draft(1)
                session.accept([2_000 + number])
            calibration.native.weights = [0.0] * 5
            session.accept(DISTINCT[40:90])
            return likeliest(session)

    assert last_score(Calibration.default(), 12) < last_score(Calibration.default(), 0) - 0.1


def test_experience_is_finite_after_many_texts() -> None:
    calibration = Calibration.default()
    rng = np.random.default_rng(0)
    for _ in range(40):
        prompt = [*DISTINCT, *DISTINCT[:20]]
        with DraftSession([PromptLookup()], prompt, calibration=calibration) as session:
            for token in DISTINCT[20:]:
                scores = session.draft(4).scores
                assert scores is not None
                assert np.isfinite(scores).all()
                assert (scores <= 1).all()
                session.accept([token if rng.random() < 0.9 else 5])
