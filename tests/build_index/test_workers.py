"""Builds by several workers: the same bytes whatever happens to them."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from build_index import builder, document_stream, encoder, tasks, worker_choice, workers
from build_index.builder import BuildOptions, build
from build_index.corpus_spec import CorpusSpec
from build_index.memory import MIB, WORKER_BYTES, MemoryPlan, plan_memory
from build_index.staging import building_place, kept_shards
from build_index.tasks import TaskRunner
from rest_store.errors import CorpusFormatError, ResumeError, WorkerError
from tests.shared.builds import command, contents, documents, leftovers, write_jsonl
from tests.shared.live import until
from tests.shared.models import CHATML

TEXTS = documents(120, seed=5)


class Workers:
    """Workers in this process: each task is done when it is submitted, by what was pickled."""

    sort = None

    def __init__(self, setup, count):
        self.count = count
        self.runner = TaskRunner(workers.pickle.loads(workers.pickle.dumps(setup)))
        self.done = []

    def submit(self, task):
        future = Future()
        self.done.append(workers.pickle.loads(workers.pickle.dumps(task)))
        future.set_result(workers.pickle.loads(workers.pickle.dumps(self.runner.run(self.done[-1]))))
        return future

    def peak_memory(self):
        return 1

    def close(self):
        pass


@pytest.fixture
def many_tasks(monkeypatch):
    """Small corpora, too, are divided among workers, in many tasks and batches."""
    monkeypatch.setattr(worker_choice, "_SHARE", 1)
    monkeypatch.setattr(worker_choice, "_ACCELERATED_SHARE", 1)
    monkeypatch.setattr(document_stream, "TASK_BYTES", 3000)
    monkeypatch.setattr(document_stream, "BATCH_DOCUMENTS", 5)
    monkeypatch.setattr(tasks, "BATCH_DOCUMENTS", 3)


@pytest.fixture
def here(monkeypatch, many_tasks):
    """The workers of the builds, which are in this process."""
    started = []

    def start(setup, count):
        started.append(Workers(setup, count))
        return started[-1]

    monkeypatch.setattr(worker_choice, "ProcessWorkers", start)
    return started


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Corpora of every kind, with duplicates within and across, and files that are skipped."""
    top = tmp_path_factory.mktemp("corpora")
    tree = top / "tree"
    (tree / "deep").mkdir(parents=True)
    for number, text in enumerate(TEXTS[:40]):
        (tree / f"{number:02}.txt").write_text(text)
    (tree / "deep" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[30:60]))
    (tree / "deep" / "b.json.gz").write_bytes(gzip.compress(json.dumps([{"text": text} for text in TEXTS]).encode()))
    (tree / "deep" / "c.txt.zst").write_bytes(zstandard.compress(TEXTS[70].encode()))
    (tree / "deep" / "binary").write_bytes(b"\0\1")
    (tree / "deep" / "empty.py").write_text("\n")
    (tree / "deep" / "z.txt").write_bytes(b"\xff not UTF-8")
    pq.write_table(pa.table({"content": TEXTS[50:100]}), tree / "deep" / "d.parquet", row_group_size=7)
    pq.write_table(pa.table({"other": [1]}), tree / "deep" / "e.parquet")
    write_jsonl(top / "one.jsonl", [*TEXTS[60:], "", *TEXTS[:5]])
    turns = [{"role": "user", "content": text} for text in TEXTS[:6]]
    (top / "chats.jsonl").write_text("".join(json.dumps({"messages": [turn]}) + "\n" for turn in turns))
    (top / "list.json").write_text(json.dumps([{"text": text} for text in [*TEXTS[100:], "the last", "of all"]]))
    pq.write_table(pa.table({"content": ["only here", *TEXTS[:20]]}), top / "table.parquet")
    return (
        CorpusSpec(str(tree)),
        CorpusSpec(str(tree), include=("*.txt",), reader="text", exclude=("z.txt",)),
        *(CorpusSpec(str(top / name)) for name in ("one.jsonl", "chats.jsonl", "list.json", "table.parquet")),
        CorpusSpec(str(top / "one.jsonl"), max_documents=7),
    )


def options_of(corpora, tokenizer, out, **others):
    return BuildOptions(
        corpora, str(tokenizer), out, **{"memory": 1 << 40, "shard_tokens": 700, "chat_template": CHATML, **others}
    )


@pytest.fixture(scope="module")
def expected(corpora, tokenizer, tmp_path_factory):
    """What one process makes of them."""
    out = tmp_path_factory.mktemp("expected") / "ds"
    summary = build(options_of(corpora, tokenizer, out, workers=1))
    assert summary.workers == 1
    assert summary.shards > 8
    return contents(out)


# --- The same bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 4])
def test_worker_processes_make_the_same_bytes(corpora, tokenizer, out, expected, many_tasks, count):
    summary = build(options_of(corpora, tokenizer, out, workers=count))
    assert contents(out) == expected
    assert leftovers(out) == []
    assert summary.workers == count
    assert summary.peak_memory > (count + 1) * 30 * MIB, "that of all processes"


@pytest.mark.parametrize("count", [2, 7])
@pytest.mark.parametrize("task_bytes", [1, 1 << 20])
def test_neither_tasks_nor_batches_change_a_byte(
    corpora, tokenizer, out, expected, here, monkeypatch, count, task_bytes
):
    monkeypatch.setattr(document_stream, "TASK_BYTES", task_bytes)
    summary = build(options_of(corpora, tokenizer, out, workers=count))
    assert contents(out) == expected
    assert {type(task).__name__ for task in here[0].done} == {"ReadTask", "EncodeTask"}
    assert summary.skipped == {"binary": 1, "empty": 2, "not UTF-8": 1, "table without a known column": 1}


def test_duplicates_that_are_stored_are_not_tokenized(corpora, tokenizer, out, here, monkeypatch):
    encoded = []
    encode = encoder.Encoder.encode

    def counting(self, texts):
        encoded.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(encoder.Encoder, "encode", counting)
    monkeypatch.setattr(document_stream, "TASK_BYTES", 1)
    twice = (corpora[1], corpora[1])
    build(options_of(twice, tokenizer, out, workers=2))
    assert 40 <= len(encoded) <= 48, "besides those that are stored only while four tasks a worker are done"
    encoded.clear()
    build(options_of(twice, tokenizer, out, workers=2, keep_duplicates=True))
    assert len(encoded) == 80


# --- Resuming --------------------------------------------------------------------------------------------------------


class KilledError(Exception):
    """Stands for the end of the process."""


def interrupt(monkeypatch, shard):
    """Let a build end when it records this shard."""
    sort = builder.Pipeline.sort

    def ending(self, record):
        if record.name == f"shard-{shard:05}" and record not in self._state.tokens:
            raise KilledError
        sort(self, record)

    monkeypatch.setattr(builder.Pipeline, "sort", ending)


def interrupted(options, shard):
    """Build until this shard is to be recorded."""
    with pytest.MonkeyPatch.context() as patch:
        interrupt(patch, shard)
        with pytest.raises(KilledError):
            build(options)
    assert kept_shards(options.out) == shard


@pytest.mark.parametrize("counts", [(1, 2, 5), (3, 1, 2), (4, 2, 1)])
def test_a_build_resumes_with_other_workers(corpora, tokenizer, out, expected, here, counts):
    first, second, third = (options_of(corpora, tokenizer, out, workers=count) for count in counts)
    interrupted(first, 2)
    assert leftovers(out) == [".ds.building"]
    assert sorted(path.name for path in (out.parent / ".ds.building").iterdir()) == ["datastore", "journal.jsonl"]
    interrupted(replace(second, resume=True), 5)
    assert build(replace(third, resume=True)).resumed_shards == 5
    assert contents(out) == expected


@pytest.mark.parametrize("shard", [1, 3, 4, 8])
def test_what_is_in_complete_shards_is_not_tokenized_again(corpora, tokenizer, out, expected, here, shard):
    options = options_of(corpora, tokenizer, out, workers=3)
    interrupted(options, shard)
    assert all(task.stored == 0 for task in here[-1].done)
    build(replace(options, resume=True))
    assert contents(out) == expected
    stored = [task.stored for task in here[-1].done]
    assert stored[0] == tasks.ALL
    assert stored == sorted(stored, reverse=True), "all, then a part, then nothing"


def test_a_changed_corpus_is_refused(tokenizer, out, tmp_path, here):
    path = write_jsonl(tmp_path / "corpus.jsonl", TEXTS)
    options = options_of((CorpusSpec(str(path)),), tokenizer, out, workers=2)
    interrupted(options, 2)
    write_jsonl(path, ["other", *TEXTS[1:]])
    with pytest.raises(ResumeError, match=r"corpus is different in its first [0-9]+ documents"):
        build(replace(options, resume=True))
    write_jsonl(path, TEXTS[:3])
    with pytest.raises(ResumeError, match=r"corpus is 3 documents long"):
        build(replace(options, resume=True))


# --- Errors ----------------------------------------------------------------------------------------------------------


def test_an_error_in_a_worker_is_that_of_one_process(tokenizer, out, tmp_path, many_tasks):
    tree = tmp_path / "tree"
    tree.mkdir()
    for number, text in enumerate(TEXTS):
        (tree / f"{number:03}.txt").write_text(text)
    bad = write_jsonl(tree / "099 bad.jsonl", TEXTS[:9])
    bad.write_text(bad.read_text() + "{not JSON\n")
    messages, kept = [], []
    for count in (1, 2):
        with pytest.raises(CorpusFormatError) as error:
            build(options_of((CorpusSpec(str(tree)),), tokenizer, out, workers=count))
        messages.append(str(error.value))
        kept.append(kept_shards(out))
        shutil.rmtree(building_place(out))
    assert messages[0] == messages[1]
    assert f"{bad}:10: line is not JSON" in messages[0]
    assert min(kept) > 10, "the documents before it are stored"
    bad.unlink()
    build(options_of((CorpusSpec(str(tree)),), tokenizer, out, workers=1, shard_tokens=500))


def test_a_worker_that_is_killed_costs_its_task(corpora, tokenizer, out, expected, many_tasks, monkeypatch):
    """The first time, the task is done again; a task that ends every process is an error that names its file."""
    run = workers._Process.run
    killed = []

    def killing(self, task):
        if task.where not in killed and len(killed) < 3:
            killed.append(task.where)
            os.kill(self._process.pid, signal.SIGKILL)
        return run(self, task)

    monkeypatch.setattr(workers._Process, "run", killing)
    build(options_of(corpora, tokenizer, out, workers=2))
    assert len(killed) == 3
    assert contents(out) == expected

    def deadly(self, task):
        if isinstance(task, tasks.ReadTask) and task.where.endswith("d.parquet"):
            os.kill(self._process.pid, signal.SIGKILL)
        return run(self, task)

    monkeypatch.setattr(document_stream, "TASK_FILES", 1)
    monkeypatch.setattr(workers._Process, "run", deadly)
    expected_text = r"d\.parquet: the process that reads it ended 2 times, by SIGKILL"
    with pytest.raises(WorkerError, match=expected_text):
        build(options_of(corpora, tokenizer, out, workers=2))
    assert contents(out) == expected, "the old datastore stays"


def test_what_imports_pass_over_in_the_path_of_modules_is_no_error(corpora, tokenizer, out, many_tasks, monkeypatch):
    """A `Path`, as in many notebooks."""
    monkeypatch.setattr(workers.sys, "path", [*workers.sys.path, out.parent])
    assert build(options_of(corpora[:1], tokenizer, out, workers=2)).workers == 2


def test_a_worker_that_cannot_start_is_an_error(corpora, tokenizer, out, many_tasks, monkeypatch):
    monkeypatch.setattr(workers.sys, "executable", "/bin/false")
    with pytest.raises(WorkerError, match="ended 2 times, with status 1"):
        build(options_of(corpora, tokenizer, out, workers=2))
    monkeypatch.setattr(workers.sys, "executable", str(tokenizer.parent / "absent"))
    with pytest.raises(WorkerError, match=r"build: a worker cannot be started \(No such file or directory\)"):
        build(options_of(corpora, tokenizer, out, workers=2))
    assert not out.exists()
    assert leftovers(out) == []


def test_wrong_tokens_in_a_worker_are_found(corpora, tokenizer, out, here, expected, monkeypatch):
    """The build goes on by `tokenizers`, with new workers."""
    encode = encoder.Encoder._encode_fast
    calls = []

    def wrong(self, fast, texts):
        calls.append(texts)
        tokens = encode(self, fast, texts)
        return [ids[::-1] for ids in tokens] if len(calls) == 20 else tokens

    monkeypatch.setattr(encoder.Encoder, "_encode_fast", wrong)
    with pytest.warns(UserWarning, match="other tokens than tokenizers for .*; tokenized by tokenizers from the last"):
        summary = build(options_of(corpora, tokenizer, out, workers=2))
    assert len(here) == 2
    assert [name.split()[0] for name in summary.encoders] == ["fastokens", "tokenizers"]
    assert {name: data for name, data in contents(out).items() if name != "manifest.json"} == {
        name: data for name, data in expected.items() if name != "manifest.json"
    }


# --- Memory ----------------------------------------------------------------------------------------------------------


def test_workers_take_what_the_shards_leave():
    size, budget = 1 << 24, 4 << 30
    alone = plan_memory(budget, 0, 49_152, size)
    fitting = alone.spare // WORKER_BYTES
    assert 2 < fitting < 30
    for wanted in (2, fitting, 100):
        plan = plan_memory(budget, 0, 49_152, size, 100, wanted)
        assert (plan.shard_positions, plan.workers) == (size, min(wanted, fitting))
        assert plan.spare >= 0
        assert 1 <= plan.sorts < plan_memory(budget, 0, 49_152, size, 100).sorts
        assert plan.decoder_bytes == plan.spare // (plan.workers + 1) + 128 * MIB
    assert plan_memory(budget, 0, 49_152, size, 100, 1).workers == 0, "one worker is no help"
    assert plan_memory(budget, 0, 49_152, size, 100, 9, alone.spare).workers == 0
    for budget in range(1 << 30, 9 << 30, 700 << 20):
        assert (
            plan_memory(budget, 0, 49_152, None, 8, 8).shard_positions == plan_memory(budget, 0, 49_152).shard_positions
        )


def test_a_file_that_needs_more_than_a_worker_has_is_read_by_the_build(corpora, tokenizer, out, here, tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for number, text in enumerate(TEXTS):
        (tree / f"{number:03}.txt").write_text(text)
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=28)
    with zstandard.ZstdCompressor(compression_params=parameters).stream_writer((tree / "050a.zst").open("wb")) as file:
        file.write(b"in a large window")
    options = options_of((CorpusSpec(str(tree)),), tokenizer, out, workers=1)
    build(options)
    alone = contents(out)
    for is_read_here in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryPlan, "decoder_bytes", property(lambda plan: (128 if plan.workers else 256) * MIB))
            patch.setattr(
                document_stream.DocumentStream,
                "_is_read_here",
                lambda stream, *_, forced=is_read_here: forced or stream._workers is None,
            )
            with pytest.warns(UserWarning, match=r"window of the zstd file .*; read by one process from the last comp"):
                assert build(replace(options, workers=2)).workers == 1
        assert contents(out) == alone


def test_small_corpora_start_no_workers(corpora, tokenizer, out, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a process was started")

    monkeypatch.setattr(worker_choice, "ProcessWorkers", refuse)
    assert build(options_of(corpora, tokenizer, out, workers=8)).workers == 1


# --- Interrupts ------------------------------------------------------------------------------------------------------

_SIGNAL_AT_TASK = """
import os, signal
from build_index import document_stream, worker_choice
worker_choice._SHARE = worker_choice._ACCELERATED_SHARE = 1
document_stream.TASK_BYTES = 1000
count, next_of = 0, document_stream._Window.next
def signalling(self):
    global count
    count += 1
    if count == 9:
        {signal}
    return next_of(self)
document_stream._Window.next = signalling
"""


def processes_of(session: int) -> list[str]:
    """The processes of a session that have not ended."""
    running = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            running.append(path.parent.name)
    return running


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        ("os.killpg(0, signal.SIGINT)", 130, "Error: interrupted"),  # as Ctrl-C on a terminal does
        ("os.killpg(0, signal.SIGTERM)", 143, "Error: terminated"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    ],
)
def test_workers_end_with_the_build(corpora, tokenizer, out, expected, sent, status, said):
    arguments = ["--corpus", corpora[0].path, "--tokenizer", tokenizer, "--shard-tokens", 700, "--workers", 2]
    build_command = command(*arguments, "--out", out, before=_SIGNAL_AT_TASK.format(signal=sent))
    process = subprocess.Popen(build_command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    _, errors = process.communicate()
    assert process.returncode == status, errors
    assert errors.startswith(said)
    assert len(errors.splitlines()) == bool(said)
    until(lambda: not processes_of(process.pid))
    assert not out.exists()
    assert kept_shards(out) > 0
