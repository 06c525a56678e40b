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
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

NAMES = (
    "generations",
    "recurrent",
    "structured",
    "messages",
    "damage",
    "live_kills",
    "engine_batches",
    "agent_memories",
    "shared_walks",
)
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
        path = self.directory / "case.txt"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    @case.setter
    def case(self, words: str) -> None:
        (self.directory / "case.txt").write_text(words, encoding="utf-8", errors="replace")

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
        return Result(
            failure=" ".join(lines[-1].split())[:300], detail=f"{fuzzer.case}\n{''.join(lines)}"
        )


class Worker:
    """A process, and a process group of its own, that runs the cases of one fuzzer."""

    _stack: ExitStack  # both in the child alone
    _fuzzer: Fuzzer

    def __init__(self, name: str) -> None:
        self._name = name
        self._directory = Path(tempfile.mkdtemp(prefix="rest-store-fuzz-"))
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, Worker._begin, (name, self._directory))
        self._group = self._pool.submit(os.getpid).result()

    @staticmethod
    def _begin(name: str, directory: Path) -> None:
        os.setsid()
        faulthandler.enable(all_threads=True)
        Worker._stack = ExitStack()
        Worker._fuzzer = fuzzer_of(name, directory, Worker._stack)

    @staticmethod
    def _work(name: str, seed: int, number: int) -> Result:
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        try:
            return run_case(Worker._fuzzer, chance_of(name, seed, number))
        finally:
            faulthandler.cancel_dump_traceback_later()

    @staticmethod
    def _end() -> None:
        Worker._stack.close()

    def run(self, seed: int, number: int) -> Result | None:
        """Run a case.

        None if the process crashed or was ended because it hung, which it says on standard error.
        """
        try:
            return self._pool.submit(Worker._work, self._name, seed, number).result()
        except BrokenProcessPool:
            return None

    def close(self) -> str:
        """End the process and all its children; return what it ran last, in words."""
        with suppress(BrokenProcessPool):
            wait([self._pool.submit(Worker._end)], 60)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, signal.SIGKILL)
        self._pool.shutdown()
        case = self._directory / "case.txt"
        words = case.read_text(encoding="utf-8") if case.exists() else ""
        shutil.rmtree(self._directory, ignore_errors=True)
        return words


class Campaign:
    """Runs fuzzers one after the other, and prints failures as they come.

    Args:
        seed: with the name and the number of a case, all that it is made from.

    Attributes:
        cases: how many there were, by name of fuzzer.
        outcomes: of those that held, by name of fuzzer.
        failed: kinds of failure, by name of fuzzer: their lines without numbers.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.cases: Counter[str] = Counter()
        self.outcomes: dict[str, Counter[str]] = {}
        self.failed: dict[str, Counter[str]] = {}

    def run(self, name: str, numbers: Iterable[int], seconds: float) -> None:
        """Run the cases of these numbers until there are none or so many seconds have passed."""
        self.outcomes[name], self.failed[name] = Counter(), Counter()
        worker = Worker(name)
        end = time.monotonic() + seconds
        try:
            for number in numbers:
                result = worker.run(self.seed, number)
                if result is None:
                    result = Result(failure="the process crashed or hung", detail=worker.close())
                    worker = Worker(name)
                self.cases[name] += 1
                self.outcomes[name] += result.outcomes
                if result.failure:
                    self._report(name, number, result)
                if time.monotonic() > end:
                    break
        finally:
            worker.close()

    def _report(self, name: str, number: int, result: Result) -> None:
        """Count and print a failure, at length if there was none like it."""
        repeat = f"python -m tests.fuzz --only {name} --seed {self.seed} --case {number}"
        print(f"\n{result.failure}\n  {repeat}", flush=True)
        kind = re.sub(r"\d+", "#", result.failure)[:60]
        if kind not in self.failed[name]:
            print(result.detail, flush=True)
        self.failed[name][kind] += 1

    def table(self) -> str:
        """Return the counts of each fuzzer, one line for each way in which cases ended."""
        lines = []
        for name, failed in self.failed.items():
            lines.append(f"{name:24}{self.cases[name]:>9,} cases  {failed.total():>7,} failures")
            lines += [
                f"  {outcome:40}{count:>9,}" for outcome, count in self.outcomes[name].most_common()
            ]
            lines += [f"  failed: {kind:60}{count:>9,}" for kind, count in failed.most_common()]
        return "\n".join(lines)
