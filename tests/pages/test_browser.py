"""Pages in a browser: clicks and keys, widths, colours, paper, and nothing fetched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.shared.tiny import text_tokenizer
from tests.shared.traces import page_of, traced

pytest.importorskip("playwright", reason="playwright is not installed")
from tests.shared.browser import browser, chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="no Chromium is installed: apt-get install chromium"),
]

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "</script><script>window.harm=1</script><img src=x onerror='window.harm=1'>"
TEXT = "def add(first, second):\n    return first + second\n\nfor i in range(10):\n    print(i, 'naïve café', 2024)\n"


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page."""
    folder, words = tmp_path_factory.mktemp("pages"), text_tokenizer()
    ids = words(HOSTILE + TEXT, add_special_tokens=False)["input_ids"]
    text = page_of(traced(ids, nodes=64), words, title=HOSTILE, prompt=HOSTILE + 30 * TEXT, labels=[HOSTILE] * 3)
    (folder / "page.html").write_text(text, encoding="utf-8")
    return (folder / "page.html").as_uri()


@pytest.fixture
def tab(running: Any) -> Iterator[Any]:
    """A new tab; in the end nothing was fetched, and no script has failed."""
    context = running.new_context(viewport={"width": 1280, "height": 900})
    one, fetched, failed = context.new_page(), [], []
    one.on("request", lambda request: fetched.append(request.url))
    one.on("pageerror", lambda error: failed.append(str(error)))
    one.on("console", lambda message: failed.append(message.text) if message.type == "error" else None)
    yield one
    assert not one.evaluate("window.harm")
    context.close()
    assert failed == []
    assert all(url.startswith(("file:", "data:")) for url in fetched)


def heading(tab: Any) -> str:
    return str(tab.inner_text("#pass h2"))


def test_clicks_and_keys_choose_a_pass(tab: Any, place: str) -> None:
    tab.goto(place)
    count = tab.locator("a.pass").count()
    assert heading(tab) == f"Forward pass 2 of {count}", "the first with an accepted draft"
    tab.locator("a.pass").nth(4).click()
    assert heading(tab) == f"Forward pass 5 of {count}"
    for key, number in (
        ("ArrowRight", 6),
        ("ArrowRight", 7),
        ("ArrowLeft", 6),
        ("Home", 1),
        ("ArrowLeft", 1),
        ("End", count),
    ):
        tab.keyboard.press(key)
        assert heading(tab) == f"Forward pass {number} of {count}"
        current = tab.locator("a.pass[aria-current=step]")
        assert current.count() == 1
        assert current.get_attribute("id") == f"pass-{number}"
        assert tab.evaluate("document.activeElement.id") == f"pass-{number}", "the focus goes along"
    tab.get_by_role("button", name="Previous pass").click()
    assert heading(tab) == f"Forward pass {count - 1} of {count}"
    assert tab.url.endswith(f"#pass-{count - 1}")
    tab.reload()
    assert heading(tab) == f"Forward pass {count - 1} of {count}", "the address says which"
    assert tab.locator("a.pass:not([tabindex='-1'])").count() == 1, "one stop of the tabulator for the whole text"


def test_the_tree_shows_the_accepted_path_scores_sources_and_times(tab: Any, place: str) -> None:
    tab.goto(place)
    written = tab.locator("a.pass").nth(1).inner_text().replace(" ", "·")
    path = tab.locator("#pass li.accepted > .node .word").all_inner_texts()
    assert "".join(path) == written
    assert tab.locator("#pass .node").count() == 64 + 2, "draft tokens, the context's last and the model's own"
    first = tab.locator("#pass li.accepted > .node").first
    assert first.locator(".below").inner_text() == "✓ A 97 %"
    assert "accepted, acceptance probability 97 %, from " in first.get_attribute("title")
    assert tab.locator("#pass .outcome").inner_text() == "3 of 64 draft tokens accepted, then the model's own token."
    times = tab.locator("#pass .times").inner_text().split()
    assert " ".join(times) == "drafting 0.20 ms forward pass 30.5 ms the rest 0.50 ms"


@pytest.mark.parametrize("width", [360, 1280])
def test_pages_fit_the_width(width: int, tab: Any, place: str) -> None:
    tab.set_viewport_size({"width": width, "height": 780})
    tab.goto(place)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_on_a_telephone_the_panel_covers_no_text(tab: Any, place: str) -> None:
    tab.set_viewport_size({"width": 420, "height": 780})
    tab.goto(place)
    sizes = "[...document.querySelectorAll('main, #pass, [aria-current]')].map((one) => one.getBoundingClientRect())"
    for key in ("Home", "ArrowRight", "End"):
        tab.keyboard.press(key)
        text, chosen, panel = tab.evaluate(f"{sizes}.map((one) => [one.top, one.bottom])")
        assert text[1] <= panel[0]
        assert text[0] <= chosen[1] <= text[1], "the chosen pass is in sight"
        assert panel[1] <= 780


def test_the_documentation_is_searched_from_files(tab: Any, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    tab.goto((tmp_path / "index.html").as_uri())
    tab.locator("[data-md-component=search-query]").fill("suffix array")
    tab.wait_for_selector(".md-search-result__item a")


def test_on_paper_the_page_is_light_and_without_buttons(tab: Any, place: str) -> None:
    tab.emulate_media(media="print", color_scheme="dark")
    tab.goto(place)
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.locator("#pass .buttons:visible").count() == 0
    assert tab.pdf()[:5] == b"%PDF-"
