"""A model with a wrapped or replaced part writes plain text's tokens, or is refused by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import accelerate
import peft
import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import rest_store
from rest_store.errors import NotSupportedError
from rest_store.generation import attention
from tests.shared.strategies import refused
from tests.shared.tiny import Drafted, Scripted, bushy, futures_of, prompts, right, tiny_model

FIXED = {"max_new_tokens": 16, "do_sample": False}
ROWS = 3
INVOCATION = [21, 22]  # tokens that switch an activated LoRA on

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    # Than offloaded weights.
    pytest.mark.filterwarnings("ignore:.*on a device type different:UserWarning"),
]


@dataclass
class Wrapped:
    """A model with something around it.

    Attributes:
        model: whose `generate` is called.
        plain: the model itself, of transformers.
        options: of `generate` besides.
        context: to generate in.
    """

    model: Any
    plain: Any
    options: dict[str, Any] = field(default_factory=dict)
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


def inputs() -> dict[str, torch.Tensor]:
    prompt = prompts(ROWS)
    prompt["input_ids"][:, -2:] = torch.tensor(INVOCATION)
    return prompt


def with_random_weights(model: Any) -> Any:
    """An adapter's weights, which would otherwise change nothing."""
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


# --- Adapters -------------------------------------------------------------------------------------


def lora_config(**options: Any) -> peft.LoraConfig:
    targets = {
        "r": 4,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "v_proj"],
        "task_type": "CAUSAL_LM",
    }
    return peft.LoraConfig(**{**targets, **options})


def with_adapter(config: peft.PeftConfig) -> Wrapped:
    plain = tiny_model("llama")
    return Wrapped(with_random_weights(peft.get_peft_model(plain, config)), plain)


def lora() -> Wrapped:
    return with_adapter(lora_config())


def another_adapter_for_each_row() -> Wrapped:
    plain = tiny_model("llama")
    model = peft.get_peft_model(plain, lora_config(), adapter_name="a")
    model.add_adapter("b", lora_config())
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "lora" in name
    return Wrapped(with_random_weights(model), plain, {"adapter_names": ["a", "b", "__base__"]})


def adapter_of_transformers() -> Wrapped:
    model = tiny_model("llama")
    try:
        model.add_adapter(lora_config())
    except ValueError as error:
        pytest.skip(str(error))  # each release of transformers wants its own PEFT
    return Wrapped(with_random_weights(model), model)


def adapter_switched_off() -> Wrapped:
    wrapped = lora()
    wrapped.context = wrapped.model.disable_adapter
    return wrapped


def llama_adapter() -> Wrapped:
    return with_adapter(
        peft.AdaptionPromptConfig(adapter_len=4, adapter_layers=2, task_type="CAUSAL_LM")
    )


def scaled_activations() -> Wrapped:
    targets = ["k_proj", "v_proj", "down_proj"]
    return with_adapter(
        peft.IA3Config(
            target_modules=targets, feedforward_modules=["down_proj"], task_type="CAUSAL_LM"
        )
    )


def prompt_learning(kind: type[peft.PeftConfig]) -> Callable[[], Wrapped]:
    return lambda: with_adapter(kind(task_type="CAUSAL_LM", num_virtual_tokens=5))


def activated_lora() -> Wrapped:
    return with_adapter(lora_config(alora_invocation_tokens=INVOCATION))


def shadow() -> Wrapped:
    """A small model beside the model, with a cache of its own."""
    if not hasattr(peft, "ShadowConfig"):
        pytest.skip(f"PEFT {peft.__version__} has none")
    return with_adapter(peft.ShadowConfig(task_type="CAUSAL_LM"))


# --- Hooks and replaced methods -------------------------------------------------------------------


def steered() -> Wrapped:
    model = tiny_model("llama")
    direction = torch.randn(32, generator=torch.Generator().manual_seed(2))
    for layer in model.model.layers:
        layer.register_forward_hook(lambda module, args, output: output + direction)
    return Wrapped(model, model)


def scaled_embeddings() -> Wrapped:
    model = tiny_model("llama")
    model.model.layers[0].register_forward_pre_hook(lambda module, args: (2 * args[0], *args[1:]))
    return Wrapped(model, model)


def forward_of_a_layer() -> Wrapped:
    model = tiny_model("llama")
    layer = model.model.layers[1].mlp
    forward = layer.forward
    layer.forward = lambda hidden: 0.5 * forward(hidden)
    return Wrapped(model, model)


def forward_of_the_model() -> Wrapped:
    model = tiny_model("llama")
    forward = model.forward

    @functools.wraps(forward)
    def sharpened(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        output.logits = output.logits.roll(1, dims=-1)
        return output

    model.forward = sharpened
    return Wrapped(model, model)


def offloaded_weights() -> Wrapped:
    model = tiny_model("llama")
    return Wrapped(accelerate.cpu_offload(model, execution_device=torch.device("cpu")), model)


def parametrized() -> Wrapped:
    class Halved(torch.nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return 0.5 * weight

    model = tiny_model("llama")
    torch.nn.utils.parametrize.register_parametrization(
        model.model.layers[0].mlp.up_proj, "weight", Halved()
    )
    return Wrapped(model, model)


def compiled_forward() -> Wrapped:
    model = tiny_model("llama")
    model.forward = torch.compile(model.forward, backend="eager", dynamic=True)
    return Wrapped(model, model)


def compiled_model() -> Wrapped:
    model = tiny_model("llama")
    return Wrapped(torch.compile(model, backend="eager", dynamic=True), model)


def checkpointed(*, training: bool) -> Wrapped:
    model = tiny_model("llama")
    model.gradient_checkpointing_enable()
    return Wrapped(model.train(training), model)


def inputs_prepared_by_another_method() -> Wrapped:
    model = tiny_model("llama")
    own = model.prepare_inputs_for_generation
    model.prepare_inputs_for_generation = lambda *args, **kwargs: own(*args, **kwargs)
    return Wrapped(model, model)


# --- Attention functions --------------------------------------------------------------------------


def halved(
    module: Any, query: Any, key: Any, value: Any, mask: Any, dropout: float = 0.0, **kwargs: Any
) -> Any:
    kwargs["scaling"] = 0.5 * kwargs["scaling"]
    return sdpa_attention_forward(module, query, key, value, mask, dropout, **kwargs)


def masked_otherwise(*args: Any, **kwargs: Any) -> Any:
    return sdpa_mask(*args, **kwargs)


@contextmanager
def registered(interface: type[Any], name: str, function: Any) -> Iterator[None]:
    before = dict(interface._global_mapping)
    interface.register(name, function)
    try:
        yield
    finally:
        interface._global_mapping.clear()
        interface._global_mapping.update(before)


def own_attention(interface: type[Any], name: str, function: Any) -> Wrapped:
    model = tiny_model("llama")

    @contextmanager
    def context() -> Iterator[None]:
        with (
            registered(AttentionMaskInterface, name, sdpa_mask),
            registered(interface, name, function),
        ):
            model.config._attn_implementation = name
            yield

    return Wrapped(model, model, context=context)


# --- The same text --------------------------------------------------------------------------------

SAME: dict[str, Callable[[], Wrapped]] = {
    "LoRA": lora,
    "another adapter for each row": another_adapter_for_each_row,
    "an adapter of transformers": adapter_of_transformers,
    "an adapter switched off": adapter_switched_off,
    "LLaMA-Adapter": llama_adapter,
    "scaled activations": scaled_activations,
    "hooks behind layers": steered,
    "a hook before a layer": scaled_embeddings,
    "the forward of a layer": forward_of_a_layer,
    "the forward of the model": forward_of_the_model,
    "offloaded weights": offloaded_weights,
    "a parametrization": parametrized,
    "a compiled forward": compiled_forward,
    "a compiled model": compiled_model,
    "gradient checkpointing": lambda: checkpointed(training=False),
}
CHANGES_NOTHING = {
    *("an adapter switched off", "offloaded weights", "a compiled forward", "a compiled model"),
    "gradient checkpointing",
}


SLOW = {"a compiled forward"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SAME]
)
def test_the_same_text(name: str) -> None:
    of_model = tiny_model("llama").generate(**inputs(), **FIXED)
    wrapped = SAME[name]()
    options = {**FIXED, **wrapped.options}
    with wrapped.context():
        plain = wrapped.model.generate(**inputs(), **options)
        assert torch.equal(plain, of_model) == (name in CHANGES_NOTHING)
        futures = futures_of(inputs(), plain)
        for script in (right, bushy):
            drafter = [Drafted(functools.partial(Scripted, futures=futures, script=script))]
            drafted = {
                **options,
                "custom_generate": rest_store.generate,
                "sources": drafter,
                "adaptive": False,
            }
            output = wrapped.model.generate(**inputs(), **drafted, return_dict_in_generate=True)
            assert torch.equal(output.sequences, plain)
            assert output.statistics.drafts.accepted > FIXED["max_new_tokens"]
            generator = rest_store.Generator(wrapped.model, None, drafter, adaptive=False)
            assert torch.equal(generator.generate(inputs(), **options).sequences, plain)
            with generator.stream(inputs(), **options) as stream:
                pieces = [piece.tokens for piece in stream]
            for row, tokens in enumerate(zip(*pieces, strict=True)):
                assert [token for of_pass in tokens for token in of_pass] == plain[
                    row, 14:
                ].tolist()


# --- Refused --------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], Wrapped], str]] = {
    "prompt tuning": (
        prompt_learning(peft.PromptTuningConfig),
        "prepare_inputs_for_generation is replaced",
    ),
    "p-tuning": (
        prompt_learning(peft.PromptEncoderConfig),
        "prepare_inputs_for_generation is replaced",
    ),
    "prefix tuning": (
        prompt_learning(peft.PrefixTuningConfig),
        "prepare_inputs_for_generation is replaced",
    ),
    "other inputs": (
        inputs_prepared_by_another_method,
        "prepare_inputs_for_generation is replaced",
    ),
    "activated LoRA": (activated_lora, "a hook is that of an activated LoRA"),
    "a shadow model": (shadow, "a hook is that of peft.tuners.shadow.model"),
    "gradient checkpointing in training": (
        lambda: checkpointed(training=True),
        "gradient checkpointing is on",
    ),
    "an attention function": (
        lambda: own_attention(AttentionInterface, "own", halved),
        "the attention function is halved (registered as 'own')",
    ),
    "an attention function in place of sdpa": (
        lambda: own_attention(AttentionInterface, "sdpa", halved),
        "the attention function is halved (registered as 'sdpa')",
    ),
    "an attention function in place of eager attention": (
        lambda: own_attention(AttentionInterface, "eager", halved),
        "the attention function is halved (registered as 'eager')",
    ),
    "a mask function in place of that of sdpa": (
        lambda: own_attention(AttentionMaskInterface, "sdpa", masked_otherwise),
        "the attention mask function is masked_otherwise (registered as 'sdpa')",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_the_model_runs(name: str) -> None:
    make, fragment = REFUSED[name]
    wrapped = make()
    passes: list[int] = []
    wrapped.plain.get_input_embeddings().register_forward_pre_hook(lambda *_: passes.append(1))
    generator = rest_store.Generator(wrapped.model)
    options = {**inputs(), **FIXED, **wrapped.options}
    ways = [
        lambda: wrapped.model.generate(**options, custom_generate=rest_store.generate),
        lambda: generator.generate(inputs(), **FIXED, **wrapped.options),
        lambda: generator.stream(inputs(), **FIXED, **wrapped.options),
    ]
    with wrapped.context():
        for way in ways:
            refused(NotSupportedError, way, "LlamaForCausalLM", fragment)
    assert not passes


def test_a_model_is_accepted_again_when_the_wrapper_is_gone() -> None:
    """Prompt tuning leaves the model's own method as an attribute of the model."""
    wrapped = prompt_learning(peft.PromptTuningConfig)()
    expected = tiny_model("llama").generate(**inputs(), **FIXED)
    with pytest.raises(NotSupportedError):
        wrapped.model.generate(**inputs(), **FIXED, custom_generate=rest_store.generate)
    output = wrapped.plain.generate(**inputs(), **FIXED, custom_generate=rest_store.generate)
    assert torch.equal(output, expected)


def test_attention_functions_of_transformers_are_accepted() -> None:
    for name in ("eager", "sdpa", "flash_attention_2", "flex_attention"):
        model = tiny_model("llama")
        model.config._attn_implementation = name
        attention.require_attention(model)
