"""Interrupted builds: what is kept, what `resume` makes of it, and when it refuses."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import subprocess
import threading
from dataclasses import replace

import pytest

from build_index import build_plan, builder, document_stream, pipeline, shard_sorter, shard_tokens
from build_index.builder import build
from build_index.corpus_spec import CorpusSpec
from build_index.merge import merge
from build_index.staging import kept_shards
from build_index.tokenization import load_tokenizer
from rest_store.datastore.shard import TokensWriter
from rest_store.errors import CorpusError, MemoryBudgetError, OutputError, ResumeError
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
def small_batches(monkeypatch):
    monkeypatch.setattr(document_stream, "BATCH_DOCUMENTS", 4)


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "in").mkdir()
    return write_jsonl(tmp_path / "in" / "corpus.jsonl", TEXTS)


@pytest.fixture
def expected(corpus, tokenizer, tmp_path):
    """The bytes of a build that nothing interrupts."""
    build_quick(corpus, tokenizer, tmp_path / "whole", shard_tokens=500)
    return contents(tmp_path / "whole")


def interrupt(monkeypatch, owner, name, call, *, after=False, error=KilledError):
    """Let a build end with an error at the n-th call of a function, before or after it does its work."""
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

    monkeypatch.setattr(owner, name, interrupted)


PLACES = [
    (shard_tokens.ShardTokens, "write", 30, False),
    (shard_tokens.ShardTokens, "complete_shard", 3, False),
    (shard_tokens.ShardTokens, "complete_shard", 3, True),
    (pipeline.Pipeline, "sort", 3, True),
    (pipeline.Pipeline, "record_suffixes", 3, False),
    (pipeline.Pipeline, "record_suffixes", 3, True),
    (shard_sorter, "write_suffixes", 4, False),
    (shard_sorter, "write_suffixes", 4, True),
    (builder.Build, "complete", 1, False),
    (builder.Staging, "write", 2, True),
    (builder.Build, "put_in_place", 1, False),
    (builder.Staging, "put_in_place", 1, False),
]


@pytest.mark.parametrize(("owner", "name", "call", "after"), PLACES)
def test_a_build_resumes_to_the_same_bytes(corpus, tokenizer, out, expected, monkeypatch, owner, name, call, after):
    interrupt(monkeypatch, owner, name, call, after=after)
    with pytest.raises(KilledError):
        build_quick(corpus, tokenizer, out, shard_tokens=500)
    monkeypatch.undo()
    assert not out.exists()
    kept = kept_shards(out)
    assert kept >= 2
    tokenized = []
    encode = pipeline.TargetTokenizer.encode_documents

    def counting(self, batch):
        tokenized.extend(batch)
        return encode(self, batch)

    monkeypatch.setattr(pipeline.TargetTokenizer, "encode_documents", counting)
    summary = build_quick(corpus, tokenizer, out, shard_tokens=500, resume=True)
    assert contents(out) == expected
    assert leftovers(out) == []
    assert (summary.documents, summary.duplicates) == (60, 10)
    if owner not in (builder.Staging, builder.Build) or name == "write":
        assert summary.resumed_shards == kept
    assert len(tokenized) < 60 - kept, "what is in complete shards is not tokenized again"


def test_a_build_can_be_interrupted_again_and_again(corpus, tokenizer, out, expected, monkeypatch):
    for number in range(1, 5):
        interrupt(monkeypatch, shard_tokens.ShardTokens, "complete_shard", 3, after=False)
        with pytest.raises(KilledError):
            build_quick(corpus, tokenizer, out, shard_tokens=500, resume=number > 1)
        monkeypatch.undo()
        assert kept_shards(out) == 2 * number
    assert build_quick(corpus, tokenizer, out, shard_tokens=500, resume=True).resumed_shards == 8
    assert contents(out) == expected


def test_without_resume_finished_shards_are_not_removed(corpus, tokenizer, out, expected, monkeypatch, tmp_path):
    """By a build, a merge or an export: they may have taken hours."""
    interrupt(monkeypatch, shard_tokens.ShardTokens, "complete_shard", 3)
    with pytest.raises(KilledError):
        build_quick(corpus, tokenizer, out, shard_tokens=500)
    monkeypatch.undo()
    building = out.parent / ".ds.building"
    kept = contents(building)
    refused = f"{out}: unfinished build is present, with 2 finished shards, expected none: continue it with --resume"
    refused = re.escape(f"{refused}, or remove {building}")
    for size in (500, 400):
        with pytest.raises(ResumeError, match=refused):
            build_quick(corpus, tokenizer, out, shard_tokens=size)
    others = [tmp_path / "one", tmp_path / "two"]
    for place, number in zip(others, (3, 4), strict=True):
        build_quick(write_jsonl(tmp_path / f"{number}.jsonl", documents(number)), tokenizer, place)
    with pytest.raises(ResumeError, match=refused):
        merge(others, out)
    with LiveDatastore.open(tmp_path / "live", tokenizer=load_tokenizer(tokenizer).identity) as live:
        live.add([[1, 2, 3]])
        with pytest.raises(ResumeError, match=refused):
            export(live, out)
    assert contents(building) == kept
    shutil.rmtree(building)
    assert build_quick(corpus, tokenizer, out, shard_tokens=500).resumed_shards == 0
    assert contents(out) == expected
    assert leftovers(out) == []


@pytest.mark.parametrize("call", range(2, 9))
def test_a_split_document_continues_where_it_was_split(out, tmp_path, monkeypatch, call):
    (tmp_path / "tokenizer.json").write_text(word_level(200).to_str())
    words = [f"w{number}" for number in range(1, 100)]
    texts = ["w1 w2", " ".join(words[:50]), "w3", " ".join(words[50:]), "w4 w5"]
    corpus = write_jsonl(tmp_path / "corpus.jsonl", texts)
    build_quick(corpus, tmp_path / "tokenizer.json", tmp_path / "whole", shard_tokens=17)
    interrupt(monkeypatch, shard_tokens.ShardTokens, "complete_shard", call)
    with pytest.raises(KilledError):
        build_quick(corpus, tmp_path / "tokenizer.json", out, shard_tokens=17)
    monkeypatch.undo()
    summary = build_quick(corpus, tmp_path / "tokenizer.json", out, shard_tokens=17, resume=True)
    assert contents(out) == contents(tmp_path / "whole")
    assert (summary.documents, summary.split_documents, summary.resumed_shards) == (5, 2, call - 1)


def test_the_size_of_shards_stays_when_the_memory_does_not(corpus, tokenizer, out, tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "plan_memory", lambda *_: builder.MemoryPlan(1, 1, 1, 500, 1))
    build_quick(corpus, tokenizer, tmp_path / "whole")
    interrupt(monkeypatch, shard_tokens.ShardTokens, "complete_shard", 3)
    with pytest.raises(KilledError):
        build_quick(corpus, tokenizer, out)
    monkeypatch.undo()
    with pytest.raises(MemoryBudgetError, match="for shards of 500 tokens"):
        build_quick(corpus, tokenizer, out, memory=1 << 20, resume=True)
    assert build_quick(corpus, tokenizer, out, resume=True).resumed_shards == 2
    assert contents(out) == contents(tmp_path / "whole")


# --- What is refused -------------------------------------------------------------------------------------------------


@pytest.fixture
def interrupted(corpus, tokenizer, out, expected, monkeypatch):
    """The options of a build that was interrupted after two shards."""
    interrupt(monkeypatch, shard_tokens.ShardTokens, "complete_shard", 3)
    build_options = options(corpus, tokenizer, out, shard_tokens=500)
    with pytest.raises(KilledError):
        build(build_options)
    monkeypatch.undo()
    return replace(build_options, resume=True)


def refuse(build_options, message):
    """Resuming is refused with a message, and is still possible afterwards with the right options."""
    with pytest.raises(ResumeError, match=message):
        build(build_options)
    assert kept_shards(build_options.out) == 2
    assert not build_options.out.exists()


def test_nothing_to_resume(corpus, tokenizer, out):
    with pytest.raises(ResumeError, match="ds: unfinished build is absent, expected one that was interrupted"):
        build_quick(corpus, tokenizer, out, resume=True)
    assert leftovers(out) == []


@pytest.mark.parametrize("journal", [b"", b"\n", b"\0" * 4096, b'{"plan": {"program"', b'["plan"]\n', b'{"plan": 1}\n'])
def test_a_journal_that_a_kill_left_empty_or_damaged(interrupted, corpus, tokenizer, expected, journal):
    out = interrupted.out
    (out.parent / ".ds.building" / "journal.jsonl").write_bytes(journal)
    with pytest.raises(ResumeError, match="ds: unfinished build is absent, expected one that was interrupted"):
        build(interrupted)
    assert leftovers(out) == []
    build_quick(corpus, tokenizer, out, shard_tokens=500)
    assert contents(out) == expected


def test_other_options_are_refused_by_name(interrupted, tmp_path, expected):
    refuse(replace(interrupted, shard_tokens=600), "ds: shard_tokens is 600, expected 500, as in the unfinished build")
    refuse(replace(interrupted, shard_tokens=None), "ds: shard_tokens is not set, expected 500")
    refuse(replace(interrupted, keep_duplicates=True), "ds: keep_duplicates is True, expected False")
    refuse(replace(interrupted, chat_template="{{ 1 }}"), "ds: chat template is sha256:.*, expected not set")
    (spec,) = interrupted.corpora
    other = CorpusSpec(spec.path, max_documents=50)
    refuse(replace(interrupted, corpora=(other,)), r"corpora is path=.*max_documents=50, expected path=.*jsonl, as in")
    build(interrupted)
    assert contents(interrupted.out) == expected


def test_another_tokenizer_is_refused(interrupted, tokenizer, expected):
    before = tokenizer.read_text()
    write_tokenizer(tokenizer, vocab_size=301)
    refuse(interrupted, "ds: tokenizer content is [0-9a-f]{64}, expected [0-9a-f]{64}, as in the unfinished build")
    tokenizer.write_text(before)
    build(interrupted)
    assert contents(interrupted.out) == expected


def test_another_release_is_refused(interrupted, monkeypatch):
    monkeypatch.setattr(build_plan.rest_store, "__version__", "9.9.9")
    refuse(interrupted, r"ds: program is rest-store 9\.9\.9, expected rest-store \d")


def test_a_changed_corpus_is_refused(interrupted, corpus, expected):
    message = "corpus is different in its first [0-9]+ documents, expected one that begins with the [0-9]+ documents"
    for changed in (["other", *TEXTS[1:]], TEXTS[1:], ["more", *TEXTS]):
        write_jsonl(corpus, changed)
        refuse(interrupted, message)
    write_jsonl(corpus, TEXTS[:5])
    refuse(interrupted, "corpus is 5 documents long, expected one that begins with the [0-9]+ documents")
    write_jsonl(corpus, TEXTS)
    build(interrupted)
    assert contents(interrupted.out) == expected


def test_a_damaged_shard_is_refused(interrupted):
    directory = interrupted.out.parent / ".ds.building" / "datastore"
    suffixes = directory / "shard-00000.suffixes"
    tokens = directory / "shard-00001.tokens"
    for path in (suffixes, tokens):
        before = path.read_bytes()
        path.write_bytes(before[:-1])
        refuse(interrupted, r"unfinished build is damaged \(.*: size is [0-9]+ bytes, expected .*\), expected intact")
        path.unlink()
        refuse(interrupted, r"damaged \(.*: file is absent")
        path.write_bytes(before)
    other = build_quick(interrupted.corpora[0].path, interrupted.tokenizer, interrupted.out.parent / "x").out
    assert other.endswith("x")
    tokens.write_bytes((interrupted.out.parent / "x" / "shard-00000.tokens").read_bytes())
    refuse(interrupted, r"damaged \(.*shard-00001.*checksum")


def test_a_complete_build_that_lost_its_files_is_refused(corpus, tokenizer, out, monkeypatch):
    interrupt(monkeypatch, builder.Staging, "put_in_place", 1)
    with pytest.raises(KilledError):
        build_quick(corpus, tokenizer, out)
    monkeypatch.undo()
    (out.parent / ".ds.building" / "datastore" / "manifest.json").unlink()
    with pytest.raises(ResumeError, match="unfinished build is incomplete, expected complete, as in its journal"):
        build_quick(corpus, tokenizer, out, resume=True)


def test_a_build_that_was_put_in_place_is_found_to_be_done(corpus, tokenizer, out, expected, monkeypatch):
    interrupt(monkeypatch, builder.Staging, "discard", 1)
    with pytest.raises(KilledError):
        build_quick(corpus, tokenizer, out, shard_tokens=500)
    monkeypatch.undo()
    assert contents(out) == expected
    assert leftovers(out) == [".ds.building"]
    summary = build_quick(corpus, tokenizer, out, shard_tokens=500, resume=True)
    assert summary.documents == 60
    assert contents(out) == expected
    assert leftovers(out) == []


# --- Failures --------------------------------------------------------------------------------------------------------


def test_a_build_resumes_after_its_corpus_is_repaired(corpus, tokenizer, out, expected):
    good = corpus.read_text()
    corpus.write_text("".join(good.splitlines(keepends=True)[:50]) + "{not JSON\n")
    with pytest.raises(CorpusError, match=r"corpus\.jsonl:51: line is not JSON"):
        build_quick(corpus, tokenizer, out, shard_tokens=500)
    assert kept_shards(out) > 2
    names = {name for name in contents(out.parent / ".ds.building") if name.endswith("tokens")}
    assert len(names) == kept_shards(out), "the unfinished shard is removed"
    corpus.write_text(good)
    build_quick(corpus, tokenizer, out, shard_tokens=500, resume=True)
    assert contents(out) == expected


@pytest.mark.parametrize(
    ("owner", "name", "kept"),
    [(TokensWriter, "append", 0), (TokensWriter, "close", 3), (shard_sorter, "write_suffixes", 4)],
)
def test_a_disk_that_fills_up_is_one_clear_error(corpus, tokenizer, out, expected, monkeypatch, owner, name, kept):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    build_quick(corpus, tokenizer, out)
    old = contents(out)
    interrupt(monkeypatch, owner, name, 1, error=full)
    with pytest.raises(OutputError, match=r"the datastore cannot be written \(No space left on device\)"):
        build_quick(corpus, tokenizer, out, shard_tokens=500)
    assert contents(out) == old
    if name != "write_suffixes":
        assert leftovers(out) == []
    monkeypatch.undo()
    interrupt(monkeypatch, owner, name, 4, error=full)
    with pytest.raises(OutputError, match="No space left on device"):
        build_quick(corpus, tokenizer, out, shard_tokens=500, resume=kept_shards(out) > 0)
    assert contents(out) == old
    assert kept_shards(out) >= kept
    monkeypatch.undo()
    build_quick(corpus, tokenizer, out, shard_tokens=500, resume=kept_shards(out) > 0)
    assert contents(out) == expected


@pytest.mark.parametrize("kib", [8, 16, 24, 32, 48, 64, 96, 128])
def test_a_file_system_that_is_really_full(corpus, tokenizer, tmp_path, expected, kib):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.raises(OutputError, match="No space left on device"):
            build_quick(corpus, tokenizer, disk / "ds", shard_tokens=500)
        assert not (disk / "ds").exists()
        assert leftovers(disk / "ds") == ([".ds.building"] if kept_shards(disk / "ds") else [])
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        build_quick(corpus, tokenizer, disk / "ds", shard_tokens=500, resume=kept_shards(disk / "ds") > 0)
        assert contents(disk / "ds") == expected
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_an_interrupt_does_not_wait_for_the_shard_at_work(corpus, tokenizer, out, expected, monkeypatch):
    hold, sort = threading.Event(), shard_sorter.ShardSorter.sort
    threads = []

    def held(self, name, positions):
        threads.append(threading.current_thread())
        assert hold.wait(timeout=60)
        sort(self, name, positions)

    monkeypatch.setattr(shard_sorter.ShardSorter, "sort", held)
    interrupt(monkeypatch, pipeline.Pipeline, "sort", 1, after=True, error=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        build_quick(corpus, tokenizer, out, shard_tokens=500)
    (thread,) = threads
    assert thread.is_alive()
    hold.set()
    thread.join()
    assert kept_shards(out) == 1
    assert not (out.parent / ".ds.building" / "datastore" / "shard-00000.suffixes").exists(), "it came to nothing"
    monkeypatch.undo()
    assert build_quick(corpus, tokenizer, out, shard_tokens=500, resume=True).resumed_shards == 1
    assert contents(out) == expected
    assert len(stored_documents(out)) == 60
