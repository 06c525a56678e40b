"""Builds and services that are ended at random moments.

What must hold: after any signals the datastore at its place is complete or absent; a build that is resumed, or begun
anew where nothing can be resumed, gives the bytes of an undisturbed one; a generation writes on when its service dies.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import rest_store
from build_index.staging import building_place
from tests.fuzz import campaign
from tests.shared.builds import (
    command,
    contents,
    documents,
    place_of,
    require_whole,
    require_whole_and_resumable,
    run_build,
    signal_at_step,
    write_jsonl,
    write_tokenizer,
)
from tests.shared.services import PATIENCE, Service, running
from tests.shared.strategies import Corpus, write_datastore
from tests.shared.tiny import VOCABULARY, prompts, tiny_model

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# Of a process that ended by itself, or by a signal, which it may turn into a status as shells do.
STATUSES = {signal.SIGKILL: (0, -9), signal.SIGTERM: (0, -15, 143), signal.SIGINT: (0, -2, 130)}


@dataclass
class Build:
    """A build and what it gives when nothing disturbs it, in so many seconds."""

    name: str
    arguments: list[Any]
    expected: dict[str, bytes]
    seconds: float


class Fuzzer(campaign.Fuzzer):
    """Ends builds and services."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self._builds: dict[str, Build] = {}
        self._tokenizer = write_tokenizer(directory / "tokenizer.json")
        texts = documents(60, seed=2)
        lines = write_jsonl(directory / "corpus.jsonl", [*texts, *texts[:10]])
        folder = directory / "corpus"
        folder.mkdir()
        for place, text in enumerate(texts):
            (folder / f"{place:03}.txt").write_text(text)
        self._corpora = {
            "lines": ["--corpus", lines],
            "two workers": ["--corpus", lines, "--workers", 2],
            "files": ["--corpus", folder, "--corpus", lines, "--keep-duplicates"],
        }
        old = write_jsonl(directory / "old.jsonl", texts[:3])
        self._old = directory / "old"
        arguments = ["--corpus", old, "--tokenizer", self._tokenizer, "--out", self._old]
        assert run_build(*arguments).returncode == 0

    def run(self, chance: random.Random) -> Counter[str]:
        """Run one case."""
        return Counter([self._service(chance) if chance.random() < 0.25 else self._build(chance)])

    # --- Builds -------------------------------------------------------------------------------------------------------

    def _undisturbed(self, name: str) -> Build:
        if name not in self._builds:
            out = self.directory / f"undisturbed {name}"
            arguments = [*self._corpora[name], "--tokenizer", self._tokenizer, "--shard-tokens", 500]
            arguments += ["--memory", "64G", "--quiet"]
            began = time.monotonic()
            run = run_build(*arguments, "--out", out)
            assert run.returncode == 0, run.stderr
            self._builds[name] = Build(name, arguments, contents(out), time.monotonic() - began)
        return self._builds[name]

    def _build(self, chance: random.Random) -> str:
        build = self._undisturbed(chance.choice(list(self._corpora)))
        directory = self.directory / "place"
        directory.mkdir()
        out, old = place_of(directory, chance.choice([None, self._old]))
        done = []
        kept = 0
        try:
            for _ in range(chance.choice([1, 1, 2, 3])):
                resume = ["--resume"] if kept and chance.random() < 0.8 else []
                if kept and not resume:
                    shutil.rmtree(building_place(out))
                done.append(self._disturbed(chance, build, [*build.arguments, "--out", out, *resume], directory))
                self.case = f"{build.name}, {'old one, ' if old else ''}{', '.join(done)}"
                kept = require_whole(out, old, build.expected)
            kept = require_whole_and_resumable(build.arguments, out, old, build.expected)
        finally:
            shutil.rmtree(directory)
        return f"build: {'resumed' if kept else 'begun anew'} after {done[-1].split()[0]}"

    def _disturbed(self, chance: random.Random, build: Build, arguments: list[Any], directory: Path) -> str:
        """Run a build and send it signals; return which and when."""
        number = chance.choice(SIGNALS)
        before, moments = "", []
        if chance.random() < 0.5:
            step, renamed = chance.randrange(1, 120), chance.random() < 0.3
            before = signal_at_step(directory, number, step, after_rename=renamed)
            words = f"{number.name} at step {step}{' after the renaming' if renamed else ''}"
        else:
            moments = sorted(chance.uniform(0.3, 1.1) * build.seconds for _ in range(chance.choice([1, 1, 2])))
            words = f"{number.name} after {', '.join(f'{moment:.2f}' for moment in moments)} s"
        self.case = f"{build.name}, {words}, {arguments[-1]}"
        process = subprocess.Popen(
            command(*arguments, before=before), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        began = time.monotonic()
        for moment in moments:
            try:
                process.wait(timeout=max(0.0, began + moment - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(number)
        _, said = process.communicate()
        # Nothing to resume, or an interrupt before there was a build; click says so.
        refused = process.returncode == 1 and ("unfinished build is absent" in said or said.strip() == "Aborted!")
        assert refused or process.returncode in STATUSES[number], f"status {process.returncode}: {said}"
        if before:  # it was in our hands, not in those of the interpreter that starts
            assert "Traceback" not in said, said
        return words

    # --- Services -----------------------------------------------------------------------------------------------------

    def _service(self, chance: random.Random) -> str:
        architecture = chance.choice(["llama", "gpt2", "mistral with a sliding window"])
        model = tiny_model(architecture)
        inputs = prompts(chance.choice([1, 3]), seed=chance.randrange(1000))
        options: dict[str, Any] = {"max_new_tokens": 60, "do_sample": chance.random() < 0.3}
        seed = chance.randrange(2**31)
        torch.manual_seed(seed)
        plain = model.generate(**inputs, **options)
        place = self.directory / "served"
        place.mkdir()
        texts = [[token for token in text if token] for text in plain.tolist()]
        write_datastore(place, Corpus(VOCABULARY, [texts, [list(range(1, VOCABULARY))]]))
        try:
            with ExitStack() as stack:
                service = stack.enter_context(running(place))
                targets = [service.target]
                if chance.random() < 0.4:
                    targets.append(stack.enter_context(running(place)).target)
                send_text = chance.random() < 0.7
                acts = some_acts(chance, service)
                where = f"{len(targets)} endpoints, {'text sent' if send_text else 'merged'}"
                self.case = f"{architecture}, {len(texts)} rows, {where}, {[(after, name) for after, name, _ in acts]}"
                client = rest_store.DatastoreClient(targets, timeout=chance.choice([0.05, 1.0]), send_text=send_text)
                with client:
                    client.connect(PATIENCE)
                    timeout = chance.choice([None, 0.05, 5.0])
                    local = [source() for source in (rest_store.PromptLookup, rest_store.RecycledLogits)]
                    sources = [client, *chance.sample(local, chance.randrange(3))]
                    generator = rest_store.Generator(model, None, sources, adaptive=False, source_timeout=timeout)
                    torch.manual_seed(seed)
                    generation = generator.stream(inputs, **options)
                    for step, _ in enumerate(generation):
                        while acts and acts[0][0] <= step:
                            acts.pop(0)[2]()
                    assert torch.equal(generation.result(), plain), "another text"
        finally:
            shutil.rmtree(place)
        return f"service: {self.case.rpartition('[')[2].count('(')} events"


def some_acts(chance: random.Random, service: Service) -> list[tuple[int, str, Callable[[], object]]]:
    """What is done to a service, each after a number of steps of a generation."""
    first = chance.randrange(0, 8)
    later = first + chance.randrange(1, 8)
    ways: list[list[tuple[int, str, Callable[[], object]]]] = [
        [(first, "kill", service.kill)],
        [(first, "stop", service.stop)],
        [(first, "pause", service.pause), (later, "resume", service.resume)],
        [(first, "pause", service.pause), (later, "kill", service.kill)],
        [(first, "kill", service.kill), (later, "restart", service.restart)],
        [(first, "hang up", lambda: service.signal(signal.SIGHUP)), (later, "kill", service.kill)],
    ]
    return chance.choice(ways)
