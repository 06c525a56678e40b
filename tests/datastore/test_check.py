"""`check_datastore` finds faults that opening cannot see, and none in valid datastores."""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rest_store.datastore.check import check_datastore
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import separator_id, token_width
from rest_store.datastore.manifest import FILE_NAME, TOKENIZER_FILE_NAME, Manifest
from rest_store.datastore.shard import Shard
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import (
    ChecksumError,
    DatastoreError,
    MissingShardError,
    ShardHeaderError,
    SuffixOrderError,
)
from tests.shared.models import serialized, word_level
from tests.shared.strategies import (
    Corpus,
    corpora,
    edit_file,
    edit_manifest,
    entries_of,
    pack_entries,
    refused,
    seal_datastore,
    write_datastore,
)

WIDTHS = pytest.mark.parametrize("vocabulary_size", [300, 70_000])


def corpus_of(vocabulary_size: int) -> Corpus:
    """Two shards; the last one has 130 tokens and three keys."""
    documents = [[place * 7 % 64 + 1 for place in range(100)], [2, 1, 2], [5] * 27]
    return Corpus(vocabulary_size, [[[1, 2]], documents])


@pytest.fixture
def directory(tmp_path: Path, vocabulary_size: int) -> Path:
    return write_datastore(tmp_path, corpus_of(vocabulary_size))


@settings(max_examples=40)  # each writes a datastore and waits for the disk
@given(corpus=corpora(), full=st.booleans())
def test_valid_datastores_are_accepted(corpus: Corpus, full: bool) -> None:
    announced: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        store = check_datastore(write_datastore(Path(directory), corpus), full=full, announce=announced.append)
        assert store.manifest.token_count == sum(map(len, corpus.documents))
    stages = ["checksums", "symbols", "keys", "suffix order"] if full else ["checksums"]
    assert announced == [f"shard-{shard:05d} {stage}" for shard in range(len(corpus.shards)) for stage in stages]


# Faults that checksums reveal.


def tiny(directory: Path) -> Path:
    """A datastore of all kinds of files, each smaller than two kilobytes."""
    tokenizer = json.dumps(serialized(word_level(9)), indent=1)
    identity = TokenizerIdentity.from_tokenizer_json(tokenizer, "test")
    write_datastore(directory, Corpus(identity.vocabulary_size, [[[1, 2, 3, 1, 2], [4]], [[5, 6]]]))
    (directory / TOKENIZER_FILE_NAME).write_text(tokenizer, encoding="utf-8")
    digest = hashlib.sha256(tokenizer.encode("utf-8")).hexdigest()
    manifest = replace(Manifest.read(directory), tokenizer=identity, tokenizer_sha256=digest)
    (directory / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return directory


def test_every_changed_byte_of_every_file_is_found(tmp_path: Path) -> None:
    """Each byte of the small files, which is quick, and a sample of each part of the others."""
    check_datastore(tiny(tmp_path))
    files = sorted(path for path in tmp_path.iterdir())
    assert len(files) == 6
    for path in files:
        content = path.read_bytes()
        small = path.name in (FILE_NAME, TOKENIZER_FILE_NAME)
        for place in range(0, len(content), 5 if small else 13):
            changed = bytearray(content)
            changed[place] ^= 1 << place % 8
            path.write_bytes(changed)
            with pytest.raises(DatastoreError) as caught:
                check_datastore(tmp_path)
            assert str(caught.value).startswith(f"{path}: "), (place, caught.value)
        path.write_bytes(content)
    check_datastore(tmp_path)


def test_a_missing_tokenizer(tmp_path: Path) -> None:
    """A datastore needs none, unless the manifest has its checksum."""
    path = tiny(tmp_path) / TOKENIZER_FILE_NAME
    path.unlink()
    assert Datastore.open(tmp_path)
    refused(MissingShardError, lambda: check_datastore(tmp_path), f"{path}: file is unreadable (No such file")
    edit_manifest(tmp_path, lambda fields: fields.pop("tokenizer_sha256"))
    check_datastore(tmp_path)


@WIDTHS
@pytest.mark.parametrize(
    ("kind", "offset"), [("tokens", 256), ("tokens", -20), ("suffixes", 256), ("suffixes", 279), ("suffixes", -9)]
)
def test_a_flipped_bit_in_a_payload(directory: Path, kind: str, offset: int) -> None:
    """In symbols, keys, entries, and the unused bits after the last entry."""
    path = directory / f"shard-00001.{kind}"

    def flip(data: bytearray) -> None:
        data[offset] ^= 0x10

    before = path.read_bytes()[48:80].hex()
    edit_file(path, flip)
    assert Datastore.open(directory)
    message = refused(ChecksumError, lambda: check_datastore(directory), f"{path}: SHA-256 of the payload")
    assert message.endswith(f"expected {before}")


# Faults with correct checksums, as a faulty writer would make them.


def change_entries(directory: Path, change: Callable[[list[int]], object], *, keys: bool = True) -> None:
    """Change the suffix array of the last shard and its keys accordingly."""
    shard = Shard.open(directory, "shard-00001")
    entries = entries_of(shard)
    change(entries)
    limit, bits = shard.tokens.header.position_count, shard.suffixes.header.bits
    sampled = shard.tokens.keys(np.minimum(entries[::64], limit - 1)) if keys else shard.suffixes.keys.copy()
    payload = sampled.astype("<u8").tobytes() + pack_entries(entries, bits)
    edit_file(shard.suffixes.path, lambda data: data.__setitem__(slice(256, -8), payload))
    seal_datastore(directory)
    assert Datastore.open(directory)


def change_symbols(directory: Path, vocabulary_size: int, position: int, symbol: int) -> None:
    width = token_width(vocabulary_size)
    start = 256 + width * position
    content = symbol.to_bytes(width, "big")
    edit_file(directory / "shard-00001.tokens", lambda data: data.__setitem__(slice(start, start + width), content))
    seal_datastore(directory)
    assert Datastore.open(directory)


def swap(entries: list[int]) -> None:
    entries[70], entries[71] = entries[71], entries[70]


ENTRY_FAULTS: dict[str, tuple[Callable[[list[int]], object], str]] = {
    "two neighbours out of order": (
        swap,
        "suffix at rank 71 is not after that at rank 70, expected in ascending order",
    ),
    "two equal neighbours": (
        lambda entries: entries.__setitem__(100, entries[99]),
        "suffix at rank 100 is not after that at rank 99, expected in ascending order",
    ),
    "an entry beyond the last position": (
        lambda entries: entries.__setitem__(5, 133),
        "an entry is 133, expected below 133",
    ),
    "a sampled entry beyond the last position": (
        lambda entries: entries.__setitem__(64, 255),
        "an entry is 255, expected below 133",
    ),
    "an entry at a separator": (
        lambda entries: entries.__setitem__(5, 132),
        "suffix at rank 6 is not after that at rank 5, expected in ascending order",
    ),
}


@WIDTHS
@pytest.mark.parametrize("fault", ENTRY_FAULTS)
def test_a_wrong_entry(directory: Path, fault: str) -> None:
    change, expected = ENTRY_FAULTS[fault]
    change_entries(directory, change)
    path = directory / "shard-00001.suffixes"
    message = refused(SuffixOrderError, lambda: check_datastore(directory, full=True))
    assert message == f"{path}: {expected}"


@WIDTHS
def test_an_entry_at_a_separator_that_is_in_order(directory: Path) -> None:
    """The greatest suffix of all."""
    change_entries(directory, lambda entries: entries.__setitem__(-1, 132))
    expected = "shard-00001.suffixes: the last entry is a separator's, expected a token's position"
    refused(SuffixOrderError, lambda: check_datastore(directory, full=True), expected)


def test_equal_suffixes_are_compared_to_their_ends(tmp_path: Path) -> None:
    write_datastore(tmp_path, Corpus(300, [[[1]], [[7] * 60]]))
    change_entries(tmp_path, lambda entries: entries.__setitem__(1, entries[0]))
    check_datastore(tmp_path)  # reads the checksums alone
    message = refused(SuffixOrderError, lambda: check_datastore(tmp_path, full=True))
    assert message.endswith("suffix at rank 1 is not after that at rank 0, expected in ascending order")


@WIDTHS
@pytest.mark.parametrize("key", [0, 2])
def test_a_wrong_key(directory: Path, key: int) -> None:
    edit_file(
        directory / "shard-00001.suffixes", lambda data: struct.pack_into("<Q", data, 256 + 8 * key, 0x0102030405060708)
    )
    seal_datastore(directory)
    message = refused(SuffixOrderError, lambda: check_datastore(directory, full=True))
    assert f"key {key} is 0x0102030405060708, expected the first bytes of its suffix" in message


@WIDTHS
def test_a_symbol_outside_the_vocabulary(directory: Path, vocabulary_size: int) -> None:
    for symbol in (vocabulary_size, separator_id(vocabulary_size) - 1):
        change_symbols(directory, vocabulary_size, 17, symbol)
        message = refused(ShardHeaderError, lambda: check_datastore(directory, full=True), "shard-00001.tokens: ")
        expected = f"0..{vocabulary_size - 1} or the separator"
        assert message.endswith(f"symbol at position 17 is {symbol}, expected {expected}")


@WIDTHS
@pytest.mark.parametrize(("position", "count"), [(50, 4), (100, 2)])
def test_a_wrong_number_of_separators(directory: Path, vocabulary_size: int, position: int, count: int) -> None:
    symbol = separator_id(vocabulary_size) if count == 4 else 1
    change_symbols(directory, vocabulary_size, position, symbol)
    message = refused(ShardHeaderError, lambda: check_datastore(directory, full=True))
    assert message.endswith(f"shard-00001.tokens: number of separators is {count}, expected 3")


@settings(max_examples=40)
@given(data=st.data(), corpus=corpora())
def test_any_other_order_of_the_entries_is_refused(data: st.DataObject, corpus: Corpus) -> None:
    places = [place for place, documents in enumerate(corpus.shards) if sum(map(len, documents)) > 1]
    if not places:
        return
    with tempfile.TemporaryDirectory() as name:
        directory = write_datastore(Path(name), corpus)
        shard = Shard.open(directory, f"shard-{data.draw(st.sampled_from(places)):05d}")
        entries = entries_of(shard)
        other = data.draw(st.permutations(entries).filter(lambda order: order != entries))
        payload = shard.tokens.keys(np.array(other[::64])).astype("<u8").tobytes()
        payload += pack_entries(other, shard.suffixes.header.bits)
        edit_file(shard.suffixes.path, lambda file: file.__setitem__(slice(256, -8), payload))
        seal_datastore(directory)
        with pytest.raises(SuffixOrderError):
            check_datastore(directory, full=True)
