"""The target model's tokenizer, as the builder needs it: with its chat template."""

from __future__ import annotations

from build_index.chat_template import ChatTemplate, read_template
from build_index.documents import well_formed
from build_index.target_tokenizer import TargetTokenizer
from rest_store.loading import tokenizer as loading

__all__ = ["TargetTokenizer", "load_tokenizer"]


def load_tokenizer(tokenizer: object, *, chat_template: str | None = None) -> TargetTokenizer:
    """Load a tokenizer.

    Args:
        tokenizer: as in `rest_store.loading.tokenizer.load_tokenizer`.
        chat_template: a file with a Jinja template, or its text, instead of the tokenizer's own.

    Raises:
        TokenizerLoadError: as there, or the template cannot be read.
    """
    template = None if chat_template is None else read_template(chat_template)
    loaded = loading.load_tokenizer(tokenizer)
    if template is None:
        template = loaded.chat_template
    name = well_formed(loaded.name)
    compiled = None if template is None else ChatTemplate(template, loaded.special_tokens, name)
    return TargetTokenizer(loaded.json, name, compiled)
