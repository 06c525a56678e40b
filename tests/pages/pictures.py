"""Pictures of pages for the documentation: `make pictures`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from tests.shared.browser import browser

_MAX_PASSES = 64
_LOOKS = {"": (1280, 860, "light"), "-narrow": (390, 844, "dark")}


@click.command()
@click.argument("pages", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the pictures.",
)
def main(pages: tuple[Path, ...], out: Path) -> None:
    """Write PAGE.png of each page, wide and light, and PAGE-narrow.png, narrow and dark."""
    out.mkdir(parents=True, exist_ok=True)
    with browser() as running:
        for page in pages:
            for ending, (width, height, scheme) in _LOOKS.items():
                size = {"width": width, "height": height}
                tab = running.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
                tab.goto(page.absolute().as_uri())
                for _ in range(_MAX_PASSES):  # on to one that accepts several draft tokens
                    if re.search(r"\b[3-9] of \d+ draft tokens accepted", tab.inner_text("#pass")):
                        break
                    tab.keyboard.press("ArrowRight")
                if ending:  # past the summary, to the text and the tree below it
                    tab.evaluate(
                        "document.getElementById('pass')?.scrollIntoView({ block: 'end' })"
                    )
                place = out / f"{page.stem}{ending}.png"
                tab.screenshot(path=place)
                tab.close()
                click.echo(f"{place}: {place.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
