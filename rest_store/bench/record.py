"""Recording what a model writes: the recordings that `bench quality`, `bench paper` and `calibrate` replay."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rest_store.bench.replay import lines_of
from rest_store.errors import RecordingError, describe

TOP = 8  # most likely tokens kept for each position


@dataclass(frozen=True)
class Prompt:
    """What a model is to answer.

    Attributes:
        family: what kind of task it is, for reports.
        key: of the task; one task may have several prompts.
        tokens: token ids, at least one.
    """

    family: str
    key: str
    tokens: list[int]


def read_prompts(path: Path, encode: Callable[[str], Sequence[int]]) -> list[Prompt]:
    """Read prompts: JSON lines, also as `.gz`, each with `prompt`, as text or token ids, or `turns`, a list of texts.

    Of `turns` (the layout of MT-Bench and Spec-Bench) the first is taken. Optional: `set` or `category`, the family;
    `id` or `question_id`.

    Args:
        path: the file.
        encode: turns a text into token ids.

    Raises:
        RecordingError: the file cannot be read, holds no prompt, or a line is none.
    """
    prompts = []
    for number, line in lines_of(path):
        where, expected = f"{path}, line {number}", "JSON with prompt (text or token ids) or turns (texts)"
        try:
            fields = json.loads(line)
            prompt = fields["prompt"] if "prompt" in fields else fields["turns"][0]
            tokens = [int(token) for token in (encode(prompt) if isinstance(prompt, str) else prompt)]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise RecordingError(describe(where, "prompt", "malformed", expected)) from error
        if not tokens:
            raise RecordingError(describe(where, "prompt", "empty", expected))
        family = str(fields.get("set", fields.get("category", "all")))
        prompts.append(Prompt(family, str(fields.get("id", fields.get("question_id", number))), tokens))
    if not prompts:
        raise RecordingError(describe(path, "number of prompts", 0, "at least one"))
    return prompts


@torch.no_grad()
def record(model: Any, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Iterator[dict[str, Any]]:
    """Yield a recording for each prompt: the model's greedy output, and its most likely tokens at every position.

    Args:
        model: a causal language model of transformers.
        prompts: what it answers, one after the other.
        max_new_tokens: most tokens of an output.

    Yields:
        "set", "id", "prompt", "output" (token ids) and "topk" (8 ids for each position of prompt + output, the most
        likely first; those after the last token are what the model would have gone on with).
    """
    for prompt in prompts:
        ids = torch.tensor([prompt.tokens], device=model.device)
        written = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False
        )
        likely = model(input_ids=written, use_cache=False).logits[0].topk(TOP, dim=-1).indices
        output = written[0, ids.shape[1] :].tolist()
        yield {
            "set": prompt.family,
            "id": prompt.key,
            "prompt": prompt.tokens,
            "output": output,
            "topk": likely.tolist(),
        }
