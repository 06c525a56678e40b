#!/bin/bash
# datasets: in a column of JSON, texts that happen to be JSON come back as something else.
#
# Version: datasets 5.2.0.
# Behaviour: where the records of a JSON file differ (here the content of a message is a text or a list of parts), the feature
#   becomes `Json`. Its encode_example leaves a text as it is if the text is valid JSON, and decode_example decodes it: the
#   text 42 is a number then, null is None, {"a": 1} is a dictionary, and a text in double quotes has lost them.
# Seen: load_dataset("json") of texts "42", "true", "null", '{"a": 1}', '["x"]', '"quoted"' gives 42, True, None, {'a': 1},
#   ['x'] and 'quoted'; the parquet file that it writes holds them without quotes, beside "plain" with quotes.
# Why it matters to us: answers in JSON are usual in chats. build_index/readers/tables.py decodes `arrow.json` and keeps the
#   text wherever the decoded value cannot be the content of a message.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check datasets==5.2.0
cd "$folder"
export HF_HUB_OFFLINE=1 HF_DATASETS_DISABLE_PROGRESS_BARS=1
"$folder/venv/bin/python" - <<'PYTHON'
import json
import sys

import datasets
import pyarrow.parquet as pq

texts = ["plain", "42", "true", "null", '{"a": 1}', '["x"]', '"quoted"']
parts = [{"type": "text", "text": "q"}]
rows = [{"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": text}]} for text in texts]
with open("rows.jsonl", "w") as file:
    file.write("\n".join(map(json.dumps, rows)))
loaded = datasets.load_dataset("json", data_files="rows.jsonl", split="train", cache_dir="cache")
print("features:", loaded.features)
answers = [row["messages"][1]["content"] for row in loaded]
for text, answer in zip(texts, answers):
    print(f"{text!r} comes back as {answer!r}")
loaded.to_parquet("rows.parquet")
stored = [row["messages"][1]["content"] for row in pq.read_table("rows.parquet").to_pylist()]
print("in parquet:", stored)
expected = ["plain", 42, True, None, {"a": 1}, ["x"], "quoted"]
sys.exit(answers != expected or stored != ['"plain"', *texts[1:]])
PYTHON
