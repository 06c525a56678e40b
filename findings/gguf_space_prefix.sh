#!/bin/bash
# GGUF files with a SentencePiece vocabulary: whether a space is put before texts is read, and not followed.
#
# Version: transformers 5.24.0, gguf 0.19.0.
# Behaviour: of a file whose `tokenizer.ggml.model` is "llama", AutoTokenizer reads `tokenizer.ggml.add_space_prefix` and
#   then puts a space before every text that has none, whatever the key says; a text that begins with a space gets no other.
#   llama.cpp follows the key: with false "abc" is the token "abc"; with true " abc" begins with two spaces, one its own.
# Seen: "abc" and " abc" are the token "\u2581abc", with the key true and with the key false.
# Why it matters to us: a datastore has to have the ids that the model's server has. Converters write false for Gemma, Phi-3
#   and others, so the first tokens of documents and prompts differed. rest_store/loading/gguf_tokenizer.py converts these
#   vocabularies itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check transformers==5.24.0 gguf==0.19.0
export TQDM_DISABLE=1
"$folder/venv/bin/python" - <<'PYTHON'
import sys
import tempfile
from pathlib import Path
import gguf, numpy as np, transformers
from transformers import AutoTokenizer
tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\u2581", "a", "b", "c", "ab", "\u2581a", "\u2581ab", "\u2581\u2581", "abc", "\u2581abc"]
scores = [0.0] * 259 + [-10.0, -11.0, -12.0, -13.0, -3.0, -4.0, -2.0, -5.0, -2.5, -1.5]
def encoded(prefix, text):
    with tempfile.TemporaryDirectory() as folder:
        w = gguf.GGUFWriter(Path(folder) / "m.gguf", "llama")
        w.add_context_length(64); w.add_embedding_length(8); w.add_block_count(1); w.add_feed_forward_length(8); w.add_head_count(1)
        w.add_tokenizer_model("llama"); w.add_token_list(tokens); w.add_token_scores(scores)
        w.add_token_types([2, 3, 3] + [6] * 256 + [1] * 10)
        w.add_bos_token_id(1); w.add_eos_token_id(2); w.add_unk_token_id(0); w.add_add_space_prefix(prefix)
        w.add_tensor("token_embd.weight", np.zeros((len(tokens), 8), np.float32))
        w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
        t = AutoTokenizer.from_pretrained(folder, gguf_file="m.gguf")
        return t.convert_ids_to_tokens(t(text, add_special_tokens=False)["input_ids"])
print(transformers.__version__)
seen = {(p, t): encoded(p, t) for p in (False, True) for t in ("abc", " abc")}
for k, v in seen.items(): print(k, v)

lost = seen[False, "abc"] == seen[True, "abc"] and seen[True, "abc"] == seen[True, " abc"]
sys.exit(0 if lost else "the key is followed now, or a leading space is kept")
PYTHON
