#!/bin/bash
# Prompt lookup writes another text under guidance_scale, and loses the watermark of SynthID.
#
# Version: transformers 5.24.0.
# Behaviour: prompt lookup calls the logits processors for each candidate before the forward pass, and for each again after
#   it. Those that count on one call for each token of the text keep what they were called with: classifier-free guidance
#   (`guidance_scale`) a key-value cache, SynthID the last tokens and the contexts that it met. Neither is taken back when
#   candidates are rejected, and neither combination is refused.
# Seen: "guidance: the text of greedy search without prompt lookup: False", and mean g values (0.5 without a watermark) of
#   "0.74 without prompt lookup, 0.53 with it".
# Why it matters to us: texts with drafts are to be those without. rest_store.generate refuses classifier-free guidance, and
#   calls other processors once for a token, in the order of the text; with SynthID the mean is the one without drafts.
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
from transformers import LlamaConfig, LlamaForCausalLM, SynthIDTextWatermarkingConfig
from transformers import SynthIDTextWatermarkLogitsProcessor

PROMPT = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
LOOKUP = {"prompt_lookup_num_tokens": 6}
KEYS = dict(keys=[654, 400, 836, 123, 340, 443, 597, 160], ngram_len=3)


def random_model(spread):
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    tokens = dict(vocab_size=60, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    return LlamaForCausalLM(LlamaConfig(initializer_range=spread, **sizes, **tokens)).double().eval()


def written(model, **options):
    return model.generate(torch.tensor([PROMPT]), **options)[:, len(PROMPT) :]


def mean_g(model, **options):
    """Return the mean g value of six texts, as a detector of SynthID counts it."""
    total = count = 0
    for seed in range(6):
        torch.manual_seed(seed)
        text = written(model, do_sample=True, top_k=0, max_new_tokens=300, **options)
        judge = SynthIDTextWatermarkLogitsProcessor(
            **KEYS, context_history_size=1024, sampling_table_size=2**16, sampling_table_seed=0, device="cpu"
        )
        values = judge.compute_g_values(text).double().mean(-1)
        is_new = judge.compute_context_repetition_mask(text)
        total += (values * is_new).sum().item()
        count += is_new.sum().item()
    return total / count


model = random_model(0.2)
same = {}
for name, options in {"greedy": {}, "guidance": {"guidance_scale": 1.5}}.items():
    texts = [written(model, do_sample=False, max_new_tokens=40, **options, **more) for more in ({}, LOOKUP)]
    same[name] = torch.equal(*texts)
    print(f"{name}: the text of greedy search without prompt lookup: {same[name]}")
model = random_model(0.05)
watermark = {"watermarking_config": SynthIDTextWatermarkingConfig(**KEYS)}
plain, marked, drafted = mean_g(model), mean_g(model, **watermark), mean_g(model, **watermark, **LOOKUP)
print(f"mean g value: {plain:.2f} without a watermark; {marked:.2f} without prompt lookup, {drafted:.2f} with it")
is_lost = same == {"greedy": True, "guidance": False} and marked > 0.7 and drafted < 0.6
sys.exit(0 if is_lost else "the behaviour has changed")
PYTHON
