"""GRPO with TRL whose samples are drafted from earlier samples.

    pip install '.[hf,live]' trl
    python examples/grpo.py smollm2 examples/prompts.txt

Samples are drawn from the model, as without drafts. Each is added to a live datastore, with its
prompt as group and its epoch; later samples draft from it, and those of the same prompt read it as
a reference.
"""

import hashlib
from itertools import groupby
from pathlib import Path

import click
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import rest_store


class Rollouts:
    """Writes the samples of a batch: a `rollout_func` of TRL.

    Args:
        sources: the sources of drafts, as `rest_store.Generator` takes it; None: nothing.
        history: live datastore that all samples are added to; None: nothing is kept.
        rows: most samples of a prompt that are written at once.
        references: most earlier samples of its prompt that a sample reads.
    """

    def __init__(self, sources=None, history=None, *, rows=1, references=32):
        self.sources = sources
        self.history = history
        self.rows = rows
        self.references = references

    def __call__(self, prompts, trainer):
        """Return prompts and samples as token ids.

        The prompts of a group are equal, and follow each other.
        """
        model = trainer.accelerator.unwrap_model(trainer.model)
        tokenizer = trainer.processing_class
        # Training may keep no cache.
        generator = rest_store.Generator(model.eval(), tokenizer, self.sources)
        prompt_ids = []
        completion_ids = []
        chat = {"add_generation_prompt": True, "tokenize": False}
        texts = [tokenizer.apply_chat_template(prompt, **chat) for prompt in prompts]
        for text, group in groupby(texts):
            left = len(list(group))
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            while left > 0:
                samples = self.write(generator, ids, min(left, self.rows), trainer)
                prompt_ids += [ids] * len(samples)
                completion_ids += samples
                left -= len(samples)
        model.train()
        return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}

    def write(self, generator, ids, rows, trainer):
        """Write samples of one prompt, and remember them."""
        group = hashlib.sha256(str(ids).encode()).hexdigest()
        earlier = (
            []
            if self.history is None
            else [sample.tokens for sample in self.history.documents(group=group)]
        )
        inputs = {"input_ids": [ids] * rows, "attention_mask": [[1] * len(ids)] * rows}
        with torch.no_grad():
            output = generator.generate(
                inputs,
                references=earlier[-self.references :],
                generation_config=trainer.generation_config,
            )
        if self.history is not None:
            epoch = int(trainer.state.epoch or 0)
            self.history.add(
                [ids[-16:] + sample for sample in output.tokens], group=group, epoch=epoch
            )
        return output.tokens


def brevity(completions, **_):
    """Reward answers of 25 words."""
    lengths = [len(completion[0]["content"].split()) for completion in completions]
    return [1 - abs(length - 25) / 25 for length in lengths]


@click.command()
@click.argument("model")
@click.argument("prompts", type=click.Path(exists=True, path_type=Path))
@click.option("--epochs", metavar="N", default=3, show_default=True)
@click.option("--max-new-tokens", metavar="N", default=64, show_default=True)
def main(model, prompts, epochs, max_new_tokens):
    """Train MODEL on PROMPTS, a file with one in each line."""
    lines = prompts.read_text(encoding="utf-8").splitlines()
    questions = Dataset.from_list(
        [{"prompt": [{"role": "user", "content": line}]} for line in lines if line.strip()]
    )
    config = GRPOConfig(
        "grpo",
        num_train_epochs=epochs,
        max_completion_length=max_new_tokens,
        bf16=torch.cuda.is_available(),
        logging_steps=1,
        report_to="none",
    )
    with rest_store.LiveDatastore.open(
        "rollouts.live", tokenizer=model, max_epochs=epochs
    ) as history:
        sources = [history, rest_store.PromptLookup(), rest_store.RecycledLogits()]
        GRPOTrainer(
            model, brevity, config, questions, rollout_func=Rollouts(sources, history)
        ).train()


if __name__ == "__main__":
    main()
