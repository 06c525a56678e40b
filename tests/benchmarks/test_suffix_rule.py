"""The rule of vLLM's suffix speculator, by the facts that its own tests state."""

import numpy as np
import pytest
from suffix_rule import SuffixMemory, SuffixRule


def draft(memory: SuffixMemory, text: list[int], count: int, *, depth: int = 24) -> list[int]:
    rule = SuffixRule(memory, np.array(text, np.int32), depth=depth)
    return list(map(int, rule.draft(count).tokens))


def memory_of(*outputs: list[int], capacity: int = 1000) -> SuffixMemory:
    memory = SuffixMemory(capacity)
    for output in outputs:
        memory.add(np.zeros(0, np.int32), np.array(output, np.int32))
    return memory


@pytest.mark.parametrize("depth", [1, 3, 24])
def test_the_own_text_continues_from_the_latest_longest_match(depth: int) -> None:
    chance = np.random.default_rng(depth)
    for _ in range(50):
        text = chance.integers(0, 3, chance.integers(1, 40)).tolist()
        lengths = {
            end: max(
                size
                for size in range(min(end, depth) + 1)
                if text[end - size : end] == text[len(text) - size :]
            )
            for end in range(1, len(text))
        }
        expected = []
        if any(lengths.values()):
            end = max(lengths, key=lambda one: (lengths[one], one))
            expected = text[end : end + 5]
        padding = [text[-1]] * (5 - len(expected))
        assert draft(memory_of(), text, 5, depth=depth) == expected + padding


@pytest.mark.parametrize(
    ("outputs", "text", "expected"),
    [
        ([[7, 8, 9, 10, 11, 12]], [50, 7, 8, 9], [10, 11, 12, 9]),  # filled with the last token
        ([[1, 2, 3, 4, 70, 71]], [4, 99, 98, 1, 2, 3, 4], [70, 71, 4, 4]),  # longer than its own
        ([[1, 2, 5]], [1, 2, 6, 0, 1, 2], [6, 0, 1, 2]),  # as long as its own
        ([[5, 6, 7], [40, 41]], [5, 6], [7, 6, 6, 6]),  # no continuation crosses an end
        ([[5, 6, 30, 31], [5, 6, 40, 41]], [5, 6], [40, 41, 6, 6]),  # the latest
        ([[5, 6, 30], [5, 6, 30], [5, 6, 40]], [5, 6], [30, 6, 6, 6]),  # the most frequent
        ([[9, 9, 5, 6, 30, 31], [1, 2, 3, 4, 5, 6, 70, 71]], [1, 2, 3, 4, 5, 6], [70, 71, 6, 6]),
        ([[5, 6, 30]] + [[5, 6, 40]] * 3 + [[5, 6, 30]] * 8, [5, 6], [30, 6, 6, 6]),  # 8 slots
        ([[1, 5, 30]], [2, 5], [5, 5, 5, 5]),  # one token is no key
    ],
)  # fmt: skip
def test_outputs_continue_a_text(
    outputs: list[list[int]], text: list[int], expected: list[int]
) -> None:
    assert draft(memory_of(*outputs), text, 4) == expected


def test_an_output_is_found_behind_the_end_of_its_prompt() -> None:
    memory = SuffixMemory()
    rule = SuffixRule(memory, np.array([1, 2, 90, 91, 92], np.int32))
    rule.accept(np.array([7, 8], np.int32))
    rule.close()
    assert draft(memory, [60, 61, 90, 91, 92], 2) == [7, 8]
    assert draft(memory, [1, 2], 2) == [2, 2], "of the prompt, three tokens"


def test_the_oldest_outputs_are_forgotten() -> None:
    outputs = [[one, one + 1, one + 2, one + 3] for one in (10, 20, 30)]
    memory = memory_of(*outputs, capacity=10)
    assert draft(memory, [10, 11], 2) == [11, 11]
    assert draft(memory, [20, 21], 2) == [22, 23]
    assert draft(memory, [30, 31], 2) == [32, 33]
