"""Measure what it costs to look drafts up a step ahead, as the plug-in of vLLM does where steps are scheduled ahead.

Recordings are replayed as in an engine that verifies K draft tokens a step: drafts from a text as it is, and from the
text as it was before the step under way, with a chain of 2 K + 1 tokens. Of a lookup ahead, the device takes the tokens
that follow what that step has written. Where it has none, rows have those of vLLM's n-gram lookup on the device, after
the latest of the longest n-grams of 2 to 5 tokens. The first step, which reads the prompt, has no drafts.

Reported by set: M, the nodes of a lookup, the tokens verified in a step, and the median microseconds of a lookup.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from rest_store.bench.options import Destination, datastores_option, every_option, recordings_option, result_options
from rest_store.bench.recordings import Recording, read_recordings, unfitted
from rest_store.bench.replay import Drafter, Tokens, walk
from rest_store.bench.results import write_result
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.engines.vllm.candidates import Candidate
from rest_store.live.opening import open_datastores
from rest_store.options import SETTINGS

WAYS = {  # steps that a lookup is ahead; -1: there is none
    "n-grams alone": -1,
    "waiting": 0,
    "ahead, a chain": 1,
}


class NgramLookup:
    """vLLM's n-gram lookup, as `ngram_gpu` does it with `prompt_lookup_min` 2 and `prompt_lookup_max` 5."""

    def __init__(self, prompt: Tokens) -> None:
        self._text: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}  # where what follows an n-gram begins, for those with a follower
        self.accept(prompt)

    def accept(self, tokens: Tokens) -> None:
        """Append what was written."""
        for token in tokens.tolist():
            end = len(self._text)
            self._latest.update({tuple(self._text[end - size :]): end for size in range(2, min(end, 5) + 1)})
            self._text.append(token)

    def draft(self, most: int) -> list[int]:
        """Return what followed."""
        for size in range(5, 1, -1):
            if (begin := self._latest.get(tuple(self._text[-size:]))) is not None:
                return self._text[begin : begin + most]
        return []


class Engine:
    """The drafting side of one request of an engine.

    Args:
        session: its session.
        prompt: int32[n].
        ahead: steps that a lookup is ahead; 0: the text is waited for, -1: there is none.
        lookups: gets the nodes and the microseconds of each lookup.
    """

    def __init__(self, session: DraftSession, prompt: Tokens, ahead: int, lookups: list[tuple[int, float]]) -> None:
        self._session, self._ahead, self._lookups = session, ahead, lookups
        self._ngrams = NgramLookup(prompt)
        self._draft, self._most = chain_of([]), 0

    def draft(self, max_nodes: int, costs: npt.NDArray[np.float64] | None = None) -> TokenTree:
        """Return what the step verifies."""
        self._most = max_nodes
        return self._draft

    def accept(self, tokens: Tokens, top_k: Tokens | None) -> None:
        """Take what the step has written, and look the next draft up, before or after that is known."""
        self._ngrams.accept(tokens)
        if self._ahead == 0:
            self._session.accept(tokens, top_k)
            self._draft = self._lookup(self._most)
        else:
            chain: list[int] = []
            if self._ahead > 0:
                tree = self._lookup(2 * self._most + 1)
                chain = Candidate.of(tree, self._most + 1, self._most, lambda scores: True).draft(tokens).chain.tokens
            self._draft = chain_of(chain or self._ngrams.draft(self._most))
            self._session.accept(tokens, top_k)

    def _lookup(self, nodes: int) -> TokenTree:
        began = time.perf_counter()
        tree = self._session.draft(nodes, shape="chain")
        self._lookups.append((len(tree), 1e6 * (time.perf_counter() - began)))
        return tree

    def close(self) -> None:
        """End the session."""
        self._session.close()


def chain_of(tokens: Sequence[int]) -> TokenTree:
    return TokenTree(tokens, range(-1, len(tokens) - 1), [0] * len(tokens), origins=[0] * len(tokens))


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_lag.py --recordings traces.jsonl.gz --datastore python.ds",
)
@recordings_option()
@datastores_option
@every_option
@click.option(
    "--draft-tokens",
    metavar="N",
    multiple=True,
    default=(4, 8),
    type=click.IntRange(1, 16),
    help="Draft tokens that a step verifies. Repeatable.",
)
@result_options
def main(
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    every: int,
    draft_tokens: tuple[int, ...],
    out: Destination,
) -> None:
    read = [recording for path in recordings for recording in read_recordings(path)]
    chosen = unfitted(read, Calibration.default(), "bench_lag.py")[::every]
    stores = list(open_datastores(datastores).values())
    sets: dict[str, list[Recording]] = {"all": chosen}
    for recording in chosen:
        sets.setdefault(recording.family, []).append(recording)
    rows = []
    for most in draft_tokens:
        for name in sets if len(sets) > 2 else ["all"]:
            for way, ahead in WAYS.items():
                rows.append({"set": name, "draft tokens": most, "way": way, **measure(sets[name], stores, most, ahead)})
                click.echo(", ".join(f"{key} {value}" for key, value in rows[-1].items()))
    write_result(out, "lag", click.get_current_context().params, ("numpy",), {"rows": rows})


def measure(recordings: Sequence[Recording], stores: Sequence[object], most: int, ahead: int) -> dict[str, Any]:
    """Return the figures of one way over some recordings."""
    lookups: list[tuple[int, float]] = []
    calibration = Calibration.default()

    def opening(prompt: Tokens) -> AbstractContextManager[Drafter]:
        sources = [*stores, PromptLookup(), RecycledLogits()]
        return closing(Engine(DraftSession(sources, prompt, calibration=calibration), prompt, ahead, lookups))

    outcome = walk(recordings, opening, max_nodes=most)
    tokens, steps, drafted = (
        sum(getattr(one, key) for one in outcome.replays) for key in ("tokens", "steps", "drafted")
    )
    return {
        "M": round(tokens / steps, 3),
        "nodes": round(statistics.mean([size for size, _ in lookups] or [0]), 1),
        "verified": round(drafted / steps, 2),
        "us": round(statistics.median([micros for _, micros in lookups] or [0.0]), 1),
    }


if __name__ == "__main__":
    main()
