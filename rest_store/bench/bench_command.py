"""The command group `rest-store bench`."""

from __future__ import annotations

import click

from rest_store.bench.record_command import record
from rest_store.bench.replay_command import replay_command
from rest_store.bench.report import report
from rest_store.bench.speed_command import speed
from rest_store.command_options import SETTINGS, Group


@click.group(cls=Group, context_settings=SETTINGS)
def bench() -> None:
    """Measure the worth of rest-store on your data and machine."""


bench.add_command(replay_command, "replay")
for _command in (record, report, speed):
    bench.add_command(_command)
