"""The grammar of recorded outputs: a JSON schema that they satisfy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rest_store.bench.recordings import Recording
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.store import Store
from rest_store.drafting.grammar import Grammar
from rest_store.errors import DataFileError, describe
from rest_store.extras import named_extras


def recorded_grammar(
    schema: str,
    recordings: Iterable[Recording],
    stores: Mapping[str, Store],
    tokenizer: str | None,
) -> Grammar:
    """Return the grammar of a JSON schema for recordings.

    Args:
        schema: its text.
        recordings: whose outputs satisfy it; control tokens at their ends end a text.
        stores: datastores by name; the first one may hold the tokenizer.
        tokenizer: name or path of one to use instead.

    Raises:
        DataFileError: there is no tokenizer.
        ArgumentError: the schema is none, or nothing satisfies it.
        MissingExtraError: llguidance is not installed.
    """
    for store in [*stores.values()][:1]:
        stored = store.path / TOKENIZER_FILE_NAME
        tokenizer = str(stored) if tokenizer is None and stored.exists() else tokenizer
    if tokenizer is None:
        expected = "--tokenizer, or a datastore that holds it"
        raise DataFileError(describe("bench replay", "tokenizer", "unknown", expected))
    with named_extras("Grammar"):
        import llguidance
    from build_index.tokenization import load_tokenizer

    target = load_tokenizer(tokenizer)
    controls = set(target.identity.special_tokens.values())
    last = {int(recording.output[-1]) for recording in recordings if recording.output.size}
    ends = sorted(last & controls) or sorted(controls)[:1] or [0]
    adapted: Any = llguidance.LLTokenizer(target.to_json(), eos_token=ends)
    return Grammar.from_json_schema(schema, adapted)


def satisfying(recordings: Iterable[Recording], grammar: Grammar) -> int:
    """Return how many outputs the grammar allows, whole or cut off."""
    number = 0
    for recording in recordings:
        matcher = grammar.begin()
        number += all(matcher.accept(token) for token in recording.output.tolist())
    return number
