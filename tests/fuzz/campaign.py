"""Runs numbered random cases in a child process that may crash or hang, and counts how they end."""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import random
import re
import shutil
import signal
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

NAMES = ("generations", "messages", "damage", "kills", "live_kills", "engine_batches")
CASE = "case.txt"
HANGS_AFTER = 90  # seconds; a case takes a few, on a busy machine some more


class Fuzzer(ABC):
    """Makes cases and judges them.

    Args:
        directory: an empty directory for its files.
        stack: closes what cases share, such as a service.

    Attributes:
        directory: as given.
        stack: as given.
    """

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.stack = stack

    @property
    def case(self) -> str:
        """The case that runs, in words: kept in a file, which tells what ran also after a crash."""
        path = self.directory / CASE
        return path.read_text(encoding="utf-8") if path.exists() else ""

    @case.setter
    def case(self, words: str) -> None:
        (self.directory / CASE).write_text(words, encoding="utf-8", errors="replace")

    @abstractmethod
    def run(self, chance: random.Random) -> Counter[str]:
        """Run the case that `chance` makes; return how often what was asked ended in which way.

        Raises:
            Exception: whatever breaks a promise; an AssertionError if it was noticed here.
        """


@dataclass
class Result:
    """How one case ended: the counts of `Fuzzer.run`, or why it failed, as a line and at length."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failure: str = ""
    detail: str = ""

    @property
    def kind(self) -> str:
        """The beginning of the failure's line, without numbers."""
        return re.sub(r"\d+", "#", self.failure)[:60]


@dataclass
class Tally:
    """What the cases of one fuzzer came to: outcomes of those that held, and kinds of failure."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)


def chance_of(name: str, seed: int, number: int) -> random.Random:
    """Return the source of all that is random in one case."""
    return random.Random(f"{name} {seed} {number}")


def fuzzer_of(name: str, directory: Path, stack: ExitStack) -> Fuzzer:
    """Return the fuzzer of a module of this package."""
    kind: type[Fuzzer] = importlib.import_module(f"tests.fuzz.{name}").Fuzzer
    return kind(directory, stack)


def run_case(fuzzer: Fuzzer, chance: random.Random) -> Result:
    """Run one case, and return how it ended, also if it failed."""
    fuzzer.case = ""
    try:
        return Result(fuzzer.run(chance))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        lines = traceback.format_exception(error)
        return Result(failure=" ".join(lines[-1].split())[:300], detail=f"{fuzzer.case}\n{''.join(lines)}")


def _work(name: str, seed: int, directory: Path, connection: Connection) -> None:
    """Run the cases whose numbers come in; in a process group of its own, which ends with it."""
    os.setsid()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with ExitStack() as stack:
        fuzzer = fuzzer_of(name, directory, stack)
        while (number := connection.recv()) is not None:
            connection.send(run_case(fuzzer, chance_of(name, seed, number)))


class Worker:
    """The process that runs the cases of one fuzzer, started again when it has ended."""

    def __init__(self, name: str, seed: int) -> None:
        self._name, self._seed = name, seed
        self._process: multiprocessing.process.BaseProcess | None = None

    def run(self, number: int) -> Result:
        """Run a case; a crash or a hang is its failure."""
        if self._process is None:
            self._start()
        assert self._process is not None
        (self._directory / CASE).unlink(missing_ok=True)
        try:
            self._connection.send(number)
            for _ in range(HANGS_AFTER):  # seconds one by one: while both processes are stopped, none pass
                if self._connection.poll(1.0):
                    result: Result = self._connection.recv()
                    return result
        except (EOFError, OSError):
            self._process.join()
            status = self._process.exitcode or 0
            how = signal.Signals(-status).name if status < 0 else f"status {status}"
            return Result(failure=f"the process ended with {how}", detail=self._end())
        with suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, signal.SIGUSR1)  # where it hangs, on standard error
            time.sleep(1)
        return Result(failure=f"no end within {HANGS_AFTER} s", detail=self._end())

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._directory = Path(tempfile.mkdtemp(prefix="rest-store-fuzz-"))
        self._connection, theirs = context.Pipe()
        arguments = (self._name, self._seed, self._directory, theirs)
        self._process = context.Process(target=_work, args=arguments, daemon=False)
        self._process.start()
        theirs.close()

    def close(self) -> None:
        """Let it end what its cases share, then end it and all its children."""
        if self._process is not None:
            with suppress(OSError):
                self._connection.send(None)
            self._process.join(60)
            self._end()

    def _end(self) -> str:
        """End the process and all its children; return what it ran, in words."""
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        self._process.kill()
        self._process.join()
        self._connection.close()
        self._process = None
        words = self._directory / CASE
        ran = words.read_text(encoding="utf-8") if words.exists() else ""
        shutil.rmtree(self._directory, ignore_errors=True)
        return ran


class Campaign:
    """Runs fuzzers one after the other, and prints failures as they come.

    Args:
        seed: with the name and the number of a case, all that it is made from.

    Attributes:
        tallies: by name of fuzzer.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.tallies: dict[str, Tally] = {}

    def run(self, name: str, numbers: Iterable[int], seconds: float) -> None:
        """Run the cases of these numbers until there are none or so many seconds have passed."""
        tally = self.tallies[name] = Tally()
        worker = Worker(name, self.seed)
        end = time.monotonic() + seconds
        try:
            for number in numbers:
                result = worker.run(number)
                tally.cases += 1
                tally.outcomes += result.outcomes
                if result.failure:
                    self._report(name, number, result)
                    tally.failed[result.kind] += 1
                if time.monotonic() > end:
                    break
        finally:
            worker.close()

    def _report(self, name: str, number: int, result: Result) -> None:
        """Print a failure, at length if there was none like it."""
        print(
            f"\n{result.failure}\n  python -m tests.fuzz --only {name} --seed {self.seed} --case {number}", flush=True
        )
        if result.kind not in self.tallies[name].failed:
            print(result.detail, flush=True)

    @property
    def failed(self) -> bool:
        """Whether a case has."""
        return any(tally.failed for tally in self.tallies.values())

    def table(self) -> str:
        """Return the counts of each fuzzer, one line for each way in which cases ended."""
        lines = []
        for name, tally in self.tallies.items():
            lines.append(f"{name:24}{tally.cases:>9,} cases  {tally.failed.total():>7,} failures")
            lines += [f"  {outcome:40}{count:>9,}" for outcome, count in tally.outcomes.most_common()]
            lines += [f"  failed: {kind:60}{count:>9,}" for kind, count in tally.failed.most_common()]
        return "\n".join(lines)
