#!/bin/bash
# Prompt lookup writes another text under guidance_scale than greedy search does, without an error.
#
# Version: transformers 5.24.0.
# Behaviour: prompt lookup calls the logits processors for each candidate before the forward pass, and for each again after
#   it. Classifier-free guidance (`guidance_scale`) reads each token that it is called with into a key-value cache of its
#   own, and takes none back when candidates are rejected. The combination is not refused.
# Seen: "greedy: the text of greedy search without prompt lookup: True", and "guidance: ...: False".
# Why it matters to us: texts with drafts are to be those without. A processor that counts on one call for each token needs
#   another road, or a refusal: rest_store.generate refuses classifier-free guidance by name.
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

PROMPT = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
LOOKUP = {"prompt_lookup_num_tokens": 6}


def written(model, **options):
    return model.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=40, **options)


torch.manual_seed(0)
sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
tokens = dict(vocab_size=60, bos_token_id=None, eos_token_id=None, pad_token_id=0)
model = LlamaForCausalLM(LlamaConfig(initializer_range=0.2, **sizes, **tokens)).double().eval()
same = {}
for name, options in {"greedy": {}, "guidance": {"guidance_scale": 1.5}}.items():
    same[name] = torch.equal(written(model, **options), written(model, **options, **LOOKUP))
    print(f"{name}: the text of greedy search without prompt lookup: {same[name]}")
sys.exit(0 if same == {"greedy": True, "guidance": False} else "the behaviour has changed")
PYTHON
