"""The methods that `bench speed` compares, and a model's own first layers as its assistant."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rest_store.bench.methods import early_exit, make_methods
from rest_store.datastore.datastore import Datastore
from rest_store.errors import LimitError, ModelNotSupportedError, SourceError
from tests.shared.strategies import ONE_TO_NINE, refused, write_datastore
from tests.shared.tiny import prompts, tiny_model

FIXED = {"max_new_tokens": 20, "do_sample": False}


@pytest.mark.parametrize(
    ("architecture", "norm"), [("llama", "model.norm"), ("qwen3", "model.norm"), ("gpt2", "transformer.ln_f")]
)
def test_an_early_exit_is_the_head_over_the_first_layers(architecture: str, norm: str) -> None:
    model = tiny_model(architecture)
    inputs = prompts(2, padded=False)
    with torch.no_grad():
        whole = model(**inputs, output_hidden_states=True)
        for layers in (1, 2):
            smaller = early_exit(model, layers)
            expected = model.lm_head(model.get_submodule(norm)(whole.hidden_states[layers]))
            assert torch.allclose(smaller(**inputs).logits, expected, atol=1e-5)
            assert {tensor.data_ptr() for tensor in smaller.parameters()} < {
                tensor.data_ptr() for tensor in model.parameters()
            }, "weights are shared"
        assert torch.equal(model(**inputs).logits, whole.logits), "the model itself is not changed"


@pytest.mark.parametrize("architecture", ["llama", "mistral with a sliding window", "gemma2", "gpt2"])
def test_an_early_exit_assists_generation(architecture: str) -> None:
    model = tiny_model(architecture)
    inputs = prompts(1)
    smaller = early_exit(model, 2)
    plain = model.generate(**inputs, **FIXED)
    assert torch.equal(model.generate(**inputs, **FIXED, assistant_model=smaller), plain)


def test_early_exits_that_cannot_be_are_refused() -> None:
    model = tiny_model("llama")
    for layers in (0, 3):
        refused(LimitError, lambda layers=layers: early_exit(model, layers), f"layers is {layers}", "1..2")
    model.model.layers = torch.nn.ModuleList(model.model.layers[:2])
    refused(ModelNotSupportedError, lambda: early_exit(model, 1), "LlamaForCausalLM", "no torch.nn.ModuleList of 3")


def test_more_datastores_than_a_session_holds_are_refused_before_anything_is_measured(tmp_path: Path) -> None:
    store = write_datastore(tmp_path, ONE_TO_NINE)
    stores = [Datastore.open(store) for _ in range(7)]
    refused(SourceError, lambda: make_methods(stores, None, max_nodes=16), "number of sources")
