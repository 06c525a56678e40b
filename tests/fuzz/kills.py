"""Builds that are ended at random moments.

What must hold: after any signals the datastore at its place is complete or absent; a build that is resumed, or begun
anew where nothing can be resumed, gives the bytes of an undisturbed one.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from build_index.staging import building_place
from tests.fuzz import campaign
from tests.shared.builds import (
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

# Of a process that ended by itself, or by a signal, which it may turn into a status as shells do.
STATUSES = {signal.SIGKILL: (0, -9), signal.SIGTERM: (0, -15, 143), signal.SIGINT: (0, -2, 130)}


class Fuzzer(campaign.Fuzzer):
    """Ends builds."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self._expected: dict[str, dict[str, bytes]] = {}  # what a build gives when nothing disturbs it
        tokenizer = write_tokenizer(directory / "tokenizer.json")
        texts = documents(60, seed=2)
        lines = write_jsonl(directory / "corpus.jsonl", [*texts, *texts[:10]])
        folder = directory / "corpus"
        folder.mkdir()
        for place, text in enumerate(texts):
            (folder / f"{place:03}.txt").write_text(text)
        self._corpora: dict[str, list[Any]] = {
            "lines": ["--corpus", lines],
            "two workers": ["--corpus", lines, "--workers", 2],
            "files": ["--corpus", folder, "--corpus", lines, "--keep-duplicates"],
        }
        self._options = ["--tokenizer", tokenizer, "--shard-tokens", 500, "--memory", "64G", "--quiet"]
        self._old = directory / "old"
        old = write_jsonl(directory / "old.jsonl", texts[:3])
        assert run_build("--corpus", old, *self._options, "--out", self._old).returncode == 0

    def run(self, chance: random.Random) -> Counter[str]:
        """Run one case: a build that is ended once or more often, and goes on."""
        name = chance.choice(list(self._corpora))
        arguments = [*self._corpora[name], *self._options]
        if name not in self._expected:
            run = run_build(*arguments, "--out", self.directory / name)
            assert run.returncode == 0, run.stderr
            self._expected[name] = contents(self.directory / name)
        expected = self._expected[name]
        directory = self.directory / "place"
        directory.mkdir()
        out, old = place_of(directory, chance.choice([None, self._old]))
        self.case = f"{name}, {'old one' if old else 'nothing there'}"
        kept = 0
        try:
            for _ in range(chance.choice([1, 1, 2, 3])):
                resume = ["--resume"] if kept and chance.random() < 0.8 else []
                if kept and not resume:
                    shutil.rmtree(building_place(out))
                self._disturbed(chance, [*arguments, "--out", out, *resume], directory)
                kept = require_whole(out, old, expected)
            kept = require_whole_and_resumable(arguments, out, old, expected)
        finally:
            shutil.rmtree(directory)
        return Counter(["resumed" if kept else "begun anew"])

    def _disturbed(self, chance: random.Random, arguments: list[Any], directory: Path) -> None:
        """Run a build that sends itself a signal at one of its steps."""
        number = chance.choice(list(STATUSES))
        step, renamed = chance.randrange(1, 120), chance.random() < 0.3
        self.case += f", {number.name} at step {step}{' after the renaming' if renamed else ''} of {arguments[-1]}"
        run = run_build(*arguments, before=signal_at_step(directory, number, step, after_rename=renamed))
        # Nothing to resume, or an interrupt before there was a build; click says so.
        nothing = "unfinished build is absent" in run.stderr or run.stderr.strip() == "Aborted!"
        assert (run.returncode == 1 and nothing) or run.returncode in STATUSES[number], run.stderr
        assert "Traceback" not in run.stderr, run.stderr
