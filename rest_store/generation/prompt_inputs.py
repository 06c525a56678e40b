"""Prompts and references as token ids: text, messages, and rows of ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rest_store.errors import ArgumentError, describe
from rest_store.generation.conversation import is_chat, tokenized, tokenized_chat
from rest_store.generation.support import device_of, vocabulary_size

_EXPECTED = (
    "text, messages of a chat, a row of token ids, several of equal length, or the"
    " output of a tokenizer"
)


def needed_tokenizer(tokenizer: Any) -> Any:
    """Return the tokenizer of a `Generator`; raise ArgumentError if it has none."""
    if tokenizer is None:
        raise ArgumentError(
            describe("Generator", "tokenizer", "None", "a tokenizer, for text and stop strings")
        )
    return tokenizer


def prompt_inputs(model: Any, tokenizer: Any, prompt: Any) -> dict[str, torch.Tensor]:
    """Return a prompt as arguments of `model.generate`, on the model's device.

    Each has one row or several.

    Args:
        model: a model of transformers.
        tokenizer: its tokenizer; None: the prompt is no text.
        prompt: as in `Generator.generate`.

    Raises:
        ArgumentError: they are no tensors, or no token ids of the model.
    """
    if isinstance(prompt, str):
        prompt = tokenized(needed_tokenizer(tokenizer), prompt)
    elif is_chat(prompt):
        prompt = tokenized_chat(needed_tokenizer(tokenizer), prompt)
    named = prompt if isinstance(prompt, Mapping) else {"input_ids": prompt}
    rows = {}
    for name, value in named.items():
        if value is not None or value is prompt:
            rows[name] = _rows(name, value)
    if "input_ids" in rows:
        rows["input_ids"] = _token_ids(rows["input_ids"], vocabulary_size(model))
    return {name: tensor.to(device_of(model)) for name, tensor in rows.items()}


def tokenized_references(tokenizer: Any, references: Any) -> Any:
    """Return references as token ids; `DraftingOptions` refuses anything but a list."""
    if not isinstance(references, list | tuple):
        return references
    token_ids = []
    for reference in references:
        if isinstance(reference, str):
            encoded = needed_tokenizer(tokenizer)(reference, add_special_tokens=False)
            reference = encoded["input_ids"]
        token_ids.append(reference)
    return token_ids


def _rows(name: str, values: Any) -> torch.Tensor:
    """Return the values of an input as a tensor of at least two dimensions."""
    try:
        tensor = torch.as_tensor(values)
    except (
        TypeError,
        ValueError,
        RuntimeError,
        OverflowError,
    ) as error:  # text, ragged rows, anything else
        raise ArgumentError(
            describe("Generator", name, f"a {type(values).__name__} ({error})", _EXPECTED)
        ) from error
    return tensor if tensor.ndim > 1 else tensor[None]


def _token_ids(rows: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Return int64[rows, length]: models read no narrower ids, such as the uint16 of numpy."""
    if (
        rows.is_floating_point()
        or rows.is_complex()
        or rows.dtype == torch.bool
        or rows.ndim != 2
        or not rows.numel()
    ):
        raise ArgumentError(
            describe(
                "Generator", "input_ids", f"{rows.dtype} of shape {list(rows.shape)}", _EXPECTED
            )
        )
    rows = rows.long()
    outside = rows[(rows < 0) | (rows >= vocabulary)]
    if outside.numel():
        raise ArgumentError(
            describe(
                "Generator", "a token id in input_ids", int(outside[0]), f"0..{vocabulary - 1}"
            )
        )
    return rows
