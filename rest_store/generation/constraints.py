"""Constraints of an output: a JSON schema, a regular expression or a grammar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rest_store.drafting.grammar import Grammar
from rest_store.drafting.grammar_matchers import json_schema_text
from rest_store.errors import ArgumentError, describe

_MAX_GRAMMARS = 256  # that are kept, with the choices that they have learned


class Constraints:
    """The grammars of a generator, which are kept from call to call.

    Args:
        model: of transformers.
        tokenizer: its tokenizer; None: only compiled grammars can be taken.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._grammars: dict[object, Grammar] = {}

    def constrain(
        self, options: Mapping[str, Any], json_schema: Any, regex: Any, grammar: Any
    ) -> tuple[list[Grammar], dict[str, Any]]:
        """Return the grammars of a call, and the options of `model.generate`.

        There is one grammar for all prompts, or one for each.

        Args:
            options: of `model.generate`; the returned ones have an end token in any case.
            json_schema: as of `Generator.generate`.
            regex: likewise.
            grammar: likewise; at most one of the three is not None.

        Raises:
            ArgumentError: more than one of them, or one that is none.
            ArgumentError: it has to be compiled for a tokenizer, and there is none.
            MissingExtraError: llguidance is not installed.
        """
        arguments = {"json_schema": json_schema, "regex": regex, "grammar": grammar}
        forms = {name: value for name, value in arguments.items() if value is not None}
        if len(forms) > 1:
            raise ArgumentError(
                describe("Generator", "the output's form", " and ".join(forms), "one of them")
            )
        if not forms:
            return [], dict(options)
        [(name, form)] = forms.items()
        values = form if isinstance(form, list) else [form]
        if not values:
            raise ArgumentError(describe("Generator", name, "an empty list", "one for each prompt"))
        ends = self._ends(options)
        if ends is None:
            ends = self._end_of_tokenizer()
            options = {**options, "eos_token_id": ends}
        return [self._grammar(name, value, ends) for value in values], dict(options)

    def _grammar(self, kind: str, value: Any, ends: list[int]) -> Grammar:
        """Return the grammar of one value, with all that it has learned."""
        if isinstance(value, Grammar):
            return value
        if kind == "json_schema":
            value = json_schema_text(value)
        # A grammar holds its `value`, so that no other object gets this id meanwhile.
        key = (kind, value if isinstance(value, str) else id(value), *ends)
        grammar = self._grammars.pop(key, None)
        if grammar is None:
            grammar = self._compiled(kind, value, ends)
        if len(self._grammars) >= _MAX_GRAMMARS:
            self._grammars.pop(next(iter(self._grammars)))
        self._grammars[key] = grammar
        return grammar

    def _compiled(self, kind: str, value: Any, ends: list[int]) -> Grammar:
        if kind == "json_schema":
            return Grammar.from_json_schema(value, self._needed_tokenizer(), ends=ends)
        if kind == "regex":
            return Grammar.from_regex(value, self._needed_tokenizer(), ends=ends)
        tokenizer = self._needed_tokenizer() if isinstance(value, str) else self._tokenizer
        return Grammar(value, tokenizer, ends=ends)

    def _ends(self, options: Mapping[str, Any]) -> list[int] | None:
        """Return the tokens that end a row, as the call or the model sets them.

        None: neither does.
        """
        call_config = options.get("generation_config")
        model_config = getattr(self._model, "generation_config", None)
        settings = (
            options.get("eos_token_id"),
            getattr(call_config, "eos_token_id", None),
            getattr(model_config, "eos_token_id", None),
        )
        for ends in settings:
            if ends is not None:
                tokens: list[int] = torch.as_tensor(ends).reshape(-1).tolist()
                return tokens
        return None

    def _end_of_tokenizer(self) -> list[int]:
        end = getattr(self._tokenizer, "eos_token_id", None)
        if end is None:
            expected = "one, in the model's configuration or the tokenizer: it ends the output"
            raise ArgumentError(describe("Generator", "end token", "absent", expected))
        return [int(end)]

    def _needed_tokenizer(self) -> Any:
        if self._tokenizer is None:
            expected = "a tokenizer, for the form of the output"
            raise ArgumentError(describe("Generator", "tokenizer", "None", expected))
        return self._tokenizer
