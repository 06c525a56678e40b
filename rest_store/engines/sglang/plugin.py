"""What SGLang's registry has of us, as its plug-ins say: the algorithm, and what it makes of the server's arguments."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo
from sglang.version import __version__

from rest_store.engines.sglang.settings import read_settings
from rest_store.errors import EngineSettingsError, describe

if TYPE_CHECKING:
    from rest_store.engines.sglang.worker import RestStoreWorker

NAME = "REST_STORE"
_NODES = 16  # verified for a request in a step, with its last token
_REQUESTS = 48  # at once, as SGLang limits them for its own n-gram lookup
_SEAM = {  # what the worker takes over from NGRAMWorker: methods and their parameters
    "__init__": ["self", "server_args", "gpu_id", "nccl_port", "target_worker"],
    "_prepare_draft_tokens": ["self", "batch"],
    "_update_ngram_corpus": ["self", "batch"],
    "forward_batch_generation": ["self", "batch", "on_publish", "pp_proxy_tensors"],
    "note_request_finished": ["self", "rid", "natural_stop"],
}


def register() -> None:
    """Add the algorithm to SGLang's registry: the entry point `rest_store` of the group `sglang.srt.plugins`.

    SGLang calls this in each of its processes, whatever algorithm is asked for, and only logs what it raises. So what
    is wrong with settings or arguments is said when the algorithm is chosen.
    """
    SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=RestStoreAlgorithm)(_worker_class)


class RestStoreAlgorithm(CustomSpecAlgo):  # type: ignore[misc]  # SGLang need not be installed
    """Drafts from datastores, verified as those of SGLang's own n-gram lookup are.

    SGLang asks its algorithms what they are in many places; `is_ngram` leads it to trees of any shape. The three last
    answers are asked of all algorithms, but the base class has none.
    """

    def is_ngram(self) -> bool:
        """Drafts are made on the host, as trees."""
        return True

    def has_draft_kv(self) -> bool:
        """There is no draft model."""
        return False

    def handle_server_args(self, server_args: Any) -> None:
        """Check settings and arguments, and complete these.

        Args:
            server_args: SGLang's arguments; what is set here is what the server runs with.

        Raises:
            EngineSettingsError: a setting is wrong, an argument does not go together with the algorithm, or this SGLang
                is not like the one that the worker was written for.
        """
        _require_seam()
        read_settings()
        defaults = {
            "max_running_requests": _REQUESTS,
            "speculative_num_draft_tokens": _NODES,
            "speculative_eagle_topk": server_args.speculative_ngram_max_bfs_breadth,
        }
        for name, value in defaults.items():
            if getattr(server_args, name) is None:
                setattr(server_args, name, value)
        _require_arguments(server_args)
        steps = server_args.speculative_num_draft_tokens // server_args.speculative_eagle_topk
        server_args.speculative_num_steps = max(1, steps)
        server_args.enable_mixed_chunk = False
        if server_args.device == "cpu":
            server_args.disable_overlap_schedule = True  # SGLang has none there with any speculation

    def need_topk(self) -> bool:
        """There is no draft model."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """There is no draft model."""
        return False

    def create_future_map(self, device: torch.device, *args: Any, **kwargs: Any) -> FutureMap:
        """Return what relays accepted tokens from step to step."""
        return FutureMap(device, self, *args, **kwargs)


def _worker_class(server_args: Any) -> type[RestStoreWorker]:
    from rest_store.engines.sglang.worker import RestStoreWorker

    return RestStoreWorker


def _require_arguments(arguments: Any) -> None:
    """Refuse arguments that do not go together with the algorithm."""
    page = arguments.page_size
    pages_fit = arguments.attention_backend == "flashinfer" or arguments.speculative_eagle_topk == 1
    checks = [
        (arguments.device in ("cuda", "cpu", "xpu"), "--device", arguments.device, "cuda, cpu or xpu"),
        (arguments.pp_size == 1, "--pp-size", arguments.pp_size, 1),
        (arguments.attn_dp_size == 1, "--enable-dp-attention", "set", "absent"),
        (pages_fit or page in (None, 1), "--page-size", page, "1, or --speculative-eagle-topk 1, which drafts chains"),
    ]
    for fits, what, value, expected in checks:
        if not fits:
            raise EngineSettingsError(describe(NAME, what, value, expected))


def _require_seam() -> None:
    """Refuse a version of SGLang in which the methods that the worker takes over are others."""
    from sglang.srt.speculative.ngram_worker import NGRAMWorker

    for name, expected in _SEAM.items():
        method = getattr(NGRAMWorker, name, None)
        parameters = "absent" if method is None else list(inspect.signature(method).parameters)
        if parameters != expected:
            where, what = f"SGLang {__version__}", f"NGRAMWorker.{name}"
            raise EngineSettingsError(describe(where, what, parameters, f"{expected}, as in 0.5.23"))
