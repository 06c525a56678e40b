"""Prompts as a model reads them: text to continue, or a chat that grows turn by turn."""

from __future__ import annotations

from typing import Any

from rest_store.errors import PromptError, describe


def tokenized(tokenizer: Any, text: str, *, special: bool = True) -> dict[str, Any]:
    """Return a text as arguments of `model.generate`, int64[1, tokens].

    Args:
        tokenizer: of transformers.
        text: the prompt.
        special: whether the tokenizer adds its special tokens; a chat template writes all of them itself.

    Raises:
        PromptError: there is no token, or half of a surrogate pair, as from bytes that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"not Unicode ({text[error.start]!a} at {error.start})"
        raise PromptError(describe("generate", "the prompt", found, "text that UTF-8 can hold")) from error
    inputs = tokenizer(text, add_special_tokens=special, return_token_type_ids=False, return_tensors="pt")
    if not inputs["input_ids"].numel():
        raise PromptError(describe("generate", "the prompt", "empty", "at least one token to continue"))
    return dict(inputs)


class Conversation:
    """A chat with a model, whose tokenizer, one of transformers, has a chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._turns: list[dict[str, str]] = []  # of user and assistant in turn, oldest first

    def ask(self, text: str) -> str:
        """Return the prompt for an answer to `text`, with its control tokens."""
        turns = [*self._turns, {"role": "user", "content": text}]
        return str(self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    def add(self, text: str, answer: str) -> None:
        """Add a question and its answer to the history."""
        self._turns += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
