"""Builds by several workers: the same bytes whatever happens to them."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import threading
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from build_index import builder, slices, workers
from build_index.builder import BuildOptions, build
from build_index.corpus_spec import CorpusSpec
from build_index.memory_plan import MIB
from build_index.staging import finished_shards
from rest_store.errors import CorpusFormatError, WorkerError
from tests.shared.builds import command, contents, documents, leftovers, run_build, write_jsonl
from tests.shared.corpora import write_files
from tests.shared.live import until
from tests.shared.models import CHATML

TEXTS = documents(120, seed=5)


@pytest.fixture
def many_slices(monkeypatch):
    """Small corpora, too, are divided among workers, in many slices and batches."""
    monkeypatch.setattr(workers, "_SHARE", 1)
    monkeypatch.setattr(slices, "SLICE_BYTES", 3000)
    monkeypatch.setattr(slices, "SLICE_CHARACTERS", 2000)
    monkeypatch.setattr(slices, "_BATCH_DOCUMENTS", 3)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Corpora of every kind, with duplicates within and across, and files that are skipped."""
    top = tmp_path_factory.mktemp("corpora")
    deep = {
        "b.json.gz": gzip.compress(json.dumps([{"text": text} for text in TEXTS]).encode()),
        "c.txt.zst": zstandard.compress(TEXTS[70].encode()),
        **{"binary": b"\0\1", "empty.py": "\n", "z.txt": b"\xff not UTF-8"},
    }
    tree = write_files(
        top / "tree", {f"{number:02}.txt": text for number, text in enumerate(TEXTS[:40])}
    )
    write_jsonl(write_files(tree / "deep", deep) / "a.jsonl", TEXTS[30:60])
    pq.write_table(
        pa.table({"content": TEXTS[50:100]}), tree / "deep" / "d.parquet", row_group_size=7
    )
    pq.write_table(pa.table({"other": [1]}), tree / "deep" / "e.parquet")
    write_jsonl(top / "one.jsonl", [*TEXTS[60:], "", *TEXTS[:5]])
    turns = [{"role": "user", "content": text} for text in TEXTS[:6]]
    (top / "chats.jsonl").write_text(
        "".join(json.dumps({"messages": [turn]}) + "\n" for turn in turns)
    )
    (top / "list.json").write_text(
        json.dumps([{"text": text} for text in [*TEXTS[100:], "the last", "of all"]])
    )
    pq.write_table(pa.table({"content": ["only here", *TEXTS[:20]]}), top / "table.parquet")
    return (
        CorpusSpec(str(tree)),
        CorpusSpec(str(tree), include=("*.txt",), exclude=("z.txt",)),
        *(
            CorpusSpec(str(top / name))
            for name in ("one.jsonl", "chats.jsonl", "list.json", "table.parquet")
        ),
        CorpusSpec(str(top / "one.jsonl"), max_documents=7),
    )


def make_options(corpora, tokenizer, out, **others):
    return BuildOptions(
        corpora,
        str(tokenizer),
        out,
        **{"memory": 1 << 40, "shard_tokens": 700, "chat_template": CHATML, **others},
    )


@pytest.fixture(scope="module")
def expected(corpora, tokenizer, tmp_path_factory):
    """The datastore that one process builds of them."""
    out = tmp_path_factory.mktemp("expected") / "ds"
    summary = build(make_options(corpora, tokenizer, out, workers=1))
    assert summary.workers == 1
    assert summary.shards > 8
    left_out = {"left out by --include": 7}
    assert summary.skipped == {
        "binary": 1,
        "empty": 2,
        **left_out,
        "not UTF-8": 1,
        "table without a known column": 1,
    }
    return contents(out)


# --- The same bytes -------------------------------------------------------------------------------


def test_worker_processes_make_the_same_bytes(corpora, tokenizer, out, expected, many_slices):
    summary = build(make_options(corpora, tokenizer, out, workers=2))
    assert contents(out) == expected
    assert leftovers(out) == []
    assert summary.workers == 2
    assert summary.peak_memory > 3 * 30 * MIB, "that of all processes"


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_neither_slices_nor_batches_change_a_byte(
    corpora, tokenizer, out, expected, many_slices, monkeypatch, size
):
    monkeypatch.setattr(slices, "SLICE_BYTES", size)
    monkeypatch.setattr(slices, "SLICE_CHARACTERS", size)
    build(make_options(corpora, tokenizer, out, workers=1))
    assert contents(out) == expected


def test_a_system_without_affinity_uses_all_cores(corpora, tokenizer, out):
    """macOS is such a system."""
    arguments = ["--corpus", corpora[2].path, "--tokenizer", tokenizer, "--out", out]
    process = run_build(
        *arguments,
        before="import os\nif hasattr(os, 'sched_getaffinity'): del os.sched_getaffinity",
    )
    assert process.returncode == 0, process.stderr


# --- Errors ---------------------------------------------------------------------------------------


def test_an_error_in_a_worker_is_that_of_one_process(tokenizer, tmp_path, many_slices, monkeypatch):
    # A file is read by a worker if it fits into a slice.
    monkeypatch.setattr(slices, "SLICE_BYTES", 1 << 20)
    bad = write_jsonl(tmp_path / "bad.jsonl", TEXTS[:9])
    bad.write_text(bad.read_text() + "{not JSON\n")
    messages = []
    for count in (1, 2):
        out = tmp_path / str(count) / "ds"
        with pytest.raises(CorpusFormatError) as error:
            build(make_options((CorpusSpec(str(bad)),), tokenizer, out, workers=count))
        messages.append(str(error.value))
        assert leftovers(out) == [], "nothing was made"
    assert messages[0] == messages[1]
    assert f"{bad}:10: content is not JSON" in messages[0]


def test_a_worker_that_is_killed_is_an_error_that_can_be_resumed(
    corpora, tokenizer, out, expected, many_slices
):
    options = make_options(corpora, tokenizer, out, workers=2)
    submit = workers.Processes.submit
    submitted = []

    def killing(self, part):
        submitted.append(part)
        if len(submitted) == 9:
            os.kill(next(iter(self._pool._processes)), signal.SIGKILL)
        return submit(self, part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers.Processes, "submit", killing)
        with pytest.raises(
            WorkerError, match=r"a process that reads and tokenizes has ended, .*--workers"
        ):
            build(options)
    assert not out.exists()
    resume = finished_shards(out) > 0
    build(make_options(corpora, tokenizer, out, workers=2, resume=resume))
    assert contents(out) == expected


# --- Memory ---------------------------------------------------------------------------------------


def test_small_corpora_start_no_workers(corpora, tokenizer, out, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a process was started")

    monkeypatch.setattr(builder, "Processes", refuse)
    assert build(make_options(corpora, tokenizer, out, workers=8)).workers == 1


# --- Interrupts -----------------------------------------------------------------------------------

_SIGNAL_AT_SLICE = """
import os, signal
from build_index import slices, stages, workers
workers._SHARE = 1
slices.SLICE_BYTES = 1000
count, finished = 0, stages.Stages._finished
def signalling(self, *arguments):
    global count
    count += 1
    if count == 5:
        {signal}
    return finished(self, *arguments)
stages.Stages._finished = signalling
if __name__ != "__main__":
    raise SystemExit
"""


def worker_processes(session: int) -> list[str]:
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


_SIGNAL_AT_START = """
import os, signal
from build_index import slices, workers
workers._SHARE = 1
slices.SLICE_BYTES = 1000
submit = workers.Processes.submit
def signalling(self, part):
    future = submit(self, part)
    # The process that was started is not further than its first modules.
    os.killpg(0, signal.SIGINT)
    return future
workers.Processes.submit = signalling
if __name__ != "__main__":
    raise SystemExit
# A program in the background of a script has inherited that it ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def test_an_interrupt_while_workers_start_is_one_line(corpora, tokenizer, out):
    """A terminal sends the interrupt to the workers, too."""
    arguments = [
        "--corpus",
        corpora[0].path,
        "--tokenizer",
        tokenizer,
        "--shard-tokens",  # by default, a shard may leave no memory for two workers
        700,
        "--workers",
        2,
        "--out",
        out,
    ]
    build_command = command(*arguments, before=_SIGNAL_AT_START)
    process = subprocess.Popen(
        build_command, start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    _, errors = process.communicate()  # of the workers, too, which have inherited it
    assert (process.returncode, errors) == (130, "Error: interrupted (continue with --resume)\n")
    until(lambda: not worker_processes(process.pid))


class _OtherThread:
    """A thread in which SIGINT is not blocked, since it runs before `_interrupts_later` begins."""

    def __init__(self):
        self._is_to_raise = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        self._is_to_raise.wait()
        signal.raise_signal(signal.SIGINT)

    def interrupt(self):
        self._is_to_raise.set()
        self._thread.join()


class _ThisThread:
    def interrupt(self):
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)


@pytest.mark.parametrize("thread", [_ThisThread, _OtherThread])
@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_an_interrupt_meanwhile_comes_afterwards(handler, thread):
    done = []
    sender = thread()
    before = signal.signal(signal.SIGINT, handler)
    try:
        raised = nullcontext() if handler is signal.SIG_IGN else pytest.raises(KeyboardInterrupt)
        with raised, workers._interrupts_later():
            sender.interrupt()
            done.append(True)
        assert done
        assert signal.getsignal(signal.SIGINT) is handler
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        ("os.killpg(0, signal.SIGINT)", 130, "Error: interrupted"),  # as Ctrl-C on a terminal does
        ("os.killpg(0, signal.SIGTERM)", -15, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    ],
)
def test_workers_end_with_the_build(corpora, tokenizer, out, expected, sent, status, said):
    arguments = [
        "--corpus",
        corpora[0].path,
        "--tokenizer",
        tokenizer,
        "--shard-tokens",
        700,
        "--workers",
        2,
    ]
    build_command = command(*arguments, "--out", out, before=_SIGNAL_AT_SLICE.format(signal=sent))
    process = subprocess.Popen(
        build_command, start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    _, errors = process.communicate()
    assert process.returncode == status, errors
    assert errors.startswith(said)
    assert not said or len(errors.splitlines()) == 1
    until(lambda: not worker_processes(process.pid))
    assert not out.exists()
