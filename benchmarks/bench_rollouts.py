r"""GRPO with TRL, with and without a history of samples: seconds of rollouts, passes, and rewards.

    pip install '.[hf,live]' trl
    python examples/smollm2.py smollm2
    python benchmarks/bench_rollouts.py --model smollm2 --questions questions.jsonl \
        --out rollouts.json

`questions.jsonl` (or `.jsonl.gz`) is Spec-Bench's file of questions. All ways begin with the same
weights and seed, on one thread. If drafts change nothing but time, ways that write as many samples
at once write the same samples, with the same digest. Then their rewards and the weights that they
train are the same, too.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import runpy
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

import rest_store
from rest_store.bench.measurement_options import Destination, result_options
from rest_store.bench.results import write_result
from rest_store.command_options import PATH, SETTINGS

EXAMPLE = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "grpo.py"))
GROUP = 8  # samples of a prompt
WAYS = {  # by name, the samples written at once, and the source of drafts
    "one by one, no drafts": (1, "nothing"),
    "one by one, prompt lookup": (1, "prompt lookup"),
    "one by one, memory": (1, "memory"),
    "a group at once, no drafts": (GROUP, "nothing"),
    "a group at once, memory": (GROUP, "memory"),
}


class Measured(EXAMPLE["Rollouts"]):  # type: ignore[misc]
    """Rollouts with a record of time and samples, by epoch.

    Args:
        arguments: arguments of `Rollouts`.

    Attributes:
        seconds: time of the processor, which other work on the machine does not change.
        prompts: the prompts of the samples.
        samples: all of them, in order.
        passes: forward passes.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seconds: dict[int, float] = defaultdict(float)
        self.prompts: dict[int, list[list[int]]] = defaultdict(list)
        self.samples: dict[int, list[list[int]]] = defaultdict(list)
        self.passes: dict[int, int] = defaultdict(int)

    def __call__(self, prompts: Any, trainer: Any) -> Any:
        """Write the samples of a batch, as `Rollouts` does."""
        epoch = int(trainer.state.epoch or 0)
        began = time.process_time()
        with count_passes(trainer.model) as passes, rest_store.prepacked_weights(trainer.model):
            rollouts = super().__call__(prompts, trainer)
        self.seconds[epoch] += time.process_time() - began
        self.prompts[epoch] += rollouts["prompt_ids"]
        self.samples[epoch] += rollouts["completion_ids"]
        self.passes[epoch] += len(passes)
        return rollouts

    def write_samples(self, directory: Path) -> None:
        """Write the samples of each epoch to `epoch-N.jsonl`, for `rest-store bench replay`."""
        directory.mkdir(parents=True, exist_ok=True)
        for epoch, samples in self.samples.items():
            lines = ""
            for prompt, output in zip(self.prompts[epoch], samples, strict=True):
                lines += json.dumps({"prompt": prompt, "output": output}) + "\n"
            (directory / f"epoch-{epoch}.jsonl").write_text(lines, encoding="utf-8")


@contextmanager
def count_passes(model: torch.nn.Module) -> Iterator[list[None]]:
    """Return a list that grows with each forward pass of `model`."""
    passes: list[None] = []
    hook = model.register_forward_pre_hook(lambda *_: passes.append(None))
    yield passes
    hook.remove()


def read_questions(path: Path, category: str, number: int) -> list[str]:
    """Return the first questions of a category that are short."""
    texts: list[str] = []
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            question = json.loads(line)
            text = question["turns"][0]
            if question["category"] == category and len(text) < 600 and len(texts) < number:
                texts.append(text)
    return texts


def train(
    model: str, questions: list[str], config: Any, sequences: int, drafts: str
) -> tuple[Measured, list[float]]:
    """Train once; return the rollouts, and the mean reward of each step."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    lookup = rest_store.PromptLookup()
    with (
        tempfile.TemporaryDirectory() as folder,
        rest_store.LiveDatastore.open(folder, tokenizer=model) as live,
    ):
        sources = {"nothing": None, "prompt lookup": [lookup]}
        sources["memory"] = [live, lookup, rest_store.RecycledLogits()]
        remembers = live if drafts == "memory" else None
        rollouts = Measured(sources[drafts], remembers, rows=sequences)
        trainer = trl.GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
            EXAMPLE["brevity"],
            config,
            Dataset.from_list(
                [{"prompt": [{"role": "user", "content": text}]} for text in questions]
            ),
            processing_class=tokenizer,
            rollout_func=rollouts,
        )
        trainer.train()
    return rollouts, [step["reward"] for step in trainer.state.log_history if "reward" in step]


@click.command(help=__doc__, context_settings=SETTINGS)
@click.option("--model", metavar="DIR", required=True, help="Directory of the model.")
@click.option("--questions", metavar="FILE", type=PATH, required=True, help="Spec-Bench's.")
@click.option("--category", metavar="NAME", default="math_reasoning", help="Of the questions.")
@click.option("--number", metavar="N", default=3, help="Of the questions.")
@click.option("--epochs", metavar="N", default=4, help="How often each question is sampled for.")
@click.option("--max-new-tokens", metavar="N", default=64, help="Of a sample.")
@click.option("--learning-rate", metavar="RATE", default=1e-5, help="Of the training.")
@click.option(
    "--samples",
    "directory",
    metavar="DIR",
    type=PATH,
    help="Folder for the samples of the last way.",
)
@click.option(
    "--way",
    "ways",
    multiple=True,
    type=click.Choice(list(WAYS)),
    default=list(WAYS),
    help="Repeatable.",
)
@result_options
def main(
    model: str,
    questions: Path,
    category: str,
    number: int,
    epochs: int,
    max_new_tokens: int,
    learning_rate: float,
    directory: Path | None,
    ways: tuple[str, ...],
    out: Destination,
) -> None:
    torch.set_num_threads(1)
    chosen = read_questions(questions, category, number)
    results = {}
    for way in ways:
        with tempfile.TemporaryDirectory() as checkpoints:
            config = trl.GRPOConfig(
                checkpoints,
                num_generations=GROUP,
                per_device_train_batch_size=GROUP,
                num_train_epochs=epochs,
                max_completion_length=max_new_tokens,
                learning_rate=learning_rate,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                seed=1,
            )
            sequences, drafts = WAYS[way]
            rollouts, rewards = train(model, chosen, config, sequences, drafts)
        samples = rollouts.samples
        results[way] = {
            "seconds": [round(seconds, 2) for seconds in rollouts.seconds.values()],
            "tokens": [sum(map(len, outputs)) for outputs in samples.values()],
            "passes": list(rollouts.passes.values()),
            "rewards": [round(reward, 4) for reward in rewards],
            "samples": hashlib.sha256(json.dumps(samples).encode()).hexdigest()[:16],
        }
        click.echo(json.dumps({way: results[way]}), err=True)
    if directory is not None:
        rollouts.write_samples(directory)
    write_result(
        out,
        "rollouts",
        click.get_current_context().params,
        ("torch", "transformers", "trl"),
        results,
    )


if __name__ == "__main__":
    main()
