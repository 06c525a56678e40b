"""`Generator`: a model, its tokenizer and its sources, to call from your own code."""

from __future__ import annotations

import copy
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from rest_store.datastore.store import Store
from rest_store.datastore.tokenizer import TokenizerIdentity, identity_of
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.grammar import Grammar
from rest_store.drafting.members import MemberSource
from rest_store.drafting.remembering import RememberTarget, flush
from rest_store.drafting.sources import RecycledLogits, source_names
from rest_store.errors import (
    DraftingWarning,
    NotSupportedError,
    PromptWarning,
    TokenizerLoadError,
)
from rest_store.generation.comparison import Comparison, Speedup, in_turns
from rest_store.generation.constraints import Constraints
from rest_store.generation.drafting_options import DraftingOptions
from rest_store.generation.grammar_mask import GrammarMask
from rest_store.generation.loop import Generation
from rest_store.generation.output import GeneratorOutput, Piece, accepted_by_source
from rest_store.generation.prompt_inputs import prompt_inputs, tokenized_references
from rest_store.generation.seam import name_of_cache_in
from rest_store.generation.stop_strings import with_stop_criterion
from rest_store.generation.stream import Drive, Stream, loop_not_run
from rest_store.generation.support import device_of
from rest_store.generation.typical import ACCEPTANCES


class Generator:
    """Generates with drafts, to the end or piece by piece.

    Args:
        model: a decoder-only model of transformers.
        tokenizer: its tokenizer; needed for prompts and stop strings that are text.
        sources: those of `rest_store.generate`, which describes the other arguments and
            errors, too. Datastores that were built with another tokenizer are refused.

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
        options = DraftingOptions(
            sources, (), max_nodes, adaptive, remember, calibration, acceptance
        )
        if sources and calibration is None:  # one for all generations
            options = replace(options, calibration=Calibration.default())
        self._options = replace(
            options, tokenizer=_identity_for(tokenizer, [*(sources or ()), remember])
        )
        self._constraints = Constraints(model, tokenizer)
        self.source_names = source_names(sources or ())

    def generate(
        self,
        prompt: Any,
        *,
        json_schema: Any = None,
        regex: Any = None,
        grammar: Any = None,
        references: Sequence[str | IntSequence] = (),
        group: str = "",
        epoch: int = 0,
        compare: bool = False,
        on_piece: Callable[[Piece], object] | None = None,
        **options: Any,
    ) -> GeneratorOutput:
        """Generate to the end.

        Args:
            prompt: text, messages of a chat (a list of mappings with role and content, which the
                tokenizer's chat template renders), 1-D or 2-D token ids, or a mapping such as a
                tokenizer returns, all of which goes into the model.
            json_schema: that the output satisfies: a dict, or its text. Logits are masked, and the
                grammar drafts, too. A list has one for each prompt of a batch; so has that of
                `regex` or `grammar`.
            regex: that the whole output matches, as llguidance takes it. At most one of the three.
            grammar: that the output follows: a `Grammar`, or an argument of it, such as a grammar
                of llguidance as text.
            references: of `rest_store.generate`, as text or token ids.
            group: of `rest_store.generate`; where there is none, that of the grammar.
            epoch: of `rest_store.generate`.
            compare: before it, generate plainly and with drafts in turns and with the same random
                numbers, for up to about half a minute. The comparison leaves torch's random
                generators, recycled logits and the memory unchanged.
            on_piece: called with the `Piece` of each forward pass.
            options: of `model.generate`, `stop_strings` included.

        Returns:
            Tokens, text, and the statistics of drafting.

        Raises:
            RestStoreError: as `rest_store.generate`; ArgumentError for a bad prompt, ArgumentError
                for text without a tokenizer, NotSupportedError for a `streamer`, and for `compare`
                with a cache of yours, which can be continued once.
            ArgumentError: a schema or grammar that is none, or that nothing satisfies.
            MissingExtraError: llguidance is needed, and not installed.
        """
        if compare and (name := name_of_cache_in(options)) is not None:
            raise NotSupportedError(
                f"Generator: with compare=True, {name} cannot be passed: each of several"
                " generations would continue it"
            )
        drafting, options = self._prepare(
            options, references, group, epoch, json_schema=json_schema, regex=regex, grammar=grammar
        )
        comparison = self._compare(prompt, drafting, options) if compare else None
        output = self._generate(self._inputs(prompt), drafting, options, on_piece)
        if isinstance(prompt, str):
            self._warn_of_chats(output)
        return replace(output, comparison=comparison)

    def stream(
        self,
        prompt: Any,
        *,
        json_schema: Any = None,
        regex: Any = None,
        grammar: Any = None,
        references: Sequence[str | IntSequence] = (),
        group: str = "",
        epoch: int = 0,
        **options: Any,
    ) -> Stream:
        """Return the generation, to iterate over the text of each forward pass.

        Arguments and errors as in `generate`. `model.generate` runs in a thread of its own, each
        pass of it while the next piece is waited for. A stream that is dropped before its end is
        closed, but does not fill a cache of yours: close it for that.
        """
        drafting, model_options = self._prepare(
            options, references, group, epoch, json_schema=json_schema, regex=regex, grammar=grammar
        )
        inputs = self._inputs(prompt)
        return Stream(
            lambda drive: self._run(inputs, drafting, model_options, drive),
            type(self.model).__name__,
        )

    def grammar(
        self, *, json_schema: Any = None, regex: Any = None, grammar: Any = None
    ) -> Grammar | None:
        """Return the grammar that `generate` uses for one of these, or None for none.

        Arguments and errors as in `generate`.
        """
        grammars, _ = self._constraints.constrain({}, json_schema, regex, grammar)
        return grammars[0] if grammars else None

    def _run(
        self,
        inputs: Mapping[str, Any],
        drafting: DraftingOptions,
        options: Mapping[str, Any],
        drive: Drive,
    ) -> Any:
        """Return the result of `model.generate`, which calls `drive` with a generation."""
        if options.get("streamer") is not None:
            raise NotSupportedError(
                "Generator: streamer cannot be passed: iterate over the pieces of Generator.stream"
            )

        def loop(
            model: Any,
            input_ids: torch.Tensor,
            logits_processor: Any,
            stopping_criteria: Any,
            generation_config: Any,
            **model_kwargs: Any,
        ) -> Any:
            prepared = (model, input_ids, logits_processor, stopping_criteria, generation_config)
            return drive(
                Generation(
                    *prepared, options=drafting, text_tokenizer=self.tokenizer, **model_kwargs
                )
            )

        return self.model.generate(**inputs, **_masked(options, drafting), custom_generate=loop)

    def _generate(
        self,
        inputs: Mapping[str, Any],
        drafting: DraftingOptions,
        options: Mapping[str, Any],
        on_piece: Callable[[Piece], object] | None = None,
    ) -> GeneratorOutput:
        """Generate to the end."""
        with_gradients = torch.is_grad_enabled()
        # The latest: a wrapper of the model may generate more than once.
        generation: Generation | None = None

        def drive(new: Generation) -> Any:
            nonlocal generation
            generation = new
            with new:
                if on_piece is not None:
                    for piece in new:
                        # `model.generate` has turned them off.
                        with torch.set_grad_enabled(with_gradients):
                            on_piece(piece)
                return new.result()

        result = self._run(inputs, drafting, options, drive)
        if generation is None:
            raise loop_not_run(type(self.model).__name__)
        texts = None
        if self.tokenizer is not None:
            texts = [
                self.tokenizer.decode(tokens, skip_special_tokens=True)
                for tokens in generation.tokens
            ]
        names = source_names([*self.source_names, *drafting.grammars[:1]])
        sources = accepted_by_source(generation.statistics.origins, names)
        sequences = getattr(result, "sequences", result)
        return GeneratorOutput(sequences, generation.tokens, texts, generation.statistics, sources)

    def _compare(
        self, prompt: Any, drafting: DraftingOptions, options: dict[str, Any]
    ) -> Comparison:
        """Generate plainly and with drafts in turns, without a trace."""
        devices = [self.model.device] if self.model.device.type == "cuda" else []
        outputs: list[Any] = []

        def timed(write: Callable[[], Any]) -> float:
            with torch.random.fork_rng(devices=devices):
                began = time.perf_counter()
                outputs.append(write())
                return time.perf_counter() - began

        def plain() -> float:
            return timed(
                lambda: self.model.generate(
                    **self._inputs(prompt),
                    **_masked(options, drafting),
                )
            )

        def drafted(**changes: Any) -> float:
            own = replace(_copied(drafting), **changes)
            return timed(lambda: self._generate(self._inputs(prompt), own, options))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DraftingWarning)  # the generation itself issues it
            drafted(adaptive=False)  # warms up, too
            slow, fast = in_turns(plain, drafted)
        texts = [getattr(output, "sequences", output) for output in outputs]
        at_max = outputs[0].statistics
        return Comparison(
            speedup=Speedup.from_runs(slow, fast),
            identical=all(torch.equal(text, texts[0]) for text in texts),
            tokens=at_max.tokens,
            seconds=statistics.median(slow),
            drafted_seconds=statistics.median(fast),
            max_nodes=drafting.max_nodes_on(device_of(self.model)),
            mean_tokens_at_max=at_max.mean_tokens,
        )

    def flush(self, seconds: float | None = None) -> bool:
        """Wait, at most for `seconds`, until all outputs so far are remembered.

        Outputs of other generators count, too.

        Returns:
            Whether nothing is left to be written.
        """
        return flush(None, seconds)

    def _prepare(
        self,
        options: Mapping[str, Any],
        references: Any,
        group: str,
        epoch: int,
        *,
        json_schema: Any,
        regex: Any,
        grammar: Any,
    ) -> tuple[DraftingOptions, dict[str, Any]]:
        """Return the options of drafting and those of `model.generate` for one generation.

        Arguments and errors as in `generate`.
        """
        tokens = tokenized_references(self.tokenizer, references)
        drafting = replace(self._options, references=tokens, group=group, epoch=epoch)
        model_options = with_stop_criterion(self.model, self.tokenizer, options)
        grammars, model_options = self._constraints.constrain(
            model_options, json_schema, regex, grammar
        )
        return replace(drafting, grammars=grammars), model_options

    def _inputs(self, prompt: Any) -> dict[str, torch.Tensor]:
        return prompt_inputs(self.model, self.tokenizer, prompt)

    def _warn_of_chats(self, output: GeneratorOutput) -> None:
        """Warn if a text ended at once that may have been meant as a question to a chat model."""
        (tokens,) = output.tokens
        has_template = bool(getattr(self.tokenizer, "chat_template", None))
        if has_template and len(tokens) == 1 and tokens[0] in self.tokenizer.all_special_ids:
            warnings.warn(
                "rest-store: the model ended the text after 1 token. The prompt was continued as it"
                ' is; to ask a chat model, pass messages: [{"role": "user", "content": ...}]',
                PromptWarning,
                stacklevel=3,
            )


def _identity_for(tokenizer: Any, sources: Sequence[object]) -> TokenizerIdentity | None:
    """Return the identity of a tokenizer if one of `sources` may have another tokenizer."""
    if tokenizer is None or not any(isinstance(source, Store | MemberSource) for source in sources):
        return None
    try:
        return identity_of(tokenizer)
    # Written in Python: no datastore can be built with it, so none is refused.
    except TokenizerLoadError:
        return None


def _copied(options: DraftingOptions) -> DraftingOptions:
    """Return options whose sources and calibration learn for themselves from here on.

    Nothing is remembered.
    """
    copies = [
        source.copy() if isinstance(source, RecycledLogits | Grammar) else source
        for source in options.sources or ()
    ]
    grammars = [grammar.copy() for grammar in options.grammars]
    calibration = copy.copy(options.calibration)
    return replace(
        options, sources=copies, calibration=calibration, grammars=grammars, is_trial=True
    )


def _masked(options: Mapping[str, Any], drafting: DraftingOptions) -> dict[str, Any]:
    """Return options of one call of `model.generate`, with a mask of its own for the grammars."""
    if not drafting.grammars:
        return dict(options)
    return {
        **options,
        "logits_processor": [
            GrammarMask(drafting.grammars),
            *(options.get("logits_processor") or ()),
        ],
    }
