"""Random damage to shard files: each is refused or answers within bounds, and nothing crashes.

Promised of a datastore that opens, whatever its payloads hold: answers within the limits and the vocabulary, trees
whose parents come first, counts of 1 to the number of its tokens that never grow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import multiprocessing
import os
import random
import struct
from pathlib import Path

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import SuffixesHeader, TokensHeader, entry_bits, token_width
from rest_store.datastore.manifest import FILE_NAME, Manifest, ShardRecord
from rest_store.datastore.store import Snapshot
from rest_store.datastore.tree import TokenTree
from rest_store.errors import DatastoreError
from tests.shared.damage import damage, require_bounds, require_match_bounds, some_context, write_pristine
from tests.shared.strategies import seal_header

FILES = 1200
Answers = list[tuple[TokenTree, dict[str, int]]]


def nonsense(rng: random.Random, vocabulary_size: int) -> tuple[bytes, bytes, ShardRecord]:
    """Two files whose headers agree and whose payloads do not."""
    width = token_width(vocabulary_size)
    positions = rng.choice([2, 3, 64, 65, 66, 130, 700, rng.randrange(2, 700)])
    documents = rng.randrange(1, positions // 2 + 1)
    alphabet = [rng.randrange(256**width) for _ in range(rng.choice([1, 2, 30]))] + [0, vocabulary_size - 1]
    symbols = b"".join(rng.choice(alphabet).to_bytes(width, "big") for _ in range(positions - 1)) + b"\xff" * width
    entries = positions - documents
    bits = entry_bits(positions)
    kind = rng.randrange(4)
    order = [rng.randrange(2**bits) for _ in range(entries)]
    if kind > 0:
        order = sorted(range(positions), key=lambda p: symbols[width * p :])[:entries]
    if kind > 1:  # sorted except for some
        for _ in range(rng.randrange(20)):
            order[rng.randrange(entries)] = rng.randrange(2**bits)
    keys = [int.from_bytes(symbols[width * place :][:8].ljust(8, b"\0"), "big") for place in order[::64]]
    if rng.random() < 0.5:
        keys[rng.randrange(len(keys))] = rng.randrange(2**64)
    if rng.random() < 0.2:
        rng.shuffle(keys)
    packed = sum(entry << (bits * rank) for rank, entry in enumerate(order))
    payload = b"".join(key.to_bytes(8, "little") for key in keys)
    payload += packed.to_bytes(8 * math.ceil(entries * bits / 64), "little")
    digest = hashlib.sha256(symbols).digest()
    tokens = TokensHeader(vocabulary_size, positions, documents, digest)
    suffixes = SuffixesHeader(bits, entries, bytes(32), digest)
    record = ShardRecord(
        "", positions, entries, documents, tokens.file_size, digest.hex(), suffixes.file_size, bytes(32).hex()
    )
    return tokens.pack() + symbols + bytes(8), suffixes.pack() + payload + bytes(8), record


class DamagedDatastore:
    """A datastore in memory; a damaged copy is written for each seed."""

    def __init__(self, source: Path, work: Path) -> None:
        self.work = work
        work.mkdir()
        self.pristine = {path.name: path.read_bytes() for path in source.iterdir()}
        self.manifest = Manifest.read(source)
        self.contexts = [[int(symbol) for symbol in shard.tokens.symbols()] for shard in Datastore.open(source).shards]
        self.stale: set[str] = set(self.pristine)

    def damage(self, rng: random.Random) -> Path:
        """Write the datastore with one damaged shard, sealed or not, and return its directory."""
        for name in self.stale:
            self._write(name, self.pristine[name])
        self.stale = {FILE_NAME}
        place = rng.randrange(len(self.manifest.shards))
        record = self.manifest.shards[place]
        names = [f"{record.name}.tokens", f"{record.name}.suffixes"]
        if rng.random() < 0.25:
            *files, fields = nonsense(rng, self.manifest.tokenizer.vocabulary_size)
            record = dataclasses.replace(fields, name=record.name)
            for name, content in zip(names, files, strict=True):
                self._write(name, content)
        else:
            name = rng.choice(names)
            data = bytearray(self.pristine[name])
            damage(rng, data)
            if rng.random() < 0.5 and len(data) >= 256:  # with correct checksums and manifest
                if name.endswith(".tokens"):
                    _, _, positions, documents = struct.unpack_from("<IIQQ", data, 16)
                    record = dataclasses.replace(
                        record,
                        position_count=positions,
                        document_count=documents,
                        token_count=positions - documents,
                        tokens_size=len(data),
                    )
                else:
                    record = dataclasses.replace(record, suffixes_size=len(data))
                seal_header(data)
            self._write(name, bytes(data))
        records = list(self.manifest.shards)
        records[place] = record
        self._write(FILE_NAME, dataclasses.replace(self.manifest, shards=tuple(records)).to_json().encode())
        self.stale.update(names)
        return self.work

    def _write(self, name: str, content: bytes) -> None:
        (self.work / name).unlink(missing_ok=True)  # not in place: the previous file may still be mapped
        (self.work / name).write_bytes(content)

    def context(self, rng: random.Random) -> list[int]:
        return some_context(rng, rng.choice(self.contexts), self.manifest.tokenizer.vocabulary_size)


def on_exact_copies(store: Datastore) -> None:
    """Let the kernel read exact copies of the arrays, so that a sanitizer sees each read beyond their ends."""
    views = [
        dataclasses.replace(view, symbols=view.symbols.copy(), keys=view.keys.copy(), entries=view.entries.copy())
        for view in (shard.view for shard in store.shards)
    ]
    store._snapshot = Snapshot.of(views, store.vocabulary_size)


def query(rng: random.Random, damaged: DamagedDatastore, store: Datastore) -> int:
    """Run all queries twice with random limits; return the number of matches so heavy that they were sampled."""
    sampled = 0
    for _ in range(2):
        limits = {
            "max_nodes": rng.choice([1, 2, 3, 4, 16, 64, 1024]),
            "max_suffix": rng.choice([1, 2, 4, 16, 64]),
            "max_depth": rng.choice([1, 2, 10, 32]),
        }
        batch = [damaged.context(rng) for _ in range(4)]
        trees = store.draft_batch(batch, **limits)
        for tree in trees:
            require_bounds(store, tree, limits)
            sampled += tree.match.count > 45 * limits["max_nodes"]
        require_bounds(store, store.draft(batch[0], **limits), limits)
        match = store.longest_suffix_match(batch[1], max_suffix=limits["max_suffix"])
        require_match_bounds(store, match, limits["max_suffix"])
        assert 0 <= store.count(batch[2][:64]) <= store.manifest.token_count
    return sampled


def open_and_query(source: Path, work: Path) -> None:
    """Damage shard files, each with a seed of its own; `work`/seed holds the current one."""
    seed_file = os.open(work / "seed", os.O_WRONLY | os.O_CREAT)
    stores = [DamagedDatastore(path, work / path.name) for path in sorted(source.iterdir())]
    opened = sampled = 0
    for seed in range(FILES):
        os.pwrite(seed_file, f"{seed:12d}".encode(), 0)
        rng = random.Random(seed)
        damaged = stores[seed % len(stores)]
        try:
            store = Datastore.open(damaged.damage(rng))
        except DatastoreError:
            continue
        opened += 1
        if seed % 3 == 0:
            on_exact_copies(store)
        sampled += query(rng, damaged, store)
    (work / "reached").write_text(json.dumps([opened, sampled]), encoding="utf-8")


def test_damaged_files_are_refused_or_answer_within_bounds(tmp_path: Path) -> None:
    """In a new process, so that a crash is a failure that names the seed."""
    source, work = tmp_path / "pristine", tmp_path / "damaged"
    source.mkdir()
    work.mkdir()
    write_pristine(source)
    process = multiprocessing.get_context("spawn").Process(target=open_and_query, args=(source, work))
    process.start()
    process.join()
    assert process.exitcode == 0, f"seed {(work / 'seed').read_text(encoding='utf-8').strip()}"
    opened, sampled = json.loads((work / "reached").read_text(encoding="utf-8"))
    assert FILES / 5 < opened < FILES * 4 / 5  # both outcomes are common,
    assert sampled > FILES / 5  # and so are heavy matches
