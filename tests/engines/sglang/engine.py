"""SGLang's engine on a CPU: `python -m tests.engines.sglang.engine REQUESTS ANSWERS`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

IN_SGLANG = [
    pytest.mark.skipif(
        importlib.util.find_spec("sglang") is None, reason="no SGLang: `make test-sglang`"
    ),
    pytest.mark.filterwarnings("default"),
]
# What SGLang takes there: kernels in torch, and attention over trees.
ON_CPU = Path(__file__).with_name("on_cpu")
ROOT = Path(__file__).parents[3]
SERVER: dict[str, Any] = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "dtype": "float32",
    "disable_cuda_graph": True,
    "mem_fraction_static": 0.6,
    "max_total_tokens": 4096,
    "skip_server_warmup": True,
    "log_level": "info",
    "max_running_requests": 4,
}
# Of two ranks, which SGLang would have talk through NCCL if a library of it is there.
RANKS = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "SGLANG_NCCL_SO_PATH": "/nonexistent"}


def environment(settings: Mapping[str, Any] | None = None, ranks: int = 1) -> dict[str, str]:
    """Return the environment of a process that runs SGLang on a CPU, with one or two ranks."""
    own = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    if settings is not None:
        own["REST_STORE_SGLANG"] = json.dumps(settings)
    own |= RANKS if ranks > 1 else {}
    paths = [str(ON_CPU), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(paths)}


def answers(
    place: Path,
    server: Mapping[str, Any],
    rounds: Sequence[Sequence[Mapping[str, Any]]],
    settings: Mapping[str, Any] | None = None,
) -> list[list[dict[str, Any]]]:
    """Return what an engine answers.

    Args:
        place: a directory for files of this run, the engine's log among them.
        server: arguments of the engine besides those of all tests.
        rounds: the requests of each round run together; each has `input_ids` and `sampling_params`,
            and may have what else `Engine.generate` takes of each request.
        settings: of drafts; None: there are none.
    """
    place.mkdir()
    if settings is not None:
        server = {
            "speculative_algorithm": "REST_STORE",
            "speculative_num_draft_tokens": 8,
            **server,
        }
    requests_file = place / "requests.json"
    answered = place / "answers.json"
    requests_file.write_text(json.dumps({"server": {**SERVER, **server}, "rounds": rounds}))
    with (place / "log").open("w") as log:
        module = "tests.engines.sglang.engine"
        command = [sys.executable, "-m", module, str(requests_file), str(answered)]
        variables = environment(settings, server.get("tp_size", 1))
        subprocess.run(command, cwd=ROOT, env=variables, stdout=log, stderr=log, check=False)
    assert answered.exists(), (place / "log").read_text()[-3000:]
    read: list[list[dict[str, Any]]] = json.loads(answered.read_text())
    return read


def main(requests_file: str, answered: str) -> None:
    """Run an engine."""
    import sglang

    work = json.loads(Path(requests_file).read_text())
    engine = sglang.Engine(**work["server"])
    outputs = []
    for requests in work["rounds"]:
        outputs.append(
            engine.generate(
                **{name: [request[name] for request in requests] for name in requests[0]}
            )
        )
    Path(answered).write_text(json.dumps(outputs))
    engine.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
