"""The algorithm that SGLang's registry has: what it is like, and what it makes of the server's arguments."""

from __future__ import annotations

import inspect
import json
import os
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.speculative.spec_registry import CustomSpecAlgo
from sglang.version import __version__

from rest_store.engines.settings import EngineSettings
from rest_store.errors import EngineSettingsError, describe

if TYPE_CHECKING:
    from rest_store.engines.sglang.worker import RestStoreWorker

VARIABLE = "REST_STORE_SGLANG"
_NODES = 16  # verified in a step, with the last token
_REQUESTS = 48  # at once, as SGLang limits them for its own n-gram lookup
_DEVICES = ("cuda", "cpu", "xpu")
_SEAM = {  # what the worker takes over from NGRAMWorker: methods and their parameters
    "__init__": ["self", "server_args", "gpu_id", "nccl_port", "target_worker"],
    "_prepare_draft_tokens": ["self", "batch"],
    "_update_ngram_corpus": ["self", "batch"],
    "forward_batch_generation": ["self", "batch", "on_publish", "pp_proxy_tensors"],
    "clear_cache_pool": ["self"],
    "note_request_finished": ["self", "rid", "natural_stop"],
}


class RestStoreAlgorithm(CustomSpecAlgo):  # type: ignore[misc]  # SGLang need not be installed
    """Drafts from datastores, verified as those of SGLang's own n-gram lookup are.

    SGLang asks algorithms what they are in many places; `is_ngram` leads it to the trees of irregular shape that its
    n-gram lookup has.
    """

    def is_ngram(self) -> bool:
        """Drafts are made on the host, as trees."""
        return True

    def has_draft_kv(self) -> bool:
        """There is no draft model."""
        return False

    def need_topk(self) -> bool:
        """There is no draft model. SGLang asks this of all algorithms, but its base class has no answer."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """The same."""
        return False

    def create_future_map(
        self,
        device: torch.device,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> FutureMap:
        """Return what relays accepted tokens from step to step; SGLang's base class has none."""
        return FutureMap(device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay)

    def handle_server_args(self, server_args: Any) -> None:
        """Check the settings, and complete the server's arguments.

        Args:
            server_args: SGLang's arguments; what is set here is what the server runs with.

        Raises:
            EngineSettingsError: a setting, or an argument that does not go together with the algorithm; or this SGLang
                is another than the one that the worker was written for.
        """
        _require_seam()
        read_settings()
        _require_arguments(server_args)
        if server_args.device == "cpu":
            server_args.disable_overlap_schedule = True  # SGLang has none there with any speculation
        server_args.enable_mixed_chunk = False
        if server_args.max_running_requests is None:
            server_args.max_running_requests = _REQUESTS
        if server_args.speculative_num_draft_tokens is None:
            server_args.speculative_num_draft_tokens = _NODES
        if server_args.speculative_eagle_topk is None:
            server_args.speculative_eagle_topk = server_args.speculative_ngram_max_bfs_breadth
        nodes, breadth = server_args.speculative_num_draft_tokens, server_args.speculative_eagle_topk
        if server_args.speculative_num_steps is None:
            server_args.speculative_num_steps = max(1, nodes // breadth)


def worker_class(server_args: Any) -> type[RestStoreWorker]:
    """Return the class whose objects run the steps of a rank."""
    from rest_store.engines.sglang.worker import RestStoreWorker

    return RestStoreWorker


def read_settings() -> EngineSettings:
    """Return the settings of the environment.

    Raises:
        EngineSettingsError: they are absent, no JSON, or not as `EngineSettings` has them.
    """
    text = os.environ.get(VARIABLE)
    try:
        settings = None if text is None else json.loads(text)
    except json.JSONDecodeError as error:
        raise EngineSettingsError(describe(VARIABLE, "value", f"no JSON ({error})", "an object as JSON")) from None
    read = EngineSettings.read(settings, VARIABLE)
    if read.logits is not None:
        expected = "absent: SGLang kills its processes in the end, so nothing would be saved"
        raise EngineSettingsError(describe(VARIABLE, "logits", repr(read.logits), expected))
    return read


def _require_arguments(arguments: Any) -> None:
    """Refuse arguments that do not go together with the algorithm."""
    nodes, breadth = arguments.speculative_num_draft_tokens, arguments.speculative_eagle_topk
    paged_trees = arguments.page_size is not None and arguments.page_size > 1 and breadth != 1
    checks = [
        (arguments.device in _DEVICES, "device", arguments.device, f"one of {', '.join(_DEVICES)}"),
        (
            nodes is None or nodes >= 2,
            "--speculative-num-draft-tokens",
            nodes,
            "at least 2: the last token, and drafts",
        ),
        (arguments.pp_size == 1, "--pp-size", arguments.pp_size, "1"),
        (arguments.attn_dp_size == 1, "--enable-dp-attention", "set", "unset"),
        (
            not paged_trees or arguments.attention_backend == "flashinfer",
            "--page-size",
            arguments.page_size,
            "1, --attention-backend flashinfer, or --speculative-eagle-topk 1, which drafts chains",
        ),
    ]
    for holds, what, value, expected in checks:
        if not holds:
            raise EngineSettingsError(describe("REST_STORE", what, value, expected))


def _require_seam() -> None:
    """Refuse a version of SGLang in which the methods that the worker takes over are others."""
    from sglang.srt.speculative.ngram_worker import NGRAMWorker

    for name, expected in _SEAM.items():
        method = getattr(NGRAMWorker, name, None)
        found = None if method is None else list(inspect.signature(method).parameters)
        if found != expected:
            what = f"NGRAMWorker.{name}"
            where = f"SGLang {__version__}"
            raise EngineSettingsError(describe(where, what, found or "absent", f"{expected}, as in 0.5.23"))
