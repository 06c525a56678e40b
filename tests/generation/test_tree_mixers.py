"""Recurrent layers that read trees: each node has the logits of its path, decoded alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import DynamicCache

from rest_store.bench.baselines import merge_paths
from rest_store.datastore.tree import TokenTree
from rest_store.generation.cache import layers_with_states
from rest_store.generation.deferred import DeferredVerifier
from rest_store.generation.prefill import PrefilledPrompt, prefill
from rest_store.generation.seam import name_of_cache
from rest_store.generation.state_trees import StateTreeVerifier
from rest_store.generation.tree_mixers import PassTree, TreeMixers
from rest_store.generation.verify import make_verifier
from tests.generation.test_recurrent import CORE, OTHERS, model_of
from tests.shared.tiny import VOCABULARY, prompts, right

TREES = [name for name in (*CORE, *OTHERS) if name != "kimi_linear"]
# Branches at the root and below, of different depths, one deeper than a convolution's state.
PATHS = [[5, 6, 7, 8, 9, 10], [5, 6, 11], [12], [12, 13, 14], [5, 15]]


def tree_model_of(family: str) -> Any:
    """A model whose layers read trees, or a skipped test."""
    is_old = Version(transformers.__version__) < Version("5.23")
    if family == "nemotron_h" and is_old:
        pytest.skip("its cache has states for layers without any, so its drafts are chains")
    return model_of(family)


def read(model: Any, tokens: torch.Tensor) -> PrefilledPrompt:
    config = model.config.get_text_config(decoder=True)
    positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
    own = {str(name_of_cache(model)): DynamicCache(config=config), "position_ids": positions}
    return prefill(model, tokens, None, own)


def decoded(model: Any, prompt: torch.Tensor, path: list[int]) -> torch.Tensor:
    """The logits after the last token of a path, which is read token by token."""
    verifier = DeferredVerifier(model, read(model, prompt), 1)
    for token in path:
        logits = verifier.run([token], [merge_paths([])], 1)
        verifier.keep([[0]])
    verifier.close()
    return logits[0, -1]


@pytest.mark.parametrize("family", TREES)
@torch.no_grad()
def test_each_node_and_what_follows_an_accepted_path_are_as_decoded(family: str) -> None:
    model = tree_model_of(family)
    prompt = prompts(1, 9)["input_ids"]
    tree = merge_paths(PATHS)
    last = 3
    verifier = make_verifier(model, read(model, prompt), 1 + len(tree))
    assert isinstance(verifier, StateTreeVerifier)
    logits = verifier.run([last], [tree], 1 + len(tree))[0]
    spread = float(logits.std())
    texts: list[list[int]] = [[last]]
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        texts.append([*texts[parent + 1], token])
    for node, text in enumerate(texts):
        assert torch.allclose(logits[node], decoded(model, prompt, text), atol=1e-4 * spread)
    accepted = [last, 5, 6, 11]
    path = [texts.index(accepted[: 1 + depth]) for depth in range(4)]
    verifier.keep([path])
    # A single token changes states in place, a chain behind it begins from them.
    for text in ([20], [21, 22, 23]):
        chain = right(text[1:], None, 8)  # type: ignore[arg-type]
        follow = verifier.run([text[0]], [chain], len(text))[0]
        verifier.keep([list(range(len(text)))])
        accepted = [*accepted, *text]
        expected = decoded(model, prompt, accepted)
        assert torch.allclose(follow[-1], expected, atol=1e-4 * spread)
    verifier.close()


@torch.no_grad()
def test_rows_accept_different_paths_and_rows_that_ended_stay() -> None:
    model = model_of("qwen3_5_text")
    prompt = prompts(3, 9, padded=False)["input_ids"]
    empty = merge_paths([])
    tree = merge_paths(PATHS)
    verifier = make_verifier(model, read(model, prompt), 1 + len(tree))
    verifier.run([3, 4, None], [tree, right([5, 6], None, 8), empty], 1 + len(tree))
    texts_of_nodes: list[list[int]] = [[]]
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        texts_of_nodes.append([*texts_of_nodes[parent + 1], token])
    accepted = [texts_of_nodes.index(text) for text in ([], [12], [12, 13])]
    verifier.keep([accepted, [0, 1], []])
    logits = verifier.run([7, 8, None], [empty] * 3, 1)
    verifier.keep([[0], [0], []])
    own_cache = DynamicCache(config=model.config)
    verifier.give_back(own_cache)
    verifier.close()
    texts = [[3, 12, 13, 7], [4, 5, 8]]
    for row, text in enumerate(texts):
        expected = decoded(model, prompt[row : row + 1], text)
        assert torch.allclose(logits[row, -1], expected, atol=1e-4 * float(expected.std()))
    untouched = read(model, prompt).cache.layers[0].recurrent_states[0]
    assert torch.allclose(own_cache.layers[0].recurrent_states[0][2], untouched[2], atol=1e-6)


def test_a_tree_knows_what_each_node_continues() -> None:
    tree = TokenTree([5, 6, 7], [-1, 0, -1], [1, 1, 1])
    read_by = PassTree.from_trees([tree, merge_paths([])], 4, 3, torch.device("cpu"))
    assert read_by.lineage[0].tolist() == [[0, -1, -2], [1, 0, -1], [2, 1, 0], [3, 0, -1]]
    assert read_by.sees[0].int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 0, 0, 1],
    ]
    assert read_by.sees[1].int().tolist()[3] == [1, 0, 0, 1], "padding"


def mixers_of(model: Any) -> TreeMixers | None:
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    return TreeMixers.from_model(model, layers_with_states(cache))


@torch.no_grad()
def test_mixers_have_their_own_forward_after_a_pass_also_after_an_error() -> None:
    model = tree_model_of("nemotron_h")
    mixers = mixers_of(model)
    assert mixers is not None
    tree = PassTree.from_trees([merge_paths(PATHS)], 12, 4, torch.device("cpu"))

    def fail() -> None:
        with mixers.reading(tree):
            assert any("forward" in vars(module) for module in model.modules())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not any("forward" in vars(module) for module in model.modules())


def test_mixers_that_are_wrapped_or_of_other_rules_verify_chains() -> None:
    model = model_of("lfm2")
    module = next(part for part in model.modules() if type(part).__name__ == "Lfm2ShortConv")
    module.forward = module.forward
    assert mixers_of(model) is None
    del module.forward
    module.in_proj._hf_hook = None
    assert mixers_of(model) is None
    del module.in_proj._hf_hook
    assert mixers_of(model) is not None
    assert mixers_of(model_of("kimi_linear")) is None


class OwnLfm2(transformers.Lfm2ForCausalLM):  # type: ignore[misc]
    """A class that is not of transformers."""


@torch.no_grad()
def test_models_of_unknown_classes_verify_chains() -> None:
    model = model_of("lfm2")
    prompt = torch.full((1, 5), VOCABULARY - 1)
    model.__class__ = OwnLfm2
    try:
        verifier = make_verifier(model, read(model, prompt), 4)
    finally:
        model.__class__ = transformers.Lfm2ForCausalLM
    verifier.close()
    assert isinstance(verifier, DeferredVerifier)
