"""Every command and every script of `benchmarks/` names and shows its options alike."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rest_store.cli import main
from rest_store.command_options import FILE

ROOT = Path(__file__).resolve().parents[1]
METAVARS = {
    # Where.
    *("FILE", "DIR", "PATH", "LOCATION", "[NAME=]DIR", "ADDRESS", "[ADDRESS]", "HOST:PORT"),
    *("N", "I/N", "SECONDS", "SIZE", "T"),  # how much
    *("NAME", "NAME_OR_PATH", "MODEL", "DEVICE", "IDS", "GLOB", "TEXT", "TEXT_OR_FILE", "JSON"),
}
# Commands without --json: what they print is for a person, or goes on until they end.
WITHOUT_JSON = {"serve"}


def walk(
    name: str, command: click.Command, parent: click.Context | None = None
) -> Iterator[tuple[str, click.Context]]:
    """Yield all commands below `command` by their names, each with a context."""
    context = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    if not isinstance(command, click.Group):
        yield name, context
        return
    for below in command.list_commands(context):
        child = command.get_command(context, below)
        assert child is not None
        yield from walk(f"{name} {below}", child, context)


COMMANDS = {name.removeprefix("rest-store "): context for name, context in walk("rest-store", main)}
SCRIPTS = {
    name: context
    for path in sorted((ROOT / "benchmarks").glob("bench_*.py"))
    if "import torch" not in path.read_text(encoding="utf-8")
    for name, context in walk(path.name, importlib.import_module(path.stem).main)
}
ALL = {**COMMANDS, **SCRIPTS}


def options(context: click.Context) -> list[click.Option]:
    """Return the options of a command that its help shows, besides `--help`."""
    return [
        one for one in context.command.params if isinstance(one, click.Option) and not one.hidden
    ]


def option(context: click.Context, name: str) -> click.Option | None:
    return next((one for one in options(context) if name in one.opts), None)


def test_all_commands_are_walked() -> None:
    assert {"build", "generate", "live add", "bench replay"} <= set(COMMANDS)
    assert {"bench_drafting.py", "bench_service.py"} <= set(SCRIPTS)


@pytest.mark.parametrize("name", ALL)
def test_help_has_an_example_and_both_its_names(name: str) -> None:
    context = ALL[name]
    shown = context.command.get_help(context)
    root = context if context.parent is None else context.parent
    assert "Example" in shown or "Example" in root.command.get_help(root)
    assert context.help_option_names == ["-h", "--help"]


@pytest.mark.parametrize("name", ALL)
def test_help_fits_80_columns_and_nothing_is_cut(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    context = ALL[name]
    shown = context.command.get_help(
        click.Context(context.command, info_name=name, **context.command.context_settings)
    )
    assert max(map(len, shown.splitlines())) <= 80
    group = context.parent.command if context.parent is not None else main
    assert (
        "...\n"
        not in group.get_help(click.Context(group, info_name="rest-store")).partition("Commands:")[
            2
        ]
    )


@pytest.mark.parametrize("name", ALL)
def test_options_show_what_they_take_and_their_default(name: str) -> None:
    context = ALL[name]
    for one in options(context):
        assert one.help, f"{one.name} has no help"
        assert not re.search(r"default:|May be repeated|Default", one.help), (
            f"{one.name}: show_default says it"
        )
        record = one.get_help_record(context)
        assert record is not None
        if not (one.is_flag or one.count or isinstance(one.type, click.Choice)):
            assert one.metavar in METAVARS, f"{one.name} takes {one.metavar}"
        if one.multiple:
            assert "Repeatable." in one.help or "each document" in one.help, (
                f"{one.name} may be given again"
            )
        if one.to_info_dict()["default"] not in (None, ()) and not one.is_flag:
            assert "default: " in record[1], f"{one.name} has a default"


@pytest.mark.parametrize("name", ALL)
def test_json_is_a_flag_everywhere(name: str) -> None:
    parameter = option(ALL[name], "--json")
    if name in WITHOUT_JSON:
        assert parameter is None
        return
    assert parameter is not None
    assert parameter.is_flag
    assert (parameter.help or "").startswith("Print one JSON object")


@pytest.mark.parametrize("name", SCRIPTS)
def test_measurements_write_to_out(name: str) -> None:
    parameter = option(SCRIPTS[name], "--out")
    assert parameter is not None
    assert parameter.get_help_record(SCRIPTS[name]) == option(
        COMMANDS["bench replay"], "--out"
    ).get_help_record(  # type: ignore[union-attr]
        COMMANDS["bench replay"]
    )


FILES = [
    name for name in ALL if (one := option(ALL[name], "--out")) is not None and one.type is FILE
]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_done(
    name: str, tmp_path: Path
) -> None:
    out = option(ALL[name], "--out")
    assert out is not None
    (tmp_path / "file").touch()
    with pytest.raises(
        click.BadParameter, match=r"file/out cannot be written; .*/file: File exists"
    ):
        out.process_value(ALL[name], str(tmp_path / "file" / "out"))
    assert out.process_value(ALL[name], str(tmp_path / "new" / "out")) == tmp_path / "new" / "out"
    assert list((tmp_path / "new").iterdir()) == [], "its folder is made"


@pytest.mark.parametrize("name", ALL)
def test_numbers_in_a_range_are_numbers(name: str) -> None:
    for one in options(ALL[name]):
        if isinstance(one.type, click.FloatRange):
            with pytest.raises(click.BadParameter, match="nan is not a number"):
                one.process_value(ALL[name], "nan")


def meaning(one: click.Option) -> str:
    """What an option says of itself up to the first colon, semicolon or period.

    After it, what the command adds.
    """
    return re.split(r"[:;.](?:\s|$)", one.help or "")[0]


# What an option may take elsewhere, too, by what it takes at its widest.
NARROWER = {"LOCATION": {"DIR"}, "PATH": {"FILE"}, "FILE": {"DIR"}}
BY_OPTION: dict[str, dict[str, click.Option]] = {}
for command, context in ALL.items():
    for one in options(context):
        for name in one.opts:
            BY_OPTION.setdefault(name, {})[command] = one


@pytest.mark.parametrize("shared", [name for name, uses in BY_OPTION.items() if len(uses) > 1])
def test_an_option_of_one_name_is_one_option(shared: str) -> None:
    uses = BY_OPTION[shared]
    meanings: dict[str, list[str]] = {}
    for name, one in uses.items():
        meanings.setdefault(meaning(one), []).append(name)
    assert len(meanings) == 1, meanings
    taken = {one.metavar for one in uses.values()}
    assert len(taken) == 1 or any(
        taken == {widest, *narrower} for widest, narrower in NARROWER.items()
    ), taken
    assert len({one.is_flag for one in uses.values()}) == 1


def test_options_that_stand_for_one_thing_have_one_name() -> None:
    """`--memory` is RAM in every command.

    What was written before is `--history` where recordings are replayed.
    """
    assert set(BY_OPTION["--memory"]) == {"build"}
    assert set(BY_OPTION["--history"]) == {"bench replay"}
    assert set(BY_OPTION["--remember"]) == {"generate"}
