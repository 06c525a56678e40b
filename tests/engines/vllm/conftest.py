"""Shared by the tests in vLLM: a tiny model, what plain vLLM answers, and a datastore of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.live.export import export
from rest_store.live.live_datastore import LiveDatastore
from tests.engines.vllm.engine import Request, answers, engine
from tests.shared.builds import build_quick, documents, write_jsonl

GREEDY = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="session", autouse=True)
def vllm_settings() -> Iterator[None]:
    """The engine runs in this process, with a small cache, and asks for nothing over a network."""
    from tests.engines.vllm.on_cpu import sitecustomize  # before vLLM

    with pytest.MonkeyPatch.context() as patch:
        # Of processes that vLLM starts.
        patch.setenv("PYTHONPATH", str(Path(sitecustomize.__file__).parent), prepend=os.pathsep)
        patch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
        patch.setenv("VLLM_CPU_CI_ENV", "1")  # nothing is compiled at the start
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_NO_USAGE_STATS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with its tokenizer."""
    from tests.shared.tiny import text_tokenizer, write_model

    # Heads of 32 are the smallest that vLLM has on a CPU.
    return write_model(
        tmp_path_factory.mktemp("model"), hidden_size=128, vocab_size=len(text_tokenizer())
    )


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[Any]:
    """Plain vLLM.

    Not longer than a module, since the end of any engine ends what all in a process share.
    """
    with engine(model) as llm:
        yield llm


@pytest.fixture(scope="session")
def vocabulary() -> int:
    """The number of token ids."""
    from tests.shared.tiny import text_tokenizer

    return len(text_tokenizer())


@pytest.fixture(scope="session")
def requests(vocabulary: int) -> list[Request]:
    """More requests than rows, short and long, most of which arrive later.

    Two end at the longest length.
    """
    chance = np.random.default_rng(0)
    lengths: list[tuple[int, int | None]] = [
        (7, 90),
        (60, 80),
        (14, 12),
        (9, 70),
        (100, None),
        (5, 100),
        (30, 100),
        (12, 3),
        (20, 90),
        (60, 40),
        (8, 60),
    ]
    made = [
        Request(
            chance.integers(3, vocabulary, prompt).tolist(),
            {**GREEDY, "max_tokens": most},
            4 * place,
        )
        for place, (prompt, most) in enumerate(lengths)
    ]
    return [*made, Request(made[0].prompt[:-1], {**GREEDY, "max_tokens": None}, 4 * len(made))]


@pytest.fixture(scope="session")
def texts(model: Path, requests: list[Request]) -> list[list[int]]:
    """What plain vLLM answers."""
    with engine(model) as llm:
        return answers(llm, requests)


@pytest.fixture(scope="session")
def empty(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A datastore with the model's tokenizer of texts that the model does not write."""
    folder = tmp_path_factory.mktemp("words")
    build_quick(write_jsonl(folder / "texts.jsonl", documents(20)), model, folder / "ds")
    return folder / "ds"


@pytest.fixture(scope="session")
def datastore(empty: Path, requests: list[Request], texts: list[list[int]]) -> Path:
    """A datastore of what will be written, right for some tokens and wrong then."""
    chance = np.random.default_rng(1)
    like = Datastore.open(empty)
    written = []
    for request, text in zip(requests, texts, strict=True):
        document = np.array([*request.prompt, *text])
        wrong = len(request.prompt) + np.flatnonzero(chance.random(len(text)) < 0.1)
        document[wrong] = chance.integers(3, like.vocabulary_size, wrong.size)
        written.append(document)
    with LiveDatastore.open(empty.with_name("live"), tokenizer=like.tokenizer) as live:
        live.add(written)
        return export(live, empty.with_name("written")).path
