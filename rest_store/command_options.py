"""Options and settings that commands of several packages share."""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from rest_store.datastore.kernel import MAX_NODES

# Context settings of a command.
SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "show_default": True,
    "max_content_width": 100,
}
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
SEED = click.IntRange(0, 2**63 - 1)  # of random generators
LOCATION = click.Path(readable=False)  # a directory, or an address; shells complete it as a path

Command = TypeVar("Command", bound=Callable[..., Any] | click.Command)
Decorator = Callable[[Command], Command]

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object to standard output."
)
model_option = click.option(
    "--model", metavar="MODEL", required=True, help="Hugging Face name, directory or GGUF file."
)
device_option = click.option(
    "--device",
    metavar="DEVICE",
    show_default="where it is loaded",
    help="Where the model runs, such as cuda.",
)


class RenamedOptions(click.Command):
    """A command with renamed options: an old name works for one more release, with a note.

    Args:
        renamed: the new name of each option by its old one, such as {"--memory": "--history"}.
    """

    def __init__(self, *arguments: Any, renamed: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._renamed = renamed

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments."""
        return super().parse_args(ctx, [self._new_name(argument) for argument in args])

    def _new_name(self, argument: str) -> str:
        option, equals, value = argument.partition("=")
        if option not in self._renamed:
            return argument
        click.echo(
            f"Warning: {option} is now {self._renamed[option]}; the next release knows no other",
            err=True,
        )
        return f"{self._renamed[option]}{equals}{value}"


class Group(click.Group):
    """A group of commands that lists whole first sentences, and suggests similar names."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(500)) for name, one in commands.items() if one]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments begin with."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            similar = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not similar:
                raise
            raise click.UsageError(
                f"No such command '{args[0]}'. Did you mean '{similar[0]}'?", ctx
            ) from error


class FloatRange(click.FloatRange):
    """A range of numbers, without NaN, which lies in every range of click."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("nan is not a number", param, ctx)
        return number


def check_writable(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> Path | None:
    """Make the folder of an output file, and refuse a file that cannot be written.

    This comes before anything costly.
    """
    if path is not None and not context.resilient_parsing:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_writable = os.access(path if path.exists() else path.parent, os.W_OK)
        except OSError as error:
            raise click.BadParameter(
                f"{path} cannot be written; {path.parent}: {error.strerror}"
            ) from error
        if not is_writable:
            raise click.BadParameter(f"{path} cannot be written")
    return path


def text_of_file(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> str | None:
    """Return the text of the file that an option names."""
    if path is None or context.resilient_parsing:
        return None
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{path} is not UTF-8") from error


def _json_of_file(
    context: click.Context, parameter: click.Parameter, path: Path | None
) -> str | None:
    text = text_of_file(context, parameter, path)
    try:
        if text is not None:
            json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{path} is no JSON: {error}") from error
    return text


def json_schema_option(help_text: str) -> Decorator[Any]:
    """Return `--json-schema`, whose value is the text of the file."""
    return click.option(
        "--json-schema", metavar="FILE", type=FILE, callback=_json_of_file, help=help_text
    )


def max_nodes_option(default: Any = None, *, minimum: int = 1, **settings: Any) -> Decorator[Any]:
    """Return `--max-nodes`.

    Args:
        default: number of nodes; several with `multiple`.
        minimum: smallest number.
        settings: arguments of `click.option`.
    """
    help_text = "Most draft tokens (nodes of the draft tree) that one forward pass verifies."
    help_text += " Repeatable." if settings.get("multiple") else ""
    if default is not None:
        settings["default"] = default
    return click.option(
        "--max-nodes",
        metavar="N",
        type=click.IntRange(minimum, MAX_NODES),
        help=help_text,
        **settings,
    )


def max_new_tokens_option(default: int = 256, *, minimum: int = 1) -> Decorator[Any]:
    """Return `--max-new-tokens`."""
    return click.option(
        "--max-new-tokens",
        metavar="N",
        type=click.IntRange(minimum),
        default=default,
        help="Most new tokens of each text.",
    )


def dtype_option(default: str) -> Decorator[Any]:
    """Return `--dtype`."""
    types = click.Choice(["auto", "float32", "bfloat16", "float16"])
    return click.option(
        "--dtype",
        type=types,
        default=default,
        help="Type of the weights; auto: as they are stored.",
    )
