"""The plug-in for the model runner V2 of vLLM 0.32 and 0.33, loaded in each of its processes.

It wraps the function that makes the model runner's speculator: an n-gram lookup, or a trained head.
If `additional_config` has settings, drafts from sessions come beside the speculator's own. Where
vLLM differs from the table of `rest_store.engines.vllm.seam`, its speculator is left alone, and a
line says so.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import multiprocessing.util
import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rest_store.drafting.arbitration import Head
from rest_store.engines.engine_metrics import EngineMetrics
from rest_store.engines.engine_sources import EngineSources
from rest_store.engines.request import NewRequest, parse_extra_arguments
from rest_store.engines.request_drafter import RequestDrafter
from rest_store.engines.vllm.confidences import Confidences, find_confidences
from rest_store.engines.vllm.device_drafts import DeviceDrafts
from rest_store.engines.vllm.draft_switch import install_switch
from rest_store.engines.vllm.request_grammar import RequestGrammars
from rest_store.engines.vllm.seam import CREATE, DEPENDENCIES, INIT, PROPOSE
from rest_store.engines.vllm.settings import WHERE, VllmSettings, settings_of, unused_because
from rest_store.engines.vllm.speculator import Speculator
from rest_store.seam import Dependency, difference, differences

_RUNNER = "vllm.v1.worker.gpu.model_runner"
_ARGUMENTS = "vllm.engine.arg_utils"
_LOGGER = "vllm.rest_store"
_MAX_DIFFERENCES = 3  # that a line names
_EXIT_PRIORITY = 100  # before multiprocessing ends its own objects
# Methods that draft from texts; `suffix` in releases after 0.33.
_LOOKUPS = ("ngram", "ngram_gpu", "suffix")

Init = Callable[[Any, torch.device, Any], Any]


def install() -> None:
    """Wrap vLLM's seam; called by vLLM through the entry point `vllm.general_plugins`."""
    try:
        _require_like([INIT])
        from vllm.v1.worker.gpu import spec_decode

        native = spec_decode.init_speculator
    except Exception as error:
        logging.getLogger(_LOGGER).warning("rest-store: not in this vLLM: %s", error)
        return
    if hasattr(native, "__wrapped__"):  # vLLM may load its plug-ins again
        return
    wrapped = _wrapped(native)
    # The model runner has a copy once it was imported.
    for module in (spec_decode, sys.modules.get(_RUNNER)):
        if module is not None:
            vars(module)["init_speculator"] = wrapped
    install_switch(_warn_once)
    # A process that makes configurations imports this module before it loads plug-ins.
    if _ARGUMENTS in sys.modules and difference(CREATE) is None:
        arguments = sys.modules[_ARGUMENTS].EngineArgs
        arguments.create_engine_config = _checked(arguments.create_engine_config)


def _require_like(parts: Iterable[Dependency]) -> None:
    """Raise TypeError with the first differences between vLLM and a table."""
    if phrases := differences(parts):
        raise TypeError("; ".join(phrases[:_MAX_DIFFERENCES]))


def _checked(native: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that makes vLLM's configuration, with a check of our section of it."""

    @functools.wraps(native)
    def create_engine_config(*arguments: Any, **options: Any) -> Any:
        config = native(*arguments, **options)
        if settings_of(config) is not None and (reason := unused_because(config)) is not None:
            _warn_once(f"rest-store: {reason}: no drafts, nothing is remembered")
        return config

    return create_engine_config


@functools.cache
def _warn_once(line: str) -> None:
    from vllm.logger import init_logger

    init_logger(_LOGGER).warning(line)


def _wrapped(native: Init) -> Init:
    @functools.wraps(native)
    def init_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
        settings = settings_of(vllm_config)
        speculator = native(vllm_config, device, req_states)
        if settings is None:
            return speculator
        from vllm.logger import init_logger

        log = init_logger(_LOGGER)
        try:
            head = _head(vllm_config.speculative_config)
            _require_seam(speculator)
        except Exception as error:
            log.warning("rest-store: vLLM drafts alone: %s", error)
            return speculator
        speculator.rest_store = _speculator(
            vllm_config, settings, device, req_states, speculator, head, log
        )
        try:
            confidences = find_confidences(speculator)
        except Exception as error:
            log.warning("rest-store: vLLM judges all drafts by its own chances: %s", error)
            confidences = None
        speculator.propose = _proposing(speculator, speculator.propose, confidences)
        return speculator

    return init_speculator


def _head(speculative: Any) -> Head | None:
    """Return a record of a trained head's acceptance; None beside a lookup.

    A lookup drafts only for rows without a draft from here.

    Raises:
        ValueError: the method is neither a head nor a lookup. It may draft for another purpose than
            verification.
    """
    if speculative.method in _LOOKUPS:
        return None
    if speculative.use_eagle() or speculative.uses_draft_model():
        return Head([0.0] * (1 + int(speculative.num_speculative_tokens)))
    raise ValueError(
        f"the speculative method {speculative.method} is neither a lookup nor a trained head"
    )


def _require_seam(speculator: Any) -> None:
    """Raise unless vLLM is as its table says; wrap its model runner, to hear of requests."""
    _require_like(DEPENDENCIES)
    if (phrase := difference(PROPOSE, type(speculator).propose)) is not None:
        raise TypeError(phrase)
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    if not hasattr(GPUModelRunner.add_requests, "__wrapped__"):
        GPUModelRunner.add_requests = _after(GPUModelRunner.add_requests, _begin)
        GPUModelRunner.finish_requests = _after(GPUModelRunner.finish_requests, _finish)


def _after(
    native: Callable[[Any, Any], None], listener: Callable[[Speculator, Any, Any], None]
) -> Any:
    """Return a method of the model runner that calls `listener` at its end."""

    @functools.wraps(native)
    def method(self: Any, scheduler_output: Any) -> None:
        native(self, scheduler_output)
        ours = getattr(self.speculator, "rest_store", None)
        if ours is None:
            return
        try:
            listener(ours, self, scheduler_output)
        except Exception as error:
            ours.drafter.metrics.count_error("requests", error)

    return method


def _begin(ours: Speculator, runner: Any, scheduler_output: Any) -> None:
    ours.listen(runner.model)
    judges = getattr(runner.speculator, "draft_logits", None) is not None
    for new in scheduler_output.scheduled_new_reqs:
        try:
            # If the head has logits, vLLM judges a sampled row's drafts by them. They do not belong
            # to our drafts.
            if new.sampling_params is not None and not (
                judges and new.sampling_params.temperature > 0
            ):
                request = _request(new, partial(ours.drafter.metrics.count_error, "references"))
                if ours.grammars is not None:
                    # Of the table for grammars alone: where vLLM differs, there are none.
                    params = getattr(new.sampling_params, "structured_outputs", None)
                    request = request._replace(grammar=ours.grammars.by_parameters(params))
                ours.begin(request)
        except Exception as error:
            ours.drafter.metrics.count_error("requests", error)


def _request(new: Any, report: Callable[[str], None]) -> NewRequest:
    """Return a new request of vLLM's scheduler, a `NewRequestData`, as the drafter takes it."""
    return NewRequest(
        id=new.req_id,
        tokens=new.prefill_token_ids,
        prompt_length=new.prompt_len,
        max_tokens=new.sampling_params.max_tokens,
        ends=frozenset(new.sampling_params.all_stop_token_ids),
        adapter="" if new.lora_request is None else new.lora_request.lora_name,
        placeholders=_placeholders(new),
        **parse_extra_arguments(new.sampling_params.extra_args, report),
    )


def _placeholders(new: Any) -> npt.NDArray[np.int64]:
    """Return where a prompt has no text: images and the like, and embeddings."""
    parts = [np.zeros(0, np.int64)]
    for feature in new.mm_features or ():
        begin = feature.mm_position.offset
        parts.append(np.arange(begin, begin + feature.mm_position.length))
    if new.prompt_is_token_ids is not None:
        parts.append(np.flatnonzero(~np.asarray(new.prompt_is_token_ids, np.bool_)))
    return np.unique(np.concatenate(parts))


def _finish(ours: Speculator, runner: Any, scheduler_output: Any) -> None:
    put_off = scheduler_output.preempted_req_ids or ()
    ours.finish(
        scheduler_output.finished_req_ids,
        put_off,
        is_idle=not scheduler_output.total_num_scheduled_tokens,
    )


def _proposing(speculator: Any, native: Any, confidences: Confidences | None) -> Any:
    """Return a speculator's method `propose` with our drafts in the rows where they are better."""
    from vllm.distributed.parallel_state import get_tp_group

    group = get_tp_group()
    parameters = inspect.signature(native)

    @functools.wraps(native)
    def propose(*arguments: Any, **options: Any) -> Any:
        ours: Speculator | None = speculator.rest_store
        drafts = native(*arguments, **options)
        values = parameters.bind(*arguments, **options).arguments
        if values.get("dummy_run"):
            if ours is not None:
                ours.skip()
            return drafts
        batch = values["input_batch"]
        chosen: DeviceDrafts | None = None
        if ours is not None:
            chosen = ours.propose(
                batch,
                values["num_sampled"],
                values["num_rejected"],
                drafts,
                values.get("num_speculative_tokens"),
            )
        if chosen is not None:
            drafts = chosen.tokens
        if group.world_size > 1:  # all workers verify the drafts of the first one
            drafts = group.broadcast(drafts.contiguous(), src=0)
        if confidences is not None:
            confidences.write(batch.idx_mapping[: batch.num_reqs], chosen, group)
        return drafts

    return propose


def _speculator(
    vllm_config: Any,
    settings: VllmSettings,
    device: torch.device,
    req_states: Any,
    speculator: Any,
    head: Head | None,
    log: logging.Logger,
) -> Speculator | None:
    """Return our speculator in the first worker; None in the others."""
    from vllm import envs
    from vllm.distributed.parallel_state import get_tp_group
    from vllm.tokenizers import cached_tokenizer_from_config

    if get_tp_group().rank_in_group:
        return None
    model = vllm_config.model_config
    max_nodes = int(vllm_config.speculative_config.num_speculative_tokens)
    vocabulary_size = int(model.get_vocab_size())
    tokenizer = cached_tokenizer_from_config(model)
    sources = EngineSources(
        settings,
        tokenizer,
        name=str(model.model),
        vocabulary_size=vocabulary_size,
        where=WHERE,
        log=log,
    )
    labels = {"engine": str(vllm_config.parallel_config.data_parallel_index)}
    labels["model_name"] = str(model.served_model_name)
    metrics = EngineMetrics(
        sources.names,
        log,
        float(envs.VLLM_LOG_STATS_INTERVAL),
        labels,
        log_requests=settings.log_requests,
    )
    drafter = RequestDrafter(sources, metrics, vocabulary_size=vocabulary_size)
    end = weakref.finalize(speculator, drafter.close)
    atexit.register(end)  # last registered, first called: before live datastores are closed
    # A forked worker skips `atexit`.
    multiprocessing.util.Finalize(None, end, exitpriority=_EXIT_PRIORITY)
    lag = settings.lag
    if lag is None:
        lag = device.type != "cpu" and bool(vllm_config.scheduler_config.async_scheduling)
    how = "looked up a step ahead" if lag else "from the text as it is"
    log.info("rest-store: drafts beside %s, %s", vllm_config.speculative_config.method, how)
    return Speculator(
        drafter,
        req_states,
        max_nodes=max_nodes,
        max_length=int(model.max_model_len),
        lag=lag,
        head=head,
        grammars=RequestGrammars(vllm_config, tokenizer, vocabulary_size, metrics.count_error),
    )
