"""Prompts for a model: of one's own files, of recordings, and both turns of MT-Bench's questions.

A key of a question is made of family and number as for recordings, so a question is held out in every file or in none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rest_store.bench.json_text import parsed_json
from rest_store.bench.recordings import FIT_PARTS, Recording, integers, lines_of, part_of
from rest_store.errors import RecordingError, describe

FIRST, SECOND = "mt_bench, first turn", "mt_bench, second turn"
_TWO_TURNS = "mt_bench"  # the family of questions with two turns, as recordings name it

_EXPECTED = "text, token ids, or an object with prompt (text or token ids) or turns (texts)"

Answer = Callable[[list[int]], str]  # a prompt's tokens to the model's answer


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Attributes:
        family: kind of task, for reports.
        key: of the task; one task may have several prompts.
        tokens: token ids, at least one.
    """

    family: str
    key: str
    tokens: list[int]


@dataclass(frozen=True)
class Question:
    """A question of one turn or two.

    Attributes:
        family: its category; `mt_bench` with two turns.
        key: family and number.
        turns: the user's messages in order, two at most.
    """

    family: str
    key: str
    turns: tuple[str, ...]


def read_prompts(path: Path, encode: Callable[[str], Sequence[int]]) -> list[Prompt]:
    """Read prompts: plain text, one a line; JSON lines; or a JSON list. All also as `.gz`.

    In JSON, a prompt is a text, a list of token ids, or an object with `prompt`, as text or token ids, or `turns`, a
    list of texts. Of `turns` (the layout of MT-Bench and Spec-Bench) the first is taken. An object may have `set` or
    `category`, the family, and `id` or `question_id`.

    A file is JSON if it is named `.json` or `.jsonl`, if all of it is a JSON list, or if its first line is a JSON
    object.

    Args:
        path: the file.
        encode: turns a text into token ids.

    Raises:
        RecordingError: the file cannot be read, holds no prompt, or one that is not valid.
    """
    prompts = []
    for number, where, entry in _entries(path):
        try:
            fields = entry if isinstance(entry, dict) else {"prompt": entry}
            prompt = fields["prompt"] if "prompt" in fields else _listed(fields["turns"])[0]
            tokens = integers(encode(prompt) if isinstance(prompt, str) else _listed(prompt), 0)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise RecordingError(describe(where, "prompt", "malformed", _EXPECTED)) from error
        if tokens.ndim != 1:
            raise RecordingError(describe(where, "prompt", "malformed", _EXPECTED))
        if not tokens.size:
            raise RecordingError(describe(where, "prompt", "empty", _EXPECTED))
        family = str(fields.get("set", fields.get("category", "all")))
        key = str(fields.get("id", fields.get("question_id", number)))
        prompts.append(Prompt(family, key, tokens.tolist()))
    if not prompts:
        raise RecordingError(describe(path, "number of prompts", 0, "at least one"))
    return prompts


def _entries(path: Path) -> list[tuple[int, str, Any]]:
    """Return the prompts of a file as they stand there, each with its number and where it is, for messages."""
    lines = [(number, line.removesuffix("\n")) for number, line in lines_of(path)]
    listed = _parsed("\n".join(line for _, line in lines))
    if isinstance(listed, list):
        return [(number, f"{path}, prompt {number}", entry) for number, entry in enumerate(listed, 1)]
    named = path.name.removesuffix(".gz").endswith((".json", ".jsonl"))
    is_json = named or (lines and isinstance(_parsed(lines[0][1]), dict))
    return [(number, f"{path}, line {number}", _parsed(line) if is_json else line) for number, line in lines]


def _parsed(text: str) -> Any:
    """Return what JSON says; None if it is none."""
    try:
        return parsed_json(text)
    except ValueError:
        return None


def _listed(value: Any) -> list[Any]:
    """Return `value`; raise TypeError unless it is a list."""
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def read_questions(path: Path) -> list[Question]:
    """Read questions in the layout of MT-Bench and Spec-Bench: those that the package's calibration was not fitted to.

    Args:
        path: JSON lines with question_id, category and turns; may end in .gz.

    Raises:
        RecordingError: the file cannot be read, or a line is not a valid question.
    """
    questions = []
    for number, line in lines_of(path):
        where, expected = f"{path}, line {number}", "JSON with question_id, category and turns (texts)"
        try:
            fields = parsed_json(line)
            turns = tuple(_listed(fields["turns"])[:2])
            category, identifier = str(fields["category"]), str(fields["question_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise RecordingError(describe(where, "question", "malformed", expected)) from error
        if not turns or not all(isinstance(turn, str) and turn for turn in turns):
            raise RecordingError(describe(where, "turns", "malformed", expected))
        family = _TWO_TURNS if len(turns) > 1 else category
        key = family + identifier
        if part_of(key) >= FIT_PARTS:
            questions.append(Question(family, key, turns))
    return questions


def question_prompts(
    questions: Iterable[Question], tokenizer: Any, answer: Answer, *, count: float, families: Sequence[str] = ()
) -> list[Prompt]:
    """Return prompts made of questions with the tokenizer's chat template.

    The second turn's prompt holds the first question, the model's answer to it, and the second question.

    Args:
        questions: the questions.
        tokenizer: of the model, of `transformers`.
        answer: called for the first turn of each question whose second is wanted.
        count: most prompts of each family.
        families: `FIRST`, `SECOND` or categories; empty: all.

    Raises:
        RecordingError: the tokenizer has no chat template.
    """
    prompts: list[Prompt] = []
    taken: dict[str, int] = defaultdict(int)

    def take(family: str, key: str, tokens: list[int]) -> None:
        taken[family] += 1
        prompts.append(Prompt(family, key, tokens))

    for question in questions:
        names = (FIRST, SECOND) if len(question.turns) > 1 else (question.family,)
        wanted = [name for name in names if taken[name] < count and (not families or name in families)]
        if not wanted:
            continue
        first = chat_tokens(tokenizer, question.turns[:1])
        if names[0] in wanted:
            take(names[0], question.key, first)
        if SECOND in wanted:
            conversation = [question.turns[0], answer(first), question.turns[1]]
            take(SECOND, question.key, chat_tokens(tokenizer, conversation))
    return prompts


def encoding(tokenizer: Any, *, chat: bool) -> Callable[[str], list[int]]:
    """Return what turns a text into token ids; with `chat` as a user's turn (RecordingError without a template)."""
    return lambda text: chat_tokens(tokenizer, [text]) if chat else list(tokenizer(text)["input_ids"])


def chat_tokens(tokenizer: Any, turns: Sequence[str]) -> list[int]:
    """Return the tokens of a conversation, user first, up to the assistant's next answer.

    Raises:
        RecordingError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        where = tokenizer.name_or_path or type(tokenizer).__name__
        raise RecordingError(describe(where, "chat template", "absent", "one: the prompts are turns of a chat"))
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": turn} for place, turn in enumerate(turns)]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])


def recorded_prompts(recordings: Iterable[Recording]) -> list[Prompt]:
    """Return the prompts of recordings that have one."""
    return [
        Prompt(recording.family, recording.key, recording.prompt.tolist())
        for recording in recordings
        if recording.prompt.size
    ]


def require_known_tokens(prompts: Iterable[Prompt], vocabulary_size: int) -> None:
    """Raise RecordingError unless the model, of `vocabulary_size` token ids, knows all tokens of the prompts."""
    for prompt in prompts:
        if (greatest := max(prompt.tokens)) >= vocabulary_size:
            expected = f"0..{vocabulary_size - 1}, as the model has them"
            raise RecordingError(describe(f"prompt {prompt.key}", "a token id", greatest, expected))


def limited(prompts: Iterable[Prompt], count: float, families: Sequence[str] = ()) -> list[Prompt]:
    """Return the first `count` prompts of each family, or of those in `families`."""
    taken: dict[str, int] = defaultdict(int)
    chosen = []
    for prompt in prompts:
        if taken[prompt.family] < count and (not families or prompt.family in families):
            taken[prompt.family] += 1
            chosen.append(prompt)
    return chosen


def interleaved(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts with their families taking turns."""
    families: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        families[prompt.family].append(prompt)
    most = max((len(rows) for rows in families.values()), default=0)
    return [rows[place] for place in range(most) for rows in families.values() if place < len(rows)]
