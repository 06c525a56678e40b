"""The entry in SGLang's registry of algorithms, and its check of the server's arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo
from sglang.version import __version__

from rest_store.engines.sglang.checks import require_datastores
from rest_store.engines.sglang.seam import NGRAM_ARGUMENTS, all_differences
from rest_store.engines.sglang.settings import VARIABLE, read_settings
from rest_store.errors import ArgumentError, describe

if TYPE_CHECKING:
    from rest_store.engines.sglang.worker import RestStoreWorker

NAME = "REST_STORE"
_NODES = 16  # verified for a request in a step, with its last token
_REQUESTS = 48  # at once, as SGLang limits them for its own n-gram lookup
_MAX_DIFFERENCES = 3  # that a message names


def register() -> None:
    """Add the algorithm to SGLang's registry.

    SGLang calls this entry point of the group `sglang.srt.plugins` in each of its processes,
    whatever algorithm is chosen, and only logs its errors. So settings and arguments are checked
    later, when the algorithm is chosen.
    """
    SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=RestStoreAlgorithm)(
        _worker_class
    )


class RestStoreAlgorithm(CustomSpecAlgo):  # type: ignore[misc]  # SGLang need not be installed
    """Drafts from datastores, verified in the same way as those of SGLang's own n-gram lookup.

    SGLang asks its algorithms for their kind in many places; `is_ngram` leads it to trees of any
    shape. SGLang calls the last three methods of all algorithms, but the base class has none.
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
            server_args: SGLang's arguments; the server runs with the values that are set here.

        Raises:
            ArgumentError: a setting is wrong, an argument does not go together with the algorithm,
                or this SGLang differs from the table of `seam.py`.
            RestStoreError: of the subclass for the cause: a datastore in this place cannot be
                opened, or has another tokenizer than the model.
        """
        _require_seam()
        settings = read_settings()
        _require_no_ngram_arguments(server_args)
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
            # SGLang does not overlap steps there with any speculation.
            server_args.disable_overlap_schedule = True
        require_datastores(settings, server_args)

    def need_topk(self) -> bool:
        """There is no draft model."""
        return False

    def carries_draft_hidden_states(self) -> bool:
        """There is no draft model."""
        return False

    def create_future_map(self, device: torch.device, *args: Any, **kwargs: Any) -> FutureMap:
        """Return SGLang's relay of accepted tokens from step to step."""
        return FutureMap(device, self, *args, **kwargs)


def _worker_class(server_args: Any) -> type[RestStoreWorker]:
    from rest_store.engines.sglang.worker import RestStoreWorker

    return RestStoreWorker


def _require_arguments(arguments: Any) -> None:
    """Refuse arguments that do not go together with the algorithm."""
    page = arguments.page_size
    pages_fit = arguments.attention_backend == "flashinfer" or arguments.speculative_eagle_topk == 1
    checks = [
        (
            arguments.device in ("cuda", "cpu", "xpu"),
            "--device",
            arguments.device,
            "cuda, cpu or xpu",
        ),
        (arguments.pp_size == 1, "--pp-size", arguments.pp_size, 1),
        (arguments.attn_dp_size == 1, "--enable-dp-attention", "set", "absent"),
        (
            pages_fit or page in (None, 1),
            "--page-size",
            page,
            "1, or --speculative-eagle-topk 1, which drafts chains",
        ),
    ]
    for fits, what, value, expected in checks:
        if not fits:
            raise ArgumentError(describe(NAME, what, value, expected))


def _require_no_ngram_arguments(arguments: Any) -> None:
    """Refuse the arguments of SGLang's own n-gram lookup, such as those of its corpora."""
    from sglang.srt.server_args import ServerArgs

    defaults = ServerArgs(model_path=arguments.model_path)
    for name in NGRAM_ARGUMENTS:
        if (value := getattr(arguments, name)) != getattr(defaults, name):
            expected = f"absent: {NAME} drafts from the datastores that {VARIABLE} names"
            raise ArgumentError(describe(NAME, f"--{name.replace('_', '-')}", value, expected))


def _require_seam() -> None:
    """Refuse a version of SGLang that is not as the table says."""
    from rest_store.engines.sglang.worker import RestStoreWorker

    if differences := all_differences(RestStoreWorker):
        words = "; ".join(differences[:_MAX_DIFFERENCES])
        raise ArgumentError(
            f"SGLang {__version__} differs from 0.5.23, on which the plug-in relies: {words}"
        )
