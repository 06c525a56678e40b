"""`Generator`: a model, its tokenizer and what drafts for them, for one's own loop. Torch is imported here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from transformers import StopStringCriteria

from rest_store.errors import DrafterError, describe
from rest_store.generation.generate import Pieces, pieces, session_maker
from rest_store.generation.options import Options
from rest_store.generation.progress import Piece

Prompt = Any  # text, token ids, or what a tokenizer returns


class Generator:
    """Generates with drafts, to the end or piece by piece.

    Args:
        model: a decoder-only model of `transformers`.
        tokenizer: its tokenizer; needed for prompts and stop strings that are text.
        sources: what `DraftSession` drafts from, or a callable that makes the session of a prompt; none: plain.
        options: how to draft, as of `rest_store.generate`: `max_nodes`, `source_timeout`, `adaptive`, `widths`.

    Raises:
        DrafterError: `sources` is neither a list nor a callable.
        LimitError: an option out of range.
        TypeError: an option that there is not.

    One generation at a time for each model.
    """

    def __init__(self, model: Any, tokenizer: Any = None, sources: Any = None, **options: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._maker = session_maker(sources)
        self._options = Options(**options)

    def generate(self, prompt: Prompt, **options: Any) -> Any:
        """Generate to the end.

        Args:
            prompt: text, 1-D or 2-D token ids, or a mapping such as a tokenizer returns, all of which goes into the
                model.
            options: of `model.generate`; `streamer` and `stop_strings` too, and other ways to draft than usual.

        Returns:
            What `rest_store.generate` returns.

        Raises:
            GenerationError: as `rest_store.generate`; DrafterError for text without a tokenizer.
        """
        streamer = options.pop("streamer", None)
        begun = self.begin(prompt, **options)
        if streamer is not None:
            begun.stream_to(streamer)
        return begun.result()

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Piece]:
        """Generate piece by piece: yield what each forward pass wrote, as soon as it is written.

        Args, errors: as `generate`. The first piece comes after the prompt's forward pass; leaving the iteration ends
        the generation.
        """
        yield from self.begin(prompt, **options)

    def begin(self, prompt: Prompt, **options: Any) -> Pieces:
        """Return the generation as `Pieces`, to iterate over; its `statistics` are up to date after each piece."""
        names = {field.name for field in fields(Options)} & options.keys()
        ways = replace(self._options, **{name: options.pop(name) for name in names})
        begun: Pieces = self.model.generate(
            **self._inputs(prompt),
            **self._prepared(options),
            custom_generate=pieces,
            drafter=self._maker,
            options=ways,
        )
        return begun

    def _prepared(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options as `model.generate` takes them with a function of one's own: without stop strings."""
        strings = options.pop("stop_strings", None)
        if strings is not None:
            criterion = StopStringCriteria(tokenizer=self._needed_tokenizer(), stop_strings=strings)
            options["stopping_criteria"] = [*(options.get("stopping_criteria") or []), criterion]
        return options

    def _inputs(self, prompt: Prompt) -> dict[str, Any]:
        if isinstance(prompt, str):
            prompt = self._needed_tokenizer()(prompt, return_token_type_ids=False, return_tensors="pt")
        if isinstance(prompt, Mapping):
            return {name: self._rows(value) for name, value in prompt.items() if value is not None}
        return {"input_ids": self._rows(prompt)}

    def _rows(self, values: Any) -> torch.Tensor:
        """Return numbers of one row or several as a tensor of rows on the model's device."""
        tensor = torch.as_tensor(values).to(self.model.device)
        return tensor if tensor.ndim > 1 else tensor[None]

    def _needed_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise DrafterError(describe("Generator", "tokenizer", "None", "a tokenizer, for a prompt that is text"))
        return self.tokenizer
