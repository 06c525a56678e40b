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
    native: Any = request.grammar
    make = None if native is None else _MAKERS.get(type(native).__name__)
    if make is None or request.grammar_key is None:
        return None
    return grammars.shared(request.grammar_key, partial(make, native))


def _from_xgrammar(native: Any) -> Grammar:
    return Grammar(native.ctx)


def _from_llguidance(native: Any) -> Grammar:
    return Grammar(native.serialized_grammar, native.llguidance_tokenizer)


# By the class of the object; these have no state that is not in the text.
_MAKERS: dict[str, Callable[[Any], Grammar]] = {
    "XGrammarGrammar": _from_xgrammar,
    "GuidanceGrammar": _from_llguidance,
}
