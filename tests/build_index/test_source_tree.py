"""Directories as corpora: the files that are read, their order, and the files that are counted."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from build_index import corpus as corpus_module
from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.documents import Document
from build_index.readers import detection, text
from build_index.readers.source_tree import compile_globs
from rest_store.errors import CorpusError, CorpusFormatError
from tests.shared.builds import contents
from tests.shared.corpora import CHAT, MESSAGES, read_corpus, write_files


def names(root, documents):
    return [document.origin.removeprefix(f"{root}/") for document in documents]


def test_a_source_tree_is_read_in_order_and_skipped_files_are_counted(tmp_path):
    files = {
        "b.py": "b = 1\n",
        "a/z.py": "z = 1\n",
        "a/empty.py": "",
        "a.txt": "text",
        "a/image.png": b"\x89PNG\0\0",
        "a/latin.txt": "café".encode("latin-1"),
        "package.json": '{"name": "x", "text": "y"\n}',
        "list.json": "[1, 2]",
        "settings.toml": "[section]\n",
        "a/fake.gz": b"\x1f\x8bnot gzip at all\0",
        "a/readme.gz": gzip.compress(b"compressed text"),
        "a/data.gz": gzip.compress(b"\0\1\2"),
    }
    write_files(tmp_path, files)
    corpus, documents = read_corpus(tmp_path)
    expected = [
        "a.txt",
        "a/readme.gz",
        "a/z.py",
        "b.py",
        "list.json",
        "package.json",
        "settings.toml",
    ]
    # By name in each directory: "a" comes before "a.txt".
    assert names(tmp_path, documents) == ["a/readme.gz", "a/z.py", "a.txt", *expected[3:]]
    assert documents[0].text == "compressed text"
    provenance = corpus.provenance()
    assert provenance["skipped"] == {"binary": 2, "empty": 1, "media file": 1, "not UTF-8": 1}
    assert provenance["reader"] == "tree"
    assert provenance["documents"] == 7
    assert provenance["conversations"] == 0
    assert provenance["bytes"] == corpus.size == sum(map(len, contents(tmp_path).values()))


def test_data_files_in_a_directory_are_read_by_their_readers(tmp_path):
    table = pa.table({"content": ["x = 1", "y = 1"], "lang": ["Python", "C"]})
    write_files(
        tmp_path, {"chat.jsonl": json.dumps({"messages": MESSAGES}) + "\n", "README.md": "# About"}
    )
    write_files(
        tmp_path,
        {
            "chats.json": json.dumps([{"messages": MESSAGES}] * 2),
            "x": json.dumps({"data": ["Hi", "Hello"]}),
        },
    )
    pq.write_table(table, tmp_path / "train.parquet")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "numbers.parquet")
    write_files(tmp_path, {"numbers.jsonl": '{"n": 1}\n'})
    corpus, documents = read_corpus(tmp_path)
    texts = [Document(text="x = 1"), Document(text="y = 1")]
    assert documents == [Document(text="# About"), CHAT, CHAT, CHAT, *texts, CHAT]
    provenance = corpus.provenance()
    assert provenance["skipped"] == {
        "JSONL without a known field": 1,
        "table without a known column": 1,
    }
    assert (provenance["documents"], provenance["conversations"], provenance["files"]) == (7, 4, 5)
    # Files that were passed over count, too, so that a bar reaches its end.
    assert provenance["bytes"] == corpus.size

    corpus, documents = read_corpus(tmp_path, field="content", exclude=("*.json*", "x"))
    assert documents == texts
    assert corpus.provenance()["skipped"] == {"no records": 1, "table without a known column": 1}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "bad.jsonl.gz",
            gzip.compress(b'{"text": "x"}\n' * 99)[:-9],
            ": compressed file is damaged or truncated",
        ),
        ("bad.jsonl", b'{"text": "x"}\n{"text": 1}\n', ":2: "),
        ("bad.jsonl", b"no JSON", ":1: line is not a JSON object"),
        ("bad.parquet", b"PAR1 and nothing more", ": parquet file is damaged"),
    ],
)
def test_a_damaged_file_in_a_directory_is_counted_and_shown(tmp_path, name, content, message):
    write_files(
        tmp_path, {"a/good.jsonl": '{"text": "good"}\n', f"a/{name}": content, "z.txt": "last"}
    )
    corpus, documents = read_corpus(tmp_path)
    assert {"good", "last"} <= {document.text for document in documents}
    (reason,) = corpus.counts.skipped
    assert corpus.counts.skipped == {reason: 1}
    assert reason == ("malformed record" if ":2:" in message else "damaged")
    size, example = corpus.counts.largest[reason]
    assert re.match(f"{tmp_path}/a/{name}{message}", example)
    assert "\n" not in example
    assert (size, corpus.counts.lost_bytes) == (
        (0, 0) if ":2:" in message else (len(content), len(content))
    )
    with pytest.raises(CorpusFormatError, match=f"^{tmp_path}/a/{name}{message}"):
        read_corpus(tmp_path / "a" / name)


def test_files_of_tools_in_a_tree_are_left_out(tmp_path):
    hidden = [".git/config", "a/__pycache__/x.py", "node_modules/x.js", "a/.venv/x.py"]
    write_files(tmp_path, dict.fromkeys([*hidden, "a/x.py", "a/.github/ci.yml", "git/y.py"], "x"))
    assert names(tmp_path, read_corpus(tmp_path)[1]) == ["a/.github/ci.yml", "a/x.py", "git/y.py"]
    inside = tmp_path / "a/.venv"  # the top itself may be called anything
    assert names(inside, read_corpus(inside)[1]) == ["x.py"]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (("*.py",), ("deep",), ["src/a.py", "top.py"]),
        (("src/**/*.py",), (), ["src/a.py", "src/deep/b.py"]),
        ((), ("src/",), ["top.py"]),
        ((), ("/top.py", "**/deep/*.c"), ["src/a.py", "src/deep/b.py"]),
        (("[!a].py",), (), ["src/deep/b.py"]),
        (("none",), (), []),
    ],
)
def test_globs_choose_files(tmp_path, include, exclude, expected):
    write_files(
        tmp_path, dict.fromkeys(["top.py", "src/a.py", "src/deep/b.py", "src/deep/c.c"], "x")
    )
    corpus, documents = read_corpus(tmp_path, include=include, exclude=exclude)
    assert names(tmp_path, documents) == expected
    assert corpus.size == len(expected)


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*", "a/b", True),
        ("a/*", "a/b/c", False),
        ("./a/b", "a/b", True),
        ("a?c", "a/c", False),
        ("a.c", "abc", False),
    ],
)
def test_globs_match(glob, path, matches):
    assert (compile_globs([glob]).fullmatch(path) is not None) is matches


def test_names_may_be_any_bytes(tmp_path):
    """A name that is not UTF-8 is readable in messages, and a line end in a name is no other."""
    for name in (b"\xff.txt", b"a\nb.txt"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("x")
    _, documents = read_corpus(tmp_path, include=("*.txt",))
    assert names(tmp_path, documents) == ["a\nb.txt", "\ufffd.txt"]


def test_a_malformed_glob_is_refused_at_once(tmp_path):
    with pytest.raises(
        CorpusError, match=r"a glob is '\*\*x' .*, expected one with \*\* for whole names"
    ):
        open_corpus(CorpusSpec(str(tmp_path), include=("**x",)))


def test_links_make_no_loops_and_special_files_are_counted(tmp_path):
    write_files(tmp_path, {"a/x.py": "x", "other/y.py": "y"})
    (tmp_path / "a/loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "a/self").symlink_to("self")
    (tmp_path / "a/link.py").symlink_to(tmp_path / "other/y.py")
    (tmp_path / "a/broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "a/pipe")
    os.mkfifo(tmp_path / "other/manifest.json")
    corpus, documents = read_corpus(tmp_path)
    assert names(tmp_path, documents) == ["a/link.py", "a/x.py", "other/y.py"]
    assert documents[0].text == "y"
    assert corpus.provenance()["skipped"] == {"linked directory": 1, "not a regular file": 4}


MANIFEST = '{"format": "rest-store", "format_version": 1}'


def test_datastores_and_unfinished_builds_in_a_tree_are_left_out(tmp_path):
    write_files(
        tmp_path, dict.fromkeys(["a.txt", "web/app.js", "z.txt", ".y.building/notes.txt"], "text")
    )
    write_files(
        tmp_path, {"web/manifest.json": '{"name": "an app"}', "big/manifest.json": "[" * 5000}
    )
    write_files(
        tmp_path, {"ds/manifest.json": MANIFEST, "ds/tokenizer.json": "{}", "ds/deep/x.txt": "x"}
    )
    write_files(tmp_path, {".ds.building/lock": "", ".ds.building/datastore/tokenizer.json": "{}"})
    write_files(
        tmp_path, {"live/documents.sqlite": "", "live/writer.lock": "", "live/tokenizer.json": "{}"}
    )
    corpus, documents = read_corpus(tmp_path)
    expected = [
        ".y.building/notes.txt",
        "a.txt",
        "big/manifest.json",
        "web/app.js",
        "web/manifest.json",
        "z.txt",
    ]
    assert names(tmp_path, documents) == expected
    assert corpus.provenance()["skipped"] == {"datastore": 2}
    assert corpus.size == corpus.counts.bytes_read


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"manifest.json": MANIFEST, "shard-00000.tokens": ""}, "a datastore"),
        ({"documents.sqlite": "", "writer.lock": ""}, "a live datastore"),
    ],
)
def test_a_datastore_as_a_corpus_is_refused_as_what_it_is(tmp_path, files, kind):
    write_files(tmp_path / "ds", files)
    with pytest.raises(
        CorpusError, match=f"ds: corpus is {kind}, which holds tokens alone; pass the texts"
    ):
        read_corpus(tmp_path / "ds")


def test_what_vanishes_from_a_tree_meanwhile_is_counted_and_passed_over(tmp_path):
    lines = '{"text": "x"}\n{"text": "y"}\n'
    write_files(tmp_path, {"a.jsonl": lines, "b.txt": "b", "c/d.txt": "d", "e.txt": "e"})
    corpus = open_corpus(CorpusSpec(str(tmp_path)))
    documents = iter(corpus)
    assert next(documents).text == "x"
    (tmp_path / "b.txt").unlink()
    shutil.rmtree(tmp_path / "c")
    assert [document.text for document in documents] == ["y", "e"]
    provenance = corpus.provenance()
    assert (provenance["skipped"], provenance["files"]) == ({"vanished": 2}, 2)


def test_a_file_that_vanishes_after_it_was_listed_is_counted(tmp_path, monkeypatch):
    write_files(tmp_path, {"a.txt": "a", "b.txt": "b"})
    opened = corpus_module.open_file

    def remove_and_open(path):
        if path.endswith("a.txt"):
            Path(path).unlink()
        return opened(path)

    monkeypatch.setattr(corpus_module, "open_file", remove_and_open)
    corpus, documents = read_corpus(tmp_path)
    assert names(tmp_path, documents) == ["b.txt"]
    provenance = corpus.provenance()
    assert (provenance["skipped"], provenance["files"]) == ({"vanished": 1}, 1)


def test_a_file_or_directory_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    write_files(tmp_path, {"a/x.py": "x"})
    scandir = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("/a"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(
        CorpusError, match=rf"^{tmp_path}/a: the corpus cannot be read \(Permission denied\)"
    ):
        read_corpus(tmp_path)


def test_a_large_file_of_a_tree_is_read_until_it_turns_binary(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "PIECE_BYTES", 10)
    monkeypatch.setattr(detection, "HEAD_BYTES", 10)
    write_files(tmp_path, {"a.txt": b"line one\nline two\n\0\0\0", "b.txt": "x"})
    corpus, documents = read_corpus(tmp_path)
    assert [document.text for document in documents] == ["line one\n", "line two\n", "x"]
    assert corpus.provenance()["skipped"] == {"binary": 1}
    with pytest.raises(CorpusFormatError, match=r"a.txt: content is binary \(a NUL byte at 18\)"):
        read_corpus(tmp_path / "a.txt")
