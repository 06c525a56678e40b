"""Suffix decoding of arctic-inference and draft sessions in the same replays: M, nodes and microseconds of a step.

Held-out recordings are replayed in turns. The cache and a live datastore know nothing at first, or the outputs of the
recordings for fitting, and both learn from each output in turn. The last rows are sessions of all datastores, too.

Needs the package: pip install --no-build-isolation --no-deps arctic-inference==0.3.0
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from timing import percentiles

from rest_store.bench.datastores import open_datastores
from rest_store.bench.options import (
    Destination,
    datastores_option,
    every_option,
    recordings_option,
    require_datastores,
    result_options,
)
from rest_store.bench.recordings import Recording, read_recordings, split
from rest_store.bench.remembering import add_outputs, new_live_datastore
from rest_store.bench.replay import Outcome, replay, walk
from rest_store.bench.results import write_result
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.options import SETTINGS

BUDGETS = (16, 64)
DEPTH = 64  # of its trees, as documented
# By budget: the best on the recordings for fitting, of chains and trees, factors 1 to 64, probabilities 0.1 and 0.
SETTINGS_OF = {16: {"max_spec_factor": 16.0}, 64: {"max_spec_factor": 64.0}}
Tokens = npt.NDArray[np.int32]


class SuffixDecoding:
    """A request to a suffix decoding cache, which keeps its output for later ones.

    Args:
        cache: `SuffixDecodingCache` of arctic-inference.
        request: its number.
        prompt: the text so far.
        settings: of `speculate`.
    """

    def __init__(self, cache: Any, request: int, prompt: Tokens, settings: dict[str, Any]) -> None:
        self._cache, self._request, self._settings = cache, request, settings
        self._text = prompt
        cache.start_request(request, prompt)

    def draft(self, max_nodes: int) -> TokenTree:
        """Return its tree."""
        draft = self._cache.speculate(self._request, self._text, max_spec_tokens=max_nodes, **self._settings)
        return TokenTree(draft.token_ids, draft.parents, [1] * len(draft.token_ids))

    def accept(self, tokens: Tokens, *likely: object) -> None:
        """Add the tokens to the request's output."""
        self._text = np.concatenate([self._text, tokens])
        self._cache.add_active_response(self._request, tokens)

    def close(self) -> None:
        """End the request."""
        self._cache.stop_request(self._request)


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_peers.py --recordings traces.jsonl.gz --datastore python.ds",
)
@recordings_option()
@datastores_option
@every_option
@result_options
def main(recordings: tuple[Path, ...], datastores: tuple[Path, ...], every: int, out: Destination) -> None:
    require_datastores(datastores, "bench_peers.py")
    chosen = [recording for path in recordings for recording in read_recordings(path)][::every]
    fitting, held_out = split(chosen, "bench_peers.py")
    stores = list(open_datastores(datastores).values())
    rows: list[dict[str, Any]] = []
    for knows, known in (("nothing", []), ("outputs", fitting)):
        for nodes in BUDGETS:
            row = {"knows": knows, "nodes": nodes}
            rows.append({**row, "drafting": "suffix decoding", **suffix_decoding(held_out, known, nodes)})
            local = [PromptLookup()]
            rows.append({**row, "drafting": "session", **remembering(held_out, known, stores[0], local, nodes)})
    for nodes in BUDGETS:
        sources = [PromptLookup(), RecycledLogits(), *stores]
        row = {"knows": "outputs and datastores", "nodes": nodes, "drafting": "session"}
        rows.append({**row, **remembering(held_out, fitting, stores[0], sources, nodes)})
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    write_result(out, "peers", click.get_current_context().params, ("numpy", "arctic-inference"), rows)


def suffix_decoding(recordings: Sequence[Recording], known: Sequence[Recording], nodes: int) -> dict[str, Any]:
    """Return the figures of suffix decoding."""
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    cache = SuffixDecodingCache(max_tree_depth=DEPTH)
    settings = {"min_token_prob": 0.0, "use_tree_spec": True, **SETTINGS_OF[nodes]}
    numbers = iter(range(len(known) + len(recordings)))
    for one in known:
        number = next(numbers)
        cache.start_request(number, np.zeros(0, np.int32))
        cache.add_active_response(number, one.output)
        cache.stop_request(number)

    def opening(prompt: Tokens) -> contextlib.closing[SuffixDecoding]:
        return contextlib.closing(SuffixDecoding(cache, next(numbers), prompt, settings))

    times: list[float] = []
    return figures_of(walk(recordings, opening, max_nodes=nodes, times=times), times)


def remembering(
    recordings: Sequence[Recording], known: Sequence[Recording], like: Any, sources: Sequence[object], nodes: int
) -> dict[str, Any]:
    """Return the figures of sessions with a live datastore that remembers `known`, and each recording in turn."""
    everything, times, outcomes = [*known, *recordings], [], []
    with new_live_datastore(like.tokenizer) as live:
        add_outputs(live, range(len(known)), everything)
        for number in range(len(known), len(everything)):
            one = [everything[number]]
            outcomes.append(replay(one, [*sources, live], Calibration.default(), max_nodes=nodes, times=times))
            add_outputs(live, [number], everything)
    return figures_of(Outcome.sum_of(outcomes), times)


def figures_of(outcome: Outcome, times: Sequence[float]) -> dict[str, Any]:
    step = percentiles(1e6 * seconds for seconds in times)
    return {
        "M": round(outcome.mean_accepted, 4),
        "nodes a step": round(outcome.drafted, 2),
        **{f"us a step, {part}": step[part] for part in ("median", "mean", "p99")},
    }


if __name__ == "__main__":
    main()
