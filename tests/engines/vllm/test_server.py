"""`vllm serve` with the drafter, as users run it: its own processes, and OpenAI's client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rest_store.live.live_datastore import LiveDatastore
from tests.engines.vllm.engine import IN_VLLM, LENGTH, Request
from tests.shared.clients import free_port
from tests.shared.live import until
from tests.shared.pages import PAGES, ROOT, blocks, section
from tests.shared.services import PATIENCE

pytestmark = IN_VLLM


class Server:
    """The block of the page for a CPU, on a free port.

    Args:
        model: directory.
        datastore: what is drafted from.
        live: what is remembered in.
        log: file for what it prints; a folder for its figures is made beside it.
    """

    def __init__(self, model: Path, datastore: Path, live: Path, log: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = log
        [block] = blocks(section(PAGES["docs/how-to/vllm.md"], "On a CPU"))
        script = (
            block.text.replace("MODEL", str(model))
            .replace("memory.ds", str(live))
            .replace("python -m", "exec python -m")
        )
        script = script.replace('"datastores": []', f'"datastores": [{json.dumps(str(datastore))}]')
        # Without the time to shut down, vLLM kills its processes with what is not remembered yet.
        more = {
            "--host": "127.0.0.1",
            "--port": self.url.rpartition(":")[2],
            "--shutdown-timeout": int(PATIENCE),
        }
        more |= {"--max-model-len": LENGTH, "--max-num-seqs": 4}
        script = script.rstrip() + "".join(f" {name} {value}" for name, value in more.items())
        (figures := log.with_name("figures")).mkdir()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {
            "PATH": path,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "PROMETHEUS_MULTIPROC_DIR": str(figures),
        }
        with log.open("w") as out:
            self.process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own},
            )
        while self.process.poll() is None and self.get("/health") is None:
            time.sleep(0.1)
        assert self.process.poll() is None, log.read_text()

    def get(self, path: str) -> str | None:
        """A page; None while there is none."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as page:
                return str(page.read().decode())
        except (urllib.error.URLError, ConnectionError):
            return None

    def metrics(self) -> dict[str, float]:
        """The sums of its metrics."""
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(self.get("/metrics") or ""):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    def stop(self) -> None:
        """End it as an operator would."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The place of a live datastore."""
    return tmp_path_factory.mktemp("server") / "live"


@pytest.fixture(scope="module")
def server(model: Path, datastore: Path, live: Path) -> Iterator[Server]:
    running = Server(model, datastore, live, live.with_name("log"))
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    import openai

    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def tokens_of(client: Any, request: Request, most: int) -> list[int]:
    """The token ids of an answer, as they are streamed."""
    asked = {"temperature": 0.0, "max_tokens": most, "stream": True}
    extra = {"return_token_ids": True, "ignore_eos": True}
    stream = client.completions.create(model="m", prompt=request.prompt, extra_body=extra, **asked)
    return [token for piece in stream for token in piece.choices[0].token_ids or []]


def test_streams_at_once(client: Any, requests: list[Request], texts: list[list[int]]) -> None:
    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(tokens_of, [client] * len(requests), requests, map(len, texts)))
    assert written == texts


def test_metrics_of_the_drafter_are_the_servers(
    server: Server, client: Any, requests: list[Request]
) -> None:
    tokens_of(client, requests[0], 60)
    until(lambda: server.metrics().get("rest_store_engine_accepted_tokens_total", 0) > 0)
    metrics = server.metrics()
    assert metrics["vllm:spec_decode_num_accepted_tokens_total"] > 0
    assert (
        metrics["rest_store_engine_draft_tokens_total"]
        >= metrics["rest_store_engine_accepted_tokens_total"]
    )
    assert metrics.get("rest_store_engine_errors_total", 0) == 0


def test_answers_outlive_the_server(
    client: Any, server: Server, live: Path, requests: list[Request], texts: list[list[int]]
) -> None:
    """The last test of the server: it ends here."""
    assert tokens_of(client, requests[0], len(texts[0])) == texts[0]
    server.stop()
    with LiveDatastore.open(live, read_only=True) as kept:
        assert kept.count(texts[0][-64:]) > 0
