"""Remembering outputs changes no text, improves later drafts, and lets nothing else fail."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import rest_store
from rest_store.datastore.validation import IntSequence
from rest_store.drafting import remembering
from rest_store.drafting.output_document import PROMPT_TOKENS
from rest_store.drafting.remembering import flush
from rest_store.errors import (
    ArgumentError,
    DocumentError,
    DraftingWarning,
    SourceError,
    StorageError,
)
from rest_store.generation import comparison
from tests.shared.services import PATIENCE
from tests.shared.strategies import identity, refused
from tests.shared.tiny import VOCABULARY, prompts, tiny_model


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama")


@pytest.fixture
def live(tmp_path: Path) -> Iterator[rest_store.LiveDatastore]:
    with rest_store.LiveDatastore.open(tmp_path / "live", tokenizer=identity(VOCABULARY)) as store:
        yield store


class Kept:
    """A target that keeps what it is given, once `open` is set."""

    def __init__(self) -> None:
        self.documents: list[list[int]] = []
        self.ids: list[str] = []
        self.threads: set[int] = set()
        self.called, self.open = threading.Event(), threading.Event()
        self.open.set()

    def add(self, documents: Sequence[IntSequence], ids: Sequence[str] | None = None) -> None:
        self.called.set()
        self.open.wait()
        self.threads.add(threading.get_ident())
        self.documents += [list(map(int, document)) for document in documents]
        self.ids += ids or []


class Failing:
    def add(self, documents: Sequence[IntSequence], ids: Sequence[str] | None = None) -> None:
        raise SystemExit("no more")


def write(model: Any, inputs: dict[str, torch.Tensor], **options: Any) -> Any:
    arguments = {
        "max_new_tokens": 32,
        "adaptive": False,
        "sources": [rest_store.PromptLookup()],
        **options,
    }
    return model.generate(
        **inputs, custom_generate=rest_store.generate, return_dict_in_generate=True, **arguments
    )


def write_and_wait(model: Any, inputs: dict[str, torch.Tensor], target: Any) -> Any:
    output = write(model, inputs, remember=target)
    assert flush(target)
    return output


@pytest.mark.parametrize(
    "sampling", [{}, {"do_sample": True, "temperature": 0.7}], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("rows", [1, 3])
def test_the_same_prompt_again_takes_fewer_passes_to_the_same_text(
    model: Any, live: rest_store.LiveDatastore, rows: int, sampling: dict[str, Any]
) -> None:
    inputs = prompts(rows)
    torch.manual_seed(3)
    plain = write(model, inputs, sources=None, **sampling).sequences
    passes = []
    for added in (rows, 0):
        torch.manual_seed(3)
        output = write(model, inputs, sources=[live], remember=live, **sampling)
        assert torch.equal(output.sequences, plain)
        assert flush(live)
        counts = output.statistics.remembered
        assert (len(counts.ids), counts.added, counts.dropped) == (rows, added, 0)
        assert counts.duplicates == ([] if added else counts.ids)
        passes.append(output.statistics.forward_passes)
    assert passes[1] < passes[0] / 2
    assert live.info().document_count == rows, "the same text is kept once"
    assert live.delete(output.statistics.remembered.ids) == rows


def test_a_document_is_the_end_of_the_prompt_and_the_output_without_padding(model: Any) -> None:
    inputs, target = prompts(3, length=PROMPT_TOKENS + 4), Kept()
    plain = model.generate(**inputs, max_new_tokens=32)
    ends = int(plain[0, -20])  # ends the first row there, at the latest
    output = write(model, inputs, remember=target, eos_token_id=ends)
    assert flush(target)
    expected = []
    for ids, mask, row in zip(
        inputs["input_ids"], inputs["attention_mask"], output.sequences, strict=True
    ):
        written = row[ids.shape[0] :].tolist()
        written = written[: written.index(ends) + 1] if ends in written else written
        expected.append(ids[mask.bool()].tolist()[-PROMPT_TOKENS:] + written)
    assert target.documents == [
        document for document in expected if len(document) >= PROMPT_TOKENS + 4
    ]
    assert target.ids == output.statistics.remembered.ids


def test_what_was_written_of_a_group_is_read_first(
    model: Any, live: rest_store.LiveDatastore
) -> None:
    """The group is read, although prompt lookup is the only source of drafts.

    Another group is not read.
    """
    generator = rest_store.Generator(
        model, None, [rest_store.PromptLookup()], adaptive=False, remember=live
    )
    options = {"max_new_tokens": 32, "do_sample": False, "compare": True}
    passes = []
    for group, epoch in (("one", 1), ("one", 2), ("two", 2), ("one", 2)):
        output = generator.generate(prompts(1), group=group, epoch=epoch, **options)
        assert generator.flush()
        assert output.comparison is not None
        assert output.comparison.identical
        assert output.comparison.mean_tokens_at_max == output.statistics.mean_tokens
        passes.append(output.statistics.forward_passes)
    assert passes[3] <= passes[1] < passes[0] / 2
    assert passes[2] == passes[0]
    assert output.statistics.remembered.duplicates == output.statistics.remembered.ids
    groups = [(document.group, document.epoch) for document in live.documents()]
    assert groups == [("one", 1), ("one", 2), ("two", 2)], "the same text, of each epoch and group"
    again = write(model, prompts(1), remember=live, group="one", epoch=2, do_sample=False)
    assert again.statistics.forward_passes <= passes[1]
    without = write(model, prompts(1), remember=live, group="one", sources=[], do_sample=False)
    assert torch.equal(without.sequences, again.sequences)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_group_that_cannot_be_read_costs_its_documents_alone(
    model: Any, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unreadable:
        def __init__(self) -> None:
            self.ids: list[str] = []

        def add(
            self, documents: Sequence[IntSequence], ids: Sequence[str] = (), **labels: Any
        ) -> None:
            self.ids += ids

        def documents(self, *, group: str, latest: int) -> Iterator[Any]:
            raise StorageError(f"{group} cannot be read")

    monkeypatch.setattr(comparison, "MAX_SECONDS", 0.0)
    target, inputs = Unreadable(), prompts(rows)
    plain = model.generate(**inputs, max_new_tokens=32, do_sample=False)
    references = [row[inputs["input_ids"].shape[1] :].tolist() for row in plain]
    generator = rest_store.Generator(
        model, None, [rest_store.PromptLookup()], adaptive=False, remember=target
    )
    options = {
        "max_new_tokens": 32,
        "do_sample": False,
        "references": references,
        "compare": rows == 1,
    }
    said = (
        "without a session, source or reference: references: rest_store.errors.StorageError: one"
        " cannot be read"
    )
    with pytest.warns(DraftingWarning, match=said) as warned:
        output = generator.generate(inputs, group="one", **options)
    assert len(warned) == 1
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.failed == 1
    assert output.statistics.mean_tokens > 2 * rows, "the other references are read"
    assert generator.flush()
    assert target.ids == output.statistics.remembered.ids


@pytest.mark.parametrize(
    ("options", "error"), [({"group": 7}, DocumentError), ({"epoch": -1}, ArgumentError)]
)
def test_what_is_no_group_or_epoch_is_refused_at_once(
    model: Any,
    live: rest_store.LiveDatastore,
    options: dict[str, Any],
    error: type[rest_store.RestStoreError],
) -> None:
    refused(error, lambda: write(model, prompts(1), remember=live, **options), next(iter(options)))


@pytest.mark.parametrize("way", ["closed", "dropped", "failed"])
def test_what_was_written_before_an_early_end_is_remembered(model: Any, way: str) -> None:
    inputs, target = prompts(1), Kept()
    plain = model.generate(**inputs, max_new_tokens=32)[0].tolist()

    def fails(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] == 14 + 8 and way == "failed":
            raise KeyboardInterrupt
        return scores

    generator = rest_store.Generator(model, None, [], remember=target)
    pieces = generator.stream(inputs, max_new_tokens=32, logits_processor=[fails])
    written: list[int] = []
    try:
        for piece in pieces:
            written += piece.tokens[0]
            if len(written) == 8 and way != "failed":
                break
    except KeyboardInterrupt:
        pass
    if way == "closed":
        pieces.close()
        pieces.close()
    del pieces
    assert generator.flush()
    assert target.documents == [plain[: 14 + 8]]


def test_a_generator_waits_for_all_that_is_remembered(model: Any) -> None:
    targets = [Kept(), Kept()]
    for target in targets:
        target.open.clear()
        generator = rest_store.Generator(model, None, [], remember=target)
        list(generator.stream(prompts(1), max_new_tokens=8))
    for target in targets:
        assert not generator.flush(0.0)
        target.open.set()
    assert generator.flush()
    assert [len(target.documents) for target in targets] == [1, 1]


def test_a_failing_target_is_counted_and_changes_nothing(model: Any) -> None:
    inputs, target = prompts(2), Failing()
    with pytest.warns(
        DraftingWarning, match="an output was not remembered: SystemExit: no more"
    ) as warned:
        output = write_and_wait(model, inputs, target)
    assert len(warned) == 1
    counts = output.statistics.remembered
    assert (counts.added, counts.dropped, counts.error) == (0, 2, "SystemExit: no more")
    assert torch.equal(output.sequences, model.generate(**inputs, max_new_tokens=32))


def test_a_blocked_target_delays_nobody_and_what_it_cannot_take_is_counted(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembering, "_MAX_TOKENS", 2 * (14 + 32))
    target = Kept()
    target.open.clear()
    outputs = [write(model, prompts(1, seed=seed), remember=target) for seed in range(2)]
    assert target.called.wait(60)
    with pytest.warns(DraftingWarning, match="too much is waiting already"):
        outputs.append(write(model, prompts(1, seed=2), remember=target))
    assert not flush(target, 0.0)
    target.open.set()
    assert flush(target, None)
    outputs.append(write(model, prompts(1, seed=3), remember=target))
    assert flush(target, None)
    assert [output.statistics.remembered.dropped for output in outputs] == [0, 0, 1, 0]
    assert len(target.documents) == 3
    assert not remembering._queues, "a target is not held any longer"


# A target that can be written to from the end of the program on.
_PROGRAM = """
import atexit, sys, threading
from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.remembering import RememberCounts, flush, remember

class Target:
    exiting = threading.Event()
    def add(self, documents, ids=None):
        self.exiting.wait()
        print(*documents[0], flush=True)

target = Target()
remember(target, [OutputDocument.from_output([1, 2], [3, 4, 5, 6])], RememberCounts())
if sys.argv[1] != "blocked":
    atexit.register(target.exiting.set)
"""


@pytest.mark.parametrize(("way", "printed"), [("exit", "1 2 3 4 5 6\n"), ("blocked", "")])
def test_a_program_that_ends_writes_what_is_queued(way: str, printed: str) -> None:
    program = _PROGRAM + f"flush.__defaults__ = ({0.01 if way == 'blocked' else PATIENCE},)\n"
    done = subprocess.run(
        [sys.executable, "-c", program, way], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


_FORK = """
import os, sys, threading
from rest_store.drafting.output_document import OutputDocument
from rest_store.drafting.remembering import RememberCounts, flush, remember

class Target:
    called, open = threading.Event(), threading.Event()
    def add(self, documents, ids=None):
        self.called.set()
        self.open.wait()
        print(*documents[0], flush=True)

target = Target()
remember(target, [OutputDocument.from_output([], [1, 2, 3, 4])], RememberCounts())
target.called.wait()
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    target.open.set()
    assert flush(target, None)
else:
    target.open.set()
    remember(target, [OutputDocument.from_output([], [5, 6, 7, 8])], RememberCounts())
    assert flush(target, None)
    os._exit(0)
"""


def test_a_forked_process_writes_what_it_remembers_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-Wignore", "-c", _FORK], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "5 6 7 8\n1 2 3 4\n", "")


class Coroutine:
    """What nobody would wait for."""

    async def add(self, documents: Any, ids: Any = None) -> None: ...


@pytest.mark.parametrize(
    ("target", "actual"),
    [
        ("live/", "a str"),
        (set(), "a set"),
        (rest_store.PromptLookup(), "a PromptLookup"),
        (rest_store.LiveDatastore, "the class LiveDatastore"),
        (Coroutine(), "a Coroutine, whose add is a coroutine"),
    ],
)
def test_what_takes_no_documents_is_refused_at_once(model: Any, target: Any, actual: str) -> None:
    refused(
        SourceError,
        lambda: write(model, prompts(1), remember=target),
        f"generate: remember is {actual}",
    )
    refused(SourceError, lambda: rest_store.Generator(model, remember=target), actual)


def test_outputs_of_a_few_tokens_are_not_worth_a_document(model: Any) -> None:
    target = Kept()
    counts = write(model, prompts(1), remember=target, max_new_tokens=3).statistics.remembered
    assert flush(target)
    assert (target.documents, counts.ids, counts.dropped) == ([], [], 0)


def test_warnings_that_are_errors_are_none_of_the_generation(model: Any) -> None:
    """The filter of all tests here is "error"."""
    assert write_and_wait(model, prompts(1), Failing()).statistics.remembered.dropped == 1


def test_where_no_thread_can_be_started_outputs_are_counted(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(remembering._Queue, "start", start)
    with pytest.warns(DraftingWarning, match="can't start new thread"):
        counts = write(model, prompts(1), remember=Kept()).statistics.remembered
    assert counts.dropped == 1
    assert not remembering._queues
