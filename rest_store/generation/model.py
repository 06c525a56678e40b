"""Loading a model and its tokenizer: from the Hugging Face hub, a directory or a GGUF file."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import logging

from rest_store.errors import ModelLoadError, describe
from rest_store.loading.hub import hub_failure
from rest_store.loading.loaded_tokenizer import load_tokenizer

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # anything else can only be a path
# Of a model, or of an adapter that names its model.
_CONFIGS = ("config.json", "adapter_config.json")
_EXPECTED = (
    "a causal language model of transformers with its tokenizer: a name, a directory or a .gguf"
)


def load_model(
    name: str,
    *,
    dtype: str = "auto",
    device: str | None = None,
    announce: Callable[[str], AbstractContextManager[object]] = nullcontext,
) -> tuple[Any, Any]:
    """Load a model and its tokenizer.

    Args:
        name: a name on the Hugging Face hub, a directory, or a GGUF file (whose weights are
            dequantized).
        dtype: "auto", or a type of torch such as "float32".
        device: where to put the model; None: where it is loaded.
        announce: called with "tokenizer NAME" and "model NAME"; returns a context for the loading.

    Returns:
        The model, ready to generate, and its tokenizer.

    Raises:
        ModelLoadError: the model does not exist or cannot be loaded.
    """
    path = Path(name)
    logging.disable_progress_bar()
    if not path.exists() and (path.suffix == ".gguf" or not _HUB_NAME.fullmatch(name)):
        raise ModelLoadError(
            describe(name, "model", "absent (no such file or directory)", _EXPECTED)
        )
    if path.is_dir() and not any((path / config).exists() for config in _CONFIGS):
        raise ModelLoadError(
            describe(name, "model", f"absent (no config.json in {name})", _EXPECTED)
        )
    failure = None if path.exists() else hub_failure(name)
    is_gguf = path.suffix == ".gguf"
    location = str(path.parent) if is_gguf else name
    options: dict[str, Any] = (
        {"gguf_file": path.name} if is_gguf else {"local_files_only": failure is not None}
    )
    weights: dict[str, Any] = {}
    # Which keeps them packed where it has a kernel for the device.
    if is_gguf and hasattr(transformers, "GgufConfig"):
        weights["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with _errors("tokenizer", name, failure), announce(f"tokenizer {name}"):
        tokenizer = (
            _gguf_tokenizer(path) if is_gguf else AutoTokenizer.from_pretrained(location, **options)
        )
    with _errors("model", name, failure), announce(f"model {name}"):
        loaded_dtype = "float32" if is_gguf and dtype == "auto" else dtype
        model = AutoModelForCausalLM.from_pretrained(
            location, dtype=loaded_dtype, **options, **weights
        ).eval()
        return (model.to(device) if device is not None else model), tokenizer


def _gguf_tokenizer(path: Path) -> Any:
    """Return the tokenizer of a GGUF file, the same that datastores are built with."""
    loaded = load_tokenizer(path)
    backend = Tokenizer.from_str(loaded.json)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        name_or_path=str(path.parent),
        chat_template=loaded.chat_template,
        **loaded.special_tokens,
    )


@contextmanager
def _errors(part: str, name: str, failure: str | None) -> Iterator[None]:
    """Turn any error of transformers into ours."""
    try:
        yield
    except Exception as error:
        reason = (
            f"{type(error).__name__}: {error}"
            if failure is None
            else f"it cannot be reached ({failure})"
        )
        # Some list all models that there are.
        reason = textwrap.shorten(reason, 300, placeholder=" ...")
        if not Path(name).exists():
            part = "model"
            reason = f"no such directory here, and from the Hugging Face hub: {reason}"
        raise ModelLoadError(describe(name, part, f"not loaded ({reason})", _EXPECTED)) from error
