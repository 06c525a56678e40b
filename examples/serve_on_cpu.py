"""Start vLLM or SGLang with drafts on a CPU, for a look at both: slow, and no measure of speed.

In a clone of this repository, with the Python of `make .venv-vllm` or `make .venv-sglang`:

    .venv-vllm/bin/python examples/serve_on_cpu.py vllm
    .venv-sglang/bin/python examples/serve_on_cpu.py sglang

Neither engine has speculation for every CPU. The folders `on_cpu` of the tests have the rest: for
vLLM's kernels Triton's interpreter, and for SGLang's, kernels in torch with attention over trees.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
NODES = 8
ENVIRONMENTS = {
    "vllm": {
        "VLLM_USE_V2_MODEL_RUNNER": "1",  # the older one, the default on CPUs, takes no plug-ins
        "VLLM_CPU_CI_ENV": "1",  # nothing is compiled at the start
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    },
    "sglang": {"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""},
}


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("engine", type=click.Choice(list(ENVIRONMENTS)))
@click.option(
    "--model",
    default="HuggingFaceTB/SmolLM2-135M-Instruct",
    show_default=True,
    help="Directory or name of a model.",
)
@click.option(
    "--settings",
    default='{"datastores": [], "remember": "history.ds"}',
    show_default=True,
    help="Settings of rest-store, JSON.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(engine: str, model: str, settings: str, arguments: tuple[str, ...]) -> None:
    """Serve a model with ENGINE; further ARGUMENTS are the engine's own."""
    own = dict(ENVIRONMENTS[engine])
    stubs = ROOT / "tests" / "engines" / engine / "on_cpu"
    # The launcher of vLLM's build for CPUs is a module of the clone.
    paths = [str(stubs), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    own["PYTHONPATH"] = os.pathsep.join(paths)
    own["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    if engine == "sglang":
        own["REST_STORE_SGLANG"] = settings
    command = _vllm(model, settings) if engine == "vllm" else _sglang(model)
    os.execve(sys.executable, [sys.executable, *command, *arguments], {**os.environ, **own})


def _vllm(model: str, settings: str) -> Sequence[str]:
    speculative = {"method": "ngram", "num_speculative_tokens": NODES}
    additional = {"rest_store": json.loads(settings)}
    return [
        *("-m", "tests.engines.vllm.command", "serve", model, "--served-model-name", "m"),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", "512"),
        *("--speculative-config", json.dumps(speculative)),
        *("--additional-config", json.dumps(additional)),
    ]


def _sglang(model: str) -> Sequence[str]:
    return [
        *(str(Path(sys.executable).with_name("sglang")), "serve", "--model-path", model),
        *("--speculative-algorithm", "REST_STORE", "--device", "cpu"),
        *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
        *("--dtype", "float32", "--disable-cuda-graph", "--mem-fraction-static", "0.6"),
        *("--max-total-tokens", "8192", "--max-running-requests", "4", "--skip-server-warmup"),
    ]


if __name__ == "__main__":
    main()
