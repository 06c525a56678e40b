"""An agent's memory that follows a large tree: its first addition, and a long time of changes.

A tree of files in a Git repository is made of random words. `rest-build` and `rest-store remember`
read it in turns; the ratios of their times are reported, and the medians of these. Then `rest-store
remember --follow` follows the tree while files are saved, moved and deleted, directories are
renamed, branches are switched and the process is killed and started again, at random. Again and
again the changes pause until the memory holds exactly the texts of the tree; the seconds until then
are reported, and the resident memory of the process. The command fails if the contents do not
become equal within --patience seconds. At the end of each pause files are saved, one after the
other, and the seconds until another process finds the new text, and the old one no more, are
reported.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import numpy as np

from build_index.target_tokenizer import TargetTokenizer
from build_index.tokenization import load_tokenizer
from rest_store.bench.measurement_options import Destination, result_options
from rest_store.bench.results import write_result
from rest_store.command_options import SETTINGS, FloatRange
from rest_store.datastore.kernel import MAX_SEQUENCE
from rest_store.live.agent_memory import FILES
from rest_store.live.live_datastore import LiveDatastore

WORDS = 4_000  # of which the files are made
LINES = 40  # of a file
SAVES = 5  # single ones, at the end of each pause
SAVE_PATIENCE = 60.0  # seconds
BRANCHES = ("main", "other")
# A process lives for minutes, or its memory would say nothing.
WEIGHTS = {"save": 800, "move": 80, "remove": 40, "rename": 20, "switch": 20, "kill": 4}


class Tree:
    """A tree of files that changes at random.

    Args:
        top: an empty directory.
        files: number of files.
        seed: of the random choices.
    """

    def __init__(self, top: Path, files: int, seed: int) -> None:
        self.top = top
        self.chance = random.Random(seed)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(self.chance.choices(letters, k=5)) for _ in range(WORDS)]
        self._git("init", "-q", "-b", BRANCHES[0])
        for number in range(files):
            path = self.top / f"d{number % 97}" / f"e{number % 13}" / f"{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._text())
        self._commit()
        self._git("checkout", "-q", "-b", BRANCHES[1])
        for path in self.chance.sample(self.files(), max(1, files // 40)):
            path.write_text(self._text())
        self._commit()

    def files(self) -> list[Path]:
        """Return the files, without those of Git."""
        paths = []
        for directory, names, files in os.walk(self.top):
            if ".git" in names:
                names.remove(".git")
            paths += [Path(directory, name) for name in files]
        return sorted(paths)

    def save(self, files: list[Path]) -> None:
        """Write a file anew, in place or by another one."""
        self.write(self.chance.choice(files))

    def write(self, path: Path) -> None:
        """Write this file anew."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.chance.random() < 0.5:
            path.write_text(self._text())
            return
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(self._text())
        unfinished.replace(path)

    def move(self, files: list[Path]) -> None:
        """Move a file into another directory."""
        path = self.chance.choice(files)
        path.rename(self.chance.choice(files).parent / f"m{self.chance.randrange(10**9)}.py")

    def remove(self, files: list[Path]) -> None:
        """Delete a file."""
        self.chance.choice(files).unlink()

    def rename(self, files: list[Path]) -> None:
        """Rename a directory with all that is in it."""
        directory = self.chance.choice(files).parent
        directory.rename(directory.with_name(f"r{self.chance.randrange(10**9)}"))

    def switch(self, files: list[Path]) -> None:
        """Commit, and go to the other branch."""
        self._commit()
        current = self._git("branch", "--show-current").strip()
        self._git("checkout", "-q", next(name for name in BRANCHES if name != current))

    def _text(self) -> str:
        lines = [
            f"    {' '.join(self.chance.choices(self._words, k=self.chance.randrange(2, 9)))}"
            for _ in range(self.chance.randrange(1, LINES))
        ]
        return f"def {self.chance.choice(self._words)}():\n" + "\n".join(lines) + "\n"

    def _commit(self) -> None:
        self._git("add", "-A")
        self._git("commit", "-q", "--allow-empty", "-m", "changes")

    def _git(self, *arguments: str) -> str:
        settings = ["-c", "user.name=soak", "-c", "user.email=soak@example.org"]
        settings += ["-c", "gc.auto=0"]
        return subprocess.run(
            ["git", *settings, *arguments],
            cwd=self.top,
            check=True,
            capture_output=True,
            text=True,
        ).stdout


class Contents:
    """Compares the texts of a tree with those of a memory, as tokens.

    Args:
        tree: the tree.
        memory: directory of the memory.
        target: the tokenizer.
    """

    def __init__(self, tree: Tree, memory: Path, target: TargetTokenizer) -> None:
        self._tree = tree
        self._memory = memory
        self._target = target
        self._known: dict[str, bytes] = {}  # by text, so that a text is tokenized once

    def differences(self) -> int:
        """Return how many texts are in the tree or in the memory alone."""
        texts = {path.read_text() for path in self._tree.files()}
        new = sorted(texts - self._known.keys())
        for text, tokens in zip(new, self._target.encode_batch(new), strict=True):
            self._known[text] = np.asarray(tokens, np.int32).tobytes()
        self._known = {text: self._known[text] for text in texts}
        with LiveDatastore.open(self._memory, read_only=True) as live:
            stored = Counter(
                np.asarray(document.tokens, np.int32).tobytes()
                for document in live.namespace(FILES).documents()
            )
        expected = Counter(set(self._known.values()))
        return sum(((stored - expected) + (expected - stored)).values())


def seconds_of_a_save(tree: Tree, live: LiveDatastore, target: TargetTokenizer) -> float:
    """Save a file; return the seconds until a reader finds its new text, and the old one no more.

    Args:
        tree: the tree, which does not change otherwise.
        live: the memory, opened for reading.
        target: the tokenizer.
    """
    path = tree.chance.choice(tree.files())
    before = target.encode(path.read_text())[:MAX_SEQUENCE]
    tree.write(path)
    began = time.monotonic()
    after = target.encode(path.read_text())[:MAX_SEQUENCE]
    files = live.namespace(FILES)
    while not files.count(after) or files.count(before):
        if time.monotonic() - began > SAVE_PATIENCE:
            raise click.ClickException(f"a save is not followed within {SAVE_PATIENCE:g} seconds")
        time.sleep(0.005)
    return round(time.monotonic() - began, 3)


def timed(command: list[str]) -> tuple[float, float]:
    """Run a command; return its seconds, and those of the CPU."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def resident(process: subprocess.Popen[bytes]) -> float:
    """Return the resident memory of a process in MB."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/soak_memory.py --tokenizer MODEL --minutes 60",
)
@click.option("--tokenizer", metavar="NAME_OR_PATH", required=True, help="Tokenizer of the memory.")
@click.option(
    "--files", metavar="N", type=click.IntRange(10), default=20_000, help="Files of the tree."
)
@click.option(
    "--minutes", metavar="N", type=FloatRange(0), default=60.0, help="Time of the changes."
)
@click.option(
    "--pause",
    metavar="N",
    type=FloatRange(0),
    default=20.0,
    help="Seconds of changes between comparisons.",
)
@click.option(
    "--patience",
    metavar="N",
    type=FloatRange(0),
    default=600.0,
    help="Seconds after which contents must be equal.",
)
@click.option(
    "--rounds",
    metavar="N",
    type=click.IntRange(1),
    default=2,
    help="Builds and first additions, in turns.",
)
@click.option("--seed", metavar="N", type=int, default=0, help="Seed of the random changes.")
@result_options
def main(
    tokenizer: str,
    files: int,
    minutes: float,
    pause: float,
    patience: float,
    rounds: int,
    seed: int,
    out: Destination,
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="rest-store-soak-"))
    try:
        results = soak(folder, tokenizer, files, minutes, pause, patience, rounds, seed)
    finally:
        shutil.rmtree(folder)
    parameters = click.get_current_context().params
    write_result(out, "soak_memory", parameters, ("numpy", "rest-store", "watchfiles"), results)


def soak(
    folder: Path,
    tokenizer: str,
    files: int,
    minutes: float,
    pause: float,
    patience: float,
    rounds: int,
    seed: int,
) -> dict[str, Any]:
    """Return the figures of a tree in `folder`; the other arguments are those of the command."""
    (folder / "tree").mkdir()
    tree = Tree(folder / "tree", files, seed)
    memory = folder / "memory"
    run = [sys.executable, "-m", "rest_store"]
    build = [*run, "build", "--corpus", str(tree.top), "--tokenizer", tokenizer, "--workers", "1"]
    remember = [*run, "remember", str(tree.top), "--keep-secrets", "--tokenizer", tokenizer]
    ratios = []
    for number in range(rounds):
        built = timed([*build, "--out", str(folder / f"built-{number}")])
        into = memory if number == rounds - 1 else folder / f"memory-{number}"
        added = timed([*remember, "--into", str(into)])
        ratios.append([round(added[0] / built[0], 2), round(added[1] / built[1], 2)])
        click.echo(f"first addition beside a build: {ratios[-1][0]} of its time")
    target = load_tokenizer(tokenizer)
    contents = Contents(tree, memory, target)
    changes: Counter[str] = Counter()
    waits: list[float] = []
    saves: list[float] = []
    sizes: list[float] = []
    follow = [*remember, "--into", str(memory), "--follow"]
    end = time.monotonic() + 60 * minutes
    process = subprocess.Popen(follow, stdout=subprocess.DEVNULL)
    try:
        while time.monotonic() < end:
            process = change(tree, pause, changes, process, follow)
            began = time.monotonic()
            while differing := contents.differences():
                if process.poll() is not None:
                    raise click.ClickException(f"remember ended with status {process.returncode}")
                if time.monotonic() - began > patience:
                    raise click.ClickException(f"{differing} texts still differ")
                time.sleep(0.5)
            waits.append(round(time.monotonic() - began, 1))
            sizes.append(round(resident(process), 1))
            with LiveDatastore.open(memory, read_only=True) as live:
                for _ in range(SAVES):
                    saves.append(seconds_of_a_save(tree, live, target))
            click.echo(
                f"equal after {waits[-1]} s, {sizes[-1]} MB, {changes.total():,} changes so far;"
                f" saves {saves[-SAVES:]} s"
            )
    finally:
        process.terminate()
        process.wait()
    return {
        "files": files,
        "first_addition": {
            "time": statistics.median(time for time, _ in ratios),
            "cpu": statistics.median(cpu for _, cpu in ratios),
            "rounds": ratios,
        },
        "minutes": round(minutes, 1),
        "changes": dict(changes),
        "comparisons": len(waits),
        "seconds_until_equal": {"median": statistics.median(waits or [0]), "all": waits},
        "seconds_of_a_save": {
            "median": statistics.median(saves or [0]),
            "max": max(saves, default=0),
            "all": saves,
        },
        "resident_mb": sizes,
    }


def change(
    tree: Tree,
    pause: float,
    changes: Counter[str],
    process: subprocess.Popen[bytes],
    follow: list[str],
) -> subprocess.Popen[bytes]:
    """Change the tree for some seconds; return the process that follows it then."""
    until = time.monotonic() + pause
    files = tree.files()
    while time.monotonic() < until:
        (act,) = tree.chance.choices([*WEIGHTS], [*WEIGHTS.values()])
        if act == "kill":
            process.kill()
            process.wait()
            process = subprocess.Popen(follow, stdout=subprocess.DEVNULL)
        else:
            # A file of the list may have been moved meanwhile.
            with suppress(OSError):
                getattr(tree, act)(files)
        changes[act] += 1
        if act in ("rename", "switch"):
            files = tree.files()
        time.sleep(tree.chance.choice((0.0, 0.02, 0.2)))
    return process


if __name__ == "__main__":
    main()
