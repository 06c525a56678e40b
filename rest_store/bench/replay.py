"""Replay of recordings: the tokens that each step would have given, without running the model.

Each step drafts from the context, walks the tree along the recorded output, and accepts the
matching path and one bonus token. It sees no later token: a session gets the recorded top-k only up
to the token before the last accepted one. Of the prompt it gets the top-k of the last token alone,
as in generation. The top-k of rejected nodes, which generation has, is not recorded.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rest_store.bench.cost_model import Batch
from rest_store.bench.recordings import Recording
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import RecycledLogits
from rest_store.errors import DataFileError, describe

_SAMPLES = 1000  # of a bootstrap
_BINS = 20  # of scores, for the calibration error
Tokens = npt.NDArray[np.int32]
Sums = npt.NDArray[np.float64]


def interval(
    table_rows: Sequence[Sequence[float]], figure: Callable[[Sums], Sums]
) -> tuple[float, float]:
    """Return the 95% interval of a figure, by a bootstrap over rows.

    Args:
        table_rows: at least one row for each prompt or recording, such as tokens and forward
            passes.
        figure: a function from the sums of samples, float64[columns, samples], to the figure of
            each.
    """
    table = np.array(table_rows, np.float64)
    drawn = np.random.default_rng(0).integers(0, len(table), (_SAMPLES, len(table)))
    low, high = np.percentile(figure(table[drawn].sum(axis=1).T), (2.5, 97.5))
    return float(low), float(high)


class Replayed(NamedTuple):
    """The replay of one recording.

    Attributes:
        family: the family of the recording.
        tokens: tokens of its output.
        steps: target forward passes.
        drafted: draft tokens.
        seconds: time of drafting and accepting, as measured here.
        plain: modelled seconds of the same output without drafts; 0 without a cost model.
        modelled: modelled seconds of the steps.
        task: the task that the recording belongs to; empty: it is alone.
    """

    family: str
    tokens: int
    steps: int
    drafted: int = 0
    seconds: float = 0.0
    plain: float = 0.0
    modelled: float = 0.0
    task: str = ""


@dataclass
class Outcome:
    """The outcome of replays.

    Attributes:
        replays: one for each recording.
        scores: for each step, float[n]: the scores of its nodes, without those that are deeper than
            the rest of the output, of which nobody knows whether the model would write them.
        accepted: for each step, bool[n]: whether these nodes were accepted.
    """

    replays: list[Replayed] = field(default_factory=list)
    scores: list[npt.NDArray[np.float32]] = field(default_factory=list)
    accepted: list[npt.NDArray[np.bool_]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens of the outputs."""
        return sum(replay.tokens for replay in self.replays)

    @property
    def steps(self) -> int:
        """Target forward passes."""
        return sum(replay.steps for replay in self.replays)

    @property
    def families(self) -> dict[str, float]:
        """M of each family, in the order of their names."""
        return {name: outcome.mean_accepted for name, outcome in self.by_family().items()}

    def by_family(self) -> dict[str, Outcome]:
        """Return the replays of each family, in the order of their names."""
        replays: dict[str, list[Replayed]] = defaultdict(list)
        for replay in self.replays:
            replays[replay.family].append(replay)
        return {name: Outcome(replays[name]) for name in sorted(replays)}

    @property
    def mean_accepted(self) -> float:
        """M, tokens per target forward pass (REST, section 4.1)."""
        return self.tokens / max(1, self.steps)

    @property
    def median_accepted(self) -> float:
        """M of the median recording; a few outputs that repeat themselves do not raise it."""
        return float(np.median([replay.tokens / replay.steps for replay in self.replays] or [0.0]))

    @property
    def drafting(self) -> float:
        """Microseconds of drafting and accepting in a step of the median recording."""
        times = [1e6 * replay.seconds / replay.steps for replay in self.replays]
        return float(np.median(times or [0.0]))

    @property
    def drafted(self) -> float:
        """Draft tokens of a step."""
        return sum(replay.drafted for replay in self.replays) / max(1, self.steps)

    @property
    def modelled_speeds(self) -> tuple[float, float]:
        """Modelled speed relative to plain decoding: of the median recording, and of all tokens."""
        speeds = [replay.plain / replay.modelled for replay in self.replays if replay.modelled]
        plain = sum(replay.plain for replay in self.replays)
        modelled = sum(replay.modelled for replay in self.replays)
        return float(np.median(speeds or [0.0])), plain / (modelled or 1)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of M, by a bootstrap over tasks, each with all of its recordings."""
        by_task: dict[object, tuple[int, int]] = {}
        for number, one in enumerate(self.replays):
            task = one.task or number
            tokens, steps = by_task.get(task, (0, 0))
            by_task[task] = (tokens + one.tokens, steps + one.steps)
        return interval([*by_task.values()] or [(0, 1)], lambda sums: sums[0] / sums[1])

    def __str__(self) -> str:
        """M, and its interval."""
        low, high = self.interval
        return f"{self.mean_accepted:.2f} ({low:.2f} to {high:.2f})"

    def summary(self) -> str:
        """Return its figures for people; modelled figures are named as such."""
        families = self.by_family()
        speed = ""
        medians = {name: one.median_accepted for name, one in families.items()}
        if any(replay.modelled for replay in self.replays):
            median, total = self.modelled_speeds
            speed = f"modelled speed {median:.2f} (median), {total:.2f} (total); "
            medians = {name: one.modelled_speeds[0] for name, one in families.items()}
        step = f"{self.drafted:.1f} nodes, {self.drafting:.0f} us a step"
        text = f"{speed}M {self}, median {self.median_accepted:.2f}; {step}"
        if len(medians) > 1:
            by_family = "  ".join(f"{name} {median:.2f}" for name, median in medians.items())
            text += f"\n    medians: {by_family}"
        return text

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: mean distance of score and acceptance over 20 bins."""
        scores, accepted = self._verified()
        bins = np.minimum((scores * _BINS).astype(np.int64), _BINS - 1)
        errors = np.bincount(bins, scores - accepted, minlength=_BINS)
        return float(np.abs(errors).sum() / max(1, scores.size))

    @property
    def brier_skill(self) -> float:
        """Brier skill score of the nodes' scores: 1 if they are the outcomes.

        It is 0 if they are no better than the share of all nodes that is accepted.
        """
        scores, accepted = self._verified()
        rate = float(accepted.mean()) if accepted.size else 0.0
        error_of_rate = rate * (1 - rate)
        if error_of_rate == 0:
            return 0.0
        return 1 - float(np.square(scores - accepted).mean()) / error_of_rate

    @property
    def auc(self) -> float:
        """The chance that of two nodes the accepted one has the greater score; equal ones: a half.

        It is 0.5 where all nodes are accepted, or none.
        """
        scores, accepted = self._verified()
        positive = int(accepted.sum())
        negative = accepted.size - positive
        if not positive or not negative:
            return 0.5
        _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
        ranks = np.cumsum(counts) - (counts - 1) / 2  # the mean rank of equal scores
        above = float(ranks[place][accepted > 0].sum()) - positive * (positive + 1) / 2
        return above / (positive * negative)

    def _verified(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the scores of all nodes, and 1 for each accepted one, 0 for the others."""
        scores = np.concatenate([np.zeros(0, np.float32), *self.scores])
        accepted = np.concatenate([np.zeros(0, np.bool_), *self.accepted])
        return scores.astype(np.float64), accepted.astype(np.float64)

    def add_step(self, tree: TokenTree, path: npt.NDArray[np.int64], rest: int) -> None:
        """Note the scores of a step's nodes, and which were accepted.

        Args:
            tree: the draft.
            path: its accepted nodes.
            rest: tokens of the output that follow the context.
        """
        if tree.scores is None:
            return
        accepted = np.zeros(len(tree), np.bool_)
        accepted[path] = True
        is_known = tree.depths <= rest
        self.scores.append(tree.scores[is_known])
        self.accepted.append(accepted[is_known])

    @classmethod
    def from_outcomes(cls, outcomes: Iterable[Outcome]) -> Outcome:
        """Return the sum of several outcomes."""
        total = cls()
        for outcome in outcomes:
            total.replays += outcome.replays
            total.scores += outcome.scores
            total.accepted += outcome.accepted
        return total

    def as_json(self) -> dict[str, Any]:
        """Return the figures for a result."""
        modelled: dict[str, Any] = {}
        if any(replay.modelled for replay in self.replays):
            speeds = {}
            for name, one in self.by_family().items():
                speeds[name] = [round(speed, 4) for speed in one.modelled_speeds]
            modelled = {
                "modelled_speed_median": round(self.modelled_speeds[0], 4),
                "modelled_speed_total": round(self.modelled_speeds[1], 4),
                "modelled_speeds_of_families": speeds,
            }
        return {
            **modelled,
            "M": round(self.mean_accepted, 4),
            "median": round(self.median_accepted, 4),
            "interval": [round(end, 4) for end in self.interval],
            "tokens": self.tokens,
            "steps": self.steps,
            "drafted": round(self.drafted, 2),
            "drafting_us": round(self.drafting, 1),
            "calibration_error": round(self.calibration_error, 5),
            "brier_skill": round(self.brier_skill, 4),
            "auc": round(self.auc, 4),
            "families": {name: round(mean, 4) for name, mean in self.families.items()},
        }


class Drafter(Protocol):
    """The drafting side of one generation: a `DraftSession`, or a rule of `baselines`."""

    def draft(self, max_nodes: int, costs: npt.NDArray[np.float64] | None = None) -> TokenTree:
        """Return a tree of continuations of the text so far, as `DraftSession.draft` does."""

    def accept(self, tokens: Tokens, top_k: Tokens | None) -> None:
        """Append the tokens of the model, with its likely tokens where they are known."""


class Chains:
    """A draft session whose drafts are chains.

    Args:
        session: the session.
    """

    def __init__(self, session: DraftSession) -> None:
        self._session = session
        self.accept = session.accept

    def draft(self, max_nodes: int, costs: npt.NDArray[np.float64] | None = None) -> TokenTree:
        """Return a chain."""
        return self._session.draft(max_nodes, costs, shape="chain")


Opening = Callable[[Tokens], AbstractContextManager[Drafter]]  # a prompt to its drafter


def walk(
    recordings: Iterable[Recording],
    opening: Opening,
    *,
    max_nodes: int,
    skip: int = 0,
    batch: Batch | None = None,
    times: list[float] | None = None,
) -> Outcome:
    """Replay with a drafter for each recording; recordings without output are passed over.

    Args:
        recordings: to replay, in this order.
        opening: begins a drafter, for example `lambda prompt:
            contextlib.nullcontext(PromptLookupRule(prompt))`.
        max_nodes: budget of a step.
        skip: tokens of each output that count as prompt.
        batch: models the seconds of steps; the drafter cuts drafts by these costs.
        times: a list to which the seconds of drafting and accepting are appended, step by step;
            None: they are dropped.
    """
    outcome = Outcome()
    for recording in recordings:
        if recording.output.size <= skip:
            continue
        text = np.concatenate([recording.prompt, recording.output])
        begin = position = recording.prompt.size + skip
        steps = drafted = 0
        known = max(0, begin - 1)  # of a prompt, the top-k of the last token alone is known
        seconds = modelled = 0.0
        with opening(text[:begin]) as drafter:
            while position < text.size:
                began = time.perf_counter()
                if batch is None:
                    tree = drafter.draft(max_nodes)
                else:
                    tree = drafter.draft(max_nodes, batch.costs(position, max_nodes))
                took = time.perf_counter() - began
                path = tree.longest_path(text[position:])
                outcome.add_step(tree, path, text.size - position)
                end = min(position + len(path) + 1, text.size)
                accepting = time.perf_counter()
                drafter.accept(text[position:end], known_top_k(recording.top_k, known, end))
                took += time.perf_counter() - accepting
                if times is not None:
                    times.append(took)
                if batch is not None:
                    modelled += batch.step(position, len(tree), took)
                drafted += len(tree)
                seconds += took
                steps += 1
                known = end - 1
                position = end
        outcome.replays.append(
            Replayed(
                family=recording.family,
                tokens=text.size - begin,
                steps=steps,
                drafted=drafted,
                seconds=seconds,
                plain=0.0 if batch is None else batch.plain(begin, text.size),
                modelled=modelled,
                task=recording.key,
            )
        )
    return outcome


def replay(
    recordings: Iterable[Recording],
    sources: Sequence[object],
    calibration: Calibration,
    *,
    max_nodes: int = 16,
    learn: bool = True,
    skip: int = 0,
    share_logits: bool = False,
    batch: Batch | None = None,
    chains: bool = False,
    references: Sequence[Tokens] = (),
    record: list[tuple[bytes, bytes, bytes]] | None = None,
    times: list[float] | None = None,
) -> Outcome:
    """Replay with draft sessions.

    Args:
        recordings: as in `walk`.
        sources: sources of each session. Without `share_logits`, each session gets a new
            `RecycledLogits` for one among them.
        calibration: the calibration of all sessions. It learns from recording to recording, as in
            one program, unless `learn` is false; a `copy` of it begins anew.
        max_nodes: as in `walk`.
        learn: whether sessions learn from accepted tokens.
        skip: as in `walk`.
        share_logits: whether all sessions share the `RecycledLogits` among the sources, as in one
            program.
        batch: as in `walk`.
        chains: whether drafts are chains.
        references: references of each session.
        record: a list to which the data for `Calibration.fit` is appended; None: it is dropped.
        times: as in `walk`.
    """

    @contextmanager
    def opening(prompt: Tokens) -> Iterator[Drafter]:
        own = sources if share_logits else fresh(sources)
        with DraftSession(
            own, prompt, calibration=calibration, learn=learn, references=references
        ) as session:
            session.record_candidates(record is not None)
            yield Chains(session) if chains else session
            if record is not None:
                record.append(session.recorded_candidates())

    return walk(recordings, opening, max_nodes=max_nodes, skip=skip, batch=batch, times=times)


def fresh(sources: Iterable[object]) -> list[object]:
    """Return the sources with a new `RecycledLogits` in the place of one among them."""
    return [
        RecycledLogits() if isinstance(source, RecycledLogits) else source for source in sources
    ]


def known_top_k(top_k: Tokens, begin: int, end: int) -> Tokens | None:
    """Return the top-k from `begin` to `end` for `DraftSession.accept`; None: nothing is recorded.

    The last entry is unknown: the forward pass has not read that token.
    """
    if not top_k.size:
        return None
    known: Tokens = top_k[begin:end].copy()
    known[-1] = -1
    return known


def fit_calibration(record: Sequence[tuple[bytes, bytes, bytes]], **options: Any) -> Calibration:
    """Fit a calibration to the data that `replay` recorded, with `options` of `Calibration.fit`.

    Raises:
        DataFileError: the data holds no proposal.
    """
    features = np.frombuffer(b"".join(columns[0] for columns in record), np.float32)
    labels = np.frombuffer(b"".join(columns[1] for columns in record), np.uint8)
    if labels.size == 0:
        raise DataFileError(describe("fit", "number of proposals", 0, "at least one"))
    ends = []
    before = 0
    for _, own_labels, own_ends in record:
        ends.append(np.frombuffer(own_ends, np.uint32) + before)
        before += len(own_labels)
    return Calibration.fit(
        features.reshape(labels.size, -1), labels, np.concatenate(ends), **options
    )
