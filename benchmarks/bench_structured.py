"""Structured output: M, speed and equal texts with a JSON schema, by source of the drafts.

    pip install '.[hf,grammar]'
    python examples/smollm2.py smollm2
    python benchmarks/bench_structured.py --model smollm2 --out structured.json

Eight schemas have four requests each. The model writes each answer under its schema: plainly, and
with each way of drafting, one after the other. One way carries choices and logits from request to
request. Times are processor times, on one thread. `llguidance's forced tokens` drafts at each step
the tokens that llguidance's `compute_ff_tokens` returns; it is replayed, not run.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import click
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rest_store
from rest_store.bench.measurement_options import Destination, result_options
from rest_store.bench.results import write_result
from rest_store.command_options import SETTINGS
from rest_store.drafting.grammar_matchers import LlguidanceMatcher

Schema = dict[str, Any]


def record(**properties: Schema) -> Schema:
    """Return the schema of an object, all of whose fields are required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT: Schema = {"type": "string", "maxLength": 60}
WHOLE: Schema = {"type": "integer", "minimum": 0, "maximum": 100000}
FLAG: Schema = {"type": "boolean"}


def enumeration(*values: str) -> Schema:
    """Return the schema of an enumeration."""
    return {"enum": list(values)}


def array(item: Schema, min_items: int, max_items: int) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item, "minItems": min_items, "maxItems": max_items}


# By name: the schema, and the subjects of the requests.
CASES: Mapping[str, tuple[Schema, list[str]]] = {
    "person": (
        record(first_name=TEXT, last_name=TEXT, age=WHOLE, occupation=TEXT, is_married=FLAG),
        ["a baker", "a retired teacher", "a young doctor", "a student of music"],
    ),
    "weather": (
        record(
            city=TEXT,
            country=TEXT,
            temperature_celsius={"type": "number"},
            conditions=enumeration("sunny", "cloudy", "rainy", "snowy"),
        ),
        ["Paris in spring", "Oslo in winter", "Cairo in summer", "London in autumn"],
    ),
    "ticket": (
        record(
            title=TEXT,
            severity=enumeration("low", "medium", "high", "critical"),
            component=enumeration("frontend", "backend", "database"),
            steps_to_reproduce=array(TEXT, 1, 3),
        ),
        [
            "the login page is blank",
            "search is slow",
            "data is lost on save",
            "a button does nothing",
        ],
    ),
    "order": (
        record(
            customer_identifier=WHOLE,
            items=array(record(product_name=TEXT, quantity=WHOLE, unit_price_in_cents=WHOLE), 2, 3),
            express_delivery=FLAG,
        ),
        ["fruit", "books", "garden tools", "office supplies"],
    ),
    "call of a weather tool": (
        record(
            name=enumeration("get_current_weather", "get_weather_forecast"),
            arguments=record(location=TEXT, unit=enumeration("celsius", "fahrenheit")),
        ),
        [
            "the weather in Rome now",
            "tomorrow's weather in Lima",
            "is it hot in Delhi?",
            "rain in Bern?",
        ],
    ),
    "call of a calendar tool": (
        record(
            name=enumeration("create_event", "delete_event"),
            arguments=record(title=TEXT, day_of_month=WHOLE, duration_in_minutes=WHOLE),
        ),
        [
            "lunch on the 5th",
            "a meeting on the 12th",
            "cancel the trip on the 3rd",
            "yoga on the 20th",
        ],
    ),
    "review": (
        record(
            sentiment=enumeration("positive", "neutral", "negative"),
            topics=array(TEXT, 2, 3),
            score=WHOLE,
        ),
        ["The food was cold.", "A wonderful hotel!", "It works, nothing more.", "Never again."],
    ),
    "recipe": (
        record(
            recipe_name=TEXT,
            ingredients=array(record(ingredient_name=TEXT, amount_in_grams=WHOLE), 2, 4),
            preparation_time_in_minutes=WHOLE,
            is_vegetarian=FLAG,
        ),
        ["pancakes", "tomato soup", "a fruit salad", "fried rice"],
    ),
}

LOOKUP_AND_LOGITS = "prompt lookup and recycled logits"
GRAMMAR = "grammar alone"
ALL = "grammar, prompt lookup and recycled logits"
CARRIED = "the same, choices and logits kept from request to request"
FORCED = "llguidance's forced tokens"


def requests(per_schema: int) -> Iterator[tuple[str, str]]:
    """Yield the name of a schema and a request, schemas in turns."""
    for number in range(per_schema):
        for name, (_, subjects) in CASES.items():
            yield name, f"Answer in JSON, as a {name}: {subjects[number]}"


class Way:
    """One way of drafting, over all requests.

    Attributes:
        passes, tokens, seconds: sums of all requests.
        identical: number of texts that equal those of plain generation.
        nodes, accepted: draft tokens, and accepted draft tokens.
    """

    def __init__(self, name: str, tokenizer: Any) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self.carries = name == CARRIED
        self._grammars: dict[str, rest_store.Grammar] = {}
        self._logits = rest_store.RecycledLogits()
        self.passes = 0
        self.tokens = 0
        self.seconds = 0.0
        self.identical = 0
        self.nodes = 0
        self.accepted = 0

    def sources(self, schema: str) -> list[object]:
        """Return the sources for a request."""
        lookup = rest_store.PromptLookup()
        if self.name == LOOKUP_AND_LOGITS:
            return [lookup, rest_store.RecycledLogits()]
        if schema not in self._grammars or not self.carries:
            grammar = rest_store.Grammar.from_json_schema(CASES[schema][0], self._tokenizer)
            self._grammars[schema] = grammar
        grammar = self._grammars[schema]
        if self.name == GRAMMAR:
            return [grammar]
        logits = self._logits if self.carries else rest_store.RecycledLogits()
        return [grammar, lookup, logits]

    def figures(self, plain_seconds: float, requests: int) -> dict[str, Any]:
        """Return the figures of this way."""
        return {
            "drafts": self.name,
            "M": round(self.tokens / self.passes, 3),
            "passes": self.passes,
            "tokens": self.tokens,
            "speed": round(plain_seconds / self.seconds, 3),
            "identical": f"{self.identical} of {requests}",
            "draft tokens accepted": round(self.accepted / max(self.nodes, 1), 3),
        }


def forced_passes(tokenizer: Any, schema: Schema, output: list[int]) -> int:
    """Return the passes for a text with the tokens that llguidance forces as drafts."""
    grammar = rest_store.Grammar.from_json_schema(schema, tokenizer)
    matcher = grammar.begin()
    if not isinstance(matcher, LlguidanceMatcher):
        raise click.ClickException("the grammar is not one of llguidance")
    position = 0
    passes = 0
    while position < len(output):
        forced = [] if passes == 0 else matcher.forced()
        passes += 1
        taken = 0
        for token, written in zip(forced, output[position:], strict=False):
            if token != written:
                break
            taken += 1
        for token in output[position : position + taken + 1]:
            matcher.accept(token)
        position += taken + 1
    return passes


@click.command(
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_structured.py --model smollm2 --out structured.json",
)
@click.option(
    "--model",
    metavar="DIR",
    required=True,
    help="A chat model and its tokenizer, as transformers read it.",
)
@click.option(
    "--per-schema",
    type=click.IntRange(1, 4),
    default=4,
    show_default=True,
    help="Requests of each schema.",
)
@click.option("--max-new-tokens", type=click.IntRange(1), default=160, show_default=True)
@click.option("--prepacked-weights", is_flag=True, help="Lay out the weights for this processor.")
@result_options
def main(
    model: str, per_schema: int, max_new_tokens: int, prepacked_weights: bool, out: Destination
) -> None:
    """Measure drafts under JSON schemas."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    language_model = AutoModelForCausalLM.from_pretrained(model, dtype="float32").eval()
    if prepacked_weights:
        with rest_store.prepacked_weights(language_model):
            figures = measure(language_model, tokenizer, per_schema, max_new_tokens)
    else:
        figures = measure(language_model, tokenizer, per_schema, max_new_tokens)
    for row in figures["rows"]:
        click.echo(", ".join(f"{name}: {value}" for name, value in row.items()))
    packages = ("torch", "transformers", "llguidance")
    write_result(out, "structured", click.get_current_context().params, packages, figures)


def measure(model: Any, tokenizer: Any, per_schema: int, max_new_tokens: int) -> dict[str, Any]:
    """Return the figures of all ways."""
    ways = [Way(name, tokenizer) for name in (LOOKUP_AND_LOGITS, GRAMMAR, ALL, CARRIED)]
    passes: list[None] = []
    hook = model.register_forward_pre_hook(lambda *_: passes.append(None))
    plain_seconds = 0.0
    plain_tokens = 0
    forced = 0
    chosen = list(requests(per_schema))
    for schema, text in chosen:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        length = inputs["input_ids"].shape[1]
        mask = rest_store.GrammarMask(
            rest_store.Grammar.from_json_schema(CASES[schema][0], tokenizer)
        )
        options = {**inputs, "do_sample": False, "max_new_tokens": max_new_tokens}
        began = time.process_time()
        plain = model.generate(**options, logits_processor=[mask])
        plain_seconds += time.process_time() - began
        output = plain[0, length:].tolist()
        plain_tokens += len(output)
        forced += forced_passes(tokenizer, CASES[schema][0], output)
        for way in ways:
            sources = way.sources(schema)
            mask = rest_store.GrammarMask(
                rest_store.Grammar.from_json_schema(CASES[schema][0], tokenizer)
            )
            passes.clear()
            began = time.process_time()
            drafted = model.generate(
                **options,
                logits_processor=[mask],
                custom_generate=rest_store.generate,
                sources=sources,
                return_dict_in_generate=True,
            )
            way.seconds += time.process_time() - began
            way.passes += len(passes)
            way.tokens += drafted.sequences.shape[1] - length
            way.identical += torch.equal(drafted.sequences, plain)
            way.nodes += drafted.statistics.drafts.nodes
            way.accepted += drafted.statistics.drafts.accepted
    hook.remove()
    table_rows = [
        {"drafts": "none", "M": 1.0, "passes": plain_tokens, "tokens": plain_tokens, "speed": 1.0},
        {
            "drafts": FORCED,
            "M": round(plain_tokens / forced, 3),
            "passes": forced,
            "tokens": plain_tokens,
        },
        *(way.figures(plain_seconds, len(chosen)) for way in ways),
    ]
    return {
        "requests": len(chosen),
        "schemas": len(CASES),
        "plain_seconds": round(plain_seconds, 2),
        "rows": table_rows,
    }


if __name__ == "__main__":
    main()
