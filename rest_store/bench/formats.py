"""The formats that recordings come in: what one line of JSON holds, as prompts and outputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rest_store.errors import DataFileError, describe

Messages = Sequence[tuple[str, str]]  # role and text of each, oldest first
# Prompt and answer to their tokens.
Encode = Callable[[str | Messages, str], tuple[list[int], list[int]]]
_EXPECTED = "a JSON object with prompt and output, ids and turns, messages, or messages and choices"
_DRAFTERS = ("eagle", "ngram")  # whose acceptance at each position a line may have


class RecordedOutput(NamedTuple):
    """A prompt and what was written.

    Attributes:
        prompt: ids or text, or the messages before an answer.
        output: ids or text.
        top_k: rows of likely tokens of each position, if they are known.
        family: kind of task.
        key: of the task, with the family before a plain number, or of what a user said first;
            empty: the prompt alone says which it is.
        drafters: by name of another drafter, the tokens that it would bring at each position of the
            output.
    """

    prompt: Any
    output: Any
    top_k: Any = None
    family: str = "all"
    key: str = ""
    drafters: Mapping[str, Any] = {}


def recorded_outputs(line: str, where: str) -> Iterator[RecordedOutput]:
    """Yield what a line holds.

    `prompt` and `output` or `answer`, ids or texts: what `bench record` writes; also with `eagle`
    or `ngram`, the acceptance of another drafter. `ids` and `turns`, pairs of begin and end: an
    agent's trace, each turn an output, with `task`. `messages` of OpenAI's form: each answer of the
    assistant is an output. `messages` and `choices`, also in a `request` and its `response`, as a
    server logs them: each choice is an output.

    Raises:
        DataFileError: it holds none of these.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataFileError(describe(where, "recording", "malformed", _EXPECTED)) from error
    if not isinstance(fields, dict):
        raise DataFileError(describe(where, "recording", "malformed", _EXPECTED))
    for logged in (fields.get("request"), fields.get("response")):
        fields |= logged if isinstance(logged, dict) else {}
    family = str(fields.get("set", fields.get("model", "all")))
    name = next((str(fields[name]) for name in ("id", "task") if name in fields), "")
    key = name if not name or "/" in name else str(fields.get("set", "")) + name
    try:
        if "ids" in fields and "turns" in fields:
            ids = fields["ids"]
            for begin, end in fields["turns"]:
                yield RecordedOutput(ids[:begin], ids[begin:end], family=family, key=key)
        elif "messages" in fields and "choices" in fields:
            # A choice that calls a tool adds none.
            before = len([*_answers(fields["messages"], family, key)])
            for choice in fields["choices"]:
                yield from [*_answers([*fields["messages"], choice["message"]], family, key)][
                    before:
                ]
        elif "messages" in fields:
            yield from _answers(fields["messages"], family, key)
        elif "prompt" in fields and {"output", "answer"} & fields.keys():
            output = fields["output"] if "output" in fields else fields["answer"]
            drafters = {
                drafter: fields[drafter] for drafter in _DRAFTERS if fields.get(drafter) is not None
            }
            yield RecordedOutput(
                fields["prompt"], output, fields.get("topk"), family, key, drafters
            )
        elif {"prompt", "turns"} & fields.keys() and "choices" not in fields:
            expected = "one: `rest-store bench record` records what your model writes for prompts"
            raise DataFileError(describe(where, "output of the prompt", "absent", expected))
        else:
            raise DataFileError(describe(where, "recording", "malformed", _EXPECTED))
    except DataFileError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        expected = "ids and turns of begin and end, or messages of role and content"
        raise DataFileError(describe(where, "recording", "of other types", expected)) from error


def _answers(
    messages: Sequence[Mapping[str, Any]], family: str, key: str
) -> Iterator[RecordedOutput]:
    """Yield each answer of the assistant and the messages before it.

    Without a `key`, what a user said first is one.
    """
    before: list[tuple[str, str]] = []
    for message in messages:
        role, content = str(message["role"]), message.get("content") or ""
        text = (
            content
            if isinstance(content, str)
            else "".join(part.get("text", "") for part in content)
        )
        if role == "user" and not key:
            key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        if role == "assistant" and before and text:
            yield RecordedOutput(list(before), text, family=family, key=key)
        if text:
            before.append((role, text))
