"""The plug-in that vLLM loads in each of its processes, written for the model runner V2 of vLLM 0.32.

It wraps the function with which the model runner makes its speculator: an n-gram lookup, or a trained head. If
`additional_config` has settings for it, that gets drafts from sessions beside its own. Where the seam is not as it was,
vLLM's own speculator is left alone, and a line says so.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
import multiprocessing.util
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rest_store.drafting.arbitration import Head
from rest_store.engines.metrics import EngineMetrics
from rest_store.engines.request import NewRequest, extras_of
from rest_store.engines.request_drafter import RequestDrafter
from rest_store.engines.settings import EngineSettings
from rest_store.engines.sources import EngineSources
from rest_store.engines.vllm.speculator import Speculator

_SECTION = "rest_store"
_WHERE = f"additional_config.{_SECTION}"
_RUNNER = "vllm.v1.worker.gpu.model_runner"
_LOGGER = "vllm.rest_store"
_EXIT_PRIORITY = 100  # before multiprocessing ends its own
# What is wrapped or called, and its parameters.
_INIT = ("vllm_config", "device", "req_states")
_OF_RUNNER = {"add_requests": ("self", "scheduler_output"), "finish_requests": ("self", "scheduler_output")}
_PROPOSE = (
    *("self", "input_batch", "attn_metadata", "slot_mappings", "last_hidden_states", "aux_hidden_states"),
    *("num_sampled", "num_rejected", "last_sampled", "next_prefill_tokens", "temperature", "seeds"),
)

Init = Callable[[Any, torch.device, Any], Any]


@dataclass(frozen=True)
class VllmSettings(EngineSettings):
    """The settings of drafts inside vLLM: those of any engine, and one more.

    Attributes:
        lag: whether drafts are looked up a step ahead, while the device works on that step, and verified if they fit
            what it has written; None: where vLLM schedules steps ahead.
    """

    kinds = EngineSettings.kinds | {"lag": EngineSettings.kinds["tls"]}
    lag: bool | None = None


def install() -> None:
    """Wrap vLLM's seam; called by vLLM through the entry point `vllm.general_plugins`."""
    try:
        from vllm.v1.worker.gpu import spec_decode

        native = spec_decode.init_speculator
        _require_parameters(native, _INIT)
    except Exception as error:
        logging.getLogger(_LOGGER).warning("rest-store: not in this vLLM: %s", error)
        return
    if hasattr(native, "__wrapped__"):  # vLLM may load its plug-ins again
        return
    wrapped = _wrapped(native)
    for module in (spec_decode, sys.modules.get(_RUNNER)):  # the runner has a copy once it was imported
        if module is not None:
            vars(module)["init_speculator"] = wrapped


def _wrapped(native: Init) -> Init:
    @functools.wraps(native)
    def init_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
        additional = vllm_config.additional_config
        if not isinstance(additional, dict) or _SECTION not in additional:
            return native(vllm_config, device, req_states)
        from vllm.logger import init_logger

        settings = VllmSettings.read(additional[_SECTION], _WHERE)
        log = init_logger(_LOGGER)
        speculator = native(vllm_config, device, req_states)
        try:
            _require_seam(speculator)
        except Exception as error:
            log.warning("rest-store: vLLM drafts alone: %s", error)
            return speculator
        speculator.rest_store = _speculator(vllm_config, settings, device, req_states, speculator, log)
        speculator.propose = _proposing(speculator, speculator.propose)
        return speculator

    return init_speculator


def _require_parameters(function: Any, expected: Sequence[str]) -> None:
    """Raise TypeError unless the first parameters of a function of vLLM have the names `expected`."""
    names = tuple(inspect.signature(function).parameters)
    if names[: len(expected)] != tuple(expected):
        raise TypeError(f"{function.__qualname__} takes {', '.join(names)}, expected {', '.join(expected)}")


def _require_seam(speculator: Any) -> None:
    """Raise unless vLLM is as this was written for; have its model runner tell of requests."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    _require_parameters(type(speculator).propose, _PROPOSE)
    for name, parameters in _OF_RUNNER.items():
        _require_parameters(getattr(GPUModelRunner, name), parameters)
    if not hasattr(GPUModelRunner.add_requests, "__wrapped__"):
        GPUModelRunner.add_requests = _after(GPUModelRunner.add_requests, _begin)
        GPUModelRunner.finish_requests = _after(GPUModelRunner.finish_requests, _finish)


def _after(native: Callable[[Any, Any], None], told: Callable[[Speculator, Any, Any], None]) -> Any:
    """Return a method of the model runner after which `told` hears of its requests."""

    @functools.wraps(native)
    def method(self: Any, scheduler_output: Any) -> None:
        native(self, scheduler_output)
        ours = getattr(self.speculator, "rest_store", None)
        if ours is None:
            return
        try:
            told(ours, self, scheduler_output)
        except Exception as error:
            ours.drafter.metrics.count_error("requests", error)

    return method


def _begin(ours: Speculator, runner: Any, scheduler_output: Any) -> None:
    ours.listen(runner.model)
    for new in scheduler_output.scheduled_new_reqs:
        if (params := new.sampling_params) is None:
            continue
        # A sampled row's drafts are judged by the head's logits if there are any, which are not those of our drafts.
        if getattr(runner.speculator, "draft_logits", None) is not None and params.temperature > 0:
            continue
        ours.begin(
            NewRequest(
                id=new.req_id,
                tokens=new.prefill_token_ids,
                prompt=new.prompt_len,
                most=params.max_tokens,
                ends=frozenset(params.all_stop_token_ids),
                **extras_of(params.extra_args),
            )
        )


def _finish(ours: Speculator, runner: Any, scheduler_output: Any) -> None:
    put_off = scheduler_output.preempted_req_ids or ()
    ours.finish(scheduler_output.finished_req_ids, put_off, is_idle=not scheduler_output.total_num_scheduled_tokens)


def _proposing(speculator: Any, native: Any) -> Any:
    """Return the method `propose` of a speculator with drafts of ours in the rows where these are better."""
    from vllm.distributed.parallel_state import get_tp_group

    group, parameters = get_tp_group(), inspect.signature(native)

    @functools.wraps(native)
    def propose(*arguments: Any, **options: Any) -> Any:
        ours: Speculator | None = speculator.rest_store
        drafts = native(*arguments, **options)
        given = parameters.bind(*arguments, **options).arguments
        if given.get("dummy_run"):
            if ours is not None:
                ours.skip()
            return drafts
        if ours is not None:
            drafts = ours.propose(given["input_batch"], given["num_sampled"], drafts)
        if group.world_size > 1:  # all workers verify what one of them has drafted
            drafts = group.broadcast(drafts.contiguous(), src=0)
        return drafts

    return propose


def _speculator(
    vllm_config: Any,
    settings: VllmSettings,
    device: torch.device,
    req_states: Any,
    speculator: Any,
    log: logging.Logger,
) -> Speculator | None:
    """Return what drafts, in the worker that does; None in the others."""
    from vllm import envs
    from vllm.distributed.parallel_state import get_tp_group
    from vllm.tokenizers import cached_tokenizer_from_config

    if get_tp_group().rank_in_group:
        return None
    model = vllm_config.model_config
    most = int(vllm_config.speculative_config.num_speculative_tokens)
    vocabulary_size = int(model.get_vocab_size())
    tokenizer = cached_tokenizer_from_config(model)
    sources = EngineSources(
        settings, tokenizer, name=str(model.model), vocabulary_size=vocabulary_size, where=_WHERE, log=log
    )
    labels = {"engine": str(vllm_config.parallel_config.data_parallel_index)}
    labels["model_name"] = str(model.served_model_name)
    metrics = EngineMetrics(sources.labels, log, float(envs.VLLM_LOG_STATS_INTERVAL), labels)
    drafter = RequestDrafter(sources, metrics, vocabulary_size=vocabulary_size)
    end = weakref.finalize(speculator, drafter.close)
    atexit.register(end)  # last registered, first called: before live datastores are closed
    multiprocessing.util.Finalize(None, end, exitpriority=_EXIT_PRIORITY)  # a forked worker skips `atexit`
    lag = settings.lag
    if lag is None:
        lag = device.type != "cpu" and bool(vllm_config.scheduler_config.async_scheduling)
    speculative = vllm_config.speculative_config
    how = "looked up a step ahead" if lag else "from the text as it is"
    log.info("rest-store: drafts beside %s, %s", speculative.method, how)
    return Speculator(
        drafter,
        req_states,
        most=most,
        longest=int(model.max_model_len),
        lag=lag,
        head=None if speculative.use_ngram() else Head([0.0] * (most + 1)),
    )
