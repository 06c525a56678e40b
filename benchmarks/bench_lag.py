"""Measure the loss of drafts that vLLM's plug-in looks up a step ahead, in replays.

Where vLLM schedules asynchronously, the text of the step under way is not known. The same
recordings are replayed in several ways. Drafts wait for the text; or the functions of the plug-in
choose each draft among those for all outcomes that a lookahead of so many nodes has. If the outcome
is not among them, the device continues the longest suffix of the text that occurred before in it,
or in the remembered outputs. The last rows are without these, and without both. Rows of a step for
which nothing is known have no drafts.

Each session knows nothing at first, or the outputs of the recordings of --history-from, and those
that were replayed before, in a live datastore.

The rule of vLLM's own suffix speculator, which runs on the device and so has no lag, knows the same
outputs. Of several depths of its matches, the best one is reported.

Then the time of lookups is measured, in microseconds of a core, which others cannot change: of
batches of 1, 16 and 64 rows, with as many nodes as the plug-in takes for so many rows.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from suffix_rule import SuffixMemory, SuffixRule

from rest_store.bench.measurement_options import (
    Destination,
    datastores_option,
    every_option,
    history_from_option,
    recordings_option,
    result_options,
    tokenizer_option,
)
from rest_store.bench.recorded_history import add_outputs, in_turn, new_live_datastore
from rest_store.bench.recordings import (
    Recording,
    read_all,
    remembered,
    tokenizer_identity,
    unfitted,
)
from rest_store.bench.replay import Drafter, Outcome, Tokens, walk
from rest_store.bench.results import write_result
from rest_store.command_options import SETTINGS
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.batch import accept_all, draft_all, look_ahead_all
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.engines.latest_outputs import LatestOutputs
from rest_store.engines.vllm.device_drafts import drafts_on_device
from rest_store.engines.vllm.device_outputs import DeviceOutputs
from rest_store.engines.vllm.outcomes import Outcomes
from rest_store.engines.vllm.speculator import lookahead_nodes
from rest_store.live.open_store import open_datastores

ROWS = (1, 16, 64)  # of batches whose lookups are timed
STEPS = 30  # of each
ROOM = 1 << 20  # tokens that a text may still grow by
DEPTHS = (8, 16, 24, 64)  # of the matches of vLLM's rule; 24 is its default


class Way(NamedTuple):
    """A way of drafting.

    Attributes:
        nodes: of a lookahead; 0: drafts wait for the text.
        searched: where the device searches for texts whose outcome was not foreseen: "text and
            memory", "text" or "nothing".
    """

    nodes: int = 0
    searched: str = "text and memory"

    @property
    def columns(self) -> dict[str, Any]:
        """The first columns of its row in the results."""
        way = "ahead" if self.nodes else "waiting"
        return {"way": way, "nodes": self.nodes, "device searches": self.searched}


class Request:
    """A drafter for `walk`: one request of an engine, whose steps verify chains.

    Args:
        session: its session.
        prompt: the text so far.
        way: of drafting.
        length: draft tokens that a step verifies.
        memory: remembered outputs, as the device has them.
    """

    def __init__(
        self,
        session: DraftSession,
        prompt: Tokens,
        way: Way,
        length: int,
        memory: torch.Tensor | None,
    ) -> None:
        self._session = session
        self._memory = memory if way.searched == "text and memory" else None
        self._way = way
        self._length = length
        self._known = prompt.size
        self._text = torch.zeros(1, 2 * prompt.size + length + 1, dtype=torch.int32)
        self._text[0, : prompt.size] = torch.from_numpy(prompt.copy())
        self._draft: Tokens = np.zeros(0, np.int32)  # the first step reads the prompt

    def draft(self, max_nodes: int, costs: object = None) -> TokenTree:
        """Return the chain that the step verifies."""
        size = self._draft.size
        return TokenTree(self._draft, range(-1, size - 1), [0] * size)

    def accept(self, tokens: Tokens, top_k: Tokens | None) -> None:
        """Take the tokens of the step, and draft before or after they are known."""
        if self._way.nodes:
            self._draft = self._draft_ahead(tokens)
            self._session.accept(tokens, top_k)
        else:
            self._session.accept(tokens, top_k)
            self._draft = self._session.draft(self._length, shape="chain").tokens

    def _draft_ahead(self, tokens: Tokens) -> Tokens:
        [tree] = look_ahead_all(
            [self._session], [self._draft], self._way.nodes, length=self._length
        )
        end = self._known + tokens.size
        if self._text.shape[1] < end:
            self._text = torch.nn.functional.pad(self._text, (0, end))
        self._text[0, self._known : end] = torch.from_numpy(tokens.copy())
        drafts = drafts_on_device(
            [Outcomes.from_tree(tree, self._draft, self._length, ROOM, None)],
            [self._known],
            self._text,
            torch.tensor([0]),
            torch.tensor([end]),
            torch.full((1, self._length), -1),
            looks_up_texts=self._way.searched != "nothing",
            outputs=[self._memory],
        )
        assert drafts is not None
        self._known = end
        chosen = drafts.tokens[0].numpy().astype(np.int32)
        return chosen[np.minimum.accumulate(chosen >= 0)]


class RuleRequest:
    """A drafter for `walk`: one request of vLLM's suffix speculator.

    Args:
        rule: its drafts.
        length: draft tokens that a step verifies.
    """

    def __init__(self, rule: SuffixRule, length: int) -> None:
        self._rule = rule
        self._length = length
        self._has_read = False

    def draft(self, max_nodes: int, costs: object = None) -> TokenTree:
        """Return the chain that the step verifies; the first step reads the prompt."""
        return self._rule.draft(self._length) if self._has_read else TokenTree([], [], [])

    def accept(self, tokens: Tokens, top_k: Tokens | None) -> None:
        """Take the tokens of the step."""
        self._rule.accept(tokens)
        self._has_read = True

    def close(self) -> None:
        """End the request, and remember its output."""
        self._rule.close()


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog=(
        "Example: python benchmarks/bench_lag.py --recordings third.jsonl --history-from"
        " others.jsonl --tokenizer MODEL"
    ),
)
@recordings_option()
@history_from_option
@datastores_option
@tokenizer_option
@every_option
@click.option(
    "--draft-tokens",
    metavar="N",
    default=16,
    show_default=True,
    type=click.IntRange(1, 32),
    help="Draft tokens that a step verifies.",
)
@click.option(
    "--max-nodes",
    metavar="N",
    multiple=True,
    default=(64, 192, 512),
    show_default=True,
    type=click.IntRange(1, 1024),
    help="Nodes of a lookahead. Repeatable.",
)
@result_options
def main(
    recordings: tuple[Path, ...],
    history_from: tuple[Path, ...],
    datastores: tuple[Path, ...],
    tokenizer: str | None,
    every: int,
    draft_tokens: int,
    max_nodes: tuple[int, ...],
    out: Destination,
) -> None:
    stores = open_datastores(datastores)
    identity = tokenizer_identity(stores, tokenizer)
    read = read_all(recordings, stores, tokenizer)[::every]
    chosen = unfitted(read, Calibration.default(), "bench_lag.py")
    histories = {"nothing": [], **remembered(history_from, chosen, stores, tokenizer)}
    less = [Way(max(max_nodes), searched) for searched in ("text", "nothing")]
    ways = [Way(), *(Way(nodes) for nodes in max_nodes), *less]
    table_rows: list[dict[str, Any]] = []

    def show(knows: str, columns: Mapping[str, Any], outcome: Outcome) -> None:
        row = {
            "knows": knows,
            **columns,
            "M": round(outcome.mean_accepted, 4),
            "median M": round(outcome.median_accepted, 4),
            "verified": round(outcome.drafted, 2),
        }
        click.echo(", ".join(f"{name} {value}" for name, value in row.items()))
        table_rows.append(row)

    for knows, known in histories.items():
        by_depth = {depth: by_rule(chosen, known, depth, draft_tokens) for depth in DEPTHS}
        best = max(by_depth, key=lambda depth: by_depth[depth].mean_accepted)
        show(knows, {"way": "vLLM's rule", "depth": best}, by_depth[best])
        for way in ways:
            outcome = replayed(chosen, known, identity, list(stores.values()), way, draft_tokens)
            show(knows, way.columns, outcome)
    known = [*histories.values()][-1]
    times = timed(chosen, known, identity, list(stores.values()), draft_tokens)
    for time_row in times:
        click.echo(", ".join(f"{name} {value}" for name, value in time_row.items()))
    write_result(
        out,
        "lag",
        click.get_current_context().params,
        ("numpy", "torch"),
        {"rows": table_rows, "times": times},
    )


def replayed(
    recordings: Sequence[Recording],
    known: Sequence[Recording],
    tokenizer: TokenizerIdentity,
    stores: Sequence[object],
    way: Way,
    length: int,
) -> Outcome:
    """Replay recordings one after the other, with a live datastore of those that are known."""
    calibration = Calibration.default()
    outcomes = []
    with new_live_datastore(tokenizer) as live:
        # It is read anew for each recording, as if much time had passed.
        outputs = LatestOutputs(live, clock=itertools.count(step=100).__next__)
        outputs.tokens()
        memory = DeviceOutputs(torch.device("cpu"))
        sources: list[object] = [PromptLookup(), *stores, live]
        if any(one.top_k.size for one in recordings):
            sources.append(RecycledLogits())

        @contextmanager
        def opening(prompt: Tokens) -> Iterator[Drafter]:
            with DraftSession(sources, prompt, calibration=calibration, learn=False) as session:
                outputs.refresh()
                yield Request(session, prompt, way, length, memory.copy_of(outputs.tokens()))

        for one, before in in_turn([*known, *recordings], live):
            if len(before) >= len(known):
                outcomes.append(walk([one], opening, max_nodes=length))
    return Outcome.from_outcomes(outcomes)


def by_rule(
    recordings: Sequence[Recording], known: Sequence[Recording], depth: int, length: int
) -> Outcome:
    """Replay recordings one after the other with vLLM's rule, with a memory of those known."""
    memory = SuffixMemory()
    for one in known:
        memory.add(one.prompt, one.output)
    return walk(
        recordings,
        lambda prompt: closing(RuleRequest(SuffixRule(memory, prompt, depth=depth), length)),
        max_nodes=length,
    )


def timed(
    recordings: Sequence[Recording],
    known: Sequence[Recording],
    tokenizer: TokenizerIdentity,
    stores: Sequence[object],
    length: int,
) -> list[dict[str, Any]]:
    """Return the microseconds of a core for a row's lookup, by the rows of a batch.

    They are medians of steps.
    """
    longest = sorted(recordings, key=lambda one: -one.output.size)[: max(ROWS)]
    table_rows = []
    with new_live_datastore(tokenizer) as live:
        add_outputs(live, range(len(known)), known)
        sources = [PromptLookup(), *stores, live]
        for rows in ROWS:
            batch = (longest * rows)[:rows]
            nodes = lookahead_nodes(rows)

            sessions = [DraftSession(sources, one.prompt) for one in batch]
            waiting: list[float] = []
            ahead: list[float] = []
            for step in range(STEPS):
                began = time.process_time()
                chains = draft_all(sessions, length, shape="chain")
                between = time.process_time()
                look_ahead_all(sessions, [one.tokens for one in chains], nodes, length=length)
                ahead.append(1e6 * (time.process_time() - between) / rows)
                waiting.append(1e6 * (between - began) / rows)
                accept_all(sessions, [one.output[step : step + 1] for one in batch])
            table_rows.append(
                {
                    "rows": rows,
                    "nodes": nodes,
                    "us, waiting": round(statistics.median(waiting), 1),
                    "us, ahead": round(statistics.median(ahead), 1),
                }
            )
    return table_rows


if __name__ == "__main__":
    main()
