"""The command line: `rest-store` and its commands; `rest-build` is `rest-store build`."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from rest_store.command_options import (
    FILE,
    LOCATION,
    PATH,
    SETTINGS,
    Group,
    json_option,
    max_nodes_option,
)
from rest_store.datastore.kernel import MAX_DEPTH, MAX_SUFFIX
from rest_store.datastore.locations import is_remote
from rest_store.datastore.render import counted, one_line, table
from rest_store.errors import RestStoreError
from rest_store.extras import named_extras
from rest_store.service.connection_options import Access, access_options, timeout_option
from rest_store.terminal import draft_as_json, draw_draft, loading
from rest_store.version import __version__

if TYPE_CHECKING:
    from rest_store.datastore.datastore import DatastoreInfo


class _Group(Group):
    """A group that turns our errors, and Ctrl-C, into one line and an exit status.

    Commands of other packages are named `module:attribute` and imported when they run or show their
    help.
    """

    imports = {  # noqa: RUF012  read only
        "build": "build_index.build_command:build",
        "serve": "rest_store.service.server.serve_command:serve",
        "bench": "rest_store.bench.bench_command:bench",
        "calibrate": "rest_store.bench.calibrate:calibrate",
        "generate": "rest_store.generation.generate_command:generate",
        "live": "rest_store.live.live_command:live",
        "remember": "rest_store.agents.command:remember",
        "try": "rest_store.bench.trial:try_",
    }

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted([*super().list_commands(context), *self.imports])

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in self.imports:
            return _imported(self.imports[name])
        return super().get_command(context, name)

    def invoke(self, context: click.Context) -> Any:
        # A path may hold bytes that are not UTF-8; JSON knows \udc80 too.
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        if os.environ.get("NO_COLOR"):  # https://no-color.org
            context.color = False
        # gRPC reads this at its import. Its own lines of log are for its developers.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        # torch's OpenMP reads this at its import. Its idle threads then sleep after microseconds.
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: click.echo(
                f"Warning: {message}", err=True
            )
            try:
                with named_extras("rest-store"):
                    return super().invoke(context)
            except RestStoreError as error:
                raise click.ClickException(one_line(str(error))) from error
            except KeyboardInterrupt:
                line_end = "\n" if sys.stderr.isatty() else ""  # a terminal shows ^C
                click.echo(f"{line_end}Error: interrupted", err=True)
                context.exit(130)
            except OSError as error:
                if error.errno == errno.EPIPE:  # the reader has gone, and click ends without a word
                    raise
                raise click.ClickException(one_line(str(error))) from error


def _imported(name: str) -> click.Command:
    module, _, attribute = name.partition(":")
    command: click.Command = getattr(importlib.import_module(module), attribute)
    return command


def _configure(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Take the defaults of commands from a TOML file."""
    if path is None or context.resilient_parsing:
        return
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.BadParameter(f"{path}: {error}") from error
    context.default_map = _defaults(context.command, tables, str(path))


def _defaults(command: click.Command, table: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a table of defaults with the names that click has for options.

    The table of a group has one table for each command.
    """
    context = click.Context(command)
    defaults = {}
    for key, value in table.items():
        if isinstance(command, click.Group):
            below = command.get_command(context, key)
            if below is None or not isinstance(value, dict):
                raise click.BadParameter(
                    f"{where}: '{key}' is no command with a table of its options"
                )
            defaults[key] = _defaults(below, value, f"{where}, {key}")
            continue
        names = [one.name for one in command.params if f"--{key}" in one.opts or key in one.opts]
        if not names:
            raise click.BadParameter(f"{where}: there is no option '--{key}'")
        defaults[names[0] or key] = value
    return defaults


@click.group(cls=_Group, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="rest-store")
@click.option(
    "--config",
    metavar="FILE",
    type=FILE,
    callback=_configure,
    expose_value=False,
    help="TOML file of default option values, with a table for each command, such as [serve].",
)
def main() -> None:
    """Retrieval-based speculative decoding: build, query, serve and generate with datastores."""


def build_main() -> None:
    """Run `rest-store build` under the name `rest-build`."""
    _imported(_Group.imports["build"]).main(prog_name="rest-build")


@main.command(epilog="Example: rest-store info python.ds")
@click.argument("location", metavar="LOCATION", type=LOCATION)
@access_options
@timeout_option(10.0)
@json_option
def info(location: str, access: Access, timeout: float, as_json: bool) -> None:
    """Show size, tokenizer and sources of the datastore at LOCATION, frozen or live.

    --json shows build options, too.

    Of a service, HOST:PORT or unix:/path, it shows the datastores. The partitions of a datastore
    are shown together: HOST:PORT,HOST:PORT;HOST:PORT, with commas between services of the same
    partition.
    """
    from rest_store.datastore.datastore import Datastore
    from rest_store.live.directory import is_live

    if is_remote(location):
        from rest_store.service.client.info_command import show_service

        show_service(location, timeout=timeout, as_json=as_json, **access.arguments())
        return
    datastore = Path(location)
    if is_live(datastore):
        from rest_store.live.live_command import show

        show(datastore, as_json=as_json)
        return
    description = Datastore.open(datastore).info()
    manifest = json.loads(description.manifest.to_json())
    facts = {
        "path": str(description.path),
        "built": description.built.isoformat(timespec="seconds"),
        "size": description.size,
        "bytes_per_token": round(description.size / description.token_count, 3),
        **manifest,
    }
    click.echo(json.dumps(facts, ensure_ascii=False) if as_json else table(_facts(description)))


def _facts(description: DatastoreInfo) -> Iterator[tuple[str, str]]:
    """Yield the names and values that `info` shows, the most important first."""
    tokenizer = description.tokenizer
    yield "datastore", str(description.path)
    yield (
        "tokens",
        f"{description.token_count:,} in {counted(description.document_count, 'document')}",
    )
    yield (
        "size",
        f"{counted(description.size, 'byte')} in {counted(description.shard_count, 'shard')}",
    )
    yield (
        "tokenizer",
        (
            f"{tokenizer.name}, {counted(tokenizer.vocabulary_size, 'id')},"
            f" {tokenizer.fingerprint[:23]}..."
        ),
    )
    for corpus in description.manifest.corpora:
        documents = counted(corpus.get("documents", 0), "document")
        yield "corpus", f"{corpus.get('corpus')}, {documents}, reader {corpus.get('reader')}"
    yield (
        "built",
        f"{description.built.isoformat(timespec='seconds')} by {description.manifest.created_by}",
    )


@main.command(epilog="Example: rest-store check python.ds --full")
@click.argument("datastore", metavar="DIR", type=PATH)
@click.option("--full", is_flag=True, help="Sort a frozen datastore again, and compare.")
@json_option
def check(datastore: Path, full: bool, as_json: bool) -> None:
    """Read the datastore DIR, frozen or live, and compare it with its checksums."""
    from rest_store.datastore.check import check_datastore
    from rest_store.datastore.suffix_array import sorted_suffixes
    from rest_store.live.directory import is_live

    on_terminal = sys.stderr.isatty() and not as_json

    def announce(stage: str) -> None:
        if on_terminal:
            click.echo(f"\r{stage:<50}", nl=False, err=True)

    if is_live(datastore):
        from rest_store.live.live_check import check_live

        full = False  # a live datastore sorts its segments again whenever that is needed
        shards, tokens = check_live(datastore, announce=announce)
    else:
        store = check_datastore(
            datastore, sort=sorted_suffixes if full else None, announce=announce
        )
        shards = len(store.shards)
        tokens = store.manifest.token_count
    if on_terminal:
        click.echo("\r" + " " * 50 + "\r", nl=False, err=True)
    verified = {"datastore": str(datastore), "verified": "full" if full else "checksums"}
    if as_json:
        click.echo(json.dumps({**verified, "shards": shards, "tokens": tokens}))
    else:
        size = f"{counted(shards, 'shard')}, {counted(tokens, 'token')}"
        checks = "every suffix compared" if full else "checksums compared"
        click.echo(f"{datastore}: valid: {size}, {checks}")


@main.command(epilog='Example: rest-store query python.ds --text "for i "')
@click.argument("datastore", metavar="LOCATION", type=LOCATION)
@click.option(
    "--text", metavar="TEXT", help="Context as text, encoded with the datastore's tokenizer."
)
@click.option(
    "--tokens", metavar="IDS", help="Context as token ids, separated by spaces or commas."
)
@click.option(
    "--tokenizer",
    metavar="NAME_OR_PATH",
    show_default="the one stored in the datastore",
    help="Tokenizer of the target model: encodes and decodes.",
)
@max_nodes_option(24)
@click.option(
    "--max-suffix",
    metavar="N",
    type=click.IntRange(1, MAX_SUFFIX),
    default=16,
    help="Longest suffix to search for, in tokens.",
)
@click.option(
    "--max-depth",
    metavar="N",
    type=click.IntRange(1, MAX_DEPTH),
    default=10,
    help="Longest continuation, in tokens.",
)
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    show_default="all",
    help="Service only: the datastore to query. Repeatable.",
)
@access_options
@timeout_option(10.0)
@json_option
def query(
    datastore: str,
    text: str | None,
    tokens: str | None,
    tokenizer: str | None,
    max_nodes: int,
    max_suffix: int,
    max_depth: int,
    names: tuple[str, ...],
    access: Access,
    timeout: float,
    as_json: bool,
) -> None:
    """Show the longest match of a context in a datastore, its count, and the draft tree.

    LOCATION is a directory, frozen or live, or the address of a service, HOST:PORT or unix:/path. A
    service has no tokenizer: pass --tokenizer with --text.
    """
    if (text is None) == (tokens is None):
        raise click.UsageError("pass the context as either --text or --tokens")
    if is_remote(datastore):
        from rest_store.service.client.client import DatastoreClient

        if tokenizer is None and text is not None:
            with DatastoreClient(
                datastore, datastore=names or None, **access.arguments()
            ) as client:
                # This call comes first, since the service may be absent.
                name = client.info(timeout=timeout).tokenizer.name
            raise click.UsageError(
                "a service has no tokenizer: pass --tokenizer (its datastores have"
                f" {one_line(name)}), or --tokens instead of --text"
            )
        target: Any = _load_tokenizer(tokenizer) if tokenizer is not None else None
        store: Any = DatastoreClient(
            datastore,
            datastore=names or None,
            tokenizer=target,
            timeout=timeout,
            **access.arguments(),
        )
    else:
        from rest_store.live.open_store import open_store

        store = open_store(datastore)
        target = _tokenizer(store, tokenizer, needed=text is not None)
    context = [int(token) for token in target.encode(text)] if tokens is None else _ids(tokens)
    with contextlib.closing(store):
        tree = store.draft(context, max_nodes=max_nodes, max_suffix=max_suffix, max_depth=max_depth)
    if as_json:
        token_text = target.token_text if target is not None else None
        click.echo(json.dumps(draft_as_json(tree, context, token_text), ensure_ascii=False))
    elif target is None:
        click.echo(draw_draft(tree, context, str))
    else:
        click.echo(draw_draft(tree, context, lambda token: repr(target.token_text(token))))


def _ids(tokens: str) -> list[int]:
    """Return the token ids that `--tokens` names."""
    try:
        return [int(token) for token in tokens.replace(",", " ").split()]
    except ValueError:
        raise click.BadParameter("token ids are whole numbers", param_hint="--tokens") from None


def _tokenizer(store: Any, name: str | None, *, needed: bool) -> Any:
    """Return the tokenizer of this name, or the one stored in the datastore.

    Unless the tokenizer is `needed`, return None where none is stored or the package that reads it
    is not installed.
    """
    from rest_store.datastore.manifest import TOKENIZER_FILE_NAME

    stored = store.path / TOKENIZER_FILE_NAME
    if name is None and not needed and importlib.util.find_spec("tokenizers") is None:
        return None
    if name is None and not stored.exists():
        if needed:
            raise click.UsageError(
                f"{store.path} has no tokenizer: pass --tokenizer, or --tokens instead of --text"
            )
        return None
    target = _load_tokenizer(name if name is not None else os.fspath(stored))
    store.tokenizer.require_same(target.identity, store.path)
    return target


def _load_tokenizer(name: str) -> Any:
    from build_index.tokenization import load_tokenizer

    with loading(f"tokenizer {name}"):
        return load_tokenizer(name)
