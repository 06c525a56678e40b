"""Models and their tokenizers by name: of the Hugging Face hub, a directory, or a GGUF file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from rest_store.errors import ModelLoadError, describe

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # what is none can only be a path


def load_model(name: str, *, dtype: str = "auto", device: str | None = None) -> tuple[Any, Any]:
    """Load a model and its tokenizer.

    Args:
        name: a name on the Hugging Face hub, a directory, or a GGUF file (whose weights are dequantized).
        dtype: "auto", or a type of torch such as "float32".
        device: where to put the model; None: where it is loaded.

    Returns:
        The model, ready to generate, and its tokenizer.

    Raises:
        ModelLoadError: there is no such model, or it cannot be loaded; the message says why.
    """
    path = Path(name)
    logging.disable_progress_bar()
    expected = "a causal language model of transformers with its tokenizer: a name, a directory or a .gguf"
    if not path.exists() and (path.suffix == ".gguf" or not _HUB_NAME.fullmatch(name)):
        raise ModelLoadError(describe(name, "model", "absent (no such file or directory)", expected))
    place, options = (str(path.parent), {"gguf_file": path.name}) if path.suffix == ".gguf" else (name, {})
    part = "tokenizer"
    try:
        tokenizer = AutoTokenizer.from_pretrained(place, **options)
        part = "model"
        wanted = "float32" if options and dtype == "auto" else dtype
        model = AutoModelForCausalLM.from_pretrained(place, dtype=wanted, **options).eval()
        return (model.to(device) if device is not None else model), tokenizer
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        if not path.exists():
            part, reason = "model", f"no such directory here, and from the Hugging Face hub: {reason}"
        raise ModelLoadError(describe(name, part, f"not loaded ({reason})", expected)) from error
