"""All that the plug-in relies on in vLLM, as of 0.32.0; 0.33.0 has the same. See `rest_store.seam`.

No other attribute of vLLM is used: the stand-ins of the tests have these alone.
"""

from __future__ import annotations

from rest_store.seam import Dependency

_CONFIG = "vllm.config"
_GPU = "vllm.v1.worker.gpu"
_OUTPUT = "vllm.v1.structured_output"
_SCHEDULE = "vllm.v1.core.sched.output"

# Wrapped as soon as vLLM loads its plug-ins: in each process, and where configurations are made.
INIT = Dependency(f"{_GPU}.spec_decode:init_speculator", ("vllm_config", "device", "req_states"))
CREATE = Dependency("vllm.engine.arg_utils:EngineArgs.create_engine_config", ("self",))

# A method of the speculator that `init_speculator` has made. Each kind of head has a class of its
# own.
PROPOSE = Dependency(
    f"{_GPU}.spec_decode.speculator:BaseSpeculator.propose",
    (
        *(
            "self",
            "input_batch",
            "attn_metadata",
            "slot_mappings",
            "last_hidden_states",
            "aux_hidden_states",
        ),
        *(
            "num_sampled",
            "num_rejected",
            "last_sampled",
            "next_prefill_tokens",
            "temperature",
            "seeds",
        ),
    ),
    others=("dummy_run", "num_speculative_tokens"),
)

DEPENDENCIES = (
    INIT,
    PROPOSE,
    # The model runner: its copy of the wrapped function, its requests, and its parts.
    Dependency(f"{_GPU}.model_runner:init_speculator", INIT.parameters),
    Dependency(
        f"{_GPU}.model_runner:GPUModelRunner.add_requests",
        ("self", "scheduler_output"),
        is_whole=True,
    ),
    Dependency(
        f"{_GPU}.model_runner:GPUModelRunner.finish_requests",
        ("self", "scheduler_output"),
        is_whole=True,
    ),
    Dependency(f"{_GPU}.model_runner:GPUModelRunner.speculator"),
    Dependency(f"{_GPU}.model_runner:GPUModelRunner.model"),
    # Requests, from the scheduler.
    Dependency(f"{_SCHEDULE}:SchedulerOutput.scheduled_new_reqs"),
    Dependency(f"{_SCHEDULE}:SchedulerOutput.finished_req_ids"),
    Dependency(f"{_SCHEDULE}:SchedulerOutput.preempted_req_ids"),
    Dependency(f"{_SCHEDULE}:SchedulerOutput.total_num_scheduled_tokens"),
    Dependency(f"{_SCHEDULE}:NewRequestData.req_id"),
    Dependency(f"{_SCHEDULE}:NewRequestData.prefill_token_ids"),
    Dependency(f"{_SCHEDULE}:NewRequestData.prompt_len"),
    Dependency(f"{_SCHEDULE}:NewRequestData.sampling_params"),
    Dependency(f"{_SCHEDULE}:NewRequestData.lora_request"),
    Dependency(f"{_SCHEDULE}:NewRequestData.mm_features"),
    Dependency(f"{_SCHEDULE}:NewRequestData.prompt_is_token_ids"),
    Dependency("vllm.lora.request:LoRARequest.lora_name"),
    Dependency("vllm.multimodal.inputs:MultiModalFeatureSpec.mm_position"),
    Dependency("vllm.multimodal.inputs:PlaceholderRange.length"),
    Dependency("vllm.multimodal.inputs:PlaceholderRange.offset"),
    Dependency("vllm.sampling_params:SamplingParams.temperature"),
    Dependency("vllm.sampling_params:SamplingParams.max_tokens"),
    Dependency("vllm.sampling_params:SamplingParams.all_stop_token_ids"),
    Dependency("vllm.sampling_params:SamplingParams.extra_args"),
    # A step: its rows, their positions, and their texts.
    Dependency(f"{_GPU}.input_batch:InputBatch.req_ids"),
    Dependency(f"{_GPU}.input_batch:InputBatch.num_reqs"),
    Dependency(f"{_GPU}.input_batch:InputBatch.idx_mapping"),
    Dependency(f"{_GPU}.input_batch:InputBatch.cu_num_logits"),
    Dependency(f"{_GPU}.input_batch:InputBatch.num_computed_prefill_tokens_np"),
    Dependency(f"{_GPU}.input_batch:InputBatch.num_scheduled_tokens"),
    Dependency(f"{_GPU}.input_batch:InputBatch.prefill_len_np"),
    Dependency(f"{_GPU}.states:RequestState.all_token_ids"),
    Dependency(f"{_GPU}.states:RequestState.total_len"),
    Dependency(f"{_GPU}.buffer_utils:StagedWriteTensor.gpu"),
    # Beside a head whose drafts are sampled; other speculators have no such attribute, or None.
    Dependency(f"{_GPU}.spec_decode.speculator:DraftModelSpeculator.draft_logits"),
    # The configuration.
    Dependency(f"{_CONFIG}:VllmConfig.additional_config"),
    Dependency(f"{_CONFIG}:VllmConfig.model_config"),
    Dependency(f"{_CONFIG}:VllmConfig.parallel_config"),
    Dependency(f"{_CONFIG}:VllmConfig.scheduler_config"),
    Dependency(f"{_CONFIG}:VllmConfig.speculative_config"),
    Dependency(f"{_CONFIG}:VllmConfig.use_v2_model_runner"),
    Dependency(f"{_CONFIG}:ModelConfig.get_vocab_size", ("self",), is_whole=True),
    Dependency(f"{_CONFIG}:ModelConfig.max_model_len"),
    Dependency(f"{_CONFIG}:ModelConfig.model"),
    Dependency(f"{_CONFIG}:ModelConfig.served_model_name"),
    Dependency(f"{_CONFIG}:ParallelConfig.data_parallel_index"),
    Dependency(f"{_CONFIG}:ParallelConfig.pipeline_parallel_size"),
    Dependency(f"{_CONFIG}:SchedulerConfig.async_scheduling"),
    Dependency(f"{_CONFIG}:SpeculativeConfig.method"),
    Dependency(f"{_CONFIG}:SpeculativeConfig.num_speculative_tokens"),
    Dependency(f"{_CONFIG}:SpeculativeConfig.use_eagle", ("self",), is_whole=True),
    Dependency(f"{_CONFIG}:SpeculativeConfig.uses_draft_model", ("self",), is_whole=True),
    # Called, or read, once at the start.
    Dependency("vllm:envs.VLLM_LOG_STATS_INTERVAL"),
    Dependency("vllm.logger:init_logger", ("name",)),
    Dependency("vllm.tokenizers:cached_tokenizer_from_config", ("model_config",)),
    Dependency("vllm.model_executor.layers.logits_processor:LogitsProcessor"),
    # Workers that share each layer.
    Dependency("vllm.distributed.parallel_state:get_tp_group", (), is_whole=True),
    Dependency("vllm.distributed.parallel_state:GroupCoordinator.rank_in_group"),
    Dependency("vllm.distributed.parallel_state:GroupCoordinator.world_size"),
    Dependency(
        "vllm.distributed.parallel_state:GroupCoordinator.broadcast", ("self", "input_", "src")
    ),
)

# For adaptive verification alone: where these differ, vLLM judges all drafts by its own chances.
CONFIDENCE_PARTS = (
    Dependency(f"{_GPU}.spec_decode.speculator:DraftModelSpeculator.enable_adaptive_verification"),
    Dependency(f"{_GPU}.spec_decode.speculator:DraftModelSpeculator.draft_token_confidence_probs"),
    Dependency(
        f"{_GPU}.spec_decode.speculator:DraftModelSpeculator.observe_verification",
        ("self", "idx_mapping", "num_sampled", "num_rejected"),
        is_whole=True,
    ),
)

# For requests that switch drafts off: where these differ, they have vLLM's own drafts.
SWITCH_PARTS = (
    Dependency("vllm.v1.core.sched.scheduler:Scheduler.schedule", ("self",)),
    Dependency("vllm.v1.core.sched.scheduler:Scheduler.running"),
    Dependency("vllm.v1.core.sched.scheduler:Scheduler.vllm_config"),
    Dependency("vllm.v1.request:Request.sampling_params"),
    Dependency("vllm.v1.request:Request.spec_token_ids"),
)

# For the grammars of requests alone: where these differ, requests are drafted for without them.
GRAMMAR_PARTS = (
    Dependency(f"{_CONFIG}:VllmConfig.structured_outputs_config"),
    Dependency(f"{_CONFIG}:StructuredOutputsConfig.enable_in_reasoning"),
    Dependency(f"{_CONFIG}:StructuredOutputsConfig.reasoning_parser"),
    Dependency("vllm.sampling_params:SamplingParams.structured_outputs"),
    Dependency("vllm.sampling_params:StructuredOutputsParams._backend"),
    Dependency(f"{_OUTPUT}.request:get_structured_output_key", ("params",), is_whole=True),
    *(
        Dependency(place, ("vllm_config", "tokenizer", "vocab_size"), is_whole=True)
        for place in (
            f"{_OUTPUT}.backend_xgrammar:XgrammarBackend",
            f"{_OUTPUT}.backend_guidance:GuidanceBackend",
        )
    ),
    *(
        Dependency(f"{place}.compile_grammar", ("self", "request_type", "grammar_spec"))
        for place in (
            f"{_OUTPUT}.backend_xgrammar:XgrammarBackend",
            f"{_OUTPUT}.backend_guidance:GuidanceBackend",
        )
    ),
    Dependency(f"{_OUTPUT}.backend_xgrammar:XgrammarGrammar.ctx"),
    Dependency(f"{_OUTPUT}.backend_guidance:GuidanceBackend.ll_tokenizer"),
    Dependency(f"{_OUTPUT}.backend_guidance:GuidanceBackend.serialized_grammar"),
)
