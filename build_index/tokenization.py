"""The target model's tokenizer, as the builder needs it: with its chat template."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from build_index.chat_template import ChatTemplate, read_template
from build_index.documents import well_formed
from build_index.target_tokenizer import TargetTokenizer
from rest_store.errors import TokenizerLoadError
from rest_store.extras import named_extras
from rest_store.loading import loaded_tokenizer
from rest_store.loading.local_path import local_path

__all__ = ["TargetTokenizer", "load_in_process", "load_tokenizer"]

_LOAD = """
import sys
sys.path[:] = filter(None, sys.path)  # without the working directory, whose files are not to be run
import json
sys.modules["torch"] = None  # which transformers would import, and tokenizers do not need
from dataclasses import asdict
from pathlib import Path
from rest_store.errors import RestStoreError
from rest_store.loading.loaded_tokenizer import load_tokenizer
file = Path(sys.argv[1])
try:
    fields = asdict(load_tokenizer(json.loads(file.read_text())))
except RestStoreError as error:
    fields = {"error": str(error)}
file.write_text(json.dumps(fields))
"""


@named_extras("tokenizer")
def load_tokenizer(tokenizer: object, *, chat_template: str | None = None) -> TargetTokenizer:
    """Load a tokenizer.

    Args:
        tokenizer: as in `rest_store.loading.loaded_tokenizer.load_tokenizer`.
        chat_template: a file with a Jinja template, or its text, instead of the tokenizer's own.

    Raises:
        TokenizerLoadError: as that function does, or the template cannot be read.
    """
    template = None if chat_template is None else read_template(chat_template)
    loaded = loaded_tokenizer.load_tokenizer(tokenizer)
    if template is None:
        template = loaded.chat_template
    name = well_formed(loaded.name)
    compiled = None if template is None else ChatTemplate(template, loaded.special_tokens, name)
    return TargetTokenizer(loaded.json, name, compiled)


def load_in_process(tokenizer: object) -> object:
    """Return an argument for `load_tokenizer`, loaded by a process of its own if that saves memory.

    `transformers` would import torch, if that is installed. That takes 190 MiB of this process for
    good, and most of the time.

    Raises:
        TokenizerLoadError: as `load_tokenizer` does.
    """
    if "torch" in sys.modules or not isinstance(tokenizer, str | os.PathLike):
        return tokenizer
    if os.path.isfile(local_path(tokenizer)):  # noqa: PTH113
        return tokenizer
    name = os.fspath(tokenizer)
    quiet = {"TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}  # no warning that torch is absent
    environment = {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "tokenizer"
        file.write_text(json.dumps(name))
        command = [sys.executable, "-c", _LOAD, str(file)]
        status = subprocess.run(
            command, env=environment, check=False, start_new_session=True
        ).returncode
        fields = json.loads(file.read_text())
    if status:
        raise TokenizerLoadError(
            f"{name}: the process that loads the tokenizer has ended with status {status}"
        )
    if "error" in fields:
        raise TokenizerLoadError(fields["error"])
    return loaded_tokenizer.LoadedTokenizer(**fields)
