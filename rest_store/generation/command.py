"""`rest-store generate`: write text with drafts, show where each token came from, and remember it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import rest_store
from rest_store.datastore.tokenizer import identity_of
from rest_store.errors import DeadlineError, ServiceUnavailableError
from rest_store.live.opening import open_store
from rest_store.service.address import is_service
from rest_store.service.options import Access, access_options

_REMEMBER_SECONDS = 10.0  # that the command waits for an output to be added


def _writable(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a path that cannot be written, before anything is loaded."""
    if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise click.BadParameter(f"{path} cannot be written; does its folder exist?")
    return path


@click.command(epilog='Example: rest-store generate --model SmolLM2.gguf --datastore python.ds --prompt "def add("')
@click.option("--model", "model_name", required=True, help="Hugging Face name, directory or GGUF file.")
@click.option(
    "--datastore", "datastores", multiple=True, help="Directory, frozen or live, or HOST:PORT of a service; repeatable."
)
@access_options
@click.option(
    "--send-text/--no-send-text",
    default=True,
    show_default=True,
    help="Let a service draft from the whole text, or send it the end of the prompt, the output and a few proposals.",
)
@click.option(
    "--remember",
    metavar="PLACE",
    help="Add each output to this live datastore, a directory (new, or as it is) or HOST:PORT, and draft from it.",
)
@click.option("--prompt", "prompts", multiple=True, required=True, help="What to continue; repeatable.")
@click.option("--chat", is_flag=True, help="Render the prompt as a user's turn with the model's chat template.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=256, show_default=True, help="Most new tokens.")
@click.option("--max-nodes", type=click.IntRange(1, 1024), help="Most draft tokens of a step.")
@click.option(
    "--temperature",
    type=click.FloatRange(0, min_open=True),
    help="Sample at this temperature; default: greedy search.",
)
@click.option("--seed", type=int, help="Seed of the random generator.")
@click.option("--dtype", default="auto", show_default=True, help="Type of the weights, such as float32.")
@click.option("--device", help="Where to run the model, such as cuda.")
@click.option("--prepacked-weights", is_flag=True, help="Prepack float32 weights for this CPU.")
@click.option("--compare", is_flag=True, help="Decode plainly too, to compare text and speed.")
@click.option("--graphs", is_flag=True, help="Steps of a few fixed widths, as CUDA graphs.")
@click.option(
    "--html",
    "page_path",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_writable,
    help="Write an HTML page too; one prompt only.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each prompt, each on a line.")
def generate(
    model_name: str,
    datastores: tuple[str, ...],
    access: Access,
    send_text: bool,
    remember: str | None,
    prompts: tuple[str, ...],
    chat: bool,
    max_new_tokens: int,
    max_nodes: int | None,
    temperature: float | None,
    seed: int | None,
    dtype: str,
    device: str | None,
    prepacked_weights: bool,
    graphs: bool,
    compare: bool,
    page_path: Path | None,
    as_json: bool,
) -> None:
    """Write text with a model and drafts from datastores; colours show where each token came from."""
    from rest_store.generation.generator import Generator, load_model
    from rest_store.generation.options import WIDTHS
    from rest_store.generation.render import page

    if page_path is not None and len(prompts) > 1:
        raise click.UsageError("--html takes one --prompt")
    places = list(dict.fromkeys(map(_normal, [*datastores, *([remember] if remember is not None else [])])))
    kept = None if remember is None else _normal(remember)
    directories = [place for place in places if not is_service(place) and place != kept]
    opened = {place: click.get_current_context().with_resource(open_store(place)) for place in directories}
    model, tokenizer = load_model(model_name, dtype=dtype, device=device)
    if prepacked_weights:
        click.get_current_context().with_resource(rest_store.prepacked_weights(model))
    identity = identity_of(tokenizer, model_name)
    for place, store in opened.items():
        store.tokenizer.require_same(identity, place)
    reach = {**access.arguments(), "tokenizer": identity, "send_text": send_text}
    stores = {place: opened.get(place) or _opened(place, tokenizer, reach) for place in places}
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "do_sample": temperature is not None}
    if temperature is not None:
        options["temperature"] = temperature
    sources = [*stores.values(), rest_store.PromptLookup(), rest_store.RecycledLogits()]
    names = [*("remembered" if place == kept else "datastore" for place in places), "prompt", "recycled"]
    labels = [*places, "prompt lookup", "recycled logits"]
    target = None if kept is None else stores[kept]
    widths = WIDTHS if graphs else ()
    generator = Generator(model, tokenizer, sources, max_nodes=max_nodes, widths=widths, remember=target)

    for prompt in prompts:
        text, inputs = _prompt(tokenizer, prompt, chat)
        _set_seed(seed)
        generation = generator.begin(inputs, **options)
        parts = _written(generation, tokenizer, names, show=not as_json)
        generator.flush(_REMEMBER_SECONDS)
        facts = _facts(generation.statistics, labels)
        if compare:
            _set_seed(seed)
            facts |= _compared(model, inputs, options, generation.result(), generation.statistics.seconds)
        summary = _summary(facts)
        if as_json:
            click.echo(json.dumps({"text": "".join(part for part, _ in parts), **facts}, ensure_ascii=False))
        else:
            click.echo(summary)
        if page_path is not None:
            page_path.write_text(page(model_name, text, parts, summary), encoding="utf-8")


def _normal(place: str) -> str:
    """Return the same text for paths that are spelled differently; an address as it is."""
    return place if is_service(place) else str(Path(place))


def _opened(place: str, tokenizer: Any, reach: dict[str, Any]) -> rest_store.LiveDatastore | rest_store.DatastoreClient:
    """Return what is at `place`, closed when the command ends: a live datastore to write to, or a client of a service.

    Warn if the service does not answer.

    Raises:
        TokenizerMismatchError: its datastores were built with another tokenizer.
        LiveDatastoreError: the live datastore cannot be opened for writing.
    """
    context = click.get_current_context()
    if not is_service(place):
        return context.with_resource(rest_store.LiveDatastore.open(place, tokenizer=tokenizer))
    client = context.with_resource(rest_store.DatastoreClient(place, **reach))
    try:
        client.connect(timeout=2.0)
    except (ServiceUnavailableError, DeadlineError) as error:
        click.echo(f"Warning: {error}; its drafts are left out until it answers", err=True)
    return client


def _written(generation: Any, tokenizer: Any, names: Sequence[str], *, show: bool) -> list[tuple[str, str]]:
    """Generate to the end; return the text in parts, each with the name of its origin.

    Args:
        generation: not begun yet.
        tokenizer: the model's.
        names: of the sources.
        show: whether to print each part at once, in the colour of its origin.
    """
    from rest_store.generation.render import Detokenizer, coloured, origin_name

    detokenizer = Detokenizer(tokenizer)
    parts: list[tuple[str, str]] = []
    name = "model"
    for piece in generation:
        for token, origin in zip(piece.tokens[0], piece.origins[0], strict=True):
            name = origin_name(origin, names)
            parts.append((detokenizer.push(token), name))
            if show:
                click.echo(coloured(*parts[-1]), nl=False)
    parts.append((detokenizer.flush(), name))
    if show:
        click.echo(coloured(*parts[-1]))
    return parts


def _facts(statistics: Any, labels: Sequence[str]) -> dict[str, Any]:
    """Return what a generation took, for JSON.

    Args:
        statistics: of a generation that has ended.
        labels: of the sources.
    """
    facts: dict[str, Any] = {
        "tokens": statistics.tokens,
        "forward_passes": statistics.forward_passes,
        "mean_tokens": round(statistics.mean_tokens, 3),
        "tokens_per_second": round(statistics.tokens / statistics.seconds, 2),
    }
    if statistics.drafts.errors:
        facts["drafter_errors"] = statistics.drafts.errors
    if statistics.drafts.dropped:
        dropped = statistics.drafts.dropped.items()
        facts["dropped_sources"] = {f"{labels[place]} ({reason})": steps for (place, reason), steps in dropped}
    if statistics.remembered.ids:
        facts["remembered"] = statistics.remembered.added
    if statistics.remembered.dropped:
        facts["not_remembered"] = statistics.remembered.error
    return facts


def _prompt(tokenizer: Any, prompt: str, chat: bool) -> tuple[str, dict[str, Any]]:
    """Return the prompt as text and as tokens; a chat template writes all special tokens itself."""
    text = prompt
    if chat:
        if not tokenizer.chat_template:
            raise click.UsageError("the model's tokenizer has no chat template: leave out --chat")
        turns = [{"role": "user", "content": prompt}]
        text = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))
    inputs = tokenizer(text, add_special_tokens=not chat, return_token_type_ids=False, return_tensors="pt")
    if not inputs["input_ids"].numel():
        raise click.UsageError("the prompt is empty: there is no token to continue")
    return text, dict(inputs)


def _set_seed(seed: int | None) -> None:
    if seed is not None:
        import torch

        torch.manual_seed(seed)


def _compared(
    model: Any, inputs: dict[str, Any], options: dict[str, Any], drafted: Any, seconds: float
) -> dict[str, Any]:
    """Decode plainly; return the speedup, and whether the text is the same."""
    inputs = {name: value.to(model.device) for name, value in inputs.items()}
    began = time.perf_counter()
    plain = model.generate(**inputs, **options)
    plain_seconds = time.perf_counter() - began
    return {"speedup": round(plain_seconds / seconds, 3), "identical": bool(plain.tolist() == drafted.tolist())}


def _summary(facts: dict[str, Any]) -> str:
    line = (
        f"{facts['tokens']} tokens in {facts['forward_passes']} forward passes, M {facts['mean_tokens']:.2f}, "
        f"{facts['tokens_per_second']:.1f} tokens a second"
    )
    if "speedup" in facts:
        text = "the same text" if facts["identical"] else "another text"
        line += f", {facts['speedup']:.2f} times as fast as plain decoding, which wrote {text}"
    for source, steps in facts.get("dropped_sources", {}).items():
        line += f"; {steps} steps without {source}"
    if "not_remembered" in facts:
        line += f"; not remembered ({facts['not_remembered']})"
    if "drafter_errors" in facts:
        line += f"; drafting failed ({facts['drafter_errors'][0]})"
    return line
