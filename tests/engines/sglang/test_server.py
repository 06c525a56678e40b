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
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rest_store.live.live_datastore import LiveDatastore
from tests.engines.lines import figures_of
from tests.engines.sglang.engine import IN_SGLANG, ROOT
from tests.shared.live import until
from tests.shared.pages import PAGES, blocks, section

pytestmark = IN_SGLANG
PROMPT = list(range(40, 60))
PATIENCE = 120.0  # seconds


class Server:
    """The block of the page, which is run as it is but for the model, the memory and the port."""

    def __init__(self, model: Path, place: Path, name: str = "log") -> None:
        self.memory = place / "memory.ds"
        self.log = place / name
        [block] = blocks(section(PAGES["docs/how-to/sglang.md"], "On a CPU"))
        prepare, _, script = block.text.strip().rpartition("\n")
        assert prepare == "make setup-sglang"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        settings = {"remember": str(self.memory), "namespaces": ["a", "b"], "log_requests": True}
        command = [*script.split(), "--model", str(model), "--settings", json.dumps(settings)]
        command[0] = {".venv-sglang/bin/python": sys.executable}[command[0]]
        self.url = f"http://127.0.0.1:{port}"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(port)],
                cwd=ROOT,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            while self.process.poll() is None and not self.is_ready():
                time.sleep(0.2)
            assert self.process.poll() is None, self.log.read_text()[-3000:]
        except BaseException:
            self.stop()
            raise

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
        params = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True, **sampling}
        return self.ask("/generate", {"input_ids": PROMPT, "sampling_params": params})

    def has(self, namespace: str, tokens: list[int]) -> bool:
        """Return whether a namespace of the memory has a text."""
        with LiveDatastore.open(self.memory, read_only=True) as live:
            return live.namespace(namespace).count(tokens) > 0

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(model, tmp_path_factory.mktemp("server"))
    try:
        yield running
    finally:
        running.stop()


def test_what_was_asked_before_is_drafted_from_memory(server: Server) -> None:
    """A request beside it has extra arguments that are no object, and drafts, too."""
    first = server.generate()
    until(lambda: LiveDatastore.open(server.memory, read_only=True).info().document_count == 1)
    for custom_params in (None, "x", 7, ["a"]):
        again = server.generate(custom_params=custom_params)
        assert again["output_ids"] == first["output_ids"]
        assert again["meta_info"]["spec_verify_ct"] < 8 < first["meta_info"]["spec_verify_ct"]
    log = server.log.read_text()
    assert "rest-store: drafts from outputs, prompt, logits; trees of 16 nodes" in log
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


def test_a_tenants_answers_are_drafted_for_no_other(server: Server) -> None:
    steps = []
    for tenant in ("a", "b", "a", "none"):
        answer = server.generate(custom_params={"namespace": tenant})
        steps.append(figures_of(server.log, answer["meta_info"]["id"])["steps"])
        if tenant != "none":
            until(partial(server.has, tenant, answer["output_ids"]))
    first, other, again, unknown = steps
    assert again < min(first, other, unknown) / 2
    assert "namespace is 'none', expected one of '', 'a', 'b'" in server.log.read_text()


def test_a_request_switches_drafts_off(server: Server) -> None:
    """The text of the request is remembered."""
    first = server.generate()
    until(partial(server.has, "", first["output_ids"]))
    off = server.generate(custom_params={"drafts": False})
    again = server.generate()
    assert off["output_ids"] == again["output_ids"] == first["output_ids"]
    assert figures_of(server.log, off["meta_info"]["id"])["drafted"] == 0
    assert off["meta_info"]["spec_verify_ct"] == 39, "a token a step after the first one"
    assert again["meta_info"]["spec_verify_ct"] < 20


def test_tokens_of_a_prediction_are_counted(server: Server) -> None:
    """The second half of the prediction is another text."""
    plain = server.generate(custom_params={"drafts": False})
    text = plain["output_ids"]
    prediction = [*PROMPT, *text[:20], *range(60, 80)]
    chosen = {"prediction": prediction, "namespace": "none"}
    answer = server.generate(custom_params=chosen)
    assert answer["output_ids"] == text
    figures = figures_of(server.log, answer["meta_info"]["id"])
    assert 8 <= figures["right"] <= 20
    assert figures["wrong"] > 0
    assert figures["right"] <= figures["accepted"]


def test_answers_outlive_the_server(server: Server, model: Path) -> None:
    """The last test of the server ends it, and another server drafts from its answers."""
    first = server.generate(custom_params={"namespace": "a"})
    until(partial(server.has, "a", first["output_ids"]))
    server.stop()
    again = Server(model, server.memory.parent, "log-again")
    try:
        answers = [again.generate(custom_params={"namespace": tenant}) for tenant in ("new", "a")]
        assert [answer["output_ids"] for answer in answers] == [first["output_ids"]] * 2
        steps = [answer["meta_info"]["spec_verify_ct"] for answer in answers]
        assert steps[1] < steps[0] / 2
    finally:
        again.stop()
