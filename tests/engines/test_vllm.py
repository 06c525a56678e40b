"""What vLLM makes and calls, with modules in its place; `tests/engines/vllm/` has the real one."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client import REGISTRY

from rest_store.engines import metrics
from rest_store.engines.vllm import Drafter
from rest_store.errors import DatastoreNotFoundError, EngineSettingsError, TokenizerMismatchError
from tests.shared.engine import Engine, Request, cyclic, plain_output
from tests.shared.recycled import recycled_rows
from tests.shared.strategies import ONE_TO_NINE, Corpus, identity, write_datastore

VOCABULARY = 300


class Vllm:
    """The parts of vLLM that the drafter asks for.

    Attributes:
        rank: of this worker among those that share each layer.
        tokenizer: the model's; None: it is run without one.
        generation: what the model's generation_config.json holds.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rank = 0
        self.tokenizer: object = identity(VOCABULARY)
        self.generation: dict[str, Any] = {}
        parts: dict[str, dict[str, Any]] = {
            "vllm": {"envs": SimpleNamespace(VLLM_LOG_STATS_INTERVAL=10.0)},
            "vllm.logger": {"init_logger": logging.getLogger},
            "vllm.tokenizers": {"cached_tokenizer_from_config": lambda _: self.tokenizer},
            "vllm.model_executor": {},
            "vllm.model_executor.layers": {},
            "vllm.model_executor.layers.logits_processor": {"LogitsProcessor": LogitsProcessor},
            "vllm.distributed": {},
            "vllm.distributed.parallel_state": {"get_tp_group": lambda: SimpleNamespace(rank_in_group=self.rank)},
        }
        for name, members in parts.items():
            module = ModuleType(name)
            vars(module).update(members)
            patch.setitem(sys.modules, name, module)

    def config(self, settings: object, **speculative: Any) -> Any:
        model = SimpleNamespace(
            get_vocab_size=lambda: 320,
            max_model_len=200,
            model="the-model",
            served_model_name="served",
            try_get_generation_config=lambda: self.generation,
        )
        return SimpleNamespace(
            additional_config={"rest_store": settings},
            model_config=model,
            speculative_config=SimpleNamespace(num_speculative_tokens=4, **speculative),
            parallel_config=SimpleNamespace(data_parallel_index=0),
        )


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vllm]:
    yield Vllm(monkeypatch)
    counters, sessions = metrics._metrics(("engine", "model_name"))
    for metric in (*counters.values(), sessions):
        REGISTRY.unregister(metric)
    metrics._metrics.cache_clear()


@pytest.fixture
def place(tmp_path: Path) -> str:
    texts = [[start, start + 1, *plain_output(cyclic(VOCABULARY), [start, start + 1], 60)] for start in range(100)]
    (tmp_path / "ds").mkdir()
    return str(write_datastore(tmp_path / "ds", Corpus(VOCABULARY, [texts])))


class LogitsProcessor(torch.nn.Module):
    """The module of vLLM's models that computes logits; this one gets them."""

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


class TargetModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logits_processor = LogitsProcessor()


class Asked:
    """Calls a drafter as vLLM 0.32 does, after the model computed logits."""

    def __init__(self, drafter: Drafter, model: TargetModel | None = None) -> None:
        self.drafter = drafter
        self.model = TargetModel() if model is None else model

    def propose(self, sampled: Any, lengths: Any, tokens: Any, computed: Any) -> list[list[int]]:
        for rows in computed:
            logits = torch.zeros(len(rows), 320)
            logits.scatter_(1, torch.tensor(rows, dtype=torch.int64), torch.tensor([2.0, 1.0]).expand(len(rows), -1))
            self.model.logits_processor(logits)
        return self.drafter.propose(sampled, lengths, tokens, slot_mappings=None)


def errors(drafter: Drafter) -> dict[str, float]:
    assert drafter._batch is not None
    totals = drafter._batch.metrics.totals()
    return {label: total for (name, label), total in totals.items() if name == "errors"}


def test_it_is_made_loaded_and_asked(vllm: Vllm, place: str) -> None:
    drafter = Drafter(vllm.config({"datastores": [place]}))
    drafter.load_model(TargetModel())
    engine = Engine(Asked(drafter), cyclic(VOCABULARY))
    asked = [Request([number, number + 1], 40) for number in range(5, 45, 5)]
    assert engine.run(*asked) == [plain_output(engine.model, request.prompt, 40) for request in asked]
    assert engine.verified > 0
    assert drafter._batch is not None
    drafter._batch.tend()
    assert REGISTRY.get_sample_value("rest_store_engine_steps_total", {"engine": "0", "model_name": "served"})


def test_what_the_model_finds_likely_is_recycled(vllm: Vllm, place: str, tmp_path: Path) -> None:
    model, file = TargetModel(), tmp_path / "logits"
    drafter = Drafter(vllm.config({"datastores": [place], "logits": str(file)}))
    drafter.load_model(model)
    engine = Engine(Asked(drafter, model), cyclic(VOCABULARY), shows_logits=True)
    asked = [Request([number, number + 1], 40) for number in range(5, 45, 5)]
    assert engine.run(*asked) == [plain_output(engine.model, request.prompt, 40) for request in asked]
    assert errors(drafter) == {}
    del drafter, engine
    gc.collect()
    rows = recycled_rows(file, identity(VOCABULARY))
    assert len(rows) > 30
    for context, likely in rows:
        assert len(context) == 1 or likely[:2] == [cyclic(VOCABULARY)(context), cyclic(VOCABULARY)(context) + 1]
    assert not model.logits_processor._forward_hooks, "a drafter that is gone listens no more"


def test_a_model_that_shows_no_logits_is_drafted_for(vllm: Vllm, place: str) -> None:
    """One whose modules cannot be listed, and one without the module that computes logits."""
    for model, expected in ((object(), {"logits": 1}), (torch.nn.Linear(1, 1), {})):
        drafter = Drafter(vllm.config({"datastores": [place]}))
        drafter.load_model(model)
        engine = Engine(Asked(drafter), cyclic(VOCABULARY))
        asked = [Request([number, number + 1], 40) for number in range(5, 45, 5)]
        assert engine.run(*asked) == [plain_output(engine.model, request.prompt, 40) for request in asked]
        assert errors(drafter) == expected
        assert engine.verified > 0


@pytest.mark.parametrize(
    ("of_tokenizer", "of_model", "ends"), [(None, None, set()), (2, None, {2}), (2, [2, 7], {2, 7}), (None, 7, {7})]
)
def test_tokens_that_end_outputs_are_found(
    vllm: Vllm, place: str, of_tokenizer: int | None, of_model: Any, ends: set[int]
) -> None:
    vllm.tokenizer = SimpleNamespace(identity=identity(VOCABULARY), eos_token_id=of_tokenizer)
    vllm.generation = {"eos_token_id": of_model}
    drafter = Drafter(vllm.config({"datastores": [place]}))
    assert drafter._batch is not None
    assert drafter._batch._rows._ends == ends


def test_workers_that_are_not_asked_open_nothing(vllm: Vllm, tmp_path: Path) -> None:
    vllm.rank = 1
    drafter = Drafter(vllm.config({"datastores": [str(tmp_path / "absent")]}))
    drafter.load_model(object())
    assert drafter.propose([[1], []], np.array([3, 4]), np.zeros((2, 9), np.int32)) == [[], []]
    assert drafter._batch is None


def test_settings_are_checked_when_it_is_made(vllm: Vllm, tmp_path: Path, place: str) -> None:
    with pytest.raises(EngineSettingsError, match=r"additional_config\.rest_store: a key is 'datastors'"):
        Drafter(vllm.config({"datastors": [place]}))
    with pytest.raises(EngineSettingsError, match="the object of settings is absent"):
        Drafter(vllm.config(None))
    with pytest.raises(EngineSettingsError, match="num_speculative_tokens_per_batch_size"):
        Drafter(vllm.config({}, num_speculative_tokens_per_batch_size=[[1, 4, 2]]))
    with pytest.raises(DatastoreNotFoundError):
        Drafter(vllm.config({"datastores": [str(tmp_path / "absent")]}))
    (tmp_path / "other").mkdir()
    other = write_datastore(tmp_path / "other", Corpus(301, ONE_TO_NINE.shards))
    with pytest.raises(TokenizerMismatchError):
        Drafter(vllm.config({"datastores": [str(other)]}))


def test_memory_can_be_written_by_the_next_engine_of_the_process(vllm: Vllm, tmp_path: Path) -> None:
    """An engine that is dropped closes what it has opened."""
    settings = {"remember": str(tmp_path / "memory")}
    for _ in range(2):
        drafter = Drafter(vllm.config(settings))
        del drafter
        gc.collect()
