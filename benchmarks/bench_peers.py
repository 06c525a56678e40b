"""Other packages' drafters beside draft sessions: M, nodes and microseconds of a step, in replays.

The same recordings are replayed in the same order, with the same budget of nodes. Each drafter
knows nothing at first, or the outputs of the recordings of --history-from, and learns from each
output after its replay, as in a running program. Several settings of each drafter are tried: of
suffix decoding chains and trees and several factors; of dejavuu's drafters chains and trees. The
best M of each is reported; with a cost model the greatest modelled speed.

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
from rest_store.bench.cost_model import Batch, CostModel, make_batches
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
from rest_store.bench.recorded_history import in_turn, new_live_datastore
from rest_store.bench.recordings import (
    Recording,
    read_all,
    remembered,
    tokenizer_identity,
    unfitted,
)
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
# Drafters of dejavuu; the latter need recordings with likely tokens.
FROM_TEXT = ("rest", "sam_decoding", "asam", "suffix_decoding")
FROM_LOGITS = ("token_recycling", "logit_spec", "stand")
WIDTHS = (1, 4)  # of dejavuu's trees; 1: chains
Tokens = npt.NDArray[np.int32]
Opening = Callable[[Tokens], contextlib.AbstractContextManager[Any]]


class SuffixDecoding:
    """A drafter for `walk`: a request to a suffix decoding cache.

    The cache holds its output for later requests.

    Args:
        cache: `SuffixDecodingCache` of arctic-inference.
        request: its number.
        prompt: the text so far.
        settings: arguments of `speculate`.
    """

    def __init__(
        self, cache: Any, request: int, prompt: Tokens, settings: Mapping[str, Any]
    ) -> None:
        self._cache = cache
        self._request = request
        self._settings = settings
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
    """A drafter for `walk`: a request to a drafter of dejavuu.

    The drafter holds its experience for later requests.

    Args:
        drafter: a result of `make_drafter`.
        width: width of its trees; 1: chains.
        vocabulary_size: size of the logits that it gets, made from the recorded likely tokens.
        prompt: the text so far.
    """

    def __init__(self, drafter: Any, width: int, vocabulary_size: int, prompt: Tokens) -> None:
        self._drafter = drafter
        self._width = width
        self._vocabulary_size = vocabulary_size
        self._text: list[int] = prompt.tolist()
        self._observed = max(0, prompt.size - 1)  # earlier tokens have no top-k
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
        """Append the tokens, and show the likely tokens after all but the last."""
        self._text += tokens.tolist()
        if top_k is not None:
            known = top_k[:-1]
            logits = np.full((len(known), self._vocabulary_size), -1e9, np.float32)
            ranks = np.broadcast_to(-2.0 * np.arange(known.shape[1], dtype=np.float32), known.shape)
            np.put_along_axis(logits, known.astype(np.int64), ranks, axis=1)
            end = self._observed + len(known)
            self._drafter.observe(self._text[self._observed : end], logits)
            self._observed = end
        self._drafter.update(tokens.tolist())


def suffix_decoding(known: Sequence[Recording], settings: Mapping[str, Any]) -> Opening:
    """Return a function that begins requests to a cache that knows these outputs."""
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    cache = SuffixDecodingCache(max_tree_depth=DEPTH)
    for number, one in enumerate(known):
        cache.start_request(number, np.zeros(0, np.int32))
        cache.add_active_response(number, one.output)
        cache.stop_request(number)
    numbers = iter(range(len(known), 2**31))
    return lambda prompt: contextlib.closing(SuffixDecoding(cache, next(numbers), prompt, settings))


def dejavuu(known: Sequence[Recording], method: str, width: int, vocabulary_size: int) -> Opening:
    """Return a function that begins requests to a drafter that knows these outputs.

    The outputs are its datastore, or earlier texts.
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
    """Yield the name of each drafter and a function that makes it anew, for each of its settings.

    Args:
        known: recordings whose outputs it knows.
        packages: the packages that are installed.
        likely: size of the vocabulary, if recordings have likely tokens; 0: they have none.
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
    identity = tokenizer_identity(stores, tokenizer)
    reported = unfitted(
        read_all(recordings, stores, tokenizer)[::every], Calibration.default(), "bench_peers.py"
    )
    has_logits = any(one.top_k.size for one in reported)
    table_rows: list[dict[str, Any]] = []
    modelled: list[Batch | None] = [None]
    if cost_model is not None:
        modelled = [*make_batches(CostModel.read(cost_model), batches, drafting_us)]
    local: list[object] = [PromptLookup()]
    sources_by_name = {"session": [*local]}
    if has_logits:
        local.append(RecycledLogits())
        sources_by_name["session, recycled logits"] = [*local]
    if stores:
        sources_by_name["session, corpora"] = [*local, *stores.values()]
    histories = {"nothing": [], **remembered(history_from, reported, stores, tokenizer)}

    def show(row: dict[str, Any]) -> None:
        table_rows.append(row)
        print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)

    def merit(row: dict[str, Any]) -> float:
        return float(row.get("modelled speed", row["M"]))

    for knows, known in histories.items():
        for nodes, batch in itertools.product(max_nodes, modelled):
            begin = {"knows": knows, "nodes": nodes}
            if batch is not None:
                begin["batch"] = batch.sequences
            best: dict[str, dict[str, Any]] = {}
            for name, make in peers(known, packages, identity.vocabulary_size if has_logits else 0):
                times: list[float] = []
                outcome = walk(reported, make(), max_nodes=nodes, batch=batch, times=times)
                row = {**begin, "drafting": name, **replay_figures(outcome, times)}
                best[name] = max(best.get(name, row), row, key=merit)
            for row in best.values():
                show(row)
            for name, sources in sources_by_name.items():
                figures = with_history(reported, known, identity, sources, nodes, batch)
                show({**begin, "drafting": name, **figures})
    write_result(out, "peers", click.get_current_context().params, ("numpy", *packages), table_rows)


def with_history(
    recordings: Sequence[Recording],
    known: Sequence[Recording],
    tokenizer: TokenizerIdentity,
    sources: Sequence[object],
    nodes: int,
    batch: Batch | None,
) -> dict[str, Any]:
    """Return the figures of sessions with a live datastore of `known` and the recordings before."""
    times: list[float] = []
    outcomes = []
    calibration = Calibration.default()
    with new_live_datastore(tokenizer) as live:
        own = [*fresh(sources), live]  # logits of an earlier row would know these recordings
        for one, before in in_turn([*known, *recordings], live):
            if len(before) < len(known):
                continue
            outcome = replay(
                [one],
                own,
                calibration,
                max_nodes=nodes,
                share_logits=True,
                batch=batch,
                times=times,
            )
            outcomes.append(outcome)
    return replay_figures(Outcome.from_outcomes(outcomes), times)


def replay_figures(outcome: Outcome, times: Sequence[float]) -> dict[str, Any]:
    step = percentiles(1e6 * seconds for seconds in times)
    figures: dict[str, Any] = {}
    if outcome.modelled_speeds[0]:
        figures["modelled speed"] = round(outcome.modelled_speeds[0], 4)
        figures["modelled speeds of families"] = {
            name: round(one.modelled_speeds[0], 4) for name, one in outcome.by_family().items()
        }
    figures["M"] = round(outcome.mean_accepted, 4)
    figures["median M"] = round(outcome.median_accepted, 4)
    figures["nodes a step"] = round(outcome.drafted, 2)
    for name in ("median", "mean", "p99"):
        figures[f"us a step, {name}"] = step[name]
    return figures


if __name__ == "__main__":
    main()
