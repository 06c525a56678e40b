"""The generate.py of examples/transformers-serve/, loaded from a model's directory by transformers and its server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import rest_store
from tests.shared.builds import build_quick, documents, write_jsonl
from tests.shared.clients import free_port
from tests.shared.services import PATIENCE
from tests.shared.tiny import write_model

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "transformers-serve"
TEXTS = documents(60)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's directory with the example in it, and a datastore `ds` beside it."""
    place = tmp_path_factory.mktemp("serve")
    write_model(place / "model", max_position_embeddings=512)
    shutil.copytree(EXAMPLE / "custom_generate", place / "model" / "custom_generate")
    build_quick(write_jsonl(place / "corpus.jsonl", TEXTS), place / "model" / "tokenizer.json", place / "ds")
    return place / "model"


def test_a_trusted_model_generates_with_drafts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REST_STORE_DATASTORES", str(directory.parent / "ds"))
    plain = AutoModelForCausalLM.from_pretrained(directory)
    drafting = AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True)
    assert not isinstance(drafting.generate, type(plain.generate)), "transformers has taken the example"
    drafted = []
    original = rest_store.DraftSession.draft

    def counting(self: Any, *arguments: Any, **options: Any) -> Any:
        tree = original(self, *arguments, **options)
        drafted.append(len(tree))
        return tree

    monkeypatch.setattr(rest_store.DraftSession, "draft", counting)
    ids = torch.tensor([[5, 6, 7, 8, 9, 7, 8]])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 40, "do_sample": False}
    assert drafting.generate(ids, adaptive=False, **options).tolist() == plain.generate(ids, **options).tolist()
    assert sum(drafted) > 0


@pytest.mark.slow
def test_it_serves_openai_clients(directory: Path) -> None:
    """The texts of the real server are those of the same server without the example; streams and stop strings too."""
    for package in ("fastapi", "uvicorn", "openai"):
        pytest.importorskip(package)
    with serving(directory) as plain, serving(directory, "--trust-remote-code") as drafting:  # both start at once
        expected, texts = (
            [
                asked(port, server, directory, prompt, **more)
                for prompt in ("return first", TEXTS[3])
                for more in ({}, {"stream": True}, {"stop": ["e"]})
            ]
            for port, server in (plain, drafting)
        )
    assert texts == expected
    assert all(expected[:2])


@contextlib.contextmanager
def serving(directory: Path, *options: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Start `transformers serve` on a free port; ended when the block is left."""
    port = free_port()
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(directory), *options]
    environment = {**os.environ, "REST_STORE_DATASTORES": str(directory.parent / "ds")}
    arguments = [*command, "--dtype", "float32", "--port", str(port), "--device", "cpu"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(arguments, env=environment, text=True, **pipes) as server:
        try:
            yield port, server
        finally:
            server.kill()


def asked(port: int, server: subprocess.Popen[str], model: Path, prompt: str, **options: Any) -> str:
    """Return the server's answer; wait until it has begun to answer."""
    messages = [{"role": "user", "content": prompt}]
    body = {"model": str(model), "messages": messages, "max_tokens": 30, "temperature": 0, **options}
    request = urllib.request.Request(
        f"http://localhost:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                content = answer.read().decode()
            break
        except ConnectionError:
            pass
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionError):
                raise
        assert server.poll() is None, server.communicate()[0]
        assert time.monotonic() < give_up, "the server does not answer"
        time.sleep(0.2)
    if not options.get("stream"):
        return json.loads(content)["choices"][0]["message"]["content"] or ""
    events = [json.loads(line[6:]) for line in content.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
