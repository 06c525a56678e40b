"""The script that compares tokenizers of builds with those of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import check_tokenizers
import pytest
from click.testing import CliRunner

from tests.shared.models import CHATML, byte_level_bpe

transformers = pytest.importorskip("transformers")


@pytest.fixture
def tokenizers(tmp_path: Path) -> Path:
    for name, template in (("with a template", CHATML), ("without", None)):
        fast = transformers.PreTrainedTokenizerFast(
            tokenizer_object=byte_level_bpe(), eos_token="<|im_end|>"
        )
        fast.chat_template = template
        fast.save_pretrained(tmp_path / name)
    return tmp_path


def test_one_line_a_tokenizer_says_what_is_equal(
    tokenizers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        check_tokenizers, "texts", lambda: [f"def f{number}(): pass\n" for number in range(30)]
    )
    done = CliRunner().invoke(check_tokenizers.main, [str(tokenizers)], catch_exceptions=False)
    first, second = done.output.splitlines()
    assert done.exit_code == 0
    assert first.startswith("with a template")
    assert "texts 30/30, answers 30/30, turns 30/30, call left out, reasoning left out" in first
    assert "texts 30/30, no chat template" in second


def test_other_ids_are_a_failure(tokenizers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = check_tokenizers.stored

    def without_the_first(datastore: Path) -> Iterator[list[int]]:
        for number, ids in enumerate(stored(datastore)):
            yield ids[1:] if number == 0 else ids

    monkeypatch.setattr(check_tokenizers, "texts", lambda: ["one two", "three", "four", "five"])
    monkeypatch.setattr(check_tokenizers, "stored", without_the_first)
    done = CliRunner().invoke(check_tokenizers.main, [str(tokenizers)], catch_exceptions=False)
    assert done.exit_code == 1
    assert "texts 3/4, answers 4/4" in done.output
