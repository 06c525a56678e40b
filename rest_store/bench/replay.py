"""Replay of recordings: the tokens that each step would have given, without running the model.

Each step drafts from the context, walks the tree along the recorded output, and accepts the matching path and one bonus
token. It sees no later token: a session gets the recorded top-k only up to the token before the last accepted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.bench.recordings import Recording
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import RecycledLogits
from rest_store.errors import RecordingError, describe

BINS = 20  # of reliability


@dataclass
class Outcome:
    """The sums of replays.

    Attributes:
        tokens: tokens of the outputs.
        steps: target forward passes.
        expected: tokens that the scores promise, over all steps.
        reliability: float[3, 20]: nodes, sum of their scores and accepted nodes, in 20 bins of the score.
        families: tokens and steps of each family.
    """

    tokens: int = 0
    steps: int = 0
    expected: float = 0.0
    reliability: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((3, BINS)))
    families: dict[str, list[int]] = field(default_factory=dict)

    @property
    def mean_accepted(self) -> float:
        """M, tokens per target forward pass (REST, section 4.1)."""
        return self.tokens / max(1, self.steps)

    @property
    def calibration_error(self) -> float:
        """Expected calibration error of node scores: mean distance of promised and true acceptance over the bins."""
        nodes, promised, accepted = self.reliability
        return float(np.abs(promised - accepted).sum() / max(1.0, nodes.sum()))

    def add(self, family: str, tokens: int, steps: int) -> None:
        """Count one replay."""
        self.tokens += tokens
        self.steps += steps
        of_family = self.families.setdefault(family, [0, 0])
        of_family[0] += tokens
        of_family[1] += steps

    @classmethod
    def sum_of(cls, outcomes: Iterable[Outcome]) -> Outcome:
        """Return the sums of several."""
        total = cls()
        for outcome in outcomes:
            for family, (tokens, steps) in outcome.families.items():
                total.add(family, tokens, steps)
            total.expected += outcome.expected
            total.reliability += outcome.reliability
        return total

    def as_json(self) -> dict[str, Any]:
        """Return the figures for a result."""
        return {
            "M": round(self.mean_accepted, 4),
            "tokens": self.tokens,
            "steps": self.steps,
            "promised": round(self.expected / max(1, self.steps), 4),
            "calibration_error": round(self.calibration_error, 5),
            "families": {name: round(tokens / steps, 4) for name, (tokens, steps) in sorted(self.families.items())},
        }


Draft = Callable[[npt.NDArray[np.int32]], TokenTree]  # of a context


def walk(recordings: Iterable[Recording], draft: Draft) -> Outcome:
    """Replay with a drafting rule that depends on the context alone; its trees need no scores.

    Recordings without output are passed over, here and in `replay`.
    """
    outcome = Outcome()
    for recording in recordings:
        if recording.output.size == 0:
            continue
        text = np.concatenate([recording.prompt, recording.output])
        place, steps = recording.prompt.size, 0
        while place < text.size:
            path = draft(text[:place]).longest_path(text[place:])
            place = min(place + len(path) + 1, text.size)
            steps += 1
        outcome.add(recording.family, recording.output.size, steps)
    return outcome


def replay(
    recordings: Iterable[Recording],
    sources: Sequence[object],
    calibration: Calibration,
    *,
    max_nodes: int = 16,
    learn: bool = False,
    skip: int = 0,
    max_suffix: int = 16,
    share_logits: bool = False,
    record: list[tuple[bytes, bytes, bytes]] | None = None,
    times: list[float] | None = None,
) -> Outcome:
    """Replay with draft sessions.

    Args:
        recordings: to replay, in this order.
        sources: of each session; for a `RecycledLogits` among them each session gets a new one, unless `share_logits`.
        calibration: of all sessions.
        max_nodes: budget of a step.
        learn: whether the calibration learns online, across recordings.
        skip: tokens of each output that count as prompt.
        max_suffix: of the sessions.
        share_logits: whether all sessions share the `RecycledLogits` among the sources, as those of one program do.
        record: the data for `Calibration.fit` is appended, if given.
        times: the seconds of each step, for drafting and accepting, are appended, if given.
    """
    outcome = Outcome()
    for recording in recordings:
        if recording.output.size <= skip:
            continue
        text = np.concatenate([recording.prompt, recording.output])
        session_sources = [
            RecycledLogits() if isinstance(source, RecycledLogits) and not share_logits else source
            for source in sources
        ]
        place = start = recording.prompt.size + skip
        with DraftSession(
            session_sources, text[:place], calibration=calibration, learn=learn, max_suffix=max_suffix
        ) as session:
            session.sources.native.record(record is not None)
            steps = known = 0
            while place < text.size:
                began = time.perf_counter()
                tree = session.draft(max_nodes)
                drafted = time.perf_counter()
                taken = tree.longest_path(text[place:])
                _count(outcome, tree, taken)
                end = min(place + len(taken) + 1, text.size)
                accepting = time.perf_counter()
                session.accept(text[place:end], known_rows(recording.top_k, known, end))
                if times is not None:
                    times.append(drafted - began + time.perf_counter() - accepting)
                known, place, steps = end - 1, end, steps + 1
            if record is not None:
                record.append(session.sources.native.recorded())
        outcome.add(recording.family, text.size - start, steps)
    return outcome


def known_rows(top_k: npt.NDArray[np.int32], start: int, end: int) -> npt.NDArray[np.int32] | None:
    """Return top-k rows from `start` to `end` for `DraftSession.accept`; None if there are none.

    The last row is unknown: the forward pass has not read that token.
    """
    if not top_k.size:
        return None
    rows = top_k[start:end].copy()
    rows[-1] = -1
    return rows


def _count(outcome: Outcome, tree: TokenTree, taken: npt.NDArray[np.int64]) -> None:
    scores = tree.scores
    assert scores is not None
    bins = np.minimum((scores * BINS).astype(np.int64), BINS - 1)
    outcome.reliability[0] += np.bincount(bins, minlength=BINS)
    outcome.reliability[1] += np.bincount(bins, scores, minlength=BINS)
    outcome.reliability[2] += np.bincount(bins[taken], minlength=BINS)
    outcome.expected += 1 + float(scores.sum())


def fit_calibration(
    jobs: Sequence[tuple[Sequence[Recording], Sequence[object]]],
    *,
    start: Calibration | None = None,
    budgets: Sequence[tuple[int, int]] = ((24, 0), (24, 2), (64, 1)),
    trees: int = 250,
    provenance: dict[str, Any] | None = None,
) -> Calibration:
    """Fit a calibration to recordings.

    Args:
        jobs: recordings, and the sources that draft for them.
        start: calibration of the sessions that record the data; None: an untrained rule.
        budgets: of each replay of all recordings: nodes, and tokens of the output that count as prompt.
        trees: of the calibration.
        provenance: kept with it.

    Raises:
        RecordingError: no source proposes anything in any step.
    """
    guide = start or Calibration(bytes(4))
    record: list[tuple[bytes, bytes, bytes]] = []
    for nodes, skip in budgets:
        for recordings, sources in jobs:
            replay(recordings, sources, guide, max_nodes=nodes, skip=skip, record=record)
    return fit_recorded(record, trees=trees, provenance=provenance)


def fit_recorded(
    record: Sequence[tuple[bytes, bytes, bytes]],
    *,
    trees: int = 250,
    rate: float = 0.12,
    row_share: float = 0.35,
    provenance: dict[str, Any] | None = None,
) -> Calibration:
    """Fit a calibration to the data that `replay` recorded; the other arguments as in `Calibration.fit`.

    Raises:
        RecordingError: the data holds no proposal.
    """
    features = np.frombuffer(b"".join(columns[0] for columns in record), np.float32)
    labels = np.frombuffer(b"".join(columns[1] for columns in record), np.uint8)
    if labels.size == 0:
        raise RecordingError(describe("fit", "number of proposals", 0, "at least one"))
    ends, before = [], 0
    for _, own_labels, own_ends in record:
        ends.append(np.frombuffer(own_ends, np.uint32) + before)
        before += len(own_labels)
    return Calibration.fit(
        features.reshape(labels.size, -1),
        labels,
        np.concatenate(ends),
        trees=trees,
        rate=rate,
        row_share=row_share,
        provenance=provenance,
    )
