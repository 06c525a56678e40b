"""Prepacked weights: the same sums, the same text, and no trace afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import rest_store
from rest_store.errors import ModelNotSupportedError
from tests.shared.tiny import prompts, tiny_model


def logits(model: Any, rows: int = 2) -> torch.Tensor:
    with torch.no_grad():
        return model(**prompts(rows)).logits


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3", "opt", "mixtral"])  # without and with biases
def test_logits_agree_up_to_rounding_and_plain_layers_come_back(architecture: str) -> None:
    model = tiny_model(architecture)
    layers = [module for module in model.modules() if type(module) is torch.nn.Linear]
    expected = logits(model)
    with rest_store.prepacked_weights(model) as count:
        assert count == len(layers) > 0
        torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)
        assert all("forward" in vars(layer) for layer in layers)
    assert not any("forward" in vars(layer) for layer in layers)
    assert torch.equal(logits(model), expected)


def test_drafted_text_is_that_of_plain_decoding() -> None:
    model, inputs = tiny_model("llama"), prompts(1, length=24)
    with rest_store.prepacked_weights(model):
        plain = model.generate(**inputs, max_new_tokens=40, do_sample=False)
        options: dict[str, Any] = {"custom_generate": rest_store.generate, "drafter": [rest_store.PromptLookup()]}
        drafted = model.generate(**inputs, max_new_tokens=40, do_sample=False, **options)
    assert torch.equal(plain, drafted)


def test_layers_come_back_after_an_error() -> None:
    model = tiny_model("llama")
    with pytest.raises(KeyboardInterrupt), rest_store.prepacked_weights(model):
        raise KeyboardInterrupt
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("kind", ["no linear layers", "bfloat16", "packed already"])
def test_a_model_with_nothing_to_pack_is_refused(kind: str, request: pytest.FixtureRequest) -> None:
    model = tiny_model("llama", dtype=torch.bfloat16 if kind == "bfloat16" else torch.float32)
    if kind == "no linear layers":
        model = tiny_model("gpt2").transformer
    if kind == "packed already":
        block = rest_store.prepacked_weights(model)
        block.__enter__()
        request.addfinalizer(lambda: block.__exit__(None, None, None))
    with pytest.raises(ModelNotSupportedError, match=r"number of linear layers is 0, expected at least one"):
        rest_store.prepacked_weights(model).__enter__()


def test_a_torch_without_onednn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(ModelNotSupportedError, match=r"is without oneDNN, expected one that has it"):
        rest_store.prepacked_weights(tiny_model("llama")).__enter__()
