"""The command line of the fuzzers."""

from __future__ import annotations

import itertools
import math
import random
import sys
from contextlib import suppress

import click

from tests.fuzz.campaign import NAMES, Campaign


@click.command(context_settings={"max_content_width": 120, "show_default": True})
@click.option(
    "--minutes", type=click.FloatRange(min=0), default=10.0, help="How long, all fuzzers together."
)
@click.option(
    "--seed", type=int, help="What all cases are made from.  [default: another one each time]"
)
@click.option(
    "--only", type=click.Choice(NAMES), multiple=True, help="Run this fuzzer; may be repeated."
)
@click.option(
    "--cases",
    type=click.IntRange(min=1),
    help="So many cases of each fuzzer, however long they take.",
)
@click.option("--case", "number", type=click.IntRange(min=0), help="The case of this number alone.")
def main(
    minutes: float, seed: int | None, only: tuple[str, ...], cases: int | None, number: int | None
) -> None:
    """Run random cases against what is promised; the exit status is 1 if one failed."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    print(f"seed {seed}", flush=True)
    names = only or NAMES
    campaign = Campaign(seed)
    counted = cases is not None or number is not None
    seconds = math.inf if counted else 60 * minutes / len(names)
    with suppress(KeyboardInterrupt):
        for name in names:
            numbers = (
                itertools.count()
                if not counted
                else range(cases or 0)
                if number is None
                else [number]
            )
            campaign.run(name, numbers, seconds)
    print(f"\nseed {seed}\n{campaign.table()}")
    sys.exit(any(campaign.failed.values()))


if __name__ == "__main__":
    main()
