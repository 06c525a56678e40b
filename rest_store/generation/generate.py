"""`rest_store.generate`: what `model.generate(custom_generate=...)` of transformers 5 calls.

    model.generate(**inputs, custom_generate=rest_store.generate, drafter=[store, rest_store.PromptLookup()])

transformers prepares everything as for its own decoding (cache, mask, processors, criteria), then calls this. It
forwards the arguments of this signature that it does not take itself. It takes `streamer`, so that is `stream_to` here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import require_sources
from rest_store.errors import CalibrationError, DrafterError, describe
from rest_store.generation.draft_sessions import SessionFactory
from rest_store.generation.loop import Generation
from rest_store.generation.options import Options
from rest_store.generation.typical import ACCEPTANCES


def generate(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    drafter: Any = None,
    max_nodes: int | None = None,
    source_timeout: float | None = 0.5,
    adaptive: bool = True,
    remember: Any = None,
    calibration: Calibration | None = None,
    acceptance: str = ACCEPTANCES[0],
    stream_to: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Generate as `model.generate` does, token for token, with fewer forward passes (REST, arXiv 2311.08252).

    Pass it to `model.generate` as `custom_generate`, with the arguments from `drafter` on by name.

    Args:
        model: a decoder-only model of transformers.
        input_ids: int64[rows, length], padded on the left.
        logits_processor: prepared by `model.generate`. Each call of one judges a single row, of a batch too; custom
            ones are copied for each row of a batch, with all that they hold.
        stopping_criteria: prepared by `model.generate`. Each call of one judges a single row.
        generation_config: prepared by `model.generate`.
        drafter: sources for a `DraftSession` of each row (a list), or a callable that makes the session of a prompt
            (a list of token ids); None: plain decoding.
        max_nodes: most draft tokens of a step, 0..1024; None: 16, on an accelerator 64.
        source_timeout: seconds that a step waits for external sources; None: as long as they take. Sessions that a
            callable `drafter` makes set their own.
        adaptive: measure what steps cost, and draft only while that pays.
        remember: what each output is added to beside generation: a `LiveDatastore` opened for writing, a
            `DatastoreClient` of one, or another object with `add(documents, ids=None)`. To draft from it as well, name
            it in `drafter` too. None: nothing.
        calibration: of the sessions, such as `Calibration.load` of what `rest-store calibrate` wrote; None: the
            package's. What it learns, it keeps for later generations. Sessions that a callable `drafter` makes bring
            their own.
        acceptance: "exact", or "typical" when sampling: draft tokens that the model finds plausible are kept without a
            draw (Medusa, arXiv 2401.10774, section 2.3.1). **Lossy**: fewer forward passes, but the text is no longer a
            sample of the model's distribution; it is more predictable, and leans towards what was drafted.
        stream_to: a streamer of transformers, given the prompt and each token (one row only).
        model_kwargs: prepared by `model.generate`.

    Returns:
        int64[rows, longest length]. With `return_dict_in_generate=True` a `GenerateOutput`: its `statistics` say how
        many forward passes were needed, and what was drafted and accepted.

    Raises:
        ModelNotSupportedError: not a decoder-only model whose keys and values can be kept for one path of a tree.
        ModeNotSupportedError: not greedy search or sampling, inputs other than token ids, a processor or criterion that
            does not judge rows one by one, or a streamer for several rows; typical acceptance in greedy search or with
            a SynthID watermark.
        CacheNotSupportedError: a quantized, offloaded or recurrent cache, or a static one of yours.
        DrafterError: `drafter` is neither a list of sources nor a callable that takes a prompt and returns a session.
        SourceError: one of `drafter` is not a source, is given twice, or there are too many.
        LimitError: `max_nodes`, `source_timeout` or `acceptance` is out of range.
        NativeKernelError: the kernel was not compiled, and `drafter` is a list of sources.
        SessionError: a `DraftSession` that `drafter` makes refuses its sources.
        RememberError: nothing can be added to `remember`.
        CalibrationError: `calibration` is none, or is there beside a callable `drafter`.
        DatastoreClosedError: one of the sources is closed.

    A session or source that fails later changes nothing but speed. It is counted in `statistics.drafts`; one
    `DraftingWarning` at the end of the generation says that it stopped, or that nothing was drafted, and why.
    What cannot be remembered in time is counted in `statistics.remembered`, and a warning says why.
    One generation at a time for each model.
    """
    options = Options(
        max_nodes=max_nodes,
        source_timeout=source_timeout,
        adaptive=adaptive,
        remember=remember,
        calibration=calibration,
        acceptance=acceptance,
    )
    generation = Generation(
        model,
        input_ids,
        logits_processor,
        stopping_criteria,
        generation_config,
        session_factory=session_factory_of(drafter, options),
        options=options,
        **model_kwargs,
    )
    if stream_to is not None:
        generation.stream_to(stream_to)
    return generation.result()


def session_factory_of(
    drafter: Any, options: Options, calibration: Callable[[], Calibration] | None = None
) -> SessionFactory | None:
    """Return the factory of the draft sessions of a generation; None for plain decoding.

    Args:
        drafter: the argument of `generate`.
        options: the sessions take their `source_timeout` and `calibration` from it.
        calibration: returns the calibration that sessions share if `options` has none, once the first one is made;
            None: a copy of the package's.

    Raises:
        DrafterError: `drafter` is neither None, a callable that takes a prompt, nor a list or tuple of sources.
        CalibrationError: `options` has a calibration, and `drafter` is a callable.
        SourceError, NativeKernelError: as in `require_sources`.
    """
    if drafter is None:
        return None
    if isinstance(drafter, list | tuple):
        sources = list(drafter)  # of the caller, who may change it
        require_sources("generate", sources)
        own, timeout = options.calibration, options.source_timeout
        shared = (calibration or functools.cache(Calibration.default)) if own is None else lambda: own

        def make(prompt: list[int]) -> DraftSession:
            return DraftSession(sources, prompt, calibration=shared(), source_timeout=timeout)

        return make if sources else None
    if not callable(drafter) or (isinstance(drafter, type) and not hasattr(drafter, "accept")):  # no class of sessions
        kind = f"the class {drafter.__name__}" if isinstance(drafter, type) else f"a {type(drafter).__name__}"
        expected = "a list of sources, or a callable that makes the session of a prompt"
        raise DrafterError(describe("generate", "drafter", kind, expected))
    if options.calibration is not None:
        expected = "none: the sessions that the drafter makes bring their own"
        raise CalibrationError(describe("generate", "calibration", "passed with a callable drafter", expected))
    return drafter  # type: ignore[no-any-return]
