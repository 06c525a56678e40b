"""The command `rest-store serve`."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import rest_store
from rest_store.errors import PartError, ServeError, describe
from rest_store.options import FILE, FloatRange
from rest_store.service.address import Address
from rest_store.service.server.connections import Connections
from rest_store.service.server.limits import Limits
from rest_store.service.tokens import TOKEN_VARIABLE
from rest_store.terminal import loading

if TYPE_CHECKING:
    from rest_store.datastore.part import Part
    from rest_store.service.server.credentials import CertificateFiles
    from rest_store.service.server.server import Options


def _mode(text: str) -> int:
    """Return permission bits in octal, or fail with a usage error."""
    if not re.fullmatch("0?[0-7]{3}", text):
        raise click.BadParameter(f"{text!r} is not three octal digits, such as 660")
    return int(text, 8)


def _part(text: str) -> Part:
    """Return which part of how many, or fail with a usage error."""
    from rest_store.datastore.part import Part

    try:
        return Part.parse(text)
    except PartError as error:
        raise click.BadParameter(str(error)) from None


@click.command(epilog="Example: rest-store serve python.ds --listen 127.0.0.1:50051 --listen unix:/run/rest-store.sock")
@click.argument("datastores", nargs=-1, metavar="[NAME=]DIR...")
@click.option(
    "--part",
    metavar="I/N",
    type=_part,
    show_default="all of it",
    help="Serve the I-th of N parts of each datastore; clients ask all N together.",
)
@click.option(
    "--live",
    multiple=True,
    metavar="[NAME=]DIR",
    help="A live datastore, which clients add to and this service writes; created if DIR is absent. Repeatable.",
)
@click.option(
    "--live-tokenizer",
    metavar="NAME_OR_PATH",
    show_default="that of the built ones",
    help="Tokenizer of live datastores that are created.",
)
@click.option(
    "--listen",
    multiple=True,
    default=["127.0.0.1:50051"],
    metavar="ADDRESS",
    help="HOST:PORT (port 0: any free one) or unix:/path. Repeatable.",
)
@click.option(
    "--socket-mode",
    metavar="MODE",
    type=_mode,
    show_default="660 with --socket-group",
    help="Permissions of Unix sockets, in octal.",
)
@click.option("--socket-group", metavar="GROUP", help="Group of Unix sockets, whose members may connect.")
@click.option("--tls-cert", metavar="FILE", type=FILE, help="PEM file of the service's certificate, with its chain.")
@click.option("--tls-key", metavar="FILE", type=FILE, help="PEM file of the certificate's key.")
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
    help=f"Accepted bearer tokens, one per line, besides the one in {TOKEN_VARIABLE}.",
)
@click.option(
    "--insecure", is_flag=True, help="Allow public addresses without TLS or authentication, also for metrics."
)
@click.option("--metrics", metavar="HOST:PORT", help="Serve Prometheus metrics over HTTP at this address.")
@click.option("--log-json", is_flag=True, help="Write the log as JSON, one object a line.")
@click.option("--log-requests", is_flag=True, help="Log every request.")
@click.option("--max-message-bytes", metavar="N", default=Limits.max_message_bytes, help="Largest message.")
@click.option(
    "--max-contexts",
    metavar="N",
    default=Limits.max_contexts,
    help="Most contexts of a request, times datastores, rows of evidence and each 1024 nodes of a tree.",
)
@click.option("--max-streams", metavar="N", default=Limits.max_streams, help="Most open streams.")
@click.option(
    "--max-connections",
    metavar="N",
    default=Connections.most,
    help="Most connections of each address; silent ones end by themselves.",
)
@click.option("--max-in-flight", metavar="N", default=Limits.max_in_flight, help="Most requests in flight.")
@click.option("--max-waiting", metavar="N", default=Limits.max_waiting, help="Most requests that wait.")
@click.option(
    "--max-session-tokens",
    metavar="N",
    default=Limits.max_session_tokens,
    help="Longest text of a draft session that the service runs.",
)
@click.option(
    "--max-session-memory",
    metavar="N",
    default=Limits.max_session_memory,
    help="Most bytes of all sessions together.",
)
@click.option(
    "--session-idle-seconds",
    metavar="SECONDS",
    default=Limits.session_idle_seconds,
    help="Time without a message after which a session or stream ends.",
)
@click.option(
    "--drain-seconds",
    metavar="SECONDS",
    type=FloatRange(0),
    default=10.0,
    help="Time that running calls have after SIGTERM.",
)
@click.option(
    "--ray",
    metavar="[ADDRESS]",
    is_flag=False,
    flag_value="auto",
    help="Serve all parts on the Ray cluster at ADDRESS, or else on that of this machine. Write DIR before it.",
)
@click.option("--parts", metavar="N", type=click.IntRange(1), default=1, help="Parts of each datastore, with --ray.")
@click.option("--replicas", metavar="N", type=click.IntRange(1), default=1, help="Replicas of each part, with --ray.")
@click.option(
    "--parts-file",
    metavar="FILE",
    type=FILE,
    default="parts.toml",
    help="File that tells clients where the parts are; kept up to date with --ray.",
)
@click.option(
    "--metrics-file",
    metavar="FILE",
    type=FILE,
    default="metrics.json",
    help="Where Prometheus reads (file_sd_configs) how to reach the metrics of all parts; kept up to date with --ray.",
)
def serve(
    datastores: tuple[str, ...],
    part: Part | None,
    live: tuple[str, ...],
    live_tokenizer: str | None,
    listen: tuple[str, ...],
    socket_mode: int | None,
    socket_group: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    token_file: Path | None,
    insecure: bool,
    metrics: str | None,
    log_json: bool,
    log_requests: bool,
    max_message_bytes: int,
    max_contexts: int,
    max_streams: int,
    max_connections: int,
    max_in_flight: int,
    max_waiting: int,
    max_session_tokens: int,
    max_session_memory: int,
    session_idle_seconds: int,
    drain_seconds: float,
    ray: str | None,
    parts: int,
    replicas: int,
    parts_file: Path,
    metrics_file: Path,
) -> None:
    """Serve drafts from datastores over gRPC: built ones, and live ones that grow with what clients add.

    Clients select a datastore by the name of its directory, or by NAME. After SIGTERM the service ends once running
    calls are done. SIGHUP or `rest-store reload` makes it read datastores, tokens and certificates again.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the service handles it; nothing has been read yet
    if not datastores and not live:
        raise click.UsageError("Missing argument '[NAME=]DIR...', or --live")
    _require_whole_certificate(tls_cert, tls_key, tls_client_ca)
    _require_socket(socket_mode, socket_group, listen)
    if ray is not None:
        from rest_store.service.ray.command import serve_on_ray

        serve_on_ray(click.get_current_context(), [_name_and_directory(text) for text in datastores])
        return
    if (parts, replicas) != (1, 1):
        raise click.UsageError("--parts and --replicas need --ray")
    _spare_a_thread()
    from rest_store.service.server.server import Options
    from rest_store.service.server.unix_socket import SocketPermissions

    _run(
        Options(
            datastores=[_name_and_directory(text) for text in datastores],
            live=[_name_and_directory(text) for text in live],
            live_tokenizer=_tokenizer(live_tokenizer),
            addresses=[Address.parse(text, "--listen") for text in listen],
            certificates=_certificates(tls_cert, tls_key, tls_client_ca),
            token_file=token_file,
            token=os.environ.get(TOKEN_VARIABLE) or None,
            insecure=insecure,
            metrics=_metrics_address(metrics),
            limits=Limits(
                max_message_bytes=max_message_bytes,
                max_contexts=max_contexts,
                max_streams=max_streams,
                max_in_flight=max_in_flight,
                max_waiting=max_waiting,
                max_session_tokens=max_session_tokens,
                max_session_memory=max_session_memory,
                session_idle_seconds=session_idle_seconds,
            ),
            connections=Connections(max_connections),
            sockets=SocketPermissions(socket_mode, socket_group),
            drain_seconds=drain_seconds,
            log_requests=log_requests,
            part=part,
        ),
        log_json,
    )


def _require_whole_certificate(certificate: Path | None, key: Path | None, client_authority: Path | None) -> None:
    """Raise UsageError for a certificate without its key, a key without it, or clients' certificates without both."""
    if (certificate is None) != (key is None) or (client_authority is not None and certificate is None):
        raise click.UsageError("--tls-cert and --tls-key need each other, and --tls-client-ca needs both")


def _require_socket(mode: int | None, group: str | None, listen: Sequence[str]) -> None:
    """Raise UsageError for permissions of Unix sockets without one."""
    if (mode is not None or group is not None) and not any(text.startswith("unix:") for text in listen):
        raise click.UsageError("--socket-mode and --socket-group need --listen unix:/path")


def _tokenizer(name: str | None) -> object:
    """Load the tokenizer of live datastores that are created; None without a name."""
    if name is None:
        return None
    from build_index.tokenization import load_tokenizer

    with loading(f"tokenizer {name}"):
        return load_tokenizer(name)


def _certificates(certificate: Path | None, key: Path | None, client_authority: Path | None) -> CertificateFiles | None:
    if certificate is None or key is None:
        return None
    from rest_store.service.server.credentials import CertificateFiles

    return CertificateFiles(certificate, key, client_authority)


def _metrics_address(text: str | None) -> Address | None:
    """Return where metrics are served; raise ServeError unless that is at HOST:PORT."""
    if text is None:
        return None
    address = Address.parse(text, "--metrics")
    if address.path is not None:
        raise ServeError(describe("service", "--metrics", text, "HOST:PORT"))
    return address


def _run(options: Options, log_json: bool) -> None:
    """Serve until a signal ends it."""
    from rest_store.service.server.logs import EventLog
    from rest_store.service.server.server import serve as serve_until_signal

    log = EventLog(log_json)
    log.take_over()
    _run_loop()(serve_until_signal(options, rest_store.__version__, log, _announce))


def _spare_a_thread() -> None:
    """Let gRPC wait for messages in the thread that hands them on, as it once did: it saves a fifth of a call.

    gRPC reads the variable as it is imported, so this comes before.
    """
    with suppress(PackageNotFoundError):
        if tuple(map(int, version("grpcio").split(".")[:2])) >= (1, 80):  # older ones may not know the name
            os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_poller_for_python")


def _run_loop() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Return what runs an event loop: that of uvloop where it is installed, which saves a tenth of each request."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


def _announce(addresses: list[str], metrics: str | None) -> None:
    for address in addresses:
        click.echo(f"listening on {address}")
    if metrics is not None:
        click.echo(f"metrics on {metrics}")
    click.echo("ready")


def _name_and_directory(text: str) -> tuple[str, Path]:
    """Return name and directory of `DIR` or `NAME=DIR`; a directory with `=` in its name is written `./DIR`."""
    name, equals, directory = text.partition("=")
    if equals and os.sep not in name:
        return name, Path(directory)
    path = Path(text)
    return (path.name or path.resolve().name), path
