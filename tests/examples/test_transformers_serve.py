"""transformers and its server load examples/transformers-serve/ from a model's directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rest_store.generation import draft_sessions
from tests.shared.builds import build_quick, documents, write_jsonl
from tests.shared.clients import free_port
from tests.shared.tiny import write_model

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "transformers-serve"
TEXTS = documents(60)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's directory with the example in it, and a datastore `ds` beside it."""
    place = tmp_path_factory.mktemp("serve")
    write_model(place / "model", max_position_embeddings=512)
    shutil.copytree(EXAMPLE / "custom_generate", place / "model" / "custom_generate")
    build_quick(
        write_jsonl(place / "corpus.jsonl", TEXTS), place / "model" / "tokenizer.json", place / "ds"
    )
    return place / "model"


def test_a_trusted_model_generates_with_drafts(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REST_STORE_DATASTORES", str(directory.parent / "ds"))
    plain = AutoModelForCausalLM.from_pretrained(directory)
    drafting = AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True)
    assert not isinstance(drafting.generate, type(plain.generate)), (
        "transformers has taken the example"
    )
    drafted = []
    original = draft_sessions.draft_all

    def counting(*arguments: Any, **options: Any) -> Any:
        trees = original(*arguments, **options)
        drafted.extend(map(len, trees))
        return trees

    monkeypatch.setattr(draft_sessions, "draft_all", counting)
    ids = torch.tensor([[5, 6, 7, 8, 9, 7, 8]])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 40, "do_sample": False}
    assert (
        drafting.generate(ids, adaptive=False, **options).tolist()
        == plain.generate(ids, **options).tolist()
    )
    assert sum(drafted) > 0


@pytest.mark.slow
def test_it_serves_openai_clients(directory: Path) -> None:
    """The texts of the real server are those of the same server without the example.

    Streams and stop strings are, too.
    """
    for package in ("fastapi", "uvicorn", "openai"):
        pytest.importorskip(package)
    # Both start at once.
    with serving(directory) as plain, serving(directory, "--trust-remote-code") as drafting:
        expected, texts = (
            [
                answer(client, directory, prompt, **more)
                for prompt in ("return first", TEXTS[3])
                for more in ({}, {"stream": True}, {"stop": ["e"]})
            ]
            for client in (plain, drafting)
        )
    assert texts == expected
    assert all(expected[:2])


@contextlib.contextmanager
def serving(directory: Path, *options: str) -> Iterator[Any]:
    """A client of `transformers serve` on a free port, which is ended when the block is left."""
    import openai

    port = free_port()
    command = [
        sys.executable,
        "-m",
        "transformers.cli.transformers",
        "serve",
        str(directory),
        *options,
    ]
    environment = {**os.environ, "REST_STORE_DATASTORES": str(directory.parent / "ds")}
    arguments = [*command, "--dtype", "float32", "--port", str(port), "--device", "cpu"]
    with subprocess.Popen(
        arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:  # the first request is sent again until the server has begun to answer
            yield openai.OpenAI(
                base_url=f"http://localhost:{port}/v1", api_key="none", max_retries=30
            )
        finally:
            server.kill()


def answer(client: Any, model: Path, prompt: str, **options: Any) -> str:
    """Return the server's answer."""
    settings = {"model": str(model), "max_tokens": 30, "temperature": 0, **options}
    written = client.chat.completions.create(
        messages=[{"role": "user", "content": prompt}], **settings
    )
    if not options.get("stream"):
        return written.choices[0].message.content or ""
    return "".join(piece.choices[0].delta.content or "" for piece in written if piece.choices)
