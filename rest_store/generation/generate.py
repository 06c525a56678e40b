"""`rest_store.generate`: what `model.generate(custom_generate=...)` of transformers 5 calls.

    model.generate(**inputs, custom_generate=rest_store.generate, drafter=[store, rest_store.PromptLookup()])

`transformers` prepares everything as for its own decoding (cache, mask, processors, criteria), then hands over here. It
passes the named arguments below on, and no others of its own: `streamer=` does not arrive, `stream_to=` does.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from rest_store.errors import DrafterError, ModeNotSupportedError, describe
from rest_store.generation.drafting import Session
from rest_store.generation.loop import Generation, SessionMaker
from rest_store.generation.options import Options
from rest_store.generation.progress import Piece, Statistics

# By name: sessions and generation are rooms of one layer, which know each other by the `Session` protocol alone.
_DEFAULT_SESSION = "rest_store.drafting.session:DraftSession"


@dataclass
class GenerateOutput(GenerateDecoderOnlyOutput):
    """What `generate` returns with `return_dict_in_generate=True`: the fields of transformers, and how it was drafted.

    Attributes:
        statistics: forward passes, M, what the drafter did, where each token came from.
    """

    statistics: Statistics | None = None


def generate(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    drafter: Any = None,
    max_nodes: int | None = None,
    source_timeout: float = 0.5,
    adaptive: bool = True,
    widths: Sequence[int] = (),
    stream_to: Any = None,
    streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Generate as `model.generate` does, token for token, with fewer forward passes (REST, arXiv 2311.08252).

    To be given to `model.generate` as `custom_generate`, which takes the arguments from `drafter` on by name.

    Args:
        model: a decoder-only model of `transformers`.
        input_ids: int64[rows, length], padded on the left.
        logits_processor: prepared by `model.generate`. Each call of one judges a single row, of a batch too; those of
            your own are copied for each row of a batch, with all that they hold.
        stopping_criteria: prepared by `model.generate`. Each call of one judges a single row.
        generation_config: prepared by `model.generate`.
        drafter: sources for a `DraftSession` of each row (a list), or a callable that makes the session of a prompt
            (a list of token ids); None: plain decoding.
        max_nodes: draft tokens of a step at most; by default 16, on an accelerator 64.
        source_timeout: seconds to wait for a draft; a step without one is plain.
        adaptive: measure what steps cost as it goes, and draft only while that pays.
        widths: tokens of a step: each is padded to the next of these, all shapes are fixed, and on a CUDA device each
            width is a recorded graph, kept for the generations to come; empty: steps are as wide as their trees.
        stream_to: a streamer of `transformers`, given the prompt and each token (one row only).
        streamer: the same, for `functools.partial` and direct calls: `model.generate` keeps its own to itself.
        model_kwargs: prepared by `model.generate`.

    Returns:
        int64[rows, longer length], or a `GenerateOutput` if the configuration says `return_dict_in_generate`.

    Raises:
        ModelNotSupportedError: no decoder-only model whose keys and values can be kept for one path of a tree.
        ModeNotSupportedError: not greedy search or sampling, more than text goes in, a processor or criterion that does
            not judge rows one by one, or a streamer for several rows.
        CacheNotSupportedError: a quantized, offloaded or recurrent cache.
        DrafterError: `drafter` is neither a list of sources nor a callable.
        LimitError: `max_nodes`, `source_timeout` or `widths` out of range.

    A drafter that raises, is late or answers with something that is no tree changes nothing; it is counted in
    `statistics.drafts`. One generation at a time for each model.
    """
    options = Options(max_nodes, source_timeout, adaptive, tuple(widths))
    begun = pieces(
        model,
        input_ids,
        logits_processor,
        stopping_criteria,
        generation_config,
        drafter=drafter,
        options=options,
        **model_kwargs,
    )
    streamer = stream_to if stream_to is not None else streamer
    if streamer is not None:
        begun.stream_to(streamer)
    return begun.result()


def pieces(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    drafter: Any,
    options: Options,
    **model_kwargs: Any,
) -> Pieces:
    """Return the generation as something to iterate over; arguments and errors as of `generate`.

    Also to be given as `custom_generate`: `model.generate` prepares everything, and returns what this returns.
    """
    maker = session_maker(drafter)
    return Pieces(
        Generation(
            model, input_ids, logits_processor, stopping_criteria, generation_config, maker, options, model_kwargs
        )
    )


class Pieces:
    """A generation to iterate over, once: each item is what one forward pass wrote.

    Iterating again goes on where it was left.

    Attributes:
        statistics: up to date after each item.
    """

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._steps = generation.steps()
        self.statistics = generation.statistics

    def __iter__(self) -> Iterator[Piece]:
        return self._steps

    def close(self) -> None:
        """End the generation where it is; the caller's own cache then holds what was written."""
        self._steps.close()

    def stream_to(self, streamer: Any) -> None:
        """Run to the end, and give a streamer of `transformers` the prompt and each token.

        Raises:
            ModeNotSupportedError: there are several rows, which do not get their tokens in step.
        """
        rows = len(self._generation.rows)
        if rows != 1:
            raise ModeNotSupportedError(describe("generate", "a streamer", f"given for {rows} rows", "one row"))
        streamer.put(self._generation.input_ids.cpu())
        for piece in self._steps:
            for token in piece.tokens[0]:
                streamer.put(torch.tensor([token]))
        streamer.end()

    def result(self) -> Any:
        """Return what `generate` returns, after writing what is not written yet."""
        for _ in self._steps:
            pass
        generation = self._generation
        if not generation.config.return_dict_in_generate:
            return generation.sequences()
        return GenerateOutput(
            sequences=generation.sequences(),
            scores=generation.kept("scores"),
            logits=generation.kept("logits"),
            past_key_values=generation.cache,
            statistics=generation.statistics,
        )


def session_maker(drafter: Any) -> SessionMaker | None:
    """Return what makes the drafting session of a prompt.

    Raises:
        DrafterError: `drafter` is neither None, a callable, nor a list or tuple of sources.
    """
    if drafter is None or callable(drafter):
        return drafter  # type: ignore[no-any-return]
    if not isinstance(drafter, list | tuple):
        expected = "a list of sources, or a callable that makes the session of a prompt"
        raise DrafterError(describe("generate", "drafter", f"a {type(drafter).__name__}", expected))
    return default_session(drafter) if drafter else None


def default_session(sources: Sequence[Any]) -> SessionMaker:
    """Return what makes a `DraftSession` of `sources` for a prompt.

    All that one maker makes share a calibration: give the maker itself as `drafter` of several generations, and the
    error that the first ones mended stays mended in the later ones.
    """
    module, _, name = _DEFAULT_SESSION.partition(":")
    rooms = importlib.import_module(module)
    calibration = functools.cache(rooms.Calibration.default)  # made with the first session, on its thread

    def make(prompt: list[int]) -> Session:
        made: Session = getattr(rooms, name)(sources=list(sources), prompt=prompt, calibration=calibration())
        return made

    return make
