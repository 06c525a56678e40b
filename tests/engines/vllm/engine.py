"""vLLM's engine in this process with a tiny model, and requests to it."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

# What vLLM and its packages warn of when they are imported is not ours to mend.
IN_VLLM = [
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None,
        reason="vLLM is not installed: see `make test-vllm`",
    ),
    pytest.mark.filterwarnings("default"),
]
DRAFT_TOKENS = 5
LENGTH = 160  # of the longest text, with its prompt
ROWS = 6
CHUNK = 48  # tokens of a step, so that longer prompts are read in several
# Blocks of the cache; in the second one ROWS of the longest texts have no room.
PLENTIFUL = 64
SCARCE = 10

_SETTINGS: dict[str, Any] = {
    "dtype": "float32",  # other types differ between batch sizes by themselves
    "enforce_eager": True,
    "max_model_len": LENGTH,
    "max_num_seqs": ROWS,
    "max_num_batched_tokens": CHUNK,
    "block_size": 32,
}


class Request(NamedTuple):
    """A request.

    Attributes:
        prompt: token ids.
        settings: of its sampling.
        after: the step that it arrives before.
    """

    prompt: list[int]
    settings: dict[str, Any]
    after: int = 0


SPECULATIVE = {"method": "ngram", "num_speculative_tokens": DRAFT_TOKENS}


@contextlib.contextmanager
def engine(
    model: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    head: Path | None = None,
    blocks: int = PLENTIFUL,
    ranks: int = 1,
    backend: str = "auto",
) -> Iterator[Any]:
    """An `LLM`, shut down in the end.

    Args:
        model: directory.
        settings: of rest-store; None: nothing is drafted by it.
        head: directory of a trained head; None: without settings, nothing is drafted at all.
        blocks: of the cache.
        ranks: workers that share each layer, in processes of their own if there are several.
        backend: of structured output.
    """
    from vllm import LLM

    drafted: dict[str, Any] = {}
    if settings is not None:
        drafted = {
            "speculative_config": SPECULATIVE,
            "additional_config": {"rest_store": dict(settings)},
        }
    if head is not None:
        eagle = {"method": "eagle", "model": str(head), "num_speculative_tokens": DRAFT_TOKENS}
        drafted["speculative_config"] = eagle
    llm = LLM(
        str(model),
        num_gpu_blocks_override=blocks,
        tensor_parallel_size=ranks,
        structured_outputs_config={"backend": backend},
        disable_log_stats=not drafted,
        **drafted,
        **_SETTINGS,
    )
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def drafter_of(llm: Any) -> Any:
    """What drafts in an engine in this process."""
    (speculator,) = llm.collective_rpc(lambda worker: worker.model_runner.speculator)
    return speculator.rest_store.drafter


def counted(llm: Any, name: str) -> int:
    """The sum of a counter of vLLM's; of the engine that was started last."""
    return sum(metric.value for metric in llm.get_metrics() if metric.name == f"vllm:{name}")


def answers(
    llm: Any, requests: Sequence[Request], aborted: Mapping[int, int] | None = None
) -> list[list[int]]:
    """The tokens of each request, all of them in one engine together.

    Args:
        llm: the engine.
        requests: in the order of their arrival.
        aborted: after how many tokens at least a request is aborted, by its place.
    """
    from vllm import SamplingParams

    llm_engine = llm.llm_engine
    waiting = list(enumerate(requests))
    step = 0
    texts: list[list[int]] = [[] for _ in requests]
    while waiting or llm_engine.has_unfinished_requests():
        while waiting and (waiting[0][1].after <= step or not llm_engine.has_unfinished_requests()):
            place, request = waiting.pop(0)
            llm_engine.add_request(
                str(place), {"prompt_token_ids": request.prompt}, SamplingParams(**request.settings)
            )
        for output in llm_engine.step():
            place = int(output.request_id)
            texts[place] = list(output.outputs[0].token_ids)
            if aborted and len(texts[place]) >= aborted.get(place, LENGTH):
                llm_engine.abort_request([output.request_id])
        step += 1
    return texts
