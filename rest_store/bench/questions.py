"""What the methods of `bench speed` go on from: prompts of recordings, and both turns of MT-Bench's questions.

Of both, those that the shipped calibration was not fitted to. A recording's key is its set and its number; the same
keys are used here, so that a question is held out from fitting in every file or in none.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rest_store.bench.record import Prompt
from rest_store.bench.replay import FIT_PARTS, lines_of, part_of, read_recordings
from rest_store.errors import RecordingError, describe

FIRST, SECOND = "mt_bench, first turn", "mt_bench, second turn"
_OF_TURNS = "mt_bench"  # what recordings call the set of questions with a second turn

Answer = Callable[[list[int]], str]  # what the model says to a prompt


@dataclass(frozen=True)
class Question:
    """A question, of one turn or two.

    Attributes:
        family: its category; of those with two turns `mt_bench`.
        key: family and number, as of recordings.
        turns: what the user says, in order; the first two.
    """

    family: str
    key: str
    turns: tuple[str, ...]


def read_questions(path: Path) -> list[Question]:
    """Read questions in the layout of MT-Bench and Spec-Bench: JSON lines with question_id, category and turns, or .gz.

    Those that the shipped calibration was not fitted to are returned.

    Raises:
        RecordingError: the file cannot be read, or a line is no question.
    """
    questions = []
    for number, line in lines_of(path):
        where, expected = f"{path}, line {number}", "JSON with question_id, category and turns (texts)"
        try:
            fields = json.loads(line)
            turns = tuple(fields["turns"][:2])
            category, own = str(fields["category"]), str(fields["question_id"])
        except (ValueError, KeyError, TypeError) as error:
            raise RecordingError(describe(where, "question", "malformed", expected)) from error
        if not turns or not all(isinstance(turn, str) and turn for turn in turns):
            raise RecordingError(describe(where, "turns", "malformed", expected))
        family = _OF_TURNS if len(turns) > 1 else category
        key = family + own
        if part_of(key) >= FIT_PARTS:
            questions.append(Question(family, key, turns))
    return questions


def asked(
    questions: Iterable[Question], tokenizer: Any, answer: Answer, *, count: int, families: Sequence[str] = ()
) -> list[Prompt]:
    """Return the prompts of questions, rendered with the tokenizer's chat template.

    The second turn's prompt holds the first, what `answer` says to it, and the second.

    Args:
        questions: what is asked.
        tokenizer: of the model, of `transformers`.
        answer: called for the first turn of each question whose second is wanted.
        count: prompts of each family at most.
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
            said = [question.turns[0], answer(first), question.turns[1]]
            take(SECOND, question.key, chat_tokens(tokenizer, said))
    return prompts


def chat_tokens(tokenizer: Any, turns: Sequence[str]) -> list[int]:
    """Return the turns of a user and an assistant, in turn, rendered for the next answer of the assistant.

    Raises:
        RecordingError: the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        where = tokenizer.name_or_path or type(tokenizer).__name__
        raise RecordingError(describe(where, "chat template", "absent", "one: the prompts are turns of a chat"))
    roles = ("user", "assistant")
    said = [{"role": roles[place % 2], "content": turn} for place, turn in enumerate(turns)]
    rendered = tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])


def recorded(path: Path, *, count: int, families: Sequence[str] = ()) -> list[Prompt]:
    """Return the prompts of recordings that the shipped calibration was not fitted to.

    Args:
        path: as `read_recordings` reads it; prompts are token ids.
        count: prompts of each family at most.
        families: only these; empty: all.

    Raises:
        RecordingError: the file cannot be read, or a line is no recording.
    """
    taken: dict[str, int] = defaultdict(int)
    prompts = []
    for recording in read_recordings(path):
        family = recording.family
        if recording.part >= FIT_PARTS and taken[family] < count and (not families or family in families):
            taken[family] += 1
            prompts.append(Prompt(family, recording.key, recording.prompt.tolist()))
    return prompts


def in_turns(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts with their families taking turns."""
    families: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        families[prompt.family].append(prompt)
    most = max((len(rows) for rows in families.values()), default=0)
    return [rows[place] for place in range(most) for rows in families.values() if place < len(rows)]
