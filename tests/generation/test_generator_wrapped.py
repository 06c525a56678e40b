"""A wrapper of `model.generate` holds for every pass of a `Generator`, and no longer.

A wrapper of a model may change it for the time of a call: hooks, adapters, another method, a
context of torch. Whoever runs passes after that call has returned writes the text of another model.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import rest_store
from rest_store.errors import NotSupportedError, RestStoreError
from rest_store.generation.stream import ThreadSettings
from tests.shared.strategies import refused
from tests.shared.tiny import prompts, tiny_model

FIXED = {"max_new_tokens": 24, "do_sample": False}


class Wrapped:
    """A model whose `generate` changes it for the time of the call.

    Args:
        model: that is changed.
        change: a context manager that changes the model.
    """

    def __init__(self, model: Any, change: Callable[[Any], Any]) -> None:
        self.model = model
        self.change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def generate(self, *arguments: Any, **options: Any) -> Any:
        with self.change(self.model):
            return self.model.generate(*arguments, **options)


@contextmanager
def hooks(model: Any) -> Iterator[None]:
    """As PEFT's for the adapters of each row, and for activated LoRA."""
    handles = [
        layer.mlp.register_forward_hook(lambda module, inputs, output: 0.5 * output)
        for layer in model.model.layers
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def forward(model: Any) -> Iterator[None]:
    """Another forward pass of a layer."""
    norm = model.model.norm
    whole = norm.forward
    norm.forward = lambda states: whole(states).roll(1, dims=-1)
    try:
        yield
    finally:
        del norm.forward


@contextmanager
def inputs(model: Any) -> Iterator[None]:
    """Other inputs of each pass, as PEFT's prompt learning makes them."""
    prepare = model.prepare_inputs_for_generation

    @functools.wraps(prepare)
    def changed(*arguments: Any, **options: Any) -> Any:
        prepared = prepare(*arguments, **options)
        prepared["input_ids"] = (prepared["input_ids"] + 1) % 96
        return prepared

    model.prepare_inputs_for_generation = changed
    try:
        yield
    finally:
        del model.prepare_inputs_for_generation


@contextmanager
def weights(model: Any) -> Iterator[None]:
    """Other weights, as of an adapter that is merged for the call."""
    weight = model.model.layers[1].self_attn.v_proj.weight
    usual = weight.data
    weight.data = -usual
    try:
        yield
    finally:
        weight.data = usual


@contextmanager
def attention(model: Any) -> Iterator[None]:
    """Another implementation of attention."""
    usual = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(usual)


@contextmanager
def autocast(model: Any) -> Iterator[None]:
    """A context of torch that holds in one thread."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


@contextmanager
def inference(model: Any) -> Iterator[None]:
    with torch.inference_mode():
        yield


CHANGES: dict[str, Callable[[Any], Any]] = {
    one.__name__: one for one in (hooks, forward, inputs, weights, attention, autocast, inference)
}
OTHER_TEXT = {"hooks", "forward", "inputs", "weights", "autocast"}  # than that of the model itself


def in_pieces(generator: rest_store.Generator, prompt: Any, **options: Any) -> torch.Tensor:
    """The text of a stream, with other use of torch between its pieces."""
    stream = generator.stream(prompt, **options)
    for _ in stream:
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert not torch.is_inference_mode_enabled()
    result: torch.Tensor = stream.result()
    return result


WAYS: dict[str, Callable[..., torch.Tensor]] = {
    "generate": lambda generator, prompt, **options: (
        generator.generate(prompt, **options).sequences
    ),
    "stream": in_pieces,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_for_the_time_of_the_call_holds_for_all_passes(name: str, way: str) -> None:
    model = tiny_model("llama")
    prompt = prompts(1)
    model.generation_config.pad_token_id = 0
    alone = model.generate(**prompt, **FIXED)
    wrapped = Wrapped(model, CHANGES[name])
    plain = wrapped.generate(**prompt, **FIXED)
    assert torch.equal(plain, alone) == (name not in OTHER_TEXT)
    generator = rest_store.Generator(wrapped, None, [rest_store.PromptLookup()], adaptive=False)
    if name == "inputs":
        refused(
            NotSupportedError,
            lambda: WAYS[way](generator, prompt, **FIXED),
            "prepare_inputs_for_generation",
        )
    else:
        assert torch.equal(WAYS[way](generator, prompt, **FIXED), plain)
    assert torch.equal(model.generate(**prompt, **FIXED), alone), "the model is as before"


def test_a_comparison_is_of_the_wrapped_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rest_store.generation.comparison.MAX_SECONDS", 0.0)
    wrapped = Wrapped(tiny_model("llama"), hooks)
    output = rest_store.Generator(wrapped, None, [rest_store.PromptLookup()]).generate(
        prompts(1), **FIXED, compare=True
    )
    assert output.comparison is not None
    assert output.comparison.identical


def test_a_stream_that_is_left_leaves_the_call() -> None:
    model = tiny_model("llama")
    alone = model.generate(**prompts(1), **FIXED)
    generator = rest_store.Generator(Wrapped(model, hooks), None, [rest_store.PromptLookup()])
    with generator.stream(prompts(1), **FIXED) as stream:
        next(stream)
    assert torch.equal(model.generate(**prompts(1), **FIXED), alone)
    stream = generator.stream(prompts(1), **FIXED)
    next(stream)
    del stream
    assert torch.equal(model.generate(**prompts(1), **FIXED), alone)


def test_a_stream_runs_as_the_thread_that_made_it() -> None:
    model = tiny_model("llama")
    prompt = prompts(1)
    generator = rest_store.Generator(model, None, [rest_store.PromptLookup()], adaptive=False)
    alone = model.generate(**prompt, **FIXED)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model.generate(**prompt, **FIXED)
        stream = generator.stream(prompt, **FIXED)
    assert not torch.equal(plain, alone)
    assert torch.equal(stream.result(), plain)


def test_the_default_device_of_a_thread_holds_in_another() -> None:
    seen: list[Any] = []

    def note(settings: ThreadSettings) -> None:
        with settings.hold():
            seen.append(torch.zeros(1).device.type)

    settings = [ThreadSettings()]
    with torch.device("meta"):
        settings.append(ThreadSettings())
    for one in settings:
        thread = threading.Thread(target=note, args=(one,))
        thread.start()
        thread.join()
    assert seen == ["cpu", "meta"]


class Elsewhere(Wrapped):
    """A model whose `generate` has a loop of its own, as where a serving engine writes the text."""

    def generate(self, *arguments: Any, **options: Any) -> Any:
        options.pop("custom_generate", None)
        return self.model.generate(*arguments, **options)


def test_a_model_that_does_not_run_the_loop_is_refused() -> None:
    generator = rest_store.Generator(
        Elsewhere(tiny_model("llama"), hooks), None, [rest_store.PromptLookup()]
    )
    for call in (generator.generate, generator.stream):
        refused(
            NotSupportedError,
            lambda call=call: call(prompts(1), **FIXED),
            "Elsewhere: generate is one that did not call its argument custom_generate",
        )


class Twice(Wrapped):
    """A model that writes a text twice, and returns the second one."""

    def generate(self, *arguments: Any, **options: Any) -> Any:
        self.model.generate(*arguments, **{**options, "max_new_tokens": 5})
        return self.model.generate(*arguments, **options)


def test_a_model_that_runs_the_loop_twice_returns_what_it_returns() -> None:
    model = tiny_model("llama")
    plain = model.generate(**prompts(1), **FIXED)
    generator = rest_store.Generator(Twice(model, hooks), None, [rest_store.PromptLookup()])
    output = generator.generate(prompts(1), **FIXED)
    assert torch.equal(output.sequences, plain)
    assert output.tokens == plain[:, 14:].tolist()
    stream = generator.stream(prompts(1), **FIXED)
    assert sum(len(piece.tokens[0]) for piece in stream) == 5 + 24
    assert torch.equal(stream.result(), plain)
    with generator.stream(prompts(1), **FIXED) as stream:
        next(stream)
    assert stream.result().shape[1] < plain.shape[1]


# --- PEFT -----------------------------------------------------------------------------------------


def lora(**options: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.LoraConfig(
        r=4,
        lora_alpha=64,
        target_modules=["q_proj", "v_proj"],
        init_lora_weights=False,
        task_type="CAUSAL_LM",
        **options,
    )


def prompt_learning(name: str) -> Any:
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    config = getattr(peft, name)(task_type="CAUSAL_LM", num_virtual_tokens=5)
    model = peft.get_peft_model(tiny_model("llama"), config).eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.5)
    return model


def adapted(**options: Any) -> Any:
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    model = peft.get_peft_model(tiny_model("llama"), lora(**options), adapter_name="a")
    model.add_adapter("b", lora(**options))
    return model.eval()


PEFT: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "LoRA": (adapted, {}),
    "LoRA of each row": (adapted, {"adapter_names": ["a", "b", "__base__"]}),
    "activated LoRA": (lambda: adapted(alora_invocation_tokens=[21, 22]), {}),
    "prompt tuning": (lambda: prompt_learning("PromptTuningConfig"), {}),
    "p-tuning": (lambda: prompt_learning("PromptEncoderConfig"), {}),
    "prefix tuning": (lambda: prompt_learning("PrefixTuningConfig"), {}),
}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of PEFT
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", PEFT)
def test_adapters_of_peft_hold_for_all_passes_or_are_refused_before_the_first(
    name: str, padded: bool, way: str
) -> None:
    make, options = PEFT[name]
    model = make()
    prompt = prompts(3, padded=padded)
    prompt["input_ids"][:, -2:] = torch.tensor([21, 22])
    options = {**FIXED, **options}
    plain = model.generate(**prompt, **options)
    passes: list[int] = []
    hook = model.get_base_model().model.register_forward_pre_hook(lambda *_: passes.append(1))
    generator = rest_store.Generator(model, None, [rest_store.PromptLookup()], adaptive=False)
    try:
        written = WAYS[way](generator, prompt, **options)
    except RestStoreError:
        assert not passes
        assert not name.startswith("LoRA"), "these can be verified"
    else:
        assert torch.equal(written, plain)
    hook.remove()
    assert torch.equal(model.generate(**prompt, **options), plain), "the model is as before"
