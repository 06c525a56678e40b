"""Where a generation goes on from: filled caches, embeddings, and streams that were left."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache, StaticCache

import rest_store
from rest_store.bench.baselines import tree_of
from rest_store.generation import loop
from rest_store.generation.cache import Slots, TreeKVCache
from rest_store.generation.generate import generate
from tests.shared.tiny import prompts, tiny_model

NEW = 30
FIXED = {"max_new_tokens": NEW, "do_sample": False}


class Along:
    """Drafts along the first of `texts` in which the last tokens occur, among branches that are wrong."""

    def __init__(self, texts: torch.Tensor, prompt: list[int]) -> None:
        self.texts, self.context = texts.tolist(), list(prompt)

    def draft(self, *, max_nodes: int, costs: Any) -> Any:
        end = self.context[-3:]
        for text in self.texts:
            for place in range(len(text) - len(end), -1, -1):
                following = text[place + len(end) : place + len(end) + 4]
                if following and text[place : place + len(end)] == end:
                    return self._within(max_nodes, [[following[0], 3], following, [4, 5]])
        return self._within(max_nodes, [[4, 5], [6]])

    @staticmethod
    def _within(max_nodes: int, paths: list[list[int]]) -> Any:
        tree = tree_of(paths)
        return tree if len(tree) <= max_nodes else tree_of([paths[0][:max_nodes]])

    def accept(self, tokens: Any) -> None:
        self.context += tokens

    def close(self) -> None:
        pass


def ways(texts: torch.Tensor) -> dict[str, Any]:
    return {
        "custom_generate": generate,
        "drafter": lambda prompt: Along(texts, prompt),
        "adaptive": False,
        "return_dict_in_generate": True,
    }


# --- A cache that is filled already, embeddings -----------------------------------------------------------------------


@pytest.mark.parametrize("widths", [(), (1, 17)])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("architecture", ["llama", "mistral with a sliding window"])
def test_only_the_new_tokens_and_a_filled_cache(architecture: str, static: bool, widths: tuple[int, ...]) -> None:
    model = tiny_model(architecture)
    new = prompts(1, 6, seed=5)["input_ids"]

    def converse(**options: Any) -> Any:
        cache = StaticCache(config=model.config, max_cache_len=100) if static else DynamicCache(config=model.config)
        first = model.generate(prompts(1)["input_ids"], past_key_values=cache, max_new_tokens=15, do_sample=False)
        more = torch.cat([first[:, -1:], new], dim=1)
        mask = torch.ones(1, 28 + more.shape[1], dtype=torch.long)
        output = model.generate(more, attention_mask=mask, past_key_values=cache, **FIXED, **options)
        assert int(cache.get_seq_length()) == 28 + more.shape[1] + NEW - 1
        return output

    plain = converse()
    output = converse(**ways(plain), widths=widths)
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.accepted > 0


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("widths", [(), (1, 17)])
def test_embeddings(rows: int, with_ids: bool, widths: tuple[int, ...]) -> None:
    model = tiny_model("llama")
    inputs = prompts(rows)
    embedded = {"inputs_embeds": model.get_input_embeddings()(inputs["input_ids"]).detach()}
    embedded["attention_mask"] = inputs["attention_mask"]
    if with_ids:
        embedded["input_ids"] = inputs["input_ids"]
    plain = model.generate(**embedded, **FIXED)
    output = model.generate(**embedded, **FIXED, **ways(plain), widths=widths)
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.accepted > 0


class Wrapped(torch.nn.Module):
    """Input embeddings with nothing but a forward pass."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(ids)
        return found


def test_wrapped_input_embeddings() -> None:
    model = tiny_model("llama")
    inputs = prompts(2)
    plain = model.generate(**inputs, **FIXED)
    model.set_input_embeddings(Wrapped(model.get_input_embeddings()))
    output = model.generate(**inputs, **FIXED, **ways(plain))
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.accepted > 0
    assert torch.equal(rest_store.Generator(model).generate(inputs, **FIXED).sequences, plain)


# --- Processors with a state of their own -----------------------------------------------------------------------------


class Remembering(transformers.LogitsProcessor):
    """Bans another token at each of its calls, which it counts in a dictionary, and notes them in a tensor."""

    def __init__(self) -> None:
        self.calls = {"number": 0}
        self.banned = torch.zeros(96)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.banned[self.calls["number"] * 7 % 96] += 3
        self.calls["number"] += 1
        return scores - self.banned


@pytest.mark.parametrize("rows", [1, 3])
def test_processors_remember_for_each_row(rows: int) -> None:
    model = tiny_model("llama")
    inputs = prompts(rows)
    plain = model.generate(**inputs, **FIXED, logits_processor=[Remembering()])
    output = model.generate(**inputs, **FIXED, logits_processor=[Remembering()], **ways(plain))
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.accepted > 0


# --- Streams ----------------------------------------------------------------------------------------------------------


def test_pieces_go_on_where_they_were_left() -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    plain = model.generate(**inputs, **FIXED)
    pieces = rest_store.Generator(model, None, lambda prompt: Along(plain, prompt)).begin(inputs, **FIXED)
    written = list(next(iter(pieces)).tokens[0])
    for piece in pieces:
        written += piece.tokens[0]
        if len(written) > 10:
            break
    assert len(written) < NEW
    written += [token for piece in pieces for token in piece.tokens[0]]
    assert written == plain[0, 14:].tolist()
    assert list(pieces) == []
    assert torch.equal(pieces.result(), plain)
    unread = rest_store.Generator(model, None, lambda prompt: Along(plain, prompt)).begin(inputs, **FIXED)
    next(iter(unread))
    assert torch.equal(unread.result(), plain), "what is not written yet is written"


@pytest.mark.parametrize("architecture", ["llama", "mistral with a sliding window"])
@pytest.mark.parametrize("static", [False, True])
def test_a_stream_that_is_left_leaves_the_callers_cache_with_what_it_wrote(architecture: str, static: bool) -> None:
    model = tiny_model(architecture)
    ids = prompts(1)["input_ids"]
    plain = model.generate(ids, **FIXED)
    cache = StaticCache(config=model.config, max_cache_len=60) if static else DynamicCache(config=model.config)
    pieces = rest_store.Generator(model, None, lambda prompt: Along(plain, prompt), adaptive=False).begin(
        ids, **FIXED, past_key_values=cache
    )
    written: list[int] = []
    while len(written) < 9:
        written += next(iter(pieces)).tokens[0]
    pieces.close()
    assert int(cache.get_seq_length()) == 14 + len(written) - 1
    text = torch.cat([ids, torch.tensor([written])], dim=1)
    left = model.generate(text, past_key_values=cache, max_new_tokens=NEW - len(written), do_sample=False)
    assert torch.equal(left, plain)


# --- Memory -----------------------------------------------------------------------------------------------------------


def test_keys_and_values_are_held_once() -> None:
    model = tiny_model("llama")
    plain = model.generate(**prompts(2), **FIXED)
    cache = DynamicCache(config=model.config)
    generator = rest_store.Generator(model, None, lambda prompt: Along(plain, prompt))
    held = [
        sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
        for _ in generator.begin(prompts(2), **FIXED, past_key_values=cache)
    ]
    assert held
    assert set(held) == {0}
    assert cache.get_seq_length() == 14 + NEW - 1, "and given back at the end"


@pytest.mark.parametrize("reads", [True, False])
def test_a_step_is_read_in_one_copy_and_kept_in_one_move(reads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all rows together; and the most likely tokens only where a session takes them."""
    model = tiny_model("llama")
    inputs = prompts(4)
    plain = model.generate(**inputs, **FIXED)
    counts: list[int] = []
    moves: list[int] = []
    read, move = loop.read_top_tokens, Slots.move

    def counted(logits: torch.Tensor, *, best: bool, count: int) -> Any:
        counts.append(count)
        return read(logits, best=best, count=count)

    def moved(self: Slots, *places: torch.Tensor) -> None:
        moves.append(len(counts))
        move(self, *places)

    monkeypatch.setattr(loop, "read_top_tokens", counted)
    monkeypatch.setattr(Slots, "move", moved)

    class Reading(Along):
        def accept(self, tokens: Any, top_k: Any = None) -> None:
            super().accept(tokens)

    kind = Reading if reads else Along
    output = model.generate(**inputs, **FIXED, **{**ways(plain), "drafter": lambda prompt: kind(plain, prompt)})
    assert torch.equal(output.sequences, plain)
    assert len(counts) == output.statistics.forward_passes
    assert set(counts[1:]) == ({8} if reads else {0})
    assert len(moves) == len(set(moves)) > 3


def test_a_row_that_has_ended_keeps_no_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one row ended early, as many slots are held and looked at as with both of them going on."""
    model = tiny_model("mistral with a sliding window")
    inputs = prompts(2, padded=False)
    steps = 60
    monkeypatch.setattr(rest_store.generation.cache, "_GROWTH", 8)
    plain = model.generate(**inputs, max_new_tokens=steps, do_sample=False)
    first = inputs["input_ids"][0]

    class AfterThree(transformers.StoppingCriteria):
        """Ends the first row after three tokens, as an end token does."""

        def __init__(self, ends: bool) -> None:
            self.eos_token_id = torch.tensor([0])
            self.ends = ends

        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            three = input_ids.shape[1] >= 17
            return torch.tensor([self.ends and three and bool((row[:14] == first).all()) for row in input_ids])

    seen: dict[bool, tuple[int, int]] = {}
    original = TreeKVCache.reserve
    for ends in (False, True):

        def reserved(self: TreeKVCache, width: int, ends: bool = ends) -> None:
            original(self, width)
            seen[ends] = (self.allocated, self.end - self.first_seen(self.groups[0].pattern))

        monkeypatch.setattr(TreeKVCache, "reserve", reserved)
        options = {"max_new_tokens": steps, "do_sample": False, "stopping_criteria": [AfterThree(ends)]}
        output = model.generate(**inputs, **options, custom_generate=generate)
        assert torch.equal(output[1], plain[1])
        assert torch.equal(output[0, :17], plain[0, :17])
    assert seen[True] == seen[False]
    assert seen[True][1] < 10
