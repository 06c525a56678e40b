"""`rest-store generate`: write text with drafts, show where each token came from, and remember it.

Without a prompt it reads them from standard input, line by line: on a terminal a prompt loop.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import click

import rest_store
from rest_store.datastore.tokenizer import TokenizerIdentity, identity_of
from rest_store.errors import DeadlineError, ServiceUnavailableError
from rest_store.live.opening import open_store
from rest_store.options import (
    FILE,
    PATH,
    PLACE,
    SEED,
    FloatRange,
    device_option,
    dtype_option,
    max_new_tokens_option,
    max_nodes_option,
    model_option,
    to_be_written,
)
from rest_store.service.address import is_service
from rest_store.service.options import Access, access_options
from rest_store.terminal import loading


@click.command(
    epilog="""\b
Examples:
  rest-store generate --model SmolLM2.gguf --datastore python.ds --prompt "def add("
  rest-store generate --model SmolLM2.gguf --datastore python.ds --remember memory"""
)
@model_option
@click.option(
    "--datastore",
    "datastores",
    metavar="PLACE",
    type=PLACE,
    multiple=True,
    help="Directory, frozen or live, or HOST:PORT of a service. Repeatable.",
)
@access_options
@click.option(
    "--send-text/--no-send-text",
    default=True,
    help="Let a service draft from the whole text, or send it the end of the prompt, the output and a few proposals.",
)
@click.option(
    "--remember",
    metavar="PLACE",
    type=PLACE,
    help="Add each output to this live datastore, a new or existing directory or HOST:PORT, and draft from it.",
)
@click.option(
    "--logits",
    "logits_path",
    metavar="FILE",
    type=FILE,
    callback=to_be_written,
    help="Also draft from what the model found likely in earlier runs: read from this file, written to it at the end.",
)
@click.option(
    "--prompt",
    "prompts",
    metavar="TEXT",
    multiple=True,
    show_default="the lines of standard input; typed, Ctrl-C ends a text and Ctrl-D the command",
    help="What to continue. Repeatable.",
)
@click.option(
    "--chat/--no-chat",
    default=None,
    show_default="without --prompt, if the model has a template",
    help="Take a prompt as a user's turn in the model's chat template; lines of standard input continue one chat.",
)
@max_new_tokens_option()
@max_nodes_option(show_default="16 on a CPU, 64 elsewhere")
@click.option(
    "--adaptive/--no-adaptive",
    default=True,
    help="Draft only as much as the measured times of steps justify, or always up to --max-nodes.",
)
@click.option(
    "--calibration",
    metavar="FILE",
    type=PATH,
    show_default="the one of the package",
    help="Draft with what `rest-store calibrate` wrote.",
)
@click.option(
    "--temperature",
    metavar="T",
    type=FloatRange(1e-30),  # scores divided by less may be infinite
    show_default="greedy search",
    help="Sample at this temperature.",
)
@click.option(
    "--top-p",
    metavar="P",
    type=FloatRange(0, 1, min_open=True),
    help="Sample from the likeliest tokens that have this probability together.",
)
@click.option("--top-k", metavar="N", type=click.IntRange(1), help="Sample from the N likeliest tokens.")
@click.option(
    "--acceptance",
    type=click.Choice(("exact", "typical")),
    default="exact",
    help="How sampling accepts draft tokens. Typical is lossy: it keeps plausible ones without a draw.",
)
@click.option("--seed", metavar="N", type=SEED, show_default="a random one", help="Seed of the random generator.")
@dtype_option("auto")
@device_option
@click.option("--prepacked-weights", is_flag=True, help="Prepack float32 weights for this CPU.")
@click.option("--compare", is_flag=True, help="Also decode plainly, to compare text and speed.")
@click.option("--graphs", is_flag=True, help="Steps of a few fixed widths, as CUDA graphs.")
@click.option(
    "--html",
    "page_path",
    metavar="FILE",
    type=FILE,
    callback=to_be_written,
    help="Also write an HTML page; takes one --prompt.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each prompt, each on a line.")
def generate(
    model: str,
    datastores: tuple[str, ...],
    access: Access,
    send_text: bool,
    remember: str | None,
    logits_path: Path | None,
    prompts: tuple[str, ...],
    chat: bool | None,
    max_new_tokens: int,
    max_nodes: int | None,
    adaptive: bool,
    calibration: Path | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    acceptance: str,
    seed: int | None,
    dtype: str,
    device: str | None,
    prepacked_weights: bool,
    graphs: bool,
    compare: bool,
    page_path: Path | None,
    as_json: bool,
) -> None:
    """Generate text with a model and drafts from datastores; colours show where each token came from.

    Without --prompt, each line of standard input is a prompt: a turn of a chat if the model has a template, else text
    to continue. --temperature, --top-p and --top-k turn sampling on.
    """
    from rest_store.generation.generator import Generator
    from rest_store.generation.model import load_model
    from rest_store.generation.options import WIDTHS
    from rest_store.generation.writer import Writer

    if page_path is not None and len(prompts) != 1:
        raise click.UsageError("--html takes one --prompt")
    sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    sampling = {name: value for name, value in sampling.items() if value is not None}
    if acceptance == "typical" and not sampling:
        raise click.UsageError("--acceptance typical is for sampling: give --temperature, --top-p or --top-k")
    own_calibration = None if calibration is None else rest_store.Calibration.load(calibration)
    client_options = {**access.arguments(), "send_text": send_text}
    places = list(dict.fromkeys(map(_normal, [*datastores, *([remember] if remember is not None else [])])))
    remembered = None if remember is None else _normal(remember)
    directories = [place for place in places if not is_service(place) and place != remembered]
    opened = {place: click.get_current_context().with_resource(open_store(place)) for place in directories}
    network, tokenizer = load_model(model, dtype=dtype, device=device, announce=loading)
    if chat and not tokenizer.chat_template:
        raise click.UsageError("the model's tokenizer has no chat template: leave out --chat")
    if prepacked_weights:
        click.get_current_context().with_resource(rest_store.prepacked_weights(network))
    identity = identity_of(tokenizer, model)
    for place, store in opened.items():
        store.tokenizer.require_same(identity, place)
    client_options["tokenizer"] = identity
    stores = {place: opened.get(place) or _opened(place, tokenizer, client_options) for place in places}
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": bool(sampling), **sampling}
    logits = rest_store.RecycledLogits() if logits_path is None else _kept_logits(logits_path, identity)
    sources = [*stores.values(), rest_store.PromptLookup(), logits]
    names = [*("remembered" if place == remembered else "datastore" for place in places), "prompt", "recycled"]
    labels = [*places, "prompt lookup", "recycled logits"]
    target = None if remembered is None else stores[remembered]
    widths = WIDTHS if graphs else ()
    generator = Generator(
        network,
        tokenizer,
        sources,
        max_nodes=max_nodes,
        adaptive=adaptive,
        widths=widths,
        remember=target,
        calibration=own_calibration,
        acceptance=acceptance,
    )
    writer = Writer(generator, options, names, labels, seed=seed, compare=compare, as_json=as_json)
    if prompts:
        for prompt in prompts:
            title = Path(model).name if Path(model).exists() else model
            writer.write(prompt, chat=bool(chat), page_path=page_path, title=title)
    else:
        writer.write_lines(chat=bool(tokenizer.chat_template) if chat is None else chat)


def _kept_logits(path: Path, tokenizer: TokenizerIdentity) -> rest_store.RecycledLogits:
    """Return the recycled logits in a file, or new ones if there is none; write them there when the command ends."""
    logits = rest_store.RecycledLogits.load(path, tokenizer) if path.exists() else rest_store.RecycledLogits()
    click.get_current_context().call_on_close(functools.partial(logits.save, path, tokenizer))
    return logits


def _normal(place: str) -> str:
    """Return the same text for paths that are spelled differently; an address as it is."""
    return place if is_service(place) else str(Path(place))


def _opened(
    place: str, tokenizer: Any, options: dict[str, Any]
) -> rest_store.LiveDatastore | rest_store.DatastoreClient:
    """Return what is at `place`, closed when the command ends: a live datastore to write to, or a client of a service.

    Warn if the service does not answer.

    Raises:
        TokenizerMismatchError: its datastores were built with another tokenizer.
        LiveDatastoreError: the live datastore cannot be opened for writing.
    """
    context = click.get_current_context()
    if not is_service(place):
        return context.with_resource(rest_store.LiveDatastore.open(place, tokenizer=tokenizer))
    client = context.with_resource(rest_store.DatastoreClient(place, **options))
    try:
        client.connect(timeout=2.0)
    except (ServiceUnavailableError, DeadlineError) as error:
        click.echo(f"Warning: {error}; its drafts are left out until it answers", err=True)
    return client
