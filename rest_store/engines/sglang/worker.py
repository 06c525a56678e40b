"""The worker that runs the steps of SGLang's REST_STORE algorithm, one in each rank."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.runtime_context import get_device, get_parallel, get_schedule, get_serving, get_spec
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.base_spec_worker import BaseSpecWorker
from sglang.srt.speculative.ngram_worker import NGRAMWorker

from rest_store.engines.engine_metrics import EngineMetrics
from rest_store.engines.engine_sources import EngineSources
from rest_store.engines.request_drafter import RequestDrafter
from rest_store.engines.sglang.batch_drafts import BatchDrafts
from rest_store.engines.sglang.settings import VARIABLE, read_settings
from rest_store.errors import ArgumentError

_log = logging.getLogger(__name__)
_GREEDY = ("cpu", "xpu")  # devices on which SGLang has no kernel that samples while it verifies


class RestStoreWorker(NGRAMWorker):  # type: ignore[misc]  # SGLang need not be installed
    """Drafts trees with the sessions of this project, and has `NGRAMWorker` verify them.

    With tensor parallelism, the first rank has the datastores. It sends its drafts to the other
    ranks, since all ranks must verify the same tokens.

    Args:
        server_args, gpu_id, nccl_port, target_worker: as SGLang passes them to all workers.

    Raises:
        RestStoreError: of the subclass for the cause: a datastore cannot be opened, or has another
            tokenizer than the model.
    """

    def __init__(
        self, server_args: ServerArgs, gpu_id: int, nccl_port: int, target_worker: TpModelWorker
    ) -> None:
        # NGRAMWorker's own constructor compiles and fills a corpus. This sets the same attributes.
        BaseSpecWorker.__init__(self)
        self.server_args = server_args
        self.enable_overlap = not get_schedule().disable_overlap_schedule
        self._target_worker = target_worker
        self.model_runner = target_worker.model_runner
        self.page_size = get_schedule().page_size
        self.draft_token_num = self.speculative_num_draft_tokens = (
            get_spec().speculative_num_draft_tokens
        )
        self.topk = get_spec().speculative_eagle_topk
        self.speculative_num_steps = get_spec().speculative_num_steps
        self.device = get_device().device
        self.adaptive_controller = None
        self.grammar_tree_host: tuple[Any, ...] | None = None
        self._prev_decode_rids: set[str] = set()
        self._drafts: BatchDrafts | None = None
        if get_parallel().tp_group.rank_in_group == 0:
            self._drafts = _batch_drafts(
                target_worker, self.draft_token_num, "chain" if self.topk == 1 else "tree"
            )
        # The inherited methods call these two: when requests leave the batch, and when the cache is
        # emptied.
        self.ngram_corpus = SimpleNamespace(erase_match_state=self._drop, reset=lambda: None)

    def note_request_finished(self, *, rid: str, natural_stop: bool) -> None:
        """End a request; SGLang calls this when it has the last tokens."""
        if self._drafts is not None:
            self._drafts.finish(rid)

    def add_external_corpus(self, corpus_id: str, token_chunks: list[list[int]]) -> int:
        """Refuse to add a text; SGLang's own n-gram lookup can."""
        raise _no_corpora()

    def commit_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:
        """Refuse this, too."""
        raise _no_corpora()

    def remove_external_corpus(self, corpus_id: str) -> None:
        """Refuse this, too."""
        raise _no_corpora()

    def list_external_corpora(self) -> dict[str, int]:
        """Refuse this, too."""
        raise _no_corpora()

    def forward_batch_generation(
        self, batch: ScheduleBatch, *args: Any, **kwargs: Any
    ) -> GenerationBatchResult:
        """Run a step, and take the model's likely tokens after each node."""
        is_step = batch.forward_mode.is_decode()  # verifying changes it
        result = super().forward_batch_generation(batch, *args, **kwargs)
        # A grammar masks logits in place.
        if is_step and self._drafts is not None and not batch.has_grammar:
            self._drafts.take(batch, result.logits_output.next_token_logits)
        return result

    def _prepare_draft_tokens(
        self, batch: ScheduleBatch
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the arrays of the step, as `verify_arrays`; all ranks have those of the first."""
        group = get_parallel().tp_group
        nodes = self.draft_token_num
        if self._drafts is not None:
            is_ahead = self.enable_overlap and not batch.grammar_needs_sync()
            tokens, mask = self._drafts.arrays(batch, is_ahead=is_ahead)
        else:
            tokens = np.empty(len(batch.reqs) * nodes, np.int64)
            mask = np.empty(tokens.size * nodes, np.bool_)
        if group.world_size > 1:
            for array in (tokens, mask):  # received in place
                torch.distributed.broadcast(
                    torch.from_numpy(array), src=group.ranks[0], group=group.cpu_group
                )
        return tokens, mask

    def _update_ngram_corpus(self, batch: ScheduleBatch) -> None:
        """Do nothing: sessions learn the accepted tokens when they are asked again."""

    def _drop(self, rids: Iterable[str]) -> None:
        """Forget requests that have left the batch."""
        if self._drafts is not None:
            self._drafts.drop(rids)


def _no_corpora() -> ArgumentError:
    return ArgumentError(f"REST_STORE drafts from datastores: name them in {VARIABLE}")


def _batch_drafts(target: TpModelWorker, nodes: int, shape: str) -> BatchDrafts:
    """Return drafts from the datastores that the settings name."""
    model = target.model_config
    size = int(target.model_config.vocab_size)
    settings = read_settings()
    sources = EngineSources(
        settings,
        target.tokenizer,
        name=str(model.model_path),
        vocabulary_size=size,
        where=VARIABLE,
        log=_log,
    )
    labels = {
        "engine": str(get_parallel().dp_rank or 0),
        "model_name": str(get_serving().served_model_name),
    }
    metrics = EngineMetrics(sources.names, _log, labels=labels, log_requests=settings.log_requests)
    drafter = RequestDrafter(sources, metrics, vocabulary_size=size)
    atexit.register(drafter.close)
    _log.info(
        "rest-store: drafts from %s; %ss of %d nodes", ", ".join(sources.labels), shape, nodes
    )
    if get_device().device in _GREEDY:
        _log.warning(
            "rest-store: on %s, SGLang verifies greedily, requests that sample, too",
            get_device().device,
        )

    def adapter_name(id: str) -> str:
        return str(target.model_runner.lora_manager.lora_refs[id].lora_name)

    return BatchDrafts(drafter, nodes, shape, adapter_name)
