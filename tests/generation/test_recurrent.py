"""Models with recurrent state: drafts change nothing, in any mode that other models have."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import rest_store
from rest_store.errors import NotSupportedError
from rest_store.generation.loop import Generation
from rest_store.generation.seam import name_of_cache
from tests.shared.families import family_model
from tests.shared.tiny import (
    SCRIPTS,
    VOCABULARY,
    Drafted,
    Scripted,
    bushy,
    drafted,
    futures_of,
    prompts,
)

NEW = 40
FIXED = {"max_new_tokens": NEW, "do_sample": False}
SAMPLED = {"max_new_tokens": NEW, "do_sample": True, "top_k": 0}
# Gated delta rule, Mamba 2 with limits of time steps, states beside attention in one layer,
# convolutions alone, no attention at all.
CORE = ("qwen3_5_text", "nemotron_h", "falcon_h1", "lfm2", "mamba2")
OTHERS = (
    "bamba",
    "granitemoehybrid",
    "kimi_linear",
    "lfm2_moe",
    "olmo_hybrid",
    "qwen3_next",
    "zamba2",
)
FAMILIES = [*CORE, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


@functools.cache
def model_of(family: str) -> Any:
    try:
        return family_model(family)
    except KeyError:
        pytest.skip("not in this release of transformers")


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Any:
    return model_of(request.param)


def cache_name(model: Any) -> str:
    return str(name_of_cache(model))


def noisy(future: list[int], random: Any, max_nodes: int) -> Any:
    """A chain that is wrong somewhere, mostly."""
    wrong = random.random(8) < 0.3
    tokens = [
        int(random.integers(VOCABULARY)) if flaw else token
        for token, flaw in zip(future, wrong, strict=False)
    ]
    return SCRIPTS["right"](tokens, random, max_nodes) if tokens else bushy(future, random, 0)


def can_roll_back(model: Any) -> bool:
    return "lfm2" in model.config.model_type


@pytest.mark.parametrize("rows", [1, 4])
def test_greedy_search(model: Any, rows: int) -> None:
    inputs = prompts(rows)
    plain = model.generate(**inputs, **FIXED)
    assert len(set(plain[:, -NEW:].flatten().tolist())) > 4
    for name, script in [*SCRIPTS.items(), ("noisy", noisy)]:
        output = drafted(model, inputs, plain, script, **FIXED)
        assert torch.equal(output.sequences, plain), name
        counts = output.statistics.drafts
        passes = output.statistics.forward_passes
        assert not counts.errors
        if name == "right":  # all of it is kept at once, of all rows
            assert passes == 1 + -(-(NEW - 1) // 6)
            assert counts.accepted == counts.nodes == rows * (NEW - passes)
        elif name != "wrong":
            assert 0 < counts.accepted < counts.nodes
        else:
            assert counts.accepted == 0
            assert counts.nodes > 0
            assert passes == NEW if rows == 1 or can_roll_back(model) else passes >= NEW


def test_two_generations_of_one_model_in_turns_write_the_text_of_each_alone(model: Any) -> None:
    """No state of one gets into the other, although their passes alternate."""
    rows = prompts(2)
    inputs = [{name: values[row : row + 1] for name, values in rows.items()} for row in (0, 1)]
    plain = [model.generate(**one, **FIXED) for one in inputs]
    streams = []
    for one, text in zip(inputs, plain, strict=True):
        futures = futures_of(one, text)
        source = Drafted(functools.partial(Scripted, futures=futures, script=noisy))
        generator = rest_store.Generator(model, None, [source], adaptive=False)
        streams.append(generator.stream(one, **FIXED))
    written: list[list[int]] = [[], []]
    for pieces in itertools.zip_longest(*streams):
        for tokens, piece in zip(written, pieces, strict=True):
            tokens += [] if piece is None else piece.tokens[0]
    for one, text, tokens in zip(inputs, plain, written, strict=True):
        assert tokens == text[0, one["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("max_nodes", [1, 3, 16])
def test_what_was_partly_right_is_committed_in_time(model: Any, max_nodes: int) -> None:
    """A pass has at most twice the width of the draft; without a limit it would grow."""
    inputs = prompts(1)
    plain = model.generate(**inputs, **FIXED)
    widths = []

    def note(_: Any, __: Any, named: dict[str, Any]) -> None:
        widths.append(named["input_ids"].shape[1])

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        output = drafted(model, inputs, plain, noisy, max_nodes=max_nodes, **FIXED)
    finally:
        hook.remove()
    assert torch.equal(output.sequences, plain)
    assert max(widths[1:]) <= 1 + 2 * max_nodes
    assert output.statistics.forward_passes == len(widths)


@pytest.mark.parametrize("adaptive", [False, True])
def test_sampling_with_the_same_seed(model: Any, adaptive: bool) -> None:
    inputs = prompts(1)
    torch.manual_seed(5)
    plain = model.generate(**inputs, **SAMPLED)
    draw = torch.rand(1)
    reference = plain[0].tolist()
    reference[20:40:3] = [7] * len(reference[20:40:3])
    torch.manual_seed(5)
    output = model.generate(
        **inputs,
        **SAMPLED,
        custom_generate=rest_store.generate,
        sources=[rest_store.PromptLookup()],
        references=[reference],
        adaptive=adaptive,
        return_dict_in_generate=True,
    )
    assert torch.equal(output.sequences, plain)
    assert torch.equal(torch.rand(1), draw)
    assert adaptive or output.statistics.drafts.accepted


def test_rows_of_a_sampled_batch_do_not_depend_on_drafts(model: Any) -> None:
    inputs = prompts(3)
    torch.manual_seed(5)
    plain = model.generate(**inputs, **SAMPLED, custom_generate=rest_store.generate)
    for script in (noisy, bushy):
        torch.manual_seed(5)
        assert torch.equal(drafted(model, inputs, plain, script, **SAMPLED).sequences, plain)


def test_rows_that_end_at_different_times(model: Any) -> None:
    inputs = prompts(4)
    free = model.generate(**inputs, **FIXED)
    options = {**FIXED, "eos_token_id": [int(free[1, 14 + 7]), int(free[3, 14 + 20])]}
    plain = model.generate(**inputs, **options)
    for script in (noisy, bushy):
        assert torch.equal(drafted(model, inputs, plain, script, **options).sequences, plain)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_both_attentions_and_a_static_cache(attention: str) -> None:
    model = model_of("qwen3_5_text")
    before = model.config._attn_implementation
    model.set_attn_implementation(attention)
    try:
        inputs = prompts(3)
        options = {**FIXED, "cache_implementation": "static", "disable_compile": True}
        plain = model.generate(**inputs, **options)
        assert torch.equal(drafted(model, inputs, plain, bushy, **options).sequences, plain)
        assert model.config._attn_implementation == attention
    finally:
        model.set_attn_implementation(before)


def begun(model: Any, inputs: Any, plain: torch.Tensor, script: Any, **options: Any) -> Generation:
    source = Drafted(functools.partial(Scripted, futures=futures_of(inputs, plain), script=script))
    options = {**FIXED, **options, "return_dict_in_generate": True}
    return rest_store.Generator(model, None, [source], adaptive=False).stream(inputs, **options)


def test_a_cache_holds_what_was_written_and_can_be_continued(model: Any) -> None:
    if model.config.model_type == "mamba2":
        pytest.skip("its cache does not say how many tokens it holds")
    inputs = prompts(1)
    plain = model.generate(**inputs, **FIXED)
    name = cache_name(model)
    for stop in (1, 2, 3, 99):
        cache = DynamicCache(config=model.config)
        generation = begun(model, inputs, plain, noisy, **{name: cache})
        for number, _ in enumerate(generation):
            if number == stop:
                break
        generation.close()
        written = generation.result().sequences
        assert int(cache.get_seq_length()) == written.shape[1] - 1
        lone = DynamicCache(config=model.config)
        with torch.no_grad():
            model(written[:, :14], **{name: lone})
            for place in range(14, written.shape[1] - 1):
                model(written[:, place : place + 1], **positions(model, place), **{name: lone})
        for ours, theirs in zip(cache.layers, lone.layers, strict=True):
            for part in ("conv_states", "recurrent_states"):
                for index, state in getattr(theirs, part, {}).items():
                    if state is not None:
                        torch.testing.assert_close(
                            getattr(ours, part)[index], state, atol=1e-3, rtol=1e-3
                        )
        if stop < 99:
            left = {**FIXED, "max_new_tokens": plain.shape[1] - written.shape[1], name: cache}
            whole = {"input_ids": written, "attention_mask": torch.ones_like(written)}
            assert torch.equal(drafted(model, whole, plain, noisy, **left).sequences, plain)


def positions(model: Any, place: int) -> dict[str, torch.Tensor]:
    return {} if model.config.model_type == "mamba2" else {"position_ids": torch.tensor([[place]])}


def settings_of(model: Any) -> list[Any]:
    return [
        (getattr(module, "time_step_limit", None), getattr(module, "chunk_size", None))
        for module in model.modules()
    ]


def test_two_generations_of_one_model_in_turns(model: Any) -> None:
    settings = settings_of(model)
    expected = []
    running = []
    for rows, seed in ((1, 1), (3, 2)):
        inputs = prompts(rows, seed=seed)
        expected.append(model.generate(**inputs, **FIXED))
        running.append(begun(model, inputs, expected[-1], noisy))
    while [
        piece for piece in [next(generation, None) for generation in running] if piece is not None
    ]:
        pass
    for generation, plain in zip(running, expected, strict=True):
        assert torch.equal(generation.result().sequences, plain)
    assert settings_of(model) == settings


@pytest.mark.parametrize("max_nodes", [0, 5])
def test_an_error_leaves_a_cache_that_can_be_continued_or_an_empty_one(max_nodes: int) -> None:
    model = model_of("qwen3_5_text")
    inputs = prompts(1)
    plain = model.generate(**inputs, **FIXED)
    lengths = set()
    for place in range(15, 24):

        def fails(ids: torch.Tensor, scores: torch.Tensor, place: int = place) -> torch.Tensor:
            if ids.shape[1] == place:
                raise KeyboardInterrupt
            return scores

        cache = DynamicCache(config=model.config)
        options = {
            **FIXED,
            "logits_processor": [fails],
            "max_nodes": max_nodes,
            cache_name(model): cache,
        }
        with pytest.raises(KeyboardInterrupt):
            drafted(model, inputs, plain, noisy, **options)
        held = int(cache.get_seq_length())
        lengths.add(held)
        written = plain[:, : max(held + 1, 14)]
        left = {
            **FIXED,
            "max_new_tokens": plain.shape[1] - written.shape[1],
            cache_name(model): cache,
        }
        assert torch.equal(model.generate(written, **left), plain)
    assert (lengths == {0}) == (max_nodes == 0), "single steps change states in place"


def test_a_filled_cache_without_keys_is_refused() -> None:
    model = model_of("mamba2")
    inputs = prompts(1)
    name = cache_name(model)
    cache = DynamicCache(config=model.config)
    model(inputs["input_ids"], **{name: cache})
    with pytest.raises(NotSupportedError, match="does not say how many tokens"):
        model.generate(**inputs, **FIXED, custom_generate=rest_store.generate, **{name: cache})


def test_a_cache_that_was_not_made_for_the_model_is_refused() -> None:
    model = model_of("lfm2")
    options = {**FIXED, cache_name(model): DynamicCache()}
    with pytest.raises(
        NotSupportedError, match=r"without recurrent states, expected made for the model"
    ):
        model.generate(**prompts(1), **options, custom_generate=rest_store.generate)


def test_generations_are_compared(model: Any) -> None:
    generator = rest_store.Generator(model, None, [rest_store.PromptLookup()])
    output = generator.generate(prompts(1), compare=True, max_new_tokens=12)
    assert output.comparison is not None
    assert output.comparison.identical
    name = cache_name(model)
    with pytest.raises(NotSupportedError, match="compare=True"):
        generator.generate(prompts(1), compare=True, **{name: DynamicCache(config=model.config)})
