"""Drafts inside vLLM: an engine that drafts from a datastore, and remembers its outputs.

python examples/vllm_drafts.py MODEL code.ds --remember live.ds
"""

from typing import Any

import click
from vllm import LLM, SamplingParams


@click.command()
@click.argument("model")
@click.argument("datastore")
@click.option("--remember", help="A live datastore, new or as it is, that outputs are added to.")
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    default=["def add(", "def push(self, item):"],
    show_default=True,
)
@click.option("--max-new-tokens", default=64, show_default=True, help="Most tokens to write.")
@click.option("--max-model-len", type=int, help="Longest text of the engine.")
def main(
    model: str,
    datastore: str,
    remember: str | None,
    prompts: tuple[str, ...],
    max_new_tokens: int,
    max_model_len: int | None,
) -> None:
    """Continue prompts with MODEL in vLLM, and drafts from DATASTORE."""
    settings: dict[str, Any] = {"datastores": [datastore]}
    if remember is not None:
        settings["remember"] = remember
    llm = LLM(
        model=model,
        dtype="float32",
        max_model_len=max_model_len,
        disable_log_stats=False,
        speculative_config={"method": "ngram_gpu", "num_speculative_tokens": 8},
        additional_config={"rest_store": settings},
    )
    sampling = SamplingParams(temperature=0, max_tokens=max_new_tokens)
    for answer in llm.generate(list(prompts), sampling):
        print(answer.prompt + answer.outputs[0].text, end="\n\n")
    accepted = [
        metric
        for metric in llm.get_metrics()
        if metric.name == "vllm:spec_decode_num_accepted_tokens"
    ]
    print(f"{sum(metric.value for metric in accepted)} draft tokens were accepted")


if __name__ == "__main__":
    main()
