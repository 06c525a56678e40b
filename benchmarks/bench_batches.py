"""The draft tokens of a batch, chosen for each row alone and for all rows together, in replays.

Recorded requests run in a batch whose places are filled again as requests end. Outputs end after
256 tokens, so that no long one that repeats itself decides. The time of a step
is that of a cost model (`--cost-model`); drafting takes `--drafting-us` a row. Two kinds of steps
are modelled: in one, rows are padded to the longest draft, as transformers' models need; in the
other, each row takes the time of its own tokens, as in vLLM. Speeds are relative to steps without
drafts.

- alone: each row has the size with most tokens per second if all rows had it.
- together: all rows have the width of most tokens per second of the batch (`batch_width`); without
  padding, the batch has its best nodes of all rows.
- N nodes: each row has as many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from rest_store.bench.cost_model import CostModel
from rest_store.bench.measurement_options import (
    Destination,
    cost_model_options,
    datastores_option,
    every_option,
    recordings_option,
    result_options,
    tokenizer_option,
)
from rest_store.bench.recordings import Recording, read_all
from rest_store.bench.results import write_result
from rest_store.command_options import SETTINGS, max_nodes_option
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.batch import accept_all, batch_width, best_nodes, draft_all
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.merge import subtree
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup
from rest_store.live.open_store import open_datastores

Floats = npt.NDArray[np.float64]
_MAX_TOKENS = 256  # of an output


class Row(NamedTuple):
    """A request in a batch.

    Attributes:
        text: prompt and output.
        session: its session.
    """

    text: npt.NDArray[np.int32]
    session: DraftSession


class Step(NamedTuple):
    """A step of a batch before drafts are cut.

    Attributes:
        trees: of each row.
        fixed: seconds without draft tokens.
        token: seconds of a draft token.
    """

    trees: Sequence[TokenTree]
    fixed: float
    token: float

    def costs(self, most: int, rows: int) -> Floats:
        """Return the seconds of a step with 0 .. `most` draft tokens in each of `rows` rows."""
        costs: Floats = self.fixed + rows * self.token * np.arange(1 + most, dtype=np.float64)
        return costs


# How many nodes each tree of a step may have.
Choice = Callable[[Step], list[int]]


def alone(step: Step) -> list[int]:
    rows = len(step.trees)
    sizes = []
    for tree in step.trees:
        sizes.append(batch_width([tree], step.costs(len(tree), rows)))
    return sizes


def one_width(step: Step) -> list[int]:
    rows = len(step.trees)
    most = max(map(len, step.trees))
    width = batch_width(step.trees, step.costs(most, rows))
    return [width] * rows


def best_of_all(step: Step) -> list[int]:
    scores = [np.zeros(0) if tree.scores is None else tree.scores for tree in step.trees]
    ordered = np.sort(np.concatenate(scores).astype(np.float64))[::-1]
    expected = len(step.trees) + np.concatenate([[0.0], ordered.cumsum()])
    nodes = int(np.argmax(expected / (step.fixed + step.token * np.arange(expected.size))))
    least = ordered[nodes - 1] if nodes else np.inf
    return [int((own >= least).sum()) for own in scores]


def nodes_each(count: int) -> Choice:
    return lambda step: [count] * len(step.trees)


class Outcome(NamedTuple):
    """The outcome of a batch.

    Attributes:
        speed: tokens a second.
        mean_tokens: tokens of a row in a step.
        nodes: draft tokens of a row in a step, with padding.
    """

    speed: float
    mean_tokens: float
    nodes: float


def run(
    requests: Sequence[Recording],
    places: int,
    sources: Sequence[object],
    model: CostModel,
    choice: Choice | None,
    *,
    is_padded: bool,
    max_nodes: int,
    drafting: float,
) -> Outcome:
    """Run requests in a batch of so many places; without a `choice`, there are no drafts."""
    calibration = Calibration.default()
    waiting = [one for one in reversed(requests) if one.output.size]
    rows: list[Row] = []
    seconds = 0.0
    tokens = row_steps = nodes = 0
    while waiting or rows:
        while waiting and len(rows) < places:
            one = waiting.pop()
            session = DraftSession([PromptLookup(), *sources], one.prompt, calibration=calibration)
            rows.append(Row(np.concatenate([one.prompt, one.output[:_MAX_TOKENS]]), session))
        lengths = [len(row.session) for row in rows]
        fixed = model.fixed + model.overhead + sum(lengths) * model.cached_token
        fixed += len(rows) * model.verified_token
        sizes = [0] * len(rows)
        if choice is not None:
            trees = draft_all([row.session for row in rows], max_nodes)
            chosen = choice(Step(trees, fixed, model.verified_token))
            cut = []
            for tree, size in zip(trees, chosen, strict=True):
                cut.append(subtree(tree, best_nodes(tree, size)))
            sizes = [len(tree) for tree in cut]
        verified = len(rows) * max(sizes) if is_padded else sum(sizes)
        seconds += fixed + verified * model.verified_token
        seconds += 0.0 if choice is None else len(rows) * drafting
        written = []
        for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            path = 0 if choice is None else len(cut[number].longest_path(row.text[length:]))
            written.append(row.text[length : length + path + 1])
        accept_all([row.session for row in rows], written)
        tokens += sum(map(len, written))
        row_steps += len(rows)
        nodes += verified
        for row in rows:
            if len(row.session) == row.text.size:
                row.session.close()
        rows = [row for row in rows if len(row.session) < row.text.size]
    return Outcome(tokens / seconds, tokens / row_steps, nodes / row_steps)


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog=(
        "Example: python benchmarks/bench_batches.py --recordings llama.jsonl.gz --datastore"
        " chat.ds --cost-model benchmarks/costs_h100_llama31_8b.json --batch 8 --drafting-us 6"
    ),
)
@recordings_option()
@datastores_option
@tokenizer_option
@max_nodes_option((24,), multiple=True)
@every_option
@cost_model_options
@result_options
def main(
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    tokenizer: str | None,
    max_nodes: tuple[int, ...],
    every: int,
    cost_model: Path | None,
    batches: tuple[int, ...],
    drafting_us: float | None,
    out: Destination,
) -> None:
    if cost_model is None:
        raise click.UsageError("--cost-model is needed")
    model = CostModel.read(cost_model)
    stores = open_datastores(datastores)
    requests = read_all(recordings, stores, tokenizer)[::every]
    order = np.random.default_rng(0).permutation(len(requests))
    shuffled = [requests[number] for number in order]
    drafting = (drafting_us or 0.0) / 1e6
    table_rows: list[dict[str, Any]] = []
    for places in batches:
        chosen = shuffled[: 2 * places + 24]
        for is_padded in (True, False):
            choices: dict[str, Choice | None] = {
                "no drafts": None,
                "alone": alone,
                "together": one_width if is_padded else best_of_all,
                **{f"{count} nodes": nodes_each(count) for count in (2, 4, 8)},
            }
            outcomes = {}
            for name, choice in choices.items():
                outcomes[name] = run(
                    chosen,
                    places,
                    list(stores.values()),
                    model,
                    choice,
                    is_padded=is_padded,
                    max_nodes=max(max_nodes),
                    drafting=drafting,
                )
                outcome = outcomes[name]
                row = {
                    "batch": places,
                    "requests": len(chosen),
                    "padded": is_padded,
                    "choice": name,
                    "modelled_speed": round(outcome.speed / outcomes["no drafts"].speed, 4),
                    "M": round(outcome.mean_tokens, 4),
                    "nodes": round(outcome.nodes, 2),
                }
                table_rows.append(row)
                print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    results = {"cost_model": model.source, "rows": table_rows}
    write_result(
        out, "batches", click.get_current_context().params, ("numpy", "rest-store"), results
    )


if __name__ == "__main__":
    main()
