"""What the commands of `rest-store bench` that are written as scripts have in common on their command lines."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser_of(name: str, about: str | None) -> argparse.ArgumentParser:
    """Return a parser for `rest-store bench NAME` that takes --json and --plots.

    Args:
        name: of the command.
        about: shown by --help: a script's docstring.
    """
    parser = argparse.ArgumentParser(
        prog=f"rest-store bench {name}" if name == "speed" else f"bench_{name}.py",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plots", type=Path, help="folder for plots, PNG and SVG; takes the extra [plots]")
    return parser
