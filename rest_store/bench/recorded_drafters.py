"""Other drafters with recorded acceptance: alone, and a trained head beside draft sessions.

Beside a head, each step verifies the draft that promises the most tokens per modelled second: the
session's tree, the head's chain, or both (`rest_store/bench/head_plans.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
_WRONG = -1  # stands for a token of the head that the model did not write


def replay_other(recordings: Sequence[Recording], name: str, batch: Batch, length: int) -> Outcome:
    """Return the outcome of the drafter of this name with `length` draft tokens in each step."""
    outcome = Outcome()
    for one in recordings:
        if one.drafters.get(name) is None or not one.output.size:
            continue
        prompt = one.prompt.size
        tokens = one.output.size
        steps, seconds = batch.simulate_drafter(name, one.drafters[name].tolist(), prompt, length)
        plain = batch.plain(prompt, prompt + tokens)
        outcome.replays.append(
            Replayed(one.family, tokens, steps, steps * length, 0.0, plain, seconds, one.key)
        )
    return outcome


def other_drafters(
    recordings: Sequence[Recording], batches: Sequence[Batch]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a line and a row for each drafter and batch, with the length of best median speed."""
    for name in _drafter_names(recordings):
        for batch in batches:
            outcomes = {
                length: replay_other(recordings, name, batch, length)
                for length in range(1, _MAX_LENGTH + 1)
            }
            best = max(outcomes, key=lambda length: outcomes[length].modelled_speeds[0])
            row = {
                "drafter": name,
                "batch": batch.sequences,
                "length": best,
                **outcomes[best].as_json(),
            }
            yield (
                f"{name}, {best} tokens, batch of {batch.sequences}: {outcomes[best].summary()}",
                row,
            )


def _drafter_names(recordings: Sequence[Recording]) -> list[str]:
    names: set[str] = set()
    for recording in recordings:
        names |= recording.drafters.keys()
    return sorted(names)


class BesideHead:
    """The drafting side of one recording: a session, and a head with the recorded acceptance.

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
        self._session = session
        self._head = head
        self._recording = recording
        self._batch = batch
        self._name = name
        self._accepted = recording.drafters[name]
        self._text = recording.output
        self._prompt = recording.prompt.size
        self._position = 0
        self._plan: Plan | None = None
        self._brought = 0
        self.seconds = 0.0

    def draft(self, max_nodes: int, costs: npt.NDArray[np.float64] | None = None) -> TokenTree:
        """Return the tree to verify.

        The tokens of the head are those of the output, as far as they were accepted. `costs` are
        those of the batch.
        """
        if costs is None:
            raise ValueError("a head needs the costs of a batch")
        tree = self._session.draft(max_nodes) if self._head.wants_tree() else None
        if tree is None:
            self.seconds -= self._batch.drafting_seconds
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
        """Append the tokens of the model, and learn from them."""
        if self._plan is not None:
            accepted = len(self._plan.tree.longest_path(tokens))
            self._head.learn(self._plan, accepted, self._brought)
        self._session.accept(tokens, top_k)
        self._position += tokens.size

    def opened(self, prompt: Tokens) -> nullcontext[BesideHead]:
        """Begin the replay; the session has the prompt."""
        return nullcontext(self)


class Oracle(BesideHead):
    """Verifies in each step the draft with the most tokens per second, as the output shows."""

    def draft(self, max_nodes: int, costs: npt.NDArray[np.float64] | None = None) -> TokenTree:
        """Return the session's tree, cut by its costs, or the best start of the head's chain."""
        if costs is None:
            raise ValueError("a head needs the costs of a batch")
        tree = self._session.draft(max_nodes, costs)
        cached = self._prompt + self._position
        written = 1 + len(tree.longest_path(self._text[self._position :]))
        speeds = [written / (costs[len(tree)] + self._batch.drafting_seconds)]
        for tokens in range(1, _MAX_LENGTH + 1):
            seconds = self._batch.time(cached, 1 + tokens) + self._batch.beside(
                self._name, cached, tokens
            )
            speeds.append(min(int(self._accepted[self._position]), 1 + tokens) / seconds)
        head_tokens = int(np.argmax(speeds))
        if head_tokens:
            tree = _NO_TREE
            self.seconds -= self._batch.drafting_seconds
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
    kind: Callable[..., BesideHead] = BesideHead,
) -> Outcome:
    """Return the outcome of sessions beside the head of this name.

    The recordings that have the head are replayed, in their order.
    """
    chosen = [one for one in recordings if one.drafters.get(name) is not None and one.output.size]
    cached = int(np.median([one.prompt.size + one.output.size // 2 for one in chosen] or [0]))
    head_seconds = [0.0]
    for tokens in range(1, _MAX_LENGTH + 1):
        head_seconds.append(batch.beside(name, cached, tokens))
    head = PlannedHead(head_seconds, batch.drafting_seconds)
    outcome = Outcome()
    learning = calibration.copy()
    for one in chosen:
        with DraftSession([*sources, PromptLookup()], one.prompt, calibration=learning) as session:
            drafter = kind(session, head.for_text(), one, name, batch)
            replayed = walk([one], drafter.opened, max_nodes=max_nodes, batch=batch)
        modelled = replayed.replays[0].modelled + drafter.seconds
        replayed.replays = [replayed.replays[0]._replace(modelled=modelled)]
        outcome = Outcome.from_outcomes([outcome, replayed])
    return outcome


def beside_heads(
    recordings: Sequence[Recording],
    sources: Sequence[object],
    calibration: Calibration,
    batches: Sequence[Batch],
    max_nodes: int,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a line and a row for each recorded head and batch.

    A drafter with `fixed` costs in the cost model is a head.
    """
    for name in _drafter_names(recordings):
        for batch in batches:
            if name in batch.model.drafters and batch.model.drafters[name].fixed:
                arguments = (recordings, sources, calibration, name, batch, max_nodes)
                outcome = replay_beside(*arguments)
                best = replay_beside(*arguments, kind=Oracle)
                share = outcome.modelled_speeds[0] / best.modelled_speeds[0]
                row = {
                    "beside": name,
                    "batch": batch.sequences,
                    "share_of_oracle": round(share, 4),
                    **outcome.as_json(),
                }
                line = (
                    f"session beside {name}, batch of {batch.sequences}: {share:.2f} of an oracle's"
                    " choice per step"
                )
                yield f"{line}; {outcome.summary()}", row
