"""The command `rest-store serve --ray`: servers on a Ray cluster, until a signal ends it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from rest_store.errors import ServeError, describe
from rest_store.service.address import Address
from rest_store.service.ray.cluster import connected
from rest_store.service.ray.fleet import Fleet
from rest_store.service.server.logs import EventLog
from rest_store.service.tokens import TOKEN_VARIABLE

# Options that are not passed to the servers: each has its own, or none.
_OWN = ("datastores", "ray", "parts", "replicas", "parts_file", "listen", "metrics", "metrics_file")
# Options that parts cannot have, or servers that share a machine.
_REFUSED = ("part", "live", "live_tokenizer", "socket_mode", "socket_group")
_STOPPING_SECONDS = 5.0  # time that servers have to end after draining


def serve_on_ray(context: click.Context, places: Sequence[tuple[str, Path]]) -> None:
    """Serve parts on a Ray cluster until SIGTERM or SIGINT; SIGHUP reloads.

    Args:
        context: of `rest-store serve`.
        places: names and directories of the datastores.

    Raises:
        ServeError: the cluster, an option or a server is not usable.
    """
    options = context.params
    on_command_line = [option for option in context.command.params if _is_on_command_line(context, option)]
    for option in on_command_line:
        if option.name in _REFUSED:
            raise click.UsageError(f"{option.opts[-1]} is not for --ray")
    if len(options["listen"]) != 1:
        raise ServeError(describe("service", "--listen", f"{len(options['listen'])} addresses", "one, with --ray"))
    listen = Address.parse(options["listen"][0], "--listen")
    metrics = None if options["metrics"] is None else Address.parse(options["metrics"], "--metrics")
    arguments = [f"{name}={path.absolute()}" for name, path in places]
    for option in on_command_line:
        if option.name not in _OWN:
            arguments += _words(option, options[str(option.name)])
    log = EventLog(options["log_json"])
    with connected(options["ray"]):
        ended = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        fleet = Fleet(
            arguments,
            parts=options["parts"],
            replicas=options["replicas"],
            listen=listen,
            parts_file=options["parts_file"],
            metrics=metrics,
            metrics_file=options["metrics_file"],
            variables={name: os.environ[name] for name in (TOKEN_VARIABLE,) if os.environ.get(name)},
            log=log,
        )
        signal.signal(signal.SIGHUP, lambda *_: fleet.reload())
        try:
            fleet.start(ended)
            if not ended.is_set():
                click.echo(f"parts in {options['parts_file']}")
                if metrics is not None:
                    click.echo(f"metrics in {options['metrics_file']}")
                click.echo("ready")
            fleet.watch(ended)
        finally:
            fleet.stop(options["drain_seconds"] + _STOPPING_SECONDS)


def _is_on_command_line(context: click.Context, parameter: click.Parameter) -> bool:
    assert parameter.name is not None
    return context.get_parameter_source(parameter.name) == ParameterSource.COMMANDLINE


def _words(option: click.Parameter, value: object) -> Iterator[str]:
    """Yield an option as it was written, its paths as other processes find them."""
    if value is True:
        yield option.opts[-1]
        return
    for word in value if isinstance(value, tuple) else (value,):
        yield from (option.opts[-1], str(word.absolute() if isinstance(word, Path) else word))
