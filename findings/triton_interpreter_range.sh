#!/bin/bash
# In Triton's interpreter, `tl.range` yields Python's numbers, where a compiled kernel has tensors.
#
# Version: triton 3.9.0 (with torch 2.13.0 and numpy 2.3.5, TRITON_INTERPRET=1; no GPU is needed).
# Behaviour: a loop variable of tl.range is a tensor in a compiled kernel, so kernels write index.to(tl.int64) before they
#   multiply an index by a stride. The interpreter replaces tl.range by Python's range, also where its bounds are tensors,
#   and such a kernel ends with an InterpreterError.
# Seen: "a loop variable of tl.range that is used as it is: [0, 1, 2, 3]",
#   "one that is converted: AttributeError("'int' object has no attribute 'to'")".
# Why it matters to us: vLLM's kernel for top-k and top-p converts its loop variable, so requests with top_k or top_p end
#   an engine in the interpreter, in which its tests run on a CPU. tests/engines/vllm/on_cpu has it yield tensors.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0
"$folder/venv/bin/pip" install -q --disable-pip-version-check triton==3.9.0 numpy==2.3.5
cat > "$folder/kernels.py" <<'PYTHON'
import torch
import triton
import triton.language as tl


@triton.jit
def as_it_is(out, count):
    for index in tl.range(0, count):
        tl.store(out + index, index)


@triton.jit
def converted(out, count):
    for index in tl.range(0, count):
        tl.store(out + index.to(tl.int64), index)


numbers = torch.full((4,), -1)
as_it_is[(1,)](numbers, 4)
print("a loop variable of tl.range that is used as it is:", numbers.tolist())
assert numbers.tolist() == [0, 1, 2, 3]
try:
    converted[(1,)](numbers, 4)
except Exception as error:
    print("one that is converted:", error)
    assert "'int' object has no attribute 'to'" in str(error)
else:
    raise SystemExit("the behaviour has changed: the loop variable is a tensor")
PYTHON
TRITON_INTERPRET=1 "$folder/venv/bin/python" - "$folder/kernels.py" <<'PYTHON'
import runpy
import sys
from types import SimpleNamespace

from triton import backends

# Triton looks for a driver by name even where it interprets; on a machine without a GPU there is none.
driver = SimpleNamespace(is_active=lambda: False)
if not backends.backends:
    backends.backends = {"cpu": SimpleNamespace(driver=driver, compiler=None)}
runpy.run_path(sys.argv[1], run_name="__main__")
PYTHON
