"""Processes that add, delete and merge, and are killed at random moments.

What must hold of the live datastore then: nothing that was acknowledged is lost, nothing that was
deleted is back, what was not acknowledged is there whole or not at all, and every answer is that of
a brute-force count. Replicas are killed beside it: at the end, what they hold is the same, document
by document.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

from rest_store.live import retention
from rest_store.live.live_check import check_live
from rest_store.live.live_datastore import LiveDatastore
from rest_store.service.client import service_upstream
from tests.fuzz import campaign
from tests.shared.live import require_answers, some_document, until
from tests.shared.strategies import Document
from tests.shared.upstream import LOCATION, Service

VOCABULARY_SIZES = (65_535, 70_000)
MARKS = 1000  # the first token of each document is its own, from here on

# A process kills itself at an operation on files below a directory; 0: at none.
_KILLED_AT_STEP = """
import os, signal, sys
left = [{step}]
def hook(event, arguments):
    if event == "open" or event.startswith(("os.", "sqlite3.")):
        if any({directory!r} in str(part) for part in arguments):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
from tests.fuzz.live_kills import opened_replica, small
small()
"""

# What the process does: line by line, from standard input; it answers each when it is done.
_WORKER = """
import json, threading
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.strategies import identity
live = LiveDatastore.open({directory!r}, tokenizer=identity({vocabulary_size}))
said = threading.Lock()
def say(number):
    with said:
        print(number, flush=True)
def work(lines):
    for number, act, arguments in lines:
        if act == "add":
            live.add(*arguments)
        elif act == "delete":
            live.delete(*arguments)
        else:
            live.compact()
        say(number)
threads = [threading.Thread(target=work, args=(lines,)) for lines in json.load(sys.stdin)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
live.close()
"""

# Keeps a replica up to date until it is killed; several processes share one cache. Changes are read
# from the directory of the live datastore, as its service would read them.
_REPLICA = """
live, replica = opened_replica({place!r}, {directory!r})
print("opened", flush=True)
signal.pause()
"""


class Fuzzer(campaign.Fuzzer):
    """Kills processes, one after the other, that write one directory."""

    def run(self, chance: random.Random) -> Counter[str]:
        """Run one case: a few kills."""
        place = self.directory / "live"
        cache = self.directory / "cache"
        replicas: list[subprocess.Popen[str]] = []
        vocabulary_size = chance.choice(VOCABULARY_SIZES)
        known = _Known()
        outcomes: Counter[str] = Counter()
        try:
            for number in range(chance.choice([1, 1, 2, 3])):
                lines = [
                    some_acts(chance, known, vocabulary_size)
                    for _ in range(chance.choice([1, 1, 3]))
                ]
                step = chance.choice([0, chance.randrange(1, 12), chance.randrange(1, 120)])
                self.case = (
                    f"kill {number}: vocabulary {vocabulary_size}, {len(lines)} threads, step"
                    f" {step}"
                )
                outcomes[self._killed(chance, place, vocabulary_size, step, lines, known)] += 1
                if place.exists() and chance.random() < 0.3:
                    damage(chance, place)
                if known.acknowledged or (place / "documents.sqlite").exists():
                    require_kept(place, vocabulary_size, known, chance)
                if known.acknowledged:
                    replicas += [
                        self._replica(place, cache, chance) for _ in range(chance.choice([0, 1, 2]))
                    ]
                for process in replicas:
                    if chance.random() < 0.5:
                        process.kill()
            self.case = "replicas at the end"
            if replicas:
                for process in replicas:
                    process.kill()
                    process.wait()
                    outcomes["a replica killed"] += 1
                require_equal(place, cache)
        finally:
            for process in replicas:
                process.kill()
                process.communicate()
            for path in (place, cache):
                shutil.rmtree(path, ignore_errors=True)
        return outcomes

    def _replica(self, place: Path, cache: Path, chance: random.Random) -> subprocess.Popen[str]:
        """Start a process that keeps a replica, and is killed at some step or later."""
        step = chance.choice([0, 0, chance.randrange(1, 40), chance.randrange(1, 400)])
        process = _start(_REPLICA, step, cache, place=str(place))
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said or process.wait() == -9, f"status {process.returncode}"
        return process

    def _killed(
        self,
        chance: random.Random,
        place: Path,
        vocabulary_size: int,
        step: int,
        lines: list[Any],
        known: _Known,
    ) -> str:
        """Run a process until it is killed or has ended; return how that was."""
        process = _start(_WORKER, step, place, vocabulary_size=vocabulary_size)
        acts = {number: (act, arguments) for thread in lines for number, act, arguments in thread}
        last = chance.randrange(1 + len(acts))
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(lines))
                process.stdin.close()
            done = set()
            for line in process.stdout:
                done.add(int(line))
                if not step and len(done) > last:
                    # At any moment of what it does next.
                    time.sleep(chance.choice([0, 0, 0.001, 0.01]))
                    process.kill()
            said = process.stderr.read()
        assert process.returncode in (0, -9), f"status {process.returncode}: {said}"
        assert not said, said
        for number, (act, arguments) in acts.items():
            known.tell(act, arguments, done=number in done)
        return "killed" if process.returncode else "ended"


def _start(program: str, step: int, directory: Path, **of: object) -> subprocess.Popen[str]:
    """Start a program that kills itself at a step; `of`: what else it says."""
    code = (_KILLED_AT_STEP + program).format(step=step, directory=str(directory), **of)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, "-c", code], **pipes, text=True, cwd=Path(__file__).parents[2]
    )


class _Known:
    """What was acknowledged, and what a process that was killed may have done."""

    def __init__(self) -> None:
        self.documents: dict[str, Document] = {}  # all that were ever to be added
        self.acknowledged: set[str] = set()
        self.deleted: set[str] = set()
        self.may_be_there: set[str] = set()
        self.may_be_gone: set[str] = set()
        self.number = 0

    def tell(self, act: str, arguments: list[Any], *, done: bool) -> None:
        """Take over what a process was to do, and whether it said that this was done."""
        if act == "add":
            (self.acknowledged if done else self.may_be_there).update(arguments[1])
        elif act == "delete":
            (self.deleted if done else self.may_be_gone).update(arguments[0])

    def settle(self, there: set[str]) -> None:
        """From now on, what is there was added, and what is not was not, or was deleted."""
        self.acknowledged = set(there)
        self.deleted |= self.may_be_gone - there
        self.may_be_there = set()
        self.may_be_gone = set()


def some_acts(chance: random.Random, known: _Known, vocabulary_size: int) -> list[Any]:
    """What one thread does: additions, deletions of what it or others before added, merging."""
    lines: list[Any] = []
    there = sorted(known.acknowledged)
    chance.shuffle(there)
    for _ in range(chance.randrange(1, 25)):
        known.number += 1
        act = chance.choices(["add", "delete", "compact"], [8, 3, 1])[0]
        if act == "delete" and there:
            arguments: list[Any] = [
                [there.pop() for _ in range(min(len(there), chance.choice([1, 1, 4])))]
            ]
        elif act == "compact":
            arguments = []
        else:
            act = "add"
            documents = []
            ids = []
            for _ in range(chance.choice([1, 1, 3, 30])):
                mark = MARKS + len(known.documents)
                id = f"document {mark}"
                document = [mark, *some_document(chance, vocabulary_size, chance.choice([3, 60]))]
                known.documents[id] = document
                documents.append(document)
                ids.append(id)
            arguments = [documents, ids]
            there += ids
        lines.append((known.number, act, arguments))
    return lines


def damage(chance: random.Random, place: Path) -> None:
    """Damage or remove a file of a segment: it is sorted anew."""
    files = [path for path in sorted(place.glob("segment-*")) if path.stat().st_size]
    if files:
        path = chance.choice(files)
        if chance.random() < 0.3:
            path.unlink()
        else:
            content = bytearray(path.read_bytes())
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            path.write_bytes(content[: len(content) - chance.choice([0, 0, 9])])


def small() -> None:
    """Have few documents go through all that many would."""
    retention._MAX_MEMTABLE_POSITIONS = 32
    retention._MAX_SEGMENT_POSITIONS = 2000
    retention._MAX_COMMIT_POSITIONS = 400


def opened_replica(place: str, cache: str) -> tuple[LiveDatastore, LiveDatastore]:
    """Open the live datastore at `place` for reading, and a replica of it."""
    live = LiveDatastore.open(place, read_only=True)
    service = Service(live)
    service.max_bytes = 500
    with mock.patch.object(service_upstream, "ServiceUpstream", service.upstream):
        return live, LiveDatastore.open(LOCATION, cache=cache)


def require_equal(place: Path, cache: Path) -> None:
    """Open the replica, and compare all that it holds with the live datastore."""
    with LiveDatastore.open(place) as live:
        reader, replica = opened_replica(str(place), str(cache))
        with reader, replica:
            until(
                lambda: (
                    replica.newest_change == live.newest_change and replica.info().failure is None
                )
            )
            held, expected = (some.changes(0, "", max_bytes=1 << 40) for some in (replica, live))
            assert held.added == expected.added, "other documents"
            assert held.datastore_id == expected.datastore_id or not live.newest_change
            assert replica.info().token_count == live.info().token_count
            for document in live.documents():
                assert replica.count(document.tokens[:64].tolist()) == 1, "not the same answers"
    check_live(replica.path)


def require_kept(place: Path, vocabulary_size: int, known: _Known, chance: random.Random) -> None:
    """Open it, and compare all that can be known of it."""
    try:
        live = LiveDatastore.open(place)
    except Exception:
        assert not known.acknowledged, "it cannot be opened"
        return
    with live:
        there = {id for id, document in known.documents.items() if live.count(document[:1])}
        must = known.acknowledged - known.deleted - known.may_be_gone
        assert must <= there, f"lost: {sorted(must - there)}"
        assert not there & known.deleted, f"back: {sorted(there & known.deleted)}"
        assert there <= known.acknowledged | known.may_be_there
        documents = [known.documents[id] for id in there]
        for document in documents:
            assert live.count(document[:64]) == 1, "not whole"
        info = live.info()
        assert info.document_count == len(there)
        assert info.token_count == sum(map(len, documents))
        require_answers(live, documents, chance, 5)
        if chance.random() < 0.5:
            live.compact()
            require_answers(live, documents, chance, 3)
        assert live.info().failure is None
    known.settle(there)
