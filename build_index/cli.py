"""The command `rest-build`, which is also `rest-store build`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rest_store.errors import MemoryBudgetError, RestStoreError

if TYPE_CHECKING:
    from build_index.options import BuildOptions, BuildSummary

_READERS = ("parquet", "jsonl", "json", "chat", "text", "tree")
_HELP = """Build a datastore from the corpora that you have.

DIR appears when it is complete. What was there before, a datastore of an earlier build, stays as it is until then.

\b
Example:
  rest-build --corpus src/ --include '*.py' --corpus chats.jsonl \\
             --tokenizer HuggingFaceTB/SmolLM2-135M-Instruct --out datastore/
"""
_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class MemorySize(click.ParamType[int]):
    """A size in bytes, with K, M, G or T for powers of 1,024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return bytes, or fail as bad usage."""
        from build_index.memory import parse_size

        try:
            return parse_size(str(value))
        except MemoryBudgetError as error:
            self.fail(str(error), param, ctx)


@click.command(
    "build",
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Shards are as large as the memory allows, so --memory shapes the files, but no answer.",
)
@click.option(
    "--corpus",
    "corpora",
    metavar="PATH",
    multiple=True,
    required=True,
    help="A file (parquet, JSON, JSONL, text, also .gz and .zst), a directory, or hf://owner/name[/config][@split]. "
    "May be repeated.",
)
@click.option(
    "--tokenizer",
    metavar="NAME_OR_PATH",
    required=True,
    help="The target model's tokenizer: a Hugging Face name, a directory, a tokenizer.json or a .gguf file.",
)
@click.option("--out", metavar="DIR", required=True, type=click.Path(path_type=Path), help="The datastore to make.")
@click.option(
    "--shard-tokens",
    metavar="N",
    type=click.IntRange(2, 1 << 30),
    help="Tokens of a shard, document ends counted. Default: what the memory allows, a power of two.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    type=MemorySize(),
    help="Most memory to take, such as 8G or 512M. Default: half of what is available.",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1),
    help="Threads that tokenize; the result does not depend on them. Default: one for each core.",
)
@click.option("--resume", is_flag=True, help="Go on with a build that was interrupted, after its last complete shard.")
@click.option("--reader", type=click.Choice(_READERS), help="How to read the corpora. Default: by their content.")
@click.option("--field", metavar="F", help="The field of each record that holds the document, such as 'text' or 'a.b'.")
@click.option("--lang", "langs", metavar="L", multiple=True, help="Only records in this language. May be repeated.")
@click.option("--include", metavar="GLOB", multiple=True, help="Of directories, only these files. May be repeated.")
@click.option("--exclude", metavar="GLOB", multiple=True, help="Of directories, not these. May be repeated.")
@click.option("--max-documents", metavar="N", type=click.IntRange(1), help="Read at most so many of each corpus.")
@click.option(
    "--chat-template",
    metavar="T",
    help="A file with a Jinja template for conversations, or its text. Default: the tokenizer's own.",
)
@click.option("--keep-duplicates", is_flag=True, help="Store exact duplicates, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("--quiet", is_flag=True, help="Show neither progress nor, without --json, the summary.")
@click.pass_context
def build(
    context: click.Context,
    corpora: tuple[str, ...],
    tokenizer: str,
    out: Path,
    shard_tokens: int | None,
    memory: int | None,
    workers: int | None,
    resume: bool,
    reader: str | None,
    field: str | None,
    langs: tuple[str, ...],
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    max_documents: int | None,
    chat_template: str | None,
    keep_duplicates: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the command; see `_HELP`."""
    with _failures_in_one_line(context, out):
        from build_index.corpus import CorpusSpec
        from build_index.options import BuildOptions

        def spec(path: str) -> CorpusSpec:
            # Globs choose files of directories; only where no directory is given they are a mistake, which is reported.
            has_globs = Path(path).is_dir() or not any(Path(other).is_dir() for other in corpora)
            return CorpusSpec(
                path, reader, field, langs, include if has_globs else (), exclude if has_globs else (), max_documents
            )

        options = BuildOptions(
            corpora=tuple(map(spec, corpora)),
            tokenizer=tokenizer,
            out=out,
            shard_tokens=shard_tokens,
            memory=memory,
            workers=workers,
            resume=resume,
            keep_duplicates=keep_duplicates,
            chat_template=chat_template,
        )
        summary = _build_with_bars(options, quiet=quiet)
        if as_json:
            click.echo(json.dumps(summary.to_json(), sort_keys=True))
        elif not quiet:
            click.echo(summary_text(summary))


def _build_with_bars(options: BuildOptions, *, quiet: bool) -> BuildSummary:
    from build_index.builder import build as build_datastore
    from build_index.progress import TerminalBars

    if quiet or not TerminalBars.fits(sys.stderr):
        return build_datastore(options)
    return build_datastore(options, TerminalBars(sys.stderr))


@contextmanager
def _failures_in_one_line(context: click.Context, out: Path) -> Iterator[None]:
    """Report what fails in one line, and end with status 1, or 130 after an interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        message, status = "interrupted", _INTERRUPTED
    except RestStoreError as error:
        message, status = str(error), 1
    except OSError as error:
        message, status = f"{error.filename or out}: the datastore cannot be written ({error.strerror or error})", 1
    else:
        return
    click.echo(f"Error: {' '.join(message.split())}{_hint(out)}", err=True)
    context.exit(status)


def _hint(out: Path) -> str:
    from build_index.staging import kept_shards

    try:
        count = kept_shards(out)
    except OSError:
        return ""
    return f" ({count} finished shard{'s' if count > 1 else ''} kept: go on with --resume)" if count else ""


def summary_text(summary: BuildSummary) -> str:
    """Return the summary as a person reads it.

    Args:
        summary: of a build.

    Returns:
        A few lines.
    """
    from build_index.memory import size_text
    from build_index.progress import clock

    kept = [f"{summary.duplicates:,} exact duplicates dropped"]
    kept += [f"{number:,} {reason}" for reason, number in summary.skipped.items()]
    kept += [f"{summary.split_documents:,} split"] if summary.split_documents else []
    shards = f"{summary.shards:,}" + (f" ({summary.resumed_shards:,} resumed)" if summary.resumed_shards else "")
    stages = ", ".join(f"{stage} {clock(seconds)}" for stage, seconds in summary.stage_seconds.items())
    rows = {
        "datastore": summary.out,
        "documents": f"{summary.documents:,} ({', '.join(kept)})",
        "tokens": f"{summary.tokens:,}",
        "shards": shards,
        "size": f"{size_text(summary.size)}, {summary.bytes_per_token:.2f} bytes a token",
        "time": f"{clock(summary.seconds)} ({stages}; sorting overlaps)",
        "memory": f"{size_text(summary.peak_memory)} at the peak, of {size_text(summary.memory)} allowed",
    }
    return "\n".join(f"{name:<10} {text}" for name, text in rows.items())
