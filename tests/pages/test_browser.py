"""Pages in a browser: clicks and keys, widths, colours, paper, and nothing fetched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rest_store.bench.report import page as report_page
from rest_store.bench.results import Result, read_results
from tests.shared.tiny import text_tokenizer
from tests.shared.traces import page_of, traced

pytest.importorskip("playwright", reason="playwright is not installed")
from tests.shared.browser import browser, chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        chromium() is None, reason="no Chromium is installed: apt-get install chromium"
    ),
]

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "</script><script>window.harm=1</script><img src=x onerror='window.harm=1'>"
TEXT = (
    "def add(first, second):\n    return first + second\n\nfor i in range(10):\n    print(i, 'naïve"
    " café', 2024)\n"
)


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The addresses of a page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    words = text_tokenizer()
    ids = words(HOSTILE + TEXT, add_special_tokens=False)["input_ids"]
    plain = {"prompts": 7, "speedup": 1.0, "mean_tokens": 1.0, "identical": 1.0}
    methods = {"plain": plain, "DraftSession": {**plain, "speedup": 1.94, "mean_tokens": 2.5}}
    speed = {"threads": 2, "families": {"own": methods, "all": methods}}
    families = {f"family {number} of prompts": 2.5 for number in range(12)}  # a wide table
    rows = [
        {"drafting": "session", "nodes": nodes, "M": 3.0, "families": families}
        for nodes in (16, 64)
    ]
    replay = {"rows": rows, "reported": 5, "datastores": {"code": 9}}
    results = {
        "speed": Result("speed", "speed", {}, speed),
        "replay": Result("replay", "replay", {}, replay),
    }
    committed = read_results(ROOT / "benchmarks" / "results")
    pages = {
        "generate": page_of(
            traced(ids, nodes=64),
            words,
            title=HOSTILE,
            prompt=HOSTILE + 30 * TEXT,
            labels=[HOSTILE] * 3,
        ),
        "report": report_page(results, title=HOSTILE),
        "all": report_page(committed),
        "committed": report_page(
            {name: committed[name] for name in ("speed_greedy", "quality_traces", "sglang")}
        ),
    }
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in pages}


@pytest.fixture
def tab(running: Any) -> Iterator[Any]:
    """A new tab; in the end nothing was fetched, and no script has failed."""
    context = running.new_context(viewport={"width": 1280, "height": 900})
    one = context.new_page()
    fetched = []
    failed = []
    one.on("request", lambda request: fetched.append(request.url))
    one.on("pageerror", lambda error: failed.append(str(error)))
    one.on(
        "console", lambda message: failed.append(message.text) if message.type == "error" else None
    )
    yield one
    assert not one.evaluate("window.harm")
    context.close()
    assert failed == []
    assert all(url.startswith(("file:", "data:")) for url in fetched)


def heading(tab: Any) -> str:
    return str(tab.inner_text("#pass h2"))


def test_clicks_and_keys_choose_a_pass(tab: Any, places: dict[str, str]) -> None:
    tab.goto(places["generate"])
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
    assert tab.locator("a.pass:not([tabindex='-1'])").count() == 1, (
        "one stop of the tabulator for the whole text"
    )


def test_the_tree_shows_the_accepted_path_scores_sources_and_times(
    tab: Any, places: dict[str, str]
) -> None:
    tab.goto(places["generate"])
    written = tab.locator("a.pass").nth(1).inner_text().replace(" ", "·")
    path = tab.locator("#pass li.accepted > .node .word").all_inner_texts()
    assert "".join(path) == written
    assert tab.locator("#pass .node").count() == 64 + 2, (
        "draft tokens, the context's last and the model's own"
    )
    first = tab.locator("#pass li.accepted > .node").first
    assert first.locator(".below").inner_text() == "✓ A 97 %"
    assert "accepted, acceptance probability 97 %, from " in first.get_attribute("title")
    assert (
        tab.locator("#pass .outcome").inner_text()
        == "3 of 64 draft tokens accepted, then the model's own token."
    )
    times = tab.locator("#pass .times").inner_text().split()
    assert " ".join(times) == "drafting 0.20 ms forward pass 30.5 ms the rest 0.50 ms"


@pytest.mark.parametrize("name", ["generate", "report", "committed"])
@pytest.mark.parametrize("width", [360, 1280])
def test_pages_fit_the_width(name: str, width: int, tab: Any, places: dict[str, str]) -> None:
    tab.set_viewport_size({"width": width, "height": 780})
    tab.goto(places[name])
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_on_a_telephone_the_panel_covers_no_text(tab: Any, places: dict[str, str]) -> None:
    tab.set_viewport_size({"width": 420, "height": 780})
    tab.goto(places["generate"])
    sizes = (
        "[...document.querySelectorAll('main, #pass, [aria-current]')].map((one) =>"
        " one.getBoundingClientRect())"
    )
    for key in ("Home", "ArrowRight", "End"):
        tab.keyboard.press(key)
        text, chosen, panel = tab.evaluate(f"{sizes}.map((one) => [one.top, one.bottom])")
        assert text[1] <= panel[0]
        assert text[0] <= chosen[1] <= text[1], "the chosen pass is in sight"
        assert round(panel[1]) <= 780, "scroll positions are whole pixels, and boxes are not"


def test_on_a_phone_no_table_is_cut_and_many_results_are_short(
    tab: Any, places: dict[str, str]
) -> None:
    tab.set_viewport_size({"width": 420, "height": 780})
    tab.goto(places["report"])
    cut = (
        "[...document.querySelectorAll('.wide')].filter((box) => box.scrollWidth >"
        " box.clientWidth).length"
    )
    assert tab.locator(".bars td").last.is_visible()
    assert not tab.locator(".wide").last.is_visible(), "tables are folded where there are bars"
    tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert tab.locator(".wide").count() > 1
    assert tab.evaluate(cut) == 0
    assert tab.locator(".wide td").last.is_visible()
    tab.goto(places["all"])
    assert tab.locator("section").count() > 12
    assert tab.evaluate("document.documentElement.scrollHeight") < 5000
    tab.locator("summary").first.click()
    assert tab.locator("td").first.is_visible()


def test_the_documentation_is_searched_from_files(tab: Any, tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="of the extra docs")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    tab.goto((tmp_path / "index.html").as_uri())
    tab.locator("[data-md-component=search-query]").fill("suffix array")
    tab.wait_for_selector(".md-search-result__item a")


# Of each element with text of its own: the contrast of its colour with the nearest opaque
# background.
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  function rgb(colour) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  }
  function luminance(parts) {
    const [r, g, b] = [...parts].slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }
  function background(element) {
    for (let one = element; one; one = one.parentElement) {
      const parts = rgb(getComputedStyle(one).backgroundColor);
      if (parts[3] === 255) return parts;
    }
    return [255, 255, 255];
  }
  return [...document.body.querySelectorAll("*")]
    .filter((one) => !one.matches(":disabled, script"))
    .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .map((one) => {
      const [a, b] = [luminance(rgb(getComputedStyle(one).color)), luminance(background(one))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.className + " " + one.textContent.slice(0, 40)];
    });
}"""


@pytest.mark.parametrize("name", ["generate", "report"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(
    name: str, scheme: str, tab: Any, places: dict[str, str]
) -> None:
    tab.emulate_media(color_scheme=scheme)
    tab.goto(places[name])
    contrasts = tab.evaluate(CONTRASTS)
    assert len(contrasts) > 20
    assert [text for contrast, text in contrasts if contrast < 4.5] == []
    back = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (back == "rgb(255, 255, 255)") == (scheme == "light")


def test_a_wide_tree_scrolls_with_the_keys_while_it_has_the_focus(
    tab: Any, places: dict[str, str]
) -> None:
    tab.goto(places["generate"])
    tab.evaluate("document.querySelector('.tree').style.width = '5rem'")
    before = heading(tab)
    tab.locator(".tree").focus()
    tab.keyboard.press("ArrowRight")
    assert heading(tab) == before


def test_sources_look_different_without_colours(tab: Any, places: dict[str, str]) -> None:
    tab.goto(places["generate"])
    lines = tab.evaluate(
        """[...document.querySelectorAll(".legend .sample")].map((one) => {
            const style = getComputedStyle(one);
            return style.textDecorationLine + style.textDecorationStyle;
        })"""
    )
    assert len(set(lines)) == len(lines) == 4, "three sources and the model"


def test_on_paper_the_page_is_light_and_without_buttons(tab: Any, places: dict[str, str]) -> None:
    tab.emulate_media(media="print", color_scheme="dark")
    for name in ("generate", "report"):
        tab.goto(places[name])
        background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(255, 255, 255)"
        assert tab.locator("#pass .buttons:visible").count() == 0
    assert tab.pdf()[:5] == b"%PDF-"
