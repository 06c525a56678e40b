"""Shared by tests of agents' memories: a tokenizer, transcripts, trees, and what is held."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rest_store.agents.memory import AgentMemory
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.models import CHATML, byte_level_bpe

QUESTION = "What is in it?"


def write_tokenizer(directory: Path) -> str:
    """Write a tokenizer with bytes as its alphabet, and return its path."""
    path = directory / "tokenizer.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    byte_level_bpe().save(str(path))
    return str(path)


def open_memory(directory: Path, tokenizer: str | None, **options: Any) -> AgentMemory:
    return AgentMemory(directory, tokenizer=tokenizer, chat_template=CHATML, **options)


def transcript(*answers: str, session: str = "s1") -> str:
    """The lines of a session of Claude Code with a question before each answer."""
    records = []
    for number, answer in enumerate(answers):
        question = {"role": "user", "content": f"{QUESTION} {number}"}
        said = {
            "role": "assistant",
            "id": f"m{number}",
            "content": [{"type": "text", "text": answer}],
        }
        records.append({"type": "user", "sessionId": session, "message": question})
        records.append({"type": "assistant", "sessionId": session, "message": said})
    return "".join(json.dumps(record) + "\n" for record in records)


def texts_in(live: LiveDatastore, namespace: str) -> list[str]:
    """The texts of the documents of a namespace, sorted."""
    tokenizer = Tokenizer.from_file(str(live.path / "tokenizer.json"))
    documents = live.namespace(namespace).documents()
    return sorted(
        tokenizer.decode(document.tokens.tolist(), skip_special_tokens=False)
        for document in documents
    )


def tree_texts(top: Path) -> list[str]:
    """The texts of the files of a tree that has no other rules than `.gitignore` with `*.log`."""
    return sorted({path.read_text() for path in _files(top) if path.read_text().strip()})


def _files(top: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(top):
        names[:] = [name for name in names if name != ".git"]
        yield from (
            Path(directory, file)
            for file in files
            if not file.endswith(".log") and not Path(directory, file).is_symlink()
        )


def git(top: Path, *arguments: str) -> str:
    """Run git in a tree, as nobody in particular."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.com",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.com",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
    }
    command = ["git", "-C", str(top), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout
