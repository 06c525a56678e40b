"""Logits processors of a batch: each row gets a copy that judges it as the original would."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

import torch
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from rest_store.errors import NotSupportedError, describe

Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_Kind = tuple[str, str]  # the package of a class, and its name

# Attributes of processors that hold something for each row of a batch, or for each prompt: several
# rows may continue one (`num_return_sequences`).
_OF_ROWS: dict[_Kind, tuple[str, ...]] = {
    ("transformers", EncoderNoRepeatNGramLogitsProcessor.__name__): ("generated_ngrams",),
    ("transformers", EncoderRepetitionPenaltyLogitsProcessor.__name__): ("encoder_input_ids",),
    ("transformers", RepetitionPenaltyLogitsProcessor.__name__): ("prompt_ignore_length",),
    ("rest_store", "GrammarMask"): ("grammars",),
    ("xgrammar", "LogitsProcessor"): ("compiled_grammars", "matchers", "token_bitmask"),
}


def _itself(value: Any) -> Any:
    return value


# The replacements in a copy for objects of other packages that `copy.deepcopy` cannot copy, or that
# are large. Those that never change are shared.
_COPIES: dict[_Kind, Callable[[Any], Any]] = {
    ("builtins", "LLTokenizer"): _itself,  # of llguidance, which names no package
    ("outlines_core", "Index"): _itself,
    ("xgrammar", "CompiledGrammar"): _itself,
    ("xgrammar", "Grammar"): _itself,
    ("xgrammar", "GrammarCompiler"): _itself,
    ("xgrammar", "TokenizerInfo"): _itself,
    ("xgrammar", "GrammarMatcher"): lambda matcher: matcher.fork(),
}


def for_row(processor: Any, row: int, rows: int) -> Processor:
    """Return a processor that judges one row alone as `processor` does in the batch.

    Args:
        processor: of a batch; it is not changed.
        row: index of the row.
        rows: of the batch.

    Raises:
        NotSupportedError: it cannot be copied, or holds something for another number of rows.
    """
    # Asks a function about an index in the batch.
    if isinstance(processor, PrefixConstrainedLogitsProcessor):
        return lambda ids, scores: processor(ids.expand(rows, -1), scores.expand(rows, -1).clone())[
            row : row + 1
        ]
    try:
        names = _OF_ROWS.get(_kind(processor), ())
        own = copy.copy(processor) if names else processor
        for name in names:
            held = getattr(processor, name)
            if isinstance(held, list | torch.Tensor):
                setattr(own, name, _row_entry(processor, name, held, row, rows))
                own.batch_size = 1
        return copy.deepcopy(own, _copies_in(own))  # type: ignore[no-any-return]
    except NotSupportedError:
        raise
    except Exception as error:  # a processor is anybody's code
        state = f"not copyable ({type(error).__name__}: {error})"
        expected = "a state that can be copied for each row of a batch"
        raise NotSupportedError(
            describe(type(processor).__name__, "its state", state, expected)
        ) from error


def _kind(value: object) -> _Kind:
    return type(value).__module__.partition(".")[0], type(value).__name__


def _row_entry(processor: Any, name: str, held: Any, row: int, rows: int) -> Any:
    """Return the entry of `held` for one row.

    `held` has one entry for each prompt of a batch, or for each row.
    """
    count = len(held)
    if count and rows % count:
        raise NotSupportedError(
            describe(
                type(processor).__name__,
                f"number of {name}",
                count,
                f"1, or {rows}: one for each row",
            )
        )
    index = row * count // rows
    return held[index : index + 1]


def _copies_in(value: object) -> dict[int, Any]:
    """Return replacements, by id, for objects in `value` that a copy must not duplicate.

    These are modules, and objects as in `_COPIES`.

    `copy.deepcopy` takes them as `memo`.
    """
    copies: dict[int, Any] = {}
    reached = {id(value)}
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, ModuleType):
            copies[id(item)] = item
        elif copy_item := _COPIES.get(_kind(item)):
            copies[id(item)] = copy_item(item)
        elif not isinstance(item, type | FunctionType):
            new = [other for other in gc.get_referents(item) if id(other) not in reached]
            reached.update(map(id, new))
            waiting += new
    return copies
