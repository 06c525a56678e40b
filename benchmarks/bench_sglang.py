r"""Trees of sessions against SGLang's n-gram lookup with the same corpus: M by nodes, on a CPU.

    PYTHONPATH=. .venv-sglang/bin/python benchmarks/bench_sglang.py --model MODEL \
        --datastore python.ds --corpus t.jsonl

The script runs SGLang's engine with the kernels of tests/engines/sglang/on_cpu, so counts mean
something, and times nothing. The corpus has the datastore's texts for SGLang: JSON lines, a string
each.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from rest_store.bench.measurement_options import Destination, result_options
from rest_store.bench.results import write_result
from rest_store.command_options import (
    FILE,
    PATH,
    SETTINGS,
    max_new_tokens_option,
    max_nodes_option,
    model_option,
)
from tests.engines.sglang.engine import answers

GREEDY = {"temperature": 0.0}


@click.command(
    context_settings=SETTINGS,
    epilog=(
        "Example: python benchmarks/bench_sglang.py --model smollm2 --datastore python.ds --corpus"
        " texts.jsonl"
    ),
)
@model_option
@click.option(
    "--datastore", metavar="DIR", type=PATH, required=True, help="Datastore to draft from."
)
@click.option(
    "--corpus",
    metavar="FILE",
    type=FILE,
    required=True,
    help="Text for the datastore: texts, JSON Lines.",
)
@click.option(
    "--prompts",
    metavar="FILE",
    type=FILE,
    default=Path("benchmarks/prompts.jsonl"),
    help="Prompts for the model: JSON Lines.",
)
@click.option(
    "--requests", metavar="N", type=click.IntRange(1), default=8, help="Prompts that are used."
)
@max_new_tokens_option(64)
@max_nodes_option((8, 16), multiple=True)
@result_options
def main(
    model: str,
    datastore: Path,
    corpus: Path,
    prompts: Path,
    requests: int,
    max_new_tokens: int,
    max_nodes: tuple[int, ...],
    out: Destination,
) -> None:
    """Measure M, the tokens of a step, by algorithm and nodes."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [json.loads(line)["prompt"] for line in prompts.read_text().splitlines()]
    texts = texts[:: max(1, len(texts) // requests)][:requests]
    rounds = []
    for text in texts:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        sampling = {**GREEDY, "max_new_tokens": max_new_tokens}
        rounds.append([{"input_ids": ids, "sampling_params": sampling}])
    table_rows = []
    settings = {"datastores": [str(datastore.resolve())]}
    for width in max_nodes:
        known = run(model, rounds, settings, width)
        table_rows.append(row("trees of sessions", width, known))
        known = run(model, rounds, settings, width, speculative_eagle_topk=1)
        table_rows.append(row("chains of sessions", width, known))
        # Draft tokens from the corpus; the others are from the text so far.
        for share in (width - 1, width // 2, width // 4):
            ngram = {
                "speculative_algorithm": "NGRAM",
                "speculative_ngram_external_corpus_path": str(corpus.resolve()),
                "speculative_ngram_external_sam_budget": share,
            }
            known = run(model, rounds, None, width, **ngram)
            table_rows.append(row(f"SGLang's NGRAM, corpus {share}", width, known))
    figures = {"rows": table_rows}
    write_result(out, "sglang", click.get_current_context().params, ("numpy", "sglang"), figures)


def run(
    model: str,
    rounds: list[list[dict[str, Any]]],
    settings: dict[str, Any] | None,
    width: int,
    **server: Any,
) -> list[dict[str, Any]]:
    """Return the meta information of each request."""
    server = {
        "model_path": model,
        "max_total_tokens": 8192,
        "speculative_num_draft_tokens": width,
        **server,
    }
    with tempfile.TemporaryDirectory() as folder:
        outputs = answers(Path(folder) / "run", server, rounds, settings)
    known = []
    for round_answers in outputs:
        known += [answer["meta_info"] for answer in round_answers]
    return known


def row(name: str, width: int, known: list[dict[str, Any]]) -> dict[str, Any]:
    """Return and show the figures of one way.

    The first token of a request comes with its prompt.
    """
    tokens = sum(one["completion_tokens"] - 1 for one in known)
    steps = sum(one["spec_verify_ct"] for one in known)
    click.echo(f"{name}, {width} nodes: M {tokens / steps:.2f}")
    return {
        "algorithm": name,
        "nodes": width,
        "M": round(tokens / steps, 3),
        "tokens": tokens,
        "steps": steps,
    }


if __name__ == "__main__":
    main()
