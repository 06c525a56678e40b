"""`Generator`: a model, its tokenizer and what drafts for them, for one's own loop. Torch is imported here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import StopStringCriteria

from rest_store.errors import DrafterError, describe
from rest_store.generation.generate import generate, pieces, session_maker
from rest_store.generation.progress import Piece

Prompt = Any  # text, token ids, or what a tokenizer returns


class Generator:
    """Generates with drafts, to the end or piece by piece.

    Args:
        model: a decoder-only model of `transformers`.
        tokenizer: its tokenizer; needed for prompts and stop strings that are text.
        sources: what `DraftSession` drafts from, or a callable that makes the session of a prompt; none: plain.
        max_nodes: draft tokens of a step at most; by default 16, on an accelerator 64.
        draft_timeout: seconds to wait for a draft.
        adaptive: draft only while that pays.

    Raises:
        DrafterError: `sources` is neither a list nor a callable.

    One generation at a time for each model.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        sources: Any = None,
        *,
        max_nodes: int | None = None,
        draft_timeout: float = 0.5,
        adaptive: bool = True,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._options: dict[str, Any] = {
            "drafter": session_maker(sources),
            "max_nodes": max_nodes,
            "draft_timeout": draft_timeout,
            "adaptive": adaptive,
        }

    def generate(self, prompt: Prompt, **options: Any) -> Any:
        """Generate to the end.

        Args:
            prompt: text, 1-D or 2-D token ids, or a mapping such as a tokenizer returns.
            options: of `model.generate`; `streamer` and `stop_strings` too.

        Returns:
            What `rest_store.generate` returns.

        Raises:
            GenerationError: as `rest_store.generate`; DrafterError for text without a tokenizer.
        """
        streamer = options.pop("streamer", None)
        return self.model.generate(
            **self._inputs(prompt),
            **self._prepared(options),
            custom_generate=generate,
            stream_to=streamer,
        )

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Piece]:
        """Generate piece by piece: yield what each forward pass wrote, as soon as it is written.

        Args, errors: as `generate`. The first piece comes after the prompt's forward pass; leaving the iteration ends
        the generation.
        """
        yield from self.begin(prompt, **options)

    def begin(self, prompt: Prompt, **options: Any) -> Any:
        """Return the generation as `Pieces`, to iterate over; its `statistics` are up to date after each piece."""
        return self.model.generate(**self._inputs(prompt), **self._prepared(options), custom_generate=pieces)

    def _prepared(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options as `model.generate` takes them with a function of one's own: without stop strings."""
        options = {**self._options, **options}
        strings = options.pop("stop_strings", None)
        if strings is not None:
            criterion = StopStringCriteria(tokenizer=self._needed_tokenizer(), stop_strings=strings)
            options["stopping_criteria"] = [*(options.get("stopping_criteria") or []), criterion]
        return options

    def _inputs(self, prompt: Prompt) -> dict[str, Any]:
        device = self.model.device
        if isinstance(prompt, str):
            prompt = self._needed_tokenizer()(prompt, return_tensors="pt")
        if isinstance(prompt, Mapping):
            wanted = {name: prompt[name] for name in ("input_ids", "attention_mask") if name in prompt}
            return {name: torch.as_tensor(value).to(device) for name, value in wanted.items()}
        ids = torch.as_tensor(prompt, dtype=torch.long).to(device)
        return {"input_ids": ids if ids.ndim == 2 else ids[None]}

    def _needed_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise DrafterError(describe("Generator", "tokenizer", "None", "a tokenizer, for a prompt that is text"))
        return self.tokenizer
