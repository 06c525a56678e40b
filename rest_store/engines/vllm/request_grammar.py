"""The grammars of vLLM's requests, compiled by vLLM's own backends from their parameters.

vLLM's scheduler, which masks logits, may be in another process than the worker that drafts. So a
grammar is compiled here once more, for all requests that name it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rest_store.drafting.grammar import Grammar
from rest_store.engines.grammars import Grammars
from rest_store.engines.vllm.seam import GRAMMAR_PARTS
from rest_store.errors import NotSupportedError, describe
from rest_store.seam import differences

_MAX_CHARACTERS = 1 << 16  # of a grammar, which is compiled between two steps
_MAX_DIFFERENCES = 3  # that a message names


class RequestGrammars:
    """The grammars of an engine's requests.

    Args:
        vllm_config: a `VllmConfig`.
        tokenizer: the model's.
        vocabulary_size: token ids of the model.
        failed: called with a word and why there is no grammar, once for each that there is not.
    """

    def __init__(
        self,
        vllm_config: Any,
        tokenizer: object,
        vocabulary_size: int,
        failed: Callable[[str, BaseException], object],
    ) -> None:
        self._arguments = {
            "vllm_config": vllm_config,
            "tokenizer": tokenizer,
            "vocab_size": vocabulary_size,
        }
        self._grammars = Grammars(failed)
        self._backends: dict[str, Any] = {}

    def by_parameters(self, params: Any) -> Grammar | None:
        """Return the grammar that a request follows from its first token on.

        None: it follows none, or one that is not known here: of another library, longer than 64 KiB
        of text, or one that begins behind the model's reasoning.

        Args:
            params: its `StructuredOutputsParams`, or None.
        """
        if params is None:
            return None
        try:
            key = (params._backend, *self._key_of(params))
        except Exception as error:  # the same for all requests: counted once
            return self._grammars.shared(repr(error), partial(_fail, error))
        if len(key[-1]) > _MAX_CHARACTERS:
            return None
        return self._grammars.shared(key, partial(self._compiled, *key))

    def _key_of(self, params: Any) -> tuple[Any, str]:
        if phrases := differences(GRAMMAR_PARTS):
            expected = "as in 0.32"
            words = "; ".join(phrases[:_MAX_DIFFERENCES])
            raise NotSupportedError(describe("vLLM", "structured output", words, expected))
        from vllm.v1.structured_output.request import get_structured_output_key

        kind, text = get_structured_output_key(params)
        return kind, str(text)

    def _compiled(self, backend: str, kind: Any, text: str) -> Grammar | None:
        config = self._arguments["vllm_config"].structured_outputs_config
        if config.reasoning_parser and not config.enable_in_reasoning:
            return None
        if backend == "xgrammar":
            return Grammar(self._backend(backend).compile_grammar(kind, text).ctx)
        if backend == "guidance":
            own = self._backend(backend)
            own.compile_grammar(kind, text)
            return Grammar(own.serialized_grammar, own.ll_tokenizer)
        return None

    def _backend(self, name: str) -> Any:
        """Return a backend of vLLM, which keeps the tokenizer as its library takes it."""
        if name not in self._backends:
            if name == "xgrammar":
                from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend as Backend
            else:
                from vllm.v1.structured_output.backend_guidance import GuidanceBackend as Backend
            self._backends[name] = Backend(**self._arguments)
        return self._backends[name]


def _fail(error: Exception) -> Grammar | None:
    raise error
