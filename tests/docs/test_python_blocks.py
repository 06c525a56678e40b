"""Each block of Python in docs/ runs, with the objects around it that its page speaks of.

README's and the protocol's blocks have tests of their own in tests/test_readme.py, which look at
results, too.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import rest_store
from rest_store.bench.head_plans import PlannedHead, with_chain
from rest_store.engines.engine_settings import EngineSettings
from rest_store.engines.request import parse_extra_arguments
from rest_store.generation.seam import CACHE
from tests.shared.models import CHATML, byte_level_bpe
from tests.shared.object_store import upload
from tests.shared.pages import PAGES, blocks
from tests.shared.services import running

pytestmark = pytest.mark.slow

ELSEWHERE = {"README.md", "docs/reference/protocol.md"}
SOURCE = (
    "def add(first, second):\n    return first + second\n\n\ndef read_lines(path):\n    return"
    " path.read_text()\n" * 20
)
PYTHON = {
    name: [block.text for block in blocks(page) if block.language == "python"]
    for name, page in PAGES.items()
    if name not in ELSEWHERE
}
# The addresses of a page, and the arguments of the services that stand there in the test.
PARTITION_1 = ["code.ds", "--partition", "1/2"]
PARTITION_2 = ["code.ds", "--partition", "2/2"]
CODE_AND_CHAT = ["code=code.ds", "--live", "chat", "--live-tokenizer", "smollm2"]
SERVICES = {
    "docs/how-to/service.md": {"127.0.0.1:50051": CODE_AND_CHAT, "10.0.0.5:50051": CODE_AND_CHAT},
    "docs/how-to/partitions.md": {
        "127.0.0.1:50051": PARTITION_1,
        "127.0.0.1:50052": PARTITION_2,
        "a:1": PARTITION_1,
        "b:1": PARTITION_1,
        "a:2": PARTITION_2,
        "b:2": PARTITION_2,
    },
    "docs/how-to/building.md": {"host:50051": ["code=code.ds"]},
}


class RecordedEngine:
    """Stands for vLLM's `LLM`, and checks its settings as the plug-in does."""

    def __init__(
        self, model: str, speculative_config: dict[str, Any], additional_config: dict[str, Any]
    ) -> None:
        assert model
        assert speculative_config["method"] in ("ngram", "ngram_gpu")
        settings = EngineSettings.read(additional_config["rest_store"], "vllm")
        assert settings.datastores


class RecordedClient:
    """Stands for OpenAI's client: a request with a prediction is one that the plug-ins read."""

    def __init__(self) -> None:
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def _create(self, model: str, messages: list[Any], extra_body: dict[str, Any]) -> None:
        arguments = parse_extra_arguments(extra_body["vllm_xargs"], pytest.fail)
        assert arguments["references"] == [SOURCE[:60]]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that pages use without defining them, in a folder with the files that they name."""
    folder = tmp_path / "first-hour"
    for corpus in (folder / "src", tmp_path / "rest_store"):
        corpus.mkdir(parents=True)
        for number in range(4):
            (corpus / f"lines{number}.py").write_text(SOURCE + f"LINES = {number}\n")
    monkeypatch.chdir(folder)
    with gzip.open("chats.jsonl.gz", "wt", encoding="utf-8") as chats:
        chats.write(json.dumps({"messages": [{"role": "user", "content": "Hello"}]}) + "\n")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(), eos_token="<|endoftext|>"
    )
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).eval()
    model.generation_config.max_new_tokens = 16
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained("smollm2")
    model.save_pretrained("smollm2")
    store = rest_store.build("src", "smollm2", "code.ds", shard_tokens=400)
    for name in ("history", "memory"):
        rest_store.LiveDatastore.open(name, tokenizer=tokenizer).close()
    ids = tokenizer(SOURCE)["input_ids"][:30]
    sources = [store, rest_store.PromptLookup()]
    return {
        "rest_store": rest_store,
        "torch": torch,
        "hashlib": hashlib,
        "model": model,
        "tokenizer": tokenizer,
        "store": store,
        "generator": rest_store.Generator(model, tokenizer, sources),
        "inputs": dict(tokenizer("def add(", return_tensors="pt")),
        "cache": DynamicCache(config=model.config),
        "ids": ids,
        "file_ids": ids,
        "context": ids,
        "tokens": ids[:3],
        "prompt": ids,
        "prompts": [ids],
        "epochs": 1,
        "code": SOURCE[:60],
        "old_file": SOURCE[:60],
        "session": rest_store.DraftSession(sources, prompt=ids),
        "PlannedHead": PlannedHead,
        "with_chain": with_chain,
        "seconds": [0.0, 1.0, 1.5],
        "drafting": 0.1,
        "costs": np.linspace(10, 12, 49),
        "run_the_head": lambda number: ids[:number],
        "tree_accepted": 1,
        "head_accepted": 1,
        "LLM": RecordedEngine,
        "client": RecordedClient(),
    }


@pytest.mark.parametrize("name", [name for name, texts in PYTHON.items() if texts])
def test_the_blocks_of_a_page_run(
    name: str, names: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In their order: a block may use a name of one before it."""
    texts = PYTHON[name]
    if any("s3://" in text for text in texts):
        request.getfixturevalue("s3")
        upload({f"code.ds/{path.name}": path.read_bytes() for path in Path("code.ds").iterdir()})
    replaced = {
        "s3://bucket/": "s3://corpus/",
        "/data/copies": str(tmp_path / "copies"),
        "past_key_values=": f"{CACHE}=",
    }
    with contextlib.ExitStack() as stack:
        for address, arguments in SERVICES.get(name, {}).items():
            assert any(address in text for text in texts)
            store, *options = [
                part.replace("chat", f"chat=chat-{len(replaced)}") for part in arguments
            ]
            replaced[address] = stack.enter_context(running(store, options=options)).target
        for text in texts:
            for written, meant in replaced.items():
                text = text.replace(written, meant)
            exec(text, names)
