"""vLLM's model runner V2 as far as a plug-in sees it, over a model that is a function.

Tests/engines/vllm has vLLM.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from rest_store.engines.engine_metrics import EngineMetrics
from rest_store.engines.engine_settings import EngineSettings
from rest_store.engines.engine_sources import EngineSources
from rest_store.engines.request import NO_TREE, NewRequest, StepRequest
from rest_store.engines.request_drafter import RequestDrafter
from tests.shared.strategies import Corpus, identity, write_datastore

Model = Callable[[list[int]], int]  # the next token after a text
VOCABULARY = 300
LARGER = 320  # token ids of the model, as many models have more than their tokenizers


class Clock:
    """Seconds in which each look takes a while, a hundredth of one unless set otherwise."""

    now = 0.0
    look = 0.01

    def __call__(self) -> float:
        self.now += self.look
        return self.now


def cyclic(vocabulary: int) -> Model:
    """A model that goes around in a circle, with a step that depends on the tokens before."""
    return lambda text: (text[-1] + 1 + (text[-2] if len(text) > 1 else 0) // 8) % vocabulary


def plain_output(model: Model, prompt: list[int], most: int, longest: int = 200) -> list[int]:
    """Return what a model writes without drafts."""
    text = list(prompt)
    while len(text) - len(prompt) < most and len(text) < longest:
        text.append(model(text))
    return text[len(prompt) :]


def written_datastore(directory: Path, model: Model) -> str:
    """Make a datastore of what a model writes; return its path."""
    texts = [
        [start, start + 1, *plain_output(model, [start, start + 1], 60)]
        for start in range(0, 200, 5)
    ]
    return str(write_datastore(directory, Corpus(VOCABULARY, [texts])))


def drafter_with(clock: Clock | None = None, **settings: Any) -> RequestDrafter:
    """Return what drafts with these settings of an engine."""
    read = EngineSettings.read(settings, "settings")
    tokenizer = identity(VOCABULARY)
    log = logging.getLogger("test")
    sources = EngineSources(
        read, tokenizer, name="m", vocabulary_size=VOCABULARY, where="settings", log=log
    )
    metrics = EngineMetrics(sources.names, log)
    return RequestDrafter(sources, metrics, vocabulary_size=VOCABULARY, clock=clock or Clock())


class Written:
    """A request whose steps verify all that was drafted."""

    def __init__(
        self, drafter: RequestDrafter, model: Model, id: str, prompt: list[int], **begun: Any
    ) -> None:
        self.drafter = drafter
        self.model = model
        self.id = id
        self.prompt = prompt
        self.text = list(prompt)
        self.accepted = 0
        self.tree = NO_TREE
        drafter.begin(NewRequest(id, prompt, len(prompt), **begun))

    def step(self) -> StepRequest:
        """Verify, and return what the next draft is asked with."""
        path = self.tree.longest_path(plain_output(self.model, self.text, 20))
        new = plain_output(self.model, self.text, len(path) + 1)
        self.text += new
        self.accepted += len(path)
        return StepRequest(self.id, np.array(new, np.int32), 8)


def write(requests: list[Written], steps: int, shape: str = "tree") -> None:
    """Take steps with all of these requests."""
    for _ in range(steps):
        trees = requests[0].drafter.draft([request.step() for request in requests], shape)
        for request, tree in zip(requests, trees, strict=True):
            request.tree = tree


class LogitsProcessor(torch.nn.Module):
    """The module of vLLM's models that computes logits; this one gets them."""

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


class TargetModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits_processor = LogitsProcessor()


class ScriptedHead:
    """The speculator of a trained head whose drafts agree with the model as often as it is told to.

    Args:
        model: what is imitated.
        often: the chance that a token is right, given that those before it are.
    """

    supports_mm_inputs = False
    draft_logits: Any = None
    enable_adaptive_verification = False
    draft_token_confidence_probs: Any = None

    def __init__(self, model: Any, often: float, states: Any, most: int) -> None:
        self.model = model
        self.often = often
        self.states = states
        self.most = most
        self._chance = random.Random(0)
        # Of each step: tokens that each row has written, and tokens that were rejected.
        self._observed: list[tuple[list[int], list[int]]] = []

    def observe_verification(
        self, idx_mapping: torch.Tensor, num_sampled: torch.Tensor, num_rejected: torch.Tensor
    ) -> None:
        self._observed.append((num_sampled.tolist(), num_rejected.tolist()))

    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: Any,
        num_rejected: Any,
        last_sampled: Any,
        next_prefill_tokens: Any,
        temperature: Any,
        seeds: Any,
        dummy_run: bool = False,
        num_speculative_tokens: Any = None,
    ) -> torch.Tensor:
        drafts = torch.zeros(input_batch.num_reqs, self.most, dtype=torch.int64)
        if not dummy_run:
            for row, index in enumerate(input_batch.idx_mapping.tolist()):
                text = self.states.all_token_ids.gpu[
                    index, : self.states.total_len.gpu[index]
                ].tolist()
                drafts[row] = torch.tensor(self.draft(text))
        return drafts

    def draft(self, text: list[int]) -> list[int]:
        written = list(text)
        for _ in range(self.most):
            right = self.model(written)
            written.append(
                right if self._chance.random() < self.often else (right + 1) % VOCABULARY
            )
        return written[len(text) :]


class AdaptiveHead(ScriptedHead):
    """A head whose drafts are verified as far as they pay; vLLM takes all its chances to be 0.5."""

    enable_adaptive_verification = True

    def __init__(self, model: Any, often: float, states: Any, most: int) -> None:
        super().__init__(model, often, states, most)
        self.draft_token_confidence_probs = torch.full((len(states._draft_tokens), most), 0.5)

    def observe_verification(
        self, idx_mapping: torch.Tensor, num_sampled: torch.Tensor, num_rejected: torch.Tensor
    ) -> None:
        super().observe_verification(idx_mapping, num_sampled, num_rejected)
        self.draft_token_confidence_probs[:] = 0.5


class NoLookup(ScriptedHead):
    """An n-gram lookup that finds nothing, and repeats the last token, as vLLM's does."""

    def draft(self, text: list[int]) -> list[int]:
        return [text[-1]] * self.most


class StagedWriteTensor:
    """vLLM's: a tensor on the device."""

    def __init__(self, rows: int, *columns: int) -> None:
        self.gpu = torch.zeros(rows, *columns, dtype=torch.int32)


class RequestState:
    """vLLM's, of which the plug-in reads the texts.

    What begins with an underscore is the tests'.
    """

    def __init__(self, rows: int, longest: int, most: int) -> None:
        self.all_token_ids = StagedWriteTensor(rows, longest + 2 * most + 2)
        self.total_len = StagedWriteTensor(rows)
        self._draft_tokens = torch.zeros(rows, most, dtype=torch.int64)
        self._last_sampled = torch.zeros(rows, 1, dtype=torch.int64)
        self._index: dict[str, int] = {}
        self._free = list(range(rows))

    def _add(self, id: str, tokens: list[int]) -> None:
        self._index[id] = index = self._free.pop()
        self.all_token_ids.gpu[index, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.total_len.gpu[index] = len(tokens)

    def _remove(self, id: str) -> None:
        if id in self._index:
            self._free.append(self._index.pop(id))

    def _extend(self, index: int, tokens: list[int]) -> None:
        length = int(self.total_len.gpu[index])
        self.all_token_ids.gpu[index, length : length + len(tokens)] = torch.tensor(
            tokens, dtype=torch.int32
        )
        self.total_len.gpu[index] += len(tokens)
        self._last_sampled[index] = tokens[-1]


@dataclass
class SamplingParams:
    max_tokens: int | None
    temperature: float = 0.0
    all_stop_token_ids: set[int] = field(default_factory=set)
    extra_args: dict[str, Any] | None = None


@dataclass
class NewRequestData:
    req_id: str
    prefill_token_ids: list[int]
    prompt_len: int
    sampling_params: SamplingParams | None
    lora_request: Any = None
    mm_features: list[Any] | None = None
    prompt_is_token_ids: list[bool] | None = None


@dataclass
class LoRARequest:
    lora_name: str


@dataclass
class PlaceholderRange:
    offset: int
    length: int


@dataclass
class MultiModalFeatureSpec:
    mm_position: PlaceholderRange


class Scheduler:
    """vLLM's, of which the plug-in wraps one method."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.running = list[Any]()

    def schedule(self, throttle_prefills: bool = False) -> list[int]:
        return [len(request.spec_token_ids) for request in self.running]


@dataclass
class ScheduledRequest:
    """vLLM's `Request` as its scheduler has it."""

    sampling_params: SamplingParams | None
    spec_token_ids: list[int]


@dataclass
class SchedulerOutput:
    finished_req_ids: set[str]
    preempted_req_ids: set[str]
    scheduled_new_reqs: list[NewRequestData]
    total_num_scheduled_tokens: int


@dataclass
class InputBatch:
    req_ids: list[str]
    num_reqs: int
    idx_mapping: torch.Tensor
    cu_num_logits: torch.Tensor
    num_computed_prefill_tokens_np: Any
    num_scheduled_tokens: Any
    prefill_len_np: Any


@dataclass
class ModelConfig:
    max_model_len: int
    model: str = "the-model"
    served_model_name: str = "served"

    def get_vocab_size(self) -> int:
        return LARGER


@dataclass
class SpeculativeConfig:
    method: str
    num_speculative_tokens: int

    def use_eagle(self) -> bool:
        return self.method in ("eagle", "eagle3", "mtp")

    def uses_draft_model(self) -> bool:
        return self.method == "draft_model"


@dataclass
class SchedulerConfig:
    async_scheduling: bool = False


@dataclass
class ParallelConfig:
    data_parallel_index: int = 0
    pipeline_parallel_size: int = 1


@dataclass
class VllmConfig:
    additional_config: Any
    model_config: ModelConfig
    speculative_config: SpeculativeConfig | None
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    use_v2_model_runner: bool = True


class GroupCoordinator:
    """vLLM's workers that share each layer, of which this is one.

    What it sends to the others is kept.
    """

    def __init__(self) -> None:
        self.rank_in_group = 0
        self.world_size = 1
        self._sent: list[torch.Tensor] = []

    def broadcast(self, input_: torch.Tensor, src: int = 0) -> torch.Tensor:
        self._sent.append(input_)
        return input_


STAND_INS = {
    "vllm.config": (VllmConfig, ModelConfig, ParallelConfig, SchedulerConfig, SpeculativeConfig),
    "vllm.sampling_params": (SamplingParams,),
    "vllm.lora.request": (LoRARequest,),
    "vllm.multimodal.inputs": (MultiModalFeatureSpec, PlaceholderRange),
    "vllm.v1.core.sched.output": (SchedulerOutput, NewRequestData),
    "vllm.v1.worker.gpu.buffer_utils": (StagedWriteTensor,),
    "vllm.v1.worker.gpu.input_batch": (InputBatch,),
    "vllm.v1.worker.gpu.states": (RequestState,),
    "vllm.distributed.parallel_state": (GroupCoordinator,),
    "vllm.model_executor.layers.logits_processor": (LogitsProcessor,),
}


class Vllm:
    """The modules of vLLM that the plug-in imports, new ones for each test, and a configuration.

    Args:
        head: makes the speculator of a head of the states of requests; None: the n-gram lookup is
            asked for.
        method: of the speculative configuration; None: as `head` says.

    Attributes:
        modules: by name, for `sys.modules`.
        group: of the workers that share each layer.
        tokenizer: the model's; None: it is run without one.
    """

    def __init__(
        self, tokenizer: object, head: Callable[[Any], Any] | None = None, method: str | None = None
    ) -> None:
        self.group = GroupCoordinator()
        self.tokenizer = tokenizer
        self.head = head
        self.method = method or ("ngram_gpu" if head is None else "eagle3")

        class GPUModelRunner:
            def __init__(self, states: Any, speculator: Any) -> None:
                self._states = states
                self.speculator = speculator
                self.model = TargetModel()

            def add_requests(self, scheduler_output: Any) -> None:
                for new in scheduler_output.scheduled_new_reqs:
                    self._states._add(new.req_id, new.prefill_token_ids)

            def finish_requests(self, scheduler_output: Any) -> None:
                for id in scheduler_output.finished_req_ids | (
                    scheduler_output.preempted_req_ids or set()
                ):
                    self._states._remove(id)

        class EngineArgs:
            def __init__(self, config: VllmConfig) -> None:
                self._config = config

            def create_engine_config(self, usage_context: Any = None) -> VllmConfig:
                return self._config

        def init_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
            most = vllm_config.speculative_config.num_speculative_tokens
            return (
                NoLookup(None, 0.0, req_states, most)
                if self.head is None
                else self.head(req_states)
            )

        def get_tp_group() -> GroupCoordinator:
            return self.group

        class OwnScheduler(Scheduler):
            """Another class for each test, since the plug-in wraps its method."""

        def init_logger(name: str) -> logging.Logger:
            return logging.getLogger(name)

        def cached_tokenizer_from_config(model_config: Any) -> object:
            return self.tokenizer

        speculators = {"BaseSpeculator": ScriptedHead, "DraftModelSpeculator": ScriptedHead}
        parts: dict[str, dict[str, Any]] = {
            "vllm": {"envs": SimpleNamespace(VLLM_LOG_STATS_INTERVAL=10.0)},
            "vllm.logger": {"init_logger": init_logger},
            "vllm.tokenizers": {"cached_tokenizer_from_config": cached_tokenizer_from_config},
            "vllm.engine.arg_utils": {"EngineArgs": EngineArgs},
            "vllm.v1.worker.gpu.spec_decode": {"init_speculator": init_speculator},
            "vllm.v1.worker.gpu.spec_decode.speculator": speculators,
            "vllm.v1.worker.gpu.model_runner": {
                "GPUModelRunner": GPUModelRunner,
                "init_speculator": init_speculator,
            },
        }
        parts["vllm.v1.core.sched.scheduler"] = {"Scheduler": OwnScheduler}
        parts["vllm.v1.request"] = {"Request": ScheduledRequest}
        for name, classes in STAND_INS.items():
            parts.setdefault(name, {}).update(
                {definition.__name__: definition for definition in classes}
            )
        parts["vllm.distributed.parallel_state"]["get_tp_group"] = get_tp_group
        names = {
            ".".join(name.split(".")[:count])
            for name in parts
            for count in range(1, name.count(".") + 2)
        }
        self.modules: dict[str, Any] = {}
        for name in sorted(names):
            self.modules[name] = ModuleType(name)
            vars(self.modules[name]).update(parts.get(name, {}))
        for name, module in self.modules.items():  # as imports of a package's modules do
            package, _, last = name.rpartition(".")
            if package:
                setattr(self.modules[package], last, module)

    def config(self, settings: object, most: int = 4, longest: int = 200) -> VllmConfig:
        return VllmConfig(
            {} if settings is None else {"rest_store": settings},
            ModelConfig(longest),
            SpeculativeConfig(self.method, most),
        )


@dataclass
class Request:
    prompt: list[int]
    most: int  # tokens to write
    settings: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    output: list[int] = field(default_factory=list)
    read: int = 0  # tokens that the engine has computed
    drafted: bool = False  # whether it has draft tokens to verify
    ends_in: int | None = None  # steps until the engine says that it has ended

    @property
    def text(self) -> list[int]:
        return self.prompt + self.output


class Engine:
    """A batch of requests whose steps verify K draft tokens each, as in vLLM 0.32 and 0.33.

    Args:
        vllm: its modules, in `sys.modules` with the plug-in installed.
        settings: of rest-store.
        model: what writes.
        most: draft tokens of a row, K.
        rows: requests at a time.
        chunk: tokens of a prompt that are read in a step.
        ahead: whether a step begins before the outcome of the one before is known: a request that
            has ended takes part in one more.
        scheduled: draft tokens that are scheduled for each row; None: K.
        admits: the most draft tokens of a row that the device verifies of these, as adaptive
            verification has it.

    Attributes:
        verified: draft tokens of all steps; accepted: those that the model produced too.
    """

    def __init__(
        self,
        vllm: Vllm,
        settings: object,
        model: Model,
        *,
        most: int = 4,
        longest: int = 200,
        rows: int = 4,
        chunk: int = 1000,
        ahead: bool = False,
        shows_logits: bool = False,
        scheduled: int | None = None,
        admits: int | None = None,
    ) -> None:
        self.scheduled = most if scheduled is None else scheduled
        self.admits = admits
        self.model = model
        self.most = most
        self.longest = longest
        self.chunk = chunk
        self.ahead = ahead
        self.rows = rows
        self.shows_logits = shows_logits
        self.states = RequestState(rows, longest, most)
        module = vllm.modules["vllm.v1.worker.gpu.model_runner"]
        self.speculator = module.init_speculator(
            vllm.config(settings, most, longest), torch.device("cpu"), self.states
        )
        self.runner = module.GPUModelRunner(self.states, self.speculator)
        self.requests: list[Request] = []
        self.waiting: list[Request] = []
        self.steps = self.verified = self.accepted = 0
        self._finished: set[str] = set()
        self._put_off: set[str] = set()
        self._count = 0

    @property
    def ours(self) -> Any:
        """What drafts in this engine."""
        return self.speculator.rest_store

    def preempt(self, request: Request) -> None:
        """Take a request out of the batch; it is read again from the start later."""
        self.requests.remove(request)
        request.read = 0
        request.drafted = False
        self._put_off.add(request.id)
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        self.requests.remove(request)
        self._finished.add(request.id)

    def step(self) -> None:
        """Begin and end requests, verify, sample, and ask for the next drafts."""
        room = self.rows - len(self.requests)
        admitted = self.waiting[:room]
        self.waiting = self.waiting[room:]
        for request in admitted:
            self._count += 1
            request.id = request.id or f"request-{self._count}"
        self.requests += admitted
        new_step = SchedulerOutput(
            finished_req_ids=self._finished,
            preempted_req_ids=self._put_off,
            scheduled_new_reqs=[self._new(request) for request in admitted],
            total_num_scheduled_tokens=len(self.requests),
        )
        self._finished = set()
        self._put_off = set()
        self.runner.finish_requests(new_step)
        self.runner.add_requests(new_step)
        if self.requests:
            self.steps += 1
            self._run()

    def _new(self, request: Request) -> Any:
        return NewRequestData(
            req_id=request.id,
            prefill_token_ids=request.text,
            prompt_len=len(request.prompt),
            sampling_params=SamplingParams(request.most, **request.settings),
        )

    def _run(self) -> None:
        logits: list[list[int]] = []
        sampled = []
        counts = []
        before = [len(request.text) for request in self.requests]
        computed = np.array([request.read for request in self.requests])
        scheduled = np.zeros(len(self.requests), np.int64)
        for row, request in enumerate(self.requests):
            index = self.states._index[request.id]
            draft = (
                self.states._draft_tokens[index, : self.scheduled].tolist()
                if request.drafted
                else []
            )
            draft = draft[: self.admits]
            scheduled[row] = min(self.chunk, len(request.text) - request.read)
            request.read += int(scheduled[row])
            new: list[int] = []
            logits += self._likely(request.text[: request.read], draft)
            counts.append(len(draft) + 1)
            if request.read == len(request.text):
                new = self._verify(request.text, draft)
                self.states._extend(index, new)
                request.output += new
            sampled.append(len(new))
            request.drafted = bool(new)
        if self.shows_logits:
            shown = torch.zeros(len(logits), LARGER)
            shown.scatter_(
                1, torch.tensor(logits), torch.tensor([2.0, 1.0]).expand(len(logits), -1)
            )
            self.runner.model.logits_processor(shown)
        batch = InputBatch(
            req_ids=[request.id for request in self.requests],
            num_reqs=len(self.requests),
            idx_mapping=torch.tensor([self.states._index[request.id] for request in self.requests]),
            cu_num_logits=torch.tensor([0, *counts]).cumsum(0),
            num_computed_prefill_tokens_np=np.minimum(computed, before),
            num_scheduled_tokens=scheduled,
            prefill_len_np=np.array(before),
        )
        rejected = [count - new if new else 0 for count, new in zip(counts, sampled, strict=True)]
        self.speculator.observe_verification(
            batch.idx_mapping, torch.tensor(sampled), torch.tensor(rejected)
        )
        nothing = (None,) * 4
        rest = (self.states._last_sampled, None, None, None)
        drafts = self.speculator.propose(
            batch,
            *nothing,
            torch.tensor(sampled),
            torch.tensor(rejected),
            *rest,
            num_speculative_tokens=self.scheduled,
        )
        assert drafts.shape == (len(self.requests), self.most)
        assert drafts.dtype == torch.int64
        assert 0 <= int(drafts.min()) <= int(drafts.max()) < VOCABULARY
        drafts[:, self.scheduled :] = -1
        self.states._draft_tokens[batch.idx_mapping] = drafts
        for request in list(self.requests):
            self._end(request)

    def _end(self, request: Request) -> None:
        ends = request.settings.get("all_stop_token_ids", set())
        most = min(request.most, self.longest - len(request.prompt))
        end = next((place + 1 for place, token in enumerate(request.output) if token in ends), most)
        if len(request.output) >= min(end, most) and request.ends_in is None:
            request.ends_in = int(self.ahead)
        elif request.ends_in is not None:
            request.ends_in -= 1
        if request.ends_in == 0:
            del request.output[min(end, most) :]
            self.abort(request)

    def _likely(self, text: list[int], draft: list[int]) -> list[list[int]]:
        """Return the two most likely tokens after a text and after each draft token."""
        right = [self.model(text + draft[:count]) for count in range(len(draft) + 1)]
        return [[token, (token + 1) % VOCABULARY] for token in right]

    def _verify(self, text: list[int], draft: list[int]) -> list[int]:
        new: list[int] = []
        self.verified += len(draft)
        for token in draft:
            right = self.model(text + new)
            new.append(right)
            if right != token:
                return new
            self.accepted += 1
        new.append(self.model(text + new))
        return new

    def run(self, *requests: Request, seed: int | None = None) -> list[list[int]]:
        """Write all requests to their ends; with a seed, some are preempted at random.

        Returns the outputs.
        """
        self.waiting += requests
        chance = random.Random(seed)
        while self.waiting or self.requests:
            self.step()
            running = [request for request in self.requests if request.ends_in is None]
            if seed is not None and len(running) > 1 and chance.random() < 0.1:
                self.preempt(chance.choice(running))
        self.step()  # tells of the last ends
        return [request.output for request in requests]
