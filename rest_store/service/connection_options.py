"""The options of commands for the connection to a service: bearer token and certificates."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rest_store.command_options import FILE, Decorator
from rest_store.service.bearer_tokens import TOKEN_VARIABLE, grants_in

if TYPE_CHECKING:
    from rest_store.service.channel import Tls

_OPTIONS = (
    click.option(
        "--token-file",
        metavar="FILE",
        type=FILE,
        help=(
            "File of bearer tokens, one a line: the first is sent; without the option, that of"
            f" {TOKEN_VARIABLE}."
        ),
    ),
    click.option(
        "--tls", is_flag=True, help="Reach the service through TLS; the other TLS options imply it."
    ),
    click.option(
        "--tls-ca",
        metavar="FILE",
        type=FILE,
        help="PEM file of the authority of the service's certificate.",
    ),
    click.option(
        "--tls-cert",
        metavar="FILE",
        type=FILE,
        help="PEM file of one's own certificate, with its chain: where the service requires one.",
    ),
    click.option(
        "--tls-key", metavar="FILE", type=FILE, help="PEM file of the key of one's own certificate."
    ),
    click.option(
        "--tls-server-name",
        metavar="NAME",
        help="Name in the service's certificate, if not the host.",
    ),
)


@dataclass(frozen=True)
class Access:
    """The values of the options for the connection to a service.

    The token itself is no option, because all users of a machine can read its command lines.
    """

    token_file: Path | None
    tls: bool
    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    tls_server_name: str | None

    def arguments(self) -> dict[str, Any]:
        """Return the arguments `token` and `tls` of clients.

        Raises:
            ServeError: the token file holds no token.
        """
        if self.token_file is not None:
            token = grants_in(self.token_file)[0].token
        else:
            token = os.environ.get(TOKEN_VARIABLE, "")
        return {"token": token or None, "tls": self._tls()}

    def _tls(self) -> Tls | None:
        options = (self.tls_ca, self.tls_cert, self.tls_key, self.tls_server_name)
        if not self.tls and all(option is None for option in options):
            return None
        from rest_store.service.channel import Tls

        return Tls(*options)


def timeout_option(default: float) -> Decorator[Any]:
    """Return `--timeout`."""
    return click.option(
        "--timeout",
        metavar="SECONDS",
        default=default,
        help="Service only: time to wait for an answer.",
    )


def access_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for a connection to a command, which gets one argument `access`."""

    @functools.wraps(command)
    def with_access(*arguments: Any, **options: Any) -> None:
        access = Access(**{name: options.pop(name) for name in Access.__dataclass_fields__})
        command(*arguments, access=access, **options)

    wrapped: Callable[..., None] = with_access
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped
