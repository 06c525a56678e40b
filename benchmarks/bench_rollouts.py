"""GRPO with TRL, with and without a memory of what was sampled: seconds of rollouts, passes, samples and rewards.

    pip install '.[hf,live]' trl
    python examples/smollm2.py smollm2
    python benchmarks/bench_rollouts.py --model smollm2 --questions questions.jsonl --out rollouts.json

`questions.jsonl` (or `.jsonl.gz`) is Spec-Bench's file of questions. All ways begin with the same weights and the same
seed, on one thread. They write the same samples if the memory changes nothing but time: then their rewards are the same,
too, and so are the weights that they train.
"""

from __future__ import annotations

import datetime
import gzip
import json
import platform
import runpy
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import click
import torch
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

import rest_store

EXAMPLE = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "grpo.py"))
GROUP = 8  # samples of a prompt
WAYS = {  # samples written at once, and what drafts
    "one by one, no drafts": (1, "nothing"),
    "one by one, prompt lookup": (1, "prompt lookup"),
    "one by one, memory": (1, "memory"),
    "a group at once, no drafts": (GROUP, "nothing"),
    "a group at once, memory": (GROUP, "memory"),
}


class Measured(EXAMPLE["Rollouts"]):  # type: ignore[misc]
    """Rollouts whose time and samples are kept, by epoch.

    Args:
        arguments: of `Rollouts`.

    Attributes:
        seconds: of the processor, which other work on the machine does not change.
        samples: all of them, in order.
        passes: forward passes.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seconds: dict[int, float] = defaultdict(float)
        self.samples: dict[int, list[list[int]]] = defaultdict(list)
        self.passes: dict[int, int] = defaultdict(int)

    def __call__(self, prompts: Any, trainer: Any) -> Any:
        epoch, began = int(trainer.state.epoch or 0), time.process_time()
        with passes_of(trainer.model) as passes, rest_store.prepacked_weights(trainer.model):
            rollouts = super().__call__(prompts, trainer)
        self.seconds[epoch] += time.process_time() - began
        self.samples[epoch] += rollouts["completion_ids"]
        self.passes[epoch] += len(passes)
        return rollouts


@contextmanager
def passes_of(model: torch.nn.Module) -> Iterator[list[None]]:
    """Return a list that grows with each forward pass of `model`."""
    passes: list[None] = []
    hook = model.register_forward_pre_hook(lambda *_: passes.append(None))
    yield passes
    hook.remove()


def questions_of(path: Path, category: str, number: int) -> list[str]:
    """Return the first questions of a category that are short."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        rows = (json.loads(line) for line in lines)
        texts = (row["turns"][0] for row in rows if row["category"] == category)
        return list(islice((text for text in texts if len(text) < 600), number))


def train(model: str, questions: list[str], config: Any, rows: int, drafts: str) -> tuple[Measured, list[float]]:
    """Train once; return the rollouts, and the mean reward of each step."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    with (
        tempfile.TemporaryDirectory() as directory,
        rest_store.LiveDatastore.open(directory, tokenizer=model) as memory,
    ):
        lookup = rest_store.PromptLookup()
        sources = {
            "nothing": None,
            "prompt lookup": [lookup],
            "memory": [memory, lookup, rest_store.RecycledLogits()],
        }
        rollouts = Measured(sources[drafts], memory if drafts == "memory" else None, rows=rows)
        trainer = trl.GRPOTrainer(
            AutoModelForCausalLM.from_pretrained(model, dtype="float32"),
            EXAMPLE["brevity"],
            config,
            Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in questions]),
            processing_class=tokenizer,
            rollout_func=rollouts,
        )
        trainer.train()
    return rollouts, [step["reward"] for step in trainer.state.log_history if "reward" in step]


@click.command()
@click.option("--model", required=True, help="Directory of the model.")
@click.option("--questions", "path", required=True, type=click.Path(exists=True, path_type=Path), help="Spec-Bench's.")
@click.option("--category", default="math_reasoning", show_default=True, help="Of the questions.")
@click.option("--number", default=3, show_default=True, help="Of the questions.")
@click.option("--epochs", default=4, show_default=True)
@click.option("--max-new-tokens", default=64, show_default=True)
@click.option("--learning-rate", default=1e-5, show_default=True)
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), default=list(WAYS), help="Repeatable.")
@click.option("--out", required=True, type=click.Path(path_type=Path))
def main(
    model: str,
    path: Path,
    category: str,
    number: int,
    epochs: int,
    max_new_tokens: int,
    learning_rate: float,
    ways: tuple[str, ...],
    out: Path,
) -> None:
    """Measure each way, and write what it took to OUT."""
    torch.set_num_threads(1)
    questions = questions_of(path, category, number)
    setting = {"category": category, "questions": number, "group": GROUP, "epochs": epochs, "rewarded": "25 words"}
    setting |= {"max_new_tokens": max_new_tokens, "learning_rate": learning_rate, "temperature": 1.0, "threads": 1}
    result: dict[str, Any] = {"date": str(datetime.date.today()), "machine": platform.machine(), "setting": setting}
    result |= {"versions": {"torch": torch.__version__, "trl": trl.__version__}, "ways": {}}
    written: dict[int, Any] = {}  # samples and rewards, by the samples that are written at once
    for way in ways:
        with tempfile.TemporaryDirectory() as directory:
            config = trl.GRPOConfig(
                directory,
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
            rows, drafts = WAYS[way]
            rollouts, rewards = train(model, questions, config, rows, drafts)
        samples = dict(rollouts.samples)
        first = written.setdefault(rows, (samples, rewards))
        result["ways"][way] = {
            "seconds": [round(seconds, 2) for seconds in rollouts.seconds.values()],
            "tokens": [sum(map(len, of_epoch)) for of_epoch in samples.values()],
            "passes": list(rollouts.passes.values()),
            "rewards": [round(reward, 4) for reward in rewards],
            "same_samples_as_without": samples == first[0],
            "same_rewards_as_without": rewards == first[1],
        }
        click.echo(json.dumps({way: result["ways"][way]}))
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
