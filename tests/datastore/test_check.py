"""`check_datastore` finds faults that opening cannot see, and none in valid datastores."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rest_store.datastore.check import check_datastore
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import separator_id, token_width
from rest_store.datastore.manifest import FILE_NAME, TOKENIZER_FILE_NAME, Manifest
from rest_store.datastore.shard import Shard
from rest_store.datastore.suffix_array import sorted_suffixes
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import DatastoreError, DatastoreFormatError, MemoryBudgetError
from tests.shared.models import serialized, word_level
from tests.shared.strategies import (
    Corpus,
    corpora,
    edit_file,
    edit_manifest,
    entries_of,
    keys_of,
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
        store = check_datastore(
            write_datastore(Path(directory), corpus),
            sort=sorted_suffixes if full else None,
            announce=announced.append,
        )
        assert store.manifest.token_count == sum(map(len, corpus.documents))
    stages = ["checksums", "symbols", "suffixes"] if full else ["checksums"]
    assert announced == [
        f"shard-{shard:05d} {stage}" for shard in range(len(corpus.shards)) for stage in stages
    ]


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
    """The test changes each byte of the small files, and a sample of the others."""
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
    refused(
        "missing file",
        lambda: check_datastore(tmp_path),
        f"{path}: file is unreadable (No such file",
    )
    os.mkfifo(path)
    refused(
        "missing file",
        lambda: check_datastore(tmp_path),
        f"{path}: file is unreadable (not a regular file",
    )
    edit_manifest(tmp_path, lambda fields: fields.pop("tokenizer_sha256"))
    check_datastore(tmp_path)


@WIDTHS
@pytest.mark.parametrize(
    ("kind", "offset"),
    [("tokens", 256), ("tokens", -20), ("suffixes", 256), ("suffixes", 279), ("suffixes", -9)],
)
def test_a_flipped_bit_in_a_payload(directory: Path, kind: str, offset: int) -> None:
    """The bit is in symbols, keys, entries, or the unused bits after the last entry."""
    path = directory / f"shard-00001.{kind}"

    before = path.read_bytes()[48:80].hex()
    edit_file(path, lambda data: data.__setitem__(offset, data[offset] ^ 0x10))
    assert Datastore.open(directory)
    message = refused(
        "checksum", lambda: check_datastore(directory), f"{path}: SHA-256 of the payload"
    )
    assert message.endswith(f"expected {before}")


# Faults with correct checksums, as a faulty writer would make them.


@WIDTHS
@pytest.mark.parametrize(
    ("offset", "what"), [(256, "key 0"), (279, "key 2"), (280, "byte 0"), (-9, "byte 135")]
)
def test_a_wrong_suffix_array(directory: Path, offset: int, what: str) -> None:
    """The fault is in keys, entries, or the unused bits after the last entry."""
    path = directory / "shard-00001.suffixes"
    edit_file(path, lambda data: data.__setitem__(offset, data[offset] ^ 0x10))
    seal_datastore(directory)
    check_datastore(directory)
    expected = f"{path}: {what} of the suffix array is "
    refused("suffix order", lambda: check_datastore(directory, sort=sorted_suffixes), expected)


def test_too_little_memory_to_sort_is_named(tmp_path: Path) -> None:
    def sort(*_: object) -> Any:
        raise MemoryError

    write_datastore(tmp_path, corpus_of(300))
    with pytest.raises(
        MemoryBudgetError, match=r"shard-00000\.tokens: there is not enough memory to sort it again"
    ):
        check_datastore(tmp_path, sort=sort)


@WIDTHS
@pytest.mark.parametrize(
    ("position", "kind", "actual"),
    [
        (17, "the first that is none", "symbol at position 17 is "),
        (17, "the last that is none", "symbol at position 17 is "),
        (50, "separator", "number of separators is 4, expected 3"),
        (100, "token", "number of separators is 2, expected 3"),
    ],
)
def test_a_wrong_symbol(
    directory: Path, vocabulary_size: int, position: int, kind: str, actual: str
) -> None:
    width = token_width(vocabulary_size)
    separator = separator_id(vocabulary_size)
    symbols = {"the first that is none": vocabulary_size, "the last that is none": separator - 1}
    symbol = {**symbols, "separator": separator, "token": 1}[kind]
    start = 256 + width * position
    content = symbol.to_bytes(width, "big")
    edit_file(
        directory / "shard-00001.tokens",
        lambda data: data.__setitem__(slice(start, start + width), content),
    )
    seal_datastore(directory)
    assert Datastore.open(directory)
    message = refused("header", lambda: check_datastore(directory, sort=sorted_suffixes))
    expected = (
        f"{symbol}, expected 0..{vocabulary_size - 1} or the separator" if kind in symbols else ""
    )
    assert message.endswith(f"shard-00001.tokens: {actual}{expected}")


@settings(max_examples=40)
@given(data=st.data(), corpus=corpora())
def test_any_other_order_of_the_entries_is_refused(data: st.DataObject, corpus: Corpus) -> None:
    places = [
        place for place, documents in enumerate(corpus.shards) if sum(map(len, documents)) > 1
    ]
    if not places:
        return
    with tempfile.TemporaryDirectory() as name:
        directory = write_datastore(Path(name), corpus)
        shard = Shard.open(directory, f"shard-{data.draw(st.sampled_from(places)):05d}")
        entries = entries_of(shard)
        other = data.draw(st.permutations(entries).filter(lambda order: order != entries))
        payload = keys_of(shard.tokens, other[::64]).astype("<u8").tobytes()
        payload += pack_entries(other, shard.suffixes.header.bits)
        edit_file(shard.suffixes.path, lambda file: file.__setitem__(slice(256, -8), payload))
        seal_datastore(directory)
        with pytest.raises(DatastoreFormatError):
            check_datastore(directory, sort=sorted_suffixes)
