"""Structured output: M and speed with a JSON schema, by source of the drafts.

    pip install '.[hf,grammar]'
    python examples/smollm2.py smollm2
    python benchmarks/bench_structured.py --model smollm2 --out structured.json

Sixteen schemas have some requests each: eight of our own, and eight of public kinds, written down
from their descriptions. Three are calls of tools, which are asked for and written in the format of
SmolLM2's chats: the tools in the system's message, the calls between two tags. The model writes
each answer under its schema: plainly, and with each way of drafting, one after the other; one
answer of each schema is sampled, too, with the same seed. Ways with a live datastore keep
it from request to request. Times are those of the processor, on one thread.

- The first two ways of drafting are those without a grammar among the sources: a processor of the
  caller's masks the logits, token by token.
- `llguidance's forced tokens` drafts at each step the tokens that llguidance's `compute_ff_tokens`
  returns; it is replayed, not run.
- A forced node is the likeliest draft token where the grammar allows one text alone, whose
  tokenization is open, and where the text got to. Its share accepted is counted.
- The cost of the grammar is the time of its filter, its masks, and of accepting, for each step.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import click
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rest_store
from rest_store.bench.measurement_options import Destination, result_options
from rest_store.bench.results import write_result
from rest_store.command_options import SETTINGS
from rest_store.drafting import grammar as drafting_grammar
from rest_store.drafting.grammar_matchers import LlguidanceMatcher
from rest_store.generation import grammar_mask, loop
from rest_store.generation.output import Piece

Schema = dict[str, Any]

# As the model card of SmolLM2 shows it: the system's message, and the form of the answer.
TOOLS_MESSAGE = """You are an expert in composing functions. You are given a question and a set of \
possible functions.
Based on the question, you will need to make one or more function/tool calls to achieve the purpose.

You have access to the following tools:
<tools>{tools}</tools>

The output MUST strictly adhere to the following format, and NO other text MUST be included.
<tool_call>[
{{"name": "func_name1", "arguments": {{"argument1": "value1", "argument2": "value2"}}}}
]</tool_call>"""
CALLS_GRAMMAR = 'start: "<tool_call>" calls "</tool_call>"\ncalls: %json {schema}\n'


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


def one_of(*values: str) -> Schema:
    """Return the schema of an enumeration."""
    return {"enum": list(values)}


def list_of(item: Schema, least: int, most: int) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item, "minItems": least, "maxItems": most}


def calls_of(names: Sequence[str], arguments: Schema) -> Schema:
    """Return the schema of one or two calls of tools that take the same arguments."""
    return list_of(record(name=one_of(*names), arguments=arguments), 1, 2)


# By name: the schema, and the subjects of the requests.
OWN_CASES: Mapping[str, tuple[Schema, list[str]]] = {
    "person": (
        record(first_name=TEXT, last_name=TEXT, age=WHOLE, occupation=TEXT, is_married=FLAG),
        ["a baker", "a retired teacher", "a young doctor", "a student of music"],
    ),
    "weather": (
        record(
            city=TEXT,
            country=TEXT,
            temperature_celsius={"type": "number"},
            conditions=one_of("sunny", "cloudy", "rainy", "snowy"),
        ),
        ["Paris in spring", "Oslo in winter", "Cairo in summer", "London in autumn"],
    ),
    "ticket": (
        record(
            title=TEXT,
            severity=one_of("low", "medium", "high", "critical"),
            component=one_of("frontend", "backend", "database"),
            steps_to_reproduce=list_of(TEXT, 1, 3),
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
            items=list_of(
                record(product_name=TEXT, quantity=WHOLE, unit_price_in_cents=WHOLE), 2, 3
            ),
            express_delivery=FLAG,
        ),
        ["fruit", "books", "garden tools", "office supplies"],
    ),
    "call of a weather tool": (
        calls_of(
            ["get_current_weather", "get_weather_forecast"],
            record(location=TEXT, unit=one_of("celsius", "fahrenheit")),
        ),
        [
            "the weather in Rome now",
            "tomorrow's weather in Lima",
            "is it hot in Delhi?",
            "rain in Bern?",
        ],
    ),
    "call of a calendar tool": (
        calls_of(
            ["create_event", "delete_event"],
            record(title=TEXT, day_of_month=WHOLE, duration_in_minutes=WHOLE),
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
            sentiment=one_of("positive", "neutral", "negative"),
            topics=list_of(TEXT, 2, 3),
            score=WHOLE,
        ),
        ["The food was cold.", "A wonderful hotel!", "It works, nothing more.", "Never again."],
    ),
    "recipe": (
        record(
            recipe_name=TEXT,
            ingredients=list_of(record(ingredient_name=TEXT, amount_in_grams=WHOLE), 2, 4),
            preparation_time_in_minutes=WHOLE,
            is_vegetarian=FLAG,
        ),
        ["pancakes", "tomato soup", "a fruit salad", "fried rice"],
    ),
}

NAME: Schema = {"type": "string", "maxLength": 30}
LATITUDE: Schema = {"type": "number", "minimum": -90, "maximum": 90}
LONGITUDE: Schema = {"type": "number", "minimum": -180, "maximum": 180}

# Public kinds, written down from their descriptions, with the fields that most of their users fill.
PUBLIC_CASES: Mapping[str, tuple[Schema, list[str]]] = {
    "schema.org Product": (
        record(
            **{"@context": {"const": "https://schema.org"}, "@type": {"const": "Product"}},
            name=NAME,
            description=TEXT,
            offers=record(
                **{"@type": {"const": "Offer"}},
                price={"type": "number"},
                priceCurrency=one_of("USD", "EUR", "GBP"),
                availability=one_of("https://schema.org/InStock", "https://schema.org/OutOfStock"),
            ),
        ),
        ["a red kettle", "running shoes", "a wooden chair", "a novel"],
    ),
    "GeoJSON Feature": (
        record(
            type={"const": "Feature"},
            geometry=record(
                type={"const": "Point"},
                coordinates={
                    "type": "array",
                    "prefixItems": [LONGITUDE, LATITUDE],
                    "items": False,
                    "minItems": 2,
                },
            ),
            properties=record(name=NAME, category=one_of("city", "mountain", "lake", "station")),
        ),
        ["Mount Everest", "Lake Geneva", "the main station of Milan", "Lisbon"],
    ),
    "CloudEvent": (
        record(
            specversion={"const": "1.0"},
            id=NAME,
            source=NAME,
            type=one_of("com.example.created", "com.example.updated", "com.example.deleted"),
            datacontenttype={"const": "application/json"},
            data=record(subject=TEXT, actor=NAME),
        ),
        ["a new user", "an order was changed", "a file was deleted", "an invoice was paid"],
    ),
    "JSON Resume": (
        record(
            basics=record(name=NAME, label=TEXT, summary=TEXT),
            work=list_of(record(name=NAME, position=NAME, startDate=NAME), 1, 2),
            skills=list_of(
                record(name=NAME, level=one_of("Beginner", "Intermediate", "Master")), 1, 3
            ),
        ),
        ["a web developer", "a nurse", "a translator", "a gardener"],
    ),
    "problem details (RFC 9457)": (
        record(type={"const": "about:blank"}, title=TEXT, status=WHOLE, detail=TEXT, instance=NAME),
        ["a page is not found", "no credit is left", "too many requests", "the server is down"],
    ),
    "call of a travel tool": (
        calls_of(
            ["search_flights", "search_hotels", "get_exchange_rate"],
            record(place=NAME, number_of_people=WHOLE, is_flexible=FLAG),
        ),
        ["a flight to Rome for two", "a hotel in Oslo", "how much is a dollar?", "a trip to Bali"],
    ),
    "npm package.json": (
        record(
            name=NAME,
            version={"type": "string", "pattern": "^[0-9]{1,2}\\.[0-9]{1,2}\\.[0-9]{1,2}$"},
            description=TEXT,
            license=one_of("MIT", "Apache-2.0", "ISC"),
            keywords=list_of(NAME, 1, 3),
            private=FLAG,
        ),
        ["a date parser", "a color picker", "a chess engine", "a web server"],
    ),
    "iCalendar event": (
        record(
            summary=TEXT,
            location=NAME,
            start_date={"type": "string", "format": "date"},
            status=one_of("TENTATIVE", "CONFIRMED", "CANCELLED"),
            attendees=list_of(record(name=NAME, role=one_of("CHAIR", "REQ-PARTICIPANT")), 1, 2),
        ),
        ["a team meeting", "a birthday party", "a visit to the dentist", "a concert"],
    ),
}
CASES: Mapping[str, tuple[Schema, list[str]]] = {**OWN_CASES, **PUBLIC_CASES}
CALLS = ("call of a weather tool", "call of a calendar tool", "call of a travel tool")


def form_of_output(name: str) -> dict[str, Any]:
    """Return the form of the answers to a case, as an argument of `Generator.generate`."""
    schema, _ = CASES[name]
    if name not in CALLS:
        return {"json_schema": schema}
    return {"grammar": CALLS_GRAMMAR.format(schema=json.dumps(schema))}


def messages(name: str, subject: str) -> list[dict[str, str]]:
    """Return the chat that asks for one answer."""
    if name not in CALLS:
        return [{"role": "user", "content": f"Answer in JSON, as a {name}: {subject}"}]
    call = CASES[name][0]["items"]["properties"]
    tools = [
        {"type": "function", "function": {"name": one, "parameters": call["arguments"]}}
        for one in call["name"]["enum"]
    ]
    system = TOOLS_MESSAGE.format(tools=json.dumps(tools))
    return [{"role": "system", "content": system}, {"role": "user", "content": subject}]


LOOKUP_AND_LOGITS = "prompt lookup and recycled logits"
KEPT_LOGITS = "the same, logits kept from request to request"
FORCED = "llguidance's forced tokens"
GRAMMAR = "grammar alone"
MEMORY = "grammar, prompt lookup and logits; choices and logits kept from request to request"
BY_TOKEN = "the same, masks token by token"
WITHOUT_GRAMMAR = (LOOKUP_AND_LOGITS, KEPT_LOGITS)
WAYS = (*WITHOUT_GRAMMAR, GRAMMAR, MEMORY, BY_TOKEN)


class TokenMask(rest_store.GrammarMask):
    """A mask as any other processor: it is asked token by token."""


class Stopwatch:
    """The processor's time of functions that are replaced by timed ones."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def time(self, owner: Any, name: str) -> None:
        """Time a function of a module or class from now on."""
        function: Callable[..., Any] = getattr(owner, name)

        @wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds += time.process_time() - began

        setattr(owner, name, timed)


def requests(per_schema: int) -> Iterator[tuple[str, str]]:
    """Yield the name of a case and the subject of a request, cases in turns."""
    for number in range(per_schema):
        for name, (_, subjects) in CASES.items():
            yield name, subjects[number]


@dataclass
class Totals:
    """The figures of one way of drafting, over all requests.

    Attributes:
        passes: of the model.
        tokens: written.
        seconds: of the processor.
        grammar_seconds: of these, for the grammar.
        identical: texts that are those of plain generation.
        nodes: draft tokens.
        accepted: draft tokens accepted.
        forbidden: draft tokens that the grammar forbids.
        forced: places where one text is forced, and a token of it was drafted.
        forced_accepted: of these, those whose draft token was accepted.
    """

    passes: int = 0
    tokens: int = 0
    seconds: float = 0.0
    grammar_seconds: float = 0.0
    identical: int = 0
    nodes: int = 0
    accepted: int = 0
    forbidden: int = 0
    forced: int = 0
    forced_accepted: int = 0

    def count_drafts(self, grammar: rest_store.Grammar, pieces: Sequence[Piece]) -> None:
        """Count the draft tokens of a text, accepted or not."""
        context = grammar.root
        for piece in pieces:
            tree = piece.trees[0]
            places: list[drafting_grammar.Place | None] = []
            for parent, token in zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True):
                above = context if parent < 0 else places[parent]
                places.append(None if above is None else above.after(token))
            self.nodes += len(tree)
            self.accepted += len(piece.accepted[0])
            self.forbidden += sum(place is None for place in places)
            node = -1
            for token in piece.tokens[0]:
                if len(tree) and node is not None:
                    self._count_forced(grammar, context, tree, node, token)
                below = [] if node is None else tree.children(node).tolist()
                node = next((child for child in below if tree.tokens[child] == token), None)
                after = context.after(token)
                assert after is not None
                context = after

    def _count_forced(
        self, grammar: rest_store.Grammar, place: Any, tree: Any, node: int, token: int
    ) -> None:
        """Count the likeliest draft token at a place of the text, if one text is forced there."""
        children = tree.children(node).tolist()
        if not children or place.allowed is None or len(grammar.spellings(place.allowed)) != 1:
            return
        self.forced += 1
        likeliest = max(children, key=lambda child: tree.scores[child])
        self.forced_accepted += int(tree.tokens[likeliest]) == token


@dataclass
class Way:
    """A way of drafting.

    Attributes:
        name: of it.
        model: that writes.
        tokenizer: of the model.
        totals: so far.
    """

    name: str
    model: Any
    tokenizer: Any
    totals: Totals = field(default_factory=Totals)
    _kept: rest_store.Generator | None = None

    def write(
        self, form: dict[str, Any], inputs: Any, options: dict[str, Any], clock: Stopwatch
    ) -> list[int]:
        """Write the answer to a request, count it, and return it."""
        generator = self._kept
        if generator is None or self.name not in (KEPT_LOGITS, MEMORY, BY_TOKEN):
            sources = (
                []
                if self.name == GRAMMAR
                else [rest_store.PromptLookup(), rest_store.RecycledLogits()]
            )
            generator = self._kept = rest_store.Generator(self.model, self.tokenizer, sources)
        grammar = generator.grammar(**form)
        assert grammar is not None
        constraint: dict[str, Any] = {"grammar": grammar}
        if self.name in WITHOUT_GRAMMAR:
            constraint = {"logits_processor": [TokenMask(grammar)]}
        pieces: list[Piece] = []
        before = clock.seconds
        began = time.process_time()
        with masked_by_token(self.name == BY_TOKEN):
            output = generator.generate(inputs, on_piece=pieces.append, **constraint, **options)
        totals = self.totals
        totals.seconds += time.process_time() - began
        totals.grammar_seconds += clock.seconds - before
        totals.passes += output.statistics.forward_passes
        totals.tokens += output.statistics.tokens
        totals.count_drafts(grammar, pieces)
        return output.tokens[0]

    def figures(self, plain_seconds: float, plain_tokens: int, requests: int) -> dict[str, Any]:
        """Return the figures of this way."""
        totals = self.totals
        row = {
            "drafts": self.name,
            "M": round(totals.tokens / totals.passes, 3),
            "passes": totals.passes,
            "tokens": totals.tokens,
            "speed": round(plain_seconds / totals.seconds, 3),
            "identical": f"{totals.identical} of {requests}",
            "draft tokens accepted": round(totals.accepted / max(totals.nodes, 1), 3),
            "draft tokens forbidden": round(totals.forbidden / max(totals.nodes, 1), 3),
        }
        if self.name not in WITHOUT_GRAMMAR:
            a_pass = plain_seconds / plain_tokens
            row["forced nodes accepted"] = round(totals.forced_accepted / max(totals.forced, 1), 4)
            row["grammar's share of a pass"] = round(
                totals.grammar_seconds / totals.passes / a_pass, 4
            )
        return row


@contextmanager
def masked_by_token(is_wanted: bool) -> Iterator[None]:
    """Have generations mask token by token, as with other processors, if that is wanted."""
    native = vars(loop)["mask_trees"]
    if is_wanted:
        vars(loop)["mask_trees"] = lambda *_: None
    try:
        yield
    finally:
        vars(loop)["mask_trees"] = native


def compiled(form: dict[str, Any], tokenizer: Any) -> rest_store.Grammar:
    """Return the grammar of a form, new."""
    if "grammar" in form:
        return rest_store.Grammar(form["grammar"], tokenizer)
    return rest_store.Grammar.from_json_schema(form["json_schema"], tokenizer)


def forced_passes(tokenizer: Any, form: dict[str, Any], output: list[int]) -> int:
    """Return the passes for a text with the tokens that llguidance forces as drafts."""
    grammar = compiled(form, tokenizer)
    matcher = grammar.begin()
    assert isinstance(matcher, LlguidanceMatcher)
    position = 0
    passes = 0
    while position < len(output):
        forced = [] if passes == 0 else matcher.forced()
        passes += 1
        taken = 0
        while (
            taken < len(forced)
            and position + taken < len(output)
            and forced[taken] == output[position + taken]
        ):
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
    prepared = rest_store.prepacked_weights(language_model) if prepacked_weights else nullcontext()
    with prepared:
        figures = measure(language_model, tokenizer, per_schema, max_new_tokens)
    packages = ("torch", "transformers", "llguidance")
    write_result(out, "structured", click.get_current_context().params, packages, figures)


def measure(model: Any, tokenizer: Any, per_schema: int, max_new_tokens: int) -> dict[str, Any]:
    """Return the figures of all ways."""
    clock = Stopwatch()
    clock.time(drafting_grammar.GrammarTree, "filter")
    clock.time(drafting_grammar.GrammarText, "accept")
    clock.time(loop, "mask_trees")
    clock.time(grammar_mask.GrammarMask, "__call__")
    ways = [Way(name, model, tokenizer) for name in WAYS]
    plain_seconds = 0.0
    plain_tokens = 0
    forced = 0
    sampled = 0
    sampling = Way(MEMORY, model, tokenizer)  # its figures are not shown
    todo = list(requests(per_schema))
    for number, (name, subject) in enumerate(todo):
        form = form_of_output(name)
        inputs = tokenizer.apply_chat_template(
            messages(name, subject),
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        length = inputs["input_ids"].shape[1]
        mask = rest_store.GrammarMask(compiled(form, tokenizer))
        options = {"do_sample": False, "max_new_tokens": max_new_tokens}
        began = time.process_time()
        plain = model.generate(**inputs, **options, logits_processor=[mask])
        plain_seconds += time.process_time() - began
        output = plain[0, length:].tolist()
        plain_tokens += len(output)
        forced += forced_passes(tokenizer, form, output)
        for way in ways:
            way.totals.identical += way.write(form, inputs, options, clock) == output
        if number < len(CASES):
            click.echo(f"{name}: {len(output)} tokens, {plain_seconds:.0f} s plain", err=True)
            sampled += is_same_sampled(sampling, form, inputs, max_new_tokens, clock)
    rows = [
        {"drafts": "none", "M": 1.0, "passes": plain_tokens, "tokens": plain_tokens, "speed": 1.0},
        {
            "drafts": FORCED,
            "M": round(plain_tokens / forced, 3),
            "passes": forced,
            "tokens": plain_tokens,
        },
        *(way.figures(plain_seconds, plain_tokens, len(todo)) for way in ways),
    ]
    for row in rows:
        click.echo(", ".join(f"{name}: {value}" for name, value in row.items()))
    by_name = {row["drafts"]: row for row in rows}
    figures = {
        "requests": len(todo),
        "schemas": len(CASES),
        "plain_seconds": round(plain_seconds, 2),
        "sampled identical": f"{sampled} of {len(CASES)}",
        "gains": {
            name: {
                figure: round(by_name[MEMORY][figure] / by_name[name][figure], 3)
                for figure in ("M", "speed")
            }
            for name in WITHOUT_GRAMMAR
        },
    }
    click.echo(", ".join(f"{name}: {value}" for name, value in figures.items()))
    return {**figures, "rows": rows}


def is_same_sampled(
    way: Way, form: dict[str, Any], inputs: Any, max_new_tokens: int, clock: Stopwatch
) -> bool:
    """Return whether a sampled text is that of plain generation with the same seed."""
    options = {"do_sample": True, "max_new_tokens": max_new_tokens}
    mask = rest_store.GrammarMask(compiled(form, way.tokenizer))
    torch.manual_seed(7)
    plain = way.model.generate(**inputs, **options, logits_processor=[mask])
    torch.manual_seed(7)
    drafted = way.write(form, inputs, options, clock)
    return drafted == plain[0, inputs["input_ids"].shape[1] :].tolist()


if __name__ == "__main__":
    main()
