"""Prepacked weights: the same sums, the same text, and no trace afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import rest_store
from rest_store.errors import NotSupportedError
from rest_store.generation.model import load_model
from tests.shared.models import write_gguf
from tests.shared.tiny import prompts, tiny_model


def logits(model: Any, rows: int = 2) -> torch.Tensor:
    with torch.no_grad():
        return model(**prompts(rows)).logits


# Without and with biases.
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma3", "opt", "mixtral"])
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
    model = tiny_model("llama")
    inputs = prompts(1, length=24)
    with rest_store.prepacked_weights(model):
        plain = model.generate(**inputs, max_new_tokens=40, do_sample=False)
        options: dict[str, Any] = {
            "custom_generate": rest_store.generate,
            "sources": [rest_store.PromptLookup()],
        }
        drafted = model.generate(**inputs, max_new_tokens=40, do_sample=False, **options)
    assert torch.equal(plain, drafted)


def test_layers_come_back_after_an_error() -> None:
    model = tiny_model("llama")
    with pytest.raises(KeyboardInterrupt), rest_store.prepacked_weights(model):
        raise KeyboardInterrupt
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.fixture
def defaults() -> Iterator[None]:
    """Other defaults of torch, as some loaders of models set them."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    yield
    torch.set_default_dtype(dtype)
    torch.set_default_device(None)


def test_the_defaults_of_torch_do_not_matter(
    defaults: None, request: pytest.FixtureRequest
) -> None:
    with torch.device("cpu"):
        model = tiny_model("llama")
    with rest_store.prepacked_weights(model) as count:
        assert count > 0


class OneNumber(torch.Tensor):
    """A weight of equal numbers that stores one of them, as quantized classes of weights do."""

    number: torch.Tensor

    @staticmethod
    def __new__(cls, number: torch.Tensor, size: torch.Size) -> OneNumber:
        made = torch.Tensor._make_wrapper_subclass(cls, size, dtype=number.dtype)
        made.number = number
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].number, args[0].shape)
        plain = [one.number.expand(one.shape) if isinstance(one, cls) else one for one in args]
        if function == torch.ops.aten.t.default:
            return plain[0].t()
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            return function(*plain, **(kwargs or {}))
        raise NotImplementedError(str(function))


def test_weights_of_a_tensor_class_are_left_as_they_are() -> None:
    model = tiny_model("llama")
    own = [layer.self_attn.q_proj for layer in model.model.layers]
    for layer in own:
        layer.weight = torch.nn.Parameter(
            OneNumber(torch.tensor(0.01), layer.weight.shape), requires_grad=False
        )
    expected = logits(model)
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    with rest_store.prepacked_weights(model) as count:
        assert count == len(linear) - len(own)
        torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-4)
    for layer in linear:
        layer.weight = torch.nn.Parameter(
            OneNumber(torch.tensor(0.01), layer.weight.shape), requires_grad=False
        )
    with pytest.raises(
        NotSupportedError, match=r"number of linear layers is 0, expected .* and plain weights"
    ):
        rest_store.prepacked_weights(model).__enter__()


def test_weights_that_torchao_quantizes_are_left_as_they_are() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    model = tiny_model("llama")
    quantization.quantize_(model.model, quantization.Int8WeightOnlyConfig())
    with rest_store.prepacked_weights(model) as count:
        assert count == 1, "the last layer, which is not quantized"
        logits(model)


@pytest.mark.skipif(
    not hasattr(transformers, "GgufConfig"), reason="weights of GGUF files are always dequantized"
)
def test_weights_of_gguf_files_are_dequantized_also_where_they_could_stay_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package `kernels` may be installed, and have a kernel for the device."""
    kernel = SimpleNamespace(supports=lambda kind: True)
    monkeypatch.setattr("transformers.quantizers.quantizer_gguf.get_gguf_kernel", lambda: kernel)
    path = write_gguf(tmp_path / "model.gguf", "lfm2")
    packed = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name)
    assert type(packed.model.layers[0].self_attn.q_proj).__name__ == "GgufLinear", (
        "transformers alone keeps them"
    )
    model, _ = load_model(str(path))
    layer = model.model.layers[0].self_attn.q_proj
    torch.testing.assert_close(layer.weight.detach(), torch.ones(32, 32), rtol=1e-3, atol=0)
    with rest_store.prepacked_weights(model) as count:
        assert count == 8
        assert "forward" in vars(layer)


@pytest.mark.parametrize("kind", ["no linear layers", "bfloat16", "packed already"])
def test_a_model_with_nothing_to_pack_is_refused(kind: str, request: pytest.FixtureRequest) -> None:
    model = tiny_model("llama", dtype=torch.bfloat16 if kind == "bfloat16" else torch.float32)
    if kind == "no linear layers":
        model = tiny_model("gpt2").transformer
    if kind == "packed already":
        block = rest_store.prepacked_weights(model)
        block.__enter__()
        request.addfinalizer(lambda: block.__exit__(None, None, None))
    with pytest.raises(
        NotSupportedError, match=r"number of linear layers is 0, expected at least one"
    ):
        rest_store.prepacked_weights(model).__enter__()


def test_a_torch_without_onednn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(NotSupportedError, match=r"is without oneDNN, expected one that has it"):
        rest_store.prepacked_weights(tiny_model("llama")).__enter__()
