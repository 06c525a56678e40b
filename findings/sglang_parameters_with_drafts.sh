#!/bin/bash
# With speculative decoding, SGLang treats three kinds of sampling parameters otherwise than without.
#
# Version: sglang 0.5.23 (its functions are run alone, with torch 2.13.0; no GPU, no model).
# Behaviour: 1. On a CPU, on XPU and on ROCm a request with a temperature is verified greedily: `_verify_uses_greedy`.
#   2. Penalties and min_new_tokens count one token a step, the last one, however many were accepted:
#   `ScheduleBatch.cumulate_penalty_output_tokens`. 3. min_p is not applied while drafts are verified: `eagle_sample`
#   reads top_k and top_p, and no min_p. No request is refused, and nothing is logged.
# Seen: "greedy in spite of a temperature: cuda False, cpu True, hip True, xpu True",
#   "accepted in a step: [7, 8, 9]; counted for penalties: [9]",
#   "while drafts are verified: top_k True, top_p True, min_p False".
# Why it matters to us: REST_STORE drafts inside SGLang, and texts are to be those without drafts. Requests with penalties get
#   no draft nodes there, and the page on SGLang names the rest. (Penalties: sgl-project/sglang#33643.)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps sglang==0.5.23
"$folder/venv/bin/python" - <<'PYTHON'
import ast
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import torch

ROOT = Path(importlib.util.find_spec("sglang").submodule_search_locations[0]) / "srt"


def source_of(file, name):
    """Return the source of a function or method, without the imports of its module."""
    text = (ROOT / file).read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
            return "\n".join(line[node.col_offset :] for line in lines)
    raise SystemExit(f"the behaviour may have changed: {file} has no {name}")


space = {"torch": torch, "is_pin_memory_available": lambda device: False}
exec(source_of("speculative/eagle_utils.py", "_verify_uses_greedy"), space)
others = {"is_all_greedy": False, "use_rejection_sampling": False}
greedy = {
    name: space["_verify_uses_greedy"](**others, **{f"is_{other}": other == name for other in ("cpu", "hip", "xpu")})
    for name in ("cuda", "cpu", "hip", "xpu")
}
print("greedy in spite of a temperature:", ", ".join(f"{name} {is_greedy}" for name, is_greedy in greedy.items()))

exec(source_of("managers/schedule_batch.py", "cumulate_penalty_output_tokens"), space)
counted = []
penalties = SimpleNamespace(cumulate_output_tokens=lambda tokens: counted.extend(tokens.tolist()))
request = SimpleNamespace(output_ids=[7, 8, 9], origin_input_ids=[1])
batch = SimpleNamespace(reqs=[request], device="cpu", sampling_info=SimpleNamespace(penalizer_orchestrator=penalties))
space["cumulate_penalty_output_tokens"](batch)
print(f"accepted in a step: {request.output_ids}; counted for penalties: {counted}")

sample = source_of("speculative/eagle_utils.py", "eagle_sample")
applied = {name: name in sample for name in ("top_k", "top_p", "min_p")}
print("while drafts are verified:", ", ".join(f"{name} {is_applied}" for name, is_applied in applied.items()))
if greedy != {"cuda": False, "cpu": True, "hip": True, "xpu": True} or counted != [9] or applied["min_p"]:
    raise SystemExit("the behaviour has changed")
PYTHON
