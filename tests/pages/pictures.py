"""Pictures of pages for the documentation: `make pictures`."""

from __future__ import annotations

import io
from pathlib import Path

import click
from PIL import Image

from tests.shared.browser import browser

_LOOKS = {"": (1280, 860, "light"), "-narrow": (390, 844, "dark")}


@click.command()
@click.argument("pages", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder of the pictures.")
def main(pages: tuple[Path, ...], out: Path) -> None:
    """Write PAGE.png of each page, wide and light, and PAGE-narrow.png, narrow and dark."""
    out.mkdir(parents=True, exist_ok=True)
    with browser() as running:
        for page in pages:
            for ending, (width, height, scheme) in _LOOKS.items():
                size = {"width": width, "height": height}
                tab = running.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
                tab.goto(page.absolute().as_uri())
                if ending:  # past the summary, to the text and the tree below it
                    tab.evaluate("document.querySelector('a.pass[aria-current]')?.scrollIntoView({ block: 'center' })")
                picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
                tab.close()
                place = out / f"{page.stem}{ending}.png"
                picture.quantize(128).save(place, optimize=True)
                click.echo(f"{place}: {place.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
