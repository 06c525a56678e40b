"""Matchers of grammars: the seam to xgrammar and llguidance.

A matcher follows one text, token by token, and says which tokens may come next. Neither library is
imported before one of its grammars is used. All that is used of them:

    xgrammar (0.2)     GrammarMatcher(compiled), accept_token(id), fork(),
                       fill_next_token_bitmask(mask), is_terminated();
                       TokenizerInfo(vocabulary...), GrammarCompiler(info).compile_*
    llguidance (1.9)   LLMatcher(tokenizer, grammar), try_consume_tokens([id]), deep_copy(),
                       is_stopped(), is_error(), get_error(), validate_grammar(grammar, tokenizer),
                       grammar_from_json_schema(text), grammar_from_regex(text);
                       numpy.fill_next_token_bitmask(matcher, mask); hf.from_tokenizer;
                       LLTokenizer.vocab_size, eos_tokens, decode_bytes([id])
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rest_store.datastore.render import one_line
from rest_store.errors import ArgumentError, describe
from rest_store.extras import named_extras

Mask = npt.NDArray[np.int32]  # bit i % 32 of word i // 32: whether token i may come next


@runtime_checkable
class GrammarMatcher(Protocol):
    """The place of one text in a grammar. Not thread-safe."""

    def accept(self, token: int) -> bool:
        """Go on with a token; return False, and stay, if the grammar forbids it."""

    def fork(self) -> GrammarMatcher:
        """Return a matcher at the same place, which goes on by itself."""

    def mask(self) -> Mask | None:
        """Return the tokens that may come next, int32[ceil(vocabulary / 32)].

        None: the text has ended.
        """


class XgrammarMatcher:
    """A matcher of xgrammar.

    Args:
        compiled: an `xgrammar.CompiledGrammar`, which is immutable and may be shared.
    """

    def __init__(self, compiled: Any, matcher: Any = None) -> None:
        import xgrammar

        self._compiled = compiled
        self._matcher = xgrammar.GrammarMatcher(compiled) if matcher is None else matcher
        self._words = (int(compiled.tokenizer_info.vocab_size) + 31) // 32

    def accept(self, token: int) -> bool:
        """Go on with a token, as `GrammarMatcher`."""
        return not self._matcher.is_terminated() and bool(self._matcher.accept_token(token))

    def fork(self) -> XgrammarMatcher:
        """Return a matcher at the same place."""
        return XgrammarMatcher(self._compiled, self._matcher.fork())

    def mask(self) -> Mask | None:
        """Return the tokens that may come next, as `GrammarMatcher`."""
        if self._matcher.is_terminated():
            return None
        mask = np.full((1, self._words), -1, np.int32)
        self._matcher.fill_next_token_bitmask(mask)
        row: Mask = mask[0]
        return row


class LlguidanceMatcher:
    """A matcher of llguidance.

    Args:
        tokenizer: an `llguidance.LLTokenizer`.
        grammar: the grammar as `llguidance.LLMatcher` takes it.
    """

    def __init__(self, tokenizer: Any, grammar: str, matcher: Any = None) -> None:
        import llguidance

        self._tokenizer = tokenizer
        self._grammar = grammar
        self._matcher = llguidance.LLMatcher(tokenizer, grammar) if matcher is None else matcher
        self._size = int(tokenizer.vocab_size)
        self._ends = [int(end) for end in tokenizer.eos_tokens]
        self._has_ended = False

    def accept(self, token: int) -> bool:
        """Go on with a token, as `GrammarMatcher`.

        An id outside the vocabulary would break the matcher.
        """
        if self._has_ended or not 0 <= token < self._size:
            return False
        if self._matcher.is_stopped():
            self._has_ended = token in self._ends and not self._matcher.is_error()
            return self._has_ended
        return int(self._matcher.try_consume_tokens([token])) == 1

    def fork(self) -> LlguidanceMatcher:
        """Return a matcher at the same place."""
        forked = LlguidanceMatcher(self._tokenizer, self._grammar, self._matcher.deep_copy())
        forked._has_ended = self._has_ended
        return forked

    def forced(self) -> list[int]:
        """Return the tokens that the grammar forces next, as llguidance's tokenizer spells them."""
        return [] if self._matcher.is_stopped() else list(self._matcher.compute_ff_tokens())

    def mask(self) -> Mask | None:
        """Return the tokens that may come next, as `GrammarMatcher`.

        After a whole text only its end.

        Raises:
            ValueError: llguidance gave up, such as for a grammar that is too complex here.
        """
        if self._has_ended:
            return None
        mask = np.zeros((1, (self._size + 31) // 32), np.int32)
        if not self._matcher.is_stopped():
            from llguidance.numpy import fill_next_token_bitmask

            fill_next_token_bitmask(self._matcher, mask)
        elif not self._matcher.is_error():
            words = mask.view(np.uint32)[0]
            for end in self._ends:
                words[end // 32] |= np.uint32(1 << end % 32)
        if self._matcher.is_error():
            raise ValueError(_words(self._matcher))
        row: Mask = mask[0]
        return row


class GrammarDefinition(NamedTuple):
    """A grammar as sessions need it. `Grammar` takes one from a library of your own.

    Attributes:
        begin: returns a matcher at its beginning.
        token_bytes: the bytes of each token, by id; tokens without text have none.
    """

    begin: Callable[[], GrammarMatcher]
    token_bytes: Sequence[bytes]


def open_grammar(
    compiled: object, tokenizer: object, ends: Sequence[int] = ()
) -> GrammarDefinition:
    """Return the definition of a grammar; arguments and errors as `Grammar`."""
    if isinstance(compiled, GrammarDefinition):
        return compiled
    if type(compiled).__module__.partition(".")[0] == "xgrammar":
        info: Any = compiled.tokenizer_info  # type: ignore[attr-defined]
        return GrammarDefinition(lambda: XgrammarMatcher(compiled), info.decoded_vocab)
    if not isinstance(compiled, str):
        expected = "an xgrammar.CompiledGrammar, or a grammar of llguidance as text"
        raise ArgumentError(
            describe("grammar", "compiled", f"a {type(compiled).__name__}", expected)
        )
    with named_extras("Grammar"):
        import llguidance

    if isinstance(tokenizer, llguidance.LLTokenizer):
        adapted = tokenizer
        token_bytes = _token_bytes(tokenizer)
    else:
        adapted, token_bytes = _adapted(tokenizer, tuple(ends))
    if error := llguidance.LLMatcher.validate_grammar(compiled, adapted):
        actual = f"refused by llguidance ({one_line(error)})"
        raise ArgumentError(f"grammar: it is {actual}")
    matcher = LlguidanceMatcher(adapted, compiled)
    try:
        is_satisfiable = matcher.mask().any()  # type: ignore[union-attr]  # no text has ended
    except ValueError:
        is_satisfiable = False
    if not is_satisfiable:
        raise ArgumentError("grammar: no text follows it")
    return GrammarDefinition(lambda: matcher.fork(), token_bytes)


def _words(matcher: Any) -> str:
    """Return why a matcher of llguidance failed, in a line without its state."""
    error: str = matcher.get_error()
    return one_line(error.partition("<state>")[0].strip())


def json_schema_text(schema: object) -> str:
    """Return a JSON schema as text; a text is returned as it is, in its own order.

    Raises:
        ArgumentError: it is no JSON.
    """
    try:
        return json.dumps(json.loads(schema) if isinstance(schema, str | bytes) else schema)
    except (TypeError, ValueError, RecursionError) as error:
        actual = f"no JSON ({one_line(str(error))})"
        raise ArgumentError(
            describe("grammar", "the JSON schema", actual, "a JSON schema, or its text")
        ) from error


def compile_json_schema(text: str) -> str:
    """Return the grammar of a JSON schema as llguidance takes it; errors as `Grammar`."""
    with named_extras("Grammar"):
        import llguidance

    return str(llguidance.LLMatcher.grammar_from_json_schema(text))


def compile_regex(pattern: str) -> str:
    """Return the grammar of a regular expression as llguidance takes it; errors as `Grammar`."""
    if not isinstance(pattern, str):
        raise ArgumentError(describe("grammar", "regex", f"a {type(pattern).__name__}", "text"))
    with named_extras("Grammar"):
        import llguidance

    return str(llguidance.LLMatcher.grammar_from_regex(pattern))


@lru_cache(maxsize=8)
def _adapted(tokenizer: object, ends: tuple[int, ...]) -> tuple[Any, list[bytes]]:
    """Return llguidance's tokenizer for one of transformers, and the bytes of each token."""
    import llguidance.hf

    try:
        adapted = llguidance.hf.from_tokenizer(tokenizer, eos_token=list(ends) or None)
    except Exception as error:  # as for a tokenizer that is written in Python
        actual = f"a {type(tokenizer).__name__}, refused by llguidance ({one_line(str(error))})"
        raise ArgumentError(describe("grammar", "tokenizer", actual, "a fast tokenizer")) from error
    return adapted, _token_bytes(adapted)


@lru_cache(maxsize=8)
def _token_bytes(tokenizer: Any) -> list[bytes]:
    return [tokenizer.decode_bytes([token]) for token in range(tokenizer.vocab_size)]
