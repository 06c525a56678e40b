"""The class that vLLM makes, loads and asks for draft tokens (`method` "custom_class", written for vLLM 0.32)."""

from __future__ import annotations

import atexit
import multiprocessing.util
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rest_store.engines.batch_drafter import BatchDrafter
from rest_store.engines.metrics import EngineMetrics
from rest_store.engines.settings import EngineSettings
from rest_store.engines.sources import EngineSources
from rest_store.engines.vllm.target_logits import TargetLogits
from rest_store.errors import EngineSettingsError, describe

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig

_SECTION = "rest_store"
_WHERE = f"additional_config.{_SECTION}"
_EXIT_PRIORITY = 100  # before multiprocessing ends its own


class Drafter:
    """Proposes draft tokens from datastores to vLLM.

        vllm serve MODEL \
          --speculative-config '{"method": "custom_class", "model": "rest_store.engines.vllm.Drafter",
                                 "num_speculative_tokens": 8}' \
          --additional-config '{"rest_store": {"datastores": ["code.ds", "127.0.0.1:50051"], "remember": "live.ds"}}'

    vLLM makes one in each worker, and takes the drafts of one of them, the first of the last pipeline stage. This one
    opens the datastores; the others propose nothing.

    Args:
        vllm_config: vLLM's configuration; the keys of `additional_config["rest_store"]` are those of `EngineSettings`.

    Raises:
        EngineSettingsError: a setting is unknown or of the wrong type, or there are none.
        RestStoreError: the subclass that names what cannot be opened or has another tokenizer than the model.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        settings = _settings(vllm_config)
        self._batch: BatchDrafter | None = None
        self._logits: TargetLogits | None = None
        if _is_asked():
            self._batch = _batch_drafter(vllm_config, settings)
            end = weakref.finalize(self, self._batch.close)
            atexit.register(end)  # last registered, first called: before live datastores are closed
            multiprocessing.util.Finalize(None, end, exitpriority=_EXIT_PRIORITY)  # a forked worker skips `atexit`

    def load_model(self, model: object) -> None:
        """Listen for the model's logits; called once, after its weights were loaded."""
        if self._batch is None:
            return
        try:
            self._logits = TargetLogits(_logits_processors(model), self._batch.metrics.count_error)
        except Exception as error:
            self._batch.metrics.count_error("logits", error)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: npt.NDArray[np.int32],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """Return the draft tokens of each row; vLLM calls this after each step.

        Args:
            sampled_token_ids: for each row its new tokens; empty while its prompt is being read.
            num_tokens_no_spec: int32[B], tokens that each row holds, with those.
            token_ids_cpu: int32[B, n], the rows.
            slot_mappings: not used.
        """
        if self._batch is None:
            return [[] for _ in sampled_token_ids]
        computed = () if self._logits is None else self._logits.take()
        drafts = self._batch.propose(sampled_token_ids, num_tokens_no_spec, token_ids_cpu, computed)
        if self._logits is not None:
            self._logits.is_wanted = self._batch.wants_logits
        return drafts


def _logits_processors(model: Any) -> list[torch.nn.Module]:
    """Return the modules that compute the model's logits."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    return [module for module in model.modules() if isinstance(module, LogitsProcessor)]


def _settings(vllm_config: VllmConfig) -> EngineSettings:
    """Return the settings that stand in vLLM's configuration."""
    additional: Any = vllm_config.additional_config
    section = additional.get(_SECTION) if isinstance(additional, dict) else None
    settings = EngineSettings.read(section, _WHERE)
    schedule = getattr(vllm_config.speculative_config, "num_speculative_tokens_per_batch_size", None)
    if schedule:  # proposers of this kind are not told what it allows
        where, what = "speculative_config", "num_speculative_tokens_per_batch_size"
        raise EngineSettingsError(describe(where, what, schedule, "absent: drafts follow the cost of a step already"))
    return settings


def _is_asked() -> bool:
    """Return whether vLLM takes the drafts of this worker."""
    from vllm.distributed.parallel_state import get_tp_group

    return bool(get_tp_group().rank_in_group == 0)


def _batch_drafter(vllm_config: VllmConfig, settings: EngineSettings) -> BatchDrafter:
    from vllm import envs
    from vllm.logger import init_logger
    from vllm.tokenizers import cached_tokenizer_from_config

    log = init_logger("vllm.rest_store")
    model = vllm_config.model_config
    assert vllm_config.speculative_config is not None  # or vLLM would not make this
    vocabulary_size = int(model.get_vocab_size())
    tokenizer = cached_tokenizer_from_config(model)
    sources = EngineSources(
        settings,
        tokenizer,
        name=str(model.model),
        vocabulary_size=vocabulary_size,
        where=_WHERE,
        log=log,
    )
    labels = {"engine": str(vllm_config.parallel_config.data_parallel_index)}
    labels["model_name"] = str(model.served_model_name)
    return BatchDrafter(
        sources,
        EngineMetrics(sources.labels, log, float(envs.VLLM_LOG_STATS_INTERVAL), labels),
        most=int(vllm_config.speculative_config.num_speculative_tokens),
        longest=int(model.max_model_len),
        vocabulary_size=vocabulary_size,
        ends=_ends(getattr(tokenizer, "eos_token_id", None), model.try_get_generation_config().get("eos_token_id")),
    )


def _ends(*tokens: int | list[int] | None) -> frozenset[int]:
    """Return the tokens that end an output: of each source one, several, or none."""
    several = [end if isinstance(end, list) else [end] for end in tokens if end is not None]
    return frozenset(token for group in several for token in group)
