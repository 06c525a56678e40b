"""Addresses of corpora: web servers, the hub, and those at which nothing can be read."""

from __future__ import annotations

import json
import sys

import pytest

from build_index import builder
from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec, corpus_specs
from build_index.documents import CorpusCounts, Document
from build_index.path import is_directory
from build_index.readers import files, remote_corpus
from build_index.readers.remote_corpus import RemoteCorpus
from rest_store.errors import CorpusError, CorpusNotFoundError
from tests.shared.builds import build_quick, write_tokenizer
from tests.shared.corpora import read_corpus
from tests.shared.object_store import forget_connections, upload

pytestmark = pytest.mark.slow

# --- Web servers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionError("403, message='Forbidden', url='https://host/a?key=1&signature=secret'"), CorpusError),
        (FileNotFoundError("https://host/a?signature=secret"), CorpusNotFoundError),
    ],
)
def test_the_query_of_an_address_is_in_no_message(error, kind):
    def request():
        raise error

    with pytest.raises(kind, match=r"https://host/a['),]") as raised, files.read_errors("https://host/a"):
        request()
    assert "secret" not in str(raised.value)


def test_a_build_from_a_web_address_is_resumed_with_another_signature(s3, tmp_path, monkeypatch):
    upload(
        {"a.jsonl": "".join(json.dumps({"text": f"line {row} " * 50}) + "\n" for row in range(200))}, ACL="public-read"
    )
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    address = f"{s3.url}/corpus/a.jsonl?signature="

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(builder.Build, "complete", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build_quick(f"{address}first", tokenizer, tmp_path / "ds", shard_tokens=2000, workers=1)
    assert b"first" not in (tmp_path / ".ds.building" / "plan.json").read_bytes()
    assert (
        build_quick(
            f"{address}second", tokenizer, tmp_path / "ds", shard_tokens=2000, workers=1, resume=True
        ).resumed_shards
        > 0
    )


def test_the_links_of_a_page_are_the_files_of_a_directory(s3):
    upload({"t/b.jsonl": '{"text": "b"}\n', "t/a.txt": "a", "t/sub/c.txt": "c"}, ACL="public-read")
    index = '<a href="../">up</a> <a href="?C=N;O=D">Name</a> <a href="b.jsonl">b</a> <a href="a.txt">a</a>'
    s3.pages["/corpus/t/"] = f'{index} <a href="sub/">sub</a> <a href="https://example.org/x.txt">x</a>'
    sub = '<a href="../">up</a> <a href="c.txt">c</a> <a href="/corpus/t/a.txt">a</a>'
    s3.pages |= {"/corpus/t/sub": sub, "/corpus/t/sub/": sub}
    corpus, found = read_corpus(f"{s3.url}/corpus/t/")
    assert [document.text for document in found] == ["a", "b", "c"]
    assert corpus.size_hint is None  # a page does not say
    assert [document.text for document in read_corpus(f"{s3.url}/corpus/t/**/*.txt")[1]] == ["a", "c"]


def test_a_server_that_sends_whole_files_only_is_refused_before_anything_is_read(s3):
    upload({"a.jsonl": '{"text": "x"}\n' * 10_000, "small.txt": "x"}, ACL="public-read")
    s3.ranges = False
    with pytest.raises(CorpusError, match=r"a.jsonl: the corpus cannot be read \(The HTTP server doesn't .* range"):
        open_corpus(CorpusSpec(f"{s3.url}/corpus/a.jsonl"))
    assert read_corpus(f"{s3.url}/corpus/small.txt")[1] == [Document(text="x")]


# --- Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        ("s3://corpus/absent.txt", CorpusNotFoundError, "corpus is absent"),
        ("s3://absent/a.txt", CorpusNotFoundError, r"corpus is absent \(.*The specified bucket does not exist\)"),
        ("s3://absent/**/*.txt", CorpusNotFoundError, r"corpus is absent \(.*The specified bucket does not exist\)"),
        ("s3://corpus/t/*.rs", CorpusNotFoundError, "the number of files is 0, expected at least 1"),
        ("s3://", CorpusError, "address is malformed, expected s3://NAME/"),
        ("s3://*/a.txt", CorpusError, "address is malformed"),
        ("hf://owner/name", CorpusError, "address is malformed, expected hf://datasets/OWNER/NAME/"),
        ("hf://datasets/owner", CorpusError, "address is malformed, expected hf://datasets/OWNER/NAME/"),
        ("ftp://host/a.txt", CorpusError, "scheme is 'ftp', expected s3, gs, https, http, hf, or a path without one"),
        ("https://user:secret@host/a.txt", CorpusError, "address is one with a password, expected one without"),
        ("URL/corpus/absent.txt", CorpusNotFoundError, "corpus is absent"),
        ("URL/corpus/t/a.txt", CorpusError, r"the corpus cannot be read \(403, message='Forbidden'"),
        ("http://127.0.0.1:1/a.txt", CorpusError, r"the corpus cannot be read \(Cannot connect to host 127.0.0.1:1"),
    ],
)
def test_what_is_not_there_is_one_named_error_at_once(s3, address, kind, message):
    upload({"t/a.txt": "x"})
    address = address.replace("URL", s3.url)
    s3.requests.clear()
    with pytest.raises(kind, match=message) as error:
        list(open_corpus(CorpusSpec(address)))
    assert str(error.value).startswith(address.partition("*")[0].rstrip("/").replace("user:secret@", ""))
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)
    assert type(error.value) is kind


def test_missing_credentials_are_named(s3, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    forget_connections()
    with pytest.raises(CorpusError, match=r"^s3://corpus/a.txt: the corpus cannot be read \(Unable to locate cred"):
        open_corpus(CorpusSpec("s3://corpus/a.txt"))
    forget_connections()


@pytest.mark.parametrize(
    ("address", "package"),
    [("s3://b/k", "s3fs"), ("gs://b/k", "gcsfs"), ("https://h/k", "aiohttp")],
)
def test_a_missing_package_names_the_extra(monkeypatch, address, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CorpusError, match=rf"^{address}: the package '{package}' .* 'rest-store\[remote\]'"):
        open_corpus(CorpusSpec(address))


def test_options_for_a_directory_are_refused_for_a_file(s3):
    upload({"a.txt": "x"})
    with pytest.raises(CorpusError, match=r"^s3://corpus/a.txt: corpus is a file, expected a directory"):
        open_corpus(CorpusSpec("s3://corpus/a.txt", include=("*.py",)))


# --- The hub, and options of the command -----------------------------------------------------------------------------


def test_the_hub_that_cannot_be_reached_is_said_at_once(monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(remote_corpus, "hub_failure", lambda name, kind: f"{kind} {name}: no route")
    with pytest.raises(CorpusError, match=r"b/x.parquet: the Hugging Face hub cannot be reached \(dataset a/b: no r"):
        open_corpus(CorpusSpec("hf://datasets/a/b/x.parquet"))


def test_globs_of_the_command_apply_to_addresses_of_directories(tmp_path):
    expected = {"s3://b/data": True, "s3://b/data/": True, "s3://b/*.jsonl": True, "s3://b/a.parquet": False}
    expected |= {"hf://datasets/a/b/data": True, "https://h/a.txt": False, str(tmp_path): True}
    assert {address: is_directory(address) for address in expected} == expected
    specs = corpus_specs(list(expected), include=("*.py",))
    assert [bool(spec.include) for spec in specs] == list(expected.values())


def test_a_remote_corpus_of_one_file_needs_no_listing():
    files = list(RemoteCorpus("https://host/dir/a.txt?x=1", size=3).files((), (), CorpusCounts()))
    assert [(file.relative, file.size) for file in files] == [("a.txt", 3)]
