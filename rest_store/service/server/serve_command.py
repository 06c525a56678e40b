"""The command `rest-store serve`."""

from __future__ import annotations

import logging
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rest_store.command_options import FILE, FloatRange
from rest_store.errors import ArgumentError
from rest_store.service.address import Address
from rest_store.service.bearer_tokens import TOKEN_VARIABLE
from rest_store.service.server.service_limits import ServiceLimits
from rest_store.service.server.worker_processes import fork_workers
from rest_store.version import __version__

if TYPE_CHECKING:
    from rest_store.datastore.partition import Partition
    from rest_store.service.server.server import ServeOptions

_log = logging.getLogger(__name__)

_MAX_FILES = 1 << 16
_LIMITS = {
    "max_contexts": "Most contexts of a request, times datastores; most documents of one.",
    "max_in_flight": "Most requests in flight.",
    "max_streams": "Most open streams.",
    "max_connections": "Most connections of each address; silent ones end by themselves.",
    "max_session_tokens": "Longest text of a draft session that the service runs.",
    "max_session_memory": "Most bytes of all sessions together.",
}


def _limit_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add an option for each limit of `_LIMITS`."""
    for name, text in reversed(_LIMITS.items()):
        maximum = 1 << (50 if name == "max_session_memory" else 30)
        add_option = click.option(
            f"--{name.replace('_', '-')}",
            metavar="N",
            type=click.IntRange(1, maximum),
            default=getattr(ServiceLimits, name),
            help=text,
        )
        command = add_option(command)
    return command


def _partition(text: str) -> Partition:
    """Return the partition that `text` names; other text is a usage error."""
    from rest_store.datastore.partition import Partition

    try:
        return Partition.parse(text)
    except ArgumentError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    epilog=(
        "Example: rest-store serve python.ds --listen 127.0.0.1:50051 --listen"
        " unix:/run/rest-store.sock"
    )
)
@click.argument("datastores", nargs=-1, metavar="[NAME=]DIR...")
@click.option(
    "--partition",
    metavar="I/N",
    type=_partition,
    show_default="all of it",
    help="Serve the I-th of N partitions of each datastore; clients ask all N together.",
)
@click.option(
    "--live",
    multiple=True,
    metavar="[NAME=]DIR",
    help=(
        "A live datastore, which clients add to and this service writes; created if DIR is absent."
        " Repeatable."
    ),
)
@click.option(
    "--live-tokenizer",
    metavar="NAME_OR_PATH",
    show_default="that of the built ones",
    help="Tokenizer of live datastores that are created.",
)
@click.option(
    "--live-shared-after",
    metavar="N",
    type=click.IntRange(1, 64),
    show_default="as they were opened last",
    help="Tell a group of others' text in live datastores once N groups have written it.",
)
@click.option(
    "--listen",
    multiple=True,
    default=["127.0.0.1:50051"],
    metavar="ADDRESS",
    help="HOST:PORT (port 0: any free one) or unix:/path. Repeatable.",
)
@click.option(
    "--tls-cert",
    metavar="FILE",
    type=FILE,
    help="PEM file of one's own certificate, with its chain.",
)
@click.option(
    "--tls-key", metavar="FILE", type=FILE, help="PEM file of the key of one's own certificate."
)
@click.option(
    "--tls-client-ca",
    metavar="FILE",
    type=FILE,
    help="PEM file of the authority of clients' certificates; requires them.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=FILE,
    help=(
        f"File of bearer tokens, one a line: all are accepted, besides the one in {TOKEN_VARIABLE}."
    ),
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow public addresses without TLS or authentication, also for metrics.",
)
@click.option(
    "--metrics", metavar="HOST:PORT", help="Serve Prometheus metrics over HTTP at this address."
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    help=(
        "How many processes share the work: each with the addresses, these limits and metrics at a"
        " port of its own; for frozen datastores."
    ),
)
@_limit_options
@click.option(
    "--drain-seconds",
    metavar="SECONDS",
    type=FloatRange(0),
    default=10.0,
    help="Time that running calls have after SIGTERM.",
)
def serve(
    datastores: tuple[str, ...],
    live: tuple[str, ...],
    listen: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    metrics: str | None,
    workers: int,
    **options: Any,
) -> None:
    """Serve drafts over gRPC, from built datastores and from live ones.

    Clients select a datastore by the name of its directory, or by NAME. Live datastores grow with
    the documents that clients add. After SIGTERM the service ends once running calls are done.
    After SIGHUP it opens the datastores again.
    """
    # Until the service handles the signal: nothing has been read yet, so there is nothing to do.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if not datastores and not live:
        raise click.UsageError("Missing argument '[NAME=]DIR...', or --live")
    if (tls_cert is None) != (tls_key is None) or (tls_client_ca is not None and tls_cert is None):
        raise click.UsageError(
            "--tls-cert and --tls-key need each other, and --tls-client-ca needs both"
        )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("rest_store").setLevel(logging.INFO)
    # gRPC logs malformed health checks of strangers. Defects of the service are logged here.
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
    _log.info("opening %s", ", ".join([*datastores, *(f"{text} (live)" for text in live)]))
    _allow_files()
    _spare_a_thread()
    addresses = [Address.parse(text, "--listen") for text in listen]
    parent = None
    announce: Callable[..., None] = _announce
    metrics_address = None if metrics is None else Address.parse(metrics, "--metrics")
    if workers > 1:
        if live or any(address.path is not None for address in addresses):
            raise click.UsageError("--workers needs frozen datastores, and HOST:PORT to listen on")
        addresses = [address.require_free() for address in addresses]
        parent = os.getpid()
        number, announce = fork_workers(
            workers, partial(_announce, [address.text for address in addresses])
        )
        if metrics_address is not None and metrics_address.port:
            metrics_address = metrics_address.with_port(metrics_address.port + number)
    from rest_store.service.server.server import ServeOptions

    limits = ServiceLimits(**{name: options.pop(name) for name in _LIMITS})
    _run(
        ServeOptions(
            datastores=[_name_and_directory(text) for text in datastores],
            live=[_name_and_directory(text) for text in live],
            addresses=addresses,
            certificate=tls_cert,
            key=tls_key,
            client_authority=tls_client_ca,
            token=os.environ.get(TOKEN_VARIABLE) or None,
            metrics=metrics_address,
            limits=limits,
            parent=parent,
            **options,
        ),
        announce,
    )


def _allow_files() -> None:
    """Raise the limit of open files, so that connections cannot use up all of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))


def _run(options: ServeOptions, announce: Callable[..., None]) -> None:
    """Serve until a signal ends it."""
    import uvloop  # saves a tenth of each request

    from rest_store.service.server.server import serve as serve_until_signal

    uvloop.run(serve_until_signal(options, __version__, announce))


def _spare_a_thread() -> None:
    """Have gRPC poll in the thread that delivers messages, which saves a fifth of a call.

    gRPC reads the variable when it is imported, so this comes before the import.
    """
    with suppress(PackageNotFoundError):
        release = tuple(map(int, version("grpcio").split(".")[:2]))
        # Other releases may not know the name of the experiment.
        if (1, 80) <= release < (1, 83):
            os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_poller_for_python")


def _announce(addresses: list[str], *metrics: str) -> None:
    for address in addresses:
        click.echo(f"listening on {address}")
    for url in metrics:
        click.echo(f"metrics on {url}")
    click.echo("ready")


def _name_and_directory(text: str) -> tuple[str, Path]:
    """Return the name and the directory of `DIR` or `NAME=DIR`.

    Write `./DIR` for a directory with `=` in its name.
    """
    name, equals, directory = text.partition("=")
    if equals and os.sep not in name:
        return name, Path(directory)
    path = Path(text)
    return (path.name or path.resolve().name), path
