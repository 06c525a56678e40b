"""Wrong settings stop the engine when it starts, with one line that says what is wrong."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.vllm.engine import COMMAND, DRAFTER, IN_VLLM, engine, speculative
from tests.shared.builds import build_quick, documents, write_jsonl, write_tokenizer

pytestmark = IN_VLLM


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A datastore with another tokenizer."""
    folder = tmp_path_factory.mktemp("foreign")
    texts = write_jsonl(folder / "texts.jsonl", documents(20))
    build_quick(texts, write_tokenizer(folder / "tokenizer.json"), folder / "ds")
    return folder / "ds"


WRONG: dict[str, tuple[Callable[[Path], dict[str, Any]], list[str]]] = {
    "no such path": (lambda foreign: {"datastores": [f"{foreign}-absent"]}, ["-absent"]),
    "another tokenizer": (lambda foreign: {"datastores": [str(foreign)]}, ["tokenizer"]),
    "an unknown key": (lambda foreign: {"datastore": [str(foreign)]}, ["datastore", "datastores"]),
    "no list": (lambda foreign: {"datastores": 3}, ["datastores", "3"]),
    "a place that is not a live datastore": (lambda foreign: {"remember": str(foreign)}, ["ds"]),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_settings_stop_the_engine(kind: str, model: Path, foreign: Path) -> None:
    settings, fragments = WRONG[kind]
    with pytest.raises(RuntimeError, match="expected") as caught, engine(model, DRAFTER, settings(foreign)):
        pass
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


def test_the_server_says_what_is_wrong(model: Path, tmp_path: Path) -> None:
    command = [*COMMAND, "serve", model, "--dtype", "float32", "--enforce-eager"]
    command += ["--speculative-config", json.dumps(speculative(DRAFTER))]
    command += ["--additional-config", json.dumps({"rest_store": {"datastores": [str(tmp_path / "absent")]}})]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert str(tmp_path / "absent") in ended.stdout + ended.stderr
