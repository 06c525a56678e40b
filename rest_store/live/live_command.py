"""The commands `rest-store live`, and the text of `rest-store info` for a live datastore."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from build_index.corpus_spec import CorpusSpec, corpus_options
from build_index.size import size_text
from rest_store.command_options import PATH, SETTINGS, FloatRange, Group, json_option
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.render import counted, one_line, table
from rest_store.live.directory import is_live
from rest_store.terminal import loading

if TYPE_CHECKING:
    from rest_store.live.live_datastore import LiveDatastore
    from rest_store.live.live_info import LiveInfo


@click.group(cls=Group, context_settings=SETTINGS)
def live() -> None:
    """Add to live datastores, delete from them, and export them as frozen ones.

    A live datastore grows while it is queried. One process writes it. While a service or a script
    writes it, `add` and `delete` are refused, but `export` and `rest-store info` work.
    """


def show(directory: Path, *, as_json: bool) -> None:
    """Print the output of `rest-store info` for the live datastore in `directory`."""
    with _open(directory, read_only=True) as store:
        info = store.info()
    tokenizer = info.tokenizer
    documents_size = sum(path.stat().st_size for path in directory.glob("documents.sqlite*"))
    oldest = _time_text(info.oldest)
    newest = _time_text(info.built)
    if as_json:
        facts = {
            **asdict(info),
            "path": str(directory),
            "documents_size": documents_size,
            "tokenizer": tokenizer.to_manifest(),
            "built": newest,
            "oldest": oldest,
            "live": True,
        }
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    table_rows = [
        ("live", str(info.path)),
        ("tokens", f"{info.token_count:,} in {counted(info.document_count, 'document')}"),
        ("retention", _retention_text(info)),
        ("shared", _sharing_text(info)),
        ("tokenizer", f"{tokenizer.name}, {counted(tokenizer.vocabulary_size, 'id')}"),
        ("added", f"{oldest} to {newest}" if info.document_count else "nothing"),
        ("documents", f"{size_text(documents_size)} in SQLite"),
        ("segments", f"{info.shard_count}, {size_text(info.size)} in files"),
        ("identity", f"{tokenizer.fingerprint[:23]}..."),
    ]
    click.echo(table(table_rows))


def _time_text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="seconds")


def _retention_text(info: LiveInfo) -> str:
    texts = []
    if info.max_tokens is not None:
        texts.append(counted(info.max_tokens, "token"))
    if info.max_age is not None:
        texts.append(f"{info.max_age / 3600:g} hours")
    if info.max_epochs is not None:
        texts.append(counted(info.max_epochs, "epoch"))
    return ", ".join(texts) or "everything"


def _sharing_text(info: LiveInfo) -> str:
    if info.shared_after == 1:
        return "with every group"
    return f"after {info.shared_after} groups have written the same"


@live.command(
    epilog="""\b
Examples:
  rest-store live add history answers.jsonl --max-tokens 20000000 \\
      --tokenizer HuggingFaceTB/SmolLM2-135M-Instruct
  rest-store live add history answers.jsonl --json | jq -r '.ids[]' > ids.txt""",
)
@click.argument("directory", metavar="DIR", type=PATH)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--tokenizer",
    metavar="NAME_OR_PATH",
    show_default="the one stored in DIR",
    help="Tokenizer of the target model: for a datastore that is created.",
)
@click.option(
    "--max-tokens", metavar="N", type=click.IntRange(1), help="Keep at most N tokens: the newest."
)
@click.option(
    "--max-age",
    metavar="SECONDS",
    type=FloatRange(0, min_open=True),
    help="Keep documents for so many seconds.",
)
@click.option(
    "--max-epochs",
    metavar="N",
    type=click.IntRange(1),
    help="Keep the documents of the newest N epochs.",
)
@click.option(
    "--shared-after",
    metavar="N",
    type=click.IntRange(1, 64),
    show_default="as it was opened last",
    help="Tell a group of others' text once N groups have written it.",
)
@click.option("--group", metavar="NAME", default="", help="The group that the documents are of.")
@corpus_options
@json_option
def add(
    directory: Path,
    paths: tuple[str, ...],
    tokenizer: str | None,
    max_tokens: int | None,
    max_age: float | None,
    max_epochs: int | None,
    shared_after: int | None,
    group: str,
    chat_template: str | None,
    as_json: bool,
    **reading: Any,
) -> None:
    """Add documents to the live datastore DIR, or create it with them.

    Each PATH is read as `rest-build` reads a corpus: a file of text (one document), JSON, JSONL or
    parquet, a directory or an address. Documents that exist already are not added again, so an
    interrupted command can be repeated. With --json, `ids` lists the ids for `rest-store live
    delete`, in the order of the documents.
    """
    from build_index.corpus import empty_corpora, open_corpus
    from build_index.documents import CorpusCounts, batches
    from build_index.duplicates import content_digest
    from build_index.omissions import omissions_text, skipped_texts
    from build_index.tokenization import load_in_process, load_tokenizer

    corpora = [open_corpus(CorpusSpec(path, **reading)) for path in paths]
    if tokenizer is None and not is_live(directory):
        _open(directory)  # raises the error that says why it is not live
    source = tokenizer or directory / TOKENIZER_FILE_NAME
    with loading(f"tokenizer {source}"):
        target = load_tokenizer(load_in_process(source), chat_template=chat_template)
    ids: list[str] = []
    counts = CorpusCounts()  # conversations that the chat template refuses or shortens
    duplicates = 0
    tokens = 0
    without_tokens = 0
    with _open(
        directory,
        tokenizer=target,
        max_tokens=max_tokens,
        max_age=max_age,
        max_epochs=max_epochs,
        shared_after=shared_after,
    ) as store:
        for batch in batches(chain.from_iterable(corpora)):
            encoded = []
            digests = []
            for document, document_tokens in zip(
                batch, target.encode_counted(batch, counts), strict=True
            ):
                if document_tokens is None:  # the chat template refused it
                    continue
                if not len(document_tokens):
                    without_tokens += 1
                    continue
                tokens += len(document_tokens)
                encoded.append(document_tokens)
                digest = content_digest(document).hex()
                digests.append(f"{digest}/{group}" if group else digest)
            # The id is a digest of the content and the group, so a document that exists is not
            # added again.
            added = store.add(encoded, digests, group=group)
            ids += added
            duplicates += len(added.duplicates)
        if not ids:
            corpora[0].counts.add(counts)
            raise empty_corpora(corpora, without_tokens)
        described = store.info()
    for corpus in corpora:
        counts.add(corpus.counts)
    if as_json:
        facts = {
            "path": str(directory),
            "skipped": dict(counts.skipped),
            "documents": len(ids),
            "duplicates": duplicates,
            "tokens": tokens,
            "without_tokens": without_tokens,
            "left_out": dict(counts.left_out),
            "refusal": counts.refusal,
            "token_count": described.token_count,
            "document_count": described.document_count,
            "ids": ids,
        }
        click.echo(json.dumps(facts))
        return
    click.echo(
        f"{directory}: {counted(len(ids), 'document')} read, {duplicates:,} of them existed already"
    )
    documents = counted(described.document_count, "document")
    click.echo(f"now {documents} with {counted(described.token_count, 'token')}")
    largest = {reason: example for reason, (_, example) in counts.largest.items()}
    for text in skipped_texts(counts.skipped, counts.sizes, largest):
        click.echo(f"left out: {text}")
    if counts.left_out:
        click.echo(f"not stored: {omissions_text(counts.left_out)}")
    if counts.refusal:
        click.echo(f"refused: {one_line(counts.refusal)}")


@live.command(epilog="Example: rest-store live delete history notes 0f3a")
@click.argument("directory", metavar="DIR", type=PATH)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@json_option
def delete(directory: Path, ids: tuple[str, ...], as_json: bool) -> None:
    """Delete the documents with these IDs from all answers and files of the live datastore DIR."""
    with _open(directory) as store:
        count = store.delete(ids)
    named = len(set(ids))  # equal documents have one id
    if as_json:
        click.echo(json.dumps({"path": str(directory), "deleted": count, "absent": named - count}))
        return
    click.echo(f"{directory}: {count:,} of {counted(named, 'document')} deleted")


@live.command(epilog="Example: rest-store live export history --out history.ds")
@click.argument("directory", metavar="DIR", type=PATH)
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    type=PATH,
    help="Destination of the result: the frozen datastore; an old datastore there is replaced.",
)
@json_option
def export(directory: Path, out: Path, as_json: bool) -> None:
    """Write the documents of the live datastore DIR as a frozen datastore. DIR stays as it is."""
    from rest_store.live.export import export as export_live

    with _open(directory, read_only=True) as store:
        described = export_live(store, out).info()
    if as_json:
        counts = {"documents": described.document_count, "tokens": described.token_count}
        click.echo(
            json.dumps(
                {"out": str(out), **counts, "shards": described.shard_count, "size": described.size}
            )
        )
        return
    click.echo(
        f"{out}: {counted(described.token_count, 'token')} in"
        f" {counted(described.shard_count, 'shard')}"
    )


def _open(directory: Path, **options: Any) -> LiveDatastore:
    from rest_store.live.live_datastore import LiveDatastore

    return LiveDatastore.open(directory, **options)
