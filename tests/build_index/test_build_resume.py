"""Interrupted builds: the files that stay, their use by `resume`, and its refusals."""

from __future__ import annotations

import errno
import itertools
import os
from contextlib import contextmanager
from dataclasses import replace

import pytest

from build_index import build_plan, builder, shard_sorter, shard_tokens, slices, staging
from build_index.build_command import summary_text
from build_index.builder import build
from build_index.corpus_spec import CorpusSpec
from build_index.staging import finished_shards
from build_index.tokenization import load_tokenizer
from rest_store.datastore.shard import TokensWriter
from rest_store.errors import CorpusError, OutputError, ResumeError
from rest_store.live.export import export
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.builds import (
    build_quick,
    contents,
    documents,
    leftovers,
    options,
    stored_documents,
    write_jsonl,
    write_tokenizer,
)
from tests.shared.models import word_level

TEXTS = documents(60, seed=1)
TEXTS[30:30] = TEXTS[:10]  # duplicates after some shards


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def small_slices():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "SLICE_BYTES", 100)
        patch.setattr(slices, "SLICE_CHARACTERS", 500)
        yield


@pytest.fixture
def expected(corpus, tokenizer, tmp_path):
    """The bytes of a build that nothing interrupts."""
    build_quick(corpus, tokenizer, tmp_path / "whole", shard_tokens=500)
    return contents(tmp_path / "whole")


@contextmanager
def interrupt(owner, name, call, *, after=False, error=KilledError):
    """Let a build fail at the n-th call of a function, before or after the call does its work."""
    function = getattr(owner, name)
    numbers = itertools.count(1)

    def interrupted(*arguments, **others):
        number = next(numbers)  # one for each call: shards are sorted in several threads
        if number == call and not after:
            raise error
        result = function(*arguments, **others)
        if number == call:
            raise error
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        yield


PLACES = [
    (slices, "content_digest", 55, False),
    (shard_tokens.ShardTokens, "_write", 30, False),
    (shard_tokens.ShardTokens, "_complete", 3, False),
    (shard_tokens.ShardTokens, "_complete", 3, True),
    (shard_sorter, "write_suffixes", 4, False),
    (shard_sorter, "write_suffixes", 4, True),
    (builder, "_manifest", 1, False),
    (builder.Staging, "write", 2, True),
    (builder.Staging, "put_in_place", 1, False),
]


@pytest.mark.parametrize(("owner", "name", "call", "after"), PLACES)
def test_a_build_resumes_to_the_same_bytes(
    corpus, tokenizer, out, expected, owner, name, call, after
):
    with interrupt(owner, name, call, after=after), pytest.raises(KilledError):
        build_quick(corpus, tokenizer, out, shard_tokens=500)
    assert not out.exists()
    shards = finished_shards(out)
    assert shards >= 2
    summary = build_quick(corpus, tokenizer, out, shard_tokens=500, resume=True)
    assert contents(out) == expected
    assert leftovers(out) == []
    assert (summary.documents, summary.duplicates, summary.resumed_shards) == (60, 10, shards)


@pytest.mark.parametrize("call", [2, 3, 4, 5])
def test_a_split_document_continues_where_it_was_split(out, tmp_path, call):
    """The interruption comes between two pieces of a document, and after its last one."""
    tokenizer = tmp_path / "words.json"
    tokenizer.write_text(word_level(200).to_str())
    words = [f"w{number}" for number in range(1, 100)]
    texts = ["w1 w2", " ".join(words[:50]), "w3", " ".join(words[50:]), "w4 w5"]
    corpus = write_jsonl(tmp_path / "corpus.jsonl", texts)
    build_quick(corpus, tokenizer, tmp_path / "whole", shard_tokens=17)
    with interrupt(shard_tokens.ShardTokens, "_complete", call), pytest.raises(KilledError):
        build_quick(corpus, tokenizer, out, shard_tokens=17)
    summary = build_quick(corpus, tokenizer, out, shard_tokens=17, resume=True)
    assert contents(out) == contents(tmp_path / "whole")
    assert (summary.documents, summary.split_documents) == (5, 2)
    assert summary.resumed_shards == call - 1
    shown = summary_text(summary)
    assert "(0 exact duplicates dropped, 2 split)" in shown
    assert f"{summary.shards} ({call - 1} resumed)" in shown


def test_a_build_that_cannot_be_put_in_place_goes_on_later(
    corpus, tokenizer, out, expected, monkeypatch
):
    build_quick(write_jsonl(corpus.parent / "old.jsonl", ["old"]), tokenizer, out)
    old = contents(out)

    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(staging, "_exchanged", refuse)
    with pytest.raises(OutputError, match="Input/output error"):
        build_quick(corpus, tokenizer, out, shard_tokens=500)
    monkeypatch.undo()
    assert contents(out) == old
    summary = build_quick(corpus, tokenizer, out, shard_tokens=500, resume=True)
    assert summary.resumed_shards == summary.shards
    assert contents(out) == expected
    assert leftovers(out) == []


def test_what_is_there_is_not_made_again(corpus, tokenizer, out, expected, monkeypatch):
    with interrupt(builder, "_manifest", 1), pytest.raises(KilledError):
        build_quick(corpus, tokenizer, out, shard_tokens=500)

    def refuse(*arguments, **others):
        raise AssertionError("work is done again")

    monkeypatch.setattr(slices, "content_digest", refuse)
    monkeypatch.setattr(TokensWriter, "append", refuse)
    monkeypatch.setattr(shard_sorter, "write_suffixes", refuse)
    build_quick(corpus, tokenizer, out, shard_tokens=500, resume=True)
    assert contents(out) == expected


def test_the_size_of_shards_is_that_of_the_unfinished_build(corpus, tokenizer, out):
    with interrupt(builder, "_manifest", 1), pytest.raises(KilledError):
        build_quick(corpus, tokenizer, out, memory=4 << 30)
    positions = build_quick(corpus, tokenizer, out, resume=True).shard_positions
    assert positions < build_quick(corpus, tokenizer, out).shard_positions


def test_a_build_inside_its_corpus_is_resumed(corpus, tokenizer, tmp_path):
    out = tmp_path / "ds"
    with interrupt(builder, "_manifest", 1), pytest.raises(KilledError):
        build_quick(tmp_path, tokenizer, out)
    assert build_quick(tmp_path, tokenizer, out, resume=True).resumed_shards == 1


def test_incomplete_files_that_kills_left_do_not_pile_up(corpus, tokenizer, out):
    staging = out.with_name(".ds.building")
    with interrupt(builder, "_manifest", 1), pytest.raises(KilledError):
        build_quick(corpus, tokenizer, out)
    for name in (
        ".plan.json.1.tmp",
        "slices/.0000.1.tmp",
        "datastore/.shard-00000.tokens.1.tmp",
    ):
        (staging / name).write_text("")
    with interrupt(builder, "_manifest", 1), pytest.raises(KilledError):
        build_quick(corpus, tokenizer, out)
    assert finished_shards(out) == 1
    assert list(staging.rglob("*.tmp")) == []


# --- Refusals -------------------------------------------------------------------------------------


@pytest.fixture
def interrupted(corpus, tokenizer, out, expected):
    """The options of a build that was interrupted after two shards."""
    build_options = options(corpus, tokenizer, out, shard_tokens=500)
    with interrupt(shard_tokens.ShardTokens, "_complete", 3), pytest.raises(KilledError):
        build(build_options)
    return replace(build_options, resume=True)


def refuse(build_options, message):
    """Require that resuming is refused, and is possible afterwards with the right options."""
    with pytest.raises(ResumeError, match=message):
        build(build_options)
    assert finished_shards(build_options.out) == 2
    assert not build_options.out.exists()


def test_other_options_are_refused_by_name(interrupted, expected):
    refuse(
        replace(interrupted, shard_tokens=600),
        "ds: shard_tokens is 600, expected 500, as in the unfinished build",
    )
    refuse(replace(interrupted, shard_tokens=None), "ds: shard_tokens is not set, expected 500")
    refuse(
        replace(interrupted, chat_template="{{ 1 }}"),
        "ds: chat template is sha256:.*, expected not set",
    )
    (spec,) = interrupted.corpora
    other = CorpusSpec(spec.path, max_documents=50)
    refuse(
        replace(interrupted, corpora=(other,)),
        r"corpora is path=.*max_documents=50, expected path=.*jsonl, as in",
    )
    build(interrupted)
    assert contents(interrupted.out) == expected


def test_another_tokenizer_is_refused(interrupted, tokenizer, expected):
    before = tokenizer.read_text()
    write_tokenizer(tokenizer, vocab_size=301)
    refuse(
        interrupted,
        "ds: tokenizer content is [0-9a-f]{64}, expected [0-9a-f]{64}, as in the unfinished build",
    )
    tokenizer.write_text(before)
    build(interrupted)
    assert contents(interrupted.out) == expected


def test_another_release_is_refused(interrupted, monkeypatch):
    monkeypatch.setattr(build_plan, "__version__", "9.9.9")
    refuse(interrupted, r"ds: program is rest-store 9\.9\.9, expected rest-store \d")


def test_a_changed_corpus_is_refused(interrupted, corpus):
    write_jsonl(corpus, ["other", *TEXTS[1:]])
    refuse(
        interrupted,
        r"ds: corpus files is cut=1 files=1 sha256=\w+, expected cut=1 files=1 sha256=\w+, as in",
    )


def test_a_damaged_shard_is_refused(interrupted):
    tokens = interrupted.out.parent / ".ds.building" / "datastore" / "shard-00001.tokens"
    before = tokens.read_bytes()
    tokens.write_bytes(before[:-1])
    refuse(
        interrupted,
        r"unfinished build is damaged \(.*: size is [0-9]+ bytes, expected .*\); build without"
        r" --resume",
    )
    other = tokens.with_name("shard-00000.tokens").read_bytes()
    assert len(other) != len(before)
    tokens.write_bytes(other)
    refuse(
        interrupted,
        r"shard-00001\.tokens: the number of positions is \d+, expected \d+; or build without"
        r" --resume",
    )
    (tokens.parent / "shard-00001.suffixes").unlink()
    tokens.write_bytes(before[:300] + bytes([before[300] ^ 1]) + before[301:])
    with pytest.raises(
        ResumeError, match=r"unfinished build is damaged \(.*: SHA-256 of the payload is "
    ):
        build(interrupted)


# --- Without `resume` -----------------------------------------------------------------------------


def test_the_same_build_goes_on_with_what_is_there(interrupted, expected, tmp_path):
    assert build(replace(interrupted, resume=False)).resumed_shards == 2
    assert contents(interrupted.out) == expected


def test_other_free_memory_changes_nothing_as_long_as_the_shards_fit(
    corpus, tokenizer, out, monkeypatch
):
    summaries = []
    for free in (64 << 30, 4 << 30):
        monkeypatch.setattr(builder, "available_bytes", lambda: 16 << 30)
        with interrupt(builder, "_manifest", 1), pytest.raises(KilledError):
            build_quick(corpus, tokenizer, out, memory=None)
        monkeypatch.setattr(builder, "available_bytes", lambda free=free: free)
        summaries.append(build_quick(corpus, tokenizer, out, memory=None))
    assert [summary.resumed_shards for summary in summaries] == [1, 0]
    assert summaries[0].shard_positions > summaries[1].shard_positions


def test_another_build_begins_anew(interrupted, tokenizer, tmp_path):
    summary = build(replace(interrupted, resume=False, shard_tokens=None))
    assert (summary.shards, summary.resumed_shards) == (1, 0)
    assert leftovers(interrupted.out) == []


def test_a_damaged_build_begins_anew(interrupted, expected):
    tokens = interrupted.out.parent / ".ds.building" / "datastore" / "shard-00001.tokens"
    tokens.write_bytes(tokens.read_bytes()[:-1])
    build(replace(interrupted, resume=False))
    assert contents(interrupted.out) == expected


def test_an_export_takes_the_place_of_an_unfinished_build(interrupted, tokenizer, tmp_path):
    with LiveDatastore.open(
        tmp_path / "live", tokenizer=load_tokenizer(tokenizer).identity
    ) as live:
        live.add([[1, 2, 3]])
        assert export(live, interrupted.out).info().document_count == 1
    assert leftovers(interrupted.out) == []


# --- Failures -------------------------------------------------------------------------------------


def test_a_corpus_that_has_to_be_repaired_costs_nothing_of_the_others(
    tokenizer, out, tmp_path, monkeypatch
):
    good = write_jsonl(tmp_path / "good.jsonl", TEXTS)
    last = write_jsonl(tmp_path / "last.jsonl", documents(9, seed=2))
    whole = last.read_text()
    build_quick([good, last], tokenizer, tmp_path / "whole", shard_tokens=500)
    last.write_text(whole + "{not JSON\n")
    with pytest.raises(CorpusError, match=r"last\.jsonl:10: content is not JSON"):
        build_quick([good, last], tokenizer, out, shard_tokens=500)
    shards = finished_shards(out)
    assert shards > 2
    last.write_text(whole)
    tokenized = []
    sorted_ones = []
    digest = slices.content_digest
    sort = shard_sorter.sorted_suffixes
    monkeypatch.setattr(
        slices,
        "content_digest",
        lambda document: tokenized.append(document.origin) or digest(document),
    )
    monkeypatch.setattr(
        shard_sorter, "sorted_suffixes", lambda *data: sorted_ones.append(1) or sort(*data)
    )
    build_quick([good, last], tokenizer, out, shard_tokens=500)
    assert contents(out) == contents(tmp_path / "whole")
    assert {origin.rpartition(":")[0] for origin in tokenized} == {str(last)}
    assert len(sorted_ones) < len(list(out.glob("*.suffixes"))) - 2, (
        "suffixes of the same tokens are used again"
    )


def test_corpora_that_change_their_places_keep_what_was_made_of_them(
    tokenizer, out, tmp_path, monkeypatch
):
    """The new build leaves one corpus out and reads another one first."""
    first, second, third = (
        write_jsonl(tmp_path / f"{name}.jsonl", documents(20, seed=name)) for name in (3, 4, 5)
    )
    build_quick([third, second], tokenizer, tmp_path / "whole", shard_tokens=500)
    with interrupt(builder, "_manifest", 1), pytest.raises(KilledError):
        build_quick([first, second, third], tokenizer, out, shard_tokens=500)
    monkeypatch.setattr(slices, "content_digest", None)  # nothing is tokenized
    build_quick([third, second], tokenizer, out, shard_tokens=500)
    assert contents(out) == contents(tmp_path / "whole")
    assert leftovers(out) == []


def test_other_options_of_a_corpus_keep_nothing_of_it(tokenizer, out, tmp_path):
    corpus = tmp_path / "a.jsonl"
    corpus.write_text('{"text": "x", "other": "y"}\n')
    with interrupt(builder, "_manifest", 1), pytest.raises(KilledError):
        build_quick(corpus, tokenizer, out)
    build(
        replace(options(corpus, tokenizer, out), corpora=(CorpusSpec(str(corpus), field="other"),))
    )
    assert stored_documents(out) == [load_tokenizer(tokenizer).encode_batch(["y"])[0].tolist()]


@pytest.mark.parametrize(
    ("owner", "name", "min_shards"),
    [
        (slices, "content_digest", 0),
        (TokensWriter, "append", 0),
        (TokensWriter, "close", 3),
        (shard_sorter, "write_suffixes", 4),
    ],
)
def test_a_disk_that_fills_up_is_one_clear_error(
    corpus, tokenizer, out, expected, owner, name, min_shards
):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    build_quick(corpus, tokenizer, out)
    old = contents(out)
    message = r"the datastore cannot be written \(No space left on device\)"
    with interrupt(owner, name, 4, error=full), pytest.raises(OutputError, match=message):
        build_quick(corpus, tokenizer, out, shard_tokens=500)
    assert contents(out) == old
    assert finished_shards(out) >= min_shards
    build_quick(corpus, tokenizer, out, shard_tokens=500, resume=finished_shards(out) > 0)
    assert contents(out) == expected
