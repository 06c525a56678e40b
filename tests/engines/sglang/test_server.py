"""`sglang serve` on a CPU as the page has it, and what its users may send."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rest_store.live.live_datastore import LiveDatastore
from tests.engines.sglang.engine import IN_SGLANG, ROOT
from tests.shared.live import until
from tests.shared.pages import PAGES, blocks, section

pytestmark = IN_SGLANG
PROMPT = list(range(40, 60))
PATIENCE = 120.0  # seconds


class Server:
    """The block of the page, which is run as it is but for the
    model, the memory's place and the port.
    """

    def __init__(self, model: Path, place: Path) -> None:
        self.memory, self.log = place / "memory.ds", place / "log"
        [block] = blocks(section(PAGES["docs/how-to/sglang.md"], "On a CPU"))
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        script = block.text.replace("MODEL", str(model)).replace("memory.ds", str(self.memory))
        script = script.replace("sglang serve", f"exec sglang serve --port {port}")
        self.url = f"http://127.0.0.1:{port}"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", script],
                cwd=ROOT,
                env={**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while self.process.poll() is None and not self.is_ready():
            time.sleep(0.2)
        assert self.process.poll() is None, self.log.read_text()[-3000:]

    def is_ready(self) -> bool:
        try:
            self.ask("/health")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def ask(self, path: str, body: Any = None) -> Any:
        """Return the answer to a request; one that is no object of JSON is a text."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answered:
            text = answered.read().decode()
        return json.loads(text) if text.startswith(("{", "[")) else text

    def generate(self, **sampling: Any) -> Any:
        asked = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True, **sampling}
        return self.ask("/generate", {"input_ids": PROMPT, "sampling_params": asked})

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(model, tmp_path_factory.mktemp("server"))
    yield running
    running.stop()


def test_what_was_asked_before_is_drafted_from_memory(server: Server) -> None:
    """Beside a request whose extra arguments are no object, which drafts, too."""
    first = server.generate()
    until(lambda: LiveDatastore.open(server.memory, read_only=True).info().document_count == 1)
    for custom_params in (None, "x", 7, ["a"]):
        again = server.generate(custom_params=custom_params)
        assert again["output_ids"] == first["output_ids"]
        assert again["meta_info"]["spec_verify_ct"] < 8 < first["meta_info"]["spec_verify_ct"]
    log = server.log.read_text()
    assert "rest-store: drafts from memory, prompt, logits; trees of 16 nodes" in log
    assert log.count("rest-store: no drafts (references)") == 3


def test_corpora_of_its_own_lookup_are_not_taken(server: Server) -> None:
    for path, body in (
        ("/add_external_corpus", {"corpus_id": "a", "documents": ["a text"]}),
        ("/remove_external_corpus", {"corpus_id": "a"}),
        ("/list_external_corpora", None),
    ):
        try:
            answered = server.ask(path, body)
        except urllib.error.HTTPError as error:
            answered = json.loads(error.read())
        assert answered["success"] is False
        assert answered["message"]
