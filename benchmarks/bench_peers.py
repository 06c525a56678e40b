"""Other packages' ways of drafting from texts beside draft
sessions: M, nodes and microseconds of a step, in replays.

The same recordings are replayed in the same order, with the same budget of nodes. Each way knows
nothing at first, or the outputs of the recordings of --history-from, and learns from each output
once it was replayed, as in a program that runs. Of a package's ways all that are best for it are
taken: of suffix decoding chains and trees and several factors; of dejavuu's drafters chains and
trees. The best M of each is reported; with a cost model the greatest modelled speed.

Packages that are not installed are left out. Suffix decoding's cache needs a compiler and torch,
dejavuu Python 3.13: pip install --no-build-isolation --no-deps arctic-inference==0.3.0; pip install
dejavuu==0.2.0
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from timing import percentiles

from rest_store.bench.baselines import PromptLookupRule
from rest_store.bench.cost_model import Batch, CostModel, batches_of
from rest_store.bench.history import in_turn, new_live_datastore
from rest_store.bench.measurement_options import (
    Destination,
    cost_model_options,
    datastores_option,
    every_option,
    history_from_option,
    recordings_option,
    result_options,
    tokenizer_option,
)
from rest_store.bench.recordings import Recording, identity_of_texts, read_all, remembered, unfitted
from rest_store.bench.replay import Outcome, fresh, replay, walk
from rest_store.bench.results import write_result
from rest_store.command_options import SETTINGS, max_nodes_option
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.live.open_store import open_datastores

PACKAGES = {"arctic-inference": "arctic_inference", "dejavuu": "dejavuu"}
DEPTH = 64  # of suffix decoding's trees, as documented
FACTORS = (1.0, 4.0, 16.0, 64.0)  # draft tokens for each token of its match
PROBABILITIES = (0.0, 0.1, 0.3)  # below which it drafts no token
FROM_TEXT = ("rest", "sam_decoding", "asam", "suffix_decoding")  # of dejavuu
# Of dejavuu, where recordings have likely tokens.
FROM_LOGITS = ("token_recycling", "logit_spec", "stand")
WIDTHS = (1, 4)  # of dejavuu's trees; 1: chains
Tokens = npt.NDArray[np.int32]
Opening = Callable[[Tokens], contextlib.AbstractContextManager[Any]]


class SuffixDecoding:
    """A request to a suffix decoding cache, which keeps its output for later ones.

    A drafter for `walk`.

    Args:
        cache: `SuffixDecodingCache` of arctic-inference.
        request: its number.
        prompt: the text so far.
        settings: of `speculate`.
    """

    def __init__(
        self, cache: Any, request: int, prompt: Tokens, settings: Mapping[str, Any]
    ) -> None:
        self._cache, self._request, self._settings = cache, request, settings
        self._text = prompt
        cache.start_request(request, prompt)

    def draft(self, max_nodes: int, costs: object = None) -> TokenTree:
        """Return its tree."""
        context = self._text[-DEPTH:]
        draft = self._cache.speculate(
            self._request, context, max_spec_tokens=max_nodes, **self._settings
        )
        return TokenTree(draft.token_ids, draft.parents, [1] * len(draft.token_ids))

    def accept(self, tokens: Tokens, top_k: Tokens | None) -> None:
        """Add the tokens to the request's output."""
        self._text = np.concatenate([self._text, tokens])
        self._cache.add_active_response(self._request, tokens)

    def close(self) -> None:
        """End the request."""
        self._cache.stop_request(self._request)


class DejavuuRequest:
    """A request to a drafter of dejavuu, which keeps what it learns for later ones.

    A drafter for `walk`.

    Args:
        drafter: from its `make_drafter`.
        width: of its trees; 1: chains.
        vocabulary_size: of the logits that it is shown, the recorded likely tokens in their order.
        prompt: the text so far.
    """

    def __init__(self, drafter: Any, width: int, vocabulary_size: int, prompt: Tokens) -> None:
        self._drafter, self._width, self._vocabulary_size = drafter, width, vocabulary_size
        self._text: list[int] = prompt.tolist()
        self._observed = max(0, prompt.size - 1)  # what comes before has no rows
        drafter.reset(self._text)

    def draft(self, max_nodes: int, costs: object = None) -> TokenTree:
        """Return its tree; its first node stands for the last token of the text."""
        arguments = (self._text, len(self._text), max_nodes)
        if self._width > 1:
            tree = self._drafter.propose_tree(*arguments, self._width)
        else:
            tree = self._drafter.propose(*arguments)
        parents = [parent - 1 for parent in tree.parent[1:]]
        return TokenTree(tree.token_ids[1:], parents, [1] * len(parents))

    def accept(self, tokens: Tokens, top_k: Tokens | None) -> None:
        """Append the tokens, and show what the model found likely after all but the last."""
        self._text += tokens.tolist()
        if top_k is not None:
            rows = top_k[:-1]
            logits = np.full((len(rows), self._vocabulary_size), -1e9, np.float32)
            ranks = np.broadcast_to(-2.0 * np.arange(rows.shape[1], dtype=np.float32), rows.shape)
            np.put_along_axis(logits, rows.astype(np.int64), ranks, axis=1)
            self._drafter.observe(self._text[self._observed : self._observed + len(rows)], logits)
            self._observed += len(rows)
        self._drafter.update(tokens.tolist())


def suffix_decoding(known: Sequence[Recording], settings: Mapping[str, Any]) -> Opening:
    """Return what begins requests to a cache that knows these outputs."""
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    cache = SuffixDecodingCache(max_tree_depth=DEPTH)
    for number, one in enumerate(known):
        cache.start_request(number, np.zeros(0, np.int32))
        cache.add_active_response(number, one.output)
        cache.stop_request(number)
    numbers = iter(range(len(known), 2**31))
    return lambda prompt: contextlib.closing(SuffixDecoding(cache, next(numbers), prompt, settings))


def dejavuu(known: Sequence[Recording], method: str, width: int, vocabulary_size: int) -> Opening:
    """Return what begins requests to a drafter that knows these
    outputs: as its datastore, or as earlier texts.
    """
    from dejavuu.drafters import DRAFTERS, make_drafter

    texts = [one.output.tolist() for one in known]
    drafter: Any = make_drafter(method, datastore=texts)
    for text in texts if not DRAFTERS[method].needs_datastore else ():
        drafter.reset(text)
        drafter.propose(text, len(text), 1)
    return lambda prompt: contextlib.nullcontext(
        DejavuuRequest(drafter, width, vocabulary_size, prompt)
    )


def peers(
    known: Sequence[Recording], packages: Sequence[str], likely: int
) -> Iterator[tuple[str, Callable[[], Opening]]]:
    """Yield each way to draft and its settings: its name, and what makes it anew.

    Args:
        known: what it knows.
        packages: that are installed.
        likely: ids of the vocabulary, if recordings have likely tokens; 0: they have none.
    """
    yield (
        "prompt lookup, 3-gram",
        lambda: lambda prompt: contextlib.nullcontext(PromptLookupRule(prompt)),
    )
    if "arctic-inference" in packages:
        for factor in FACTORS:
            for tree, probability in itertools.product((True, False), PROBABILITIES):
                settings = {
                    "min_token_prob": probability,
                    "use_tree_spec": tree,
                    "max_spec_factor": factor,
                }
                yield "suffix decoding", partial(suffix_decoding, known, settings)
    if "dejavuu" in packages:
        for method in (*FROM_TEXT, *(FROM_LOGITS if likely else ())):
            for width in WIDTHS:
                yield f"dejavuu, {method}", partial(dejavuu, known, method, width, likely)


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog=(
        "Example: python benchmarks/bench_peers.py --recordings traces.jsonl.gz --history-from"
        " traces.jsonl.gz --datastore python.ds"
    ),
)
@recordings_option()
@history_from_option
@datastores_option
@tokenizer_option
@max_nodes_option((16, 64), multiple=True)
@every_option
@cost_model_options
@result_options
def main(
    recordings: tuple[Path, ...],
    history_from: tuple[Path, ...],
    datastores: tuple[Path, ...],
    tokenizer: str | None,
    max_nodes: tuple[int, ...],
    every: int,
    cost_model: Path | None,
    batches: tuple[int, ...],
    drafting_us: float | None,
    out: Destination,
) -> None:
    packages = [
        name for name, module in PACKAGES.items() if importlib.util.find_spec(module) is not None
    ]
    stores = open_datastores(datastores)
    identity = identity_of_texts(stores, tokenizer)
    reported = unfitted(
        read_all(recordings, stores, tokenizer)[::every], Calibration.default(), "bench_peers.py"
    )
    has_logits = any(one.top_k.size for one in reported)
    rows: list[dict[str, Any]] = []
    modelled = (
        [None]
        if cost_model is None
        else batches_of(CostModel.read(cost_model), batches, drafting_us)
    )

    def show(row: dict[str, Any]) -> None:
        rows.append(row)
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)

    for knows, known in {
        "nothing": [],
        **remembered(history_from, reported, stores, tokenizer),
    }.items():
        for nodes, batch in itertools.product(max_nodes, modelled):
            begin = {
                "knows": knows,
                "nodes": nodes,
                **({} if batch is None else {"batch": batch.rows}),
            }
            best: dict[str, dict[str, Any]] = {}
            for name, make in peers(known, packages, identity.vocabulary_size if has_logits else 0):
                times: list[float] = []
                outcome = walk(reported, make(), max_nodes=nodes, batch=batch, times=times)
                row = {**begin, "drafting": name, **figures_of(outcome, times)}
                best[name] = max(
                    best.get(name, row),
                    row,
                    key=lambda one: float(one.get("modelled speed", one["M"])),
                )
            for row in best.values():
                show(row)
            local: list[object] = [PromptLookup(), *([RecycledLogits()] if has_logits else [])]
            for name, sources in {
                "session": [PromptLookup()],
                **({"session, recycled logits": local} if has_logits else {}),
                **({"session, corpora": [*local, *stores.values()]} if stores else {}),
            }.items():
                figures = remembering(reported, known, identity, sources, nodes, batch)
                show({**begin, "drafting": name, **figures})
    write_result(out, "peers", click.get_current_context().params, ("numpy", *packages), rows)


def remembering(
    recordings: Sequence[Recording],
    known: Sequence[Recording],
    tokenizer: TokenizerIdentity,
    sources: Sequence[object],
    nodes: int,
    batch: Batch | None,
) -> dict[str, Any]:
    """Return the figures of sessions with a live datastore that
    remembers `known`, and each recording in turn.
    """
    times: list[float] = []
    with new_live_datastore(tokenizer) as live:
        own = [*fresh(sources), live]  # logits of an earlier row would know these recordings
        outcome = Outcome.sum_of(
            replay(
                [one],
                own,
                Calibration.default(),
                max_nodes=nodes,
                share_logits=True,
                batch=batch,
                times=times,
            )
            for one, before in in_turn([*known, *recordings], live)
            if len(before) >= len(known)
        )
    return figures_of(outcome, times)


def figures_of(outcome: Outcome, times: Sequence[float]) -> dict[str, Any]:
    step = percentiles(1e6 * seconds for seconds in times)
    families = {name: round(one.modelled_speeds[0], 4) for name, one in outcome.by_family().items()}
    speeds = {
        "modelled speed": round(outcome.modelled_speeds[0], 4),
        "modelled speeds of families": families,
    }
    return {
        **(speeds if outcome.modelled_speeds[0] else {}),
        "M": round(outcome.mean_accepted, 4),
        "median M": round(outcome.median_accepted, 4),
        "nodes a step": round(outcome.drafted, 2),
        **{f"us a step, {part}": step[part] for part in ("median", "mean", "p99")},
    }


if __name__ == "__main__":
    main()
