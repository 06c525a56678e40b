#!/bin/bash
# Prompt lookup with top_p never drafts tokens of some ids, and with top_h it drafts nothing.
#
# Version: transformers 5.24.0.
# Behaviour: prompt lookup asks the logits processors which candidates are forbidden, with a logit of 1 for every token.
#   Among them are the warpers of sampling. Of equal logits, top_p has to drop a share of 1 - top_p, and it drops the same
#   ids each time: with 0.5 the upper half of the vocabulary, with 0.8 a fifth of it, all in the upper half. The model's own
#   logits for these tokens do not matter. With top_h no candidate is left. The text is right, and nothing is said.
# Seen: a model that is certain of its text, 20 tokens in turn, writes 80 more of them. The tokens 100 to 119 of 1000 take
#   "off 8 passes, top_p 0.8 8 passes, top_p 0.5 8 passes, top_h 0.5 80 passes", the tokens 600 to 619
#   "off 8 passes, top_p 0.8 28 passes, top_p 0.5 80 passes, top_h 0.5 80 passes".
# Why it matters to us: prompt lookup of transformers is the baseline of many measurements with sampling, and its M is too
#   low there: ids of rarer words and of other languages are high. Processors may judge drafts on the model's logits only,
#   as rest_store.generate has them do: rest_store.PromptLookup takes 6 or 7 passes in each of these cases.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.24.0
export TQDM_DISABLE=1
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation import TopPLogitsWarper

WIDTH, WORDS = 64, 1000


def repeating_model(tokens):
    """Return a model that writes `tokens` in turn: its layer adds nothing to the embeddings."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=WIDTH, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    config = LlamaConfig(vocab_size=WORDS, bos_token_id=None, eos_token_id=None, pad_token_id=0, **sizes)
    model = LlamaForCausalLM(config).eval()
    embeddings = torch.randn(WORDS, WIDTH)
    head = torch.zeros(WORDS, WIDTH)
    head[tokens[1:] + tokens[:1]] = embeddings[tokens]
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(embeddings)
        model.lm_head.weight.copy_(head)
    return model


passes = []
kinds = {"off": {}, "top_p 0.8": {"top_p": 0.8}, "top_p 0.5": {"top_p": 0.5}, "top_h 0.5": {"top_h": 0.5}}
seen = {}
for start in (100, 600):
    tokens = list(range(start, start + 20))
    model = repeating_model(tokens)
    model.register_forward_pre_hook(lambda module, inputs: passes.append(1))
    prompt = torch.tensor([tokens + tokens[:2]])
    expected = (tokens * 6)[: 22 + 80]
    for name, options in kinds.items():
        passes.clear()
        lookup = dict(prompt_lookup_num_tokens=10, max_new_tokens=80)
        text = model.generate(prompt, do_sample=True, top_k=0, **lookup, **options)[0].tolist()
        assert text == expected
        seen[start, name] = len(passes)
    print(f"ids from {start} on:", ", ".join(f"{name} {seen[start, name]} passes" for name in kinds))
for top_p in (0.5, 0.8, 0.95):
    dropped = torch.isinf(TopPLogitsWarper(top_p)(None, torch.ones(1, 151936)))[0].nonzero()
    print(f"top_p {top_p} of 151936 equal logits drops {len(dropped)}, ids {dropped.min()} to {dropped.max()}")
as_seen = {(100, "off"): 8, (100, "top_p 0.5"): 8, (100, "top_h 0.5"): 80}
as_seen |= {(600, "off"): 8, (600, "top_p 0.5"): 80, (600, "top_h 0.5"): 80}
sys.exit(0 if as_seen.items() <= seen.items() and seen[600, "top_p 0.8"] > 8 else "the behaviour has changed")
PYTHON
