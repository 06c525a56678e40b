"""Random damage to all files of a datastore, before it is opened and while it is open.

What must hold: no process crashes or waits for ever; what opens answers within bounds, or raises an
error of ours; it answers exactly where only files that queries do not read are damaged; a check
finds all that answers depend on.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

import rest_store
from rest_store.cli import main
from rest_store.datastore.check import check_datastore
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import SuffixesHeader, TokensHeader, entry_bits, token_width
from rest_store.datastore.manifest import FILE_NAME, Manifest
from rest_store.datastore.store import Snapshot
from rest_store.datastore.suffix_array import sorted_suffixes
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.errors import RestStoreError
from tests.fuzz import campaign
from tests.shared.builds import build_quick, documents, write_jsonl, write_tokenizer
from tests.shared.strategies import Corpus, pack_entries, seal_datastore, write_datastore
from tests.shared.trees import tree_fault

Contents = dict[str, bytes]
SHARD_FILES = (".tokens", ".suffixes")
LARGE = 1 << 24  # bytes, more than any file has unless it was made to grow


# --- What is done to files ------------------------------------------------------------------------


def damage(rng: random.Random, data: bytearray) -> None:
    """Change, cut or lengthen `data` in one to three ways."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        size = max(1, len(data))
        # Half of the time the header is left intact, so that the payload is read.
        start = min(size - 1, rng.choice([0, 256])) if rng.random() < 0.9 else 0
        at = rng.randrange(start, size)
        run = min(size - at, rng.choice([1, 2, 8, 64, 512]))
        kind = rng.randrange(8)
        if kind == 0 and data:
            for _ in range(rng.choice([1, 8, 64])):
                bit = rng.randrange(8 * start, 8 * size)
                data[bit // 8] ^= 1 << bit % 8
        elif kind == 1:
            data[at : at + run] = rng.randbytes(run)
        elif kind == 2:
            data[at : at + run] = bytes(run)
        elif kind == 3:
            data[at : at + run] = b"\xff" * run
        elif kind == 4:
            other = rng.randrange(start, size)
            run = min(run, size - other)
            data[at : at + run], data[other : other + run] = (
                data[other : other + run],
                data[at : at + run],
            )
        elif kind == 5:
            del data[at : rng.choice([at + run, size])]
        elif kind == 6:
            data[at:at] = rng.randbytes(run) if rng.random() < 0.5 else data[at : at + run]
        elif len(data) >= 256:  # a header field
            offset, size = rng.choice(
                [(12, 2), (14, 2), (16, 4), (20, 4), (24, 8), (32, 8), (40, 8), (80, 8)]
            )
            old = int.from_bytes(data[offset : offset + size], "little")
            new = rng.choice(
                [
                    0,
                    1,
                    old + 1,
                    old - 1,
                    old * 2,
                    old // 2,
                    64,
                    2**30,
                    2 ** (8 * size) - 1,
                    old * 2**32,
                ]
            )
            data[offset : offset + size] = (new % 2 ** (8 * size)).to_bytes(size, "little")


def damage_bytes(chance: random.Random, path: Path, spare: Path) -> None:
    """Change some bytes in place, so that a mapping of the file sees the change."""
    data = bytearray(path.read_bytes())
    damage(chance, data)
    with path.open("r+b") as stream:
        stream.write(data)
        stream.truncate()


def cut(chance: random.Random, path: Path, spare: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, chance.choice([0, size - 1, chance.randrange(size), 256, 8]) if size else 0)


def grow(chance: random.Random, path: Path, spare: Path) -> None:
    greatest = 1 << (22 if path.suffix == ".json" else 30)  # sparse
    os.truncate(path, path.stat().st_size + chance.choice([1, 8, 4096, greatest]))


def swap(chance: random.Random, path: Path, spare: Path) -> None:
    """With another file of the datastore."""
    other = chance.choice(sorted(path.parent.iterdir()))
    if other != path:
        path.rename(spare)
        other.rename(path)
        spare.rename(other)


def replace(chance: random.Random, path: Path, spare: Path) -> None:
    """With nothing, a directory or a link that leads nowhere."""
    path.unlink()
    match chance.randrange(3):
        case 0:
            pass
        case 1:
            path.mkdir()
        case _:
            path.symlink_to("/nowhere/at/all")


def seal(directory: Path) -> None:
    """Correct all checksums and counts, unless other damage is in the way."""
    if all(path.is_file() and path.stat().st_size < LARGE for path in directory.iterdir()):
        with suppress(struct.error, OSError, ValueError, KeyError):
            seal_datastore(directory)


def damage_sealed(chance: random.Random, path: Path, spare: Path) -> None:
    """Change a shard file, with all checksums and counts, as a faulty writer would."""
    if path.suffix in SHARD_FILES:
        damage_bytes(chance, path, spare)
        seal(path.parent)


def write_nonsense(chance: random.Random, path: Path, spare: Path) -> None:
    """Write the two files of a shard, whose headers agree and whose payloads do not."""
    try:
        manifest = Manifest.read(path.parent)
    except RestStoreError:
        return
    vocabulary_size = manifest.tokenizer.vocabulary_size
    width = token_width(vocabulary_size)
    positions = chance.choice([2, 3, 64, 65, 66, 130, 700, chance.randrange(2, 700)])
    count = chance.randrange(1, positions // 2 + 1)
    alphabet = [chance.randrange(256**width) for _ in range(chance.choice([1, 2, 30]))] + [
        0,
        vocabulary_size - 1,
    ]
    symbols = (
        b"".join(chance.choice(alphabet).to_bytes(width, "big") for _ in range(positions - 1))
        + b"\xff" * width
    )
    entries = positions - count
    bits = entry_bits(positions)
    order = [chance.randrange(2**bits) for _ in range(entries)]
    if chance.random() < 0.75:  # sorted, except for some
        order = sorted(range(positions), key=lambda position: symbols[width * position :])[:entries]
        for _ in range(chance.choice([0, 1, 20])):
            order[chance.randrange(entries)] = chance.randrange(2**bits)
    keys = [
        int.from_bytes(symbols[width * place :][:8].ljust(8, b"\0"), "big") for place in order[::64]
    ]
    if chance.random() < 0.5:
        keys[chance.randrange(len(keys))] = chance.randrange(2**64)
    payload = b"".join(key.to_bytes(8, "little") for key in keys) + pack_entries(order, bits)
    name = chance.choice(manifest.shards).name
    headers = (
        TokensHeader(vocabulary_size, positions, count, bytes(32)),
        SuffixesHeader(bits, entries, *[bytes(32)] * 2),
    )
    if any((path.parent / name).with_suffix(suffix).is_dir() for suffix in SHARD_FILES):
        return
    for suffix, header, content in zip(SHARD_FILES, headers, (symbols, payload), strict=True):
        (path.parent / name).with_suffix(suffix).unlink(missing_ok=True)
        (path.parent / name).with_suffix(suffix).write_bytes(header.pack() + content + bytes(8))
    seal(path.parent)


WAYS: list[Callable[[random.Random, Path, Path], None]] = [
    *(*[damage_bytes] * 5, cut, cut, grow, swap, replace),
    *(damage_sealed, damage_sealed, damage_sealed, write_nonsense, write_nonsense),
]
SEALED = {damage_sealed, write_nonsense}  # after which checksums are those of what is there
ON_OPEN = [damage_bytes, damage_bytes, cut, replace]


def require(holds: bool, otherwise: str) -> None:
    """Raise AssertionError unless `holds`.

    For `except` clauses, where the linter takes an assertion for a mistake.
    """
    assert holds, otherwise


def contents(directory: Path) -> Contents:
    """The bytes of all regular files, what else there is by its kind."""
    actual = {}
    for path in directory.iterdir():
        if path.is_symlink() or not path.is_file():
            actual[path.name] = b"no regular file"
        else:
            actual[path.name] = path.read_bytes() if path.stat().st_size < LARGE else b"large"
    return actual


# --- What is asked --------------------------------------------------------------------------------


def heavy(rng: random.Random, alphabet: list[int], size: int) -> list[list[int]]:
    """Documents with many repeats: matches have more occurrences than are sampled."""
    ids = [alphabet[min(int(rng.expovariate(0.7)), len(alphabet) - 1)] for _ in range(size)]
    cuts = sorted(rng.sample(range(1, size), max(1, size // 60)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, size], strict=True)]


def write_pristine(directory: Path) -> None:
    """Write the datastores that are to be damaged: both token widths, one to three shards."""
    rng = random.Random(0)
    top = 2**24 - 2
    corpora = [
        Corpus(300, [[[7] * 600, [7] * 40 + [8, 9] * 30]]),
        Corpus(
            65_535,
            [heavy(rng, [0, 1, 255, 65_534], 500), heavy(rng, [1, 255, 256], 400), [[65_534]]],
        ),
        Corpus(70_000, [heavy(rng, [5, 255, 65_535, 69_999], 600), heavy(rng, [5, 256], 300)]),
        Corpus(top + 1, [heavy(rng, [0, top, top - 1, 0xFFFF00], 200) for _ in range(3)]),
        Corpus(3, [[[0, 1, 2]], [[2]]]),
    ]
    for place, corpus in enumerate(corpora):
        write_datastore(directory / str(place), corpus)


class Fuzzer(campaign.Fuzzer):
    """Damages copies of a few datastores."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        pristine = directory / "pristine"
        pristine.mkdir()
        write_pristine(pristine)
        tokenizer = write_tokenizer(directory / "tokenizer.json")
        corpus = write_jsonl(directory / "corpus.jsonl", documents(60))
        for shard_tokens in (500, 5000):
            build_quick(
                corpus, tokenizer, pristine / f"built-{shard_tokens}", shard_tokens=shard_tokens
            )
        self._pristine = sorted(pristine.iterdir())
        self._contents = {path.name: contents(path) for path in self._pristine}
        self._copies = 0

    def run(self, chance: random.Random) -> Counter[str]:
        """Run one case."""
        source = chance.choice(self._pristine + self._pristine[-2:] * 2)
        self._copies += 1
        work = self.directory / f"work-{self._copies}"  # what was open before may still be mapped
        shutil.copytree(source, work)
        try:
            return self._run(chance, source, work)
        finally:
            shutil.rmtree(work)

    def _run(self, chance: random.Random, source: Path, work: Path) -> Counter[str]:
        actual: Counter[str] = Counter()
        opened = Datastore.open(work) if chance.random() < 0.3 else None
        done: list[str] = []
        is_sealed = False
        for _ in range(chance.choice([0, 1, 1, 1, 2, 3])):
            way = chance.choice(ON_OPEN if opened is not None else WAYS)
            paths = sorted(
                path for path in work.iterdir() if path.is_file() and not path.is_symlink()
            )
            if not paths:
                break
            path = chance.choice(paths)
            done.append(f"{way.__name__} {path.name}")
            self.case = f"{source.name}, {'open' if opened else 'closed'}: {', '.join(done)}"
            if path.stat().st_size < LARGE:
                way(chance, path, self.directory / "spare")
                is_sealed |= way in SEALED
        sound = contents_are(work, self._contents[source.name], (".tokens", ".suffixes", FILE_NAME))
        try:
            store = opened or Datastore.open(work)
        except RestStoreError as error:
            actual[f"open: {type(error).__name__}"] += 1
            require(not sound, f"refused, though only other files are damaged: {error}")
        else:
            if opened is None and chance.random() < 0.3:
                read_copies(store)
            for kind, ask in QUERIES.items():
                actual[f"{kind}: {self._asked(ask, chance, source, store, sound)}"] += 1
        actual[
            "check:"
            f" {self._checked(chance, work, None if is_sealed else self._contents[source.name])}"
        ] += 1
        if chance.random() < 0.15:
            actual[f"command: {command(chance, work)}"] += 1
        return actual

    def _asked(
        self, ask: Any, chance: random.Random, source: Path, store: Datastore, sound: bool
    ) -> str:
        pristine = Datastore.open(source)
        symbols = [int(symbol) for symbol in chance.choice(pristine.shards).tokens.symbols()]
        context = some_context(chance, symbols, pristine.vocabulary_size)
        try:
            answer = ask(store, context)
        except RestStoreError as error:
            require(not sound, f"{error}, though only other files are damaged")
            return type(error).__name__
        if sound:
            assert answer == ask(pristine, context), (
                "another answer, though only other files are damaged"
            )
        return "answered"

    def _checked(self, chance: random.Random, work: Path, expected: Contents | None) -> str:
        try:
            check_datastore(work, sort=sorted_suffixes if chance.random() < 0.3 else None)
        except RestStoreError as error:
            require(contents(work) != expected, f"nothing is damaged: {error}")
            return type(error).__name__
        assert expected is None or contents_are(work, expected, ("",)), (
            "a check does not find what differs"
        )
        return "valid"


def read_copies(store: Datastore) -> None:
    """Let the kernel read exact copies of arrays, so that a sanitizer sees reads beyond them."""
    views = [
        dataclasses.replace(
            view, symbols=view.symbols.copy(), keys=view.keys.copy(), entries=view.entries.copy()
        )
        for view in (shard.view for shard in store.shards)
    ]
    store._snapshot = Snapshot.from_views(views, store.vocabulary_size)


def contents_are(directory: Path, expected: Contents, names: tuple[str, ...]) -> bool:
    """Whether the files whose names end so are those that there were."""
    actual = contents(directory)
    return all(actual.get(name) == data for name, data in expected.items() if name.endswith(names))


def some_context(rng: random.Random, symbols: list[int], vocabulary_size: int) -> list[int]:
    """A piece of the undamaged `symbols`, or any token."""
    at = rng.randrange(len(symbols))
    piece = [
        symbol
        for symbol in symbols[at : at + rng.choice([1, 1, 2, 5, 70])]
        if symbol < vocabulary_size
    ]
    return piece or [rng.randrange(vocabulary_size)]


def require_match_bounds(store: Datastore, match: SuffixMatch, max_suffix: int) -> None:
    assert 0 <= match.length <= max_suffix
    assert 0 <= match.count <= store.manifest.token_count
    assert (match.length > 0) == (match.count > 0)


def require_bounds(store: Datastore, tree: TokenTree, limits: dict[str, int]) -> None:
    assert len(tree) <= limits["max_nodes"]
    require_match_bounds(store, tree.match, limits["max_suffix"])
    if len(tree) == 0:
        return
    tokens = tree.tokens
    parents = tree.parents
    depths = tree.depths
    counts = tree.counts
    assert tree.match.length > 0
    assert 0 <= tokens.min() <= tokens.max() < store.vocabulary_size
    assert parents.min() >= -1
    assert np.all(parents < np.arange(len(tree)))
    assert np.array_equal(depths, np.where(parents < 0, 1, depths[parents] + 1))
    assert depths.max() <= limits["max_depth"]
    assert 1 <= counts[-1] <= counts[0] <= tree.match.count
    assert np.all(np.diff(counts) <= 0)


def match(store: Datastore, context: list[int]) -> Any:
    actual = store.longest_suffix_match(context)
    require_match_bounds(store, actual, 16)
    return actual


def count(store: Datastore, context: list[int]) -> int:
    actual = store.count(context[:64])
    assert 0 <= actual <= store.manifest.token_count
    return actual


def draft(store: Datastore, context: list[int]) -> Any:
    chance = random.Random(context[0])
    limits = {
        "max_nodes": chance.choice([1, 2, 4, 16, 64, 1024]),
        "max_suffix": chance.choice([1, 2, 16, 64]),
        "max_depth": chance.choice([1, 2, 10, 32]),
    }
    tree = store.draft(context, **limits)
    require_bounds(store, tree, limits)
    return tree


def session_draft(store: Datastore, context: list[int]) -> list[int]:
    """Three steps of a session: it drafts without the datastore where that cannot be read."""
    with rest_store.DraftSession([store], prompt=context) as session:
        tokens: list[int] = []
        for _ in range(3):
            tree = session.draft(max_nodes=16)
            fault = tree_fault(tree, 16, store.vocabulary_size)
            assert fault is None, fault
            tokens += np.asarray(tree.tokens).tolist()
            session.accept(tokens[-1:] or context[:1])
        return tokens


QUERIES: dict[str, Callable[[Datastore, list[int]], Any]] = {
    "match": match,
    "count": count,
    "draft": draft,
    "session": session_draft,
}


def command(chance: random.Random, work: Path) -> str:
    """Run a command on the datastore: one line, and the status of a failure."""
    arguments = chance.choice(
        [["info"], ["info", "--json"], ["check"], ["query", "--tokens", "1,2"]]
    )
    result = CliRunner().invoke(main, [arguments[0], str(work), *arguments[1:]])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1), f"{arguments}: {result.output}"
    if result.exit_code:
        assert len(result.stderr.strip().splitlines()) == 1, f"{arguments}: {result.stderr}"
    return f"{arguments[0]} {result.exit_code}"
