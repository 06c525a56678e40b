"""The page of one generation: its text and data; `tests/pages/test_browser.py` opens it."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

import rest_store
from rest_store.datastore.tree import TokenTree
from rest_store.generation.comparison import Comparison, Speedup
from rest_store.generation.drafts import EMPTY
from rest_store.generation.output import Piece
from rest_store.generation.page import letters, look
from tests.shared.html import read
from tests.shared.tiny import Scripted, bushy, futures_of, prompts, text_tokenizer, tiny_model
from tests.shared.traces import LABELS, page_of, traced

COMPARISON = Comparison(
    Speedup(2.0, 1.95, 2.05, 4), identical=True, tokens=10, seconds=2.0, drafted_seconds=1.0, max_nodes=16,
    mean_tokens_at_max=2.5,
)  # fmt: skip
HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> & \"'\u2028"


@pytest.fixture(scope="module")
def words() -> Any:
    return text_tokenizer()


def test_pieces_tell_what_each_pass_drafted_and_accepted() -> None:
    model, inputs = tiny_model("llama"), prompts(2)
    options = {"max_new_tokens": 24, "do_sample": False}
    expected = model.generate(**inputs, **options)
    futures = futures_of(inputs, expected)
    maker = functools.partial(Scripted, futures=futures, script=bushy)
    generator = rest_store.Generator(model, None, maker, max_nodes=64, adaptive=False)
    generation = generator.stream(inputs, **options)
    pieces = list(generation)
    assert generation.result().tolist() == expected.tolist()
    for row, origins in enumerate(generation.statistics.origins):
        drafted = []
        for piece in pieces:
            nodes = piece.accepted[row]
            assert piece.trees[row].tokens[nodes].tolist() == piece.tokens[row][: len(nodes)]
            drafted += [1] * len(nodes) + [0] * (len(piece.tokens[row]) - len(nodes))
        assert drafted == [int(origin > 0) for origin in origins]
        assert sum(drafted) > 0
    statistics = generation.statistics
    assert all(0 < piece.forward_seconds <= piece.seconds for piece in pieces)
    assert sum(piece.drafting_seconds for piece in pieces) == pytest.approx(statistics.drafting_seconds)
    assert statistics.drafting_seconds + statistics.forward_seconds < statistics.seconds


def test_the_page_is_whole_and_needs_no_network(words: Any) -> None:
    text = "for i in range(10):\n    print(i, 'naïve café', 2024)\n"
    ids = words(text, add_special_tokens=False)["input_ids"]
    shown = page_of(traced(ids), words, prompt="<begin>", comparison=COMPARISON)
    reader = read(shown)
    assert text.strip() in reader.text
    assert "<begin>" in reader.text
    assert "drafts at 10.0: 2.00 times as fast (1.95 to 2.05 in 4 pairs of runs)" in reader.text
    passes = math.ceil((len(ids) - 1) / 4) + 1
    assert [id for id in reader.ids if id.startswith("pass-")] == [f"pass-{n + 1}" for n in range(passes)]
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
    assert "C recycled logits 23 % 3 tokens, 3 by it alone · the model alone 31 % 4 tokens" in legend
    assert "A token that several sources drafted counts for each of them." in legend
    looks = ["model", "source-0", "source-2", "several", "source-7"]
    assert [look(origin) for origin in (0, 1, 4, 6, 128)] == looks
    assert [letters(origin) for origin in (0, 1, 4, 6, 128)] == ["·", "A", "C", "BC", "H"]


def test_untrusted_text_is_text(words: Any) -> None:
    ids = words(HOSTILE, add_special_tokens=False)["input_ids"]
    shown = page_of(traced(ids), words, title=HOSTILE, prompt=HOSTILE, labels=[HOSTILE] * 3, remarks=[HOSTILE])
    reader = read(shown)
    assert reader.tags.count("script") == 2
    assert "img" not in reader.tags
    assert reader.text.count("alert(1)") >= 4
    assert reader.data["labels"][0] == HOSTILE


def test_special_tokens_and_pieces_of_characters_are_seen(words: Any) -> None:
    ids = [*words("漢 漢", add_special_tokens=False)["input_ids"], words.eos_token_id]
    reader = read(page_of(traced(ids, nodes=3), words))
    assert "漢 漢<|endoftext|>" in reader.text
    assert "<|endoftext|>" in [step["bonus"] for step in reader.data["passes"]] + reader.data["passes"][-1]["texts"]
    broken = read(page_of(traced(ids[:2], nodes=3), words))
    assert "\ufffd" in broken.text


def test_numbers_that_no_probability_has_do_not_break_the_page(words: Any) -> None:
    scores = [math.nan, math.inf, -1.0, 2.0, 0.0004]
    tree = TokenTree([70, 71, 72, 73, 74], [-1] * 5, [0] * 5, scores=np.array(scores))
    bare = TokenTree([70], [-1], [0])
    passes = [Piece([[70, 71]], [[1, 0]], [shape], [[0]]) for shape in (tree, bare)]
    first, second = read(page_of(passes, words)).data["passes"]
    assert first["scores"] == [-1, -1, -1, 1000, 0]
    assert (second["scores"], second["origins"]) == ([-1], [1])


def test_a_generation_without_drafts_or_without_anything_has_a_page(words: Any) -> None:
    plain = [Piece([[70]], [[0]], [EMPTY], [[]])]
    assert "1 token in 1 forward pass: M 1.00." in read(page_of(plain, words, comparison=COMPARISON)).text
    assert "0 tokens in 0 forward passes" in read(page_of([], words)).text
