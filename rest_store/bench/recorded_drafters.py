"""Other drafters whose acceptance at each position was recorded:
alone, and a trained head beside draft sessions.

Beside a head, each step verifies what promises the most tokens per modelled second: the session's
tree, the head's chain, or both (`rest_store/bench/head_plans.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.bench.cost_model import Batch
from rest_store.bench.head_plans import Plan, PlannedHead, with_chain
from rest_store.bench.recordings import Recording
from rest_store.bench.replay import Outcome, Replayed, Tokens, walk
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup

_MAX_LENGTH = 20  # tokens that the recorded drafters drafted at most
_NO_TREE = TokenTree([], [], [], scores=[])
# Stands for a token of the head that the model did not write: what it was is not recorded.
_WRONG = -1


def replay_other(recordings: Sequence[Recording], name: str, batch: Batch, length: int) -> Outcome:
    """Return what the drafter of this name brings with so many draft tokens in each step."""
    outcome = Outcome()
    for one in recordings:
        if one.drafters.get(name) is None or not one.output.size:
            continue
        prompt, tokens = one.prompt.size, one.output.size
        steps, seconds = batch.drafted_by(name, one.drafters[name].tolist(), prompt, length)
        plain = batch.plain(prompt, prompt + tokens)
        outcome.replays.append(
            Replayed(one.family, tokens, steps, steps * length, 0.0, plain, seconds, one.key)
        )
    return outcome


def other_drafters(
    recordings: Sequence[Recording], batches: Sequence[Batch]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a line and a row for each recorded drafter and batch,
    with the length that is fastest for the median.
    """
    for name in sorted({name for recording in recordings for name in recording.drafters}):
        for batch in batches:
            outcomes = {
                length: replay_other(recordings, name, batch, length)
                for length in range(1, _MAX_LENGTH + 1)
            }
            best = max(outcomes, key=lambda length: outcomes[length].modelled_speeds[0])
            row = {"drafter": name, "batch": batch.rows, "length": best, **outcomes[best].as_json()}
            yield f"{name}, {best} tokens, batch of {batch.rows}: {outcomes[best].summary()}", row


class _BesideHead:
    """The drafting side of one recording: a session, and a head that brings what is recorded.

    Attributes:
        seconds: modelled seconds that the head took.
    """

    def __init__(
        self,
        session: DraftSession,
        head: PlannedHead,
        recording: Recording,
        name: str,
        batch: Batch,
    ) -> None:
        self._session, self._head, self._batch, self._name = session, head, batch, name
        self._accepted, self._text = recording.drafters[name], recording.output
        self._prompt, self._position = recording.prompt.size, 0
        self._plan: Plan | None = None
        self._brought = 0
        self.seconds = 0.0

    def draft(self, max_nodes: int, costs: npt.NDArray[np.float64] | None = None) -> TokenTree:
        """Return what is verified.

        The tokens of the head are those of the output, as far as they were accepted.
        """
        assert costs is not None  # as a batch has them
        tree = self._session.draft(max_nodes) if self._head.wants_tree() else None
        if tree is None:
            self.seconds -= self._batch.of_sessions
        self._plan = self._head.plan(tree, costs)
        return self._with_head(self._plan)

    def _with_head(self, plan: Plan) -> TokenTree:
        self._brought = min(int(self._accepted[self._position]) - 1, plan.head_tokens)
        if not plan.head_tokens:
            return plan.tree
        self.seconds += self._batch.beside(
            self._name, self._prompt + self._position, plan.head_tokens
        )
        right = self._text[self._position : self._position + self._brought].tolist()
        return with_chain(plan.tree, right + [_WRONG] * (plan.head_tokens - len(right)))

    def accept(self, tokens: Tokens, top_k: Tokens | None) -> None:
        """Append what the model produced, and learn from it."""
        assert self._plan is not None
        self._head.learn(self._plan, len(self._plan.tree.longest_path(tokens)), self._brought)
        self._session.accept(tokens, top_k)
        self._position += tokens.size

    def opened(self, prompt: Tokens) -> nullcontext[_BesideHead]:
        """Begin the replay; the session has the prompt."""
        return nullcontext(self)


class _Oracle(_BesideHead):
    """Verifies in each step the one of the two that brings the most
    tokens per second, as the output shows.
    """

    def draft(self, max_nodes: int, costs: npt.NDArray[np.float64] | None = None) -> TokenTree:
        """Return the session's tree, cut by its costs, or as much
        of the head's chain as brings most.
        """
        assert costs is not None  # as a batch has them
        tree, cached = self._session.draft(max_nodes, costs), self._prompt + self._position
        written = 1 + len(tree.longest_path(self._text[self._position :]))
        speeds = [written / (costs[len(tree)] + self._batch.of_sessions)]
        for tokens in range(1, _MAX_LENGTH + 1):
            seconds = self._batch.time(cached, 1 + tokens) + self._batch.beside(
                self._name, cached, tokens
            )
            speeds.append(min(int(self._accepted[self._position]), 1 + tokens) / seconds)
        head_tokens = int(np.argmax(speeds))
        if head_tokens:
            tree = _NO_TREE
            self.seconds -= self._batch.of_sessions
        self._plan = Plan(tree, head_tokens, 0.0, 0.0, 0)
        return self._with_head(self._plan)


def replay_beside(
    recordings: Sequence[Recording],
    sources: Sequence[object],
    calibration: Calibration,
    name: str,
    batch: Batch,
    max_nodes: int,
    *,
    kind: type[_BesideHead] = _BesideHead,
) -> Outcome:
    """Return what sessions bring beside the head of this name, for
    the recordings that have it, in their order.
    """
    chosen = [one for one in recordings if one.drafters.get(name) is not None and one.output.size]
    cached = int(np.median([one.prompt.size + one.output.size // 2 for one in chosen] or [0]))
    head = PlannedHead(
        [0.0, *(batch.beside(name, cached, tokens) for tokens in range(1, _MAX_LENGTH + 1))],
        batch.of_sessions,
    )
    outcome = Outcome()
    for one in chosen:
        with DraftSession(
            [*sources, PromptLookup()], one.prompt, calibration=calibration, learn=False
        ) as session:
            drafter = kind(session, head.for_text(), one, name, batch)
            replayed = walk([one], drafter.opened, max_nodes=max_nodes, batch=batch)
        modelled = replayed.replays[0].modelled + drafter.seconds
        replayed.replays = [replayed.replays[0]._replace(modelled=modelled)]
        outcome = Outcome.sum_of([outcome, replayed])
    return outcome


def beside_heads(
    recordings: Sequence[Recording],
    sources: Sequence[object],
    calibration: Calibration,
    batches: Sequence[Batch],
    max_nodes: int,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a line and a row for each recorded head and batch.

    A head takes time of its own in the cost model.
    """
    for name in sorted({name for recording in recordings for name in recording.drafters}):
        for batch in batches:
            if name in batch.model.drafters and batch.model.drafters[name].fixed:
                arguments = (recordings, sources, calibration, name, batch, max_nodes)
                outcome = replay_beside(*arguments)
                share = (
                    outcome.modelled_speeds[0]
                    / replay_beside(*arguments, kind=_Oracle).modelled_speeds[0]
                )
                row = {
                    "beside": name,
                    "batch": batch.rows,
                    "share_of_oracle": round(share, 4),
                    **outcome.as_json(),
                }
                line = (
                    f"session beside {name}, batch of {batch.rows}: {share:.2f} of an oracle's"
                    " choice per step"
                )
                yield f"{line}; {outcome.summary()}", row
