"""What other drafters would have brought, whose acceptance at each position was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rest_store.bench.cost_model import Batch
from rest_store.bench.recordings import Recording
from rest_store.bench.replay import Outcome, Replayed

_LONGEST = 20  # tokens that the recorded drafters drafted at most


def replay_other(recordings: Sequence[Recording], name: str, batch: Batch, length: int) -> Outcome:
    """Return what the drafter of this name brings with so many draft tokens in each step."""
    outcome = Outcome()
    for one in recordings:
        if one.drafters.get(name) is None or not one.output.size:
            continue
        prompt, tokens = one.prompt.size, one.output.size
        steps, seconds = batch.drafted_by(name, one.drafters[name].tolist(), prompt, length)
        plain = batch.plain(prompt, prompt + tokens)
        outcome.replays.append(Replayed(one.family, tokens, steps, steps * length, 0.0, plain, seconds))
    return outcome


def other_drafters(recordings: Sequence[Recording], batches: Sequence[Batch]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a line and a row for each recorded drafter and batch, with the length that is fastest for the median."""
    for name in sorted({name for recording in recordings for name in recording.drafters}):
        for batch in batches:
            outcomes = {length: replay_other(recordings, name, batch, length) for length in range(1, _LONGEST + 1)}
            best = max(outcomes, key=lambda length: outcomes[length].modelled_speeds[0])
            row = {"drafter": name, "batch": batch.rows, "length": best, **outcomes[best].as_json()}
            yield f"{name}, {best} tokens, batch of {batch.rows}: {outcomes[best].summary()}", row
