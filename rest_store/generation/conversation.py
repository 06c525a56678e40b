"""Prompts as a model reads them: text to continue, or a chat that grows turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from rest_store.errors import ArgumentError, describe, first_line

# Of a chat: "role", "content", and any other fields that the model's template reads.
Message = Mapping[str, Any]


def is_chat(prompt: object) -> TypeGuard[Sequence[Message]]:
    """Return whether a prompt is meant to be the messages of a chat."""
    return (
        isinstance(prompt, Sequence)
        and len(prompt) > 0
        and all(isinstance(message, Mapping) for message in prompt)
    )


def rendered(tokenizer: Any, messages: Sequence[Message]) -> str:
    """Return the prompt for the model's next turn, with control tokens.

    Args:
        tokenizer: of transformers.
        messages: of a chat, the oldest first. If the last one is the model's (`assistant`), it is
            continued.

    Raises:
        ArgumentError: there is no chat template, a message has no role, or the template refuses
            them.
    """
    if not getattr(tokenizer, "chat_template", None):
        expected = "text: the tokenizer has no chat template"
        raise ArgumentError(describe("generate", "the prompt", "messages of a chat", expected))
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            actual = f"{', '.join(map(str, message)) or 'nothing'}"
            raise ArgumentError(
                describe("generate", f"message {index}", actual, "a role and a content")
            )
    continues = messages[-1]["role"] == "assistant"
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=not continues,
            continue_final_message=continues,
        )
    except Exception as error:  # a template is anybody's code
        actual = f"refused by the chat template ({first_line(error)})"
        raise ArgumentError(
            describe("generate", "the prompt", actual, "messages as the model knows them")
        ) from error
    return str(text)


def tokenized_chat(tokenizer: Any, messages: Sequence[Message]) -> dict[str, Any]:
    """Return messages as arguments of `model.generate`; errors as in `rendered` and `tokenized`."""
    return tokenized(tokenizer, rendered(tokenizer, messages), special=False)


def tokenized(tokenizer: Any, text: str, *, special: bool = True) -> dict[str, Any]:
    """Return a text as arguments of `model.generate`, int64[1, tokens].

    Args:
        tokenizer: of transformers.
        text: the prompt.
        special: whether the tokenizer adds its special tokens; a chat template writes all of them
            itself.

    Raises:
        ArgumentError: there is no token, or half of a surrogate pair, as from bytes that are not
            UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        actual = f"not Unicode ({text[error.start]!a} at {error.start})"
        raise ArgumentError(
            describe("generate", "the prompt", actual, "text that UTF-8 can hold")
        ) from error
    inputs = tokenizer(
        text, add_special_tokens=special, return_token_type_ids=False, return_tensors="pt"
    )
    if not inputs["input_ids"].numel():
        raise ArgumentError(
            describe("generate", "the prompt", "empty", "at least one token to continue")
        )
    return dict(inputs)


class Conversation:
    """A chat with a model, whose tokenizer, one of transformers, has a chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._turns: list[dict[str, str]] = []  # of user and assistant in turn, oldest first

    def ask(self, text: str) -> str:
        """Return the prompt for an answer to `text`, with its control tokens."""
        return rendered(self._tokenizer, [*self._turns, {"role": "user", "content": text}])

    def add(self, text: str, answer: str) -> None:
        """Add a question and its answer to the history."""
        self._turns += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
