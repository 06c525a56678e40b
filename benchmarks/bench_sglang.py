"""Trees of sessions against the n-gram lookup of SGLang, with the same corpus: tokens and nodes of a step, on a CPU.

    PYTHONPATH=. .venv-sglang/bin/python benchmarks/bench_sglang.py --model MODEL --datastore python.ds --corpus t.jsonl

It runs SGLang's engine with the kernels of tests/engines/sglang/on_cpu, so only counts are meaningful, not times. The
corpus has the datastore's texts for SGLang: JSON lines, a string each.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from tests.engines.sglang.engine import answers

GREEDY = {"temperature": 0.0}


@click.command()
@click.option("--model", required=True, help="Directory of the model.")
@click.option("--datastore", required=True, type=click.Path(exists=True, path_type=Path), help="What is drafted from.")
@click.option("--corpus", required=True, type=click.Path(exists=True, path_type=Path), help="The same for SGLang.")
@click.option("--prompts", type=click.Path(exists=True, path_type=Path), default=Path("benchmarks/prompts.jsonl"))
@click.option("--requests", default=8, show_default=True, help="Prompts that are used, one after the other.")
@click.option("--max-new-tokens", default=64, show_default=True)
@click.option("--nodes", multiple=True, default=(8, 16), show_default=True, type=int, help="Of a step; repeatable.")
def main(
    model: str, datastore: Path, corpus: Path, prompts: Path, requests: int, max_new_tokens: int, nodes: tuple[int, ...]
) -> None:
    """Print a table of M, the tokens of a step, by algorithm and nodes."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    texts = [json.loads(line)["prompt"] for line in prompts.read_text().splitlines()]
    texts = texts[:: max(1, len(texts) // requests)][:requests]
    rounds = [
        [
            {
                "input_ids": tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
                ),
                "sampling_params": {**GREEDY, "max_new_tokens": max_new_tokens},
            }
        ]
        for text in texts
    ]
    click.echo(f"{requests} prompts, {max_new_tokens} tokens at most, one request at a time\n")
    click.echo("| algorithm | nodes | M | accepted of a step's drafts |\n| --- | --- | --- | --- |")
    for width in nodes:
        settings = {"datastores": [str(datastore.resolve())]}
        row("trees of sessions", width, run(model, rounds, settings, width))
        row("chains of sessions", width, run(model, rounds, settings, width, speculative_eagle_topk=1))
        ngram = {
            "speculative_algorithm": "NGRAM",
            "speculative_ngram_external_corpus_path": str(corpus.resolve()),
            "speculative_ngram_external_sam_budget": width - 1,
        }
        row("SGLang's NGRAM", width, run(model, rounds, None, width, **ngram))


def run(
    model: str, rounds: list[list[dict[str, Any]]], settings: dict[str, Any] | None, width: int, **server: Any
) -> list[dict[str, Any]]:
    """Return what is known of each request."""
    server = {"model_path": model, "max_total_tokens": 8192, "speculative_num_draft_tokens": width, **server}
    with tempfile.TemporaryDirectory() as place:
        outputs = answers(Path(place) / "run", server, rounds, settings)
    return [answer["meta_info"] for answered in outputs for answer in answered]


def row(name: str, width: int, known: list[dict[str, Any]]) -> None:
    """Print a row of the table; the first token of a request comes with its prompt."""
    tokens = sum(one["completion_tokens"] - 1 for one in known)
    steps = sum(one["spec_verify_ct"] for one in known)
    click.echo(f"| {name} | {width} | {tokens / steps:.2f} | {tokens / steps - 1:.2f} of {width - 1} |")


if __name__ == "__main__":
    main()
