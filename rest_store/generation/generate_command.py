"""`rest-store generate`: write text with drafts, show where each token came from, and remember it.

Without a prompt it reads them from standard input, line by line: on a terminal a prompt loop.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import rest_store
from rest_store.command_options import (
    FILE,
    LOCATION,
    PATH,
    SEED,
    FloatRange,
    check_writable,
    device_option,
    dtype_option,
    json_schema_option,
    max_new_tokens_option,
    max_nodes_option,
    model_option,
    text_of_file,
)
from rest_store.datastore.locations import is_remote
from rest_store.datastore.store import Store
from rest_store.datastore.tokenizer import identity_of
from rest_store.live.agent_memory import as_sources
from rest_store.live.open_store import open_store
from rest_store.service.connection_options import Access, access_options
from rest_store.terminal import loading


@click.command(
    epilog="""\b
Examples:
  rest-store generate --model M.gguf --datastore py.ds --prompt "def add("
  rest-store generate --model M.gguf --datastore py.ds --remember history"""
)
@model_option
@click.option(
    "--datastore",
    "datastores",
    metavar="LOCATION",
    type=LOCATION,
    multiple=True,
    help=(
        "Datastore to draft from: frozen or live, or HOST:PORT/NAME of one in a service"
        " (HOST:PORT alone: its only one). Repeatable."
    ),
)
@click.option(
    "--drafting",
    type=click.Choice(["local", "remote"]),
    default="local",
    help=(
        "Datastores of services: copy them here and keep the copies up to date, or ask for each"
        " draft."
    ),
)
@access_options
@click.option(
    "--remember",
    metavar="LOCATION",
    type=LOCATION,
    help=(
        "Add each output to this live datastore, a new or existing directory or HOST:PORT/NAME;"
        " draft from it, too."
    ),
)
@click.option(
    "--prompt",
    "prompts",
    metavar="TEXT",
    multiple=True,
    show_default="the lines of standard input; typed, Ctrl-C ends a text and Ctrl-D the command",
    help="Text to continue. Repeatable.",
)
@click.option(
    "--chat/--no-chat",
    default=None,
    show_default="without --prompt, if the model has a template",
    help=(
        "Render texts with the model's chat template: a prompt is a user's turn; lines of standard"
        " input continue one chat."
    ),
)
@json_schema_option("A JSON schema that each output satisfies.")
@click.option("--regex", metavar="TEXT", help="A regular expression that each output matches.")
@click.option(
    "--grammar",
    metavar="FILE",
    type=FILE,
    callback=text_of_file,
    help="A grammar that each output follows, as llguidance reads it.",
)
@max_new_tokens_option()
@max_nodes_option(show_default="16 on a CPU, 64 elsewhere")
@click.option(
    "--calibration",
    metavar="FILE",
    type=PATH,
    show_default="the one of the package",
    help="A calibration that `rest-store calibrate` wrote.",
)
@click.option(
    "--temperature",
    metavar="T",
    type=FloatRange(1e-30),  # scores divided by less may be infinite
    show_default="greedy search",
    help="Sample at this temperature.",
)
@click.option(
    "--seed",
    metavar="N",
    type=SEED,
    show_default="a random one",
    help="Seed of the random generator.",
)
@dtype_option("auto")
@device_option
@click.option(
    "--prepacked-weights",
    is_flag=True,
    help=(
        "Copy float32 weights into the layout that this CPU is fastest with: above all for passes"
        " over a tree. Weights of another type become float32, unless --dtype names one."
    ),
)
@click.option(
    "--compare",
    is_flag=True,
    help="Also decode plainly, in turns with drafts, to compare text and speed.",
)
@click.option(
    "--html",
    "page_path",
    metavar="FILE",
    type=FILE,
    callback=check_writable,
    help="Also write an HTML page; takes one --prompt.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object to standard output: for each prompt one, each on a line.",
)
def generate(
    model: str,
    datastores: tuple[str, ...],
    drafting: str,
    access: Access,
    remember: str | None,
    prompts: tuple[str, ...],
    chat: bool | None,
    json_schema: str | None,
    regex: str | None,
    grammar: str | None,
    max_new_tokens: int,
    max_nodes: int | None,
    calibration: Path | None,
    temperature: float | None,
    seed: int | None,
    dtype: str,
    device: str | None,
    prepacked_weights: bool,
    compare: bool,
    page_path: Path | None,
    as_json: bool,
) -> None:
    """Generate text with a model and drafts from datastores.

    Drafts are trees of tokens, which the model verifies in one forward pass. M is the mean number
    of tokens that a pass writes; without drafts it is 1.

    Without --prompt, each line of standard input is a prompt: a turn of a chat if the model has a
    template, else text to continue.
    """
    from rest_store.generation.generator import Generator
    from rest_store.generation.model import load_model
    from rest_store.generation.printer import Printer

    if page_path is not None and len(prompts) != 1:
        raise click.UsageError("--html takes one --prompt")
    if sum(form is not None for form in (json_schema, regex, grammar)) > 1:
        raise click.UsageError("--json-schema, --regex and --grammar exclude each other")
    locations = [
        location if is_remote(location) else str(Path(location)) for location in datastores
    ]
    target = remember if remember is None or is_remote(remember) else str(Path(remember))
    credentials = access.arguments()
    own_calibration = None if calibration is None else rest_store.Calibration.load(calibration)
    if prepacked_weights and dtype == "auto":
        dtype = "float32"  # the type of the weights that can be prepacked
    network, tokenizer = load_model(model, dtype=dtype, device=device, announce=loading)
    if chat and not tokenizer.chat_template:
        raise click.UsageError("the model's tokenizer has no chat template: leave out --chat")
    context = click.get_current_context()
    if prepacked_weights:
        context.with_resource(rest_store.prepacked_weights(network))
    identity = identity_of(tokenizer, model)
    stores: dict[str, Any] = {}
    for location in dict.fromkeys([*locations, *([] if target is None else [target])]):
        if drafting == "remote" and is_remote(location):
            from rest_store.service.client.startup import open_client

            def warn(line: str) -> None:
                click.echo(f"Warning: {line}", err=True)

            client = open_client(location, warn, tokenizer=identity, **credentials)
            stores[location] = context.with_resource(client)
        elif location == target:
            live = rest_store.LiveDatastore.open(location, tokenizer=tokenizer, **credentials)
            stores[location] = context.with_resource(live)
        else:
            stores[location] = context.with_resource(
                open_store(location, tokenizer=identity, **credentials)
            )
    sources: dict[str, Any] = {}
    for location, store in stores.items():
        name = _name(location, store, **credentials)
        kinds = as_sources(store) if isinstance(store, Store) else {"": store}
        for kind, source in kinds.items():
            sources[f"{name}/{kind}" if kind else name] = source
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "do_sample": temperature is not None,
    }
    if temperature is not None:
        options["temperature"] = temperature
    generator = Generator(
        network,
        tokenizer,
        [*sources.values(), rest_store.PromptLookup(), rest_store.RecycledLogits()],
        max_nodes=max_nodes,
        remember=None if target is None else stores[target],
        calibration=own_calibration,
    )
    generator.source_names[: len(sources)] = sources
    # A mistake is said before anything is written.
    options["grammar"] = generator.grammar(json_schema=json_schema, regex=regex, grammar=grammar)
    printer = Printer(generator, options, seed=seed, compare=compare, as_json=as_json)
    if prompts:
        if chat is None and tokenizer.chat_template:
            click.echo(
                "--prompt is continued as text; with --chat it is a question in the model's chat"
                " template",
                err=True,
            )
        for prompt in prompts:
            title = Path(model).name if Path(model).exists() else model
            printer.write(prompt, chat=bool(chat), page_path=page_path, title=title)
    else:
        printer.write_lines(chat=bool(tokenizer.chat_template) if chat is None else chat)


def _name(location: str, store: Any, **credentials: Any) -> str:
    """Return the name of a source; that of a copy or a replica has its origin."""
    if not is_remote(location):
        return location
    from rest_store.service.client.client import DatastoreClient
    from rest_store.service.client.startup import display_name

    is_copy = not isinstance(store, DatastoreClient)
    is_live = isinstance(store, rest_store.LiveDatastore) if is_copy else None
    return display_name(location, is_live=is_live, **credentials)
