"""The formats of recordings: from one line of JSON to prompts and outputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rest_store.errors import DataFileError, describe

Messages = Sequence[tuple[str, str]]  # role and text of each, oldest first
# A function from prompt and answer to their tokens.
Encode = Callable[[str | Messages, str], tuple[list[int], list[int]]]
_EXPECTED = "a JSON object with prompt and output, ids and turns, messages, or messages and choices"
_DRAFTERS = ("eagle", "ngram")  # a line may have their acceptance at each position


class RecordedOutput(NamedTuple):
    """A prompt and the output of a model.

    Attributes:
        prompt: ids or text, or the messages before an answer.
        output: ids or text.
        top_k: likely tokens of each position, if they are known.
        family: kind of task.
        key: identifies the task, or the first message of a user; a plain number has the family
            before it. Empty: the prompt identifies the task.
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
    """Yield the outputs of a line, an object with fields of one of these kinds.

    - `prompt` and `output` or `answer`, ids or texts, as `bench record` writes them. `eagle` or
      `ngram` may hold the acceptance of another drafter.
    - `ids`, `turns` (pairs of begin and end) and `task`, the trace of an agent: each turn is an
      output.
    - `messages` of OpenAI's form: each answer of the assistant is an output.
    - `messages` and `choices`, perhaps in a `request` and its `response`, as servers log them: each
      choice is an output.

    Raises:
        DataFileError: the line has none of these forms.
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
    name = str(fields.get("id", fields.get("task", "")))
    key = name if not name or "/" in name else str(fields.get("set", "")) + name
    try:
        if "ids" in fields and "turns" in fields:
            ids = fields["ids"]
            for begin, end in fields["turns"]:
                yield RecordedOutput(ids[:begin], ids[begin:end], family=family, key=key)
        elif "messages" in fields and "choices" in fields:
            # A choice that calls a tool adds no answer.
            before = len(list(_answers(fields["messages"], family, key)))
            for choice in fields["choices"]:
                messages = [*fields["messages"], choice["message"]]
                yield from list(_answers(messages, family, key))[before:]
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
            raise DataFileError(
                f"{where}: output of the prompt is absent; `rest-store bench record` records"
                " outputs of your model"
            )
        else:
            raise DataFileError(describe(where, "recording", "malformed", _EXPECTED))
    except DataFileError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        expected = "ids and turns of begin and end, or messages of role and content"
        raise DataFileError(f"{where}: recording has other types, expected {expected}") from error


def _answers(
    messages: Sequence[Mapping[str, Any]], family: str, key: str
) -> Iterator[RecordedOutput]:
    """Yield each answer of the assistant and the messages before it.

    Without a `key`, the first message of a user is hashed to one.
    """
    before: list[tuple[str, str]] = []
    for message in messages:
        role = str(message["role"])
        text = message.get("content") or ""
        if not isinstance(text, str):
            text = "".join(part.get("text", "") for part in text)
        if role == "user" and not key:
            key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        if role == "assistant" and before and text:
            yield RecordedOutput(list(before), text, family=family, key=key)
        if text:
            before.append((role, text))
