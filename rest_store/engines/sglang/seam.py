"""All that the plug-in relies on in SGLang, as of 0.5.23. See `rest_store.seam`.

No other attribute of SGLang is used in this package.
"""

from __future__ import annotations

import inspect
from typing import Any

from rest_store.seam import Part, assigned_in, differences, read_in

_ALGORITHM = "sglang.srt.speculative.spec_registry:CustomSpecAlgo"
_ARGUMENTS = "sglang.srt.server_args:ServerArgs"
_BATCH = "sglang.srt.managers.schedule_batch"
_CONTEXT = "sglang.srt.runtime_context"
_SAMPLING = "sglang.srt.sampling.sampling_params:SamplingParams"
_WORKER = "sglang.srt.speculative.ngram_worker:NGRAMWorker"

# Arguments of the server that are read, and arguments of SGLang's own n-gram lookup alone.
READ_ARGUMENTS = (
    *(
        "attention_backend",
        "attn_dp_size",
        "device",
        "disable_overlap_schedule",
        "enable_mixed_chunk",
    ),
    *(
        "max_running_requests",
        "page_size",
        "pp_size",
        "served_model_name",
        "speculative_eagle_topk",
    ),
    *("speculative_ngram_max_bfs_breadth", "speculative_num_draft_tokens", "speculative_num_steps"),
    *(
        "model_path",
        "revision",
        "skip_tokenizer_init",
        "tokenizer_backend",
        "tokenizer_mode",
        "tokenizer_path",
    ),
    "trust_remote_code",
)
NGRAM_ARGUMENTS = (
    *("speculative_ngram_capacity", "speculative_ngram_external_corpus_max_tokens"),
    *("speculative_ngram_external_corpus_path", "speculative_ngram_external_sam_budget"),
    *(
        "speculative_ngram_match_type",
        "speculative_ngram_max_trie_depth",
        "speculative_ngram_min_bfs_breadth",
    ),
)

# Attributes that `NGRAMWorker.__init__` sets. The worker sets the same, but for the depth of a
# trie, which it does not have.
WORKER_SETS = {
    *(
        "adaptive_controller",
        "device",
        "draft_token_num",
        "enable_overlap",
        "grammar_tree_host",
        "max_trie_depth",
    ),
    *("model_runner", "ngram_corpus", "page_size", "server_args", "speculative_num_draft_tokens"),
    *("speculative_num_steps", "topk", "_prev_decode_rids", "_target_worker"),
}
# Methods of the corpus that inherited methods of the worker call; the worker's corpus has these.
CORPUS_HAS = {"erase_match_state", "reset"}

PARTS = (
    # The registry of algorithms, and the overridden methods of its entries.
    Part("sglang.version:__version__"),
    Part(
        "sglang.srt.speculative.spec_info:SpeculativeAlgorithm.register",
        ("name",),
        others=("supports_overlap", "spec_class"),
    ),
    Part(f"{_ALGORITHM}.handle_server_args", ("self", "server_args"), is_whole=True),
    Part(f"{_ALGORITHM}.has_draft_kv", ("self",), is_whole=True),
    Part(f"{_ALGORITHM}.is_ngram", ("self",), is_whole=True),
    Part("sglang.srt.managers.overlap_utils:FutureMap.__init__", ("self", "device", "spec_algo")),
    *(Part(f"{_ARGUMENTS}.{name}") for name in (*READ_ARGUMENTS, *NGRAM_ARGUMENTS)),
    # The worker: its overridden methods, and those that SGLang calls.
    Part(
        f"{_WORKER}.__init__",
        ("self", "server_args", "gpu_id", "nccl_port", "target_worker"),
        is_whole=True,
    ),
    Part(f"{_WORKER}._prepare_draft_tokens", ("self", "batch"), is_whole=True),
    Part(f"{_WORKER}._update_ngram_corpus", ("self", "batch"), is_whole=True),
    Part(
        f"{_WORKER}.forward_batch_generation",
        ("self", "batch", "on_publish", "pp_proxy_tensors"),
        is_whole=True,
    ),
    Part(f"{_WORKER}.note_request_finished", ("self", "rid", "natural_stop"), is_whole=True),
    Part(f"{_WORKER}.add_external_corpus", ("self", "corpus_id", "token_chunks"), is_whole=True),
    Part(
        f"{_WORKER}.commit_corpus_load", ("self", "corpus_id", "loaded_token_count"), is_whole=True
    ),
    Part(f"{_WORKER}.remove_external_corpus", ("self", "corpus_id"), is_whole=True),
    Part(f"{_WORKER}.list_external_corpora", ("self",), is_whole=True),
    Part(
        "sglang.srt.speculative.base_spec_worker:BaseSpecWorker.__init__", ("self",), is_whole=True
    ),
    Part("sglang.srt.managers.tp_worker:TpModelWorker.model_config"),
    Part("sglang.srt.managers.tp_worker:TpModelWorker.model_runner"),
    Part("sglang.srt.managers.tp_worker:TpModelWorker.tokenizer"),
    Part("sglang.srt.configs.model_config:ModelConfig.model_path"),
    Part("sglang.srt.configs.model_config:ModelConfig.vocab_size"),
    # A batch and its requests.
    Part(f"{_BATCH}:ScheduleBatch.forward_mode"),
    Part(f"{_BATCH}:ScheduleBatch.grammar_needs_sync", ("self",), is_whole=True),
    Part(f"{_BATCH}:ScheduleBatch.has_grammar"),
    Part(f"{_BATCH}:ScheduleBatch.reqs"),
    Part(f"{_BATCH}:ScheduleBatch.seq_lens_cpu"),
    Part(f"{_BATCH}:ScheduleBatch.spec_info"),
    Part(
        "sglang.srt.model_executor.forward_batch_info:ForwardMode.is_decode",
        ("self",),
        is_whole=True,
    ),
    Part("sglang.srt.speculative.ngram_info:NgramVerifyInput.accept_lens"),
    Part("sglang.srt.speculative.ngram_info:NgramVerifyInput.accept_tokens"),
    Part("sglang.srt.managers.utils:GenerationBatchResult.logits_output"),
    Part("sglang.srt.layers.logits_processor:LogitsProcessorOutput.next_token_logits"),
    Part(f"{_BATCH}:Req.decode_batch_idx"),
    Part(f"{_BATCH}:Req.eos_token_ids"),
    Part(f"{_BATCH}:Req.finished_len"),
    Part(f"{_BATCH}:Req.origin_input_ids"),
    Part(f"{_BATCH}:Req.origin_input_ids_unpadded"),
    Part(f"{_BATCH}:Req.output_ids"),
    Part(f"{_BATCH}:Req.rid"),
    Part(f"{_BATCH}:Req.sampling_params"),
    Part(f"{_SAMPLING}.custom_params"),
    Part(f"{_SAMPLING}.frequency_penalty"),
    Part(f"{_SAMPLING}.ignore_eos"),
    Part(f"{_SAMPLING}.max_new_tokens"),
    Part(f"{_SAMPLING}.min_new_tokens"),
    Part(f"{_SAMPLING}.presence_penalty"),
    Part(f"{_SAMPLING}.repetition_penalty"),
    Part(f"{_SAMPLING}.stop_token_ids"),
    # The process: its arguments as they were resolved, and the ranks that share each layer.
    *(
        Part(f"{_CONTEXT}:get_{name}", (), is_whole=True)
        for name in ("device", "parallel", "schedule", "serving", "spec")
    ),
    Part(f"{_CONTEXT}:ParallelContext.dp_rank"),
    Part(f"{_CONTEXT}:ParallelContext.tp_group"),
    Part("sglang.srt.distributed.parallel_state:GroupCoordinator.cpu_group"),
    Part("sglang.srt.distributed.parallel_state:GroupCoordinator.rank_in_group"),
    Part("sglang.srt.distributed.parallel_state:GroupCoordinator.ranks"),
    Part("sglang.srt.distributed.parallel_state:GroupCoordinator.world_size"),
    # The tokenizer, before the model is loaded.
    Part(
        "sglang.srt.utils.hf_transformers.tokenizer:get_tokenizer",
        ("tokenizer_name",),
        others=("tokenizer_mode", "trust_remote_code", "tokenizer_backend"),
    ),
)


def worker_differences(worker: type) -> list[str]:
    """Return the differences between SGLang's `NGRAMWorker` and the one that `worker` expects.

    Args:
        worker: the subclass of it.

    Returns:
        A phrase for each difference.
    """
    (native, *_) = worker.__bases__
    sets = assigned_in(vars(native)["__init__"]) or WORKER_SETS  # without source, unknown
    found = [f"{native.__name__}.__init__ sets {name}" for name in sorted(sets - WORKER_SETS)]
    found += [
        f"{native.__name__}.__init__ no longer sets {name}" for name in sorted(WORKER_SETS - sets)
    ]
    inherited: dict[str, Any] = {
        name: method
        for name, method in vars(native).items()
        if inspect.isfunction(method) and name not in vars(worker)
    }
    for name, method in inherited.items():
        more = read_in(method, "self.ngram_corpus") - CORPUS_HAS
        found += [f"{native.__name__}.{name} uses ngram_corpus.{one}" for one in sorted(more)]
    return found


def all_differences(worker: type) -> list[str]:
    """Return all differences between this SGLang and the one that the plug-in expects."""
    return differences(PARTS) + worker_differences(worker)
