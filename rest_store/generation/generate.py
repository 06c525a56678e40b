"""`rest_store.generate`: the loop for `model.generate(custom_generate=...)` of transformers 5.

    sources = [store, rest_store.PromptLookup()]
    model.generate(**inputs, custom_generate=rest_store.generate, sources=sources)

transformers prepares everything as for its own decoding (cache, mask, processors, criteria), then
calls this. It forwards the arguments of this signature that it does not take itself. A `streamer`
it takes itself, and does not forward; `streamer_of_the_call` finds it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from rest_store.datastore.validation import IntSequence
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.remembering import RememberTarget
from rest_store.errors import ArgumentError, NotSupportedError
from rest_store.generation.drafting_options import DraftingOptions
from rest_store.generation.loop import Generation
from rest_store.generation.seam import streamer_of_the_call
from rest_store.generation.typical import ACCEPTANCES


def generate(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    *,
    sources: Sequence[object] | None = None,
    references: Sequence[IntSequence] = (),
    max_nodes: int | None = None,
    adaptive: bool = True,
    remember: RememberTarget | None = None,
    calibration: Calibration | None = None,
    acceptance: str = ACCEPTANCES[0],
    group: str = "",
    epoch: int = 0,
    stream_to: Any = None,
    drafter: Sequence[object] | None = None,
    **model_kwargs: Any,
) -> Any:
    """Generate the tokens of `model.generate` in fewer forward passes (REST, arXiv 2311.08252).

    Pass it to `model.generate` as `custom_generate`, with the arguments from `sources` on by name.

    Args:
        model: a decoder-only model of transformers.
        input_ids: int64[rows, length], padded on the left.
        logits_processor: prepared by `model.generate`. Each call of one judges a single row, of a
            batch too; custom ones are copied for each row of a batch, with all that they hold.
        stopping_criteria: prepared by `model.generate`. Each call of one judges a single row.
        generation_config: prepared by `model.generate`.
        sources: of a `DraftSession` for each row; None: plain decoding.
        references: token ids of texts that the output of each row will probably resemble, the
            likeliest last: an edited file, earlier answers to the same prompt. `PromptLookup`,
            which must be in `sources`, searches them.
        max_nodes: most draft tokens of a step, 0..1024; None: 16, on an accelerator 64.
        adaptive: measure the time of steps, and draft only while that pays.
        remember: target to which each output is added beside generation: a `LiveDatastore` for
            writing, a `DatastoreClient` of one, or another object with `add(documents, ids=None)`.
            To draft from it as well, name it in `sources` too. None: nothing.
        calibration: of the sessions, such as `Calibration.load` of a file that `rest-store
            calibrate` wrote; None: the package's. It learns from generation to generation.
        acceptance: "exact", or "typical" when sampling: draft tokens that the model finds plausible
            are kept without a draw (Medusa, arXiv 2401.10774, section 2.3.1). **Lossy**: fewer
            forward passes, but the text is no longer a sample of the model's distribution; it is
            more predictable, and leans towards the drafts.
        group: of the outputs in `remember`, as `LiveDatastore.add` takes it, such as a key of the
            prompt. Earlier outputs of the same group are searched as references are, if
            `PromptLookup` is in `sources`.
        epoch: of the outputs in `remember`, likewise.
        stream_to: a streamer of transformers, given the prompt and each token (one row only):
            another way to pass the `streamer` of `model.generate`.
        drafter: the former name of `sources`, which goes with the next release.
        model_kwargs: prepared by `model.generate`.

    Returns:
        int64[rows, longest length]. With `return_dict_in_generate=True` a `GenerateOutput`: its
        `statistics` have the numbers of forward passes, and of drafted and accepted tokens.

    Raises:
        NotSupportedError: not a decoder-only model whose keys and values can be kept for one path
            of a tree; or not greedy search or sampling, inputs other than token ids, a processor or
            criterion that does not judge rows one by one, a streamer for several rows, or two
            streamers; typical acceptance in greedy search or with a SynthID watermark; or a
            quantized or offloaded cache, a static one of yours, or one that was not made for the
            recurrent states of the model.
        TokenizerMismatchError: datastores in `sources` and `remember` have different tokenizers.
        SourceError: `sources` is no list, one of it is not a source or is given twice, or there are
            too many; or there are references, but no prompt lookup; or nothing can be added to
            `remember`.
        ContextTypeError, QueryError: a reference is not 1-D token ids.
        ArgumentError: `max_nodes`, `acceptance` or `epoch` is out of range; or `sources` and
            `drafter` are both passed.
        DocumentError: `group` is not a valid name of a group.
        NativeKernelError: the kernel was not compiled.
        DataFileError: `calibration` is not a `Calibration`.
        DatastoreClosedError: one of the sources is closed.

    A session or source that fails later changes nothing but speed. It is counted in
    `statistics.drafts`; one `DraftingWarning` at the end of the generation says that it stopped, or
    that nothing was drafted, and why. Outputs that cannot be remembered in time are counted
    in `statistics.remembered`, and a warning says why. One generation at a time for each model.
    """
    if drafter is not None:
        if sources is not None:
            raise ArgumentError(
                "generate: pass sources alone; drafter, which is passed beside it, is its former"
                " name"
            )
        warnings.warn("drafter= is now called sources=", FutureWarning, stacklevel=2)
        sources = drafter
    streamer = streamer_of_the_call()
    if streamer is not None and stream_to is not None:
        raise NotSupportedError("generate: pass streamer or stream_to, not both")
    generation = Generation(
        model,
        input_ids,
        logits_processor,
        stopping_criteria,
        generation_config,
        options=DraftingOptions(
            sources,
            references,
            max_nodes,
            adaptive,
            remember,
            calibration,
            acceptance,
            group,
            epoch,
        ),
        **model_kwargs,
    )
    if streamer is not None:
        return generation.result(streamer, has_prompt=True)
    return generation.result(stream_to)
