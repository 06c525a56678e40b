"""`Generator`: a model, its tokenizer and the sources that draft for them, to call from your own code."""

from __future__ import annotations

import copy
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import StopStringCriteria

from rest_store.datastore.validation import IntSequence
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.remembering import RememberTarget, flush
from rest_store.drafting.sources import RecycledLogits, source_names
from rest_store.errors import DraftingWarning, ModeNotSupportedError, NoTokenizerError, PromptError, describe
from rest_store.generation.comparison import Comparison, Speedup, in_turns
from rest_store.generation.conversation import tokenized
from rest_store.generation.loop import Generation
from rest_store.generation.options import Options
from rest_store.generation.output import GeneratorOutput, Piece, accepted_by_source
from rest_store.generation.seam import name_of_cache_in
from rest_store.generation.support import vocabulary_size
from rest_store.generation.typical import ACCEPTANCES


class Generator:
    """Generates with drafts, to the end or piece by piece.

    Args:
        model: a decoder-only model of transformers.
        tokenizer: its tokenizer; needed for prompts and stop strings that are text.
        sources: the `drafter` of `rest_store.generate`, which describes the other arguments and errors, too.

    Attributes:
        source_names: a name for each source.

    One generation at a time for each model.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        sources: Sequence[object] | None = None,
        *,
        max_nodes: int | None = None,
        adaptive: bool = True,
        remember: RememberTarget | None = None,
        calibration: Calibration | None = None,
        acceptance: str = ACCEPTANCES[0],
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        options = Options(sources, (), max_nodes, adaptive, remember, calibration, acceptance)
        if sources and calibration is None:  # one for all generations
            options = replace(options, calibration=Calibration.default())
        self._options = options
        self.source_names = source_names(sources or ())

    def generate(
        self,
        prompt: Any,
        *,
        references: Sequence[str | IntSequence] = (),
        group: str = "",
        epoch: int = 0,
        compare: bool = False,
        on_piece: Callable[[Piece], object] | None = None,
        **options: Any,
    ) -> GeneratorOutput:
        """Generate to the end.

        Args:
            prompt: text, 1-D or 2-D token ids, or a mapping such as a tokenizer returns, all of which goes into the
                model.
            references: of `rest_store.generate`, as text or token ids.
            group: of `rest_store.generate`.
            epoch: of `rest_store.generate`.
            compare: before it, generate plainly and with drafts in turns and with the same random numbers, for up to
                about half a minute. All goes on as if that had not been done: torch's random generators, recycled
                logits, and what is remembered.
            on_piece: called with what each forward pass wrote.
            options: of `model.generate`, `stop_strings` included.

        Returns:
            Tokens, text, and what drafting gave.

        Raises:
            GenerationError: as `rest_store.generate`; PromptError for a bad prompt, NoTokenizerError for text without a
                tokenizer, ModeNotSupportedError for a `streamer`, and for `compare` with a cache of yours, which can be
                continued once.
        """
        if compare and (name := name_of_cache_in(options)) is not None:
            expected = "none: each of several generations would continue it"
            raise ModeNotSupportedError(describe("Generator", name, "passed with compare=True", expected))
        drafting = replace(self._options, references=self._tokens_of(references), group=group, epoch=epoch)
        options = self._with_stop_strings(options)
        comparison = self._compare(prompt, drafting, options) if compare else None
        with self._begin(prompt, drafting, options) as generation:
            if on_piece is not None:
                for piece in generation:
                    on_piece(piece)
            return replace(self._output(generation), comparison=comparison)

    def stream(
        self,
        prompt: Any,
        *,
        references: Sequence[str | IntSequence] = (),
        group: str = "",
        epoch: int = 0,
        **options: Any,
    ) -> Generation:
        """Return the generation, to iterate over what each forward pass wrote, to its end or until `close`.

        Arguments and errors as in `generate`. A generation that is dropped before its end is closed, but does not fill
        a cache of yours: close it for that.
        """
        drafting = replace(self._options, references=self._tokens_of(references), group=group, epoch=epoch)
        return self._begin(prompt, drafting, self._with_stop_strings(options))

    def _begin(self, prompt: Any, drafting: Options, options: Mapping[str, Any]) -> Generation:
        if options.get("streamer") is not None:
            expected = "none: iterate over the pieces of Generator.stream"
            raise ModeNotSupportedError(describe("Generator", "streamer", "passed", expected))
        generation: Generation = self.model.generate(
            **self._inputs(prompt),
            **options,
            custom_generate=Generation,
            options=drafting,
            text_tokenizer=self.tokenizer,
        )
        return generation

    def _output(self, generation: Generation) -> GeneratorOutput:
        """Run `generation` to its end and return what it wrote."""
        result = generation.result()
        texts = None
        if self.tokenizer is not None:
            texts = [self.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in generation.tokens]
        sources = accepted_by_source(generation.statistics.origins, self.source_names)
        sequences = getattr(result, "sequences", result)
        return GeneratorOutput(sequences, generation.tokens, texts, generation.statistics, sources)

    def _compare(self, prompt: Any, drafting: Options, options: dict[str, Any]) -> Comparison:
        """Generate plainly and with drafts in turns, without a trace."""
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        outputs: list[Any] = []

        def timed(write: Callable[[], Any]) -> float:
            with torch.random.fork_rng(devices=devices):
                began = time.perf_counter()
                outputs.append(write())
                return time.perf_counter() - began

        def plain() -> float:
            return timed(lambda: self.model.generate(**self._inputs(prompt), **options))

        def drafted(**changes: Any) -> float:
            own = replace(_copied(drafting), **changes)
            return timed(lambda: self._output(self._begin(prompt, own, options)))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DraftingWarning)  # the generation itself issues it
            drafted(adaptive=False)  # warms up, too
            slow, fast = in_turns(plain, drafted)
        texts = [getattr(output, "sequences", output) for output in outputs]
        at_max = outputs[0].statistics
        return Comparison(
            speedup=Speedup.of(slow, fast),
            identical=all(torch.equal(text, texts[0]) for text in texts),
            tokens=at_max.tokens,
            seconds=statistics.median(slow),
            drafted_seconds=statistics.median(fast),
            max_nodes=drafting.max_nodes_on(self.model.device),
            mean_tokens_at_max=at_max.mean_tokens,
        )

    def flush(self, seconds: float | None = None) -> bool:
        """Wait, at most for `seconds`, until all outputs so far are remembered, those of other generators, too.

        Returns:
            Whether nothing is left to be written.
        """
        return flush(None, seconds)

    def _with_stop_strings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options of `model.generate` with a criterion in place of stop strings, which need a tokenizer."""
        others = {name: value for name, value in options.items() if name not in ("stop_strings", "tokenizer")}
        strings = options.get("stop_strings")
        if strings is not None:
            tokenizer = options.get("tokenizer") or self._needed_tokenizer()
            criterion = StopStringCriteria(tokenizer=tokenizer, stop_strings=strings)
            others["stopping_criteria"] = [*(options.get("stopping_criteria") or []), criterion]
        return others

    def _inputs(self, prompt: Any) -> dict[str, torch.Tensor]:
        """Return a prompt as arguments of `model.generate`, each of one row or several, on the model's device.

        Raises:
            PromptError: they are no tensors, or no token ids of the model.
        """
        if isinstance(prompt, str):
            prompt = tokenized(self._needed_tokenizer(), prompt)
        named = prompt if isinstance(prompt, Mapping) else {"input_ids": prompt}
        rows = {name: _rows(name, value) for name, value in named.items() if value is not None or value is prompt}
        if "input_ids" in rows:
            rows["input_ids"] = _token_ids(rows["input_ids"], vocabulary_size(self.model))
        return {name: tensor.to(self.model.device) for name, tensor in rows.items()}

    def _tokens_of(self, references: Any) -> Any:
        """Return references as token ids; what is no list, `Options` refuses."""
        if not isinstance(references, list | tuple):
            return references
        return [
            self._needed_tokenizer()(text, add_special_tokens=False)["input_ids"] if isinstance(text, str) else text
            for text in references
        ]

    def _needed_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise NoTokenizerError(describe("Generator", "tokenizer", "None", "a tokenizer, for text and stop strings"))
        return self.tokenizer


def _copied(options: Options) -> Options:
    """Return options whose sources and calibration learn for themselves from here on; nothing is remembered."""
    sources = [source.copy() if isinstance(source, RecycledLogits) else source for source in options.drafter or ()]
    calibration = copy.copy(options.calibration)
    references = options.all_references(lambda error: None)  # the generation itself says it
    return replace(options, drafter=sources, calibration=calibration, references=references, remember=None)


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
    outside = rows[(rows < 0) | (rows >= vocabulary)]
    if outside.numel():
        raise PromptError(describe("Generator", "a token id in input_ids", int(outside[0]), f"0..{vocabulary - 1}"))
    return rows
