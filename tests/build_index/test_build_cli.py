"""The command `rest-build`: its output, its exit status, and bars on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading

import pytest

from build_index import slices, stages, workers
from build_index.progress import ProgressLine, StageProgress, progress_line
from build_index.staging import finished_shards
from rest_store.datastore.manifest import Manifest
from tests.shared.builds import build_here, command, contents, documents, leftovers, run_build
from tests.shared.models import write_gguf

TEXTS = [*documents(40), "", *documents(3)]


# --- Output ---------------------------------------------------------------------------------------


def test_a_summary_for_people(corpus, tokenizer, out):
    result = build_here(
        "--corpus", corpus, "--tokenizer", tokenizer, "--out", out, "--shard-tokens", 500
    )
    assert result.exit_code == 0
    assert result.stderr == ""
    rows = dict(line.split(None, 1) for line in result.stdout.splitlines())
    manifest = Manifest.read(out)
    assert rows["datastore"] == str(out)
    assert rows["documents"] == "40 (3 exact duplicates dropped)"
    assert rows["left"] == f"out   1 empty: {corpus}:41"
    assert rows["tokens"] == f"{manifest.token_count:,} (by {manifest.options['encoders'][0]})"
    assert rows["shards"] == str(len(manifest.shards))
    assert rows["size"].endswith(" bytes a token")
    assert all(stage in rows["time"] for stage in ("load", "read", "tokenize", "sort"))
    assert " at the peak, limit " in rows["memory"]


def test_a_summary_for_programs_and_nothing_else(corpus, tokenizer, out):
    process = run_build(
        "--corpus", corpus, "--tokenizer", tokenizer, "--out", out, "--json", "--memory", "4G"
    )
    assert process.returncode == 0
    assert process.stderr == ""
    summary = json.loads(process.stdout)
    assert len(process.stdout.splitlines()) == 1
    assert summary["documents"] == 40
    assert summary["skipped"] == {"empty": 1}
    assert summary["memory"] == 4 << 30
    assert summary["tokens"] == Manifest.read(out).token_count


def test_options_of_records_reach_the_build(tokenizer, out, tmp_path):
    """Options of directories are compared with those of the function."""
    records = tmp_path / "records.jsonl"
    records.write_text('{"text": "x", "chat": ["a", "b"]}\n{"text": "y", "chat": ["c", "d"]}\n')
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    options = (
        "--field",
        "chat",
        "--max-documents",
        1,
        "--include",
        "*.py",
        "--chat-template",
        template,
    )
    result = build_here(
        "--corpus", records, *options, "--tokenizer", tokenizer, "--out", out, "--workers", 1
    )
    assert result.exit_code == 0, result.output
    manifest = Manifest.read(out)
    (only,) = manifest.corpora
    assert (only["field"], only["documents"], only["conversations"]) == ("chat", 1, 1)
    assert "include" not in only, "globs are for directories"
    assert manifest.options["chat_template"].startswith("sha256:")


# --- Failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing option '--corpus'"),
        (("--memory", "much"), "--memory: size is 'much', expected a size such as 8G or 512M"),
        (("--memory", "0"), "--memory: size is '0', expected a size"),
        (("--shard-tokens", "1"), "1 is not in the range 2<=x<=1073741824"),
        (("--workers", "0"), "0 is not in the range x>=1"),
        (("--max-documents", "-1"), "-1 is not in the range x>=1"),
        (("--no-such-option",), "No such option"),
    ],
)
def test_bad_usage_is_status_2(arguments, message):
    result = build_here(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"--out": "/"}, "/: directory is "),
        (
            {"--corpus": "~no-such-user"},
            "~no-such-user: corpus is absent, expected a file, a directory or an address",
        ),
        ({"--corpus": ""}, "corpus: path is empty, expected a file or a directory"),
        ({"--tokenizer": ""}, "tokenizer: name is empty, expected a tokenizer.json"),
        ({"--tokenizer": __file__}, "test_build_cli.py: tokenizer is "),
        ({"--tokenizer": "~no-such-user"}, "~no-such-user: tokenizer is absent"),
        ({"--chat-template": "~no-such-user"}, "~no-such-user: chat template is not readable"),
        ({"--corpus": "x" * 300}, "x: the corpus cannot be read (File name too long)"),
        (
            {"--out": "s3://bucket/ds"},
            "s3:/bucket/ds: location is an address, expected a directory of this machine",
        ),
        ({"--out": "x" * 300}, ": the datastore cannot be written (File name too long)"),
    ],
)
def test_failures_are_status_1_and_one_line(corpus, tokenizer, out, changed, message):
    valid = {"--corpus": corpus, "--tokenizer": tokenizer, "--out": out}
    result = build_here(*(part for pair in {**valid, **changed}.items() for part in pair))
    assert (result.exit_code, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert message in line
    assert not out.exists()
    assert leftovers(out) == []


def test_an_error_of_the_system_is_one_line_too(corpus, tokenizer, out, monkeypatch):
    def failing(*arguments, **others):
        raise PermissionError(13, "Permission denied", "/some/file")

    monkeypatch.setattr("build_index.builder.load_tokenizer", failing)
    result = build_here("--corpus", corpus, "--tokenizer", tokenizer, "--out", out)
    assert result.exit_code == 1
    assert result.stderr == "Error: [Errno 13] Permission denied: '/some/file'\n"


def test_an_output_that_cannot_be_written_or_is_not_read_is_no_error_of_the_datastore(
    corpus, tokenizer, out
):
    arguments = command("--corpus", corpus, "--tokenizer", tokenizer, "--out", out)
    reading, writing = os.pipe()
    os.close(reading)  # as `rest-build ... | head -0` may have it
    for output, said in (
        (os.open("/dev/full", os.O_WRONLY), "Error: [Errno 28] No space left on device\n"),
        (writing, ""),
    ):
        process = subprocess.run(
            arguments, stdout=output, stderr=subprocess.PIPE, text=True, check=False
        )
        os.close(output)
        assert (process.returncode, process.stderr) == (1, said)
        assert Manifest.read(out).document_count == 40


def test_an_interrupt_is_status_130_and_can_be_resumed(
    corpus, tokenizer, out, tmp_path, monkeypatch
):
    """The build ends at once when SIGINT arrives while a shard is being sorted."""
    arguments = ("--corpus", corpus, "--tokenizer", tokenizer, "--shard-tokens", 500)
    assert build_here(*arguments, "--out", tmp_path / "whole").exit_code == 0
    sorting = threading.Event()
    hold = threading.Event()
    threads = []
    sort = workers.sort_shard
    submit = stages.Stages._sort

    def held(directory, name, *others):
        if name == "shard-00001":
            threads.append(threading.current_thread())
            sorting.set()
            assert hold.wait(timeout=60)
        return sort(directory, name, *others)

    def interrupted(self, name, positions):
        submit(self, name, positions)
        if name == "shard-00001":
            assert sorting.wait(timeout=60)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(workers, "sort_shard", held)
    monkeypatch.setattr(stages.Stages, "_sort", interrupted)
    result = build_here(*arguments, "--out", out)
    assert result.exit_code == 130
    assert result.stderr == "Error: interrupted (2 finished shards kept: continue with --resume)\n"
    assert threads[-1].is_alive()
    assert threads[-1].daemon, "nor does the end of the process"
    hold.set()
    threads[-1].join()
    monkeypatch.undo()
    assert not out.exists()
    assert finished_shards(out) == 2
    assert build_here(*arguments, "--out", out, "--resume").exit_code == 0
    assert contents(out) == contents(tmp_path / "whole")


def test_an_interrupt_before_the_first_shard_says_how_to_go_on(corpus, tokenizer, out, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(slices, "content_digest", interrupt)
    result = build_here("--corpus", corpus, "--tokenizer", tokenizer, "--out", out)
    assert result.exit_code == 130
    assert result.stderr == "Error: interrupted (continue with --resume)\n"


def test_an_interrupt_while_modules_are_imported(corpus, tokenizer, out):
    """The interrupt may leave numpy half imported, which cannot be imported again."""
    script = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    imports = 0\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name != 'numpy': return\n"
        "        self.imports += 1\n"
        "        if self.imports > 1: raise RuntimeError('half imported')\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())"
    )
    process = run_build("--corpus", corpus, "--tokenizer", tokenizer, "--out", out, before=script)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "Error: interrupted\n")


def test_names_that_are_not_utf8_are_built_and_printed(tokenizer, tmp_path):
    """The locale is one of UTF-8, so that the standard output takes nothing else."""
    place = tmp_path / os.fsdecode(b"\xff")
    place.mkdir()
    (place / "a.txt").write_text("some text")
    (place / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    arguments = ("--corpus", place, "--include", place.name, "--include", "*.txt", "--tokenizer")
    arguments = (*arguments, place / "tokenizer.json", "--out", place / "ds")
    strict = "import sys; sys.stdout.reconfigure(encoding='utf-8', errors='strict')\n"
    process = run_build(*arguments, before=strict)
    assert process.returncode == 0, process.stderr
    assert f"datastore  {tmp_path}/\ufffd/ds\n" in process.stdout
    manifest = Manifest.read(place / "ds")
    assert manifest.corpora[0]["corpus"] == f"{tmp_path}/\ufffd"
    assert manifest.corpora[0]["include"] == ["\ufffd", "*.txt"]
    assert manifest.tokenizer.name == f"{tmp_path}/\ufffd/tokenizer.json"


# --- Progress -------------------------------------------------------------------------------------


def test_a_line_shows_share_amount_and_time_left():
    line = progress_line(StageProgress("tokenizing", 3 << 20, 12 << 20, "bytes", 2.0))
    assert line == "tokenizing  25% 3.0 MiB, 0:06 left"
    line = progress_line(StageProgress("sorting", 2_500_000, 2_500_000, "tokens", 1.0))
    assert line == "sorting    100% 2,500,000 tokens"
    assert (
        progress_line(StageProgress("tokenizing", 999, None, "tokens", 0.0))
        == "tokenizing 999 tokens"
    )
    assert (
        progress_line(StageProgress("sorting", 0, 10, "tokens", 0.0)) == "sorting      0% 0 tokens"
    )


def test_a_stage_is_written_over_itself_below_the_one_before(monkeypatch):
    file = io.StringIO()
    line = ProgressLine(file)
    monkeypatch.setenv("COLUMNS", "30")
    for done in (1 << 20, 2 << 20):
        line(StageProgress("tokenizing", done, 4 << 20, "bytes", 1.0))
    line(StageProgress("sorting", 1, 2, "tokens", 1.0))
    lines = file.getvalue().split("\n")
    assert lines[0] == "loading    the tokenizer"
    assert lines[1] == "\r\x1b[2Ktokenizing  25% 1.0 MiB, 0:03", "cut to the width"
    assert lines[2].startswith("\x1b[1A\r\x1b[2Ktokenizing  50%")
    assert lines[3].startswith("\r\x1b[2Ksorting")


def test_progress_is_shown_on_a_terminal_only(corpus, tokenizer, out, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert not ProgressLine.fits(io.StringIO())
    for term, quiet in (("xterm", ()), ("dumb", ()), ("xterm", ("--quiet",))):
        main, terminal = pty.openpty()
        try:
            arguments = command(
                "--corpus", corpus, "--tokenizer", tokenizer, "--out", out, "--json", *quiet
            )
            process = subprocess.run(
                arguments,
                env={**os.environ, "TERM": term},
                stdout=subprocess.PIPE,
                stderr=terminal,
                check=True,
            )
            shown = b""
            while select.select([main], [], [], 0)[0]:
                shown += os.read(main, 1 << 16)
        finally:
            os.close(main)
            os.close(terminal)
        assert json.loads(process.stdout)["documents"] == 40
        if term == "xterm" and not quiet:
            assert b"tokenizing 100% " in shown
            assert b"sorting    100% " in shown
        else:
            assert shown == b""


# --- Starting -------------------------------------------------------------------------------------


def test_a_build_loads_no_more_than_it_takes(corpus, out, tmp_path):
    """A build of text with a GGUF tokenizer imports neither transformers nor torch."""
    large = "{'torch', 'transformers', 'gguf', 'pyarrow', 'fsspec', 'grpc'} & sys.modules.keys()"
    before = f"import atexit, sys; atexit.register(lambda: print({large}))"
    gguf = write_gguf(tmp_path / "tiny.gguf")
    process = run_build(
        "--corpus", corpus, "--tokenizer", gguf, "--out", out, "--quiet", before=before
    )
    assert (process.stdout, process.stderr) == ("set()\n", "")
    script = (
        "import sys, build_index.build_command; print({'numpy', 'tokenizers'} & sys.modules.keys())"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout
        == "set()\n"
    )
