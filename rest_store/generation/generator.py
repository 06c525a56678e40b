"""`Generator`: a model, its tokenizer and the sources that draft for them, to call from your own code."""

from __future__ import annotations

import functools
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from transformers import StopStringCriteria

from rest_store.drafting.calibration import Calibration
from rest_store.drafting.remembering import flush_all
from rest_store.drafting.sources import RecycledLogits, source_names
from rest_store.errors import DrafterError, DraftingWarning, ModeNotSupportedError, PromptError, describe
from rest_store.generation.comparison import Comparison, Speedup, in_turns
from rest_store.generation.conversation import rendered
from rest_store.generation.draft_sessions import SessionFactory
from rest_store.generation.generate import session_factory_of
from rest_store.generation.loop import Generation
from rest_store.generation.options import Options
from rest_store.generation.output import GeneratorOutput, Piece, accepted_by_source
from rest_store.generation.support import vocabulary_size

Prompt = Any  # text, token ids, or what a tokenizer returns


class Generator:
    """Generates with drafts, to the end or piece by piece.

    Args:
        model: a decoder-only model of transformers.
        tokenizer: its tokenizer; needed for prompts and stop strings that are text.
        sources: the `drafter` of `rest_store.generate`.
        options: of `rest_store.generate`: `max_nodes`, `source_timeout`, `adaptive`, `remember`, `calibration`,
            `acceptance`.

    Attributes:
        source_names: a name for each source; none for a callable drafter.

    Raises:
        DrafterError, SourceError, NativeKernelError: `sources` cannot draft; see `rest_store.generate`.
        LimitError: an option out of range; RememberError: nothing can be added to `remember`; CalibrationError: see
            `rest_store.generate`.
        TypeError: an unknown option.

    One generation at a time for each model.
    """

    def __init__(self, model: Any, tokenizer: Any = None, sources: Any = None, **options: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._sources = sources
        self._options = Options(**options)
        self.source_names = source_names(sources) if isinstance(sources, list | tuple) else []
        self._calibration = functools.cache(Calibration.default)  # shared by all generations
        self._session_factory(self._options)

    def generate(
        self,
        prompt: Prompt,
        *,
        compare: bool = False,
        on_piece: Callable[[Piece], object] | None = None,
        **options: Any,
    ) -> GeneratorOutput:
        """Generate to the end.

        Args:
            prompt: text, 1-D or 2-D token ids, or a mapping such as a tokenizer returns, all of which goes into the
                model.
            compare: before it, generate plainly and with drafts in turns and with the same random numbers, for up to
                about half a minute. All goes on as if that had not been done: torch's random generators, recycled
                logits, and what is remembered.
            on_piece: called with what each forward pass wrote.
            options: of `model.generate`, `streamer` and `stop_strings` included; and options of this generator, for
                this generation alone.

        Returns:
            Tokens, text, and what drafting gave.

        Raises:
            GenerationError: as `rest_store.generate`; PromptError for a bad prompt, DrafterError for text without a
                tokenizer, ModeNotSupportedError for `compare` with a cache of yours, which can be continued once.
        """
        streamer = options.pop("streamer", None)
        if compare and options.get("past_key_values") is not None:
            expected = "none: each of several generations would continue it"
            raise ModeNotSupportedError(describe("Generator", "past_key_values", "passed with compare=True", expected))
        comparison = self._compare(prompt, options) if compare else None
        with self.stream(prompt, **options) as generation:
            if streamer is not None:
                generation.stream_to(streamer)
            if on_piece is not None:
                for piece in generation:
                    on_piece(piece)
            return replace(self._output(generation), comparison=comparison)

    def _output(self, generation: Generation) -> GeneratorOutput:
        """Run `generation` to its end and return what it wrote."""
        result, tokenizer = generation.result(), self.tokenizer
        texts = None
        if tokenizer is not None:
            texts = [tokenizer.decode(tokens, skip_special_tokens=True) for tokens in generation.tokens]
        sources = accepted_by_source(generation.statistics.origins, self.source_names)
        return GeneratorOutput(result, generation.tokens, texts, generation.statistics, sources)

    def _compare(self, prompt: Prompt, options: dict[str, Any]) -> Comparison:
        """Generate plainly and with drafts in turns, without a trace."""
        plain_options = self._with_stop_strings(self._split(options)[1])
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        written: list[Any] = []

        def timed(write: Callable[[], Any]) -> float:
            with torch.random.fork_rng(devices=devices):
                began = time.perf_counter()
                written.append(write())
                return time.perf_counter() - began

        def plain() -> float:
            return timed(lambda: self.model.generate(**self._inputs(prompt), **plain_options))

        def drafted(**changes: Any) -> float:
            generator, all_options = self._copy(), {**options, **changes, "remember": None}
            return timed(lambda: generator.stream(prompt, **all_options).result())

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DraftingWarning)  # the generation itself issues it
            drafted(adaptive=False, return_dict_in_generate=True)  # warms up, too
            runs = in_turns({"plain": plain, "drafted": drafted})
        texts = [getattr(output, "sequences", output) for output in written]
        return Comparison(
            speedup=Speedup.of(runs["plain"], runs["drafted"]),
            identical=all(torch.equal(text, texts[0]) for text in texts),
            tokens=written[0].statistics.tokens,
            seconds=statistics.median(runs["plain"]),
            drafted_seconds=statistics.median(runs["drafted"]),
            max_nodes=self._split(options)[0].max_nodes_on(self.model.device),
            mean_tokens_at_max=written[0].statistics.mean_tokens,
        )

    def _copy(self) -> Generator:
        """Return a generator that learns for itself from here on."""
        sources, vocabulary = self._sources, vocabulary_size(self.model)
        if isinstance(sources, list | tuple):
            sources = [source.copy(vocabulary) if isinstance(source, RecycledLogits) else source for source in sources]
        return Generator(self.model, self.tokenizer, sources, **vars(self._options))

    def stream(self, prompt: Prompt, **options: Any) -> Generation:
        """Return the generation, to iterate over what each forward pass wrote, to its end or until `close`.

        Arguments and errors as in `generate`, but a `streamer` raises ModeNotSupportedError: nobody would call it.
        A generation that is dropped before its end is closed, but does not fill a cache of yours: close it for that.
        """
        if options.pop("streamer", None) is not None:
            expected = "none: iterate over the pieces, or pass it to Generator.generate"
            raise ModeNotSupportedError(describe("Generator", "streamer", "given to stream", expected))
        draft_options, others = self._split(options)
        generation: Generation = self.model.generate(
            **self._inputs(prompt),
            **self._with_stop_strings(others),
            custom_generate=Generation,
            session_factory=self._session_factory(draft_options),
            options=draft_options,
            text_tokenizer=self.tokenizer,
        )
        return generation

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until the outputs so far are in what they are remembered in, those of other generators included.

        Args:
            seconds: wait no longer; None: as long as it takes.

        Returns:
            Whether nothing is left to be written.
        """
        return flush_all(seconds)

    def _split(self, options: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
        """Return how to draft, and the options of `model.generate`."""
        ours = {field.name for field in fields(Options)}
        changed = {name: value for name, value in options.items() if name in ours}
        return replace(self._options, **changed), {k: value for k, value in options.items() if k not in ours}

    def _with_stop_strings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options of `model.generate` with a criterion in place of stop strings, which need a tokenizer."""
        others = {name: value for name, value in options.items() if name not in ("stop_strings", "tokenizer")}
        strings = options.get("stop_strings")
        if strings is not None:
            tokenizer = options.get("tokenizer") or self._needed_tokenizer()
            criterion = StopStringCriteria(tokenizer=tokenizer, stop_strings=strings)
            others["stopping_criteria"] = [*(options.get("stopping_criteria") or []), criterion]
        return others

    def _session_factory(self, options: Options) -> SessionFactory | None:
        return session_factory_of(self._sources, options, self._calibration)

    def _inputs(self, prompt: Prompt) -> dict[str, torch.Tensor]:
        """Return a prompt as arguments of `model.generate`, each of one row or several, on the model's device.

        Raises:
            PromptError: they are no tensors, or no token ids of the model.
        """
        if isinstance(prompt, str):
            prompt = rendered(self._needed_tokenizer(), prompt).inputs
        named = prompt if isinstance(prompt, Mapping) else {"input_ids": prompt}
        rows = {name: _rows(name, value) for name, value in named.items() if value is not None or value is prompt}
        if (ids := rows.get("input_ids")) is not None:
            rows["input_ids"] = _token_ids(ids, vocabulary_size(self.model))
        return {name: tensor.to(self.model.device) for name, tensor in rows.items()}

    def _needed_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise DrafterError(describe("Generator", "tokenizer", "None", "a tokenizer, for a prompt or stop strings"))
        return self.tokenizer


_EXPECTED = "text, a row of token ids, several of equal length, or what a tokenizer returns"


def _rows(name: str, values: Any) -> torch.Tensor:
    """Return the values of an input as a tensor of at least two dimensions."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # text, ragged rows, anything else
        raise PromptError(describe("Generator", name, f"a {type(values).__name__} ({error})", _EXPECTED)) from error
    return tensor if tensor.ndim > 1 else tensor[None]


def _token_ids(rows: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Return int64[rows, length]: models read no narrower ids, such as the uint16 of numpy."""
    if rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool or rows.ndim != 2 or not rows.numel():
        raise PromptError(describe("Generator", "input_ids", f"{rows.dtype} of shape {list(rows.shape)}", _EXPECTED))
    rows = rows.long()
    least, greatest = int(rows.min()), int(rows.max())
    if least < 0 or greatest >= vocabulary:
        outside = least if least < 0 else greatest
        raise PromptError(describe("Generator", "a token id in input_ids", outside, f"0..{vocabulary - 1}"))
    return rows
