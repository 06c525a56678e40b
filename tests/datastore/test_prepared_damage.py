"""Prepared drafts that are damaged: refused, found by a check, or taken as absent."""

from __future__ import annotations

import hashlib
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rest_store.datastore.check import check_datastore
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.kernel import guard_pages, native_kernel
from rest_store.datastore.prepared import FILE_NAME, PreparedFile
from rest_store.errors import (
    ChecksumError,
    FormatVersionError,
    ManifestError,
    MissingShardError,
    MixedBuildError,
    NotAShardError,
    PreparedDraftError,
    ShardHeaderError,
    ShardSizeError,
)
from tests.shared.builds import contents
from tests.shared.strategies import (
    edit_file,
    edit_manifest,
    refused,
    seal_header,
)

pytestmark = pytest.mark.skipif(native_kernel() is None, reason="without the native kernel nothing is prepared")
Edit = Callable[[bytearray], object]


def header_field(offset: int, code: str, value: Any) -> Edit:
    def change(data: bytearray) -> None:
        struct.pack_into("<" + code, data, offset, value)
        seal_header(data)

    return change


@pytest.mark.parametrize(
    ("change", "error", "fragments"),
    [
        (lambda data: data.__delitem__(slice(0, None)), ShardSizeError, ("size is 0 bytes",)),
        (lambda data: data.__delitem__(slice(300, None)), ShardSizeError, ("size is 300 bytes",)),
        (lambda data: data.append(0), ShardSizeError, ("size is",)),
        (lambda data: data.__setitem__(0, 1), NotAShardError, ("magic",)),
        (lambda data: data.__setitem__(30, 1), ShardHeaderError, ("header CRC-32",)),
        (lambda data: data.__setitem__(-1, 1), ShardHeaderError, ("tail",)),
        (header_field(12, "H", 2), FormatVersionError, ("format version is 2",)),
        (header_field(16, "I", 3), ShardHeaderError, ("token width is 3, expected 2",)),
        (header_field(20, "I", 0), ShardHeaderError, ("vocabulary size is 0",)),
        (header_field(20, "I", 301), MixedBuildError, ("vocabulary size is 301, expected 300",)),
        (header_field(24, "I", 255), ShardHeaderError, ("most nodes is 255, expected 1..254",)),
        (header_field(28, "I", 33), ShardHeaderError, ("greatest depth is 33, expected 1..32",)),
        (header_field(32, "Q", 0), ShardHeaderError, ("bucket bits is 0",)),
        (header_field(32, "Q", 41), ShardHeaderError, ("bucket bits is 41",)),
        (header_field(32, "Q", 40), ShardHeaderError, ("payload size is",)),
        (header_field(40, "Q", 0), ShardHeaderError, ("number of drafts is 0",)),
        (header_field(40, "Q", 1 << 32), ShardHeaderError, ("number of drafts is 4294967296",)),
        (header_field(40, "Q", 2), MixedBuildError, ("draft count is 2",)),
        (header_field(48, "Q", 1 << 60), ShardSizeError, ("size is",)),
        (header_field(56, "32s", b"x" * 32), MixedBuildError, ("sha256 is",)),
        (header_field(88, "32s", b"x" * 32), MixedBuildError, ("checksum of its shards is",)),
        (header_field(200, "B", 1), ShardHeaderError, ("reserved bytes",)),
    ],
)
def test_a_damaged_file_is_refused(heavy: Path, change: Edit, error: Any, fragments: tuple[str, ...]) -> None:
    edit_file(heavy / FILE_NAME, change)
    refused(error, lambda: Datastore.open(heavy), str(heavy / FILE_NAME), *fragments)


def test_a_missing_file_and_a_wrong_record_are_refused(heavy: Path) -> None:
    (heavy / FILE_NAME).rename(heavy / "elsewhere")
    refused(MissingShardError, lambda: Datastore.open(heavy), FILE_NAME, "absent")
    (heavy / "elsewhere").rename(heavy / FILE_NAME)
    edit_manifest(heavy, lambda fields: fields["prepared"].update(draft_count="many"))
    refused(ManifestError, lambda: Datastore.open(heavy), "draft_count is str, expected int")
    edit_manifest(heavy, lambda fields: fields.update(prepared=[]))
    refused(ManifestError, lambda: Datastore.open(heavy), "prepared is list, expected an object")
    edit_manifest(heavy, lambda fields: fields.pop("prepared"))
    assert Datastore.open(heavy).prepared is None


def reseal(directory: Path, change: Callable[[bytearray, PreparedFile], object]) -> None:
    """Change the file of prepared drafts and make its checksums right."""
    opened = PreparedFile.open(directory / FILE_NAME)

    def edit(data: bytearray) -> None:
        change(data, opened)
        data[56:88] = hashlib.sha256(data[256:-8]).digest()
        seal_header(data)
        edit_manifest(directory, lambda fields: fields["prepared"].update(sha256=data[56:88].hex()))

    edit_file(directory / FILE_NAME, edit)


def place_of(opened: PreparedFile, token: int) -> tuple[int, int]:
    """The place of the draft of [token], and where it begins in the file."""
    place = opened.find([token])
    assert place is not None
    return place, 256 + opened.header.table_size + int(opened.payload[8 * place : 8 * place + 8].view("<u8")[0])


def test_check_finds_what_opening_cannot(heavy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rest_store.datastore.check.DRAFT_SAMPLES", 1 << 20)
    pristine = contents(heavy)
    told: list[str] = []
    check_datastore(heavy, progress=lambda stage, done, total: told.append(stage))
    assert {"prepared drafts", "prepared drafts checksums"} <= set(told)
    edit_file(heavy / FILE_NAME, lambda data: data.__setitem__(-9, data[-9] ^ 1))
    refused(ChecksumError, lambda: check_datastore(heavy), FILE_NAME)

    def with_file(change: Callable[[bytearray, PreparedFile], object], *fragments: str) -> None:
        for name, data in pristine.items():
            (heavy / name).write_bytes(data)
        reseal(heavy, change)
        refused(PreparedDraftError, lambda: check_datastore(heavy), FILE_NAME, *fragments)

    def at(offset: int, value: int) -> Callable[[bytearray, PreparedFile], None]:
        def change(data: bytearray, opened: PreparedFile) -> None:
            data[place_of(opened, 7)[1] + offset] = value

        return change

    with_file(at(0, 9), "size of draft")
    with_file(at(1, 3), "size of draft")
    with_file(at(2, 1), "occurrences of its match is", "of [7]")
    with_file(at(11, 1), "of [1]")  # another match
    with_file(at(10, 255), "match of draft")
    with_file(at(12 + 2, 200), "no tree")  # a parent that comes later
    with_file(at(12 + 3, 0), "of [7]", "token, parent and count of node 0 is (")

    def swap(data: bytearray, opened: PreparedFile) -> None:
        start = 256 + 8 * (opened.header.draft_count + 1)
        counts = np.frombuffer(bytes(data[start : 256 + opened.header.table_size]), "<u4").copy()
        first = int(np.flatnonzero(counts)[0])
        counts[first] -= 1
        data[start : 256 + opened.header.table_size] = counts.tobytes()

    with_file(swap, "is not in its bucket, expected in it")


def test_random_damage_gives_answers_within_bounds(heavy: Path) -> None:
    store = Datastore.open(heavy)
    assert store.prepared is not None
    matches = [store.prepared.draft(place)[0] for place in range(store.prepared.header.draft_count)]
    pristine = (heavy / FILE_NAME).read_bytes()
    rng = random.Random(0)
    total = store.manifest.token_count
    changed = 0
    for _ in range(600):
        data = bytearray(pristine)
        for _ in range(rng.choice([1, 1, 4, 64])):
            at = rng.randrange(256, len(data) - 8)
            run = min(len(data) - 8 - at, rng.choice([1, 2, 8, 64]))
            data[at : at + run] = rng.choice([rng.randbytes(run), bytes(run), b"\xff" * run])
        (heavy / "damaged").write_bytes(data)
        opened = PreparedFile.open(heavy / "damaged")
        # A copy that ends where the file does, so that a sanitizer sees each byte read too far.
        copy = SimpleNamespace(header=opened.header, payload_and_tail=opened.payload_and_tail.copy())
        damaged = Datastore(heavy, store.manifest, store.shards, copy)  # type: ignore[arg-type]
        for tokens in rng.sample(matches, 12):
            depth, nodes = rng.choice([(10, 64), (1, 5), (3, 64)])
            tree = damaged.draft(tokens, max_nodes=nodes, max_depth=depth)
            counts = [tree.match.count, *tree.counts.tolist()]
            assert len(tree) <= nodes
            assert tree.match.length == len(tokens)
            assert total >= counts[0]
            assert counts == sorted(counts, reverse=True)
            assert min(counts) >= 1
            assert all(0 <= token < store.vocabulary_size for token in tree.tokens.tolist())
            assert all(-1 <= parent < place for place, parent in enumerate(tree.parents.tolist()))
            assert tree.depths.max(initial=0) <= depth
            changed += tree != store.draft(tokens, max_nodes=nodes, max_depth=depth)
    assert changed  # else the damage was nowhere to be seen


def test_a_truncated_file_is_told_by_the_guard(heavy: Path) -> None:
    store = Datastore.open(heavy)
    guard = guard_pages(store.files)
    assert guard is not None
    assert not guard.lost
    os.truncate(heavy / FILE_NAME, 0)
    store.draft([7])
    assert guard.lost
