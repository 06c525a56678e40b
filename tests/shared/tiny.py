"""Tiny language models with random weights of many architectures, and drafters for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import processors

import rest_store
from rest_store.bench.baselines import merge_paths
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import DraftOptions
from rest_store.drafting.members import MemberSettings
from rest_store.drafting.merge import subtree
from rest_store.generation.draft_sessions import EMPTY, likeliest_nodes
from tests.shared.models import CHATML, byte_level_bpe

torch.set_num_threads(1)  # for models as small as these threads only wait for each other

VOCABULARY = 96
_ROPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,  # tests that want an end name its token
}
_NEOX = {name: value for name, value in _ROPE.items() if name != "num_key_value_heads"}
_GEMMA = {
    **_ROPE,
    "head_dim": 8,
    "sliding_window": 8,
    "query_pre_attn_scalar": 8,
    "tie_word_embeddings": False,
}
_GEMMA["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"]
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _ROPE),
    "mistral with a sliding window": ("Mistral", {**_ROPE, "sliding_window": 8, "head_dim": 8}),
    "qwen2": ("Qwen2", _ROPE),
    "qwen2 with windows": (
        "Qwen2",
        {**_ROPE, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {**_ROPE, "head_dim": 8}),
    "gemma2": ("Gemma2", _GEMMA),
    "gemma3": ("Gemma3", {**_GEMMA, "class": "Gemma3ForCausalLM", "config": "Gemma3TextConfig"}),
    "phi3": ("Phi3", _ROPE),
    "gpt2": (
        "GPT2",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 256,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": None,
            "class": "GPT2LMHeadModel",
        },
    ),
    "gpt_neox": ("GPTNeoX", _NEOX),
    "opt": ("OPT", {**_NEOX, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "falcon": (
        "Falcon",
        {**_NEOX, "alibi": False, "new_decoder_architecture": False, "multi_query": True},
    ),
    "mixtral": (
        "Mixtral",
        {**_ROPE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "qwen3_moe": ("Qwen3Moe", {**_ROPE, **_EXPERTS, "num_experts": 4, "head_dim": 8}),
    "stablelm": ("StableLm", _ROPE),
    "olmo2": ("Olmo2", _ROPE),
    "cohere": ("Cohere", _ROPE),
    "granite": ("Granite", _ROPE),
    "starcoder2": ("Starcoder2", {**_ROPE, "sliding_window": None}),
    "gemma3n": (
        "Gemma3n",
        {
            **_GEMMA,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_kv_shared_layers": 2,
            "intermediate_size": [48] * 4,
            "activation_sparsity_pattern": [0.0] * 4,
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "altup_num_inputs": 2,
            "class": "Gemma3nForCausalLM",
            "config": "Gemma3nTextConfig",
        },
    ),
}


def tiny_model(
    architecture: str,
    *,
    attention: str | None = None,
    dtype: torch.dtype = torch.float32,
    positions: int | None = None,
) -> Any:
    """A model with weights that depend on `architecture` alone and give distinct logits.

    Args:
        architecture: a key of `ARCHITECTURES`.
        attention: its implementation; None: the usual one.
        dtype: of its weights.
        positions: that it has; None: 256.
    """
    prefix, arguments = ARCHITECTURES[architecture]
    arguments = dict(arguments)
    if positions is not None:
        arguments["n_positions" if "n_positions" in arguments else "max_position_embeddings"] = (
            positions
        )
    kind = arguments.pop("class", f"{prefix}ForCausalLM")
    config = getattr(transformers, arguments.pop("config", f"{prefix}Config"))(**arguments)
    config.initializer_range = config.init_std = 0.5 if prefix == "GPTNeoX" else 0.3
    if attention is not None:
        config._attn_implementation = attention
    torch.manual_seed(sum(map(ord, architecture)))
    model = getattr(transformers, kind)(config)
    return model.to(dtype).eval()


def prompts(
    rows: int, length: int = 14, *, seed: int = 0, padded: bool = True
) -> dict[str, torch.Tensor]:
    """Random prompts, each row but the first with another amount of padding on the left."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, rows if padded else 1):
        mask[row, : 2 * row - 1] = 0
        ids[row, : 2 * row - 1] = 0
    return {"input_ids": ids, "attention_mask": mask}


class Drafted:
    """A source whose sessions `make` creates from the text so far, verified without changes.

    Args:
        make: returns an object with `draft`, `accept` and `close`.

    Attributes:
        is_chain: whether a chain was asked for, at last.
    """

    def __init__(self, make: Callable[[list[int]], Any]) -> None:
        self.make = make
        self.is_chain = False

    def __str__(self) -> str:
        return "drafted"

    def members(self, settings: MemberSettings, text: Callable[[], Any]) -> Sequence[Any]:
        return [_Member(self, self.make(text().tolist()))]


class _Member:
    has_references = False

    def __init__(self, source: Drafted, session: Any) -> None:
        self.source = source
        self.session = session
        self.close = session.close

    def send(self, limits: DraftOptions) -> None:
        self.limits = limits
        self.source.is_chain = limits.is_chain

    def receive(self, timeout: float | None) -> TokenTree:
        tree = self.session.draft(
            max_nodes=self.limits.max_nodes,
            costs=self.limits.costs if len(self.limits.costs) else None,
        )
        if self.limits.is_chain:
            tree = subtree(tree, likeliest_nodes(tree))
        size = len(tree)
        return TokenTree(
            tree.tokens, tree.parents, tree.counts, scores=[1.0] * size, origins=[1] * size
        )

    def accept(self, tokens: Any, top_k: Any, node_top_k: Any) -> None:
        self.session.accept(tokens.tolist())


class Scripted:
    """A session that knows what will be written; `script` makes a tree of it, right or wrong.

    Args:
        futures: for each prompt, as a tuple, all tokens that follow it.
        script: returns the tree, from the tokens to come, a random generator and the budget.
    """

    def __init__(
        self,
        prompt: list[int],
        futures: dict[tuple[int, ...], list[int]],
        script: Callable[..., Any],
    ) -> None:
        self.future = list(futures[tuple(prompt)])
        self.script = script
        self.random = np.random.default_rng(len(prompt))

    def draft(self, *, max_nodes: int, costs: Any) -> Any:
        return self.script(self.future, self.random, max_nodes)

    def accept(self, tokens: Sequence[int]) -> None:
        assert list(tokens) == self.future[: len(tokens)], "accepted tokens that were not written"
        del self.future[: len(tokens)]

    def close(self) -> None:
        pass


class SameTree:
    """A session that drafts the same tree in each step, of `paths` of tokens."""

    def __init__(self, paths: Sequence[Sequence[int]]) -> None:
        self.paths = paths

    def draft(self, *, max_nodes: int, costs: Any) -> TokenTree:
        return merge_paths([path[:max_nodes] for path in self.paths])

    def accept(self, tokens: Sequence[int]) -> None:
        pass

    def close(self) -> None:
        pass


def drafted(
    model: Any, inputs: dict[str, torch.Tensor], expected: torch.Tensor, script: Any, **options: Any
) -> Any:
    """The output of a generation for which `script` drafts, or one script for each row.

    Args:
        model: tiny.
        inputs: the prompts.
        expected: int64[rows, length], what will be written.
        script: as in `Scripted`; or a list of these.
        options: of `model.generate`.
    """
    futures = futures_of(inputs, expected)
    scripts = script if isinstance(script, list) else [script] * len(futures)
    by_prompt = dict(zip(futures, scripts, strict=True))
    return model.generate(
        **inputs,
        **options,
        custom_generate=rest_store.generate,
        sources=[Drafted(lambda prompt: Scripted(prompt, futures, by_prompt[tuple(prompt)]))],
        adaptive=False,
        return_dict_in_generate=True,
    )


def right(future: list[int], random: np.random.Generator, max_nodes: int) -> TokenTree:
    return merge_paths([future[: min(5, max_nodes)]])


def wrong(future: list[int], random: np.random.Generator, max_nodes: int) -> TokenTree:
    never = [(token + 1) % VOCABULARY for token in future[:4]] or [5]
    tree = merge_paths([never[:3], [*never[:1], 7, 8]])
    return tree if len(tree) <= max_nodes else merge_paths([never[:max_nodes]])


def bushy(future: list[int], random: np.random.Generator, max_nodes: int) -> TokenTree:
    """A tree in random order, with a prefix of the true path among branches."""
    true = future[: int(random.integers(0, 6))]
    paths = [
        true[:cut] + random.integers(0, VOCABULARY, 3).tolist()
        for cut in random.integers(0, len(true) + 1, 3)
    ]
    paths.insert(int(random.integers(0, 4)), true)
    tree = merge_paths([path for path in paths if path])
    return tree if len(tree) <= max_nodes else EMPTY


SCRIPTS: dict[str, Callable[..., Any]] = {"right": right, "wrong": wrong, "bushy": bushy}


def futures_of(
    inputs: dict[str, torch.Tensor], sequences: torch.Tensor
) -> dict[tuple[int, ...], list[int]]:
    """What follows each prompt of `inputs` in the finished `sequences`, with some more behind."""
    length = inputs["input_ids"].shape[1]
    futures = {}
    for ids, mask, sequence in zip(
        inputs["input_ids"], inputs["attention_mask"], sequences, strict=True
    ):
        prompt = tuple(ids[mask.bool()].tolist())
        futures[prompt] = sequence[length:].tolist() + [9] * 8
    return futures


def text_tokenizer() -> Any:
    """A tokenizer with a begin token that its chat template writes, too."""
    words = byte_level_bpe()
    begin = "<|im_start|>"
    words.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, words.token_to_id(begin))]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token=begin, eos_token="<|endoftext|>"
    )
    tokenizer.chat_template = "{{ bos_token }}" + CHATML
    return tokenizer


def write_model(directory: Path, **config: Any) -> Path:
    """Write a tiny Llama that reads text, with its tokenizer; return `directory`.

    Args:
        directory: of the model.
        config: what differs in its configuration.
    """
    torch.manual_seed(3)
    usual = {
        "vocab_size": 512,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**usual, **config})).save_pretrained(
        directory
    )
    text_tokenizer().save_pretrained(directory)
    return directory
