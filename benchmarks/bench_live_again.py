"""What a live datastore gives for prompts that are asked again in other words, or continued by a second turn.

The model answers MT-Bench's questions that no calibration was fitted to, greedily: the first turn; the same question in
other words around it; and the second turn, whose prompt holds the first question and its answer. The last two are
replayed while nothing is remembered, and while the first answer is, with all other first answers. Sessions draft from
the text, the recycled logits of the text itself, the datastores, and the live one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from rest_store.bench.datastores import open_datastores
from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, datastores_option, result_options
from rest_store.bench.prompts import Prompt, chat_tokens, read_questions
from rest_store.bench.record import recordings_of
from rest_store.bench.recordings import Recording
from rest_store.bench.remembering import add_outputs, new_live_datastore
from rest_store.bench.replay import Outcome, replay
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.generation.model import load_model
from rest_store.options import PATH, SETTINGS, dtype_option, max_new_tokens_option, model_option
from rest_store.terminal import loading

FRAME = "I have a task for you. {} Please take your time, and answer as well as you can."
NODES = (16, 64)


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_live_again.py --model SmolLM2.gguf --questions specbench.jsonl.gz "
    "--datastore chat.ds",
)
@model_option
@click.option("--questions", metavar="FILE", type=PATH, required=True, help="Questions in MT-Bench's layout.")
@datastores_option
@click.option("--count", metavar="N", default=16, help="Questions of two turns that are asked.")
@max_new_tokens_option()
@dtype_option("auto")
@result_options
def main(
    model: str,
    questions: Path,
    datastores: tuple[Path, ...],
    count: int,
    max_new_tokens: int,
    dtype: str,
    out: Destination,
) -> None:
    stores = list(open_datastores(datastores).values())
    asked = [question for question in read_questions(questions) if len(question.turns) > 1][:count]
    loaded, tokenizer = load_model(model, dtype=dtype, announce=loading)

    def answers(family: str, conversations: Sequence[Sequence[str]]) -> list[Recording]:
        prompts = [
            Prompt(family, question.key, chat_tokens(tokenizer, turns))
            for question, turns in zip(asked, conversations, strict=True)
        ]
        rows = list(recordings_of(loaded, prompts, max_new_tokens=max_new_tokens))
        print(f"{family}: {sum(len(row['output']) for row in rows)} tokens", flush=True)
        return [recording_of(row) for row in rows]

    first = answers("first turn", [question.turns[:1] for question in asked])
    texts = [tokenizer.decode(one.output, skip_special_tokens=True) for one in first]
    again = {
        "in other words": answers("in other words", [[FRAME.format(question.turns[0])] for question in asked]),
        "second turn": answers(
            "second turn", [[one.turns[0], text, one.turns[1]] for one, text in zip(asked, texts, strict=True)]
        ),
    }
    rows: list[dict[str, Any]] = []
    for nodes in NODES:
        for name, recordings in again.items():
            with new_live_datastore(stores[0].tokenizer) as live:
                for remembered in ("nothing", "the first answers"):
                    if remembered != "nothing":
                        add_outputs(live, range(len(first)), first)
                    sources = [PromptLookup(), RecycledLogits(), *stores, *([live] if remembered != "nothing" else [])]
                    outcome: Outcome = replay(recordings, sources, Calibration.default(), max_nodes=nodes)
                    row = {"asked": name, "remembered": remembered, "nodes": nodes, **outcome.as_json()}
                    rows.append(row)
                    print(f"{nodes:>3} nodes  {name:<16} {remembered:<18} M {row['M']:.3f}", flush=True)
    results = {"questions": len(asked), "tokens": {name: _tokens(of) for name, of in again.items()}, "rows": rows}
    write_result(out, "live_again", click.get_current_context().params, ("numpy", "torch", "transformers"), results)


def recording_of(row: dict[str, Any]) -> Recording:
    """Return what `recordings_of` yields as a recording."""
    tokens = [np.array(row[name], np.int32) for name in ("prompt", "output", "topk")]
    return Recording(row["set"], 0, *tokens, row["id"])


def _tokens(recordings: Sequence[Recording]) -> int:
    return sum(one.output.size for one in recordings)


if __name__ == "__main__":
    main()
