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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rest_store.live.live_datastore import LiveDatastore
from tests.engines.lines import figures_of
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
        settings: of rest-store.
        log: file for what it prints; a folder for its figures is made beside it.
    """

    def __init__(self, model: Path, settings: dict[str, Any], log: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = log
        [block] = blocks(section(PAGES["docs/how-to/vllm.md"], "On a CPU"))
        prepare, _, script = block.text.strip().rpartition("\n")
        assert prepare == "make setup-vllm"
        command = [*script.split(), "--model", str(model), "--settings", json.dumps(settings)]
        command[0] = {".venv-vllm/bin/python": sys.executable}[command[0]]
        # Without the time to shut down, vLLM kills its processes with what is not remembered yet.
        more = {
            "--host": "127.0.0.1",
            "--port": self.url.rpartition(":")[2],
            "--shutdown-timeout": int(PATIENCE),
        }
        more |= {"--max-model-len": LENGTH, "--max-num-seqs": 4}
        command += [str(word) for pair in more.items() for word in pair]
        figures = log.with_name(f"{log.name}-figures")
        figures.mkdir()
        own = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "PROMETHEUS_MULTIPROC_DIR": str(figures)}
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own},
                start_new_session=True,
            )
        try:
            while self.process.poll() is None and self.get("/health") is None:
                time.sleep(0.1)
            assert self.process.poll() is None, log.read_text()
        except BaseException:
            self.kill()
            raise

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

    def kill(self) -> None:
        """End it with the processes that it has started, which outlive it otherwise."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The place of a live datastore."""
    return tmp_path_factory.mktemp("server") / "live"


@pytest.fixture(scope="module")
def settings(datastore: Path, live: Path) -> dict[str, Any]:
    """Of a server with two tenants."""
    return {
        "datastores": {"written": str(datastore)},
        "remember": str(live),
        "namespaces": ["a", "b"],
        "log_requests": True,
    }


@pytest.fixture(scope="module")
def server(model: Path, settings: dict[str, Any], live: Path) -> Iterator[Server]:
    running = Server(model, settings, live.with_name("log"))
    try:
        yield running
    finally:
        running.kill()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with client_of(server) as made:
        yield made


def client_of(server: Server) -> Any:
    import openai

    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def is_remembered(store: Any, text: list[int]) -> bool:
    return bool(store.count(text) == 1)


def ask(client: Any, request: Request, most: int, **chosen: Any) -> tuple[list[int], str]:
    """The token ids of an answer with choices of its request, and its id."""
    extra = {"return_token_ids": True, "ignore_eos": True, "vllm_xargs": chosen}
    answer = client.completions.create(
        model="m", prompt=request.prompt, temperature=0.0, max_tokens=most, extra_body=extra
    )
    return list(answer.choices[0].token_ids), answer.id


def tokens_of(client: Any, request: Request, most: int) -> list[int]:
    """The token ids of an answer, as they are streamed."""
    options = {"temperature": 0.0, "max_tokens": most, "stream": True}
    extra = {"return_token_ids": True, "ignore_eos": True}
    stream = client.completions.create(
        model="m", prompt=request.prompt, extra_body=extra, **options
    )
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


def test_a_tenants_answers_are_drafted_for_no_other(
    server: Server, client: Any, live: Path, requests: list[Request], texts: list[list[int]]
) -> None:
    """Requests draft from no datastore, only from memory, prompt and logits."""
    steps = []
    for tenant in ("a", "b", "a", "none"):
        tokens, id = ask(client, requests[1], 80, namespace=tenant, datastores=[])
        assert tokens == texts[1]
        figures = figures_of(server.log, id)
        assert figures["tokens"] == 80
        steps.append(figures["steps"])
        if tenant != "none":
            with LiveDatastore.open(live, read_only=True) as remembered_outputs:
                own = remembered_outputs.namespace(tenant)
                until(partial(is_remembered, own, texts[1]))
    first, other, again, unknown = steps
    assert again < min(first, other, unknown) / 2
    assert "namespace is 'none', expected one of '', 'a', 'b'" in server.log.read_text()


def test_a_request_switches_drafts_off(
    server: Server, client: Any, requests: list[Request], texts: list[list[int]]
) -> None:
    """vLLM's own lookup does not draft either: each step writes a token."""
    before = server.metrics()["vllm:spec_decode_num_draft_tokens_total"]
    tokens, id = ask(client, requests[0], 90, drafts=False)
    assert tokens == texts[0]
    assert figures_of(server.log, id) == {"tokens": 90, "steps": 90, "drafted": 0, "accepted": 0}
    assert server.metrics()["vllm:spec_decode_num_draft_tokens_total"] == before
    tokens, id = ask(client, requests[0], 90)
    assert tokens == texts[0]
    assert figures_of(server.log, id)["steps"] < 45


def test_tokens_of_a_prediction_are_counted(
    server: Server, client: Any, requests: list[Request], texts: list[list[int]]
) -> None:
    """The prediction leaves the text three times.

    Where a step ends just before such a place, nothing of the other text is verified.
    """
    own = texts[3]
    other = texts[5]
    prediction = [*requests[3].prompt, *own[:20], *other[:8], *own[20:43], *other[8:16]]
    prediction += [*own[43:64], *other[16:24]]
    # This namespace has not written the text: where it is remembered, memory is believed instead.
    tokens, id = ask(client, requests[3], 70, prediction=prediction, datastores=[], namespace="b")
    assert tokens == texts[3]
    figures = figures_of(server.log, id)
    assert 15 < figures["right"] <= 64
    assert 0 < figures["wrong"] < figures["drafted"]
    assert figures["right"] <= figures["accepted"]


def test_answers_outlive_the_server(
    client: Any,
    server: Server,
    model: Path,
    settings: dict[str, Any],
    live: Path,
    requests: list[Request],
    texts: list[list[int]],
) -> None:
    """The last test of the server ends it, and another server drafts from its answers."""
    tokens, _ = ask(client, requests[8], 90, namespace="a", datastores=[])
    assert tokens == texts[8]
    server.stop()
    with LiveDatastore.open(live, read_only=True) as remembered_outputs:
        assert remembered_outputs.namespace("a").count(texts[8][-64:]) == 1
        assert remembered_outputs.namespace("b").count(texts[8][-8:]) == 0
    again = Server(model, settings, live.with_name("log-again"))
    try:
        with client_of(again) as other:
            lines = [
                figures_of(
                    again.log, ask(other, requests[8], 90, namespace=tenant, datastores=[])[1]
                )
                for tenant in ("b", "a")
            ]
        assert lines[1]["steps"] < lines[0]["steps"] / 2
    finally:
        again.kill()
