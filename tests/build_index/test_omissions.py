"""The omissions of a build in its summary, and its exit status if most of a corpus is lost."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

import build_index
from build_index import slices, workers
from build_index.builder import BuildOptions, build
from build_index.corpus_spec import CorpusSpec
from build_index.documents import CorpusCounts
from build_index.omissions import skipped_texts
from rest_store.datastore.manifest import Manifest
from tests.shared.builds import build_here, contents, documents, write_jsonl
from tests.shared.corpora import read_corpus, write_files

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
KINDS = {
    "weights.bin": (POINTER, "Git LFS pointer", "`git lfs pull` fetches the files"),
    "paper.pdf": (b"%PDF-1.4\n\0", "PDF", "pdftotext"),
    "archive.7z": (b"7z\xbc\xaf\x27\x1c\0", "7z archive", "`7z x FILE`"),
    "notes.txt": ("naïve".encode("utf-16"), "UTF-16 text", "iconv -f UTF-16"),
    "rows.avro": (b"Obj\x01\0", "Avro file", "fastavro FILE"),
    "a.zip": (b"PK\x05\x06" + bytes(18), "zip archive", "read if --corpus or --include names it"),
    "a.db": (
        b"SQLite format 3\0" + bytes(84),
        "SQLite database",
        "read if --corpus or --include names it",
    ),
    "a.bin": (b"\0\1\2", "binary", ""),
    "a.csv": ("a,b\n1,2\n", "table without a known column", ""),
    "bad.jsonl": ("no json", "damaged", ""),
    "latin.txt": (b"caf\xe9", "not UTF-8", ""),
}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_is_named_with_its_example_and_what_helps(tmp_path, name):
    content, kind, hint = KINDS[name]
    write_files(tmp_path, {"a/good.py": "x = 1", f"b/{name}": content})
    corpus, documents = read_corpus(tmp_path)
    assert [document.text for document in documents] == ["x = 1"]
    counts = corpus.counts
    size = (tmp_path / "b" / name).stat().st_size
    assert (counts.skipped, counts.sizes, counts.lost_bytes) == ({kind: 1}, {kind: size}, size)
    (text,) = skipped_texts(counts.skipped, counts.sizes, {kind: counts.largest[kind][1]})
    assert text.startswith(f"1 {kind} ({size} bytes): {tmp_path}/b/{name}")
    assert hint in text


@pytest.mark.parametrize("name", ["a.png", "a.woff2", "a.so", "a.pyc", "program"])
def test_pictures_fonts_and_compiled_code_are_not_missed(tmp_path, name):
    write_files(
        tmp_path,
        {"a.py": "x = 1", name: (b"\x7fELF" if name == "program" else b"\x89") + bytes(999)},
    )
    counts = read_corpus(tmp_path)[0].counts
    assert sum(counts.skipped.values()) == 1
    assert counts.lost_share() == 0


def test_the_largest_example_is_shown_and_of_equal_ones_the_first(tmp_path):
    write_files(
        tmp_path, {"c.bin": b"\0" * 9, "b.bin": b"\0" * 20, "a.bin": b"\0" * 20, "x.py": "x"}
    )
    counts = read_corpus(tmp_path)[0].counts
    assert counts.largest == {"binary": (20, f"{tmp_path}/a.bin")}
    assert skipped_texts(counts.skipped, counts.sizes, {"binary": "a.bin"}) == [
        "3 binary (49 bytes), the largest: a.bin"
    ]


def test_counts_are_added_up_in_any_order():
    parts = []
    for size, name in ((3, "b"), (5, "c"), (5, "a"), (1, "d")):
        counts = CorpusCounts(documents=1, bytes_read=size)
        counts.skip_file("binary", name, size)
        counts.skip("empty", f"{name}:1")
        parts.append(counts)
    sums = []
    for order in (parts, parts[::-1], parts[2:] + parts[:2]):
        total = CorpusCounts()
        for part in order:
            total.add(CorpusCounts.from_json(json.loads(json.dumps(part.to_json()))))
        sums.append(total)
    assert sums[0] == sums[1] == sums[2]
    assert sums[0].largest == {"binary": (5, "a"), "empty": (0, "a:1")}
    assert (sums[0].lost_bytes, sums[0].lost_records) == (14, 4)


# --- Of a build -----------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    """Most of it is binary."""
    return write_files(
        tmp_path / "tree",
        {"a.py": "x = 1\n" * 9, "b.bin": bytes(500), "c.bin": bytes(60), "e.txt": ""},
    )


@pytest.mark.filterwarnings("default")
def test_a_build_that_loses_most_of_a_corpus_has_status_3(tree, tokenizer, out):
    arguments = ("--corpus", tree, "--tokenizer", tokenizer, "--out", out)
    done = build_here(*arguments)
    assert done.exit_code == 3
    assert done.stderr == f"Warning: {tree}: 91% was left out (2 binary, 1 empty)\n"
    lines = done.stdout.splitlines()
    assert lines[2] == f"left out   2 binary (560 bytes), the largest: {tree}/b.bin"
    assert lines[3] == f"           1 empty: {tree}/e.txt"
    assert Manifest.read(out).corpora[0]["documents"] == 1, "the datastore is there"
    summary = build_here(*arguments, "--json")
    assert summary.exit_code == 3
    facts = json.loads(summary.stdout)
    assert facts["skipped"] == {"binary": 2, "empty": 1}
    assert facts["skipped_bytes"] == {"binary": 560}
    assert facts["largest_skipped"] == {"binary": f"{tree}/b.bin", "empty": f"{tree}/e.txt"}
    assert facts["lost"] == {str(tree): pytest.approx(0.912, abs=0.001)}
    assert build_here(*arguments, "--quiet").exit_code == 3


@pytest.mark.parametrize("options", [("--exclude", "*.bin"), ("--include", "*.py")])
def test_what_options_leave_out_is_not_lost(tree, tokenizer, out, options):
    done = build_here("--corpus", tree, *options, "--tokenizer", tokenizer, "--out", out)
    assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.filterwarnings("default")
def test_records_that_are_lost_count_as_bytes_do(tokenizer, out, tmp_path):
    texts = documents(5)
    few = write_jsonl(tmp_path / "few.jsonl", [*texts, "", ""])
    many = write_jsonl(tmp_path / "many.jsonl", ["", " ", "x"])
    arguments = ("--tokenizer", tokenizer, "--out", out)
    assert build_here("--corpus", few, *arguments).exit_code == 0
    done = build_here("--corpus", few, "--corpus", many, *arguments)
    assert done.exit_code == 3, "of one corpus"
    assert done.stderr == f"Warning: {many}: 67% was left out (2 empty)\n"


def test_failed_requests_of_a_batch_are_counted(tokenizer, out, tmp_path):
    path = tmp_path / "batch.jsonl"
    bodies = [{"choices": [{"message": {"content": f"answer {number}"}}]} for number in range(3)]
    rows = [{"response": None}, *({"response": {"body": body}} for body in bodies)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = (
        "--field",
        "response.body.choices.0.message.content",
        "--tokenizer",
        tokenizer,
        "--out",
        out,
    )
    done = build_here("--corpus", path, *arguments)
    assert done.exit_code == 0, done.stderr
    assert f"left out   1 empty: {path}:1\n" in done.stdout


def test_the_function_warns(tree, tokenizer, out):
    with pytest.warns(UserWarning, match=r"tree: 91% was left out \(2 binary, 1 empty\)"):
        build_index.build(tree, str(tokenizer), out)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_index.build(tree, str(tokenizer), out, exclude="*.bin")


def test_several_processes_and_an_interruption_say_the_same(tree, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "_SHARE", 1)
    monkeypatch.setattr(slices, "SLICE_FILES", 1)
    specs = (CorpusSpec(str(tree)),)
    summaries = []
    for count in (1, 2):
        out = tmp_path / str(count)
        with pytest.warns(UserWarning, match="91% was left out"):
            summaries.append(
                build(BuildOptions(specs, str(tokenizer), out, memory=1 << 40, workers=count))
            )
    first, second = summaries
    assert (first.skipped, first.skipped_bytes, first.largest_skipped, first.lost) == (
        second.skipped,
        second.skipped_bytes,
        second.largest_skipped,
        second.lost,
    )
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_the_statuses_are_documented():
    help_text = " ".join(build_here("--help").stdout.split())
    assert "3 if the datastore is complete, but lacks more than half of a corpus" in help_text
    page = " ".join((Path(__file__).parents[2] / "docs/how-to/building.md").read_text().split())
    assert "Exit status 3" in page
