"""Prompts for a model, from a user's files."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rest_store.bench.recordings import integers, read_lines
from rest_store.errors import DataFileError, describe

_EXPECTED = "text, token ids, or an object with prompt (text or token ids) or turns (texts)"


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Attributes:
        family: kind of task, for reports.
        key: identifies the task, which may have several prompts.
        tokens: token ids, at least one.
    """

    family: str
    key: str
    tokens: list[int]


def read_prompts(path: Path, encode: Callable[[str], Sequence[int]]) -> list[Prompt]:
    """Read prompts: plain text, one a line, or JSON lines; also as `.gz`.

    In JSON, a prompt is a text, a list of token ids, or an object with `prompt`, as text or token
    ids, or `turns`, a list of texts. Of `turns` (the layout of MT-Bench and Spec-Bench) the first
    is taken. An object may have `set` or `category`, the family, and `id` or `question_id`.

    A file is JSON if it is named `.json` or `.jsonl`, or if its first line is a JSON object.

    Args:
        path: the file.
        encode: turns a text into token ids.

    Raises:
        DataFileError: the file cannot be read, holds no prompt, or one that is not valid.
    """
    prompts = []
    for number, where, entry in _entries(path):
        try:
            fields = entry if isinstance(entry, dict) else {"prompt": entry}
            prompt = fields["prompt"] if "prompt" in fields else _listed(fields["turns"])[0]
            tokens = integers(encode(prompt) if isinstance(prompt, str) else _listed(prompt), 0)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DataFileError(describe(where, "prompt", "malformed", _EXPECTED)) from error
        if tokens.ndim != 1:
            raise DataFileError(describe(where, "prompt", "malformed", _EXPECTED))
        if not tokens.size:
            raise DataFileError(describe(where, "prompt", "empty", _EXPECTED))
        family = str(fields.get("set", fields.get("category", "all")))
        key = str(fields.get("id", fields.get("question_id", number)))
        prompts.append(Prompt(family, key, tokens.tolist()))
    if not prompts:
        raise DataFileError(describe(path, "number of prompts", 0, "at least one"))
    return prompts


def _entries(path: Path) -> list[tuple[int, str, Any]]:
    """Return the prompts of a file as they stand there, each with its number and place."""
    lines = [(number, line.removesuffix("\n")) for number, line in read_lines(path)]
    named = path.name.removesuffix(".gz").endswith((".json", ".jsonl"))
    is_json = named or (lines and isinstance(_parsed(lines[0][1]), dict))
    return [
        (number, f"{path}, line {number}", _parsed(line) if is_json else line)
        for number, line in lines
    ]


def _parsed(text: str) -> Any:
    """Return the value of a JSON text; None: it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _listed(value: Any) -> list[Any]:
    """Return `value`; raise TypeError unless it is a list."""
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def encoding(tokenizer: Any, *, chat: bool) -> Callable[[str], list[int]]:
    """Return a function from a text to its token ids; with `chat`, the text is a user's turn.

    With `chat`, the function raises DataFileError if the tokenizer has no chat template.
    """

    def encode(text: str) -> list[int]:
        return chat_tokens(tokenizer, text) if chat else list(tokenizer(text)["input_ids"])

    return encode


def chat_tokens(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a chat in which a user says `text`, up to the answer.

    Raises:
        DataFileError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        where = tokenizer.name_or_path or type(tokenizer).__name__
        raise DataFileError(
            describe(where, "chat template", "absent", "one: the prompts are turns of a chat")
        )
    messages = [{"role": "user", "content": text}]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])


def require_known_tokens(prompts: Iterable[Prompt], vocabulary_size: int) -> None:
    """Raise DataFileError if a prompt has a token id outside the model's vocabulary."""
    for prompt in prompts:
        if (greatest := max(prompt.tokens)) >= vocabulary_size:
            expected = f"0..{vocabulary_size - 1}, as the model has them"
            raise DataFileError(describe(f"prompt {prompt.key}", "a token id", greatest, expected))


def interleave(prompts: Sequence[Prompt], per_family: int | None = None) -> list[Prompt]:
    """Return the prompts with their families taking turns, of each at most `per_family`."""
    families: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        families[prompt.family].append(prompt)
    rounds = max(map(len, families.values()), default=0)
    if per_family is not None:
        rounds = min(rounds, per_family)
    chosen = []
    for index in range(rounds):
        for family in families.values():
            if index < len(family):
                chosen.append(family[index])
    return chosen
