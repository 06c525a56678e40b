"""All that the plug-in relies on in vLLM, as of 0.32.0; 0.33.0 has the same. See `rest_store.seam`.

No other attribute of vLLM is used: the stand-ins of the tests have these alone.
"""

from __future__ import annotations

from rest_store.seam import Part

_CONFIG = "vllm.config"
_GPU = "vllm.v1.worker.gpu"
_SCHEDULE = "vllm.v1.core.sched.output"

# Wrapped as soon as vLLM loads its plug-ins: in each process, and where configurations are made.
INIT = Part(f"{_GPU}.spec_decode:init_speculator", ("vllm_config", "device", "req_states"))
CREATE = Part("vllm.engine.arg_utils:EngineArgs.create_engine_config", ("self",))

# A method of the speculator that `init_speculator` has made. Each kind of head has a class of its
# own.
PROPOSE = Part(
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

PARTS = (
    INIT,
    PROPOSE,
    # The model runner: its copy of the wrapped function, its requests, and its parts.
    Part(f"{_GPU}.model_runner:init_speculator", INIT.parameters),
    Part(
        f"{_GPU}.model_runner:GPUModelRunner.add_requests",
        ("self", "scheduler_output"),
        is_whole=True,
    ),
    Part(
        f"{_GPU}.model_runner:GPUModelRunner.finish_requests",
        ("self", "scheduler_output"),
        is_whole=True,
    ),
    Part(f"{_GPU}.model_runner:GPUModelRunner.speculator"),
    Part(f"{_GPU}.model_runner:GPUModelRunner.model"),
    # Requests, from the scheduler.
    Part(f"{_SCHEDULE}:SchedulerOutput.scheduled_new_reqs"),
    Part(f"{_SCHEDULE}:SchedulerOutput.finished_req_ids"),
    Part(f"{_SCHEDULE}:SchedulerOutput.preempted_req_ids"),
    Part(f"{_SCHEDULE}:SchedulerOutput.total_num_scheduled_tokens"),
    Part(f"{_SCHEDULE}:NewRequestData.req_id"),
    Part(f"{_SCHEDULE}:NewRequestData.prefill_token_ids"),
    Part(f"{_SCHEDULE}:NewRequestData.prompt_len"),
    Part(f"{_SCHEDULE}:NewRequestData.sampling_params"),
    Part("vllm.sampling_params:SamplingParams.temperature"),
    Part("vllm.sampling_params:SamplingParams.max_tokens"),
    Part("vllm.sampling_params:SamplingParams.all_stop_token_ids"),
    Part("vllm.sampling_params:SamplingParams.extra_args"),
    # A step: its rows, their positions, and their texts.
    Part(f"{_GPU}.input_batch:InputBatch.req_ids"),
    Part(f"{_GPU}.input_batch:InputBatch.num_reqs"),
    Part(f"{_GPU}.input_batch:InputBatch.idx_mapping"),
    Part(f"{_GPU}.input_batch:InputBatch.cu_num_logits"),
    Part(f"{_GPU}.input_batch:InputBatch.num_computed_prefill_tokens_np"),
    Part(f"{_GPU}.input_batch:InputBatch.num_scheduled_tokens"),
    Part(f"{_GPU}.input_batch:InputBatch.prefill_len_np"),
    Part(f"{_GPU}.states:RequestState.all_token_ids"),
    Part(f"{_GPU}.states:RequestState.total_len"),
    Part(f"{_GPU}.buffer_utils:StagedWriteTensor.gpu"),
    # Beside a head whose drafts are sampled; other speculators have no such attribute, or None.
    Part(f"{_GPU}.spec_decode.speculator:DraftModelSpeculator.draft_logits"),
    # The configuration.
    Part(f"{_CONFIG}:VllmConfig.additional_config"),
    Part(f"{_CONFIG}:VllmConfig.model_config"),
    Part(f"{_CONFIG}:VllmConfig.parallel_config"),
    Part(f"{_CONFIG}:VllmConfig.scheduler_config"),
    Part(f"{_CONFIG}:VllmConfig.speculative_config"),
    Part(f"{_CONFIG}:VllmConfig.use_v2_model_runner"),
    Part(f"{_CONFIG}:ModelConfig.get_vocab_size", ("self",), is_whole=True),
    Part(f"{_CONFIG}:ModelConfig.max_model_len"),
    Part(f"{_CONFIG}:ModelConfig.model"),
    Part(f"{_CONFIG}:ModelConfig.served_model_name"),
    Part(f"{_CONFIG}:ParallelConfig.data_parallel_index"),
    Part(f"{_CONFIG}:SchedulerConfig.async_scheduling"),
    Part(f"{_CONFIG}:SpeculativeConfig.method"),
    Part(f"{_CONFIG}:SpeculativeConfig.num_speculative_tokens"),
    Part(f"{_CONFIG}:SpeculativeConfig.use_eagle", ("self",), is_whole=True),
    Part(f"{_CONFIG}:SpeculativeConfig.uses_draft_model", ("self",), is_whole=True),
    # Called, or read, once at the start.
    Part("vllm:envs.VLLM_LOG_STATS_INTERVAL"),
    Part("vllm.logger:init_logger", ("name",)),
    Part("vllm.tokenizers:cached_tokenizer_from_config", ("model_config",)),
    Part("vllm.model_executor.layers.logits_processor:LogitsProcessor"),
    # Workers that share each layer.
    Part("vllm.distributed.parallel_state:get_tp_group", (), is_whole=True),
    Part("vllm.distributed.parallel_state:GroupCoordinator.rank_in_group"),
    Part("vllm.distributed.parallel_state:GroupCoordinator.world_size"),
    Part("vllm.distributed.parallel_state:GroupCoordinator.broadcast", ("self", "input_", "src")),
)
