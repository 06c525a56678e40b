"""Corpora where they are: on a real S3 server and on a web server, both of which break connections."""

from __future__ import annotations

import json
import logging
import pickle
import random
import re
import sys
import urllib.request
from urllib.parse import unquote

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from build_index import builder, document_stream
from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.documents import CorpusCounts, Document
from build_index.path import is_directory
from build_index.readers import remote_corpus, remote_file
from build_index.readers.remote_corpus import RemoteCorpus
from build_index.reading_options import Reading
from rest_store.errors import CorpusError, CorpusNotFoundError
from tests.shared.builds import build_quick, contents, documents, write_tokenizer
from tests.shared.corpora import read_corpus, write_files
from tests.shared.object_store import Proxy

BLOCK = 1 << 14  # small files then take several requests


@pytest.fixture(scope="module")
def server():
    server_module = pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = server_module.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    moto.start()
    proxy = Proxy(moto.get_host_and_port()[1])
    forget_connections()
    yield proxy
    forget_connections()
    proxy.shutdown()
    proxy.server_close()
    moto.stop()


def forget_connections():
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture
def store(server, monkeypatch):
    """The server with an empty bucket `corpus`, and the environment of a user who may read it."""
    for name, value in {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(remote_corpus, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(remote_file, "DELAYS", (0, 0, 0))
    monkeypatch.setattr(fsspec.get_filesystem_class("s3"), "retries", 1)  # of its own, which take seconds
    server.reset()
    urllib.request.urlopen(f"{server.url}/moto-api/reset", b"").close()
    fsspec.filesystem("s3", use_listings_cache=False).mkdir("corpus")
    return server


def upload(files, **options):
    system = fsspec.filesystem("s3", use_listings_cache=False)
    for name, data in files.items():
        system.pipe(f"corpus/{name}", data if isinstance(data, bytes) else data.encode(), **options)


def parquet(**columns):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, row_group_size=40, data_page_size=2000, compression="zstd")
    return sink.getvalue().to_pybytes()


def stack(number, **others):
    """A parquet file of The Stack's layout."""
    return parquet(
        hexsha=[f"{row:040x}" for row in range(number)],
        content=[f"def f{row}():\n    return {row * 7919}\n" * (1 + row % 9) for row in range(number)],
        max_stars_repo_path=[f"src/f{row}.py" for row in range(number)],
        lang=["Python" if row % 3 else "C" for row in range(number)],
        **others,
    )


def tree():
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents(120))
    return {
        "data/README.md": "# About\n",
        "data/python/train-00000.parquet": stack(150),
        "data/python/train-00001.parquet": stack(30),
        "data/chat/b.jsonl.zst": zstandard.compress(lines.encode()),
        "data/chat/a.json": json.dumps([{"messages": [{"role": "user", "content": "Hi"}]}] * 2),
        "data/z/numbers.parquet": parquet(n=[1, 2]),
        "data/z/image.png": b"\x89PNG\0\0",
        "data/z/.git/config": "x",
        "data/z.txt": "text",
    }


def facts(corpus):
    provenance = {name: value for name, value in corpus.provenance().items() if name not in ("corpus", "etag")}
    return provenance, corpus.left_out, corpus.size_hint, corpus.bytes_read


# --- The same as a local corpus --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"langs": ("python",), "exclude": ("chat",)},
        {"include": ("*.parquet", "*.md"), "exclude": ("z",)},
        {"max_documents": 170},
        {"reader": "parquet", "include": ("python/*.parquet",)},
    ],
)
def test_a_prefix_is_read_as_a_directory_is(store, tmp_path, options):
    write_files(tmp_path, tree())
    upload(tree())
    local, expected = read_corpus(tmp_path / "data", **options)
    remote, found = read_corpus("s3://corpus/data", **options)
    assert found == expected
    assert [document.origin.removeprefix("s3://corpus") for document in found] == [
        document.origin.removeprefix(str(tmp_path)) for document in expected
    ]
    assert facts(remote) == facts(local)
    assert remote.provenance()["corpus"] == "s3://corpus/data"


@pytest.mark.parametrize("name", ["python/train-00000.parquet", "chat/b.jsonl.zst", "chat/a.json", "README.md"])
def test_a_file_is_read_as_a_local_one_and_its_etag_is_recorded(store, tmp_path, name):
    write_files(tmp_path, tree())
    upload(tree())
    local, expected = read_corpus(tmp_path / "data" / name)
    remote, found = read_corpus(f"s3://corpus/data/{name}")
    assert found == expected
    assert facts(remote) == facts(local)
    etag = fsspec.filesystem("s3").info(f"corpus/data/{name}")["ETag"]
    assert remote.provenance()["etag"] == etag.strip('"')
    assert found[0].origin.startswith(f"s3://corpus/data/{name}")


def test_files_are_read_in_another_process_from_what_was_opened_here(store):
    upload(tree())
    corpus, expected = read_corpus("s3://corpus/data/**")
    again = pickle.loads(pickle.dumps(open_corpus(corpus.spec)))
    again.counts = CorpusCounts()
    found = []
    for file in list(again.files(again.counts)):
        counts = CorpusCounts()
        found += again.documents(pickle.loads(pickle.dumps(file)), counts)
        again.counts += counts
    assert found == expected
    assert again.provenance() == corpus.provenance()


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("**/*.py", ["a/b/c.py", "a/d.py", "e.py"]),
        ("*.py", ["e.py"]),
        ("a/*.py", ["a/d.py"]),
        ("a/**", ["a/b/c.py", "a/b/c.txt", "a/d.py"]),
        ("?/*.py", ["a/d.py"]),
        ("*/", ["a/b/c.py", "a/b/c.txt", "a/d.py", "ab/x.txt"]),
        ("a*/*.txt", ["ab/x.txt"]),
        ("[a]/[b]/c.*", ["a/b/c.py", "a/b/c.txt"]),
        ("a/**/c.txt", ["a/b/c.txt"]),
    ],
)
def test_globs_choose_files_and_only_directories_that_can_hold_them_are_listed(store, glob, expected):
    upload(dict.fromkeys(["t/a/b/c.py", "t/a/b/c.txt", "t/a/d.py", "t/ab/x.txt", "t/e.py", "u/f.py"], "x"))
    _, found = read_corpus(f"s3://corpus/t/{glob}")
    assert [document.origin.removeprefix("s3://corpus/t/") for document in found] == expected
    listed = {prefix for _, path, _ in store.requests for prefix in re.findall(r"prefix=t/([^&]*)&", unquote(path))}
    if glob in ("*.py", "?/*.py", "[a]/[b]/c.*"):
        assert listed == {"*.py": {""}, "?/*.py": {"", "a/"}, "[a]/[b]/c.*": {"", "a/", "a/b/"}}[glob]
    _, left = read_corpus(f"s3://corpus/t/{glob}", exclude=("b",), include=("*.py",))
    kept = [name for name in expected if name.endswith(".py") and "b/" not in name]
    assert [document.origin.removeprefix("s3://corpus/t/") for document in left] == kept


def test_a_datastore_and_the_marker_of_a_directory_are_passed_over(store):
    upload({"t/a.txt": "x", "t/": b"", "t/ds/manifest.json": "{}", "t/ds/0.tokens": "x", "t/ds/README.md": "x"})
    corpus, found = read_corpus("s3://corpus/t/")
    assert [document.origin for document in found] == ["s3://corpus/t/a.txt"]
    assert corpus.skipped == {"datastore": 1}


def test_what_vanishes_meanwhile_is_counted(store):
    upload({"t/a.txt": "a", "t/b.txt": "b", "t/c.txt": "c", "t/d/e.txt": "e"})
    corpus = open_corpus(CorpusSpec("s3://corpus/t"))
    found = iter(corpus)
    assert next(found).text == "a"
    fsspec.filesystem("s3").rm(["corpus/t/b.txt", "corpus/t/d/e.txt"])
    assert [document.text for document in found] == ["c"]
    assert corpus.skipped == {"vanished": 2}


def test_of_a_parquet_file_only_the_needed_columns_are_fetched(store):
    data = stack(150, unused=[random.Random(row).randbytes(20_000) for row in range(150)])
    upload({"a.parquet": data})
    store.requests.clear()
    assert len(read_corpus("s3://corpus/a.parquet")[1]) == 150
    assert sum(size for method, _, size in store.requests if method == "GET") < len(data) / 3
    assert max(size for _, _, size in store.requests) <= BLOCK


# --- Connections that break ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data/python/train-00000.parquet", "data/chat/b.jsonl.zst"])
def test_a_connection_that_breaks_is_tried_again(store, name):
    upload(tree())
    expected = read_corpus(f"s3://corpus/{name}")[1]
    corpus = open_corpus(CorpusSpec(f"s3://corpus/{name}"))
    store.breaks = 3
    assert list(corpus) == expected
    assert store.breaks == 0


@pytest.mark.parametrize("name", ["data/python/train-00000.parquet", "data/chat/b.jsonl.zst"])
def test_a_connection_that_always_breaks_is_one_clear_error(store, name):
    upload(tree())
    corpus = open_corpus(CorpusSpec(f"s3://corpus/{name}"))
    store.breaks = 1 << 30
    with pytest.raises(CorpusError, match=rf"^s3://corpus/{name}: the corpus cannot be read \(.*, 4 tries\)$") as error:
        list(corpus)
    assert "\n" not in str(error.value)
    store.breaks = 0
    assert list(corpus) == read_corpus(f"s3://corpus/{name}")[1]


def test_a_build_of_a_remote_corpus_that_broke_off_is_resumed_to_the_same_bytes(store, tmp_path, monkeypatch):
    files = {name: data for name, data in tree().items() if "chat/a" not in name}
    write_files(tmp_path, files)
    upload(files)
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    sizes = {"shard_tokens": 2000}
    build_quick(tmp_path / "data", tokenizer, tmp_path / "local.ds", **sizes)
    monkeypatch.setattr(document_stream, "BATCH_DOCUMENTS", 20)
    opened = remote_file.RemotePath._fetched

    def break_off(path, number):
        store.breaks = 1 << 30 if path.name == "train-00001.parquet" else 0
        return opened(path, number)

    monkeypatch.setattr(remote_file.RemotePath, "_fetched", break_off)
    with pytest.raises(CorpusError, match=r"^s3://corpus/data/python/train-00001.parquet: the corpus cannot be read"):
        _build("s3://corpus/data", tokenizer, tmp_path / "remote.ds", **sizes)
    monkeypatch.setattr(remote_file.RemotePath, "_fetched", opened)
    store.breaks = 0
    summary = _build("s3://corpus/data", tokenizer, tmp_path / "remote.ds", **sizes, resume=True)
    assert summary.resumed_shards > 0
    local, remote = contents(tmp_path / "local.ds"), contents(tmp_path / "remote.ds")
    del local["manifest.json"], remote["manifest.json"]  # which name the corpora
    assert remote == local


def _build(address, tokenizer, out, **others):
    from build_index.builder import BuildOptions, build

    return build(BuildOptions((CorpusSpec(address),), str(tokenizer), out, memory=1 << 40, workers=1, **others))


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(store):
    lines = "".join(json.dumps({"text": f"{row} " * 1000}) + "\n" for row in range(400))
    upload({"a.jsonl": lines})
    found = iter(open_corpus(CorpusSpec("s3://corpus/a.jsonl")))
    next(found)
    upload({"a.jsonl": lines.upper()})
    with pytest.raises(CorpusError, match=r"^s3://corpus/a.jsonl: the corpus cannot be read"):
        list(found)


# --- Web servers -----------------------------------------------------------------------------------------------------


def test_a_web_address_is_read_in_parts_and_a_broken_part_again(store, tmp_path):
    write_files(tmp_path, tree())
    upload(tree(), ACL="public-read")
    for name in ("python/train-00000.parquet", "chat/b.jsonl.zst"):
        store.breaks = 0
        corpus = open_corpus(CorpusSpec(f"{store.url}/corpus/data/{name}?signature=secret"))
        store.breaks = 2
        found = list(corpus)
        assert found == read_corpus(tmp_path / "data" / name)[1]
        assert "secret" not in json.dumps(corpus.provenance()) + found[0].origin
        assert corpus.provenance()["etag"]


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

    with pytest.raises(kind, match=r"https://host/a['),]") as raised:
        remote_file.requested("https://host/a", request, once=True)
    assert "secret" not in str(raised.value)


def test_a_build_from_a_web_address_is_resumed_with_another_signature(store, tmp_path, monkeypatch):
    upload(
        {"a.jsonl": "".join(json.dumps({"text": f"line {row} " * 50}) + "\n" for row in range(200))}, ACL="public-read"
    )
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    address = f"{store.url}/corpus/a.jsonl?signature="

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(builder.Build, "complete", interrupt)
        with pytest.raises(KeyboardInterrupt):
            _build(f"{address}first", tokenizer, tmp_path / "ds", shard_tokens=2000)
    assert b"first" not in (tmp_path / ".ds.building" / "journal.jsonl").read_bytes()
    assert _build(f"{address}second", tokenizer, tmp_path / "ds", shard_tokens=2000, resume=True).resumed_shards > 0


def test_the_links_of_a_page_are_the_files_of_a_directory(store):
    upload({"t/b.jsonl": '{"text": "b"}\n', "t/a.txt": "a", "t/sub/c.txt": "c"}, ACL="public-read")
    index = '<a href="../">up</a> <a href="?C=N;O=D">Name</a> <a href="b.jsonl">b</a> <a href="a.txt">a</a>'
    store.pages["/corpus/t/"] = f'{index} <a href="sub/">sub</a> <a href="https://example.org/x.txt">x</a>'
    store.pages["/corpus/t/sub/"] = '<a href="../">up</a> <a href="c.txt">c</a> <a href="/corpus/t/a.txt">a</a>'
    corpus, found = read_corpus(f"{store.url}/corpus/t/")
    assert [document.text for document in found] == ["a", "b", "c"]
    assert corpus.size_hint is None  # a page does not say
    assert [document.text for document in read_corpus(f"{store.url}/corpus/t/**/*.txt")[1]] == ["a", "c"]


def test_a_server_that_sends_whole_files_only_is_refused_before_anything_is_read(store):
    upload({"a.jsonl": '{"text": "x"}\n' * 10_000, "small.txt": "x"}, ACL="public-read")
    store.ranges = False
    with pytest.raises(CorpusError, match=r"a.jsonl: the corpus cannot be read \(The HTTP server doesn't .* range"):
        open_corpus(CorpusSpec(f"{store.url}/corpus/a.jsonl"))
    assert read_corpus(f"{store.url}/corpus/small.txt")[1] == [Document(text="x")]


# --- Bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        ("s3://corpus/absent.txt", CorpusNotFoundError, "corpus is absent"),
        ("s3://absent/a.txt", CorpusNotFoundError, r"corpus is absent \(The specified bucket does not exist\)"),
        ("s3://absent/**/*.txt", CorpusNotFoundError, r"corpus is absent \(The specified bucket does not exist\)"),
        ("s3://corpus/t/*.rs", CorpusNotFoundError, "the number of files that match is 0, expected at least 1"),
        ("s3://", CorpusError, "address is malformed, expected s3://NAME/"),
        ("s3://*/a.txt", CorpusError, "address is malformed"),
        ("ftp://host/a.txt", CorpusError, "scheme is 'ftp', expected s3, gs, https, http or hf, or a path without one"),
        ("https://user:secret@host/a.txt", CorpusError, "address is one with a password, expected one without"),
        ("URL/corpus/absent.txt", CorpusNotFoundError, "corpus is absent"),
        ("URL/corpus/t/a.txt", CorpusError, r"the corpus cannot be read \(403, message='Forbidden'"),
        ("http://127.0.0.1:1/a.txt", CorpusError, r"the corpus cannot be read \(Cannot connect to host 127.0.0.1:1"),
    ],
)
def test_what_is_not_there_is_one_named_error_at_once(store, address, kind, message, monkeypatch):
    upload({"t/a.txt": "x"})
    monkeypatch.setattr(remote_file.time, "sleep", lambda seconds: pytest.fail("it is tried again"))
    address = address.replace("URL", store.url)
    store.requests.clear()
    with pytest.raises(kind, match=message) as error:
        open_corpus(CorpusSpec(address))
    assert str(error.value).startswith(address.partition("*")[0].replace("user:secret@", ""))
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)
    assert type(error.value) is kind
    assert len(store.requests) <= 3


def test_missing_credentials_are_named(store, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    forget_connections()
    with pytest.raises(CorpusError, match=r"^s3://corpus/a.txt: the corpus cannot be read \(Unable to locate cred"):
        open_corpus(CorpusSpec("s3://corpus/a.txt"))
    forget_connections()


@pytest.mark.parametrize(
    ("address", "package"),
    [("s3://b/k", "s3fs"), ("gs://b/k", "gcsfs"), ("https://h/k", "aiohttp"), ("hf://datasets/a/b/k", "fsspec")],
)
def test_a_missing_package_names_the_extra(monkeypatch, address, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(CorpusError, match=rf"^{address}: the package '{package}' .* 'rest-store\[remote\]'"):
        open_corpus(CorpusSpec(address))


def test_options_for_a_directory_are_refused_for_a_file(store):
    upload({"a.txt": "x"})
    for options in ({"include": ("*.py",)}, {"reader": "tree"}):
        with pytest.raises(CorpusError, match=r"^s3://corpus/a.txt: corpus is a file, expected a directory"):
            open_corpus(CorpusSpec("s3://corpus/a.txt", **options))


# --- The hub, and options of the command -----------------------------------------------------------------------------


def test_files_of_the_hub_are_read_through_its_file_system(monkeypatch):
    system = fsspec.filesystem("memory")
    system.pipe("/datasets/a/b/data/x.jsonl", b'{"text": "x"}\n')
    system.pipe("/datasets/a/b/README.md", b"# About")
    monkeypatch.setattr(system, "unstrip_protocol", lambda name: f"hf:/{name}", raising=False)
    monkeypatch.setattr(remote_corpus, "file_system", lambda url: system)
    monkeypatch.setattr(remote_corpus, "hub_failure", lambda name, kind: None)
    listing = system.ls
    monkeypatch.setattr(system, "ls", lambda url, detail: listing(url.removeprefix("hf:/"), detail=detail))
    files = list(remote_corpus.look_at("hf://datasets/a/b/**/*.jsonl").files((), (), CorpusCounts()))
    assert [(file.path, file.relative, file.size) for file in files] == [
        ("hf://datasets/a/b/data/x.jsonl", "data/x.jsonl", 14)
    ]


def test_the_hub_that_cannot_be_reached_is_said_at_once(monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(remote_corpus, "hub_failure", lambda name, kind: f"{kind} {name}: no route")
    with pytest.raises(CorpusError, match=r"b/x.parquet: the Hugging Face hub cannot be reached \(dataset a/b: no r"):
        open_corpus(CorpusSpec("hf://datasets/a/b/x.parquet"))


def test_globs_of_the_command_apply_to_addresses_of_directories(tmp_path):
    expected = {"s3://b/data": True, "s3://b/data/": True, "s3://b/*.jsonl": True, "s3://b/a.parquet": False}
    expected |= {"hf://a/b": False, "hf://datasets/a/b/data": True, "https://h/a.txt": False, str(tmp_path): True}
    assert {address: is_directory(address) for address in expected} == expected
    specs = Reading(None, None, (), ("*.py",), (), None, None).specs(list(expected))
    assert [bool(spec.include) for spec in specs] == list(expected.values())


def test_a_remote_corpus_of_one_file_needs_no_listing():
    files = list(RemoteCorpus("https://host/dir/a.txt?x=1", size=3).files((), (), CorpusCounts()))
    assert [(file.relative, file.size) for file in files] == [("a.txt", 3)]
