#!/bin/bash
# An assistant with another tokenizer drafts little or nothing where the text repeats itself.
#
# Version: transformers 5.24.0.
# Behaviour: universal assisted decoding encodes the end of the assistant's text for the target model, and looks for the
#   longest run of tokens that this and the end of the target's text have in common; behind that run the new tokens begin.
#   Where a text repeats itself, the longest run joins other repeats than the right ones, and new tokens count as old. With
#   8 tokens of the assistant a step, and the default of 10 older ones that are looked at, no candidate was left for periods
#   of 1 to 5 tokens, and few for 6 and 7. The text is right, and nothing is said.
# Seen: 40 tokens that the assistant knows exactly take "period 20: 5 passes with one tokenizer, 5 with two" and
#   "period 4: 5 passes with one tokenizer, 40 with two".
# Why it matters to us: repetition is where drafts are longest (tables, blanks, logs), so this is no baseline for it. Tokens
#   that pass from one tokenizer to another need the place where they begin, not a search for it. rest-store translates no
#   drafts: a datastore has the tokenizer of the model.
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
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WIDTH = 64
passes = []


def tokenizer(first):
    """Return a tokenizer of single bytes, whose ids begin at `first`."""
    vocabulary = {name: first + number for number, name in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_alone = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_alone.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bytes_alone)


def repeating_model(words, tokens):
    """Return a model that writes `tokens` in turn: its layer adds nothing to the embeddings."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=WIDTH, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    config = LlamaConfig(vocab_size=words, bos_token_id=None, eos_token_id=None, pad_token_id=0, **sizes)
    model = LlamaForCausalLM(config).eval()
    embeddings, head = torch.randn(words, WIDTH), torch.zeros(words, WIDTH)
    head[tokens[1:] + tokens[:1]] = embeddings[tokens]
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(embeddings)
        model.lm_head.weight.copy_(head)
    model.generation_config.num_assistant_tokens = 8
    model.generation_config.num_assistant_tokens_schedule = "constant"
    model.generation_config.assistant_confidence_threshold = 0
    return model


own, other = tokenizer(0), tokenizer(2)
seen = {}
for period in (20, 4):
    text = "abcdefghijklmnopqrst"[:period]
    tokens = own(text)["input_ids"]
    model, same = repeating_model(256, tokens), repeating_model(256, tokens)
    foreign = repeating_model(258, other(text)["input_ids"])
    model.register_forward_pre_hook(lambda module, inputs: passes.append(1))
    repeated = tokens * (80 // period)
    kinds = {"one": dict(assistant_model=same)}
    kinds["two"] = dict(assistant_model=foreign, tokenizer=own, assistant_tokenizer=other)
    for name, options in kinds.items():
        passes.clear()
        written = model.generate(torch.tensor([repeated[:40]]), do_sample=False, max_new_tokens=40, **options)
        assert written[0].tolist() == repeated
        seen[period, name] = len(passes)
    print(f"period {period}: {seen[period, 'one']} passes with one tokenizer, {seen[period, 'two']} with two")
expected = {(20, "one"): 5, (20, "two"): 5, (4, "one"): 5, (4, "two"): 40}
sys.exit(0 if seen == expected else "the behaviour has changed")
PYTHON
