"""The grammar of one of SGLang's requests, from the object with which SGLang masks its logits.

Nothing is asked of the object itself, which SGLang moves on: its compiled form is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from rest_store.drafting.grammar import Grammar
from rest_store.engines.grammars import Grammars

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req


def grammar_of(request: Req, grammars: Grammars) -> Grammar | None:
    """Return the grammar that a request follows from its first token on.

    None: it follows none, or one that is not known here: of another library, or one that begins
    behind the model's reasoning.
    """
    asked: Any = request.grammar
    make = None if asked is None else _MAKERS.get(type(asked).__name__)
    if make is None or request.grammar_key is None:
        return None
    return grammars.of(request.grammar_key, partial(make, asked))


def _of_xgrammar(asked: Any) -> Grammar:
    return Grammar(asked.ctx)


def _of_llguidance(asked: Any) -> Grammar:
    return Grammar(asked.serialized_grammar, asked.llguidance_tokenizer)


# By the class of the object; these have no state that is not in the text.
_MAKERS: dict[str, Callable[[Any], Grammar]] = {
    "XGrammarGrammar": _of_xgrammar,
    "GuidanceGrammar": _of_llguidance,
}
