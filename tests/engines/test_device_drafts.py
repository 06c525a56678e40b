"""Drafts on the device: of the outcome, or continued from text and remembered outputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rest_store.engines.request import NewRequest
from rest_store.engines.vllm import device_drafts, device_outputs
from rest_store.engines.vllm.device_drafts import continuations_in_texts, drafts_on_device
from rest_store.engines.vllm.device_outputs import DeviceOutputs
from rest_store.engines.vllm.vllm_request import VllmRequest
from tests.shared.engine import VOCABULARY, cyclic
from tests.shared.members import scored

MODEL = cyclic(VOCABULARY)


def test_the_device_takes_the_draft_after_the_outcome() -> None:
    verified = np.array([7, 8], np.int32)
    #                  0: 7       1: 8   2: 1, 3: 2    4: 9  5: 4         6: 5  7: 6
    tree = scored(
        [7, 8, 1, 2, 9, 4, 5, 6],
        [-1, 0, 1, 2, 1, 0, 5, -1],
        [0.8, 0.6, 0.3, 0.15, 0.2, 0.1, 0.05, 0.1],
    )
    request = VllmRequest(NewRequest("a", [], 0), None)
    texts = torch.zeros(2, 10, dtype=torch.int32)
    texts[1, :4] = torch.tensor([3, 6, 6, 3])
    rows = torch.tensor([1, 0])
    native = torch.full((2, 2), 42)
    for new, expected, again in (
        ([7, 8, 1], [2, 42], [2, 42]),
        ([7, 8, 9], [42, 42], [42, 42]),  # foreseen, and nothing follows
        ([7, 4], [5, 42], [5, 42]),
        ([7], [8, 1], [8, 1]),  # the draft was cut
        ([6], [42, 42], [42, 42]),
        ([3], [42, 42], [3, 3]),  # not foreseen: 3 3 was not written before, 3 was
        ([7, 6], [42, 42], [3, 7]),
        ([7, 8, 2], [42, 42], [42, 42]),  # not foreseen, and new to the text
    ):
        request.look_ahead(tree, verified, 2, 6)
        texts[1, 4 : 4 + len(new)] = torch.tensor(new)
        texts[1, 4 + len(new) :] = 0
        lengths = torch.tensor([0, 4 + len(new)])
        for looks_up_texts, tokens in ((False, expected), (True, again)):
            drafts = drafts_on_device(
                [request.outcomes, None],
                [4, 0],
                texts,
                rows,
                lengths,
                native,
                looks_up_texts=looks_up_texts,
            )
            assert drafts is not None
            assert drafts.tokens.tolist() == [tokens, [42, 42]], new
            ours = sum(token != 42 for token in expected)
            assert drafts.is_ours.tolist() == [[True] * ours + [False] * (2 - ours), [False] * 2]
        request.end_step(np.array(new, np.int32))
        assert request.is_chosen == bool(ours)
        assert request.draft.tokens.tolist() == expected[:ours]
        assert request.verified(1).tokens.tolist() == expected[: min(1, ours)]
        # Scores are products of chances, as vLLM's are.
        chances = np.cumprod(drafts.chances[0, :ours].numpy())
        assert chances == pytest.approx(np.asarray(request.draft.scores))
    request.look_ahead(tree, verified, 2, 6)
    request.set_draft(np.array([7], np.int32))
    assert np.asarray(request.draft.scores) == pytest.approx([0.75, 0.375])
    request.end_step(np.zeros(0, np.int32))
    assert not len(request.draft), "a step that writes nothing has no outcome"
    request.look_ahead(tree, verified, 2, 3)  # room for three tokens
    request.set_draft(np.array([7, 8], np.int32))
    assert request.draft.tokens.tolist() == [1]


@pytest.mark.parametrize("seed", range(5))
def test_the_device_continues_the_longest_suffix_that_occurred_before(seed: int) -> None:
    chance = np.random.default_rng(seed)
    texts = torch.from_numpy(chance.integers(0, 4, (6, 40), np.int32))
    rows = torch.tensor([4, 0, 5, 2])
    lengths = torch.tensor([1, 2, 17, 40])
    continued = continuations_in_texts(texts, rows, lengths, 5).tolist()
    for row, length, tokens in zip(rows.tolist(), lengths.tolist(), continued, strict=True):
        text = texts[row, :length].tolist()
        assert tokens == continuation_plainly(text, 5)


@pytest.mark.parametrize("seed", range(5))
def test_the_device_continues_a_suffix_that_occurred_in_a_rows_memory(seed: int) -> None:
    chance = np.random.default_rng(seed)
    texts = torch.from_numpy(chance.integers(0, 9, (6, 40), np.int32))
    documents = [
        [chance.integers(0, 9, chance.integers(1, 9)).tolist() for _ in range(count)]
        for count in (40, 3)
    ]
    long, short = (
        torch.tensor([token for one in some for token in (*one, -1)], dtype=torch.int32)
        for some in documents
    )
    rows = torch.tensor([4, 0, 5, 2])
    lengths = torch.tensor([1, 5, 17, 40])
    memories = [long, short, None, long]
    continued = continuations_in_texts(texts, rows, lengths, 5, memories).tolist()
    own = [documents[0], documents[1], [], documents[0]]
    for row, length, before, tokens in zip(
        rows.tolist(), lengths.tolist(), own, continued, strict=True
    ):
        assert tokens == continuation_plainly(texts[row, :length].tolist(), 5, before)


def test_a_row_without_a_lookup_is_not_continued_from_its_memory() -> None:
    request = VllmRequest(NewRequest("a", [], 0), None)
    request.look_ahead(scored([], [], []), np.zeros(0, np.int32), 2, 9)
    memory = torch.tensor([3, 5, 6, -1], dtype=torch.int32)
    drafts = drafts_on_device(
        [request.outcomes, None],
        [1, 1],
        torch.tensor([[1, 3, 0, 0], [1, 3, 0, 0]], dtype=torch.int32),
        torch.tensor([0, 1]),
        torch.tensor([2, 2]),
        torch.full((2, 3), 42),
        looks_up_texts=True,
        outputs=[memory, memory],
    )
    assert drafts is not None
    assert drafts.tokens.tolist() == [[5, 6, 42], [42, 42, 42]]
    assert not drafts.is_ours.any()


def test_an_array_is_copied_to_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_outputs, "_MAX_ARRAYS", 2)
    arrays = [np.array([number, -1], np.int32) for number in range(3)]
    memory = DeviceOutputs(torch.device("cpu"))
    copies = [memory.copy_of(array) for array in arrays[:2]]
    assert [memory.copy_of(array) for array in arrays[:2]] == copies
    assert memory.copy_of(np.zeros(0, np.int32)) is None
    assert [None if one is None else one.tolist() for one in copies] == [[0, -1], [1, -1]]
    memory.copy_of(arrays[2])
    assert memory.copy_of(arrays[1]) is copies[1]
    assert memory.copy_of(arrays[0]) is not copies[0], "the one that was not used longest"


def test_of_long_texts_the_last_part_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = torch.tensor([[1, 2, 3, 9, 9, 5, 6, 1, 8, 1], [1, 7, 1, 0, 0, 0, 0, 0, 0, 0]])
    rows = torch.tensor([0, 1])
    for searched, expected in ((20, [[8, 1], [7, 1]]), (8, [[8, 1], [7, 1]]), (4, [[-1, -1]] * 2)):
        monkeypatch.setattr(device_drafts, "_MAX_SEARCHED", searched)
        lengths = torch.tensor([10, 3])
        assert continuations_in_texts(texts.int(), rows, lengths, 2).tolist() == expected


def continuation_plainly(
    text: list[int], count: int, memory: list[list[int]] | None = None
) -> list[int]:
    for size in range(min(8, len(text)), 0, -1):
        for end in range(len(text) - 1, size - 1, -1):  # after the occurrence
            if text[end - size : end] == text[-size:]:
                period = text[end:]
                return (period * count)[:count]
        for document in reversed(memory or []):
            for end in range(len(document) - 1, size - 1, -1):
                if document[end - size : end] == text[-size:]:
                    tokens = document[end : end + count]
                    return tokens + [-1] * (count - len(tokens))
    return [-1] * count
