#!/bin/bash
# A streamer that `model.generate` is given beside a custom loop gets the prompt, and neither the text nor an end.
#
# Version: transformers 5.24.0.
# Behaviour: generate(streamer=..., custom_generate=loop) puts the prompt into the streamer, does not pass it on to the loop
#   (an argument named `streamer` stays None), and does not end it. A `tokenizer` is dropped in the same way, so that
#   `stop_strings` raise an error that asks for the tokenizer that was passed.
# Seen: "the loop's streamer: None; its reader came to an end: False", and "stop strings with a tokenizer: There are one or
#   more stop strings, ... but we could not locate a tokenizer."
# Why it matters to us: rest_store.generate is such a loop, and the reader of a TextIteratorStreamer waited for ever. It
#   finds the streamer in the frame of the call (rest_store/generation/seam.py).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.24.0
export TQDM_DISABLE=1
"$folder/venv/bin/python" - <<'PYTHON'
import queue
import sys
from threading import Thread

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TextIteratorStreamer

words = {chr(97 + number): number for number in range(26)}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="a")))
sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
model = LlamaForCausalLM(LlamaConfig(vocab_size=26, **sizes)).eval()
ids = torch.tensor([[1, 2, 3]])
seen = []

def loop(model, input_ids, logits_processor, stopping_criteria, generation_config, streamer=None, **others):
    seen.append(streamer)
    return torch.cat([input_ids, input_ids], dim=1)

streamer = TextIteratorStreamer(tokenizer, timeout=5)
options = dict(custom_generate=loop, max_new_tokens=3)
writer = Thread(target=lambda: model.generate(ids, streamer=streamer, **options))
writer.start()
try:
    "".join(streamer)
    ended = True
except queue.Empty:
    ended = False
writer.join()
print(f"the loop's streamer: {seen[0]}; its reader came to an end: {ended}")
refused = False
try:
    model.generate(ids, stop_strings="a", tokenizer=tokenizer, **options)
except ValueError as error:
    refused = "tokenizer" in str(error)
    print(f"stop strings with a tokenizer: {error}")
sys.exit(0 if seen[0] is None and not ended and refused else "the streamer or the tokenizer is passed on now")
PYTHON
