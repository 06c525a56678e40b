"""The page of one generation: its text and data; `tests/pages/test_browser.py` opens it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rest_store.datastore.tree import TokenTree
from rest_store.generation.comparison import Comparison, Speedup
from rest_store.generation.draft_sessions import EMPTY
from rest_store.generation.output import Piece
from rest_store.generation.page import letters, source_class
from tests.shared.html import read
from tests.shared.tiny import text_tokenizer
from tests.shared.traces import LABELS, page_of, traced

COMPARISON = Comparison(
    Speedup(2.0, 1.95, 2.05, 4),
    identical=True,
    tokens=10,
    seconds=2.0,
    drafted_seconds=1.0,
    max_nodes=16,
    mean_tokens_at_max=2.5,
)
HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> & \"'\u2028"


@pytest.fixture(scope="module")
def words() -> Any:
    return text_tokenizer()


def test_the_page_is_whole_and_needs_no_network(words: Any) -> None:
    text = "for i in range(10):\n    print(i, 'naïve café', 2024)\n"
    ids = words(text, add_special_tokens=False)["input_ids"]
    shown = page_of(traced(ids), words, prompt="<begin>", comparison=COMPARISON)
    reader = read(shown)
    assert text.strip() in reader.text
    assert "<begin>" in reader.text
    assert "drafts at 10.0: 2.00 times as fast (1.95 to 2.05 in 4 pairs of runs)" in reader.text
    passes = math.ceil((len(ids) - 1) / 4) + 1
    assert [id for id in reader.ids if id.startswith("pass-")] == [
        f"pass-{n + 1}" for n in range(passes)
    ]
    assert all(link.startswith("#pass-") for link in reader.links)
    assert reader.tags.count("script") == 2
    assert not {"link", "iframe", "img"} & set(reader.tags)
    assert "url(" not in shown
    assert "@import" not in shown
    assert "default-src 'none'" in shown


def test_the_data_has_each_tree(words: Any) -> None:
    ids = words("first second first second return", add_special_tokens=False)["input_ids"]
    passes = traced(ids, nodes=9, accepted=2)
    data = read(page_of(passes, words)).data
    assert data["labels"][:3] == LABELS
    assert len(data["passes"]) == len(passes)
    begin, second = data["passes"][0], data["passes"][1]
    assert (begin["texts"], begin["context"], begin["bonus"]) == ([], None, words.decode(ids[:1]))
    assert second["accepted"] == [0, 1]
    assert second["texts"][:2] == [words.decode([token]) for token in ids[1:3]]
    assert second["bonus"] == words.decode(ids[3:4])
    assert second["context"] == words.decode(ids[:1])
    assert second["parents"] == passes[1].trees[0].parents.tolist()
    assert second["scores"][:2] == [970, 941]
    assert second["origins"][:4] == [1, 2, 4, 5]
    assert second["times"] == [31200, 200, 30500]


def test_sources_are_counted(words: Any) -> None:
    reader = read(page_of(traced(range(70, 83), accepted=3, origins=(1, 3, 4)), words))
    legend = " ".join(reader.text[reader.text.index("Where the tokens came from") :].split())
    assert "A python.ds 46 % 6 tokens, 3 by it alone" in legend
    assert "B prompt lookup 23 % 3 tokens, none by it alone" in legend
    assert (
        "C recycled logits 23 % 3 tokens, 3 by it alone · the model alone 31 % 4 tokens" in legend
    )
    assert "A token that several sources drafted counts for each of them." in legend
    masks = (0, 1, 4, 6, 128)
    classes = ["model", "source-0", "source-2", "several", "source-7"]
    assert [source_class(mask) for mask in masks] == classes
    assert [letters(mask) for mask in masks] == ["·", "A", "C", "BC", "H"]


def test_scores_that_no_probability_has_do_not_break_the_page(words: Any) -> None:
    scores = np.array([math.nan, math.inf, -1.0, 2.0, 0.0004])
    tree = TokenTree([70, 71, 72, 73, 74], [-1] * 5, [0] * 5, scores=scores, origins=[1] * 5)
    [step] = read(page_of([Piece([[70, 71]], [[1, 0]], [tree], [[0]])], words)).data["passes"]
    assert step["scores"] == [-1, -1, -1, 1000, 0]


def test_untrusted_text_is_text(words: Any) -> None:
    ids = words(HOSTILE, add_special_tokens=False)["input_ids"]
    shown = page_of(
        traced(ids), words, title=HOSTILE, prompt=HOSTILE, labels=[HOSTILE] * 3, remarks=[HOSTILE]
    )
    reader = read(shown)
    assert reader.tags.count("script") == 2
    assert "img" not in reader.tags
    assert reader.text.count("alert(1)") >= 4
    assert reader.data["labels"][0] == HOSTILE


def test_special_tokens_and_pieces_of_characters_are_seen(words: Any) -> None:
    ids = [*words("漢 漢", add_special_tokens=False)["input_ids"], words.eos_token_id]
    reader = read(page_of(traced(ids, nodes=3), words))
    assert "漢 漢<|endoftext|>" in reader.text
    assert (
        "<|endoftext|>"
        in [step["bonus"] for step in reader.data["passes"]] + reader.data["passes"][-1]["texts"]
    )
    broken = read(page_of(traced(ids[:2], nodes=3), words))
    assert "\ufffd" in broken.text


def test_a_generation_without_drafts_or_without_anything_has_a_page(words: Any) -> None:
    plain = [Piece([[70]], [[0]], [EMPTY], [[]])]
    assert (
        "1 token in 1 forward pass: M 1.00."
        in read(page_of(plain, words, comparison=COMPARISON)).text
    )
    assert "0 tokens in 0 forward passes" in read(page_of([], words)).text
