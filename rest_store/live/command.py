"""`rest-store live`: look at a live datastore, add to it, delete from it, and freeze it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from build_index.reading_options import Reading, reading_options
from build_index.size import size_text
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.render import one_line
from rest_store.live.opening import is_live

if TYPE_CHECKING:
    from rest_store.live.corpora import Added
    from rest_store.live.live_datastore import LiveDatastore
    from rest_store.live.live_info import LiveInfo

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DIRECTORY = click.Path(path_type=Path, file_okay=True)


class Duration(click.ParamType[float]):
    """A time in seconds, or with s, m, h, d or w for seconds, minutes, hours, days or weeks."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds, or fail with a usage error."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", str(value))
        if match is None or not float(match[1]):
            self.fail(f"'{value}' is not a time such as 3600, 12h or 30d", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def live() -> None:
    """Look at live datastores, add to them, delete from them, and freeze them.

    A live datastore grows while it is asked. One process writes it: while a service or a script does, `add`, `delete`
    and `compact` are refused, and `info` and `export` work.
    """


@live.command(epilog="Example: rest-store live info memory")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def info(directory: Path, as_json: bool) -> None:
    """Show the size, the limits and the tokenizer of the live datastore DIR."""
    show(directory, as_json=as_json)


def show(directory: Path, *, as_json: bool) -> None:
    """Print what `rest-store live info` shows."""
    with _open(directory, read_only=True) as store:
        described, stored = store.info(), _size_of_documents(directory)
    facts = {**asdict(described), "path": str(directory), "documents_size": stored}
    facts["tokenizer"] = described.tokenizer.to_manifest()
    facts["live"] = True
    for name in ("built", "oldest"):
        facts[name] = None if facts[name] is None else facts[name].isoformat(timespec="seconds")
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    for name, value in _rows(described, facts):
        click.echo(f"{name + ':' * bool(name):<11}{one_line(value)}")


def _rows(described: LiveInfo, facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    tokenizer = described.tokenizer
    limits = [] if described.max_tokens is None else [f"{described.max_tokens:,} tokens"]
    limits += [] if described.max_age is None else [_duration_text(described.max_age)]
    files = described.token_count - described.memory_token_count
    yield "live", str(described.path)
    yield "tokens", f"{described.token_count:,} in {described.document_count:,} documents"
    if described.document_count:
        yield "added", f"{facts['oldest']} to {facts['built']}"
    yield "limits", ", ".join(limits) or "none"
    yield "documents", f"{size_text(facts['documents_size'])} in SQLite"
    yield "segments", f"{described.shard_count}, with {files:,} tokens in files ({size_text(described.size)})"
    yield "", f"and {described.memory_token_count:,} in memory ({size_text(described.memory_size)})"
    yield "tokenizer", tokenizer.name
    yield "", f"{tokenizer.vocabulary_size:,} ids, {tokenizer.fingerprint[:23]}..."
    yield "kernel", described.kernel
    if described.failure is not None:
        yield "failure", described.failure


def _size_of_documents(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("documents.sqlite*"))


def _duration_text(seconds: float) -> str:
    for unit, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} seconds"


@live.command(
    epilog="""\b
Examples:
  rest-store live add memory answers.jsonl --tokenizer HuggingFaceTB/SmolLM2-135M-Instruct --max-tokens 20000000
  rest-store live add memory notes.txt --id notes""",
    context_settings={"max_content_width": 100},
)
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--tokenizer",
    metavar="NAME_OR_PATH",
    help="Tokenizer of the target model, to begin a datastore. Default: the one stored in DIR.",
)
@click.option("--max-tokens", metavar="N", type=click.IntRange(1), help="Keep at most N tokens: the newest.")
@click.option("--max-age", metavar="TIME", type=Duration(), help="Keep documents so long: seconds, or 12h, 30d, 4w.")
@click.option("--id", "ids", metavar="ID", multiple=True, help="One for each document. Default: made of the content.")
@reading_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def add(
    directory: Path,
    paths: tuple[str, ...],
    tokenizer: str | None,
    max_tokens: int | None,
    max_age: float | None,
    ids: tuple[str, ...],
    reading: Reading,
    as_json: bool,
) -> None:
    """Add documents to the live datastore DIR, or begin it with them.

    Each PATH is read as `rest-build` reads a corpus: a file of text (one document), JSON, JSONL or parquet, a
    directory, or hf://owner/name. Documents that are there already are not added again, so an interrupted command can
    be repeated.
    """
    from build_index.corpus import open_corpus
    from build_index.tokenization import load_tokenizer
    from rest_store.live.corpora import add_corpora

    corpora = [open_corpus(spec) for spec in reading.specs(paths)]
    if tokenizer is None and not is_live(directory):
        _open(directory)  # says what is there instead
    target = load_tokenizer(tokenizer or directory / TOKENIZER_FILE_NAME, chat_template=reading.chat_template)
    with _open(directory, tokenizer=target, max_tokens=max_tokens, max_age=max_age) as store, _progress() as progress:
        added = add_corpora(store, corpora, target, ids, progress)
        described = store.info()
    facts = {**asdict(added), "token_count": described.token_count, "document_count": described.document_count}
    if as_json:
        click.echo(json.dumps({"path": str(directory), **facts}))
        return
    left_out = f" ({added.without_tokens:,} more without tokens)" if added.without_tokens else ""
    click.echo(f"{directory}: {added.documents:,} documents of {added.tokens:,} tokens read{left_out},")
    click.echo(f"now {described.document_count:,} documents of {described.token_count:,} tokens there")


@contextmanager
def _progress() -> Iterator[Any]:
    """Yield what shows on a terminal how much was added, and clear the line in the end."""
    shown = sys.stderr.isatty()

    def progress(added: Added) -> None:
        if shown:
            line = f"{added.documents:,} documents, {added.tokens:,} tokens"
            click.echo(f"\r{line:<60}", nl=False, err=True)

    try:
        yield progress
    finally:
        if shown:
            click.echo("\r" + " " * 60 + "\r", nl=False, err=True)


@live.command(epilog="Example: rest-store live delete memory notes 0f3a")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
def delete(directory: Path, ids: tuple[str, ...]) -> None:
    """Delete the documents with these IDs from the live datastore DIR: from all answers and files."""
    with _open(directory) as store:
        count = store.delete(ids)
    click.echo(f"{directory}: {count} of {len(ids)} documents deleted" + (", the others absent" * (count < len(ids))))


@live.command(epilog="Example: rest-store live compact memory")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
def compact(directory: Path) -> None:
    """Write all documents of the live datastore DIR to as few segments as there may be: it opens and answers faster."""
    with _open(directory) as store:
        before = store.info().shard_count
        store.compact()
        after = store.info()
    click.echo(f"{directory}: {before} segments before, {after.shard_count} now, {size_text(after.size)} in files")


@live.command(epilog="Example: rest-store live export memory --out memory.ds")
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--out", required=True, metavar="DATASTORE", type=_DIRECTORY, help="Directory to create.")
def export(directory: Path, out: Path) -> None:
    """Freeze the live datastore DIR as it is now into a datastore of its own; DIR stays as it is."""
    from rest_store.live.export import export as export_live

    with _open(directory, read_only=True) as store:
        described = export_live(store, out).info()
    click.echo(f"{out}: {described.token_count:,} tokens in {described.document_count:,} documents,")
    click.echo(f"{described.shard_count} shards, {size_text(described.size)}")


def _open(directory: Path, **options: Any) -> LiveDatastore:
    from rest_store.live.live_datastore import LiveDatastore

    return LiveDatastore.open(directory, **options)
