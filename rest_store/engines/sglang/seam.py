"""All that the plug-in relies on in SGLang, as of 0.5.23. See `rest_store.seam`.

No other attribute of SGLang is used in this package.
"""

from __future__ import annotations

import inspect
from typing import Any

from rest_store.seam import Dependency, assigned_in, differences, read_in

_ALGORITHM = "sglang.srt.speculative.spec_registry:CustomSpecAlgo"
_ARGUMENTS = "sglang.srt.server_args:ServerArgs"
_BATCH = "sglang.srt.managers.schedule_batch"
_CONSTRAINED = "sglang.srt.constrained"
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

DEPENDENCIES = (
    # The registry of algorithms, and the overridden methods of its entries.
    Dependency("sglang.version:__version__"),
    Dependency(
        "sglang.srt.speculative.spec_info:SpeculativeAlgorithm.register",
        ("name",),
        others=("supports_overlap", "spec_class"),
    ),
    Dependency(f"{_ALGORITHM}.handle_server_args", ("self", "server_args"), is_whole=True),
    Dependency(f"{_ALGORITHM}.has_draft_kv", ("self",), is_whole=True),
    Dependency(f"{_ALGORITHM}.is_ngram", ("self",), is_whole=True),
    Dependency(
        "sglang.srt.managers.overlap_utils:FutureMap.__init__", ("self", "device", "spec_algo")
    ),
    *(Dependency(f"{_ARGUMENTS}.{name}") for name in (*READ_ARGUMENTS, *NGRAM_ARGUMENTS)),
    # The worker: its overridden methods, and those that SGLang calls.
    Dependency(
        f"{_WORKER}.__init__",
        ("self", "server_args", "gpu_id", "nccl_port", "target_worker"),
        is_whole=True,
    ),
    Dependency(f"{_WORKER}._prepare_draft_tokens", ("self", "batch"), is_whole=True),
    Dependency(f"{_WORKER}._update_ngram_corpus", ("self", "batch"), is_whole=True),
    Dependency(
        f"{_WORKER}.forward_batch_generation",
        ("self", "batch", "on_publish", "pp_proxy_tensors"),
        is_whole=True,
    ),
    Dependency(f"{_WORKER}.note_request_finished", ("self", "rid", "natural_stop"), is_whole=True),
    Dependency(
        f"{_WORKER}.add_external_corpus", ("self", "corpus_id", "token_chunks"), is_whole=True
    ),
    Dependency(
        f"{_WORKER}.commit_corpus_load", ("self", "corpus_id", "loaded_token_count"), is_whole=True
    ),
    Dependency(f"{_WORKER}.remove_external_corpus", ("self", "corpus_id"), is_whole=True),
    Dependency(f"{_WORKER}.list_external_corpora", ("self",), is_whole=True),
    Dependency(
        "sglang.srt.speculative.base_spec_worker:BaseSpecWorker.__init__", ("self",), is_whole=True
    ),
    Dependency("sglang.srt.managers.tp_worker:TpModelWorker.model_config"),
    Dependency("sglang.srt.managers.tp_worker:TpModelWorker.model_runner"),
    Dependency("sglang.srt.managers.tp_worker:TpModelWorker.tokenizer"),
    Dependency("sglang.srt.configs.model_config:ModelConfig.model_path"),
    Dependency("sglang.srt.configs.model_config:ModelConfig.vocab_size"),
    # A batch and its requests.
    Dependency(f"{_BATCH}:ScheduleBatch.forward_mode"),
    Dependency(f"{_BATCH}:ScheduleBatch.grammar_needs_sync", ("self",), is_whole=True),
    Dependency(f"{_BATCH}:ScheduleBatch.has_grammar"),
    Dependency(f"{_BATCH}:ScheduleBatch.reqs"),
    Dependency(f"{_BATCH}:ScheduleBatch.seq_lens_cpu"),
    Dependency(f"{_BATCH}:ScheduleBatch.spec_info"),
    Dependency(
        "sglang.srt.model_executor.forward_batch_info:ForwardMode.is_decode",
        ("self",),
        is_whole=True,
    ),
    Dependency("sglang.srt.speculative.ngram_info:NgramVerifyInput.accept_lens"),
    Dependency("sglang.srt.speculative.ngram_info:NgramVerifyInput.accept_tokens"),
    Dependency("sglang.srt.managers.utils:GenerationBatchResult.logits_output"),
    Dependency("sglang.srt.layers.logits_processor:LogitsProcessorOutput.next_token_logits"),
    Dependency(f"{_BATCH}:Req.decode_batch_idx"),
    Dependency(f"{_BATCH}:Req.eos_token_ids"),
    Dependency(f"{_BATCH}:Req.finished_len"),
    Dependency(f"{_BATCH}:Req.grammar"),
    Dependency(f"{_BATCH}:Req.grammar_key"),
    Dependency(f"{_BATCH}:Req.lora_id"),
    Dependency(f"{_BATCH}:Req.multimodal_inputs"),
    Dependency(f"{_BATCH}:Req.origin_input_ids"),
    Dependency(f"{_BATCH}:Req.origin_input_ids_unpadded"),
    Dependency(f"{_BATCH}:Req.output_ids"),
    Dependency(f"{_BATCH}:Req.rid"),
    Dependency(f"{_BATCH}:Req.sampling_params"),
    Dependency(f"{_SAMPLING}.custom_params"),
    Dependency(f"{_SAMPLING}.frequency_penalty"),
    Dependency(f"{_SAMPLING}.ignore_eos"),
    Dependency(f"{_SAMPLING}.max_new_tokens"),
    Dependency(f"{_SAMPLING}.min_new_tokens"),
    Dependency(f"{_SAMPLING}.presence_penalty"),
    Dependency(f"{_SAMPLING}.repetition_penalty"),
    Dependency(f"{_SAMPLING}.stop_token_ids"),
    # The names of adapters, by id.
    Dependency("sglang.srt.model_executor.model_runner:ModelRunner.lora_manager"),
    Dependency("sglang.srt.lora.lora_manager:LoRAManager.lora_refs"),
    Dependency("sglang.srt.lora.lora_registry:LoRARef.lora_name"),
    # The source of a request's grammar.
    Dependency(f"{_CONSTRAINED}.xgrammar_backend:XGrammarGrammar.ctx"),
    Dependency(f"{_CONSTRAINED}.llguidance_backend:GuidanceGrammar.llguidance_tokenizer"),
    Dependency(f"{_CONSTRAINED}.llguidance_backend:GuidanceGrammar.serialized_grammar"),
    # The process: its arguments as they were resolved, and the ranks that share each layer.
    *(
        Dependency(f"{_CONTEXT}:get_{name}", (), is_whole=True)
        for name in ("device", "parallel", "schedule", "serving", "spec")
    ),
    Dependency(f"{_CONTEXT}:ParallelContext.dp_rank"),
    Dependency(f"{_CONTEXT}:ParallelContext.tp_group"),
    Dependency("sglang.srt.distributed.parallel_state:GroupCoordinator.cpu_group"),
    Dependency("sglang.srt.distributed.parallel_state:GroupCoordinator.rank_in_group"),
    Dependency("sglang.srt.distributed.parallel_state:GroupCoordinator.ranks"),
    Dependency("sglang.srt.distributed.parallel_state:GroupCoordinator.world_size"),
    # The tokenizer, before the model is loaded.
    Dependency(
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
    phrases = [f"{native.__name__}.__init__ sets {name}" for name in sorted(sets - WORKER_SETS)]
    phrases += [
        f"{native.__name__}.__init__ no longer sets {name}" for name in sorted(WORKER_SETS - sets)
    ]
    inherited: dict[str, Any] = {
        name: method
        for name, method in vars(native).items()
        if inspect.isfunction(method) and name not in vars(worker)
    }
    for name, method in inherited.items():
        more = read_in(method, "self.ngram_corpus") - CORPUS_HAS
        phrases += [f"{native.__name__}.{name} uses ngram_corpus.{one}" for one in sorted(more)]
    return phrases


def all_differences(worker: type) -> list[str]:
    """Return all differences between this SGLang and the one that the plug-in expects."""
    return differences(DEPENDENCIES) + worker_differences(worker)
